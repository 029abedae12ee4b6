"""conv3d on arrays: what it equals in torch, layouts, epilogues, packed filters, and every refusal by name."""

import numpy as np
import pytest
import torch
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_within_limit, integer_inputs
from volumes import check_volume, volumes

import nkiconv
from nkiconv import DtypeError, GeometryError, LayoutError, UnsupportedError, conv3d
from nkiconv.api.conv_problem import conv_problem
from nkiconv.bounds import epilogue_bound
from nkiconv.problem import ConvProblem
from nkiconv.reference import abs_sum_ref, conv_ref, epilogue_ref, num_terms
from nkiconv.rules import VOLUME_FILTER_LAYOUTS

RNG = np.random.default_rng(0)
X = integer_inputs(RNG, (2, 6, 4, 5, 7), "fp32")
W = integer_inputs(RNG, (4, 6, 2, 3, 3), "fp32")
W2 = integer_inputs(RNG, (4, 3, 2, 3, 3), "fp32")
BIAS = integer_inputs(RNG, (4,), "fp32")

# why, filter, arguments, torch's padding (left, right, top, bottom, front, back), torch's other arguments
CALLS = [
    ("plain", W, {}, (0,) * 6, {}),
    ("int padding", W, {"padding": 1}, (1,) * 6, {}),
    ("causal", W, {"padding": ((1, 0), (1, 1), (1, 1))}, (1, 1, 1, 1, 1, 0), {}),
    ("negative padding", W, {"padding": ((-1, 0), (2, 0), (0, -2))}, (0, -2, 2, 0, -1, 0), {}),
    ("valid", W, {"padding": "valid"}, (0,) * 6, {}),
    ("same", W, {"padding": "same"}, (1, 1, 1, 1, 0, 1), {}),
    ("stride", W, {"stride": (2, 1, 3)}, (0,) * 6, {"stride": (2, 1, 3)}),
    ("dilation", W, {"dilation": (3, 2, 1)}, (0,) * 6, {"dilation": (3, 2, 1)}),
    ("groups", W2, {"groups": 2}, (0,) * 6, {"groups": 2}),
    ("one core", W, {"lnc": 1}, (0,) * 6, {}),
]


def torchs(x, w, bias=None, **more):
    wide = [None if one is None else torch.tensor(np.asarray(one, np.float64)) for one in (x, w, bias)]
    return torch.nn.functional.conv3d(*wide, **more).numpy()


@pytest.mark.cover(6)
@pytest.mark.parametrize(("w", "kwargs", "pad", "more"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_equals_torch(w, kwargs, pad, more):
    padded = torch.nn.functional.pad(torch.tensor(X), pad).numpy()
    np.testing.assert_array_equal(conv3d(X, w, BIAS, **kwargs), torchs(padded, w, BIAS, **more))


def test_the_reference_equals_torch():
    problem = ConvProblem(
        N=2, C=6, D=4, H=5, W=7, K=4, T=2, R=3, S=3, stride=(2, 1, 2), padding=((1, 2), (0, 1), (2, 2))
    )
    padded = torch.nn.functional.pad(torch.tensor(X), (2, 2, 0, 1, 1, 2)).numpy()
    np.testing.assert_array_equal(conv_ref(X, W, problem), torchs(padded, W, stride=(2, 1, 2)))
    assert num_terms(problem) == 6 * 2 * 3 * 3


@pytest.mark.parametrize("filter_layout", VOLUME_FILTER_LAYOUTS)
@pytest.mark.parametrize("layout", ["NCDHW", "NDHWC"])
def test_layouts(layout, filter_layout):
    stored = X if layout == "NCDHW" else np.ascontiguousarray(np.moveaxis(X, 1, -1))
    order = np.argsort(VOLUME_FILTER_LAYOUTS[filter_layout])
    y = conv3d(stored, W.transpose(order).copy(), padding=1, layout=layout, filter_layout=filter_layout)
    np.testing.assert_array_equal(y if layout == "NCDHW" else np.moveaxis(y, -1, 1), torchs(X, W, padding=1))


@pytest.mark.parametrize("K", [24, 256])
def test_packed_filters(K):
    w = integer_inputs(RNG, (K, 6, 2, 3, 3), "fp32")
    packed = nkiconv.pack_filter(w)
    assert packed.shape == (-(-K // 128), 6, 2, 3, 3, min(K, 128))
    np.testing.assert_array_equal(conv3d(X, packed, padding=1), torchs(X, w, padding=1))
    again = nkiconv.pack_filter(np.moveaxis(w, 0, -1).transpose(1, 2, 3, 0, 4).copy(), filter_layout="TRSCK")
    np.testing.assert_array_equal(again, packed)


def test_an_epilogue():
    bias, residual = RNG.standard_normal(4), RNG.standard_normal((2, 4, 3, 4, 6)).astype(np.float32)
    x, w = (
        RNG.standard_normal((2, 6, 4, 4, 6)).astype(np.float32),
        RNG.standard_normal((4, 6, 2, 3, 3)).astype(np.float32),
    )
    places = ((0, 0), (1, 1), (1, 1))
    problem = conv_problem(x, w, padding=places, layout="NCDHW", filter_layout="KCTRS")
    sums, abs_sum = conv_ref(x, w, problem), abs_sum_ref(x, w, problem)
    bias = bias.astype(np.float32)
    y = conv3d(x, w, bias, padding=places, activation="silu", residual=residual)
    limit = epilogue_bound(num_terms(problem), abs_sum, sums, "fp32", bias, "silu", residual)
    assert_within_limit(y, epilogue_ref(sums, bias, "silu", residual), limit)


def test_batch_groups_and_empty_arrays():
    y = conv3d(X, W, batch_group_count=2)
    halves = [torchs(X[half : half + 1], W[2 * half : 2 * half + 2]) for half in range(2)]
    np.testing.assert_array_equal(y, np.concatenate(halves, axis=1))
    assert conv3d(X[:0], W).shape == (0, 4, 3, 3, 5)
    assert conv3d(X[:, :0], W[:, :0]).shape == (2, 0, 3, 3, 5)


def test_one_hot_elements_land_where_they_belong():
    """Each axis of x and w has an extent of its own, so that swapped axes cannot hide."""
    rng = np.random.default_rng(3)
    for _ in range(8):
        x, w = np.zeros((2, 3, 4, 5, 6), np.float32), np.zeros((7, 3, 2, 3, 4), np.float32)
        x[tuple(rng.integers(0, extent) for extent in x.shape)] = 1
        w[tuple(rng.integers(0, extent) for extent in w.shape)] = 1
        w[:, np.argwhere(x)[0][1]] = np.maximum(w[:, np.argwhere(x)[0][1]], w.max(axis=1))
        np.testing.assert_array_equal(conv3d(x, w, padding=2), torchs(x, w, padding=2))


@draws(30)
@given(volumes(groups=(1, 1, 2, 3)), st.integers(1, 3), st.booleans())
def test_any_volumes_on_one_core_and_two(shape, N, last):
    for lnc in (1, 2):
        check_volume(shape, lnc=lnc, N=N, last=last)


@pytest.mark.slow
@draws(1000)
@given(volumes(groups=(1, 1, 2, 3)), st.integers(1, 3), st.booleans())
def test_any_volumes_at_length(shape, N, last):
    check_volume(shape, N=N, last=last)


REFUSED = [
    ({"w": W[:, :, 0]}, LayoutError, r"w.shape=.*: must have 5 axes, \[K, C / groups, T, R, S\]"),
    ({"padding": ((-3, 0), (0, 0), (0, 0))}, GeometryError, "Z=0: output depth must be at least 1"),
    ({"groups": 4}, GeometryError, "has 6 input channels per group, x has C=6 in groups=4"),
    ({"algorithm": "weight_stationary"}, UnsupportedError, "feature_group_count=1, lhs_dilation=1: weight_stationary"),
    ({"algorithm": "stacked", "config": (("planes", "rows"),)}, UnsupportedError,
     r"config planes=rows: must be one of \('taps', 'channels'\)"),
    ({"algorithm": "narrow", "config": (("planes", "channels"),)}, UnsupportedError,
     "config planes=channels: narrow takes them as taps"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "message"), REFUSED, ids=[case[2][:40] for case in REFUSED])
def test_refusals(changed, error, message):
    with pytest.raises(error, match=message):
        conv3d(**{"x": X, "w": W, **changed})


@pytest.mark.parametrize(("fields", "message"), [
    ({"T": 3}, "T=3: filter planes need input planes; give D, or drop T"),
    ({"D": 2, "T": 3}, "Z=0: output depth must be at least 1"),
    ({"D": 2, "stride": (1, 1)}, r"stride=\(1, 1\): must be a tuple \(depth, height, width\) of ints"),
    ({"D": 2, "padding": ((0, 0), (0, 0))}, r"padding=.*: must be \(\(front, back\), "),
    ({"D": 2, "layout": "NCHW"}, "layout='NCHW': accepted are NCDHW, NDHWC"),
    ({"layout": "NDHWC"}, "layout='NDHWC': accepted are NCHW, NHWC"),
])  # fmt: skip
def test_problems_that_cannot_be(fields, message):
    with pytest.raises((GeometryError, LayoutError), match=message):
        ConvProblem(**{"N": 1, "C": 2, "W": 5, "S": 1, **fields})


def test_operations_are_of_images_or_volumes():
    volume = ConvProblem(N=1, C=4, D=3, H=4, W=4, S=1)
    for operation, problem in (("conv2d", volume), ("conv3d", ConvProblem(N=1, C=4, H=4, W=4, S=1))):
        with pytest.raises(UnsupportedError, match=f"operation='{operation}': the problem .* an axis of planes"):
            nkiconv.plan(problem, operation=operation)


def test_a_kernel_takes_what_its_rank_says():
    kernel = nkiconv.simulate(nkiconv.conv3d_implicit_gemm)
    for changed, message in (
        ({"kern_perm": (0, 1, 3, 2, 4)}, "kern_perm=.*: rows of taps must follow each other from plane to plane"),
        ({"packed": True}, "filter_ref.shape=.*: a packed filter of volumes is"),
    ):
        with pytest.raises(nkiconv.simulator.KernelAssertionError, match=message):
            kernel(**{"img_ref": X, "filter_ref": W, **changed})


@pytest.mark.cover(3)
@pytest.mark.parametrize("layout", ["NCDHW", "NDHWC"])
@pytest.mark.parametrize("chunks", [(4,), (1, 3), (2, 1, 1)])
def test_a_video_in_chunks(layout, chunks):
    """The first chunk is padded, the others start from what the one before returned."""
    axis, stored = layout.index("D"), X if layout == "NCDHW" else np.ascontiguousarray(np.moveaxis(X, 1, -1))
    cache, found = None, []
    for chunk in np.split(stored, np.cumsum(chunks)[:-1], axis):
        padding = ((1 if cache is None else 0, 0), (1, 1), (1, 1))
        y, cache = conv3d(
            chunk, W, BIAS, padding=padding, layout=layout, initial_frames=cache, return_final_frames=True
        )
        found.append(y)
    whole = conv3d(stored, W, BIAS, padding=((1, 0), (1, 1), (1, 1)), layout=layout)
    np.testing.assert_array_equal(np.concatenate(found, axis), whole)
    np.testing.assert_array_equal(cache, np.take(stored, [3], axis))


def test_no_frames_and_empty_arrays():
    one_plane = np.ascontiguousarray(W[:, :, :1])
    y, none = conv3d(X, one_plane, return_final_frames=True)
    assert none.shape == (2, 6, 0, 5, 7)
    again, none = conv3d(X, one_plane, initial_frames=none, return_final_frames=True)
    np.testing.assert_array_equal(y, again)
    y, final = conv3d(X[:0], W, initial_frames=X[:0], return_final_frames=3)
    assert (y.shape, final.shape) == ((0, 4, 7, 3, 5), (0, 6, 3, 5, 7))


FRAMES_REFUSED = [
    ({"initial_frames": X[0]}, LayoutError, r"initial_frames.shape=.*: must have 5 axes, \[N, C, D, H, W\]"),
    ({"initial_frames": [1]}, DtypeError, "initial_frames: must be a NumPy array, not list"),
    ({"initial_frames": X, "batch_group_count": 2}, UnsupportedError, "batch_group_count=2: frames in front go with 1"),
]


@pytest.mark.parametrize(("kwargs", "error", "text"), FRAMES_REFUSED)
def test_frames_are_refused_by_name(kwargs, error, text):
    with pytest.raises(error, match=text):
        conv3d(X, W, **kwargs)


def test_plans_count_frames():
    problem = ConvProblem(N=1, C=32, D=6, H=8, W=8, K=32, T=3, R=3, S=3)
    plan = nkiconv.plan(problem, initial_frames=2, return_final_frames=2, use_cache=False)
    assert plan.operation == "conv3d"
    assert (plan.asked.initial_frames, plan.asked.return_final_frames) == (2, 2)
    for more, text in (({"initial_frames": 6}, "D=6 planes"), ({"return_final_frames": 7}, "D=6 planes")):
        with pytest.raises(GeometryError, match=text):
            nkiconv.plan(problem, **more)
    with pytest.raises(GeometryError, match="initial_frames=True: must be an int of at least 0"):
        nkiconv.plan(problem, initial_frames=True)
    with pytest.raises(GeometryError, match="D=None planes"):
        nkiconv.plan(ConvProblem(N=1, C=8, H=8, W=8, R=3, S=3), initial_frames=1)
