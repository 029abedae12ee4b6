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


def test_one_value_has_no_change():
    assert "throughout" in run("--vary", "S", "--values", 2, "--C", 16, "--W", 64).output


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


def test_markdown():
    result = run(*SMALL, "--format", "markdown")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("| S | algorithm | settings |")


def test_options_reach_the_planner(plans):
    options = ("--lnc", 1, "--dtype", "fp32", "--N", 2, "--S", 3, "--no-cache", "--constant", "scalar.ns_per_elem=1.5")
    found = document("--vary", "Q", "--values", "2", "--C", 16, *options)
    [point] = found["rows"]
    assert (point["lnc"], point["dtype"], point["N"], point["S"], point["W"], point["Q"]) == (1, "fp32", 2, 3, 4, 2)
    assert found["sweep"]["constants"] == {"scalar.ns_per_elem": 1.5}
    assert not plans.exists()


def test_without_padding():
    [point] = document("--vary", "S", "--values", 4, "--C", 16, "--W", 64, "--valid")["rows"]
    assert (point["pad_left"], point["Q"]) == (0, 61)
