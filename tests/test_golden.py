"""The table of kernels is of this code on a sample; bare kernels, and what was measured, are near the model."""

import dataclasses
import statistics

import pytest
from commands import of_command

import nkiconv
from nkiconv import cases
from nkiconv.planner.operations import operation_of

pytestmark = pytest.mark.simulator_only
#: Rows that take little.
SAMPLE = ("nkl_n1_c16_w512_s7", "kda_bf16", "rn50_c4", "vit_patch16", "sam_up")


golden = of_command("golden")


@pytest.mark.cover(1)
@pytest.mark.parametrize("way", ["default", "estimate", "timed"])
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_as_the_table_says(golden, name, way):
    (problem,) = (problem for one, problem in golden.problems() if one == name)
    assert golden.row_of(name, problem, way) == golden.read()[name, way]


def test_kept_settings_are_run_in_place_of_a_choice(golden, monkeypatch):
    (problem,) = (problem for one, problem in golden.problems() if one == "rn50_c4")
    row = golden.read()["rn50_c4", "timed"]
    monkeypatch.setattr(nkiconv, "plan", None)
    assert golden.row_of("rn50_c4", problem, "timed", row) == row


def test_the_table_has_every_problem_each_way(golden):
    assert set(golden.read()) == {(name, way) for name, _ in golden.problems() for way in golden.WAYS}


@pytest.mark.parametrize("operation", ["depthwise_conv1d", "conv2d"])
def test_the_default_rule_is_near_the_timed_plan(golden, operation, record_property):
    """A bare kernel's times over the plan's: at most 1.10 as a geometric mean, twice at worst; 2.4 times of gradients,
    as NHWC of large depthwise filters and strided stems are."""
    rows, times, of_gradients = golden.read(), [], []
    for name, problem in golden.problems():
        bare, timed = rows[name, "default"], rows[name, "timed"]
        is_gradient, taken = " dgrad " in name, operation_of(problem).name
        if operation == (taken.replace("_transpose", "") if is_gradient else taken) and timed.us:
            into = of_gradients if is_gradient else times
            into.append(float(bare.us) / float(timed.us))
    every = times + of_gradients
    mean, worst = statistics.geometric_mean(every), max(times)
    record_property("default over timed", f"{mean:.4f}, worst {worst:.3f}, of {len(every)}")
    print(f"{operation}: the bare kernel takes {mean:.4f} of the plan's time (geometric mean), at worst {worst:.3f}")
    assert len(times) > 150
    assert mean <= 1.10
    assert worst <= 2.0
    assert max(of_gradients) <= 2.4


def test_the_rule_of_filter_gradients_is_near_the_timed_plan(golden):
    """Of those of training, depthwise rows aside, in both layouts: at most 1.4 as a geometric mean, 2.2 at worst."""
    rows, times = golden.read(), []
    for name, problem in golden.problems():
        if operation_of(problem).name == "conv2d_weight":
            times.append(float(rows[name, "default"].us) / float(rows[name, "timed"].us))
    assert len(times) > 25
    assert statistics.geometric_mean(times) <= 1.4
    assert max(times) <= 2.2


def test_estimates_of_transposed_cases_are_near_the_timed_plan(golden):
    """As the table has them: at most 1.05 as a geometric mean of the named cases, 1.15 at worst."""
    rows, times = golden.read(), []
    for name in cases.names("conv_transpose"):
        times.append(float(rows[name, "estimate"].us) / float(rows[name, "timed"].us))
    assert statistics.geometric_mean(times) <= 1.05
    assert max(times) <= 1.15


measured = of_command("validation", "measured")
modelled = of_command("validation", "modelled")
command = of_command("validation")
#: Rows of classes that constants were not read off, and the least and most that the model may take for them.
NEAR = [("m 2, n 1, k 8", 0.95, 1.05), ("m 2, n 6, k 4", 0.93, 1.07), ("copy of 4096 x 128", 0.95, 1.05)]


@pytest.mark.cover(0, keep=["copy of 4096 x 128"])
@pytest.mark.parametrize(("what", "least", "most"), NEAR, ids=[row[0] for row in NEAR])
def test_hardware_made_descriptors_take_what_was_measured(measured, modelled, what, least, most):
    sources = [source for source in measured.read() if "chipboost" in source.name]
    for source in sources:
        rows = tuple(row for row in source.rows if row.what == what)
        for found in modelled.outcomes(dataclasses.replace(source, rows=rows), None, {}):
            assert least < 1 + found.error < most
            assert least < 1 + found.ahead_error < most
            return
    pytest.fail("no such row")


def test_the_page(command, tmp_path):
    command.main(["--only", "runs of 64 bytes", "--out", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert page.count("| ours |") == 5
    assert "pe.row_tiles_overlap | 1 | 0 to 1" in page
    command.main(["--only", "nki-autotune", "--out", str(tmp_path / "page.md")])
    assert "No checkout of it was given." in (tmp_path / "page.md").read_text()
