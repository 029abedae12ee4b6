"""The torch functions equal torch's own: values, gradients, batching, compilation, and every refusal by name."""

import inspect
import os

import numpy as np
import pytest
import torch
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from nkiconv import pytorch
from nkiconv.errors import DtypeError, GeometryError, LayoutError, UnsupportedError
from nkiconv.pytorch.computers import host
from nkiconv.reference import ACTIVATIONS

FUNCTIONS = {
    "conv1d": (pytorch.conv1d, F.conv1d),
    "conv2d": (pytorch.conv2d, F.conv2d),
    "conv3d": (pytorch.conv3d, F.conv3d),
    "depthwise_conv1d": (pytorch.depthwise_conv1d, F.conv1d),
    "depthwise_conv2d": (pytorch.depthwise_conv2d, F.conv2d),
}
#: name, input's and weight's shape, torch's arguments
CALLS = [
    ("conv1d", (2, 6, 11), (4, 6, 3), {}),
    ("conv1d", (6, 11), (4, 6, 3), {"padding": 2}),
    ("conv1d", (2, 6, 11), (4, 3, 3), {"groups": 2, "stride": 2, "dilation": 3, "padding": (3,)}),
    ("conv1d", (2, 6, 11), (4, 6, 4), {"padding": "same", "dilation": 2}),
    ("conv1d", (2, 6, 11), (6, 1, 4), {"groups": 6, "padding": 3}),
    ("conv1d", (2, 6, 11), (12, 1, 4), {"groups": 6, "padding": 3}),
    ("conv2d", (2, 6, 9, 11), (4, 6, 3, 2), {}),
    ("conv2d", (6, 9, 11), (4, 6, 3, 2), {"padding": (1, 0)}),
    ("conv2d", (2, 6, 9, 11), (4, 6, 3, 2), {"padding": "valid"}),
    ("conv2d", (2, 6, 9, 11), (4, 6, 3, 2), {"padding": "same", "dilation": (1, 3)}),
    ("conv2d", (2, 6, 9, 11), (8, 3, 3, 2), {"groups": 2, "stride": (2, 3), "padding": [2, 1], "dilation": (2, 1)}),
    ("conv2d", (0, 6, 9, 11), (4, 6, 3, 2), {"padding": 1}),
    ("conv3d", (2, 6, 4, 5, 7), (4, 6, 3, 2, 3), {"padding": (1, 0, 1)}),
    ("conv3d", (6, 4, 5, 7), (4, 3, 2, 2, 2), {"groups": 2, "stride": (1, 2, 1), "dilation": (2, 1, 3), "padding": 1}),
    ("conv3d", (1, 6, 4, 5, 7), (6, 1, 3, 3, 3), {"groups": 6, "padding": "same"}),
    ("depthwise_conv1d", (2, 6, 11), (6, 1, 4), {"stride": 2, "padding": 3}),
    ("depthwise_conv2d", (2, 6, 9, 11), (6, 1, 3, 3), {"padding": 1, "stride": (1, 2)}),
    ("depthwise_conv2d", (2, 6, 9, 11), (12, 1, 3, 3), {"padding": 1}),
]


def tensors(x_shape, w_shape, dtype=torch.float32, seed=0):
    """Small integers: every sum is exact, in any order."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (x_shape, w_shape, (w_shape[0],))
    return [torch.randint(-3, 4, shape, generator=generator).to(dtype) for shape in shapes]


def torchs(name, x_shape, arguments):
    if not name.startswith("depthwise"):
        return arguments
    return {**arguments, "groups": x_shape[1]}


@pytest.fixture(params=["torch", "simulate", "compare"])
def mode(request, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", request.param)
    return request.param


@pytest.mark.cover(32)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "x_shape", "w_shape", "arguments"), CALLS, ids=lambda value: str(value)[:40])
def test_equals_torch(name, x_shape, w_shape, arguments, dtype, mode):
    x, w, bias = tensors(x_shape, w_shape, dtype)
    ours, theirs = FUNCTIONS[name]
    y = ours(x, w, bias, **arguments)
    expected = theirs(x.double(), w.double(), bias.double(), **torchs(name, x_shape, arguments)).to(dtype)
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("name", ["conv2d", "depthwise_conv1d"])
def test_epilogue_and_its_derivatives(name, activation, position):
    """Against torch's own autograd of the same formula, in double."""
    shapes = {"conv2d": ((2, 6, 7, 8), (4, 6, 3, 2)), "depthwise_conv1d": ((2, 6, 9), (6, 1, 4))}[name]
    generator = torch.Generator().manual_seed(3)
    leaves = [torch.randn(shape, generator=generator) / 2 for shape in (*shapes, (shapes[1][0],))]
    ours, theirs = FUNCTIONS[name]
    residual = torch.randn(ours(*leaves, padding=1).shape, generator=generator)
    leaves = [leaf.requires_grad_() for leaf in (*leaves, residual)]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    more = {} if name == "conv2d" else {"groups": 6}
    y = ours(*leaves[:3], padding=1, activation=activation, residual=leaves[3], residual_position=position)
    z = theirs(*wide[:3], padding=1, **more) + (wide[3] if position == "pre_activation" else 0)
    expected = z if activation is None else host.activate(z, activation)
    expected = expected + (wide[3] if position == "post_activation" else 0)
    g = torch.randn(y.shape, generator=generator)
    found, wanted = torch.autograd.grad(y, leaves, g), torch.autograd.grad(expected, wide, g.double())
    # fp32 sums of at most 200 terms of order 1
    for one, other in zip((y, *found), (expected, *wanted), strict=True):
        np.testing.assert_allclose(one.detach(), other.detach(), rtol=0, atol=200 * 2.0**-24 * 16)


@draws(25)
@given(st.data())
def test_gradients_are_exact(data):
    """Of integers, by the kernels: any stride, dilation, groups and padding."""
    rank = data.draw(st.sampled_from([1, 2, 3]))
    groups = data.draw(st.integers(1, 3))
    sizes = [data.draw(st.integers(1, 9 if rank < 3 else 5)) for _ in range(rank)]
    taps = [data.draw(st.integers(1, 4 if rank < 3 else 3)) for _ in range(rank)]
    numbers = {
        "stride": [data.draw(st.integers(1, 3)) for _ in range(rank)],
        "dilation": [data.draw(st.integers(1, 3)) for _ in range(rank)],
        "padding": [data.draw(st.integers(0, 4)) for _ in range(rank)],
    }
    for axis in range(rank):
        window = (taps[axis] - 1) * numbers["dilation"][axis] + 1
        sizes[axis] = max(sizes[axis], window - 2 * numbers["padding"][axis])
    per_c, per_k = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    x, w, bias = tensors((2, groups * per_c, *sizes), (groups * per_k, per_c, *taps), seed=len(sizes) + sum(taps))
    leaves = [leaf.requires_grad_() for leaf in (x, w, bias)]
    ours, theirs = FUNCTIONS[f"conv{rank}d"]
    expected = theirs(*leaves, groups=groups, **numbers)
    g = torch.randint(-3, 4, expected.shape, generator=torch.Generator().manual_seed(1)).float()
    try:
        os.environ["NKICONV_CPU"] = "simulate"
        y = ours(*leaves, groups=groups, **numbers)
        found = torch.autograd.grad(y, leaves, g)
    finally:
        del os.environ["NKICONV_CPU"]
    for one, other in zip((y, *found), (expected, *torch.autograd.grad(expected, leaves, g)), strict=True):
        assert torch.equal(one, other)


#: zeros before and behind rows and columns, gaps between inputs, stride, dilation
UNEVEN = [
    ([2, 0, 1, 3], [1, 1], [1, 1], [1, 1]),
    ([-1, 2, 0, -2], [1, 1], [2, 1], [1, 2]),
    ([3, 1, 0, 2], [2, 3], [1, 2], [2, 1]),
]


@pytest.mark.parametrize(("padding", "gaps", "stride", "dilation"), UNEVEN)
def test_derivatives_with_uneven_padding_and_gaps(padding, gaps, stride, dilation):
    """Against torch on images that are spread and padded beforehand."""
    ours = [leaf.requires_grad_() for leaf in tensors((2, 4, 8, 9), (6, 2, 3, 2))]
    theirs = [leaf.detach().double().requires_grad_() for leaf in ours]
    y = torch.ops.nkiconv.conv2d(*ours, None, stride, padding, dilation, gaps, 2, None, "pre_activation", None)
    spread = theirs[0].new_zeros(2, 4, 7 * gaps[0] + 1, 8 * gaps[1] + 1)
    spread[:, :, :: gaps[0], :: gaps[1]] = theirs[0]
    around = F.pad(spread, [*padding[2:], *padding[:2]])
    expected = F.conv2d(around, *theirs[1:], stride=stride, dilation=dilation, groups=2)
    g = torch.randint(-3, 4, y.shape, generator=torch.Generator().manual_seed(1)).float()
    found, wanted = torch.autograd.grad(y, ours, g), torch.autograd.grad(expected, theirs, g.double())
    for one, other in zip((y, *found), (expected, *wanted), strict=True):
        assert torch.equal(one.double(), other)


def test_second_derivatives(mode):
    """Of numbers from -1 to 1: no sum reaches 2^24, so that they are exact in any order."""
    ours = [leaf.clamp(-1, 1).requires_grad_() for leaf in tensors((2, 4, 6, 5), (6, 2, 3, 2))]
    theirs = [leaf.detach().double().requires_grad_() for leaf in ours]

    def second(convolve, x, w, bias):
        y = convolve(x, w, bias, padding=1, groups=2).pow(2).sum()
        first = torch.autograd.grad(y, (x, w), create_graph=True)
        return *torch.autograd.grad(first[0].pow(2).sum(), (x, w), retain_graph=True), *torch.autograd.grad(
            first[1].sum(), (x, w)
        )

    for one, other in zip(second(pytorch.conv2d, *ours), second(F.conv2d, *theirs), strict=True):
        assert 0 < other.abs().max() < 2**24
        assert torch.equal(one.double(), other)


@pytest.mark.parametrize("dims", [(0, None, None), (1, 0, None), (None, 0, 1), (2, 1, 0), (None, None, 0)])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d", "depthwise_conv1d", "depthwise_conv2d"])
def test_vmap(name, dims):
    rank = int(name[-2])
    per_group = 1 if name.startswith("depthwise") else 2
    x, w, bias = tensors((2, 4, *[7] * rank), (4, per_group, *[3] * rank))
    given = [
        one if dim is None else torch.stack([(step + 1) * one for step in range(3)], dim)
        for one, dim in zip((x, w, bias), dims, strict=True)
    ]
    more = {} if per_group == 1 else {"groups": 2}
    ours = torch.vmap(lambda *args: FUNCTIONS[name][0](*args, padding=1, **more), in_dims=dims)(*given)
    theirs = torch.vmap(
        lambda *args: FUNCTIONS[name][1](*args, padding=1, groups=4 if per_group == 1 else 2), in_dims=dims
    )(*given)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dims", [(0, None, 0), (0, 0, None), (None, 0, 0), (None, None, 0)])
def test_vmap_of_a_residual(dims):
    x, w, _ = tensors((2, 4, 7), (4, 4, 3))
    residual = torch.ones(2, 4, 5)
    given = [
        one if dim is None else torch.stack([(step + 1) * one for step in range(3)])
        for one, dim in zip((x, w, residual), dims, strict=True)
    ]
    ours = torch.vmap(lambda x, w, r: pytorch.conv1d(x, w, residual=r), in_dims=dims)(*given)
    assert torch.equal(ours, torch.vmap(lambda x, w, r: F.conv1d(x, w) + r, in_dims=dims)(*given))


@pytest.mark.parametrize(("dynamic", "backend"), [(False, "aot_eager"), (True, "inductor")])
def test_compiles_without_graph_breaks(dynamic, backend):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(tensors((1,), (6, 2, 3, 2))[1])

        def forward(self, x):
            return pytorch.conv2d(x, self.w, stride=2, padding=(1, 2), groups=2, activation="relu") + 1

    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=backend)
    for size in (9, 12):
        x = tensors((2, 4, size, size + 1), (1, 1, 1, 1))[0].requires_grad_()
        y, expected = compiled(x), layer(x)
        assert torch.equal(y, expected)
        leaves = x, layer.w
        for one, other in zip(*(torch.autograd.grad(one.sum(), leaves) for one in (y, expected)), strict=True):
            assert torch.equal(one, other)


@pytest.mark.cover(3)
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_opcheck(name, activation):
    rank = int(name[-2])
    x, w, bias = tensors((2, 4, *[7] * rank), (4, 1, *[3] * rank))
    arguments = ([1] * rank, [1, 2] * rank, [1] * rank, [1] * rank, 4, activation, "pre_activation", None)
    leaves = [leaf.requires_grad_() for leaf in (x, w, bias)]
    found = torch.library.opcheck(getattr(torch.ops.nkiconv, name).default, (*leaves, None, *arguments))
    assert set(found.values()) == {"SUCCESS"}


def test_meta_tensors_have_shapes():
    x, w, _ = (tensor.to("meta") for tensor in tensors((2, 6, 9, 11), (4, 6, 3, 2)))
    y = pytorch.conv2d(x, w, stride=2, padding=1)
    assert (y.device.type, y.shape) == ("meta", (2, 4, 5, 6))


def test_autocast_casts_as_torch_does():
    x, w, bias = tensors((2, 6, 9, 11), (4, 6, 3, 2))
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = pytorch.conv2d(x, w, bias), F.conv2d(x, w, bias)
    assert y.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(y, expected)


def test_strided_tensors():
    x, w, bias = tensors((2, 6, 9, 11), (4, 6, 3, 2))
    last = x.to(memory_format=torch.channels_last)
    assert torch.equal(pytorch.conv2d(last, w.flip(3)[..., ::1], bias), F.conv2d(x, w.flip(3), bias))
    assert torch.equal(pytorch.conv2d(x[:, :, ::2], w, bias), F.conv2d(x[:, :, ::2], w, bias))


def test_signatures_begin_as_torchs():
    names = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    for name in ("conv1d", "conv2d", "conv3d"):
        parameters = inspect.signature(FUNCTIONS[name][0]).parameters
        assert list(parameters)[:7] == names
        assert [parameters[one].default for one in names[2:]] == [None, 1, 0, 1, 1]


X, W, B = tensors((2, 6, 9, 11), (4, 6, 3, 2))
REFUSED = [
    ({"input": X.double(), "bias": None}, DtypeError, "weight.dtype=torch.float32: must be torch.float64 exactly when"),
    ({"input": X.long(), "weight": W.long()}, DtypeError, "input.dtype=torch.int64: .* kernels have no integer sums"),
    ({"input": X.to(torch.float8_e4m3fn)}, DtypeError, "input.dtype=torch.float8_e4m3fn: .* above 240"),
    ({"weight": W.int()}, DtypeError, "weight.dtype=torch.int32: accepted are"),
    ({"bias": B.double()}, DtypeError, "bias.dtype=torch.float64"),
    ({"input": X.to_sparse()}, LayoutError, "input.layout=torch.sparse_coo: accepted is torch.strided"),
    ({"input": X.to(torch.complex64)}, DtypeError, "input.dtype=torch.complex64: complex tensors are not supported"),
    (
        {"input": torch.nested.nested_tensor([X[0], X[1, :, 1:]])},
        LayoutError,
        "input: nested tensors are not supported; ",
    ),
    ({"weight": torch.nested.nested_tensor([W[0], W[1]])}, LayoutError, "weight: nested tensors are not supported; "),
    ({"input": X.numpy()}, DtypeError, "input: must be a torch.Tensor, not ndarray"),
    ({"weight": W.to("meta")}, UnsupportedError, "weight.device=meta: must be input's, cpu"),
    ({"bias": B.to("meta")}, UnsupportedError, "bias.device=meta: must be input's, cpu"),
    ({"input": X[0, 0]}, LayoutError, r"input.shape=\(9, 11\): must have 4 axes, \[N, C, H, W\]"),
    ({"weight": W[0]}, LayoutError, r"weight.shape=\(6, 3, 2\): must have 4 axes"),
    ({"weight": W[:, :5]}, GeometryError, r"weight.shape=\(4, 5, 3, 2\): has 5 input channels per group"),
    ({"groups": 3}, GeometryError, "has 6 input channels per group, input has C=6 in groups=3"),
    ({"stride": (1, 2, 3)}, GeometryError, r"stride=\(1, 2, 3\): must be an int, or 2 of them"),
    ({"stride": 1.5}, GeometryError, "stride=1.5: must be an int"),
    ({"dilation": True}, GeometryError, "dilation=True: must be an int"),
    (
        {"padding": ((1, 0), (1, 1))},
        GeometryError,
        r"padding=\(\(1, 0\), \(1, 1\)\): pairs are conv3d's; pad input with",
    ),
    ({"input": X[0, :3]}, GeometryError, r"input.shape=\(3, 9, 11\) is read as \[C, H, W\] of one image, C=3; .* C=6"),
    ({"padding": "reflect"}, GeometryError, "padding='reflect': accepted are same, valid; use one, or ints"),
    ({"padding": "same", "stride": 2}, GeometryError, "padding='same', stride="),
    ({"dilation": 9}, GeometryError, r"padded by \(\(0, 0\), \(0, 0\)\) it is smaller than the window"),
]


@pytest.mark.parametrize(("changed", "error", "message"), REFUSED, ids=[case[2][:40] for case in REFUSED])
def test_refusals(changed, error, message):
    with pytest.raises(error, match=message) as caught:
        pytorch.conv2d(**{"input": X, "weight": W, "bias": B, **changed})
    assert isinstance(caught.value, (ValueError, TypeError))
    assert isinstance(caught.value, RuntimeError)  # as torch's are


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_quantized_tensors_are_refused():
    with pytest.raises(DtypeError, match=r"input.dtype=torch.qint8: quantized tensors are not supported"):
        pytorch.conv2d(torch.quantize_per_tensor(X, 1, 0, torch.qint8), W)


def test_all_reasons_are_told_at_once():
    with pytest.raises(DtypeError, match=r"conv2d cannot run this call; 2 reasons\n.*bias.dtype.*\n.*activation='x'"):
        pytorch.conv2d(X, W, B.double(), activation="x")


def test_refusals_name_the_layer():
    with pytest.raises(GeometryError, match=r"^encoder.stem: groups=0: must be at least 1"):
        pytorch.conv2d(X, W, groups=0, layer="encoder.stem")


def test_filters_of_another_kind_are_refused():
    with pytest.raises(GeometryError, match=r"weight.shape=\(12, 1, 4\): must be \[C, 1, S\] for C=6 channels"):
        pytorch.depthwise_conv1d(torch.zeros(2, 6, 9), torch.zeros(12, 1, 4))


def test_modes_are_checked(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "fast")
    with pytest.raises(UnsupportedError, match="NKICONV_CPU='fast': accepted are torch, simulate, compare"):
        pytorch.conv2d(X, W)


def test_compare_names_the_layer_that_differs(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    real = host.reference
    monkeypatch.setattr(host, "reference", lambda *args: real(*args) * 1.0001)
    with pytest.raises(ValueError, match=r"encoder.stem \(conv2d\): the kernel and torch differ by"):
        pytorch.conv2d(X + 0.3, W, layer="encoder.stem")
