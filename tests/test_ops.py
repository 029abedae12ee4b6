"""depthwise_conv1d on arrays: what it equals in torch, what it accepts, and every refusal by name."""

import ml_dtypes
import numpy as np
import pytest
import torch
from depthwise import arguments
from tolerances import assert_within

import nkiconv
from nkiconv import DtypeError, GeometryError, depthwise_conv1d
from nkiconv.api.depthwise_conv1d import depthwise_problem
from nkiconv.reference import abs_sum_ref, num_terms
from nkiconv.simulator import NkiError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 40)).astype(np.float32)
W = RNG.standard_normal((5, 4)).astype(np.float32)

# why, kwargs, torch's padding of the row, torch kwargs
CALLS = [
    ("plain", {}, (0, 0), {}),
    ("int padding", {"padding": 3}, (3, 3), {}),
    ("pair padding", {"padding": (3, 1)}, (3, 1), {}),
    ("negative padding", {"padding": (-2, 4)}, (-2, 4), {}),
    ("valid", {"padding": "valid"}, (0, 0), {}),
    ("same", {"padding": "same"}, (1, 2), {}),
    ("same with stride", {"padding": "same", "stride": 3}, (1, 2), {"stride": 3}),
    ("same with dilation", {"padding": "same", "dilation": 3}, (4, 5), {"dilation": 3}),
    ("causal", {"padding": "causal", "dilation": 2}, (6, 0), {"dilation": 2}),
    ("stride", {"stride": 3}, (0, 0), {"stride": 3}),
    ("one core", {"lnc": 1}, (0, 0), {}),
    ("strict", {"strict_nonfinite": True}, (0, 0), {}),
]


@pytest.mark.parametrize(("kwargs", "pad", "torch_kwargs"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_equals_torch(kwargs, pad, torch_kwargs):
    y = depthwise_conv1d(X, W, **kwargs)
    padded = torch.nn.functional.pad(torch.tensor(X, dtype=torch.float64), pad)
    expected = torch.nn.functional.conv1d(
        padded, torch.tensor(W, dtype=torch.float64)[:, None], groups=5, **torch_kwargs
    )
    problem = depthwise_problem(X, W, **{k: v for k, v in kwargs.items() if k != "strict_nonfinite"})
    abs_sum = abs_sum_ref(X[:, :, None], W[:, None, None], problem)[:, :, 0]
    assert_within(y, expected.numpy(), abs_sum, num_terms(problem), "fp32")


def test_lhs_dilation_is_zeros_between_inputs():
    spread = np.zeros((2, 5, 118), np.float32)
    spread[:, :, ::3] = X
    np.testing.assert_array_equal(
        depthwise_conv1d(X, W, lhs_dilation=3, padding=(2, 1)), depthwise_conv1d(spread, W, padding=(2, 1))
    )


def test_same_has_ceil_w_over_stride_columns():
    for stride in (1, 2, 3, 7):
        for width in (5, 6, 7, 40):
            assert depthwise_conv1d(X[:, :, :width], W, padding="same", stride=stride).shape[2] == -(-width // stride)


def test_non_contiguous_arrays_are_copied():
    wide = np.zeros((40, 5, 4), np.float32)
    wide[:, :, ::2] = X.transpose(2, 1, 0)
    strided = wide[:, :, ::2].transpose(2, 1, 0)
    assert not strided.flags.c_contiguous
    np.testing.assert_array_equal(depthwise_conv1d(strided, np.asfortranarray(W)), depthwise_conv1d(X, W))
    np.testing.assert_array_equal(depthwise_conv1d(X[:, ::-1], W[::-1]), depthwise_conv1d(X, W)[:, ::-1])


def test_read_only_arrays_are_read():
    frozen = X.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(depthwise_conv1d(frozen, W), depthwise_conv1d(X, W))


def test_result_keeps_the_dtype_of_x():
    for x_type, w_type in ((ml_dtypes.bfloat16, np.float16), (np.float16, np.float16), (np.float32, np.float32)):
        assert depthwise_conv1d(X.astype(x_type), W.astype(w_type)).dtype == np.dtype(x_type)


# why, x, w, kwargs, error, message
BAD_CALLS = [
    ("x is a list", X.tolist(), W, {}, DtypeError, "x: must be a NumPy array, not list"),
    ("w is a torch tensor", X, torch.tensor(W), {}, DtypeError, "w: must be a NumPy array, not Tensor"),
    ("x is None", None, W, {}, DtypeError, "not NoneType"),
    ("C mismatch", X, W[:3], {}, GeometryError, r"w.shape=\(3, 4\): must be \[C, S\] = \(5, 4\)"),
    ("no images, wide", X[:0, :, :2], W, {}, GeometryError, "must be at least 1"),
    ("no images, one residual", X[:0], W, {"residual": X[:1]}, GeometryError, "residual.*: must have no images, as x"),
    ("no channels", X[:, :0], W[:0], {}, GeometryError, "must be at least 1"),
    ("no columns", X[:, :, :0], W, {}, GeometryError, "must be at least 1"),
    ("no taps", X, W[:, :0], {}, GeometryError, "must be at least 1"),
    ("bools", X > 0, W, {}, DtypeError, "x.dtype=bool"),
    ("complex filter", X, W.astype(np.complex64), {}, DtypeError, "w.dtype=complex64"),
    ("objects", X.astype(object), W, {}, DtypeError, "x.dtype=object"),
    ("fp32 image, bf16 filter", X, W.astype(ml_dtypes.bfloat16), {}, DtypeError,
     "w.dtype=bfloat16: must be float32 exactly"),
    ("same of gaps", X, W, {"padding": "same", "lhs_dilation": 2}, GeometryError, "not defined with lhs_dilation=2"),
    ("Q is 0", X, np.zeros((5, 41), np.float32), {}, GeometryError, "Q=0: output width must be at least 1"),
    ("cropped away", X, W, {"padding": (-30, -20)}, GeometryError, "crop less"),
    ("window too wide", X, W, {"dilation": 20}, GeometryError, r"window 61 = dilation 20\*\(S-1\)\+1"),
    ("several at once", X.astype(int), W[0], {"lnc": 0}, DtypeError, "3 reasons"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("x", "w", "kwargs", "error", "message"), [c[1:] for c in BAD_CALLS], ids=[c[0] for c in BAD_CALLS]
)
def test_bad_call(x, w, kwargs, error, message):
    with pytest.raises(error, match=message) as caught:
        depthwise_conv1d(x, w, **kwargs)
    assert isinstance(caught.value, (ValueError, TypeError))


XK, WK = X[:, :, None], W[:, None, None]

# why, x, w, kwargs, message
BAD_KERNEL_CALLS = [
    ("H is 2", np.repeat(XK, 2, axis=2), WK, {}, "img_ref H=2: must be 1"),
    ("R is 2", XK, np.repeat(WK, 2, axis=2), {}, r"must be after kern_perm \[C, 1, 1, S\]"),
    ("two inputs a filter", XK, np.repeat(WK, 2, axis=1), {}, r"must be after kern_perm \[C, 1, 1, S\]"),
    ("stride on H", XK, WK, {"stride": (2, 1)}, r"stride=\(2, 1\): H is 1, so only 1"),
    ("rhs dilation on H", XK, WK, {"rhs_dilation": (2, 1)}, r"rhs_dilation=\(2, 1\): H is 1"),
    ("lhs dilation on H", XK, WK, {"lhs_dilation": (3, 1)}, r"lhs_dilation=\(3, 1\): H is 1"),
    ("padding on H", XK, WK, {"padding": ((1, 0), (0, 0))}, r"padding\[0\]=\(1, 0\): H is 1"),
    ("batch groups", XK, WK, {"batch_group_count": 2}, "batch_group_count=2: accepted are 1; split"),
    ("mixed dtypes", XK, WK.astype(np.float16), {}, "filter_ref.dtype=float16: must be float32 exactly"),
    ("fp8", XK.astype(ml_dtypes.float8_e5m2), WK.astype(ml_dtypes.float8_e5m2), {}, "img_ref.dtype=float8_e5m2"),
    ("no output", XK, WK, {"rhs_dilation": (1, 20)}, "Q=-20: output width must be at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("x", "w", "kwargs", "message"), [c[1:] for c in BAD_KERNEL_CALLS], ids=[c[0] for c in BAD_KERNEL_CALLS]
)
def test_bad_kernel_call(x, w, kwargs, message):
    with pytest.raises(AssertionError, match=message):
        nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[2])(x, w, **kwargs)


@pytest.mark.simulator_only
@pytest.mark.parametrize(("x", "kwargs", "rule"), [
    (XK.astype(np.float64), {}, "NKI025"),
    (XK.astype(np.complex64), {}, "NKI025"),
    (XK[:0], {}, "NKI002"),
    (XK, {"padding": [[0, 0], [0, 0]]}, "NKI024"),
    (XK, {"padding": ((0, 0), [1, 2])}, "NKI024"),
    (XK, {"stride": [1, 1]}, "NKI024"),
])  # fmt: skip
def test_bad_kernel_argument_is_refused_before_the_kernel(x, kwargs, rule):
    with pytest.raises(NkiError) as caught:
        nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm)(x, WK, **kwargs)
    assert caught.value.rule == rule


# each public argument of the kernel, a value that is not its default, and whether the result must differ
FLIPS = {
    "padding": ((0, 0), (1, 2)), "stride": (1, 2), "rhs_dilation": (1, 2), "lhs_dilation": (1, 2),
    "in_perm": (1, 0, 2, 3), "kern_perm": (3, 1, 2, 0), "out_perm": (3, 1, 2, 0), "strict_nonfinite": True,
}  # fmt: skip


@pytest.mark.parametrize("name", FLIPS)
def test_every_argument_is_used(name):
    x = RNG.integers(-3, 4, (12, 12, 1, 50)).astype(np.float32)
    x[1, 2, 0, 3] = np.nan
    w = RNG.integers(1, 4, (12, 1, 1, 12)).astype(np.float32)
    kernel = nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm)
    plain, flipped = kernel(x, w), kernel(x, w, **{name: FLIPS[name]})
    assert plain.shape != flipped.shape or not np.array_equal(plain, flipped, equal_nan=True)


def test_feature_group_count_of_one_is_read_as_c():
    problem = depthwise_problem(X, W)
    kernel = nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm)
    named = kernel(XK, WK, **arguments(problem))
    np.testing.assert_array_equal(named, kernel(XK, WK))
    np.testing.assert_array_equal(named, kernel(XK, WK, feature_group_count=1))


def test_torch_tensors_give_torch_tensors():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        y = nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[2])(
            torch.tensor(XK).to(dtype), torch.tensor(WK).to(dtype)
        )
        assert isinstance(y, torch.Tensor)
        assert y.dtype == dtype


def test_lists_in_signature_order_match_nki_library():
    """Positional call in nki-library's parameter order."""
    kernel = nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[2])
    y = kernel(XK, WK, ((0, 0), (3, 0)), (1, 2), (1, 1), (1, 1), 5, 1, None, None, None)
    np.testing.assert_array_equal(y[:, :, 0], depthwise_conv1d(X, W, padding=(3, 0), stride=2))
