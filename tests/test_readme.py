"""The README is true: its Python runs, its commands exist, its coverage table is what the code says."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nkiconv import readme_table, suite
from nkiconv.readme_table import markers
from nkiconv.simulator.coverage import coverage, markdown

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.simulator_only
def test_python_blocks_run_in_order():
    namespace = {}
    found = blocks("python")
    assert len(found) >= 3
    for block in found:
        exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["y"].shape == (2, 48, 1000)
    assert (namespace["doubled"] == 2).all()


COMMANDS = sorted(
    {line.split()[1] for block in blocks("console") for line in block.splitlines() if line[:8] == "nkiconv "}
)


def test_there_are_commands():
    assert {"doctor", "cases", "run", "bench-simulator"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_exists(command):
    from nkiconv.cli import app

    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output


def test_make_targets_exist():
    makefile = (README.parent / "Makefile").read_text()
    targets = set(re.findall(r"`?make ([a-z-]+)", TEXT))
    assert targets >= {"demo", "test"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} is not in the Makefile"


@pytest.mark.simulator_only
@pytest.mark.parametrize("name", suite.SUITES)
def test_profiles_table_is_the_csv(name):
    rows = suite.read(README.parent / "profiles" / f"{name}_modelled_trn2.csv")
    first, last = markers(name)
    between = TEXT.split(first)[1].split(last)[0]
    assert between == readme_table.markdown(rows), "run `make profiles`"
    assert [(row["case"], row["dtype"]) for row in rows] == [(case.name, d) for case, d in suite.chosen(name)]
    assert {row["verdict"] for row in rows} == {"pass"}


@pytest.mark.simulator_only
def test_coverage_table_is_current():
    between = re.search(r"<!-- coverage:.*?-->\n(.*?)<!-- /coverage -->", TEXT, re.DOTALL)
    assert between, "the README lost its coverage markers"
    assert between.group(1) == markdown(), "run `make readme`"
    assert all(part.simulated > 0 for part in coverage())
