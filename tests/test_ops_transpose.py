"""conv_transpose1d to 3d on arrays: what they equal in torch, layouts, epilogues, and every refusal by name."""

import ml_dtypes
import numpy as np
import pytest
import torch
from draws import draws
from hypothesis import example, given
from hypothesis import strategies as st
from tolerances import assert_within_limit, integer_inputs
from transposed import Transposed, transposed

import nkiconv
from nkiconv import GeometryError, LayoutError, UnsupportedError
from nkiconv.bounds import epilogue_bound
from nkiconv.problem import ConvProblem
from nkiconv.reference import abs_sum_ref, conv_ref, epilogue_ref, num_terms

RNG = np.random.default_rng(0)
EXTENTS = {1: (9,), 2: (5, 7), 3: (3, 4, 5)}
TAPS = {1: (4,), 2: (3, 4), 3: (2, 3, 4)}
FUNCTIONS = {rank: getattr(nkiconv, f"conv_transpose{rank}d") for rank in (1, 2, 3)}
#: arguments of ours and of torch's
CALLS = [
    {},
    {"stride": 2},
    {"stride": 3, "padding": 1, "output_padding": 2},
    {"stride": 2, "dilation": 3, "padding": 2},
    {"stride": 2, "groups": 2},
]


def arrays(rank, groups=1, dtype="fp32"):
    x = integer_inputs(RNG, (2, 6, *EXTENTS[rank]), dtype)
    return x, integer_inputs(RNG, (6, 4 // groups, *TAPS[rank]), dtype), integer_inputs(RNG, (4,), dtype)


def torchs(rank, x, w, bias=None, **more):
    wide = [None if one is None else torch.tensor(np.asarray(one, np.float64)) for one in (x, w, bias)]
    return getattr(torch.nn.functional, f"conv_transpose{rank}d")(*wide, **more).numpy()


@pytest.mark.cover(5)
@pytest.mark.parametrize("arguments", CALLS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_equals_torch(rank, arguments):
    x, w, bias = arrays(rank, arguments.get("groups", 1))
    wanted = torchs(rank, x, w, bias, **arguments)
    for lnc in (1, 2):
        np.testing.assert_array_equal(FUNCTIONS[rank](x, w, bias, lnc=lnc, **arguments), wanted)
    layout = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[rank]
    y = FUNCTIONS[rank](np.ascontiguousarray(np.moveaxis(x, 1, -1)), w, bias, layout=layout, **arguments)
    np.testing.assert_array_equal(np.moveaxis(y, -1, 1), wanted)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8_e4m3"])
def test_dtypes(dtype):
    x, w, _ = arrays(2, dtype=dtype)
    y = nkiconv.conv_transpose2d(x, w, stride=2, padding=1, out_dtype="fp32")
    np.testing.assert_array_equal(y, torchs(2, x, w, stride=2, padding=1))


def test_pairs_of_padding_crop_and_add():
    x, w, _ = arrays(2)
    whole = torchs(2, x, w, stride=2)
    y = nkiconv.conv_transpose2d(x, w, stride=2, padding=((1, 0), (-1, 2)))
    np.testing.assert_array_equal(y, np.pad(whole, ((0, 0), (0, 0), (0, 0), (1, 0)))[:, :, 1:, :-2])


@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
def test_an_epilogue(position):
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 5, 7), (6, 4, 3, 4)))
    problem = ConvProblem.transpose(
        stride=(2, 2), padding=((1, 1), (1, 1)), output_padding=(1, 0), dilation=(1, 1), taps=(3, 4),
        N=2, C=6, K=4, H=5, W=7, dtype="fp32",
    )  # fmt: skip
    bias, residual = (rng.standard_normal(shape).astype(np.float32) for shape in ((4,), problem.output_shape))
    sums, abs_sum = conv_ref(x, w, problem), abs_sum_ref(x, w, problem)
    after = (bias, "silu", 0.5 * residual, position)
    y = nkiconv.conv_transpose2d(
        x, w, bias, stride=2, padding=1, output_padding=(1, 0), activation="silu", residual=residual, beta=0.5,
        residual_position=position,
    )  # fmt: skip
    limit = epilogue_bound(num_terms(problem), abs_sum, sums, "fp32", *after)
    assert_within_limit(y, epilogue_ref(sums, *after), limit)


def test_the_problem_is_the_one_that_torch_convolves():
    problem = ConvProblem.transpose(
        stride=(2, 3), padding=((1, 1), (0, 2)), output_padding=(1, 0), dilation=(2, 1), taps=(3, 4),
        N=2, C=6, K=4, H=5, W=7, groups=2,
    )  # fmt: skip
    assert problem.filter_shape == (6, 2, 3, 4)
    assert (problem.P, problem.Q) == (4 * 2 + 4 + 1 - 2 + 1, 6 * 3 + 3 + 1 - 2)
    assert num_terms(problem) == 3 * 12
    x, w = integer_inputs(RNG, (2, 6, 5, 7), "fp32"), integer_inputs(RNG, (6, 2, 3, 4), "fp32")
    whole = torchs(2, x, w, stride=(2, 3), dilation=(2, 1), groups=2, output_padding=(1, 0))
    np.testing.assert_array_equal(conv_ref(x, w, problem), whole[:, :, 1:-1, :-2])


@draws(100)
@given(transposed(groups=(1, 2)))
def test_flops_are_those_without_zeros(call):
    """Each input meets each tap once, but where its product is cropped or falls beside the result."""
    places = [(0, 0)] * call.axes
    fields = dict(zip("DHW"[-call.axes :], call.sizes, strict=True))
    problem = ConvProblem.transpose(
        stride=call.stride, padding=tuple(places), output_padding=(0,) * call.axes, dilation=call.dilation,
        taps=call.taps, N=call.N, C=call.C, K=call.K, groups=call.groups, **fields,
    )  # fmt: skip
    counted = np.ones(1)
    for axis in problem.axes:
        dense = np.zeros(axis.padded)
        dense[axis.lo % axis.lhs_dilation :: axis.lhs_dilation] = 1
        counted = counted * sum(
            dense[q * axis.stride + tap * axis.rhs_dilation] for q in range(axis.out) for tap in range(axis.taps)
        )
    assert problem.flops == 2 * call.N * call.K * (call.C // call.groups) * int(counted[0])


def test_one_hot_elements_land_where_they_belong():
    """Each axis of x and w has an extent of its own, so that swapped axes cannot hide."""
    rng = np.random.default_rng(3)
    for _ in range(8):
        x, w = np.zeros((2, 3, 4, 5, 6), np.float32), np.zeros((3, 7, 2, 3, 4), np.float32)
        place = tuple(rng.integers(0, extent) for extent in x.shape)
        x[place] = 1
        w[(place[1], *(rng.integers(0, extent) for extent in w.shape[1:]))] = 1
        y = nkiconv.conv_transpose3d(x, w, stride=(3, 2, 2), padding=1)
        wanted = torchs(3, x, w, stride=(3, 2, 2), padding=1)
        np.testing.assert_array_equal(y, wanted)


def test_it_is_the_adjoint_of_the_convolution():
    """<gy, conv(x, w)> = <conv_transpose(gy, w), x>, exactly on integers."""
    x, w = integer_inputs(RNG, (2, 6, 9, 7), "fp32"), integer_inputs(RNG, (4, 6, 3, 4), "fp32")
    y = nkiconv.conv2d(x, w, stride=2, padding=1)
    g = integer_inputs(RNG, y.shape, "fp32")
    back = nkiconv.conv_transpose2d(g, w, stride=2, padding=1, output_padding=(0, 1))
    assert back.shape == x.shape
    assert float(np.sum(g.astype(np.float64) * y)) == float(np.sum(back.astype(np.float64) * x))


def test_no_images():
    x, w, _ = arrays(2)
    assert nkiconv.conv_transpose2d(x[:0], w, stride=2).shape == (0, 4, 11, 16)


X, W, _ = arrays(2)
REFUSED = [
    ({"w": W[:4]}, GeometryError, "has 4 input channels, x has C=6"),
    ({"padding": 9}, GeometryError, r"P=-11: padding 9\+9 takes off all 7 outputs"),
    ({"groups": 4}, GeometryError, "groups=4: must divide C=6 and K=16"),
    ({"precision": "bf16", "x": X.astype(ml_dtypes.bfloat16), "w": W.astype(ml_dtypes.bfloat16)}, UnsupportedError,
     "precision='bf16': x and w are bf16"),
    ({"algorithm": "phases"}, UnsupportedError, "was removed, weight_stationary takes its problems"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "message"), REFUSED, ids=[case[2][:40] for case in REFUSED])
def test_refusals(changed, error, message):
    with pytest.raises(error, match=message):
        nkiconv.conv_transpose2d(**{"x": X, "w": W, **changed})


@pytest.mark.parametrize(("changed", "message"), [
    ({"layout": "NCHW", "stride": (2,)}, r"(?s)layout='NCHW': .*stride=\(2,\): must be an int"),
    ({"w": np.zeros((5, 2, 3), np.float32)}, r"w.shape=\(5, 2, 3\): has 5 input channels, x has C="),
    ({"dilation": -1, "groups": 3}, "dilation=-1: must be an int of at least 1"),
    ({"output_padding": 2, "stride": 2}, "output_padding=2: must be below stride=2 or dilation=1"),
])  # fmt: skip
def test_refusals_of_rows(changed, message):
    x, w, _ = arrays(1)
    with pytest.raises((GeometryError, LayoutError), match=message):
        nkiconv.conv_transpose1d(**{"x": x, "w": w, **changed})


def test_plans():
    problem = ConvProblem.transpose(
        stride=(2, 2), padding=((0, 0), (0, 0)), output_padding=(0, 0), dilation=(1, 1), taps=(2, 2),
        N=1, C=64, K=32, H=8, W=8,
    )  # fmt: skip
    plan = nkiconv.plan(problem, use_cache=False)
    assert (plan.operation, plan.algorithm) == ("conv_transpose2d", "weight_stationary")
    for more, message in (
        ({"packed": True}, "packed=True: transposed convolutions take False"),
        ({"operation": "conv2d"}, "operation='conv2d': the problem's transposed is True"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            nkiconv.plan(problem, **more)
    for field, message in (
        ({"stride": (2, 1)}, r"stride=\(2, 1\): must be 1 with transposed=True"),
        ({"transposed": 1}, "transposed=1: must be True or False"),
    ):
        with pytest.raises(GeometryError, match=message):
            problem.replace(**field)


@draws(25)
@example(Transposed(1, 1, 1, 1, (1, 1, 1), (2, 1, 1), (1, 1, 1), (1, 0, 0), (0, 0, 0), (2, 1, 1)), False)
@given(transposed(groups=(1, 2)), st.booleans())
def test_any_arrays(call, last):
    x, w = call.inputs("fp32")
    layout = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}[call.axes][last]
    stored = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x
    y = FUNCTIONS[call.axes](stored, w, groups=call.groups, layout=layout, **call.numbers())
    np.testing.assert_array_equal(np.moveaxis(y, -1, 1) if last else y, call.truth(x, w))
