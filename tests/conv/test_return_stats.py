"""Statistics of y that convolutions return, of all that algorithms with them do, against float64; y stays as it is. And
whole chains of random shapes and options: act(conv(act(x * scale + shift)) + bias + residual).
"""

import hypothesis
import numpy as np
import pytest
from conv_calls import bounded, canonical_of, combined, normals
from draws import draws
from hypothesis import strategies as st
from tolerances import assert_within_limit

import nkiconv
from nkiconv import ConvProblem, UnsupportedError
from nkiconv.api.conv import run_conv
from nkiconv.api.epilogue import Epilogue
from nkiconv.bounds import moments_bound, returned_stats_bound
from nkiconv.errors import NkiconvError
from nkiconv.planner.estimate import completed
from nkiconv.planner.request import Asked, Request
from nkiconv.reference import channel_stats_ref
from nkiconv.rules import RESIDUAL_POSITIONS
from nkiconv.schedules.options import TAKE_STATISTICS


def image(**fields):
    return ConvProblem(
        **({"N": 2, "C": 12, "H": 9, "W": 11, "K": 20, "R": 3, "S": 3, "padding": ((1, 1),) * 2} | fields)
    )


def volume(**fields):
    return image(**({"D": 5, "T": 3, "padding": ((1, 1),) * 3} | fields))


def packed(**sizes):
    """M packing of these sizes."""
    return {"algorithm": "weight_stationary", "config": tuple(sizes.items())}


def stacked(**sizes):
    """K packing of these sizes."""
    return {"algorithm": "stacked", "config": tuple(sizes.items())}


def check_stats(stats, truth, error):
    """Statistics are those of the truth, within their bounds, which are returned."""
    whole, average, variance = combined(stats)
    right, limits = channel_stats_ref(truth), returned_stats_bound(truth, error, truth[0, 0].size)
    assert np.array_equal(whole, right[..., 0])
    assert np.all(np.abs(average - right[..., 1]) <= limits[0])
    assert np.all(np.abs(variance - right[..., 2]) <= limits[1])
    return limits


def check(
    problem, lnc=2, *, mean=0.0, config=None, seed=0, algorithm="implicit_gemm", before=None, bias=True, residual=False,
    **asked,
):  # fmt: skip
    """y and its statistics are within their bounds, statistics those of y before it is rounded; of an algorithm y is
    that without statistics, to the bit. before: forms of a prologue. Returns (truth, statistics, y, their bounds)."""
    rng, after, before = np.random.default_rng(seed), dict(asked), dict(before or {})
    x, w = normals(rng, problem)
    given = {"bias": (rng.standard_normal(problem.K) + mean).astype(np.float32) if bias else None}
    for name in ("x_scale", "x_shift"):
        shape = {"channel": (problem.C,), "image": (problem.N, problem.C)}.get(before.get(name))
        before[name] = None if shape is None else rng.standard_normal(shape).astype(np.float32)
    if residual:
        given["residual"] = rng.standard_normal(problem.output_shape).astype(np.float32)
        after["residual"] = canonical_of(given["residual"], problem)
    if config is None and algorithm not in (None, "implicit_gemm"):
        # statistics may change the settings that are best, and these the order of sums
        config = completed(Request(problem=problem, lnc=lnc, asked=Asked(return_stats="channel")), algorithm, None)[1]

    def called(**more):
        epilogue = Epilogue(**given, **before, **asked, **more)
        return run_conv(x, w, problem, epilogue=epilogue, lnc=lnc, algorithm=algorithm, config=config).y

    y, stats = called(return_stats="channel")
    if algorithm is not None:
        np.testing.assert_array_equal(y, called())
    told = {"precision": after.pop("precision", None), "on_x": before, "bias": given["bias"], **after}
    rounded, exact = (bounded(canonical_of(x, problem), w, problem, to, **told) for to in (problem.out_dtype, "fp32"))
    assert_within_limit(canonical_of(y, problem), *rounded[1:])
    truth, error = exact[1:]
    assert stats.shape == (lnc, *truth.shape[:2], 3)
    assert stats.dtype == np.float32
    assert np.all(stats[stats[..., 0] == 0] == 0)
    return truth, stats, y, check_stats(stats, truth, error)


CASES = {
    "several M and K tiles": (image(C=140, K=300), {}),
    "NHWC": (image(C=40, layout="NHWC"), {}),
    "many images in a bank": (image(N=41, H=4, W=3, C=130), {}),
    "small images, one on both cores": (image(N=3, H=9, W=30, C=16, K=8, R=1, S=1, padding=((0, 0),) * 2), {}),
    "columns over a bank": (image(H=2, W=1100), {}),
    "rows over an output tile": (image(H=130, W=90, K=3, C=2), {}),
    "folded outputs": (image(C=64, K=64), {"config": (("fold", "outputs"),)}),
    "folded outputs, odd channels": (image(C=32, K=39, N=3), {"config": (("fold", "outputs"),)}),
    "folded inputs": (image(C=20), {"config": (("fold", "inputs"),)}),
    "K tile by K tile": (image(C=260, K=200), {"config": (("order", "chunks"),)}),
    "fp32": (image(dtype="fp32"), {}),
    "fp16x3": (image(dtype="fp32", C=130), {"precision": "fp16x3"}),
    "fp8": (image(dtype="fp8_e4m3", C=256), {}),
    "groups": (image(groups=4), {}),
    "transposed": (image(transposed=True, lhs_dilation=(2, 2), padding=((1, 2), (0, 1))), {}),
    "volumes": (volume(), {}),
    "volumes, images of planes": (volume(T=1, padding=((0, 0), (1, 1), (1, 1))), {}),
    "volumes, planes of taps as channels": (volume(C=4), {"config": (("planes", "channels"),)}),
    "winograd": (volume(C=20), {"precision": "winograd"}),
    "winograd, even planes": (volume(C=130, D=6, N=1, layout="NDHWC"), {"precision": "winograd"}),
    "silu": (image(), {"activation": "silu"}),
    "residual": (image(), {"residual": True}),
    "residual after gelu": (image(), {"residual": True, "activation": "gelu", "residual_position": "post_activation"}),
}  # fmt: skip
#: Of several outputs of a block in the columns, some of which y lacks.
GROUPED = {"algorithm": "weight_stationary"}
PHASES = image(transposed=True, lhs_dilation=(2, 2), padding=((1, 2), (0, 1)))
#: Of several rows of y in the columns: rows of the last block that y lacks, images that the cores share, turns of rows.
K_PACKED = {"algorithm": "stacked"}
CASES |= {
    "M packing": (image(), {"algorithm": "weight_stationary"}),
    "M packing, one tap, even rows": (image(C=64, K=64, H=8), packed(outputs=2, taps=1, lanes=2)),
    "M packing, a last block of 2 of 5 rows": (image(H=12), packed(outputs=5, taps=1)),
    "M packing, rows cut": (image(N=1, H=70, C=3, K=3), packed(outputs=4, taps=3, x_bytes=512)),
    "M packing, NHWC": (image(layout="NHWC"), {"algorithm": "weight_stationary"}),
    "M packing, fp32, residual": (image(dtype="fp32"), {"residual": True, "algorithm": "weight_stationary"}),
    "M packing, x dilated": (image(lhs_dilation=(2, 2), K=7), packed(outputs=4, taps=3)),
    "M packing, volumes": (volume(), packed(outputs=2, taps=2)),
    "M packing, transposed": (
        image(transposed=True, K=7, lhs_dilation=(2, 2), padding=((1, 2), (0, 1))), packed(outputs=4, taps=3)),
    "groups on row tiles": (image(groups=4, N=3), GROUPED),
    "groups on row tiles, silu and residual": (image(groups=4), {"residual": True, "activation": "silu", **GROUPED}),
    "groups on row tiles, relu, even": (
        image(groups=4, H=8, W=12), {"activation": "relu", **packed(rows=32, height=4, width=1)}),
    "groups on row tiles, rows cut": (image(groups=4, N=1, H=90, W=90), packed(rows=32, height=2, width=2)),
    "depthwise on row tiles": (image(groups=140, C=140, K=140), packed(rows=32, height=2, width=2)),
    "depthwise on row tiles, 2 filters a channel, one row": (
        image(groups=40, C=40, K=80, H=1, R=1), packed(rows=32, height=1, width=4)),
    "depthwise on row tiles, volumes": (volume(groups=12, K=12), GROUPED),
    "depthwise on row tiles, NHWC, fp32": (image(groups=12, K=12, layout="NHWC", dtype="fp32"), GROUPED),
    "phases": (PHASES, {"algorithm": "weight_stationary"}),
    "phases, several M tiles": (PHASES.replace(K=40, N=3), packed(shard="channels", channels=16)),
    "phases beside, even, relu": (PHASES.replace(H=8, W=8), {"activation": "relu", **packed(beside="columns")}),
    "phases, many outputs": (PHASES.replace(C=32, H=64, W=64, N=1), {"algorithm": "weight_stationary"}),
    "phases, residual": (PHASES, {"residual": True, "algorithm": "weight_stationary"}),
    "phases of volumes": (
        volume(transposed=True, lhs_dilation=(2, 1, 2), padding=((1, 0), (1, 1), (0, 2))), packed(beside="planes")),
    "K packing": (image(), K_PACKED),
    "K packing, several M tiles": (image(K=150, N=3), K_PACKED),
    "K packing, turns of rows": (image(C=3, H=13), stacked(rows=6, shifts=3, outputs=3, beside=2, apart=6)),
    "K packing, turns of rows, stride": (
        image(C=3, H=21, stride=(2, 2)), stacked(rows=8, shifts=3, outputs=2, beside=2, apart=8)),
    "K packing, turns without rows": (image(C=3, H=9), stacked(rows=8, shifts=3, outputs=2, beside=4, apart=8)),
    "K packing, rows cut": (image(N=1, C=3, H=90, W=40), K_PACKED),
    "K packing, gelu and residual": (image(C=3), {"residual": True, "activation": "gelu", **K_PACKED}),
    "K packing, NHWC, fp32": (image(layout="NHWC", dtype="fp32"), K_PACKED),
    "K packing, volumes": (volume(C=3), K_PACKED),
}  # fmt: skip


@pytest.mark.cover(len(CASES) // 3, keep=["phases, residual-1", "groups on row tiles, silu and residual-1"])
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_statistics_of_y(name, lnc):
    problem, more = CASES[name]
    check(problem, lnc, **more)


@pytest.mark.parametrize("algorithm", TAKE_STATISTICS)
def test_a_thousand_standard_deviations(algorithm):
    """Statistics are of y before it is rounded: of bf16, which steps by 4 standard deviations there, few are."""
    truth, stats, y, bounds = check(image(K=32, H=40, W=50), mean=1000.0, algorithm=algorithm)
    norm = nkiconv.norm_scale_shift(stats, norm="instance")
    _, mean, variance = np.moveaxis(channel_stats_ref(truth), -1, 0)
    bound = bounds[1] + moments_bound(mean, variance + bounds[1], 2)[1]
    assert np.all(bound < variance / 10)
    assert np.all(np.abs(norm.variance - variance) <= bound)
    rounded = channel_stats_ref(y)[..., 2]
    assert np.mean(np.abs(rounded - variance) > bound) > 0.8


def test_non_finite_numbers_stay_in_their_image_and_channel():
    x, w = np.ones((2, 3, 6, 7), np.float32), np.ones((4, 3, 3, 3), np.float32)
    bias, residual = np.zeros(4, np.float32), np.zeros((2, 4, 4, 5), np.float32)
    residual[1, 2, 3, 4] = np.nan
    with np.errstate(invalid="ignore"):
        _, stats = nkiconv.conv2d(x, w, bias, residual=residual, return_stats="channel")
        finite = np.isfinite(combined(stats)[2])
    wanted = np.ones((2, 4), bool)
    wanted[1, 2] = False
    assert np.array_equal(finite, wanted)


@pytest.mark.usefixtures("plainly")
def test_functions_return_statistics_last():
    """Of every function, of no images too, and after the frames of conv3d."""
    rows, pixels, planes = (np.ones((2, 4, *size), np.float32) for size in ((9,), (5, 9), (4, 5, 9)))
    narrow, square, cube = (np.ones((6, 4, *taps), np.float32) for taps in ((3,), (3, 3), (3, 3, 3)))
    calls = [
        (nkiconv.conv1d, rows, narrow, {}),
        (nkiconv.conv1d, rows.transpose(0, 2, 1).copy(), narrow, {"layout": "NWC"}),
        (nkiconv.conv2d, pixels, square, {}),
        (nkiconv.conv3d, planes, cube, {}),
        (nkiconv.conv3d, planes, cube, {"return_final_frames": True}),
        (nkiconv.conv3d, planes, cube, {"return_final_frames": 0}),
        (nkiconv.conv_transpose1d, rows, narrow.swapaxes(0, 1).copy(), {}),
        (nkiconv.conv_transpose2d, pixels, square.swapaxes(0, 1).copy(), {"stride": 2}),
        (nkiconv.conv_transpose3d, planes, cube.swapaxes(0, 1).copy(), {}),
        (nkiconv.depthwise_conv2d, pixels, np.ones((8, 1, 3, 3), np.float32), {}),
        (nkiconv.conv2d, pixels, square, {"batch_group_count": 2}),
        (nkiconv.conv1d_input, (2, 4, 9), narrow, {}),
    ]
    for function, x, w, more in calls:
        given = (x, w, np.ones((2, 6, 7), np.float32)) if function is nkiconv.conv1d_input else (x, w)
        found, plain = function(*given, return_stats="channel", **more), function(*given, **more)
        plain = plain if isinstance(plain, tuple) else (plain,)
        assert len(found) == len(plain) + 1
        assert all(np.array_equal(one, other) for one, other in zip(found, plain, strict=False))
        y, stats = found[0], found[-1]
        y = np.moveaxis(y, -1, 1) if more.get("layout") == "NWC" else y
        assert np.array_equal(combined(stats)[0], channel_stats_ref(y)[..., 0])
        if isinstance(x, np.ndarray) and "batch_group_count" not in more:
            none = function(x[:0], w, return_stats="channel", **more)
            assert [one.shape[1:] for one in none[:-1]] == [one.shape[1:] for one in plain]
            assert none[-1].shape == (2, 0, y.shape[1], 3)


X, W, WIDE = (np.ones(shape, np.float32) for shape in ((1, 32, 5, 6), (32, 32, 3, 3), (1, 20, 5, 6)))
CHANNEL, GEMM, BLOCKS = {"return_stats": "channel"}, {"algorithm": "implicit_gemm"}, {"algorithm": "weight_stationary"}


@pytest.mark.parametrize(("function", "x", "w", "more", "message"), [
    (nkiconv.conv2d, X, W, {"return_stats": "group"}, "return_stats='group': accepted are None, channel"),
    (nkiconv.conv2d, X, W, {"return_stats": True}, "return_stats=True"),
    (nkiconv.conv2d, X, W, CHANNEL | GEMM | {"config": (("loop", 1),)}, "config loop=1: return_stats='channel' adds"),
    (nkiconv.conv2d, X, W, CHANNEL | {"algorithm": "activation_stationary"},
     "return_stats='channel': activation_stationary has .*use implicit_gemm"),
    (nkiconv.conv2d, WIDE, W[:20, :1], CHANNEL | {"algorithm": "stacked", "groups": 20},
     "return_stats='channel': stacked of depthwise problems has .*use implicit_gemm"),
    (nkiconv.conv_transpose2d, X, W[:, :4], CHANNEL | BLOCKS | {"stride": 2, "config": (("segments", 2),)},
     r"segments=2, .*, return_stats='channel': .* use segments=1"),
])  # fmt: skip
def test_what_else_is_refused(function, x, w, more, message):
    with pytest.raises(UnsupportedError, match=message):
        function(x, w, **more)


def test_depthwise_rows_have_none():
    row = ConvProblem(N=1, C=4, W=9, S=3, groups=4)
    with pytest.raises(UnsupportedError, match="return_stats='channel': depthwise_conv1d has none"):
        nkiconv.plan(row, operation="depthwise_conv1d", return_stats="channel")


ACTIVATIONS = (None, "relu", "silu", "gelu", "tanh")


@st.composite
def problems(draw):
    """Images and volumes, plain, transposed, in groups, of one channel each."""

    def each(low, high):
        return tuple(draw(st.integers(low, high)) for _ in axes)

    axes = draw(st.sampled_from(["HW", "DHW"]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    transposed = draw(st.booleans())
    of_group = [draw(st.sampled_from([1, 2, 5, 16, 43, 66, 130])) for _ in range(2)]
    return ConvProblem(
        N=draw(st.integers(1, 3)), C=groups * of_group[0], K=groups * of_group[1], groups=groups,
        **dict(zip(axes, each(1, 8 if len(axes) == 2 else 4), strict=True)),
        **dict(zip("TRS"[-len(axes) :], each(1, 3), strict=True)),
        padding=tuple(zip(each(0, 2), each(0, 2), strict=True)), rhs_dilation=each(1, 2),
        **{"lhs_dilation" if transposed else "stride": each(1, 2), "transposed": transposed},
        layout=draw(st.sampled_from(["NCHW", "NHWC"] if len(axes) == 2 else ["NCDHW", "NDHWC"])),
        dtype=draw(st.sampled_from(["bf16", "fp16", "fp32"])),
    )  # fmt: skip


@st.composite
def chains(draw):
    """(problem, what `check` is told)."""
    try:
        problem = draw(problems())
    except NkiconvError:  # no output
        hypothesis.reject()
    forms = st.sampled_from([None, "channel", "image"])
    prologue = {"x_scale": draw(forms), "x_shift": draw(forms), "x_activation": draw(st.sampled_from(ACTIVATIONS))}
    found = {"before": prologue, "activation": draw(st.sampled_from(ACTIVATIONS)), "bias": draw(st.booleans())}
    position = draw(st.sampled_from([None, *RESIDUAL_POSITIONS]))
    found |= {"residual": True, "residual_position": position} if position else {}
    return problem, found | {"lnc": draw(st.integers(1, 2)), "seed": draw(st.integers(0, 99)), "algorithm": None}


@draws(30, 500)
@hypothesis.given(chains())
def test_any_chain(chain):
    problem, asked = chain
    check(problem, **asked)
