"""Statistics of y that convolutions return, of all that algorithms with them do, against float64; y stays as it is. And
whole chains of random shapes and options: act(conv(act(x * scale + shift)) + bias + residual).
"""

import re

import hypothesis
import numpy as np
import pytest
from conv_calls import bounded, canonical_of, combined, normals
from conv_rows import BLOCKS, EXACT, GEMM, K_PACKING, image, k_packed, m_packed, tiles, volume_of
from draws import draws
from hypothesis import strategies as st
from strategies import images_and_volumes
from tolerances import assert_within_limit

import nkiconv
from nkiconv import ConvProblem, UnsupportedError
from nkiconv.api.conv import run_conv
from nkiconv.api.epilogue import Epilogue
from nkiconv.bounds import moments_bound, returned_stats_bound
from nkiconv.planner.estimate import completed
from nkiconv.planner.request import Asked, Request
from nkiconv.reference import channel_stats_ref
from nkiconv.rules import ACTIVATIONS, RESIDUAL_POSITIONS
from nkiconv.schedules.options import TAKE_STATISTICS
from nkiconv.simulator import KernelAssertionError

PHASES = image(transposed=True, lhs_dilation=(2, 2), padding=((1, 2), (0, 1)))


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
    if algorithm is not None:  # statistics may change the settings that are best, and these the order of sums
        told = {"residual": asked.get("residual_position", "pre_activation") if residual else None}
        told |= {name: asked.get(name) for name in ("activation", "precision")}
        told = Asked(return_stats="channel", bias=bias, **told)
        config = completed(Request(problem=problem, lnc=lnc, asked=told), algorithm, config)[1]

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


#: Algorithm, settings, and what else is asked for.
MORE = {
    "fp16x3": (image(dtype="fp32", C=130), GEMM, {"precision": "fp16x3"}),
    "fp8": (image(dtype="fp8_e4m3", C=256), GEMM, {}),
    "many images in a bank": (image(N=41, H=4, W=3, C=130), GEMM, {}),
    "small images, one on both cores": (image(N=3, H=9, W=30, C=16, K=8, R=1, S=1, padding=((0, 0),) * 2), GEMM, {}),
    "transposed": (PHASES, GEMM, {}),
    "volumes": (volume_of(), GEMM, {}),
    "volumes, images of planes": (volume_of(T=1, padding=((0, 0), (1, 1), (1, 1))), GEMM, {}),
    "volumes, planes of taps as channels": (volume_of(C=4), GEMM, {"planes": "channels"}),
    "winograd": (volume_of(C=20), GEMM, {"precision": "winograd"}),
    "winograd, even planes": (volume_of(C=130, D=6, N=1, layout="NDHWC"), GEMM, {"precision": "winograd"}),
    "M packing, last block of 2 of 5 rows": (image(H=12), BLOCKS, m_packed(5, 1)),
    "M packing, volumes": (volume_of(), BLOCKS, m_packed(2, 2)),
    "M packing, transposed": (PHASES.replace(K=7), BLOCKS, m_packed(4, 3)),
    "groups on row tiles, even": (image(groups=4, H=8, W=12), BLOCKS, tiles(32, 4, 1)),
    "depthwise on row tiles, volumes": (volume_of(groups=12, C=12), BLOCKS, {}),
    "phases": (PHASES, BLOCKS, {}),
    "phases, several M tiles": (PHASES.replace(K=140, N=3), BLOCKS, {"shard": "channels"}),
    "phases beside, even": (PHASES.replace(H=8, W=8), BLOCKS, {"beside": "columns"}),
    "phases, many outputs": (PHASES.replace(C=32, H=64, W=64, N=1), BLOCKS, {}),
    "phases of volumes": (volume_of(transposed=True, lhs_dilation=(2, 1, 2), padding=((1, 0), (1, 1), (0, 2))), BLOCKS,
        {"beside": "planes"}),
    "K packing, turns without rows": (image(C=3, H=9), K_PACKING, k_packed(8, 3, 2, 4, 8)),
    "K packing, a rest": (image(C=3, H=9), K_PACKING, k_packed(8, 3, 2, 4, 8, rest=1)),
    "K packing, rows cut": (image(N=1, C=3, H=90, W=40), K_PACKING, {}),
    "K packing, volumes": (volume_of(C=3), K_PACKING, {}),
}  # fmt: skip
#: With those of EXACT that return some.
CASES = MORE | {
    why: (problem, config[0][1], dict(config[1:])) for why, (problem, config) in EXACT.items()
    if why.startswith(("implicit_gemm", "M packing", "groups", "K packing")) and "K packing: depthwise" not in why
}  # fmt: skip
EPILOGUES = {
    "plain": {},
    "relu": {"activation": "relu"},
    "silu and residual": {"residual": True, "activation": "silu"},
    "residual after gelu": {"residual": True, "activation": "gelu", "residual_position": "post_activation"},
}


@pytest.mark.cover(46, keep=["phases-1-silu and residual-bf16", "groups on row tiles, even-1-silu and residual-bf16"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("problem", "algorithm", "more"), CASES.values(), ids=CASES)
def test_statistics_of_y(problem, algorithm, more, lnc, epilogue, dtype):
    precision = {"precision": more["precision"]} if "precision" in more else {}
    config = tuple((key, value) for key, value in more.items() if key != "precision") or None
    dtype = problem.dtype if precision or problem.dtype.startswith("fp8") or dict(config or ()).get("moved") else dtype
    try:
        check(problem.replace(dtype=dtype), lnc, algorithm=algorithm, config=config, **EPILOGUES[epilogue], **precision)
    except (UnsupportedError, KernelAssertionError) as refused:  # residuals and fp32 need room; columns take none
        room = re.search(f"SBUF|{algorithm}|columns take no residual", str(refused))
        if not room or (dtype != "fp32" and "residual" not in epilogue):
            raise


@pytest.mark.parametrize("algorithm", TAKE_STATISTICS)
def test_a_thousand_standard_deviations(algorithm):
    """Statistics are of y before it is rounded: of bf16, which steps by 4 standard deviations there, none are."""
    truth, stats, y, bounds = check(image(K=32, H=40, W=50), mean=1000.0, algorithm=algorithm)
    norm = nkiconv.norm_scale_shift(stats, norm="instance")
    _, mean, variance = np.moveaxis(channel_stats_ref(truth), -1, 0)
    bound = bounds[1] + moments_bound(mean, variance + bounds[1], 2)[1]
    assert np.all(bound < variance / 10)
    assert np.all(np.abs(norm.variance - variance) <= bound)
    rounded = channel_stats_ref(y)[..., 2]
    assert np.all(np.abs(rounded - variance) > bound)


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
CHANNEL = {"return_stats": "channel"}


@pytest.mark.parametrize(("function", "x", "w", "more", "message"), [
    (nkiconv.conv2d, X, W, CHANNEL | {"algorithm": GEMM, "config": (("loop", 1),)},
     "config loop=1: return_stats='channel' adds"),
    (nkiconv.conv2d, X, W, CHANNEL | {"algorithm": "activation_stationary"},
     "return_stats='channel': activation_stationary has .*use implicit_gemm"),
    (nkiconv.conv2d, WIDE, W[:20, :1], CHANNEL | {"algorithm": "stacked", "groups": 20},
     "return_stats='channel': stacked of depthwise problems has .*use implicit_gemm"),
    (nkiconv.conv_transpose2d, X, W[:, :4], CHANNEL | {"algorithm": BLOCKS, "stride": 2, "config": (("segments", 2),)},
     r"segments=2, return_stats='channel': .* use segments=1"),
    (nkiconv.plan, ConvProblem(N=1, C=4, W=9, S=3, groups=4), 2, CHANNEL | {"operation": "depthwise_conv1d"},
     "return_stats='channel': depthwise_conv1d has none"),
])  # fmt: skip
def test_what_else_is_refused(function, x, w, more, message):
    with pytest.raises(UnsupportedError, match=message):
        function(x, w, **more)


@st.composite
def chains(draw):
    """(problem, what `check` is told)."""
    problem = draw(images_and_volumes([1, 1, 1, 2, 3], [1, 2, 5, 16, 43, 66, 130], transposed=True))
    forms, activations = (st.sampled_from([None, *one]) for one in (("channel", "image"), ACTIVATIONS))
    prologue = {"x_scale": draw(forms), "x_shift": draw(forms), "x_activation": draw(activations)}
    found = {"before": prologue, "activation": draw(activations), "bias": draw(st.booleans())}
    position = draw(st.sampled_from([None, *RESIDUAL_POSITIONS]))
    found |= {"residual": True, "residual_position": position} if position else {}
    return problem, found | {"lnc": draw(st.integers(1, 2)), "seed": draw(st.integers(0, 99)), "algorithm": None}


@draws(30, 500)
@hypothesis.given(chains())
def test_any_chain(chain):
    problem, asked = chain
    check(problem, **asked)
