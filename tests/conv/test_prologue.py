"""x_scale, x_shift and x_activation: y = conv(act(x * x_scale + x_shift)), zeros of padding untouched."""

import ml_dtypes
import numpy as np
import pytest
from conv_calls import FLOATS, NL, bounded, canonical_of, check_exact, config_of, in_layout, normals, numbers, run
from conv_rows import image, volume_of
from depthwise import same_bits
from tolerances import assert_exact, assert_within_limit, integer_inputs

import nkiconv
from nkiconv import ConvProblem
from nkiconv.errors import NkiconvError
from nkiconv.planner.conv import geometry_of, options_of
from nkiconv.planner.request import Asked
from nkiconv.reference import conv_ref, prologue_ref
from nkiconv.schedules.conv_algorithms import ALGORITHMS, plan_of
from nkiconv.schedules.relayout import copies_x

pytestmark = pytest.mark.simulator_only

PADDED = ((1, 1), (1, 1))
PROBLEMS = {
    "images": image(),
    "few channels": image(C=3),
    "channels beyond 128": image(C=130, H=4, W=5),
    "folded channels": image(C=64, W=20),
    "folded channels beyond 128": image(C=160, H=4, W=20),
    "outputs beyond 128": image(K=150, H=4, W=5),
    "channels of uneven K tiles": image(C=257, H=3, W=4),
    "many small images": image(N=9, H=3, W=3),
    "more images than a square": image(N=70, C=40, H=2, W=2, R=1, S=1, padding=((0, 0), (0, 0))),
    "channels last": image(layout="NHWC"),
    "stride and dilation": image(stride=(2, 1), rhs_dilation=(1, 2)),
    "crop": image(padding=((-1, 2), (3, -2))),
    "one tap, stride": image(R=1, S=1, stride=(2, 2), padding=((0, 0), (0, 0)), layout="NHWC"),
    "lhs_dilation": image(lhs_dilation=(2, 3), padding=((2, 1), (0, 3))),
    "groups": image(C=24, K=24, groups=4),
    "groups beyond 128": image(C=140, K=20, groups=20, H=4, W=5),
    "depthwise": image(C=20, K=20, groups=20),
    "one row": image(H=1, R=1, W=40, padding=((0, 0), (2, 0))),
    "volumes": volume_of(),
    "volumes, one": volume_of(N=1),
    "volumes, channels last": volume_of(layout="NDHWC"),
    "volumes of images": volume_of(T=1, padding=((0, 0), *PADDED)),
    "volumes, stride": volume_of(stride=(2, 1, 1), C=3),
}


def takes(problem, algorithm, scale, shift, activation):
    """Whether an algorithm takes a problem with a prologue."""
    asked = Asked(x_scale=scale, x_shift=shift, x_activation=activation, out_dtype="fp32")
    return plan_of(algorithm, geometry_of(problem, asked), options_of(problem, asked), None)[1] == ""


#: K packing: rows, shifts, outputs, rows of y on a partition and rows from block to block; shifts that see x in other
#: columns, blocks at the edges that hold some rows of it, or none.
SIZES = {
    "shifts": (image(C=3), (3, 3, 1, 1, 1)),
    "two groups of shifts": (image(C=3, S=4, padding=((1, 1), (2, 1))), (3, 2, 1, 1, 1)),
    "turns of rows": (image(C=3, H=13), (6, 3, 3, 2, 6)),
    "turns of rows, stride": (image(C=3, H=21, stride=(2, 2)), (8, 3, 2, 2, 8)),
    "adjacent windows": (image(C=3, H=12, N=3), (6, 3, 4, 1, 4)),
    "no columns in common": (image(C=3, W=2, S=5, padding=((1, 1), (4, 4))), (3, 5, 1, 1, 1)),
    "shifts beside x": (image(C=3, W=3, rhs_dilation=(1, 4), padding=((1, 1), (4, 4))), (3, 3, 1, 1, 1)),
    "padding of several blocks": (image(C=3, padding=((5, 4), (1, 1))), (2, 3, 2, 1, 2)),
    "crop": (image(C=3, padding=((-1, -1), (1, -1))), (3, 3, 1, 1, 1)),
    "rows cut": (image(N=1, C=3, H=90, W=40), (4, 3, 4, 1, 4)),
    "volumes": (volume_of(C=3), (3, 3, 1, 1, 1)),
    "channels last": (image(C=3, layout="NHWC"), (6, 3, 4, 1, 4)),
}


@pytest.mark.cover(5)
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize(("problem", "sizes"), SIZES.values(), ids=SIZES)
def test_k_packing_keeps_its_zeros(problem, sizes, activation):
    config = config_of("stacked", **dict(zip(("rows", "shifts", "outputs", "beside", "apart"), sizes, strict=True)))
    more = {"x_scale": "image", "x_shift": "channel", "x_activation": activation}
    check_exact(problem, config=config, out_dtype="fp32", **more)


@pytest.mark.cover(16)
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("scale", [None, "channel", "image"])
@pytest.mark.parametrize("shift", [None, "channel", "image"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_integers_are_exact(algorithm, name, dtype, shift, scale, activation):
    problem = PROBLEMS[name].replace(dtype=dtype)
    if takes(problem, algorithm, scale, shift, activation):
        more = {"x_scale": scale, "x_shift": shift, "x_activation": activation}
        check_exact(problem, config=config_of(algorithm), out_dtype="fp32", **more)
    else:
        assert algorithm != ALGORITHMS[0]


@pytest.mark.cover(11, keep=["winograd-bf16-NCDHW-silu-7", "winograd-bf16-NDHWC-silu-7", "bf16-fp32-NCHW-None-1000"])
@pytest.mark.parametrize("mean", [7, 1000])
@pytest.mark.parametrize("activation", [None, *nkiconv.rules.ACTIVATIONS])
@pytest.mark.parametrize(("precision", "dtype", "layout"), [
    ("bf16", "fp32", "NCHW"), ("bf16", "fp32", "NHWC"), ("tf32", "fp32", "NCHW"), ("fp16x3", "fp32", "NCHW"),
    ("fp16x3", "fp32", "NHWC"), (None, "fp32", "NHWC"), (None, "bf16", "NCHW"), (None, "fp16", "NHWC"),
    ("winograd", "bf16", "NCDHW"), ("winograd", "bf16", "NDHWC"),
])  # fmt: skip
def test_real_data_is_within_its_bound(precision, dtype, layout, activation, mean):
    """Random numbers whose mean is far from 0, which a prologue takes away before x is rounded for products."""
    problem = volume_of(layout=layout, C=40) if "D" in layout else image(dtype=dtype, layout=layout)
    rng = np.random.default_rng(4)
    x, w = normals(rng, problem, mean=mean)
    scale = rng.standard_normal((problem.N, problem.C)).astype(np.float32)
    on_x = {"x_scale": scale, "x_shift": -mean * scale, "x_activation": activation}
    asked = {"precision": precision, "config": config_of("implicit_gemm"), "out_dtype": NL["fp32"]}
    y = run(x, w, problem, 2, **asked, **{name: one for name, one in on_x.items() if one is not None})
    _, *right = bounded(canonical_of(x, problem), w, problem, "fp32", precision=precision, on_x=on_x)
    assert_within_limit(y, *(in_layout(one, problem) for one in right))


@pytest.mark.usefixtures("plainly")
@pytest.mark.cover
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("layout", ["first", "last"])
def test_transposed_convolutions(axes, layout):
    rng = np.random.default_rng(7)
    x, w = integer_inputs(rng, (2, 6, *[5] * axes), "bf16"), integer_inputs(rng, (6, 4, *[3] * axes), "bf16")
    scale, shift = (rng.integers(low, low + 5, (2, 6)).astype(np.float32) for low in (-2, 50))
    on_x = {"x_scale": scale, "x_shift": shift, "x_activation": "relu"}
    function = getattr(nkiconv, f"conv_transpose{axes}d")
    first, name = layout == "first", {1: "NWC", 2: "NHWC", 3: "NDHWC"}[axes]
    given = x if first else np.ascontiguousarray(np.moveaxis(x, 1, -1))
    more = {} if first else {"layout": name}
    y = function(given, w, stride=2, padding=1, out_dtype="fp32", **on_x, **more)
    prepared = prologue_ref(x, **on_x).astype(np.float32)
    plain = function(prepared, w.astype(np.float32), stride=2, padding=1)
    assert_exact(y if first else np.moveaxis(y, -1, 1), plain.astype(float), "fp32")


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "stacked"])
def test_a_prologue_of_columns_that_no_output_meets(algorithm):
    x, w = np.ones((1, 3, 16, 1), np.float32), np.ones((3, 3, 3, 1), np.float32)
    shift = np.ones(3, np.float32)
    y = nkiconv.conv2d(x, w, padding=((0, 0), (1, 0)), stride=(2, 2), x_shift=shift, algorithm=algorithm)
    assert not y.any()


def test_frames_have_the_prologue_too():
    """initial_frames are x that came before: y is that of both together."""
    rng, problem = np.random.default_rng(9), volume_of(padding=((0, 0), *PADDED), D=6)
    x, w = integer_inputs(rng, problem.input_shape, "bf16"), integer_inputs(rng, problem.filter_shape, "bf16")
    on_x = {"x_scale": numbers(rng, problem, "image"), "x_shift": numbers(rng, problem, "image", 50, 60)}
    y, final = nkiconv.conv3d(
        x[:, :, 2:], w, padding=problem.padding, initial_frames=x[:, :, :2], return_final_frames=True,
        out_dtype="fp32", x_activation="relu", **on_x,
    )  # fmt: skip
    assert_exact(y, conv_ref(prologue_ref(x, **on_x, x_activation="relu"), w, problem), "fp32")
    assert same_bits(final, np.ascontiguousarray(x[:, :, -2:]))  # as they came: the next call's prologue is its own


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize("form", ["channel", "image"])
def test_batch_groups_share_numbers_as_x(form):
    rng, problem = np.random.default_rng(10), image(N=4, C=6, K=8)
    x, w = integer_inputs(rng, problem.input_shape, "bf16"), integer_inputs(rng, (8, 6, 3, 3), "bf16")
    scale = numbers(rng, problem, form)
    y = nkiconv.conv2d(x, w, padding=1, batch_group_count=2, x_scale=scale, out_dtype="fp32")
    prepared = prologue_ref(x, scale).astype(np.float32)
    assert_exact(
        y, nkiconv.conv2d(prepared, w.astype(np.float32), padding=1, batch_group_count=2).astype(float), "fp32"
    )


@pytest.mark.cover(2)
@pytest.mark.parametrize("form", ["channel", "image"])
@pytest.mark.parametrize("N", [2, 24])
def test_a_loop_on_the_device_keeps_to_the_numbers_of_an_image(N, form):
    """Output tiles of one image are alike, and those of several only where images share numbers."""
    problem = image(N=N, C=16, K=16, H=64 if N == 2 else 16, W=32 if N == 2 else 16, dtype="bf16")
    config = config_of("implicit_gemm", loop=1, x_bytes=512)
    check_exact(problem, config=config, out_dtype="fp32", x_scale=form, x_shift=form, x_activation="relu")


UPSAMPLED = {
    "images": image(H=10, W=8),
    "channels last": image(H=10, W=8, layout="NHWC"),
    "folded channels": image(C=64, H=4, W=40),
    "two K tiles": image(C=130, H=4, W=6, layout="NHWC"),
    "one tap, stride": image(R=1, S=1, stride=(2, 3), padding=((0, 0), (0, 0)), H=8, W=10, layout="NHWC"),
    "crop": image(H=12, W=14, padding=((-1, 1), (-3, 2)), rhs_dilation=(2, 1)),
    "groups": image(C=24, K=24, groups=4, H=6, W=6),
    "lhs_dilation": image(H=6, W=4, lhs_dilation=(2, 1)),
    "output tiles of a few rows": image(N=1, C=16, H=40, W=30),
}


@pytest.mark.cover(7, keep=["output tiles of a few rows-None"])
@pytest.mark.parametrize("precision", [None, "fp16x3", "bf16"])
@pytest.mark.parametrize("name", UPSAMPLED)
def test_upsampled_images_are_exact(name, precision):
    """The problem is of the rows and columns that are convolved: x has half of them."""
    problem = UPSAMPLED[name].replace(dtype="fp32" if precision else "bf16")
    more = {"config": config_of("implicit_gemm", x_bytes=512)} if "few rows" in name else {}
    on_x = {"x_scale": "image", "x_shift": "image", "x_upsample": 2, "x_activation": "relu"}
    check_exact(problem, out_dtype="fp32", precision=precision, **on_x, **more)


def test_upsampled_copies_of_few_channels_are_exact():
    problem = image(N=1, C=2, K=3, H=320, W=320, stride=(8, 8), layout="NHWC")
    assert copies_x("implicit_gemm", geometry_of(problem, Asked(x_upsample=2)))
    check_exact(problem, out_dtype="fp32", x_upsample=2)


def test_nan_and_inf_are_those_of_fp32():
    """Each element by itself: what is not finite reaches only the windows that it is in."""
    x, w = np.ones((1, 2, 6, 6), np.float32), np.ones((3, 2, 3, 3), np.float32)
    x[0, 0, 1, 1], x[0, 1, 5, 5] = np.nan, np.inf
    shift = np.array([1, 2], np.float32)
    y = nkiconv.conv2d(x, w, padding=1, x_shift=shift, x_activation="relu", strict_nonfinite=True)
    truth = conv_ref(prologue_ref(x, None, shift, "relu"), w, ConvProblem(N=1, C=2, K=3, H=6, W=6, R=3, S=3,
                                                                          padding=PADDED))  # fmt: skip
    assert np.array_equal(y, truth, equal_nan=True)


def test_empty_arrays():
    x, w = np.zeros((0, 4, 6, 6), np.float32), np.zeros((8, 4, 3, 3), np.float32)
    scale = np.zeros((0, 4), np.float32)
    assert nkiconv.conv2d(x, w, x_scale=scale).shape == (0, 8, 4, 4)
    assert nkiconv.conv_transpose2d(x, w.transpose(1, 0, 2, 3), x_scale=scale).shape == (0, 8, 8, 8)
    assert nkiconv.conv2d(x[:, :0], w[:, :0], x_scale=scale[:, :0]).shape == (0, 0, 4, 4)
    assert nkiconv.conv2d(x, w, x_upsample=2).shape == (0, 8, 10, 10)
    with pytest.raises(NkiconvError, match=r"x_scale.shape=\(1, 4\): must be \[C\] = \(4,\) or \[N, C\] = \(0, 4\)"):
        nkiconv.conv2d(x, w, x_scale=np.zeros((1, 4), np.float32))


@pytest.mark.parametrize(("more", "text"), [
    ({"x_shift": np.ones((1, 2, 4), np.float32)}, r"x_shift.shape=\(1, 2, 4\): must have 2 axes"),
    ({"x_activation": "relu", "algorithm": "stacked", "groups": 4, "K": 4, "C": 1},
     r"x_activation: stacked takes none of depthwise problems; use implicit_gemm"),
    ({"x_activation": "relu", "algorithm": "implicit_gemm", "config": (("fold", "inputs"),)},
     r"fold=inputs, C=4, x_scale, x_shift, x_activation: engines address copies of x by quadrants of 32 channels"),
    ({"x_scale": np.ones(4, np.float32), "batch_group_count": 2, "K": 6, "x_shift": np.ones(8, np.float32)},
     r"x_shift.shape=\(8,\)"),
    ({"x_activation": "relu", "dtype": ml_dtypes.float8_e4m3},
     r"x.dtype='fp8_e4m3': accepted for x_scale, x_shift and x_activation are"),
    ({"x_activation": "relu", "algorithm": "weight_stationary", "precision": "bf16"},
     r"x_activation, precision=bf16: weight_stationary does not cast x; use implicit_gemm"),
    ({"x_upsample": 2, "algorithm": "weight_stationary"}, "x_upsample=2: weight_stationary takes 1; use implicit_gemm"),
    ({"x_upsample": 2, "algorithm": "implicit_gemm", "config": (("loop", 1),)},
     "config loop=1: x_upsample=2 takes rows of x in HBM more than once; use 0"),
])  # fmt: skip
def test_what_is_refused(more, text):
    given = {"K": 6, "C": 4, "dtype": np.float32} | more
    K, C, dtype = (given.pop(name) for name in ("K", "C", "dtype"))
    x, w = np.zeros((2, 4, 6, 6), dtype), np.zeros((K, C, 3, 3), dtype)
    with pytest.raises(NkiconvError, match=text):
        nkiconv.conv2d(x, w, **given)
