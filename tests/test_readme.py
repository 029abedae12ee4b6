"""The README is true: its Python runs, its commands exist, its generated tables are what the code says."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nkiconv
from nkiconv import readme_table, suite
from nkiconv.pytorch.computers import device, modes
from nkiconv.readme_table import markers
from nkiconv.simulator.coverage import coverage, markdown
from nkiconv.support import page as support

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def namespace():
    """What the README's Python leaves, all of it run in order."""
    found = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), found)
    return found


@pytest.mark.simulator_only
def test_python_blocks_run_in_order(namespace):
    assert len(blocks("python")) >= 3
    assert namespace["y"].shape == (2, 48, 1000)
    assert (namespace["doubled"] == 2).all()


@pytest.mark.simulator_only
def test_quick_starts_do_what_they_say(namespace):
    assert namespace["maps"].shape == (1, 16, 20, 20)
    assert namespace["weight"].grad.abs().sum() > 0
    converted, planned = namespace["converted"], namespace["planned"]
    assert [entry.operator for entry in converted.swapped] == ["conv2d"]
    assert [fold.convolution for fold in converted.folds] == ["0"]
    assert namespace["scores"].shape == (1, 8, 32, 32)
    assert [row.layers for row in planned.rows] == [("0",)]
    assert planned.modelled_us > 0


@pytest.mark.simulator_only
def test_quick_start_for_trn2_reaches_the_kernel(namespace, monkeypatch):
    """On a device that is none: calls of the kernel are answered by the simulator."""
    launched = []

    def wrap_nki(kernel):
        launched.append(kernel)
        return {2: nkiconv.simulate(kernel[2])}

    monkeypatch.setitem(sys.modules, "torch_neuronx", types.SimpleNamespace(wrap_nki=wrap_nki))
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    device.launcher.cache_clear()
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.ReLU()).requires_grad_(False)
    model[0].weight.copy_(torch.randint(-3, 4, (4, 3, 3, 3), generator=generator))
    batch = torch.randint(-3, 4, (1, 3, 8, 8), generator=generator).float()
    try:
        y = namespace["on_trn2"](model, batch, device="cpu")
    finally:
        device.launcher.cache_clear()
    assert launched == [nkiconv.conv2d_implicit_gemm]
    assert torch.equal(y, model(batch))  # whole numbers: sums are exact in any order


COMMANDS = sorted(
    {line.split()[1] for block in blocks("console") for line in block.splitlines() if line[:8] == "nkiconv "}
    | set(re.findall(r"`nkiconv ([a-z-]+)", TEXT))
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


@pytest.mark.simulator_only
def test_support_tables_are_current():
    first, last = support.MARKERS
    assert TEXT.split(first)[1].split(last)[0] == support.page(), "run `make readme`"
