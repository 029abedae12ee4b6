"""Pairs of planes of y by four products instead of six: exact on integers, within their bound elsewhere."""

import itertools

import numpy as np
import pytest
from conv_calls import bounded, check_exact, config_of, normals, volume
from depthwise import same_bits
from tolerances import assert_within_limit

import nkiconv
from nkiconv.errors import NkiconvError, UnsupportedError
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.request import Asked, Request
from nkiconv.planner.timing import trace
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref
from nkiconv.simulator.timing import Rates

WINOGRAD = {"precision": "winograd"}
CHANNELS = (("planes", "channels"),)
#: Settings that do not depend on shapes, for results to the bit.
FIXED = {"algorithm": "implicit_gemm", "config": (("fold", "none"),)}
#: Axes as in `volumes.VOLUMES`: C, K, groups, planes, rows, columns.
PLANES, ROWS, COLUMNS = (6, 3, 1, 1, 1, 0, 0), (6, 3, 1, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1, 1)
VOLUMES = {
    "pairs": (5, 7, 1, PLANES, ROWS, COLUMNS),
    "an odd plane": (5, 7, 1, (5, 3, 1, 1, 1, 1, 1), ROWS, COLUMNS),
    "one plane": (5, 7, 1, (3, 3, 1, 1, 1, 0, 0), ROWS, COLUMNS),
    "causal": (20, 24, 1, (7, 3, 1, 1, 1, 2, 0), ROWS, COLUMNS),
    "cropped": (4, 3, 1, (8, 3, 1, 1, 1, -2, -1), (7, 3, 1, 1, 1, -1, 1), (9, 3, 1, 1, 1, 1, -2)),
    "far outside": (2, 3, 1, (2, 3, 1, 1, 1, 5, 6), (3, 2, 1, 1, 1, 3, 1), (4, 2, 1, 1, 1, 1, 4)),
    "planes only": (130, 9, 1, (6, 3, 1, 1, 1, 1, 1), (5, 1, 1, 1, 1, 0, 0), (4, 1, 1, 1, 1, 0, 0)),
    "one channel": (1, 3, 1, PLANES, ROWS, COLUMNS),
    "strides and dilations": (6, 5, 1, PLANES, (9, 3, 2, 2, 1, 2, 1), (8, 2, 3, 1, 1, 1, 0)),
    "between zeros": (5, 6, 1, PLANES, (4, 3, 1, 1, 2, 1, 1), (5, 4, 1, 1, 2, 2, 2)),
    "large filters": (3, 4, 1, PLANES, (8, 7, 1, 1, 1, 3, 3), (9, 7, 1, 1, 1, 3, 3)),
    "folded": (192, 192, 1, PLANES, ROWS, (20, 3, 1, 1, 1, 1, 1)),
    "two K tiles to fold": (65, 40, 1, PLANES, ROWS, (20, 3, 1, 1, 1, 1, 1)),
    "several chunks": (257, 130, 1, (5, 3, 1, 1, 1, 1, 0), (4, 2, 1, 1, 1, 0, 1), (5, 2, 1, 1, 1, 1, 0)),
    "wide": (4, 5, 1, PLANES, (3, 3, 1, 1, 1, 1, 1), (1030, 3, 1, 1, 1, 1, 1)),
}
LAYER = ConvProblem(N=1, C=40, D=6, H=7, W=9, K=30, T=3, R=3, S=3, padding=((1, 1), (1, 1), (1, 1)), dtype="bf16")


EXACT = {
    **{name: (name, {}) for name in VOLUMES},
    **{f"{name}, rows of taps as channels": (name, {"config": CHANNELS})
       for name in ("pairs", "cropped", "far outside", "causal", "folded", "several chunks", "wide")},
    **{f"{name}, channels last": (name, {"last": True})
       for name in ("an odd plane", "folded", "strides and dilations")},
    "three volumes": ("an odd plane", {"dtype": "fp16", "N": 3}),
    "three volumes, rows of taps as channels": ("an odd plane", {"dtype": "fp16", "N": 3, "config": CHANNELS}),
    "short loads": ("folded", {"config": (("x_bytes", 6000),)}),
    "channels shared": ("folded", {"config": (("x_bytes", 40_000), ("shard", "channels"))}),
    "not folded": ("folded", {"config": (("fold", "none"),)}),
    "two folded K tiles": ("two K tiles to fold", {"config": (("fold", "inputs"),)}),
    "folded twice": ("folded", {"config": (("fold", "both"), ("warmup", 0))}),
    "K tile by K tile": ("folded", {"config": (("order", "chunks"), ("x_bytes", 2048))}),
}  # fmt: skip


@pytest.mark.cover(10, keep=["far outside", "one plane", "wide"])
@pytest.mark.parametrize(("of", "more"), EXACT.values(), ids=EXACT)
def test_exact_on_integers(of, more):
    config = config_of("implicit_gemm", **dict(more.get("config", ())))
    problem = volume(VOLUMES[of], more.get("dtype", "bf16"), more.get("N", 1), more.get("last", False))
    check_exact(problem, config=config, **WINOGRAD)


def drawn(problem, seed=1, scale=1.0):
    return normals(np.random.default_rng(seed), problem, scale)


@pytest.mark.cover(4)
@pytest.mark.parametrize("scale", [1.0, 2.0**-16, 2.0**-30, 3000.0])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_within_the_bound(dtype, scale):
    problem = LAYER.replace(dtype=dtype)
    x, w = drawn(problem, scale=scale)
    found = [nkiconv.conv3d(x, w, padding=1, out_dtype=np.float32, lnc=lnc, **FIXED, **WINOGRAD) for lnc in (1, 2)]
    assert_within_limit(found[0], *bounded(x, w, problem, "fp32", **WINOGRAD)[1:])
    assert same_bits(*found)


@pytest.mark.cover(4)
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("planes", [5, 6])
def test_epilogues_are_within_the_bound(planes, activation, position):
    problem = LAYER.replace(D=planes)
    x, w = drawn(problem)
    rng = np.random.default_rng(3)
    after = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (
        ("bias", (30,)), ("residual", problem.output_shape))}  # fmt: skip
    after |= {"activation": activation, "residual_position": position}
    y = nkiconv.conv3d(x, w, padding=1, **after, **WINOGRAD)
    assert_within_limit(y, *bounded(x, w, problem, "bf16", **after, **WINOGRAD)[1:])


@pytest.mark.parametrize(("dtype", "most"), [("bf16", 2.2e-4), ("fp16", 4.5e-4)])
def test_before_the_last_rounding_it_is_as_near_as_the_page_says(dtype, most):
    """bf16's own rounding of y is 1.66e-3 on this scale."""
    problem = LAYER.replace(C=150, dtype=dtype)
    x, w = drawn(problem)
    y = nkiconv.conv3d(x, w, padding=1, out_dtype=np.float32, **WINOGRAD)
    truth = conv_ref(x, w, problem)
    assert most / 2 < np.std(y - truth) / np.std(truth) < most


def test_beyond_fp16_planes_that_see_it_and_no_others_are_not_finite():
    x, w = drawn(LAYER)
    x[0, 3, 4, 2, 5] = 70_000.0
    y = nkiconv.conv3d(x, w, padding=1, **WINOGRAD)
    lost = ~np.isfinite(y.astype(np.float32)).all((0, 1, 3, 4))
    assert lost.tolist() == [False, False, False, True, True, True]
    assert np.isfinite(nkiconv.conv3d(x, w, padding=1).astype(np.float32)).all()


def test_k_tiles_of_pairs_of_planes_are_the_whole_to_the_bit():
    problem = LAYER.replace(D=8, padding=((2, 0), (1, 1), (1, 1)))
    x, w = drawn(problem)
    whole = nkiconv.conv3d(x, w, padding=problem.padding, **FIXED, **WINOGRAD)
    assert_within_limit(whole, *bounded(x, w, problem, "bf16", **WINOGRAD)[1:])
    frames, found = np.zeros_like(x[:, :, :2]), []
    for first in (0, 4):
        y, frames = nkiconv.conv3d(
            x[:, :, first : first + 4], w, padding=((0, 0), (1, 1), (1, 1)),
            initial_frames=frames, return_final_frames=True, **FIXED, **WINOGRAD,
        )  # fmt: skip
        found.append(y)
    assert same_bits(np.concatenate(found, 2), whole)


def test_frames_that_do_not_fit_rotate():
    """Loads that wait for a tile keep their order; of loads that wait for room later ones would overtake others."""
    problem = LAYER.replace(C=4, D=3, H=100, W=640, K=3)
    check_exact(problem, config=config_of("implicit_gemm", **dict(CHANNELS)), **WINOGRAD)
    request = Request(problem=problem, asked=Asked(precision="winograd"))
    traced = trace(request, Candidate("implicit_gemm", CHANNELS), Rates())
    loads = [one.writes[0].info for one in traced.execution.programs[0].instructions if one.op == "dma_copy"]
    frames = [info.id for info in loads if info.shape[-1] == problem.W and len(info.shape) == 4]
    turns = [tile for tile, _ in itertools.groupby(frames)]
    assert 1 < len(set(turns)) < len(turns)
    assert turns == list(itertools.islice(itertools.cycle(dict.fromkeys(turns)), len(turns)))


PAIRS_REFUSED = [
    (LAYER.replace(dtype="fp32"), {}, "x and w are fp32, must be bf16 or fp16"),
    (LAYER.replace(dtype="fp8_e4m3"), {}, "x and w are fp8_e4m3, must be bf16 or fp16"),
    (LAYER.replace(T=2), {}, "T=2: must be 3"),
    (LAYER.replace(stride=(2, 1, 1)), {}, r"of planes=\(2, 1, 1\): must be 1"),
    (LAYER.replace(rhs_dilation=(2, 1, 1)), {}, r"of planes=\(1, 2, 1\): must be 1"),
    (LAYER.replace(lhs_dilation=(2, 1, 1)), {}, r"of planes=\(1, 1, 2\): must be 1"),
    (LAYER.replace(groups=2), {}, "feature_group_count=2: must be 1"),
    (LAYER, {"strict_nonfinite": True}, "which strict_nonfinite=True forbids"),
    (LAYER, {"packed": True}, "filter_ref is packed; pass it plain"),
    (ConvProblem(N=1, C=4, H=5, W=6, K=3, R=3, S=3, dtype="bf16"), {}, "images have no planes of taps"),
]


@pytest.mark.parametrize("index", range(len(PAIRS_REFUSED)))
def test_what_is_not_taken_is_refused_by_name(index):
    problem, asked, words = PAIRS_REFUSED[index]
    with pytest.raises(UnsupportedError, match=f"precision='?winograd'?: .*{words}"):
        nkiconv.plan(problem, precision="winograd", **asked)


@pytest.mark.parametrize(("how", "words"), [
    ({}, "transposed convolutions are not taken"),
    ({"algorithm": "activation_stationary"}, "activation_stationary takes others; use implicit_gemm"),
    ({"stride": (2, 1, 1)}, "must be 1; use None"),
    ({"algorithm": "implicit_gemm", "config": (("moved", 1),)}, "moved=1"),
    ({"algorithm": "implicit_gemm", "config": CHANNELS, "stride": (1, 2, 1)}, "config planes=channels"),
])  # fmt: skip
def test_refusals_of_calls(how, words):
    (x, w), back = drawn(LAYER), "transposed" in words
    with pytest.raises(NkiconvError, match=words):
        (nkiconv.conv_transpose3d if back else nkiconv.conv3d)(x, w.swapaxes(0, 1) if back else w, **how, **WINOGRAD)
