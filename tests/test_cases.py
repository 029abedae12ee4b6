"""The named cases load, are distinct, and mean what their rows say."""

import math

import pytest
import torch

from nkiconv import cases
from nkiconv.errors import UnsupportedError

#: Rows of each file, the header not counted.
SIZES = {"depthwise_conv1d": 53, "conv2d": 31, "conv3d": 19, "conv_transpose": 13, "deepbench": 94, "training": 17}


@pytest.mark.parametrize(("suite", "size"), SIZES.items())
def test_suites_are_complete(suite, size):
    assert len(cases.load(suite)) == size
    assert {case.suite for case in cases.load(suite)} == {suite}


def test_a_conv2d_row_by_hand():
    problem = cases.get("rect_filter").problem
    assert (problem.N, problem.C, problem.H, problem.W, problem.K, problem.R, problem.S) == (2, 24, 37, 19, 40, 5, 2)
    assert (problem.stride, problem.padding, problem.rhs_dilation) == ((3, 1), ((2, 1), (0, 3)), (1, 2))
    assert (problem.groups, problem.dtype) == (1, "fp32")


def test_a_conv3d_row_by_hand():
    problem = cases.get("small_fp32").problem
    assert problem.input_shape == (2, 5, 4, 7, 9)
    assert problem.filter_shape == (6, 5, 2, 3, 2)
    assert (problem.stride, problem.padding) == ((2, 1, 2), ((1, 0), (0, 1), (2, -1)))
    assert (problem.groups, problem.dtype, problem.layout) == (1, "fp32", "NCDHW")


def test_transposed_rows_by_hand():
    """torch's own: stride, padding, output padding and dilation."""
    problem = cases.get("odd_up_fp32").problem
    assert (problem.input_shape, problem.filter_shape) == ((2, 6, 7, 9), (6, 5, 3, 4))
    x, w = torch.ones(problem.input_shape), torch.ones(problem.filter_shape)
    y = torch.nn.functional.conv_transpose2d(
        x, w, stride=(3, 2), padding=(1, 2), output_padding=(2, 1), groups=2, dilation=(2, 1)
    )
    assert problem.output_shape == tuple(y.shape)
    assert (problem.transposed, problem.lhs_dilation, problem.dtype) == (True, (3, 2), "fp32")
    volume = cases.get("seg3d_up").problem
    assert (volume.input_shape, volume.output_shape) == ((1, 64, 32, 32, 32), (1, 32, 64, 64, 64))


@pytest.mark.parametrize("case", cases.load("conv_transpose"), ids=lambda case: case.name)
def test_transposed_rows_count_no_zeros(case):
    """Each tap meets each input once, but for what padding takes off and adds."""
    problem = case.problem
    assert problem.transposed
    taps = problem.filter_shape[1] * math.prod(axis.taps for axis in problem.axes)
    assert problem.flops == pytest.approx(2 * math.prod(problem.input_shape) * taps, rel=0.3)


# call, regular expression
UNKNOWN = [
    (lambda: cases.get("mamba_prefil"), r"case='mamba_prefil': .*\(among 227\); did you mean mamba2_prefill"),
    (lambda: cases.load("conv4d"), r"suite='conv4d': .*; use one of depthwise_conv1d, conv2d"),
]


@pytest.mark.parametrize(("call", "pattern"), UNKNOWN, ids=["typo", "suite"])
def test_unknown_names(call, pattern):
    with pytest.raises(UnsupportedError, match=pattern):
        call()
