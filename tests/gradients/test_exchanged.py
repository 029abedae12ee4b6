"""x and gy in each other's place: input channels as rows of accumulators, taps in reverse order."""

from dataclasses import replace

import pytest
from draws import cores
from gradients import check

from nkiconv import ConvProblem
from nkiconv.planner.cost.gradients import ALGORITHMS
from nkiconv.planner.gradients import WeightOptions
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Asked, Request
from nkiconv.schedules.blocks import config_unsupported
from nkiconv.simulator.timing import Rates

PADDED = "padded on one side"
#: (N, C, K, groups), and an axis each (size, taps, stride, dilation, before, after, lhs_dilation).
FEW_OUTPUTS = {
    "same": ((2, 5, 3, 1), (9, 3, 1, 1, 1, 1), (11, 3, 1, 1, 1, 1)),
    PADDED: ((2, 140, 5, 1), (9, 3, 1, 2, 4, 0), (11, 4, 1, 1, 0, 2)),
    "cropped": ((2, 9, 3, 1), (9, 3, 1, 1, -1, 1), (12, 2, 1, 3, 2, -2)),
    "window outside x": ((1, 4, 3, 1), (3, 3, 1, 1, 6, 5), (4, 3, 1, 1, 7, 4)),
    "spread": ((2, 10, 3, 1), (5, 3, 1, 1, 1, 1, 2), (6, 2, 1, 1, 0, 1, 3)),
    "columns beside each other": ((2, 32, 5, 1), (9, 3, 1, 1, 1, 1), (10, 3, 1, 1, 1, 1)),
    "many taps": ((1, 3, 2, 1), (40, 27, 1, 1, 3, 3), (40, 27, 1, 1, 3, 3)),
    "volumes": ((2, 7, 6, 1), (5, 3, 1, 1, 2, 0), (9, 3, 1, 1, 1, 1), (11, 2, 1, 1, 1, 0)),
    "sequences": ((3, 10, 9, 1), (50, 4, 1, 1, 3, 0)),
    "long filter": ((1, 3, 2, 1), (700, 600, 1, 1, 300, 299)),
}
#: Those of which x meets all of gy at no tap.
NO_BIAS = ("cropped", "window outside x", "spread", "many taps", "long filter")


def exchanged(**sizes):
    return (("exchanged", 1), *sizes.items())


@pytest.mark.cover(4)
@pytest.mark.parametrize("pixels", [0, 2])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("name", FEW_OUTPUTS)
def test_every_problem_is_exact(name, is_last, pixels):
    channels, *axes = FEW_OUTPUTS[name]
    for lnc in cores():
        bias = lnc == 2 and name not in NO_BIAS
        check(channels, axes, is_last, lnc=lnc, bias_gradient=bias, config=exchanged(pixels=0 if is_last else pixels))


@pytest.mark.parametrize("sizes", [
    {"rows": 2, "columns": 4, "split": 1},
    {"rows": 9, "columns": 11, "side": 2, "channels": 2, "inputs": 3, "split": 0},
    {"rows": 2, "columns": 3, "outputs": 2, "inputs": 2, "channels": 3, "split": 0},
])  # fmt: skip
def test_blocks_are_exact(sizes):
    channels, *axes = FEW_OUTPUTS[PADDED]
    check(channels, axes, True, adds=True, bias_gradient=True, config=exchanged(**sizes))


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_dtypes(dtype):
    channels, *axes = FEW_OUTPUTS[PADDED]
    check(channels, axes, dtype=dtype, config=exchanged())


def shape_of(**fields):
    fields = {"padding": ((1, 1), (1, 1)), **fields}
    problem = ConvProblem(N=4, H=14, W=14, R=3, S=3, **fields).toward("wgrad")
    request = Request(problem=problem, asked=Asked())
    return operation_for(request).shape(request, Rates())


@pytest.mark.parametrize(("C", "K", "expected"), [(192, 16, 1), (16, 192, 0), (64, 64, 0)])
def test_estimates_exchange_where_output_channels_are_few(C, K, expected):
    shape = shape_of(C=C, K=K)
    for one in (shape, replace(shape, options=WeightOptions(bias=True))):
        assert dict(ALGORITHMS["blocks"].complete(one, None))["exchanged"] == expected


@pytest.mark.parametrize(
    ("fields", "bias", "named"),
    [
        ({"stride": (1, 2)}, False, "stride=(1, 1, 2)"),
        ({"groups": 2}, False, "feature_group_count=2"),
        ({"padding": ((1, 1), (-1, 3))}, False, ""),
        ({"padding": ((1, 1), (3, 0))}, True, "bias_gradient=True"),
    ],
)
def test_what_is_refused(fields, bias, named):
    reason = config_unsupported(shape_of(C=8, K=4, **fields).geometry, exchanged(), bias)
    assert reason == "" if named == "" else named in reason
