"""Blocks of several places whose few channels the Tensor Engine transposes together: exact on integers."""

import pytest
from depthwise import on_cores
from gradients import check

import nkiconv
from nkiconv.kernels.gradients import conv_weight_gradient
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.schedules.blocks import BlocksSettings, transposed_of
from nkiconv.schedules.blocks_bound import BlocksBound
from nkiconv.schedules.blocks_candidates import candidates
from nkiconv.schedules.blocks_schedule import build
from nkiconv.simulator.timing import Rates
from nkiconv.simulator.timing.target import Target

#: (N, C, K, groups), an axis each (size, taps, stride, dilation, before, after), rows and columns of a block.
PROBLEMS = {
    "parts of rows": ((1, 3, 130, 1), [(26, 3, 1, 1, 1, 2), (25, 3, 1, 1, 1, 1)], (1, 1)),
    "parts of rows of some planes": ((3, 24, 5, 1), [(20, 3, 1, 1, 0, 2), (17, 2, 1, 1, 1, 0)], (2, 1)),
    "parts of columns": ((1, 2, 70, 1), [(300, 4, 1, 1, 3, 0)], (1, 1)),
    "parts of both": ((1, 4, 9, 1), [(4, 2, 1, 1, 1, 0), (290, 3, 2, 1, 0, 2)], (1, 1)),
    "patches": ((2, 3, 20, 1), [(36, 4, 4, 1, 0, 0), (80, 4, 4, 1, 0, 0)], (1, 1)),
    "dilated": ((1, 6, 30, 1), [(19, 5, 1, 2, 4, 4), (19, 5, 1, 3, 6, 6)], (1, 1)),
    "dilated, blocks of some rows": ((1, 6, 30, 1), [(21, 3, 2, 4, 4, 4), (30, 3, 1, 2, 2, 2)], (2, 1)),
    "cropped": ((1, 5, 6, 1), [(23, 2, 1, 1, -2, 3), (21, 3, 1, 1, 4, -1)], (1, 1)),
    "groups": ((1, 4, 6, 2), [(20, 3, 1, 1, 1, 1), (19, 3, 1, 1, 1, 1)], (1, 1)),
    "volumes": ((1, 3, 4, 1), [(4, 3, 1, 1, 1, 1), (20, 2, 1, 1, 0, 1), (19, 3, 1, 1, 1, 1)], (1, 1)),
}


def config_of(rows, columns, **more):
    return tuple({"pixels": 2, "rows": rows, "columns": columns, **more}.items())


@pytest.mark.cover(12)
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("name", PROBLEMS)
def test_gangs_are_exact(name, split):
    channels, axes, blocks = PROBLEMS[name]
    on_cores(check, channels, axes, bias_gradient=True, adds=split == 1, config=config_of(*blocks, split=split))


@pytest.mark.parametrize("name", ["parts of rows", "dilated"])
def test_gangs_of_fp32_are_exact(name):
    channels, axes, blocks = PROBLEMS[name]
    check(channels, axes, dtype="fp32", config=config_of(*blocks))


def test_few_outputs_are_a_gang_in_the_place_of_inputs():
    axes = [(20, 3, 1, 1, 1, 1), (19, 3, 1, 1, 1, 1)]
    on_cores(check, (2, 140, 3, 1), axes, config=config_of(1, 1, exchanged=1))


def transposes_of(C, K, H, taps, dilation=1):
    """Of one core, with a position of gy for each partition."""
    x, gy = nkiconv.spec((1, C, H, H), "bf16"), nkiconv.spec((1, K, H, H), "bf16")
    side = (taps - 1) * dilation // 2
    call = {"padding": ((side, side),) * 2, "rhs_dilation": (dilation,) * 2, "config": config_of(1, 1)}
    shape = (K, C, taps, taps)
    more = call | {"algorithm": "blocks"}
    traced = nkiconv.simulator.execute(conv_weight_gradient[1], (x, gy, shape), more, trace_only=True)
    return sum(one.op == "nc_transpose" for one in traced.instructions)


@pytest.mark.parametrize(("dilation", "taps"), [(1, 3), (2, 5)])
def test_each_tap_of_few_channels_is_transposed_once(dilation, taps):
    """Of 32 x 32 positions, 8 tiles of 128 units: gy's each alone, x's of 8 x 16 channels together."""
    assert transposes_of(16, 128, 32, taps, dilation) == 8 + taps**2


#: (N, C, K, D, H, T, R) of volumes, whose first and last planes see fewer planes of x, and of images.
SHAPES = [(2, 64, 64, 16, 112, 3, 1), (1, 24, 160, 6, 40, 3, 3), (2, 4, 9, 4, 24, 3, 3), (8, 40, 80, 1, 28, 1, 3)]


@pytest.mark.parametrize(("N", "C", "K", "D", "H", "T", "R"), SHAPES)
def test_the_bound_counts_what_schedules_have(N, C, K, D, H, T, R):
    """Members of a gang, tiles of a core, pieces on their way of candidates of least time."""
    sides = tuple((taps // 2,) * 2 for taps in (T, R, R))
    problem = nkiconv.ConvProblem(N=N, C=C, K=K, D=D, H=H, W=H, T=T, R=R, S=R, stride=(1, 1, 1), padding=sides)
    request = Request(problem=problem.toward("wgrad"))
    geometry = operation_for(request).shape(request, Rates()).geometry
    found = candidates(Target.of(Rates()), geometry, {"pixels": 2}, 4, False, 2)
    bound = BlocksBound(Target.of(Rates()), transposed_of(geometry), geometry, 2, 128)
    for _, config in found:
        schedule, settings = build(geometry, config, False, 2)[0], BlocksSettings(**dict(config))
        assert bound.gang(settings) == schedule.gang
        most = max(one.half if schedule.split else len(one.tiles) for one in schedule.passes)
        assert bound.tiles(settings) == most
        assert bound.raws(settings) == schedule.transposes.raws
