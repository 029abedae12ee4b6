"""The command that says which kernels have changed: its table is of this code on a sample, and it sees what moves."""

import dataclasses
import math
import sys

import pytest
from commands import of_command

from nkiconv import cases
from nkiconv.planner.operations import operation_of

pytestmark = pytest.mark.simulator_only
#: Rows that take little.
SAMPLE = ("nkl_n1_c16_w512_s7", "kda_bf16", "rn50_c4", "vit_patch16", "sam_up")


golden = of_command("golden")


@pytest.mark.cover(3)
@pytest.mark.parametrize("way", ["default", "estimate", "timed"])
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_as_the_table_says(golden, name, way):
    (problem,) = (problem for one, problem in golden.problems() if one == name)
    assert golden.row_of(name, problem, way) == golden.read()[name, way]


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
    mean, worst = math.exp(sum(map(math.log, every)) / len(every)), max(times)
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
    assert math.exp(sum(map(math.log, times)) / len(times)) <= 1.4
    assert max(times) <= 2.2


def test_estimates_of_transposed_cases_are_near_the_timed_plan(golden):
    """As the table has them: at most 1.05 as a geometric mean of the named cases, 1.15 at worst."""
    rows, times = golden.read(), []
    for name in cases.names("conv_transpose"):
        times.append(float(rows[name, "estimate"].us) / float(rows[name, "timed"].us))
    assert math.exp(sum(map(math.log, times)) / len(times)) <= 1.05
    assert max(times) <= 1.15


def test_a_stream_is_known_by_what_it_does(golden):
    """Another config of the same problem, not another launch of it."""
    name, problem = next(iter(golden.problems()))
    rows = [golden.row_of(name, problem, "estimate") for _ in range(2)]
    assert rows[0] == rows[1]
    other = golden.row_of(name, problem.replace(W=problem.W + 1), "estimate")
    assert other.stream != rows[0].stream


def test_what_moved_is_said_and_what_is_slower_fails(golden):
    before = golden.read()
    row = next(row for row in before.values() if row.us)
    assert golden.moved(before, [row])[1]
    for times, kept in ((0.5, True), (1.005, False), (1.02, False)):
        lines, fast = golden.moved(before, [dataclasses.replace(row, us=f"{times * float(row.us):.4f}")])
        assert (fast, "SLOWER" in lines[0]) == (kept, times > golden.SLOWER)
    many = [row for row in before.values() if row.us][:60]
    slower = dataclasses.replace(many[0], us=f"{1.005 * float(many[0].us):.4f}")
    faster = dataclasses.replace(many[1], us=f"{0.9 * float(many[1].us):.4f}")
    lines, fast = golden.moved(before, [slower, faster, *many[2:]])
    assert fast
    assert lines[-1].startswith("2 of 60 rows moved")


def test_the_command(golden, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["golden", "--only", SAMPLE[0], "--way", "estimate"])
    assert golden.main() == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 of 1 rows moved")
    monkeypatch.setattr(sys, "argv", ["golden", "--write", "--only", SAMPLE[0]])
    with pytest.raises(SystemExit):
        golden.main()
