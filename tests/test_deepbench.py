"""`nkiconv bench --suite deepbench`: DeepBench's training list, what a V100 took, and means of both."""

import json
from pathlib import Path

import pytest
from shell import run

from nkiconv import cases
from nkiconv.rules import DIRECTIONS, LAYOUTS
from nkiconv.tools.suites import deepbench, suite
from nkiconv.tools.tables import deepbench as tables

ROOT = Path(__file__).resolve().parents[1]
FIRST_LAYERS = 10


def test_a_v100_took_some_time_for_all_but_gradients_of_first_layers():
    found = deepbench.published()
    counts = [sum(direction == one for _, direction in found) for one in DIRECTIONS]
    assert counts == [94, 94 - FIRST_LAYERS, 94]
    assert min(found.values()) > 0
    assert {name for name, _ in found} == set(cases.names("deepbench"))
    assert {case.problem.C < 4 for case in cases.load("deepbench") if (case.name, "dgrad") not in found} == {True}


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.usefixtures("plans")
def test_rows_of_one_problem(tmp_path):
    result = run("bench", "--suite", "deepbench", "--only", "db_11", "--layout", "NCHW", "--json")
    document = json.loads(result.stdout)
    rows = document["rows"]
    assert [(row["case"], row["direction"], row["layout"]) for row in rows] == [
        ("db_11", direction, "NCHW") for direction in DIRECTIONS
    ]
    for row, mean in zip(rows, document["geometric_means"], strict=True):
        assert row["v100_us"] == deepbench.published()["db_11", row["direction"]]
        assert mean["roofline_fraction"] == pytest.approx(row["roofline_fraction"])
        assert (row["behind"] != "") == (row["roofline_fraction"] < row["v100_fraction"])
    shown = run("bench", "--suite", "deepbench", "--only", "db_11", "--layout", "NCHW", width=200).stdout
    assert "geometric mean of 1, 1 of the V100" in shown


@pytest.mark.parametrize(("arguments", "words"), [
    (("--only", "zzz"), "--only=zzz: no case has this in its name; they are db_00, db_01"),
    (("--layout", "HWCN"), "layout='HWCN'"),
    (("--dtype", "fp16"), "--dtype: cannot be combined with --suite=deepbench"),
])  # fmt: skip
def test_what_cannot_be_run_is_refused(arguments, words):
    result = run("bench", "--suite", "deepbench", *arguments, width=300)
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.simulator_only
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_page_is_the_csv(layout):
    rows = suite.read(ROOT / "profiles" / f"deepbench_{layout.lower()}_modelled_trn2.csv")
    text = (ROOT / "docs" / "deepbench.md").read_text(encoding="utf-8")
    first, last = tables.markers(layout)
    assert text.split(first)[1].split(last)[0] == tables.page(rows), "run `make deepbench`"
    listed = [(case.name, direction, layout) for direction in DIRECTIONS for case in cases.load("deepbench")]
    assert [(row["case"], row["direction"], row["layout"]) for row in rows] == listed
