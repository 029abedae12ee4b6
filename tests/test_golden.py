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


def over_timed(golden, way, taken):
    """Times of this way over those of timed plans, of problems that are taken."""
    rows = golden.read()
    pairs = [
        (rows[name, way].us, rows[name, "timed"].us) for name, problem in golden.problems() if taken(name, problem)
    ]
    return [float(one) / float(timed) for one, timed in pairs if timed]


def of_operation(operation, gradients=True):
    """Those of an operation, also gradients by x, which transposed ones compute."""

    def taken(name, problem):
        found, is_gradient = operation_of(problem).name, " dgrad " in name
        return operation == (found.replace("_transpose", "") if is_gradient else found) and is_gradient <= gradients

    return taken


#: Whose times, how they were chosen, of how many at least: their geometric mean and the worst over the timed plan's.
#: NHWC of large depthwise filters and strided stems are the worst of gradients.
NEAR_TIMED = {
    "rows": (of_operation("depthwise_conv1d"), "default", 150, 1.10, 2.4),
    "images": (of_operation("conv2d"), "default", 150, 1.10, 2.4),
    "rows, forward": (of_operation("depthwise_conv1d", gradients=False), "default", 150, 1.10, 2.0),
    "images, forward": (of_operation("conv2d", gradients=False), "default", 150, 1.10, 2.0),
    "filter gradients": (of_operation("conv2d_weight"), "default", 26, 1.4, 2.2),
    "transposed": (lambda name, _: name in cases.names("conv_transpose"), "estimate", 13, 1.05, 1.15),
}


@pytest.mark.parametrize("which", NEAR_TIMED)
def test_choices_without_a_search_are_near_the_timed_plan(golden, which, record_property):
    taken, way, count, mean, worst = NEAR_TIMED[which]
    times = over_timed(golden, way, taken)
    record_property(f"{way} over timed", f"{statistics.geometric_mean(times):.4f}, worst {max(times):.3f}")
    assert len(times) >= count
    assert statistics.geometric_mean(times) <= mean
    assert max(times) <= worst


measured = of_command("validation", "measured")
modelled = of_command("validation", "modelled")
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
