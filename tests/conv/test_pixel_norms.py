"""Norms over the channels of y: against the float64 reference, refusals, and needs that schedules count."""

import numpy as np
import pytest
from conv_calls import bounded, canonical, canonical_of, in_layout, normals
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from strategies import images_and_volumes
from tolerances import assert_within_limit

import nkiconv
from nkiconv.errors import DtypeError, GeometryError, UnsupportedError
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.request import Asked, Request
from nkiconv.planner.timing import trace
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import ChannelNorm
from nkiconv.simulator.timing import Rates

ONES = ((1, 1), (1, 1))
NONE, CAUSAL = ((0, 0), (0, 0)), ((2, 0), (1, 1), (1, 1))
#: Channels of y from one on, more than a bn_stats of a half, and all that a bank of sums holds.
PROBLEMS = {
    "pixels": ConvProblem(N=2, C=20, K=24, H=7, W=6, R=3, S=3, padding=ONES, layout="NHWC"),
    "several pixels a partition": ConvProblem(N=1, C=8, K=16, H=40, W=36, R=1, S=1, layout="NHWC"),
    "rows folded": ConvProblem(N=1, C=3, K=24, H=32, W=64, R=3, S=3, padding=ONES, layout="NHWC"),
    "patches": ConvProblem(N=2, C=3, K=96, H=16, W=16, R=4, S=4, stride=(4, 4), layout="NHWC"),
    "one channel": ConvProblem(N=1, C=5, K=1, H=4, W=5, R=2, S=2, layout="NHWC"),
    "few pixels": ConvProblem(N=1, C=130, K=300, H=3, W=4, R=1, S=1, layout="NHWC"),
    "a whole bank": ConvProblem(N=1, C=6, K=512, H=3, W=4, R=2, S=1, layout="NHWC"),
    "volume": ConvProblem(N=1, C=10, K=12, D=4, H=5, W=6, T=3, R=3, S=3, padding=CAUSAL),
    "volume of odd channels": ConvProblem(N=2, C=7, K=33, D=3, H=4, W=9, T=2, R=1, S=3, padding=(*CAUSAL[:1], *ONES)),
    "volume of many channels": ConvProblem(N=1, C=9, K=260, D=3, H=3, W=4, T=3, R=1, S=1, padding=((2, 0), *NONE)),
    "volume by pixels": ConvProblem(N=1, C=10, K=12, D=4, H=5, W=6, T=3, R=3, S=3, padding=CAUSAL, layout="NDHWC"),
}  # fmt: skip
#: Channels on partitions, one M tile and several, for `implicit_gemm`.
ON_PARTITIONS = {
    "an image": ConvProblem(N=2, C=20, K=24, H=7, W=6, R=3, S=3, padding=ONES),
    "M tiles": ConvProblem(N=1, C=9, K=150, H=9, W=20, R=2, S=3, padding=((1, 0), (0, 2))),
    "banks": ConvProblem(N=1, C=130, K=260, H=30, W=40, R=1, S=1),
    "stride": ConvProblem(N=3, C=5, K=130, H=11, W=9, R=3, S=2, stride=(2, 3)),
    "volume": PROBLEMS["volume"].replace(K=140),
    "planes alone": ConvProblem(N=1, C=8, K=6, D=5, H=4, W=5, T=3, R=1, S=1, padding=(*CAUSAL[:1], *NONE)),
    "one plane of taps": ConvProblem(N=1, C=70, K=12, D=3, H=4, W=5, T=1, R=3, S=3, padding=((0, 0), *ONES)),
    "two pixels": ConvProblem(N=1, C=3, K=200, H=1, W=2, R=1, S=1),
}
GEMM = {"algorithm": "implicit_gemm"}
SEVERAL = ConvProblem(N=1, C=160, K=150, H=9, W=8, R=2, S=3, padding=((1, 0), (0, 2)))
LOOPED = ConvProblem(N=1, C=10, K=12, D=3, H=24, W=8, T=3, R=3, S=3, padding=CAUSAL)
ASKED = {
    "rms": {"kind": "rms", "weight": True, "activation": "silu"},
    "rms alone": {"kind": "rms"},
    "rms, bias": {"kind": "rms", "weight": True, "norm_bias": True, "bias": True},
    "layer": {"kind": "layer", "weight": True, "norm_bias": True},
    "layer alone": {"kind": "layer"},
    "layer, bias alone": {"kind": "layer", "norm_bias": True, "activation": "gelu"},
    "layer, weight alone": {"kind": "layer", "weight": True, "bias": True, "activation": "relu"},
}
#: Of y as NHWC, where the algorithm takes residuals.
ADDED = {
    "residual before": {"kind": "layer", "weight": True, "residual": "pre_activation", "activation": "silu"},
    "residual after": {"kind": "rms", "norm_bias": True, "residual": "post_activation", "activation": "silu"},
    "residual after a norm alone": {"kind": "rms", "residual": "post_activation"},
}


def _by_rows(why):
    """Whether y of a problem leaves by rows of planes."""
    return (why in PROBLEMS and PROBLEMS[why].layout == "NCDHW") or why == "a loop on the device"


def call(problem, kind, weight=False, norm_bias=False, bias=False, residual=None, seed=0, scale=1.0, apart=0.0, **more):
    """(arguments of the function, those of the reference and the bound) of a problem with random data; apart: what is
    added to all channels of a pixel."""
    rng = np.random.default_rng(seed)
    x, w = normals(rng, canonical(problem))
    w = (scale * w.astype(np.float32)).astype(w.dtype)
    of_k = {name: rng.standard_normal(problem.K).astype(np.float32) for name in ("weight", "norm_bias", "bias")}
    of_k["bias"] = of_k["bias"] + np.float32(apart)
    eps = more.pop("eps", 1e-6)
    norm = ChannelNorm(kind, of_k["weight"] if weight else None, of_k["norm_bias"] if norm_bias else None, eps)
    told = {"bias": of_k["bias"] if bias else None, "activation": more.get("activation")}
    asked = {**told, **more, "y_norm": kind, "y_norm_weight": norm.weight, "y_norm_bias": norm.bias, "y_norm_eps": eps}
    if residual is not None:
        added = rng.standard_normal(canonical(problem).output_shape).astype(x.dtype)
        told |= {"residual": added, "residual_position": residual}
        asked |= told | {"residual": np.ascontiguousarray(in_layout(added, problem))}
    asked |= {"layout": problem.layout, "stride": problem.stride, "padding": problem.padding}
    asked["dilation"] = problem.rhs_dilation
    asked = {name: value for name, value in asked.items() if value is not None}
    return (np.ascontiguousarray(in_layout(x, problem)), w, asked), (x, w, told, norm)


def conv_of(problem):
    return nkiconv.conv3d if problem.is_volume else nkiconv.conv2d


def convolve(problem, arguments, lnc=2):
    """y [N, K, ...] of the function."""
    x, w, asked = arguments
    return canonical_of(conv_of(problem)(x, w, lnc=lnc, **asked), problem)


def check(problem, out_dtype=None, lnc=2, kept=False, **asked):
    """y within its bound of the truth, and the bound finite; returns y. kept: what the norm reads is within its own,
    and y is that of a call without it."""
    arguments, (x, w, told, norm) = call(problem, **asked)
    if out_dtype is not None:
        arguments[2]["out_dtype"] = DTYPES[out_dtype]
    y = convolve(problem, arguments, lnc)
    _, expected, limit = bounded(x, w, problem, out_dtype or problem.dtype, norm=norm, **told)
    assert np.isfinite(limit).all()
    assert_within_limit(y, expected, limit)
    if kept:
        found = conv_of(problem)(*arguments[:2], lnc=lnc, **arguments[2], return_before_norm=True)
        again, before = (canonical_of(one, problem) for one in found)
        read = {"bias": told["bias"]}
        if told.get("residual_position") == "pre_activation":
            read["residual"] = told["residual"]
        assert_within_limit(before, *bounded(x, w, problem, problem.dtype, **read)[1:])
        assert again.tobytes() == y.tobytes()
    return y


#: Problem, what the algorithm is told.
PLACES = {
    **{why: (problem, {}) for why, problem in PROBLEMS.items()},
    **{f"implicit_gemm: {why}": (problem, GEMM) for why, problem in ON_PARTITIONS.items()},
    "implicit_gemm: small output tiles": (SEVERAL, GEMM | {"config": (("x_bytes", 512),)}),
    "implicit_gemm: all M tiles at once": (SEVERAL, GEMM | {"config": (("order", "chunks"),)}),
    "implicit_gemm: folded inputs": (SEVERAL, GEMM | {"config": (("fold", "inputs"),)}),
    "a loop on the device": (LOOPED, {"algorithm": "activation_stationary", "config": (("loop", 1),)}),
}
#: Problems whose estimates have the same settings for one core and two.
SAME_SETTINGS = (
    "pixels", "rows folded", "volume", "volume by pixels", "implicit_gemm: M tiles", "implicit_gemm: banks",
)  # fmt: skip
#: Algorithms that write y by rows of volumes add a residual to sums alone.
CASES = [(why, asked) for why in PLACES for asked in (*ASKED, *(list(ADDED)[:1] if _by_rows(why) else ADDED))]


@pytest.mark.cover(29, keep=["a loop on the device-layer-bf16-False"])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("why", "asked"), CASES)
def test_y_is_within_its_bound_on_one_core_and_two(why, asked, dtype, kept):
    problem, how = PLACES[why]
    more = {**ASKED, **ADDED}[asked] | how | {"kept": kept}
    one, two = (check(problem.replace(dtype=dtype), lnc=lnc, **more) for lnc in (1, 2))
    if why in SAME_SETTINGS:
        assert one.tobytes() == two.tobytes()


def test_what_the_norm_reads_comes_after_final_frames():
    problem = ON_PARTITIONS["volume"].replace(dtype="fp32")
    (x, w, asked), _ = call(problem, "layer", bias=True, activation="silu")
    y, frames, u = nkiconv.conv3d(x, w, **asked, return_final_frames=True, return_before_norm=True)
    assert frames.tobytes() == x[:, :, -2:].tobytes()
    alone = nkiconv.conv3d(x, w, **asked, return_before_norm=True)
    assert [one.tobytes() for one in alone] == [y.tobytes(), u.tobytes()]
    nothing = nkiconv.conv3d(x[:0], w, **asked, return_before_norm=True)
    assert [one.shape for one in nothing] == [(0, *y.shape[1:])] * 2


def test_fp8_and_packed_filters():
    problem = ConvProblem(N=1, C=256, K=150, H=6, W=7, R=3, S=3, padding=ONES, dtype="fp8_e4m3")
    check(problem, out_dtype="bf16", kind="rms", weight=True, algorithm="implicit_gemm")
    problem = problem.replace(dtype="bf16", K=256)
    (x, w, asked), (_, _, told, norm) = call(problem, "rms", weight=True)
    y = convolve(problem, (x, nkiconv.pack_filter(w), asked))
    assert_within_limit(y, *bounded(x, w, problem, "bf16", norm=norm, **told)[1:])


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("why", ["pixels", "volume", "M tiles"])
def test_a_mean_of_a_thousand_deviations(why, kind, dtype):
    """A difference of large squares would lose all of it: the bound is less than a tenth of y."""
    problem = {**PROBLEMS, **ON_PARTITIONS}[why].replace(dtype=dtype)
    arguments, (x, w, told, norm) = call(problem, kind, weight=True, bias=True, scale=0.01, apart=1000.0, seed=3)
    _, expected, limit = bounded(x, w, problem, "fp32", norm=norm, **told)
    assert limit.max() < np.abs(expected).mean() / 10
    arguments[2]["out_dtype"] = np.float32
    assert_within_limit(convolve(problem, arguments), expected, limit)


@pytest.mark.parametrize("more", [{}, {"residual": "pre_activation"}, {"bias": False}])
def test_scalar_keeps_the_table_of_the_activation(more):
    """A load of another one takes longer than a bank's sums."""
    asked = Asked(**{"bias": True, "y_norm": "rms", "y_norm_weight": True, "activation": "silu", **more})
    problem = ON_PARTITIONS["banks"].replace(dtype="bf16")
    request = Request(problem=problem, asked=asked, operation="conv2d")
    found = trace(request, Candidate("implicit_gemm", ()), Rates({})).execution.instructions
    assert {one.params["op"] for one in found if one.op == "activation"} == {"silu"}


def test_pixels_of_zeros_and_a_large_eps():
    problem = PROBLEMS["pixels"].replace(dtype="fp32")
    (x, w, asked), _ = call(problem, "rms", weight=True)
    assert not convolve(problem, (x, 0 * w, asked | {"y_norm_eps": 1e-30})).any()
    check(problem, kind="layer", eps=10.0)


def test_nan_and_inf_stay_in_their_pixel():
    problem = ConvProblem(N=1, C=3, K=5, H=3, W=4, R=1, S=1, layout="NHWC", dtype="fp32")
    (x, w, asked), _ = call(problem, "rms")
    x[0, 1, 2, 0], x[0, 2, 0, 1] = np.nan, np.inf
    y = nkiconv.conv2d(x, w, **asked)
    lost = np.isnan(y)
    assert lost[0, 1, 2].all()
    assert lost[0, 2, 0].all()
    assert lost.sum() == 2 * problem.K


FIRST, SHARD = {"layout": "NCHW"}, {"config": (("shard", "channels"),)}
#: Changes of a call whose y has 16 channels.
REFUSED = [
    ({"y_norm_weight": np.ones(20, np.float32)}, GeometryError, "y_norm_weight.shape"),
    ({"y_norm_weight": np.ones(16)}, DtypeError, "y_norm_weight.dtype=float64"),
    ({"algorithm": "stacked"}, UnsupportedError, "y_norm=rms: stacked has some"),
    (GEMM, UnsupportedError, "y_norm=rms: implicit_gemm takes rows of y"),
    (FIRST | {"return_stats": "channel"}, UnsupportedError, "y_norm=rms, return_stats="),
    (FIRST | GEMM | {"config": (("loop", 1),)}, UnsupportedError, "config loop=1: y_norm=rms normalizes"),
    (SHARD | {"algorithm": "activation_stationary"}, UnsupportedError, "y_norm=rms, config shard=channels"),
    (FIRST | SHARD | GEMM | {"K": 260}, UnsupportedError, "y_norm=rms, K=260, config shard=channels"),
    ({"K": 513, "y_norm": "layer"}, UnsupportedError, "y_norm=layer, K=513"),
    *(({"K": K, "groups": 8}, UnsupportedError, f"y_norm=rms, feature_group_count=8: activation_stationary {words}")
      for K, words in ((16, "has some channels"), (8, "would pass over"))),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_refused(changed, error, message):
    asked = {"K": 16, "groups": 1, "layout": "NHWC", "y_norm": "rms", **changed}
    w = np.zeros((asked.pop("K"), 8 // asked["groups"], 1, 1), np.float32)
    with pytest.raises(error, match=message):
        nkiconv.conv2d(np.zeros((1, 8, 8, 8), np.float32), w, **asked)


@pytest.mark.parametrize("problem", [
    ConvProblem(N=1, C=4, W=64, S=4, groups=4),
    ConvProblem(N=1, C=4, K=4, H=4, W=4, R=2, S=2, lhs_dilation=(2, 2), padding=((1, 1), (1, 1)), transposed=True),
])  # fmt: skip
def test_transposed_convolutions_and_rows_have_none(problem):
    more = {} if problem.transposed else {"operation": "depthwise_conv1d"}
    with pytest.raises(UnsupportedError, match="y_norm='rms'"):
        nkiconv.plan(problem, y_norm="rms", use_cache=False, **more)


@st.composite
def drawn(draw):
    """(problem, what is asked for)."""
    problem = draw(images_and_volumes([1], range(1, 41), transposed=False))
    places = [None, "pre_activation", "post_activation"][: 2 if problem.layout == "NCDHW" else 3]
    return problem, {
        "kind": draw(st.sampled_from(["rms", "layer"])),
        **{name: draw(st.booleans()) for name in ("weight", "norm_bias", "bias")},
        "residual": draw(st.sampled_from(places)),
        "kept": draw(st.booleans()),
        "activation": draw(st.sampled_from([None, "silu", "relu", "gelu"])),
        "seed": draw(st.integers(0, 99)),
    }


@draws(16, 200)
@given(drawn())
def test_any_shape_and_options(one):
    problem, asked = one
    check(problem, eps=1e-3, **asked)
