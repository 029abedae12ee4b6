"""Functions of arrays: torch's numbers, exactly on integers; layouts, dtypes, epilogues, states, frames, packing."""

import inspect

import ml_dtypes
import numpy as np
import pytest
import torch
from tolerances import assert_within_limit, integer_inputs
from torch.nn import functional as F
from torch_exact import spread

import nkiconv
from nkiconv import conv2d, conv3d, depthwise_conv1d
from nkiconv.api.conv_problem import conv_problem
from nkiconv.bounds import epilogue_bound
from nkiconv.reference import abs_sum_ref, conv_ref
from nkiconv.rules import FILTER_LAYOUTS, LAYOUTS, VOLUME_FILTER_LAYOUTS, VOLUME_LAYOUTS

RNG = np.random.default_rng(0)
#: Shapes of x, and of w of one group.
SHAPES = {
    "conv1d": ((2, 6, 19), (8, 6, 5)), "conv2d": ((2, 6, 9, 11), (4, 6, 3, 2)),
    "conv3d": ((2, 6, 4, 5, 7), (4, 6, 2, 3, 3)), "conv_transpose1d": ((2, 6, 9), (6, 4, 4)),
    "conv_transpose2d": ((2, 6, 5, 7), (6, 4, 3, 4)), "conv_transpose3d": ((2, 6, 3, 4, 5), (6, 4, 2, 3, 4)),
    "depthwise_conv1d": ((2, 5, 40), (5, 4)), "depthwise_conv2d": ((2, 5, 9, 8), (10, 1, 3, 2)),
}  # fmt: skip
#: Filters' layouts by rank, the canonical one first.
FILTERS = {3: ("KCS", "SCK", "KSC"), 4: tuple(FILTER_LAYOUTS), 5: tuple(VOLUME_FILTER_LAYOUTS)}
IMAGES = {3: ("NCW", "NWC"), 4: LAYOUTS, 5: VOLUME_LAYOUTS}
FEW = {"dilation": 2, "groups": 2}
# of each function: arguments, torch's padding of x: (left, right, top, bottom, front, back)
CALLS = {
    "conv1d": [
        (FEW | {"padding": (3, 1)}, (3, 1)), (FEW | {"padding": "causal"}, (8, 0)), (FEW | {"padding": "same"}, (4, 4)),
        ({"lhs_dilation": 3, "stride": 2, "groups": 2}, ())],
    "conv2d": [
        ({}, ()), ({"padding": 2}, (2, 2, 2, 2)), ({"padding": ((3, 0), (1, 2))}, (1, 2, 3, 0)),
        ({"padding": ((-2, 1), (3, -4))}, (3, -4, -2, 1)), ({"padding": "valid"}, ()),
        ({"padding": "same"}, (0, 1, 1, 1)), ({"padding": "same", "stride": (2, 3)}, (0, 0, 1, 1)),
        ({"padding": "same", "dilation": (2, 3)}, (1, 2, 2, 2)), ({"stride": 2}, ()), ({"stride": (3, 1)}, ()),
        ({"dilation": (1, 4)}, ()), ({"groups": 2}, ()),
        ({"lhs_dilation": (2, 3), "padding": ((2, 2), (1, 1))}, (1, 1, 2, 2))],
    "conv3d": [
        ({}, ()), ({"padding": 1}, (1,) * 6), ({"padding": ((1, 0), (1, 1), (1, 1))}, (1, 1, 1, 1, 1, 0)),
        ({"padding": ((-1, 0), (2, 0), (0, -2))}, (0, -2, 2, 0, -1, 0)), ({"padding": "valid"}, ()),
        ({"padding": "same"}, (1, 1, 1, 1, 0, 1)), ({"stride": (2, 1, 3)}, ()), ({"dilation": (3, 2, 1)}, ()),
        ({"groups": 2}, ())],
    "conv_transpose1d": [({"stride": 3, "padding": 2, "output_padding": 1, "dilation": 2, "groups": 2}, ())],
    "conv_transpose2d": [
        ({"stride": (2, 3), "padding": (0, 2), "output_padding": (1, 0), "groups": 2}, ()), ({"padding": 1}, ()),
        ({"dilation": (3, 1), "output_padding": (2, 0)}, ())],
    "conv_transpose3d": [
        ({"stride": (2, 1, 4), "padding": (1, 0, 2), "output_padding": (1, 0, 3), "dilation": (1, 3, 1)}, ())],
    "depthwise_conv1d": [
        ({}, ()), ({"padding": 3}, (3, 3)), ({"padding": (3, 1)}, (3, 1)), ({"padding": (-2, 4)}, (-2, 4)),
        ({"padding": "valid"}, ()), ({"padding": "same"}, (1, 2)), ({"padding": "same", "stride": 3}, (1, 2)),
        ({"padding": "same", "dilation": 3}, (4, 5)), ({"padding": "causal", "dilation": 2}, (6, 0)),
        ({"stride": 3}, ()), ({"lhs_dilation": 3, "padding": (2, 1)}, (2, 1)), ({"strict_nonfinite": True}, ()),
        *(({"algorithm": one, "padding": 2}, (2, 2)) for one in ("mixed", "vector", "banded")),
        ({"algorithm": "banded", "config": (("block", 8), ("shard", "batch"))}, ())],
    "depthwise_conv2d": [({"stride": (2, 1), "padding": 1, "dilation": (1, 2)}, (1, 1, 1, 1))],
}  # fmt: skip
ROWS = [(name, *row, 1 + i % 2) for name, rows in CALLS.items() for i, row in enumerate(rows)]
NUMBERS = ("stride", "dilation", "groups", "lhs_dilation", "padding", "output_padding")


def arrays(name, groups=1, dtype="fp32"):
    """Integers: x, w and a bias."""
    x, w = SHAPES[name]
    back = "transpose" in name
    w = w if groups == 1 else (w[0], w[1] // groups, *w[2:])
    K = w[1] * groups if back else w[0]
    return [integer_inputs(RNG, shape, dtype) for shape in (x, w, (K,))]


def normals(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def torchs(name, x, w, bias=None, pad=(), lhs_dilation=1, **more):
    """torch's y in float64."""
    x, w, bias = (None if one is None else torch.tensor(np.asarray(one, np.float64)) for one in (x, w, bias))
    if "transpose" in name:
        return getattr(F, name)(x, w, bias, **more).numpy()
    axes = x.ndim - 2
    gaps = lhs_dilation if isinstance(lhs_dilation, tuple) else (lhs_dilation,) * axes
    more = {"groups": x.shape[1] if "depthwise" in name else 1} | more
    w = w[:, None] if w.ndim == 2 else w
    return getattr(F, f"conv{axes}d")(F.pad(spread(x, gaps), pad), w, bias, **more).numpy()


@pytest.mark.cover(12)
@pytest.mark.parametrize(("name", "more", "pad", "lnc"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_equals_torch(name, more, pad, lnc, request):
    """With estimates, which take seconds of volumes: of these on both cores only."""
    if (name[-2:], lnc) == ("3d", 1):
        request.getfixturevalue("plainly")
    x, w, bias = arrays(name, more.get("groups", 1))
    numbers = {one: more[one] for one in NUMBERS if one in more and (one[-7:] != "padding" or "transpose" in name)}
    wanted = torchs(name, x, w, bias, **numbers, pad=pad)
    np.testing.assert_array_equal(getattr(nkiconv, name)(x, w, bias=bias, lnc=lnc, **more), wanted)


@pytest.mark.cover(10)
@pytest.mark.parametrize(("name", "layout", "filter_layout"), [
    (name, layout, filter_layout)
    for name, (x, _) in SHAPES.items() if name != "depthwise_conv1d"
    for layout in IMAGES[len(x)]
    for filter_layout in (FILTERS[len(x)] if name[:4] == "conv" and "_" not in name else (None,))
])  # fmt: skip
def test_layouts(name, layout, filter_layout, plainly):
    """The same numbers, whatever the order of the axes; the residual lies as y does; arrays need not be contiguous."""
    groups, axes = (1 if "depthwise" in name else 2), len(SHAPES[name][0]) - 2
    x, w, bias = arrays(name, groups)
    numbers = {"stride": (2, 1, 1)[:axes] if axes > 1 else 2} | ({} if "depthwise" in name else {"groups": groups})
    wanted = torchs(name, x, w, bias, **numbers)
    residual = integer_inputs(RNG, wanted.shape, "fp32")
    wanted = np.maximum(wanted - 2 * residual, 0)
    last = layout in ("NWC", "NHWC", "NDHWC")
    if filter_layout is not None:
        w = w.transpose([FILTERS[w.ndim][0].index(letter) for letter in filter_layout])
        numbers["filter_layout"] = filter_layout
    x, residual = (np.moveaxis(one, 1, -1) if last else one for one in (x, residual))
    more = {"residual": residual, "beta": -2, "activation": "relu", "layout": layout, **numbers}
    y = getattr(nkiconv, name)(x, w, bias, **more)
    np.testing.assert_array_equal(np.moveaxis(y, -1, 1) if last else y, wanted)


TYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}


@pytest.mark.parametrize("name", ["conv2d", "depthwise_conv1d"])
def test_dtypes_of_results_and_arrays_in_any_order(name, plainly):
    (x, w), call = normals(*SHAPES[name]), getattr(nkiconv, name)
    plain = call(x, w)
    for dtype in (*TYPES, np.float16, ml_dtypes.bfloat16):
        y = call(x, w, out_dtype=dtype)
        assert y.dtype == np.dtype(TYPES.get(dtype, dtype))
        np.testing.assert_array_equal(y, plain.astype(y.dtype))
    for x_type, w_type in ((ml_dtypes.bfloat16, np.float16), (np.float16, np.float16), (np.float32, np.float32)):
        assert call(x.astype(x_type), w.astype(w_type)).dtype == np.dtype(x_type)
    x, w, _ = arrays(name)
    plain = call(x, w)
    strided = np.repeat(x, 2, axis=-1)[..., ::2]
    frozen = x.copy()
    frozen.flags.writeable = False
    for one in (strided, frozen, np.asfortranarray(x)):
        np.testing.assert_array_equal(call(one, np.asfortranarray(w)), plain)
    np.testing.assert_array_equal(call(x[..., ::-1], w[..., ::-1]), plain[..., ::-1])


def test_pairs_of_padding_crop_and_add_where_transposed():
    x, w, _ = arrays("conv_transpose2d")
    y = nkiconv.conv_transpose2d(x, w, stride=2, padding=((1, 0), (-1, 2)))
    whole = np.pad(torchs("conv_transpose2d", x, w, stride=2), ((0, 0), (0, 0), (0, 0), (1, 0)))
    np.testing.assert_array_equal(y, whole[:, :, 1:, :-2])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [2, 3])
def test_batch_groups(count, layout, plainly):
    """XLA's: the k-th share of y's channels is the k-th share of the images, by the k-th share of the filters."""
    x, w, bias = (integer_inputs(RNG, shape, "fp32") for shape in ((6, 5, 7, 8), (6, 5, 3, 2), (6,)))
    shares = zip(np.split(x, count), np.split(w, count), np.split(bias, count), strict=True)
    wanted = np.concatenate([torchs("conv2d", *one, (1, 1, 1, 1), stride=(1, 2)) for one in shares], axis=1)
    given = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    y = conv2d(given, w, bias, stride=(1, 2), padding=1, batch_group_count=count, layout=layout)
    np.testing.assert_array_equal(y if layout == "NCHW" else y.transpose(0, 3, 1, 2), wanted)
    x, w, _ = arrays("conv3d")
    halves = [torchs("conv3d", x[half : half + 1], w[2 * half : 2 * half + 2]) for half in range(2)]
    np.testing.assert_array_equal(conv3d(x, w, batch_group_count=2), np.concatenate(halves, axis=1))


X, W, _ = arrays("conv2d")
VOLUME, TAPS, BIAS = arrays("conv3d")


@pytest.mark.parametrize(("call", "shape"), [
    (lambda: conv2d(X[:0], W, padding=1), (0, 4, 9, 12)),
    (lambda: conv2d(X[:0].transpose(0, 2, 3, 1), W, layout="NHWC"), (0, 7, 10, 4)),
    (lambda: conv2d(X[:0], W, batch_group_count=2), (0, 4, 7, 10)),
    (lambda: conv2d(X[:0], W, residual=np.zeros((0, 4, 7, 10), np.float32), beta=2), (0, 4, 7, 10)),
    (lambda: depthwise_conv1d(X[:0, :, 0], W[0, :, 0]), (0, 6, 10)),
    (lambda: conv2d(X[:0, :0], W[:, :0]), (0, 0, 7, 10)),
    (lambda: conv2d(X[:, :0], W[:, :0], padding=1), (2, 0, 9, 12)),
    (lambda: conv3d(VOLUME[:, :0], TAPS[:, :0]), (2, 0, 3, 3, 5)),
])  # fmt: skip
def test_no_images_or_no_channels(call, shape, plainly):
    y = call()
    assert (y.shape, y.dtype) == (shape, np.float32)


def test_one_function_of_images_for_all():
    x, w, _ = arrays("depthwise_conv2d")
    more = {"activation": "silu", "out_dtype": "bf16", "precision": "tf32"}
    np.testing.assert_array_equal(nkiconv.depthwise_conv2d(x, w, **more), conv2d(x, w, groups=5, **more))
    for function in (nkiconv.conv1d, nkiconv.depthwise_conv2d):
        assert set(inspect.signature(function).parameters) <= set(inspect.signature(conv2d).parameters)
    assert nkiconv.conv2d is conv2d
    assert nkiconv.conv2d_implicit_gemm[2] is not None
    assert {"conv2d", "conv2d_implicit_gemm"} <= set(nkiconv.__all__) & set(dir(nkiconv))


@pytest.mark.parametrize("shape", [(2, 3, 12, 11), (1, 140, 6, 7)], ids=["few channels", "two chunks"])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_precision_rounds_the_factors_and_nothing_else(precision, shape):
    x, w = normals(shape, (9, shape[1], 3, 3), seed=4)
    rounded = [as_rounded(array, precision) for array in (x, w)]
    problem = conv_problem(x, w, padding=1)
    y = conv2d(x, w, padding=1, precision=precision)
    sums, abs_sum = conv_ref(*rounded, problem), abs_sum_ref(*rounded, problem)
    none = (None, None, None, "pre_activation")
    assert_within_limit(y, sums, epilogue_bound(9 * shape[1], abs_sum, sums, "fp32", *none))
    # and the documented error of a product holds against the exact result
    exact, limit = conv_ref(x, w, problem), {"bf16": 2.0**-7, "tf32": 2.0**-9}[precision]
    assert np.all(np.abs(y - exact) <= limit * abs_sum_ref(x, w, problem))
    assert not np.array_equal(y, conv2d(x, w, padding=1))


def as_rounded(array, precision):
    """fp32 rounded to nearest, ties to even, with 7 or 10 bits of mantissa."""
    if precision == "bf16":
        return array.astype(ml_dtypes.bfloat16).astype(np.float32)
    bits = array.view(np.uint32).astype(np.uint64)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000
    return bits.astype(np.uint32).view(np.float32)


@pytest.mark.cover(5)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("K", "block"), [(96, 96), (320, 64), (134, 67), (9, 9)])
def test_a_packed_filter_gives_what_a_plain_one_gives(K, block, dtype, lnc):
    x, w = integer_inputs(RNG, (2, 140, 6, 5), dtype), integer_inputs(RNG, (K, 140, 3, 2), dtype)
    packed = nkiconv.pack_filter(w)
    assert (packed.shape, packed.dtype) == ((K // block, 140, 3, 2, block), w.dtype)
    wanted = torchs("conv2d", x, w, None, (1, 1, 1, 0), stride=(2, 1))
    how = {"padding": ((1, 0), (1, 1)), "stride": (2, 1), "out_dtype": "fp32", "lnc": lnc}
    for one in (packed, w):
        np.testing.assert_array_equal(conv2d(x, one, **how), wanted)
    np.testing.assert_array_equal(nkiconv.pack_filter(w.transpose(2, 3, 1, 0), filter_layout="RSCK"), packed)


@pytest.mark.parametrize("K", [24, 256])
def test_packed_filters_of_volumes(K):
    w = integer_inputs(RNG, (K, 6, 2, 3, 3), "fp32")
    packed = nkiconv.pack_filter(w)
    assert packed.shape == (-(-K // 128), 6, 2, 3, 3, min(K, 128))
    np.testing.assert_array_equal(conv3d(VOLUME, packed, padding=1), torchs("conv3d", VOLUME, w, None, (1,) * 6))
    np.testing.assert_array_equal(nkiconv.pack_filter(w.transpose(2, 3, 4, 1, 0), filter_layout="TRSCK"), packed)


def test_states_of_short_rows_and_of_none():
    x, w = normals(*SHAPES["depthwise_conv1d"])
    y, state = depthwise_conv1d(x[:, :, :2], w, padding="causal", return_final_state=True)
    assert y.shape == (2, 5, 2)
    np.testing.assert_array_equal(state, np.concatenate([np.zeros((2, 5, 1), np.float32), x[:, :, :2]], axis=2))
    none, w = x[:0].astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16)
    y, state = depthwise_conv1d(none, w, padding="causal", return_final_state=True, out_dtype=np.float32)
    assert (y.shape, y.dtype, state.shape, state.dtype) == ((0, 5, 40), np.float32, (0, 5, 3), w.dtype)


def test_no_frames_and_empty_arrays():
    one_plane = np.ascontiguousarray(TAPS[:, :, :1])
    y, none = conv3d(VOLUME, one_plane, return_final_frames=True)
    assert none.shape == (2, 6, 0, 5, 7)
    np.testing.assert_array_equal(y, conv3d(VOLUME, one_plane, initial_frames=none))
    y, final = conv3d(VOLUME[:0], TAPS, initial_frames=VOLUME[:0], return_final_frames=3)
    assert (y.shape, final.shape) == ((0, 4, 7, 3, 5), (0, 6, 3, 5, 7))
