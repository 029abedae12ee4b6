"""`nkiconv crossover`: the table, the changes, JSON, CSV, Markdown, and bad input by name."""

import csv
import functools
import json

import pytest
import shell

pytestmark = pytest.mark.simulator_only
SMALL = ("--vary", "S", "--values", "4,1", "--C", 16, "--W", 64)


@pytest.fixture(autouse=True)
def here(plans, tmp_path, monkeypatch):
    """A current directory of this test's own, and an empty cache of plans."""
    monkeypatch.chdir(tmp_path)


run = functools.partial(shell.run, "crossover")


def document(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_table():
    result = run(*SMALL)
    assert result.exit_code == 0, result.output
    for text in ("plans by S: N=1 C=16 W=64, bf16, causal", "modelled", "x copy", "runner-up", "x best", "bound by"):
        assert text in result.output
    assert " up to S=" in result.output or "throughout" in result.output


def test_json_csv_and_the_cache(plans, tmp_path):
    found = document(*SMALL, "--csv", "sweep.csv")
    assert found["sweep"]["values"] == [1, 4]
    asked = [point for point in found["rows"] if not point["between"]]
    assert [(point["S"], point["C"], point["pad_left"]) for point in asked] == [(1, 16, 0), (4, 16, 3)]
    for point in asked:
        assert point["x_copy_floor"] == pytest.approx(point["modelled_us"] / point["copy_floor_us"])
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == [point["algorithm"] for point in found["rows"]]
    assert len(list(plans.iterdir())) == len(found["rows"])
