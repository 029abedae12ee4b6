"""conv2d on arrays: what it equals in torch, layouts, epilogues, and every refusal by name."""

import ml_dtypes
import numpy as np
import pytest
import torch
from tolerances import assert_exact, assert_within, assert_within_limit, integer_inputs

import nkiconv
from nkiconv import DtypeError, GeometryError, NkiconvError, UnsupportedError, conv2d
from nkiconv.api.conv import run_conv
from nkiconv.api.conv_problem import conv_problem
from nkiconv.bounds import epilogue_bound
from nkiconv.problem import ConvProblem
from nkiconv.reference import ACTIVATIONS, abs_sum_ref, conv_ref, epilogue_ref, num_terms
from nkiconv.rules import FILTER_LAYOUTS
from nkiconv.schedules.implicit_gemm_build import WARM_UP, WARM_UP_PACKED

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 6, 9, 11)).astype(np.float32)
W = RNG.standard_normal((4, 6, 3, 2)).astype(np.float32)
W2 = RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)
BIAS = RNG.standard_normal(4).astype(np.float32)
RESIDUAL = RNG.standard_normal((2, 4, 7, 10)).astype(np.float32)

# why, filter, arguments, torch's padding (left, right, top, bottom), torch's other arguments
CALLS = [
    ("plain", W, {}, (0, 0, 0, 0), {}),
    ("int padding", W, {"padding": 2}, (2, 2, 2, 2), {}),
    ("pairs", W, {"padding": ((3, 0), (1, 2))}, (1, 2, 3, 0), {}),
    ("negative padding", W, {"padding": ((-2, 1), (3, -4))}, (3, -4, -2, 1), {}),
    ("valid", W, {"padding": "valid"}, (0, 0, 0, 0), {}),
    ("same", W, {"padding": "same"}, (0, 1, 1, 1), {}),
    ("same with stride", W, {"padding": "same", "stride": (2, 3)}, (0, 0, 1, 1), {"stride": (2, 3)}),
    ("same with dilation", W, {"padding": "same", "dilation": (2, 3)}, (1, 2, 2, 2), {"dilation": (2, 3)}),
    ("stride", W, {"stride": 2}, (0, 0, 0, 0), {"stride": 2}),
    ("stride pair", W, {"stride": (3, 1)}, (0, 0, 0, 0), {"stride": (3, 1)}),
    ("dilation pair", W, {"dilation": (1, 4)}, (0, 0, 0, 0), {"dilation": (1, 4)}),
    ("groups", W2, {"groups": 2}, (0, 0, 0, 0), {"groups": 2}),
    ("one core", W, {"lnc": 1}, (0, 0, 0, 0), {}),
]


@pytest.mark.parametrize(("w", "kwargs", "pad", "torch_kwargs"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_equals_torch(w, kwargs, pad, torch_kwargs):
    y = conv2d(X, w, BIAS, **kwargs)
    padded = torch.nn.functional.pad(torch.tensor(X, dtype=torch.float64), pad)
    expected = torch.nn.functional.conv2d(
        padded, *(torch.tensor(a, dtype=torch.float64) for a in (w, BIAS)), **torch_kwargs
    )
    problem = conv_problem(X, w, **kwargs)
    abs_sum = abs_sum_ref(X, w, problem) + np.abs(BIAS)[:, None, None]
    assert_within(y, expected.numpy(), abs_sum, num_terms(problem) + 1, "fp32")


def test_lhs_dilation_is_torchs_transposed_convolution():
    """conv_transpose2d is the convolution with flipped filters, C and K exchanged, zeros between inputs as stride."""
    x, w = integer_inputs(RNG, (2, 5, 4, 6), "fp32"), integer_inputs(RNG, (5, 3, 3, 4), "fp32")
    expected = torch.nn.functional.conv_transpose2d(torch.tensor(x), torch.tensor(w), stride=(2, 3))
    flipped = np.ascontiguousarray(w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))
    y = conv2d(x, flipped, lhs_dilation=(2, 3), padding=((2, 2), (3, 3)))
    assert_exact(y, expected.numpy(), "fp32")


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_names_of_padding_give_the_extents_that_they_promise(padding):
    for stride in ((1, 1), (2, 3), (7, 5)):
        for H, width in ((5, 8), (9, 11)):
            y = conv2d(X[:, :, :H, :width], W, padding=padding, stride=stride)
            taken = (0, 0) if padding == "same" else (W.shape[2] - 1, W.shape[3] - 1)
            assert y.shape[2:] == (-(-(H - taken[0]) // stride[0]), -(-(width - taken[1]) // stride[1]))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("filter_layout", FILTER_LAYOUTS)
def test_layouts(layout, filter_layout):
    """The same numbers, whatever the order of the axes; the residual lies as y does."""
    arguments = {"padding": ((1, 0), (0, 2)), "stride": (2, 1), "groups": 2, "activation": "relu"}
    x, w = integer_inputs(RNG, X.shape, "bf16"), integer_inputs(RNG, W2.shape, "bf16")
    bias, residual = integer_inputs(RNG, 4, "fp32"), integer_inputs(RNG, (2, 4, 4, 12), "fp32")
    expected = conv2d(x, w, bias, residual=residual, **arguments)
    axes = ["KCRS".index(letter) for letter in filter_layout]
    last = layout == "NHWC"
    y = conv2d(
        x.transpose(0, 2, 3, 1) if last else x,
        w.transpose(axes),
        bias,
        residual=residual.transpose(0, 2, 3, 1) if last else residual,
        layout=layout,
        filter_layout=filter_layout,
        **arguments,
    )
    np.testing.assert_array_equal(y, expected.transpose(0, 2, 3, 1) if last else expected)


@pytest.mark.cover(16)
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_epilogues(activation, position):
    y = conv2d(X, W, BIAS, activation=activation, residual=RESIDUAL, residual_position=position, beta=-2)
    problem = conv_problem(X, W)
    sums, abs_sum = conv_ref(X, W, problem), abs_sum_ref(X, W, problem)
    after = (BIAS, activation, -2.0 * RESIDUAL, position)
    assert_within_limit(y, epilogue_ref(sums, *after), epilogue_bound(36, abs_sum, sums, "fp32", *after))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_residual_in_bands(layout):
    """Integers and halves of them, so exact; bands of a few rows, so that one read of another's would show."""
    rng = np.random.default_rng(1)
    x, w = rng.integers(-4, 5, (2, 6, 26, 11)), rng.integers(-4, 5, (4, 6, 3, 2))
    residual = rng.integers(-200, 201, (2, 4, 24, 10))
    sums = torch.nn.functional.conv2d(torch.tensor(x, dtype=torch.float64), torch.tensor(w, dtype=torch.float64))
    expected = (sums.relu() + 0.5 * torch.tensor(residual)).numpy()
    given = [
        a.astype(np.float32) if layout == "NCHW" else np.moveaxis(a, 1, 3).astype(np.float32) for a in (x, residual)
    ]
    found = conv2d(
        given[0],
        w.astype(np.float32),
        residual=given[1],
        layout=layout,
        beta=0.5,
        residual_position="post_activation",
        activation="relu",
        algorithm="implicit_gemm",
        config=(("x_bytes", 256),),
    )
    np.testing.assert_array_equal(found if layout == "NCHW" else np.moveaxis(found, 3, 1), expected)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", np.float16, ml_dtypes.bfloat16])
def test_out_dtype(dtype):
    wanted = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}.get(dtype, dtype)
    y = conv2d(X, W, out_dtype=dtype)
    assert y.dtype == np.dtype(wanted)
    np.testing.assert_array_equal(y, conv2d(X, W).astype(wanted))


def test_result_keeps_the_dtype_of_x():
    for x_type, w_type in ((ml_dtypes.bfloat16, np.float16), (np.float16, np.float16), (np.float32, np.float32)):
        assert conv2d(X.astype(x_type), W.astype(w_type)).dtype == np.dtype(x_type)


def test_non_contiguous_and_read_only_arrays_are_read():
    strided, frozen = X[:, :, ::-1, ::2], X[:, :, ::-1, ::2].copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(conv2d(strided, np.asfortranarray(W)), conv2d(frozen, W))


@pytest.mark.simulator_only
def test_a_trace_needs_no_data():
    problem = conv_problem(nkiconv.spec((2, 9, 11, 6), "bf16"), nkiconv.spec((4, 6, 3, 2), "bf16"), layout="NHWC")
    specs = nkiconv.spec(problem.input_shape, "bf16"), nkiconv.spec(problem.filter_shape, "bf16")
    run = run_conv(*specs, problem, trace_only=True)
    assert run.y.shape == problem.output_shape == (2, 7, 10, 4)
    assert run.num_instructions == sum(run.instructions.values()) > 0
    assert (run.provider, run.lnc) == ("simulator", 2)


# why, arguments, class, message
REFUSED_TOGETHER = [
    # a wrong argument alone: `test_rules_applied`
    ("a list for x", {"x": X.tolist()}, DtypeError, "x: must be a NumPy array, not list; convert it"),
    ("no extent", {"w": W[:0]}, GeometryError, "w.shape=.*: every extent of .* must be at least 1"),
    ("no rows of y", {"w": np.zeros((4, 6, 10, 2), np.float32)}, GeometryError,
     "P=0: output height must be at least 1"),
    ("all is cropped", {"padding": -5}, GeometryError, "P=-3: output height.*crop less"),
    ("channels", {"x": X[:, :5]}, GeometryError, "has 6 input channels per group, x has C=5 in groups=1"),
    ("groups", {"groups": 2}, GeometryError, "has 6 input channels per group, x has C=6 in groups=2"),
    ("order", {"filter_layout": "RSCK"}, GeometryError, "in the order of filter_layout='RSCK'"),
    ("gone", {"algorithm": "grouped"}, UnsupportedError, "was removed, weight_stationary takes its problems"),
    ("setting", {"algorithm": "implicit_gemm", "config": (("speed", 2),)}, UnsupportedError,
     "implicit_gemm has no setting speed"),
    ("value", {"algorithm": "implicit_gemm", "config": (("warmup", -1),)}, UnsupportedError, "config warmup=-1"),
    ("no config", {"algorithm": "implicit_gemm", "config": 3}, UnsupportedError,
     "config=3: must be None or a tuple of"),
    ("strict", {"algorithm": "stacked", "strict_nonfinite": True}, UnsupportedError, "strict_nonfinite=True: stacked"),
    ("same of gaps", {"padding": "same", "lhs_dilation": (1, 2)}, GeometryError,
     r"not defined with lhs_dilation=\(1, 2"),
    ("both groups", {"batch_group_count": 2, "groups": 2, "w": W2}, UnsupportedError,
     "batch_group_count=2, groups=2: only one of them may be above 1, as in XLA"),
    ("batch groups and C", {"batch_group_count": 2, "w": W2}, GeometryError, "must have x's C=6 input channels"),
    ("e4m3fn", {"x": X.astype(ml_dtypes.float8_e4m3fn), "w": W.astype(ml_dtypes.float8_e4m3fn)}, DtypeError,
     r"no magnitude is above 240 .*astype\(ml_dtypes.float8_e4m3\)"),
    ("groups and K", {"w": W2[:3], "groups": 2}, GeometryError, "groups=2: must divide C=6 and K=3"),
    ("several", {"x": X.astype(int), "w": W[0], "beta": "x", "lnc": 0}, DtypeError, "4 reasons"),
    ("residual not in layout", {"x": X.transpose(0, 2, 3, 1), "layout": "NHWC", "residual": RESIDUAL}, GeometryError,
     "y's"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "kind", "message"), [row[1:] for row in REFUSED_TOGETHER], ids=[row[0] for row in REFUSED_TOGETHER]
)
def test_refused_together(monkeypatch, arguments, kind, message):
    monkeypatch.setattr("nkiconv.api.conv.launch", None)
    with pytest.raises(NkiconvError, match=message) as caught:
        conv2d(**({"x": X, "w": W} | arguments))
    assert type(caught.value) is kind


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("count", [2, 3])
def test_batch_groups(count, layout):
    """XLA's: the k-th share of y's channels is the k-th share of the images, by the k-th share of the filters."""
    rng = np.random.default_rng(count)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((6, 5, 7, 8), (6, 5, 3, 2)))
    bias = np.arange(6, dtype=np.float32)
    shares = zip(np.split(x, count), np.split(w, count), np.split(bias, count), strict=True)
    problem = ConvProblem(N=6 // count, C=5, H=7, W=8, K=6 // count, R=3, S=2, stride=(1, 2), padding=((1, 1), (1, 1)))
    expected = np.concatenate([conv_ref(*one[:2], problem) + one[2].reshape(-1, 1, 1) for one in shares], axis=1)
    given = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    y = conv2d(given, w, bias, stride=(1, 2), padding=1, batch_group_count=count, layout=layout)
    np.testing.assert_array_equal(y if layout == "NCHW" else y.transpose(0, 3, 1, 2), expected)


@pytest.mark.parametrize(("call", "shape"), [
    (lambda: conv2d(X[:0], W, padding=1), (0, 4, 9, 12)),
    (lambda: conv2d(X[:0].transpose(0, 2, 3, 1), W, layout="NHWC"), (0, 7, 10, 4)),
    (lambda: conv2d(X[:0], W, batch_group_count=2), (0, 4, 7, 10)),
    (lambda: nkiconv.conv1d(X[:0, :, 0], W[:, :, 0]), (0, 4, 10)),
    (lambda: nkiconv.depthwise_conv1d(X[:0, :, 0], W[0, :, 0]), (0, 6, 10)),
    (lambda: nkiconv.depthwise_conv2d(X[:0], W[0][:, None]), (0, 6, 7, 10)),
    (lambda: conv2d(X[:0, :0], W[:, :0]), (0, 0, 7, 10)),
    (lambda: conv2d(X[:, :0], W[:, :0], padding=1), (2, 0, 9, 12)),
])  # fmt: skip
def test_no_images_or_no_channels(call, shape):
    y = call()
    assert y.shape == shape
    assert y.dtype == np.float32


@pytest.mark.parametrize("groups", [1, 2])
def test_no_channels_are_torchs(groups):
    x, w = torch.zeros(3, 0, 9, 8), torch.zeros(4, 0, 3, 2)
    expected = torch.nn.functional.conv2d(x, w, torch.ones(4), stride=(1, 2), padding=1, groups=groups).shape
    assert conv2d(x.numpy(), w.numpy(), BIAS, stride=(1, 2), padding=1, groups=groups).shape == tuple(expected)
    nhwc = x.permute(0, 2, 3, 1).numpy(), w.permute(2, 3, 1, 0).numpy()
    y = conv2d(*nhwc, BIAS, stride=(1, 2), padding=1, groups=groups, layout="NHWC", filter_layout="RSCK")
    assert y.transpose(0, 3, 1, 2).shape == tuple(expected)
    rows = nkiconv.conv1d(x[:, :, 0].numpy(), w[:, :, 0].numpy(), groups=groups)
    assert rows.shape == tuple(torch.nn.functional.conv1d(x[:, :, 0], w[:, :, 0], groups=groups).shape)


def test_no_rows_have_states():
    x, w = X[:0, :, 0].astype(ml_dtypes.bfloat16), W[0, :, 0].astype(ml_dtypes.bfloat16)
    y, state = nkiconv.depthwise_conv1d(x, w, padding="causal", return_final_state=True, out_dtype=np.float32)
    assert (y.shape, y.dtype, state.shape, state.dtype) == ((0, 6, 11), np.float32, (0, 6, 1), x.dtype)


def test_names_of_the_package():
    assert nkiconv.conv2d is conv2d
    assert {"conv2d", "conv2d_implicit_gemm"} <= set(nkiconv.__all__) & set(dir(nkiconv))
    assert nkiconv.conv2d_implicit_gemm[2] is not None


@pytest.mark.parametrize("shape", [(2, 3, 12, 11), (1, 140, 6, 7)], ids=["few channels", "two chunks"])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_precision_rounds_the_factors_and_nothing_else(precision, shape):
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((9, shape[1], 3, 3)).astype(np.float32)
    rounded = [nl_round(array, precision) for array in (x, w)]
    problem = conv_problem(x, w, padding=1)
    y = conv2d(x, w, padding=1, precision=precision)
    sums, abs_sum = conv_ref(*rounded, problem), abs_sum_ref(*rounded, problem)
    assert_within_limit(
        y, sums, epilogue_bound(9 * shape[1], abs_sum, sums, "fp32", None, None, None, "pre_activation")
    )
    # and the documented error of a product holds against the exact result
    exact, limit = conv_ref(x, w, problem), {"bf16": 2.0**-7, "tf32": 2.0**-9}[precision]
    assert np.all(np.abs(y - exact) <= limit * abs_sum_ref(x, w, problem))
    assert not np.array_equal(y, conv2d(x, w, padding=1))


def nl_round(array, precision):
    """fp32 rounded to nearest, ties to even, with 7 or 10 bits of mantissa."""
    if precision == "bf16":
        return array.astype(ml_dtypes.bfloat16).astype(np.float32)
    bits = array.view(np.uint32).astype(np.uint64)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000
    return bits.astype(np.uint32).view(np.float32)


def test_a_precision_that_says_nothing_is_refused():
    with pytest.raises(UnsupportedError, match=r"precision='tf32': x and w are bf16, whose products are exact"):
        conv2d(X.astype(ml_dtypes.bfloat16), W.astype(ml_dtypes.bfloat16), precision="tf32")


@pytest.mark.cover(10)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize(("K", "block"), [(96, 96), (320, 64), (134, 67), (9, 9)])
def test_a_packed_filter_gives_what_a_plain_one_gives(K, block, dtype, lnc):
    rng = np.random.default_rng(6)
    x = rng.integers(-3, 4, (2, 140, 6, 5)).astype(dtype)
    w = rng.integers(-3, 4, (K, 140, 3, 2)).astype(dtype)
    packed = nkiconv.pack_filter(w)
    assert packed.shape == (K // block, 140, 3, 2, block)
    assert packed.dtype == w.dtype
    arguments = {"padding": ((1, 0), (1, 1)), "stride": (2, 1), "out_dtype": "fp32", "lnc": lnc}
    np.testing.assert_array_equal(conv2d(x, packed, **arguments), conv2d(x, w, **arguments))
    rsck = nkiconv.pack_filter(w.transpose(2, 3, 1, 0), filter_layout="RSCK")
    np.testing.assert_array_equal(rsck, packed)


def test_no_filter_of_a_packed_one_is_turned():
    x, w = nkiconv.spec((1, 256, 9, 9), "bf16"), nkiconv.spec((256, 256, 3, 3), "bf16")
    packed = nkiconv.spec((2, 256, 3, 3, 128), "bf16")
    problem = conv_problem(x, w)
    named = {"algorithm": "implicit_gemm", "trace_only": True}
    turned = [run_conv(x, one, problem, **named).instructions["tensor"] for one in (w, packed)]
    # transposes of jobs, chunks of channels and taps; each core warms up a little longer
    assert turned[1] == turned[0] - 2 * 2 * 9 + 2 * (WARM_UP_PACKED - WARM_UP)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"filter_layout": "RSCK"}, "filter_layout='RSCK': w is packed, which has one order"),
    ({"w": np.zeros((2, 5, 3, 3, 4), np.float32)}, "has 5 input channels per group, x has C=6"),
])  # fmt: skip
def test_packed_filters_that_are_refused(arguments, message):
    packed = np.zeros((2, 6, 3, 3, 4), np.float32)
    with pytest.raises(NkiconvError, match=message):
        conv2d(**({"x": X, "w": packed} | arguments))


def test_channels_that_make_no_blocks_are_refused():
    with pytest.raises(UnsupportedError, match=r"K=131 can be packed in have 1 channels, at least 16 are worth it"):
        nkiconv.pack_filter(np.zeros((131, 4, 3, 3), np.float32))


@pytest.mark.parametrize("algorithm", [None, "implicit_gemm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_packed_filter_of_few_channels(channels, algorithm):
    x = RNG.integers(-3, 4, (1, channels, 20, 20)).astype(np.float32)
    w = RNG.integers(-3, 4, (4, channels, 7, 7)).astype(np.float32)
    np.testing.assert_array_equal(conv2d(x, nkiconv.pack_filter(w), algorithm=algorithm), conv2d(x, w))


@pytest.mark.parametrize(("w", "layout", "message"), [
    (np.zeros((2, 3, 3), np.float32), "KCRS", "w.shape=.*must have 4 axes"),
    (np.zeros((2, 3, 3, 1), np.int32), "KCRS", "w.dtype=int32"),
    (np.zeros((2, 3, 3, 1), np.float32), "CKRS", "filter_layout='CKRS': accepted are KCRS, RSCK, KRSC"),
])  # fmt: skip
def test_pack_filter_refuses(w, layout, message):
    with pytest.raises(NkiconvError, match=message):
        nkiconv.pack_filter(w, filter_layout=layout)
