"""What conv2d_implicit_gemm and each algorithm refuse, by name: the message has value, rule and what is accepted."""

import ml_dtypes
import numpy as np
import pytest
from conv_calls import EDGE, check_refused, integers, planned, run, trace
from conv_rows import (
    BLOCKS,
    FOLDED,
    GEMM,
    GROUPS,
    IMAGES,
    K_PACKING,
    LINE,
    M_TILES,
    NEVER_DISJOINT,
    PIXELS,
    PLAIN,
    depthwise,
)
from conv_rows import SAME as SIDES

import nkiconv
from nkiconv.kernels.conv import conv2d_implicit_gemm
from nkiconv.problem import ConvProblem
from nkiconv.schedules import long_kernels
from nkiconv.schedules.options import Prologue

PROBLEM = ConvProblem(N=2, C=6, H=8, W=9, K=4, R=3, S=2, groups=2, dtype="fp32")
X, W = integers(np.random.default_rng(0), PROBLEM)
Y = np.zeros(PROBLEM.output_shape, np.float32)
FP8 = ml_dtypes.float8_e4m3

# arguments, message; a wrong argument alone: `test_rules_applied`
REFUSED = [
    ({"img_ref": X[0]}, r"img_ref.shape=\(6, 8, 9\): must have 4 axes, \[N, C, H, W\] before in_perm"),
    ({"img_ref": X[:, :4]}, "feature_group_count=2: must divide|has 3 input channels per group, img_ref has C=4 in"),
    ({"filter_ref": W[0]}, r"filter_ref.shape=\(3, 3, 2\): must have 4 axes, .* or be packed as pack_filter does it"),
    ({"filter_ref": W[:3]}, "feature_group_count=2: must divide C=6 and K=3; use 1, 3"),
    ({"padding": ((-9, 0), (0, 0))}, r"P=-3: output height must be at least 1 \(H=8 \+ pad -9\+0, window 3"),
    ({"padding": ((0, 0), (0, -8))}, r"Q=0: output width must be at least 1 \(W=9 \+ pad 0\+-8, window 2"),
    ({"config": (("algorithm", "implicit_gemm"), "x_bytes")}, "entry 0 is 'x_bytes', pass a pair"),
    ({"residual": Y, "out_perm": (0, 2, 3, 1)}, r"residual.shape=\(2, 4, 6, 8\): must be y's, as stored, \(2, 6, 8, 4"),
    ({"img_ref": X.astype(FP8), "filter_ref": W.astype(ml_dtypes.float8_e4m3fn)},
     "filter_ref.dtype=float8_e4m3fn: accepted are .*NKI's float8_e4m3 is another format"),
    ({"img_ref": X.astype(FP8), "filter_ref": W.astype(ml_dtypes.bfloat16)},
     "filter_ref.dtype=bfloat16: must be float8_e4m3 or float8_e5m2 exactly when img_ref's is"),
    ({"img_ref": X.astype(FP8), "filter_ref": W.astype(FP8), "residual": Y.astype(FP8)},
     "residual.dtype=float8_e4m3: accepted are bfloat16, float16, float32"),
    ({"img_ref": X.astype(FP8), "filter_ref": W.astype(FP8), "out_dtype": FP8}, "out_dtype=.*accepted are None"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[row[1][:40] for row in REFUSED])
def test_arguments(arguments, message):
    given = {"img_ref": X, "filter_ref": W} | arguments
    with pytest.raises(AssertionError, match=message) as caught:
        run(given.pop("img_ref"), given.pop("filter_ref"), PROBLEM, 2, **given)
    assert isinstance(caught.value, ValueError) or nkiconv._nki.CHOICE.provider == "aws"


def test_arguments_in_the_order_of_the_signature():
    padding = ((1, 0), (0, 2))
    y = nkiconv.simulate(conv2d_implicit_gemm[2])(X, W, None, None, padding, (2, 1), (1, 2), (2, 1), 2, 1)
    named = {"padding": padding, "stride": (2, 1), "rhs_dilation": (1, 2), "lhs_dilation": (2, 1)}
    np.testing.assert_array_equal(y, run(X, W, PROBLEM, 2, **named))


NHWC = M_TILES.replace(layout="NHWC")
STRICT = {"strict_nonfinite": True}
DEPTHWISE, STACKED = IMAGES["same"], ConvProblem(N=1, C=3, H=40, W=40, K=16, R=5, S=5, padding=((2, 2), (2, 2)))
FEW = ConvProblem(N=1, C=200, H=40, W=40, K=3, R=3, S=3, padding=SIDES)
FP8_LAYER = ConvProblem(N=2, C=256, H=9, W=17, K=140, R=3, S=3, padding=SIDES, dtype="fp8_e4m3")
PAIRS = {"product": "fp8_pairs"}
FEW_PLANES = ConvProblem(N=1, C=20, D=4, H=6, W=8, K=4, T=3, R=3, S=3, padding=((1, 1),) * 3)
#: By algorithm: problem, settings, what else is asked for, message.
UNSUPPORTED = {
    GEMM: [
        (M_TILES.replace(C=256), {"fold": "inputs"}, {}, "config fold=inputs: needs C=256 with 1 to 64 channels"),
        (M_TILES.replace(S=1), {"fold": "inputs"}, {}, "several columns of taps"),
        (M_TILES.replace(C=85, S=3), {"fold": "inputs"}, {}, "or 1 to 84 if S is 3 or above 4"),
        (FOLDED["two K tiles"].replace(dtype="fp8_e4m3"), PAIRS | {"fold": "inputs"}, {}, "have one folded K tile"),
        (M_TILES.replace(lhs_dilation=(1, 2)), {"fold": "both"}, {}, "no lhs_dilation of columns"),
        (M_TILES.replace(R=1), {"fold": "outputs"}, {}, "that share rows of x"),
        (M_TILES, {"fold": "inputs"}, STRICT, "config fold=inputs: multiplies by zeros, which strict_nonfinite"),
        (NHWC, {"fold": "both"}, {}, "config fold=both: needs .*not channels side by side"),
        (EDGE["groups"], {"moved": 1}, {}, "moved=1: DMA transposes plain filters of 16 bits and one group only"),
        (M_TILES.replace(dtype="fp32"), {"moved": 1}, {}, "moved=1: DMA transposes plain filters of 16 bits"),
        (LINE, {"order": "chunks"}, {}, "order=chunks, C=20, K=150: needs M tiles with the same several K tiles"),
        (FOLDED["both"], {"order": "chunks", "fold": "both"}, {}, "order=chunks, C=192, K=160: needs M tiles"),
        (NHWC, {"order": "chunks"}, {}, "not channels side by side; use 'banks'"),
        (M_TILES.replace(H=200, W=40), {"order": "chunks", "fold": "none"}, {},
         r"config order=chunks: sums of an output tile and filters take \d+ banks of PSUM, there are 8; use 'banks'"),
        (M_TILES.replace(dtype="fp32"), {"loop": 1}, {"precision": "fp16x3"},
         "config loop=1: product=fp16x3 prepares x of an output tile .*; use 0"),
        (NHWC, {"loop": 1}, {}, "config loop=1: needs rows of x and y in HBM, not channels side by side; use 0"),
        (FP8_LAYER, PAIRS | {"loop": 1}, {}, "config loop=1: product=fp8"),
        (M_TILES, PAIRS, {}, "product=fp8_pairs: takes float8_e4m3 and float8_e5m2; use 'single'"),
        (FP8_LAYER, PAIRS, STRICT, "product=fp8_pairs: multiplies stored zeros"),
        (FP8_LAYER.replace(lhs_dilation=(2, 1)), PAIRS, {}, r"product=fp8_pairs: takes lhs_dilation=\(1, 1\)"),
        (FP8_LAYER.replace(groups=2), PAIRS, {}, "product=fp8_pairs: needs one group and several channels, not C=256"),
        (FP8_LAYER.replace(C=1), PAIRS, {}, "product=fp8_pairs: needs one group and several channels, not C=1"),
        (FP8_LAYER.replace(C=64, K=40), PAIRS | {"fold": "outputs"}, {},
         "config fold=outputs, product=fp8_pairs: .*use 'none' or 'inputs'"),
        (FP8_LAYER.replace(H=191, W=185, stride=(5, 5)), PAIRS | {"x_bytes": 72_000}, {},
         "W=185, R=3, S=3 lie .* apart, at most 32767 are possible; use 'single', or a smaller x_bytes"),
        (FP8_LAYER.replace(C=128, K=130, H=31, W=31, R=31, S=31), PAIRS, {}, "R=31, S=31 lie .* apart")],
    PIXELS: [
        (ConvProblem(N=2, C=9, D=5, H=5, W=5, S=1, groups=9, padding=((0, -1), (0, 0), (0, 0)), layout="NDHWC"), {}, {},
         "^padding of planes, N=2: activation_stationary takes planes evenly apart in one tensor"),
        (M_TILES, {}, {}, "out_perm: neighbouring output channels are 99 elements apart in y"),
        (NHWC.replace(C=300, K=300, groups=2), {}, {}, "feature_group_count=2, C=300, K=300: .* takes 1, or depthwise"),
        (NHWC.replace(dtype="fp8_e4m3"), {}, {}, "img_ref.dtype=float8: activation_stationary takes 16 and 32 bits"),
        (NHWC.replace(dtype="fp32"), {}, {"precision": "fp16x3"},
         "precision=fp16x3: activation_stationary takes others; use implicit_gemm"),
        (NHWC, {}, STRICT, "strict_nonfinite=True: activation_stationary multiplies filters around x"),
        (NHWC, {"side": 2}, {}, "config side=2: must divide Q=11; use 1"),
        (NHWC, {"fold": 2}, {}, "config fold=2 shifts=1 rest=0, C=300, K=290, P=9, S=2: fold must divide P, with fold"),
        (NHWC, {"shifts": 3, "fold": 1}, {}, "config fold=1 shifts=3 rest=0, C=300, .* shifts <= S"),
        (ConvProblem(N=2, C=30, H=12, W=70, K=20, R=1, S=1, layout="NHWC"), {"fold": 2}, STRICT,
         "strict_nonfinite=True, config fold=2 shifts=1 rest=0: x outside"),
        (ConvProblem(N=2, C=30, H=12, W=70, K=20, R=1, S=1, layout="NHWC"), {"rest": 9}, STRICT,
         "strict_nonfinite=True, config fold=1 shifts=1 rest=9: x outside"),
        (NHWC.replace(C=40), {"rest": 40}, {}, "rest=40, C=40, .* rest < C"),
        (NHWC, {"rest": 44}, {"prologue": Prologue(activation="silu")}, "rest=44, C=300: copies of x have no prologue"),
        (NHWC.replace(W=120_100, rhs_dilation=(1, 60_000)), {}, {}, "activation_stationary keeps padded windows"),
        (ConvProblem(N=2, C=3, H=24, W=32, K=140, R=8, S=8, stride=(8, 8), layout="NHWC"), {},
         {"prologue": Prologue(activation="silu")}, "x_activation: windows that do not overlap take none; use implic"),
        (DEPTHWISE, {}, STRICT, "strict_nonfinite=True: activation_stationary multiplies"),
        (DEPTHWISE.replace(K=12), {}, {}, "C=6, K=12: activation_stationary takes 1, or depthwise problems"),
        (DEPTHWISE.replace(lhs_dilation=(1, 2)), {"columns": 5}, {}, "columns=5: rows must be a multiple"),
        (DEPTHWISE.replace(lhs_dilation=(3, 1)), {"rows": 4}, {}, "rows must be a multiple of 3, for stride "),
        (DEPTHWISE.replace(W=200, S=131), {}, {}, "S=131, rhs_dilation=1, stride=1: activation_stationary takes"),
        (DEPTHWISE, {"rows": 64, "columns": 9}, {}, "config rows=64, columns=9, S=7: [0-9]+ elements of x"),
        (DEPTHWISE, {"below": 32, "images": 5}, {}, "beside=1, below=32, images=5: their product"),
        (DEPTHWISE, {"beside": 2}, {}, r"config beside=2, .* planes \(NCHW\) take beside=1"),
        (DEPTHWISE, {"channels": 200}, {}, "channels=200: .* at most 128 channels"),
        (DEPTHWISE, {"columns": 5, "rows": 2}, {}, "columns=5, S=7: windows of NCHW do not"),
        (IMAGES["padded beyond the filter"], {}, {}, "padding=[0-9]+ in front of a row"),
        (IMAGES["many columns"].replace(padding=((1, 1), (4, 600))), {"columns": 40, "rows": 1}, {},
         "config rows=1, columns=40, .* [0-9]+ sums a bank"),
        (IMAGES["stride"], {"rows": 3}, {}, "config rows=3, .* must be a multiple of [0-9]+, for stride"),
        (depthwise(256, N=64, H=56, W=56, R=7, S=7, padding=((3, 3), (3, 3)), layout="NHWC"),
         {"images": 16, "channels": 256, "below": 8}, {},
         "C=256, K=256, .* keeps blocks, matrices and results in SBUF, .*; use fewer images and channels of a block"),
        *[(IMAGES[why], {}, {}, "use stacked") for why in NEVER_DISJOINT],
        # a Conformer's gradient: the least blocks are 6 million, of which none is listed
        (depthwise(512, N=8, H=1, W=1500, R=1, S=31, padding=((0, 0), (15, 15)), layout="NHWC"), {}, {},
         "instructions on a core")],
    K_PACKING: [
        (FEW_PLANES.replace(lhs_dilation=(3, 1, 1)), {}, {}, "lhs_dilation=3 of planes: stacked takes 1; use weight"),
        (PLAIN, {"beside": 2}, {}, "beside goes with rows, shifts and outputs"),
        (PLAIN, {"rows": 2, "shifts": 1}, {}, "given together or not at all"),
        (PLAIN, {"rows": 3, "shifts": 1, "outputs": 2}, {}, "divide outputs"),
        (PLAIN, {"rows": 4, "shifts": 1, "outputs": 2, "apart": 4}, {}, r"or apart=4, where it is given"),
        (PLAIN, {"rows": 16, "shifts": 1, "outputs": 16}, {}, "must be at most 128"),
        (PLAIN, {"rows": 1, "shifts": 4, "outputs": 1}, {}, "at most 3 shifts"),
        (PLAIN, {"rows": 3, "shifts": 1, "outputs": 2, "apart": 2}, {}, "rows must be a multiple of it, or hold"),
        (PLAIN, {"rows": 1, "shifts": 1, "outputs": 1, "rest": 16}, {}, "config rest=16, C=16: must be less"),
        (PLAIN, {"rest": 1}, {"prologue": Prologue(activation="silu")}, "config rest=1: a second X has no prologue"),
        (PLAIN, {"images": 1}, {}, "stacked has no setting images"),
        (STACKED, {}, STRICT, "strict_nonfinite=True: stacked multiplies"),
        (STACKED.replace(lhs_dilation=(2, 1)), {}, {}, r"lhs_dilation=\(2, 1\): stacked takes"),
        (STACKED.replace(groups=2, C=6), {}, {}, "feature_group_count=2, C=6, K=16: stacked takes one group"),
        (STACKED.replace(C=129), {}, {}, "C=129: stacked takes at most 128"),
        (STACKED.replace(C=128, K=9000, R=31), {}, {}, "S=5, 1 planes: stacked keeps stacked rows and filters"),
        (STACKED.replace(dtype="fp32"), {}, {"precision": "fp16x3"}, "precision=fp16x3: stacked takes others"),
        (DEPTHWISE, {}, STRICT, "strict_nonfinite=True: stacked multiplies"),
        (DEPTHWISE.replace(H=129), {}, {}, "H=129, P=129: stacked takes at most 128 rows of a depthwise"),
        (DEPTHWISE.replace(K=12), {}, {}, "C=6, K=12: stacked takes one group, or depthwise problems"),
        (DEPTHWISE.replace(lhs_dilation=(1, 2)), {}, {}, r"lhs_dilation=\(1, 2\): stacked takes"),
        (DEPTHWISE, {"rows": 2}, {}, "stacked of depthwise problems has no setting rows"),
        (DEPTHWISE.replace(N=4000), {}, {}, "4000 planes: stacked of depthwise problems keeps rows of all"),
        (DEPTHWISE, {"channels": 100}, {}, "config channels=100: at most 3 of 14 rows")],
    BLOCKS: [
        (FEW, {}, STRICT, "strict_nonfinite=True: weight_stationary multiplies"),
        (FEW.replace(K=129), {}, {}, "K=129: weight_stationary takes at most 128"),
        (FEW.replace(W=200_000), {}, {}, "W=200000, R=3, S=3, .*: weight_stationary of few outputs keeps rows of x"),
        (FEW.replace(dtype="fp32"), {}, {"precision": "fp16x3"}, "precision=fp16x3: weight_stationary takes others"),
        (FEW, {"outputs": 2}, {}, "outputs and taps are given together or not at all"),
        (FEW, {"outputs": 11, "taps": 3}, {}, "config outputs=11 taps=3, K=3, S=3: at most 3 taps, each with"),
        (FEW, {"lanes": 2}, {}, "config lanes=2, N=1, C=200: weight_stationary puts at most N images on row tiles"),
        (ConvProblem(N=1, C=17, H=1, W=1, K=1, R=1, S=1, stride=(2, 1), padding=((1, 0), (0, 0)), lhs_dilation=(2, 1)),
         {"lanes": 1}, {}, "rows of x that y sees"),
        (FEW.replace(N=2, layout="NHWC"), {"depth": 2}, {}, "config depth=2, neighbouring channels of x"),
        (FEW_PLANES, {"depth": 2}, {"prologue": Prologue(activation="silu")}, "config depth=2, x_scale"),
        (FEW_PLANES, {"depth": 2}, {"statistics": True}, "config depth=2, return_stats='channel': planes of y share"),
        (FEW_PLANES.replace(lhs_dilation=(129, 1, 1)), {"outputs": 1, "taps": 1}, {},
         "lhs_dilation=129 of planes: weight_stationary takes at most 128"),
        (GROUPS["depthwise"], {}, STRICT, "strict_nonfinite=True: weight_stationary multiplies"),
        (GROUPS["depthwise"].replace(lhs_dilation=(1, 3)), {}, {}, r"lhs_dilation=\(1, 1, 3\): .* at most 4 phases"),
        (GROUPS["depthwise"].replace(C=130, K=96, groups=2), {}, {}, "C / groups=65, K / groups=48"),
        (GROUPS["depthwise"].replace(R=31, S=31, padding=((15, 15), (15, 15))), {}, {}, "R=31, S=31"),
        (GROUPS["depthwise"].replace(W=40_000), {}, {}, "W=40000, .*: weight_stationary of groups keeps filters"),
        (GROUPS["depthwise"], {"rows": 32}, {}, "config rows=32 height=0 width=0: given together"),
        (GROUPS["multiplier 2"].replace(K=1600), {"rows": 32, "height": 2, "width": 2}, {},
         "height=2 width=2: a group takes 1 rows")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "row"), [(name, row) for name, rows in UNSUPPORTED.items() for row in range(len(rows))]
)
def test_algorithms(algorithm, row):
    problem, settings, changes, message = UNSUPPORTED[algorithm][row]
    check_refused(problem, algorithm, message, settings, **changes)


def test_copies_of_too_many_pixels(change):
    change(long_kernels, "INSTRUCTIONS_MAX", 5_000)
    problem = ConvProblem(N=800, C=20, H=60, W=60, K=3, R=3, S=3, layout="NHWC")
    message = "C=20, K=3: weight_stationary needs about [0-9]+ instructions on a core, the compiler takes 5000; split"
    check_refused(problem, BLOCKS, message, {"lanes": 1})


# why, and a problem that once was accepted and then needed more than SBUF
MUCH_OF_SBUF = [
    ("halo of one output", ConvProblem(N=1, C=1, K=1, W=40_010, S=3, rhs_dilation=(1, 20_000), dtype="fp32")),
    ("filters of three chunks", ConvProblem(N=3, C=281, K=300, H=12, W=12, R=10, S=10, dtype="fp32")),
    ("filters of many chunks", ConvProblem(N=2, C=2200, K=2, groups=2, H=12, W=13, R=7, S=7)),
]


@pytest.mark.simulator_only
@pytest.mark.parametrize("problem", [row[1] for row in MUCH_OF_SBUF], ids=[row[0] for row in MUCH_OF_SBUF])
def test_what_needs_much_of_sbuf_runs(problem):
    assert len(trace(problem).instructions) > 0


def test_filters_of_many_k_tiles_fit():
    """K tiles whose filters are loaded together take the room of one."""
    problem = ConvProblem(N=2, C=2048, H=7, W=7, K=16, R=7, S=7, padding=((3, 3), (3, 3)))
    assert planned(problem, BLOCKS)[1] == ""
