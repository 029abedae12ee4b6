"""What ConvProblem derives, against numbers worked out by hand, and how it lists what is wrong with it; the named cases
load, are distinct, and mean what their rows say.
"""

import math
import pickle

import ml_dtypes
import numpy as np
import pytest
import torch

from nkiconv import ComparisonError, FileFormatError, cases
from nkiconv.errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError
from nkiconv.problem import ConvProblem, dtype_name

#: N = 2, C = 6, 5 x 7 inputs, K = 4, 2 x 3 filter: nothing square, nothing symmetric.
ODD = ConvProblem(
    N=2, C=6, H=5, W=7, K=4, R=2, S=3, stride=(2, 3), padding=((1, 0), (0, 2)), rhs_dilation=(3, 2), groups=2
)


def axis(size, taps, stride=1, pad=(0, 0), rhs=1, lhs=1):
    """A problem whose width has these numbers; pad is (left, right)."""
    geometry = {"stride": (1, stride), "padding": ((0, 0), pad), "rhs_dilation": (1, rhs), "lhs_dilation": (1, lhs)}
    return ConvProblem(N=1, C=1, W=size, S=taps, **geometry)


# why, arguments of axis, Q
WIDTHS = [
    ("stride leaves a remainder", (8, 3, 3), 2),
    ("causal", (10, 4, 1, (3, 0)), 10),
    ("transposed conv: 2*(W-1) + S", (5, 3, 1, (2, 2), 1, 2), 11),
    ("stride and both dilations", (5, 3, 2, (1, 2), 2, 3), 6),
    ("crop between dilated inputs", (4, 2, 1, (-1, -1), 1, 3), 7),
    ("crop more than the row, pad it back", (4, 2, 1, (-5, 5)), 3),
]


@pytest.mark.parametrize(("arguments", "q"), [row[1:] for row in WIDTHS], ids=[row[0] for row in WIDTHS])
def test_output_width(arguments, q):
    problem = axis(*arguments)
    assert (problem.P, problem.Q) == (1, q)


def test_shapes_follow_the_layout_but_the_filter_does_not():
    assert ODD.input_shape == (2, 6, 5, 7)
    assert ODD.output_shape == (2, 4, 2, 2)
    assert ODD.filter_shape == (4, 3, 2, 3)
    channels_last = ODD.replace(layout="NHWC")
    assert channels_last.input_shape == (2, 5, 7, 6)
    assert channels_last.output_shape == (2, 2, 2, 4)
    assert channels_last.filter_shape == (4, 3, 2, 3)


def test_work_and_traffic():
    assert ODD.flops == 2 * 2 * 4 * 2 * 2 * 3 * 2 * 3  # 2 N K P Q C/groups R S
    # no output meets rows 0 and 3, or columns 1 and 6
    assert ODD.min_bytes == 2 * (2 * 6 * 3 * 5 + 4 * 3 * 2 * 3 + 2 * 4 * 2 * 2)
    assert ODD.replace(dtype="fp32").min_bytes == 2 * ODD.min_bytes
    assert ODD.replace(dtype="fp8_e5m2").min_bytes == 2 * 6 * 3 * 5 + 4 * 3 * 2 * 3 + 2 * (2 * 4 * 2 * 2)  # y is bf16
    assert [ODD.replace(dtype=dtype).out_dtype for dtype in ("fp16", "fp32", "fp8_e4m3")] == ["fp16", "fp32", "bf16"]


# why, fields, is depthwise
DEPTHWISE = [
    ("one filter a channel", {"C": 6, "groups": 6}, True),
    ("channel multiplier 2", {"C": 6, "K": 12, "groups": 6}, False),
    ("dense", {"C": 6}, False),
    ("two channels a group", {"C": 6, "groups": 3}, False),
    ("one channel is both", {"C": 1}, True),
]


@pytest.mark.parametrize(("fields", "expected"), [row[1:] for row in DEPTHWISE], ids=[row[0] for row in DEPTHWISE])
def test_is_depthwise(fields, expected):
    assert ConvProblem(N=1, W=9, S=2, **fields).is_depthwise is expected


@pytest.mark.parametrize(("dtype", "name"), [
    ("BF16", "bf16"), ("bfloat16", "bf16"), (np.dtype(ml_dtypes.bfloat16), "bf16"), (np.float16, "fp16"),
    (ml_dtypes.float8_e4m3, "fp8_e4m3"), ("float8_e5m2", "fp8_e5m2"),
])  # fmt: skip
def test_dtype_names(dtype, name):
    assert dtype_name(dtype) == name
    assert ConvProblem(N=1, C=1, W=4, S=2, dtype=dtype).dtype == name


GOOD = {"N": 2, "C": 6, "H": 5, "W": 7, "K": 4, "R": 2, "S": 3}


def test_all_violations_are_listed():
    with pytest.raises(LayoutError) as caught:
        ConvProblem(**{**GOOD, "layout": "HWNC", "groups": 3, "R": 6, "S": 8})
    assert [line.split("=")[0] for line in caught.value.violations] == ["layout", "groups", "P", "Q"]
    assert str(caught.value).startswith("ConvProblem cannot be built; 4 reasons\n  - layout='HWNC'")
    with pytest.raises(GeometryError) as caught:  # a malformed field silences only the rules that read it
        ConvProblem(**{**GOOD, "W": 0, "R": 6})
    assert [line.split(":")[0] for line in caught.value.violations] == ["W=0", "P=0"]


@pytest.mark.parametrize(
    "error", [GeometryError, DtypeError, LayoutError, UnsupportedError, FileFormatError, ComparisonError]
)
def test_every_class_is_a_value_error_and_survives_pickling(error):
    made = error("a and b", ["a", "b"])
    assert isinstance(made, NkiconvError)
    assert isinstance(made, ValueError)
    assert isinstance(made, TypeError) == (error is DtypeError)
    back = pickle.loads(pickle.dumps(made))
    assert (type(back), str(back), back.violations) == (error, "a and b", ("a", "b"))


#: Rows of each file, the header not counted.
SIZES = {"depthwise_conv1d": 53, "conv2d": 31, "conv3d": 19, "conv_transpose": 13, "deepbench": 94, "training": 17}


@pytest.mark.parametrize(("suite", "size"), SIZES.items())
def test_suites_are_complete(suite, size):
    assert len(cases.load(suite)) == size
    assert {case.suite for case in cases.load(suite)} == {suite}


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
    """Products are of outputs and taps that meet an input or padding."""
    problem = case.problem
    assert problem.transposed
    met = [
        sum((q + tap * axis.rhs_dilation - axis.lo) % axis.lhs_dilation == 0
            for q in range(axis.out) for tap in range(axis.taps))
        for axis in problem.axes
    ]  # fmt: skip
    assert problem.flops == 2 * problem.N * math.prod(problem.filter_shape[:2]) * math.prod(met)
