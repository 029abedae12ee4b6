"""Sums of all taps of some channels leave together: exact, and in runs of all taps."""

import pytest
from draws import cores
from gradients import check

from nkiconv import ConvProblem
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.simulator.launch import execute

#: (N, C, K, groups), and an axis each (size, taps, stride, dilation, before, after).
SEVERAL = {
    "planes": ((1, 40, 150, 1), (5, 3, 1, 1, 1, 1), (6, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1)),
    "planes alone": ((2, 150, 130, 1), (5, 3, 1, 1, 1, 1), (6, 1, 2, 1, 0, 0), (7, 1, 2, 1, 0, 0)),
    "groups": ((1, 12, 8, 4), (4, 2, 1, 1, 1, 0), (6, 3, 1, 1, 1, 1), (5, 2, 1, 1, 1, 0)),
    "rows": ((1, 3, 5, 1), (40, 27, 1, 1, 3, 3), (40, 27, 1, 1, 3, 3)),
}
CONFIGS = {
    "one pass": (),
    "passes of both cores": (("outputs", 1), ("inputs", 1), ("channels", 1), ("split", 0)),
    "rounds": (("outputs", 2), ("inputs", 2), ("split", 0)),
    "halves": (("split", 1), ("rows", 1)),
    "exchanged": (("exchanged", 1),),
}


@pytest.mark.cover(4)
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", SEVERAL)
def test_every_problem_is_exact(name, config, is_last):
    channels, *axes = SEVERAL[name]
    unstrided = channels[3] == 1 and all(axis[2] == 1 for axis in axes)
    settings = CONFIGS[config] if unstrided or config != "exchanged" else ()
    for lnc in cores():
        check(channels, axes, is_last, lnc=lnc, adds=lnc == 2, config=settings or None)


@pytest.mark.simulator_only
def test_runs_are_of_all_taps():
    problem = ConvProblem(N=1, C=160, D=3, H=6, W=6, K=256, T=3, R=3, S=3, padding=((1, 1),) * 3).toward("wgrad")
    request = Request(problem=problem)
    operation = operation_for(request)
    done = execute(operation.kernel[2], *operation.arguments(request, "blocks", (("split", 0),)), trace_only=True)
    shared = [view for one in done.instructions for view in one.writes if view.info.buffer.name == "shared_hbm"]
    assert sum(view.num_elems for view in shared) == 256 * 160 * 27
    assert {(view.shape[-2:], view.strides[-2:]) for view in shared} == {((9, 3), (3, 1))}
