"""The torch functions equal torch's own: values, derivatives, batching and FLOPs."""

import functools

import numpy as np
import pytest
import torch
from tolerances import assert_within_limit, derivative_limits
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from torch_exact import integers, leaves_of, same, torchs

from nkiconv import pytorch
from nkiconv.bounds import epilogue_bound
from nkiconv.errors import DtypeError, GeometryError, UnsupportedError
from nkiconv.pytorch.computers import host
from nkiconv.rules import ACTIVATIONS

FUNCTIONS = [
    *(f"conv{rank}d" for rank in (1, 2, 3)), "depthwise_conv1d", "depthwise_conv2d",
    *(f"conv_transpose{rank}d" for rank in (1, 2, 3)),
]  # fmt: skip
#: C, and what follows of a transposed one: K / groups, taps, arguments
TRANSPOSED = [
    (6, 4, 3, {"stride": 2, "padding": 1, "output_padding": 1}),
    (6, 2, 4, {"stride": 2, "padding": 1, "groups": 2}),
    (6, 1, 3, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 6}),
    (6, 4, 2, {"stride": 3, "output_padding": 1, "dilation": 2}),
    (5, 3, 3, {}),
    (4, 3, 1, {"stride": 2, "output_padding": 1, "groups": 2}),
]
EXTENTS = {1: (9,), 2: (5, 6), 3: (3, 4, 3)}
#: name, input's and weight's shape, torch's arguments
CALLS = [
    ("conv1d", (2, 6, 11), (4, 6, 3), {}),
    ("conv1d", (6, 11), (4, 6, 3), {"padding": 2}),
    ("conv1d", (2, 6, 11), (4, 3, 3), {"groups": 2, "stride": 2, "dilation": 3, "padding": (3,)}),
    ("conv1d", (2, 6, 11), (4, 6, 4), {"padding": "same", "dilation": 2}),
    ("conv1d", (2, 6, 11), (4, 6, 4), {"padding": "same"}),  # one zero more behind than before
    ("conv1d", (2, 6, 11), (6, 1, 4), {"groups": 6, "padding": 3}),
    ("conv1d", (2, 6, 11), (12, 1, 4), {"groups": 6, "padding": 3}),
    ("conv2d", (2, 6, 9, 11), (4, 6, 3, 2), {}),
    ("conv2d", (6, 9, 11), (4, 6, 3, 2), {"padding": (1, 0)}),
    ("conv2d", (2, 6, 9, 11), (4, 6, 3, 2), {"padding": "valid"}),
    ("conv2d", (2, 6, 9, 11), (4, 6, 3, 2), {"padding": "same", "dilation": (1, 3)}),
    ("conv2d", (2, 6, 9, 11), (8, 3, 3, 2), {"groups": 2, "stride": (2, 3), "padding": [2, 1], "dilation": (2, 1)}),
    ("conv2d", (2, 3, 9, 8), (4, 3, 3, 2), {"stride": (2, 3), "dilation": (2, 1), "padding": 2}),
    ("conv2d", (2, 4, 6, 5), (4, 2, 2, 4), {"groups": 2, "padding": "same"}),
    ("conv2d", (0, 6, 9, 11), (4, 6, 3, 2), {"padding": 1}),
    ("conv3d", (2, 6, 4, 5, 7), (4, 6, 3, 2, 3), {"padding": (1, 0, 1)}),
    ("conv3d", (6, 4, 5, 7), (4, 3, 2, 2, 2), {"groups": 2, "stride": (1, 2, 1), "dilation": (2, 1, 3), "padding": 1}),
    ("conv3d", (2, 4, 4, 5, 5), (3, 4, 3, 2, 3), {"padding": ((2, 0), (0, 1), (1, 1)), "stride": (1, 2, 1)}),
    ("conv3d", (1, 6, 4, 5, 7), (6, 1, 3, 3, 3), {"groups": 6, "padding": "same"}),
    ("conv3d", (1, 4, 4, 5, 5), (4, 1, 3, 3, 3), {"groups": 4, "dilation": (1, 2, 1), "padding": 1}),
    ("depthwise_conv1d", (2, 6, 11), (6, 1, 4), {"stride": 2, "padding": 3}),
    ("depthwise_conv2d", (2, 6, 9, 11), (6, 1, 3, 3), {"padding": 1, "stride": (1, 2)}),
    ("depthwise_conv2d", (2, 4, 6, 5), (8, 1, 3, 3), {"padding": 1, "stride": 2}),
    ("conv_transpose2d", (2, 6, 5, 4), (6, 2, 3, 2), {"stride": (2, 1), "groups": 2, "dilation": 2}),
    ("conv_transpose3d", (1, 4, 3, 3, 2), (4, 2, 2, 3, 1), {"stride": 2, "padding": (0, 1, 0)}),
    *(
        (f"conv_transpose{rank}d", (2, C, *EXTENTS[rank]), (C, K, *[taps] * rank), more)
        for rank in EXTENTS
        for C, K, taps, more in TRANSPOSED
    ),
]


def shapes_of(name, x, w, more):
    """Of x, w and bias."""
    return x, w, (w[1] * more.get("groups", 1) if "transpose" in name else w[0],)


def small(name, size=7):
    """Shapes and arguments of a call of two groups, of as many as channels where it is depthwise."""
    rank, per_group = int(name[-2]), 1 if name.startswith("depthwise") else 2
    more = {"padding": 1} if per_group == 1 else {"padding": 1, "groups": 2}
    return ((2, 4, *[size] * rank), (4, per_group, *[3] * rank), (4,)), more


def pair(name, **more):
    """nkiconv's function and torch's."""
    return functools.partial(getattr(pytorch, name), **more), functools.partial(torchs, name, **more)


def derivatives(y, leaves, seed=1):
    (g,) = integers(y.shape, seed=seed)
    return torch.autograd.grad(y, leaves, g.to(y.dtype))


@pytest.mark.cover(24, keep=["simulate-conv2d-(0, 6, 9, 11)-(4, 6, 3, 2)-{'padding': 1}-torch.float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "x", "w", "more"), CALLS, ids=lambda value: str(value)[:40])
def test_values_and_derivatives_equal_torchs(name, x, w, more, dtype, mode):
    leaves, wide = leaves_of(*shapes_of(name, x, w, more), dtype=dtype)
    y, expected = (call(*given) for call, given in zip(pair(name, **more), (leaves, wide), strict=True))
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert same([y], [expected])
    if dtype is torch.float32 or mode == "simulate":
        assert same(derivatives(y, leaves), derivatives(expected, wide))


@pytest.mark.cover(12)
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("name", ["conv2d", "depthwise_conv1d", "conv_transpose2d"])
def test_epilogue_and_its_derivatives(name, activation, position, mode):
    """Against torch's own autograd of the same formula, in double."""
    shapes, more = small(name)
    ours, theirs = pair(name, **more)
    generator = torch.Generator().manual_seed(3)
    leaves = [torch.randn(shape, generator=generator) / 2 for shape in shapes]
    leaves = [*leaves, torch.randn(ours(*leaves).shape, generator=generator)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = ours(*leaves[:3], activation=activation, residual=leaves[3], residual_position=position)
    z = theirs(*wide[:3]) + (wide[3] if position == "pre_activation" else 0)
    expected = z if activation is None else host.activate(z, activation)
    expected = expected + (wide[3] if position == "post_activation" else 0)
    g = torch.randn(y.shape, generator=generator)
    found, wanted = torch.autograd.grad(y, leaves, g), torch.autograd.grad(expected, wide, g.double())
    before = position == "pre_activation"
    sums, summed = ((lambda *four: theirs(*four[:3]) + four[3]), leaves) if before else (theirs, leaves[:3])
    limits = [*derivative_limits(sums, summed, g, activation), np.zeros(y.shape)]  # that of what is added last is g
    for one, other, limit in zip(found, wanted, limits, strict=False):
        assert_within_limit(one.numpy(), other.numpy(), limit)
    terms = int(theirs(*map(torch.ones_like, leaves[:2]), None).max())
    x, w, bias, residual = (leaf.detach() for leaf in wide)
    plain, size = theirs(x, w, None).numpy(), theirs(x.abs(), w.abs(), None).numpy()
    limit = epilogue_bound(terms, size, plain, "fp32", bias.numpy(), activation, residual.numpy(), position)
    assert_within_limit(y.detach().numpy(), expected.detach().numpy(), limit)


#: operator, zeros before and behind rows and columns, gaps between inputs, stride, dilation
UNEVEN = [
    ("conv2d", [2, 0, 1, 3], [1, 1], [1, 1], [1, 1]), ("conv2d", [-1, 2, 0, -2], [1, 1], [2, 1], [1, 2]),
    ("conv2d", [-1, 2, 0, -2], [2, 1], [1, 1], [1, 2]), ("conv2d", [3, 1, 0, 2], [2, 3], [1, 2], [2, 1]),
    ("conv_transpose2d", [2, 0, 1, 3], [1, 1], [1, 1], [1, 1]),
    ("conv_transpose2d", [-1, 2, 0, -2], [2, 1], [1, 1], [1, 2]),
    ("conv_transpose2d", [3, 1, 1, 2], [2, 3], [1, 1], [2, 1]),
]  # fmt: skip


@pytest.mark.cover(6)
@pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
@pytest.mark.parametrize(("name", "padding", "gaps", "stride", "dilation"), UNEVEN)
def test_derivatives_with_uneven_padding_and_gaps(name, padding, gaps, stride, dilation, mode):
    """With numbers that no function has; against float64 on images that are spread and padded beforehand."""
    leaves, wide = leaves_of((2, 4, 8, 9), (4, 3, 3, 2) if "transpose" in name else (6, 2, 3, 2), (6,))
    operator = getattr(torch.ops.nkiconv, name)
    y = operator(*leaves, None, stride, padding, dilation, gaps, 2, None, "pre_activation", None)
    spread = wide[0].new_zeros(2, 4, 7 * gaps[0] + 1, 8 * gaps[1] + 1)
    spread[:, :, :: gaps[0], :: gaps[1]] = wide[0]
    w = host.forwards(wide[1], 2) if "transpose" in name else wide[1]
    expected = F.conv2d(F.pad(spread, [*padding[2:], *padding[:2]]), w, wide[2], stride, 0, dilation, 2)
    assert same([y, *derivatives(y, leaves)], [expected, *derivatives(expected, wide)])


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(name, mode):
    """Of numbers from -1 to 1: no sum reaches 2^24, so that they are exact in any order."""
    shapes, more = small(name, 5)
    leaves, wide = leaves_of(*shapes, most=1)

    def second(convolve, x, w, bias):
        first = torch.autograd.grad(convolve(x, w, bias).pow(2).sum(), (x, w), create_graph=True)
        of_x = torch.autograd.grad(first[0].pow(2).sum(), (x, w), retain_graph=True)
        return *of_x, *torch.autograd.grad(first[1].sum(), (x, w))

    found, expected = (second(call, *given) for call, given in zip(pair(name, **more), (leaves, wide), strict=True))
    assert all(0 < one.abs().max() < 2**24 for one in expected)
    assert same(found, expected)


def stacked(tensors, dims):
    return [
        one if dim is None else torch.stack([(step + 1) * one for step in range(3)], dim)
        for one, dim in zip(tensors, dims, strict=True)
    ]


@pytest.mark.cover(10)
@pytest.mark.parametrize("dims", [(0, None, None), (1, 0, None), (None, 0, 1), (2, 1, 0), (None, None, 0)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap(name, dims):
    shapes, more = small(name)
    given = stacked(integers(*shapes), dims)
    ours, theirs = (torch.vmap(call, in_dims=dims)(*given) for call in pair(name, **more))
    assert torch.equal(ours, theirs)


def flops(function, *args):
    with FlopCounterMode(display=False) as counter:
        y = function(*args)
        forward = counter.get_total_flops()
        y.sum().backward()
    return forward, counter.get_total_flops()


#: What torch.utils.flop_counter counts of our operators is what it counts of torch's.
COUNTED = [
    ("conv1d", (2, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    ("depthwise_conv1d", (2, 4, 9), (4, 1, 3), {"padding": "same"}),
    ("conv2d", (2, 4, 9, 8), (6, 4, 3, 2), {"padding": 1, "dilation": 2}),
    ("conv2d", (2, 4, 9, 8), (6, 2, 3, 3), {"stride": 2, "padding": 1, "groups": 2}),
    ("conv2d", (4, 9, 8), (6, 4, 3, 3), {}),
    ("conv3d", (2, 4, 4, 5, 3), (6, 4, 2, 3, 1), {"stride": (1, 2, 1)}),
    ("conv_transpose1d", (2, 4, 9), (4, 6, 3), {"stride": 2}),
    ("conv_transpose2d", (2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1, "groups": 2}),
    ("conv_transpose3d", (2, 4, 2, 3, 4), (4, 6, 2, 2, 2), {}),
]


@pytest.mark.parametrize(("name", "x", "w", "more"), COUNTED, ids=str)
def test_flops(name, x, w, more):
    leaves, _ = leaves_of(*shapes_of(name, x, w, more))
    found, expected = (flops(call, *leaves) for call in pair(name, **more))
    assert found == expected
    assert expected[1] == 3 * expected[0] or {"groups", "stride"} & more.keys() or name.startswith("depthwise")


def test_flops_of_frames_are_of_planes():
    leaves, _ = leaves_of((1, 2, 3, 4, 5), (1, 2, 2, 4, 5), (3, 2, 2, 3, 3))
    expected = flops(lambda x, frames, w: F.conv3d(torch.cat([frames, x], 2), w), *leaves)
    assert flops(lambda x, frames, w: pytorch.conv3d(x, w, initial_frames=frames), *leaves) == expected


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("more", [{}, {"cu_seqlens": torch.tensor([0, 5, 12])}], ids=["rows", "packed"])
def test_flops_of_causal_rows(more, activation):
    """With an activation the forward runs once more in backward."""
    leaves, _ = leaves_of((1, 4, 12), (4, 3))
    forward, both = flops(lambda x, w: F.conv1d(F.pad(x, (2, 0)), w[:, None], groups=4), *leaves)
    found = flops(lambda x, w: pytorch.causal_conv1d_fn(x, w, activation=activation, **more), *leaves)
    assert found == (forward, both + (forward if activation else 0))


X, W, B = integers((2, 6, 9, 11), (4, 6, 3, 2), (4,))


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_quantized_tensors_are_refused():
    with pytest.raises(DtypeError, match=r"input.dtype=torch.qint8: quantized tensors are not supported"):
        pytorch.conv2d(torch.quantize_per_tensor(X, 1, 0, torch.qint8), W)


def test_modes_are_checked(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "fast")
    with pytest.raises(UnsupportedError, match="NKICONV_CPU='fast': accepted are torch, simulate, compare"):
        pytorch.conv2d(X, W)


# Convolutions of no input channels are torch's in every mode: results without channels, gradients of zeros.


@pytest.mark.cover(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_layers_of_no_channels(rank, mode):
    with pytest.warns(UserWarning, match="zero-element"):
        layer = getattr(pytorch.nn, f"Conv{rank}d")(0, 8, 3, activation="relu")
    x, size = torch.ones(2, 0, *(9,) * rank), (0, *(7,) * rank)
    assert layer(x).shape == layer(x[0])[None].expand(2, *(-1,) * (rank + 1)).shape == (2, *size)
    assert torch.compile(layer, backend="eager", fullgraph=True)(x).shape == (2, *size)
    assert torch.func.vmap(layer)(x[:, None]).shape == (2, 1, *size)


@pytest.mark.cover(3)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_no_channels_that_torch_refuses(rank, mode):
    """Transposed filters of no channels, and filters without outputs."""
    x, w = integers((2, 0, *(9,) * rank), (8, 0, *(3,) * rank))
    with pytest.raises(GeometryError, match="every extent but N must be at least 1"):
        getattr(pytorch, f"conv_transpose{rank}d")(x, w.transpose(0, 1))
    with pytest.raises(GeometryError, match="every extent but N and C must be at least 1"):
        getattr(pytorch, f"conv{rank}d")(x, w[:0])
