"""Blocks of several places whose few channels the Tensor Engine transposes together: exact on integers."""

import pytest
from depthwise import on_cores
from gradients import check

import nkiconv
from nkiconv.kernels.gradients import conv_weight_gradient

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
