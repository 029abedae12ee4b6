"""Every argument that conv2d_implicit_gemm refuses, by name: no work is done, and the message says what is accepted."""

import ml_dtypes
import numpy as np
import pytest
from conv_calls import geometry_of, integers, run, trace

import nkiconv
from nkiconv.kernels.conv import conv2d_implicit_gemm
from nkiconv.problem import ConvProblem
from nkiconv.schedules.geometry import instructions_unsupported

PROBLEM = ConvProblem(N=2, C=6, H=8, W=9, K=4, R=3, S=2, groups=2, dtype="fp32")
X, W = integers(np.random.default_rng(0), PROBLEM)
Y = np.zeros(PROBLEM.output_shape, np.float32)
FP8 = ml_dtypes.float8_e4m3

OWN = ("algorithm", "implicit_gemm")

# arguments, message; a wrong argument alone: `test_rules_applied`
REFUSED = [
    ({"img_ref": X[0]}, r"img_ref.shape=\(6, 8, 9\): must have 4 axes, \[N, C, H, W\] before in_perm"),
    ({"img_ref": X[:, :4]}, "feature_group_count=2: must divide|has 3 input channels per group, img_ref has C=4 in"),
    ({"filter_ref": W[0]}, r"filter_ref.shape=\(3, 3, 2\): must have 4 axes, .* or be packed as pack_filter does it"),
    ({"filter_ref": W[:3]}, "feature_group_count=2: must divide C=6 and K=3; use 1, 3"),
    ({"padding": ((-9, 0), (0, 0))}, r"P=-3: output height must be at least 1 \(H=8 \+ pad -9\+0, window 3"),
    ({"padding": ((0, 0), (0, -8))}, r"Q=0: output width must be at least 1 \(W=9 \+ pad 0\+-8, window 2"),
    ({"rhs_dilation": (1, 20)}, "Q=-11: output width .*window 21"),
    ({"feature_group_count": 1}, "has 3 input channels per group, img_ref has C=6 in feature_group_count=1"),
    ({"config": (OWN, ("tiles", 3))}, "implicit_gemm has no setting tiles; it has"),
    ({"config": (OWN, "x_bytes")}, "entry 0 is 'x_bytes', pass a pair"),
    ({"config": (OWN, ("x_bytes", 0))}, "config x_bytes=0: must be an int from 256"),
    ({"config": (OWN, ("channels", 64))}, "config channels: was removed from implicit_gemm; leave it out"),
    ({"config": (OWN, ("warmup", True))}, "config warmup=True: must be an int from 0 to 256"),
    ({"config": (OWN, ("shard", "rows"))}, "config shard=rows: must be one of"),
    ({"config": (OWN, ("warmup", 1), ("warmup", 1))}, "warmup stands there twice"),
    ({"config": (("algorithm", "split"),)}, "split"),
    ({"config": (("algorithm", "stacked"),)}, "feature_group_count=2, C=6, K=4: stacked takes one group, or depthwise"),
    ({"config": (("algorithm", "toeplitz_rows"),)}, "toeplitz_rows': was removed, stacked takes its problems"),
    ({"config": (OWN, ("product", "fp8_pairs"))}, "product=fp8_pairs: takes float8"),
    ({"residual": Y, "out_perm": (0, 2, 3, 1)}, r"residual.shape=\(2, 4, 6, 8\): must be y's, as stored, \(2, 6, 8, 4"),
    ({"in_perm": (0, 2, 1, 3)}, "img_ref has C=8 in feature_group_count=2"),
    ({"img_ref": X.astype(FP8), "filter_ref": W.astype(ml_dtypes.float8_e4m3fn)},
     "filter_ref.dtype=float8_e4m3fn: accepted are .*NKI's float8_e4m3 is another format"),
    ({"img_ref": X.astype(FP8), "filter_ref": W.astype(ml_dtypes.bfloat16)},
     "filter_ref.dtype=bfloat16: must be float8_e4m3 or float8_e5m2 exactly when img_ref's is"),
    ({"img_ref": X.astype(FP8), "filter_ref": W.astype(FP8), "residual": Y.astype(FP8)},
     "residual.dtype=float8_e4m3: accepted are bfloat16, float16, float32"),
    ({"img_ref": X.astype(FP8), "filter_ref": W.astype(FP8), "out_dtype": FP8}, "out_dtype=.*accepted are None"),
]  # fmt: skip


def call(**changes):
    """The kernel on X and W, with some arguments changed."""
    x, w = changes.pop("img_ref", X), changes.pop("filter_ref", W)
    return run(x, w, PROBLEM, 2, **changes)


def test_the_call_that_is_changed_runs():
    assert call(bias=np.zeros(4, np.float32), residual=Y, beta=2).shape == Y.shape


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[row[1][:40] for row in REFUSED])
def test_refused(arguments, message):
    with pytest.raises(AssertionError, match=message) as caught:
        call(**arguments)
    assert isinstance(caught.value, ValueError) or nkiconv._nki.CHOICE.provider == "aws"


# why, images, rows of y, instructions of a core, remedy
TOO_MANY = [
    ("images", 30, 4, 12_000_001, "call it 3 times, with at most 10 images each"),
    ("rows", 2, 40, 12_000_001, "call it 3 times, with at most 13 rows of y"),
    ("neither", 1, 1, 5_000_001, "split K over 2 calls"),
]


@pytest.mark.parametrize(("N", "P", "count", "remedy"), [row[1:] for row in TOO_MANY], ids=[row[0] for row in TOO_MANY])
def test_too_many_instructions_are_refused_with_a_cut_that_fits(N, P, count, remedy):
    geometry = geometry_of(ConvProblem(N=N, C=2, K=2, H=P, W=3, S=1))
    assert instructions_unsupported(geometry, "implicit_gemm", 5_000_000) == ""
    reason = instructions_unsupported(geometry, "implicit_gemm", count)
    assert f"implicit_gemm needs up to {count} instructions on a core, the compiler takes 5000000; {remedy}" in reason


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


def test_arguments_in_the_order_of_the_signature():
    padding = ((1, 0), (0, 2))
    y = nkiconv.simulate(conv2d_implicit_gemm[2])(X, W, None, None, padding, (2, 1), (1, 2), (2, 1), 2, 1)
    named = call(padding=padding, stride=(2, 1), rhs_dilation=(1, 2), lhs_dilation=(2, 1))
    np.testing.assert_array_equal(y, named)
