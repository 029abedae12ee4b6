"""The torch functions equal torch's own, exactly: values, derivatives, empty extents and FLOPs; `opcheck` of every
operator, and torch's tables of convolutions, by which it tests itself.
"""

import functools

import pytest
import torch
from gradchecks import several
from layers import LAYERS
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from torch_exact import integers, leaves_of, same, spread, torchs

from nkiconv import pytorch
from nkiconv.errors import GeometryError, UnsupportedError
from nkiconv.pytorch.computers import host

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
    # what others reported of convolutions elsewhere: aws-neuron/aws-neuron-sdk#1295 and #398, hexgrad/kokoro#79,
    # pytorch/pytorch#92238 and #106450, modular/modular#6129, tensorflow/tensorflow#9870
    ("conv2d", (1, 3, 32, 64), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    ("conv_transpose2d", (1, 256, 8, 8), (256, 128, 2, 2), {"stride": 2}),
    ("conv_transpose1d", (1, 70, 11), (70, 1, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 70}),
    ("conv2d", (1, 2, 5, 4), (3, 2, 3, 3), {"padding": 100}),
    ("conv_transpose1d", (2, 3, 3), (3, 4, 3), {"dilation": 3, "output_padding": 2}),
    ("conv1d", (1, 96, 60), (96, 6, 128), {"padding": 64, "groups": 16}),
    ("conv1d", (65_537, 1, 4), (2, 1, 3), {}),
    ("conv_transpose2d", (2, 6, 5, 4), (6, 2, 3, 2), {"stride": (2, 1), "groups": 2, "dilation": 2}),
    ("conv_transpose3d", (1, 4, 3, 3, 2), (4, 2, 2, 3, 1), {"stride": 2, "padding": (0, 1, 0)}),
    *((f"conv_transpose{rank}d", (2, C, *EXTENTS[rank]), (C, K, *[taps] * rank), more) for rank in EXTENTS
        for C, K, taps, more in TRANSPOSED),
]  # fmt: skip


def shapes_of(name, x, w, more):
    return x, w, (w[1] * more.get("groups", 1) if "transpose" in name else w[0],)


def pair(name, **more):
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


@pytest.mark.cover(6)
@pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
# operator, zeros before and behind rows and columns, gaps between inputs, stride, dilation
@pytest.mark.parametrize(("name", "padding", "gaps", "stride", "dilation"), [
    ("conv2d", [2, 0, 1, 3], [1, 1], [1, 1], [1, 1]), ("conv2d", [-1, 2, 0, -2], [1, 1], [2, 1], [1, 2]),
    ("conv2d", [-1, 2, 0, -2], [2, 1], [1, 1], [1, 2]), ("conv2d", [3, 1, 0, 2], [2, 3], [1, 2], [2, 1]),
    ("conv_transpose2d", [2, 0, 1, 3], [1, 1], [1, 1], [1, 1]),
    ("conv_transpose2d", [-1, 2, 0, -2], [2, 1], [1, 1], [1, 2]),
    ("conv_transpose2d", [3, 1, 1, 2], [2, 3], [1, 1], [2, 1]),
])  # fmt: skip
def test_derivatives_with_uneven_padding_and_gaps(name, padding, gaps, stride, dilation, mode):
    """With numbers that no function has; against float64 on images that are spread and padded beforehand."""
    leaves, wide = leaves_of((2, 4, 8, 9), (4, 3, 3, 2) if "transpose" in name else (6, 2, 3, 2), (6,))
    operator = getattr(torch.ops.nkiconv, name)
    y = operator(*leaves, None, stride, padding, dilation, gaps, 2, None, "pre_activation", None)
    w = host.forwards(wide[1], 2) if "transpose" in name else wide[1]
    padded = F.pad(spread(wide[0], gaps), [*padding[2:], *padding[:2]])
    expected = F.conv2d(padded, w, wide[2], stride, 0, dilation, 2)
    assert same([y, *derivatives(y, leaves)], [expected, *derivatives(expected, wide)])


def flops(function, *args):
    with FlopCounterMode(display=False) as counter:
        y = function(*args)
        forward = counter.get_total_flops()
        y.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.cover(9)
@pytest.mark.parametrize(("name", "x", "w", "more"), CALLS, ids=lambda value: str(value)[:40])
def test_flops(name, x, w, more):
    """What torch.utils.flop_counter counts of our operators is what it counts of torch's."""
    leaves, _ = leaves_of(*shapes_of(name, x, w, more))
    found, expected = (flops(call, *leaves) for call in pair(name, **more))
    assert found == expected


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "polyphase"])
def test_flops_of_layers(name):
    """With an activation the forward runs once more in backward; filters for each phase take less than torch's."""
    layer = LAYERS[name]
    leaves = [one.detach().requires_grad_() for one in layer.given]
    (forward, both), expected = (
        flops(lambda *given, call=call: several(call(*given))[0], *leaves) for call in (layer.ours, layer.torchs)
    )
    assert forward == expected[0] > 0
    again = both - expected[1]
    assert again == forward if name.startswith(("causal", "rms", "layer", "short")) else 0 <= again <= 2 * forward


X, W, B = integers((2, 6, 9, 11), (4, 6, 3, 2), (4,))


def test_modes_are_checked(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "fast")
    with pytest.raises(UnsupportedError, match="NKICONV_CPU='fast': accepted are torch, simulate, compare"):
        pytorch.conv2d(X, W)


@pytest.mark.cover(8)
# Function, input's and weight's shape.
@pytest.mark.parametrize(("name", "x", "w"), [
    ("conv2d", (0, 4, 8, 8), (4, 4, 3, 3)), ("conv2d", (2, 4, 8, 8), (0, 4, 3, 3)),
    ("conv2d", (2, 4, 8, 8), (4, 4, 0, 3)), ("conv2d", (0, 4, 2, 8), (4, 4, 3, 3)), ("conv1d", (2, 4, 0), (4, 4, 3)),
    *((f"conv{rank}d", (2, 0, *[9] * rank), (8, 0, *[3] * rank)) for rank in EXTENTS),
    *((f"conv_transpose{rank}d", (2, 0, *[9] * rank), (0, 8, *[3] * rank)) for rank in EXTENTS),
], ids=str)  # fmt: skip
def test_empty_extents_are_torchs(name, x, w, mode):
    """Results without channels or images, and gradients of zeros, where torch has them."""
    ours, theirs = pair(name)
    leaves = [torch.ones(one, requires_grad=True) for one in (x, w)]
    try:
        expected = theirs(*leaves)
    except RuntimeError:
        with pytest.raises(GeometryError) as caught:
            ours(*leaves)
        assert isinstance(caught.value, RuntimeError)
        return
    y = ours(*leaves)
    assert y.shape == torch.compile(ours, backend="eager", fullgraph=True)(*leaves).shape == expected.shape
    assert torch.vmap(ours, (1, None))(leaves[0][:, None], leaves[1]).shape == (1, *expected.shape)
    assert not any(one.any() for one in torch.autograd.grad(y.sum(), leaves))


@pytest.mark.cover(0, keep=["causal"])
@pytest.mark.parametrize("name", LAYERS)
def test_opcheck(name):
    """Of each operator that a layer runs, and its backward, with what these are given; numbers of sequences are read in
    backward, which torch.compile cannot."""
    layer = LAYERS[name]
    with Seen() as seen:
        found = several(layer.ours(*(one.detach().requires_grad_("numbered" not in name) for one in layer.given)))
        if found[0].requires_grad:
            sum(one.sum() for one in found).backward()
    assert seen.nkiconvs
    for operator, args, more in seen.nkiconvs:
        leaves = [
            one.detach().clone().requires_grad_(one.is_floating_point()) if isinstance(one, torch.Tensor) else one
            for one in args
        ]
        found = torch.library.opcheck(operator, tuple(leaves), more)
        assert set(found.values()) == {"SUCCESS"}, (operator, found)


# torch's table (`op_db`) of samples, and calls that must raise.

#: torch's name of an operator: nkiconv's function and torch's.
FUNCTIONS = {"nn.functional.conv1d": (pytorch.conv1d, F.conv1d), "nn.functional.conv2d": (pytorch.conv2d, F.conv2d)}
#: On the host whatever torch convolves; in the simulator what the kernels take.
KINDS = [
    *(("simulate", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
    *(("torch", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)),
]
#: Of the largest number, that sums in fp32 which are rounded once are off by.
SHARES = {
    torch.float64: FLOAT64_SUMS, torch.float32: FLOAT32_SUMS,
    **{kind: FLOAT32_SUMS + torch.finfo(kind).eps / 2 for kind in (torch.bfloat16, torch.float16)},
}  # fmt: skip


def entry(name):
    """torch's entry of an operator; only now is torch's table imported, which takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    (found,) = (one for one in op_db if one.name == name)
    return found


def check(ours, theirs, leaves):
    """Fail unless values and gradients are those of torch in float64."""
    found = []
    for call, wide in ((ours, False), (theirs, True)):
        given = [(one.double() if wide else one).detach().clone().requires_grad_() for one in leaves]
        y = call(*given)
        g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(leaves[0].dtype).to(y.dtype)
        found.append([y, *torch.autograd.grad(y, given, g)])
    for one, other in zip(*found, strict=True):
        assert one.dtype == leaves[0].dtype
        if other.any():
            assert_within_share([one.double()], [other], SHARES[one.dtype])
        assert one.shape == other.shape


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of padding="same" with even filters
@pytest.mark.parametrize(("mode", "dtype"), KINDS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_samples(name, mode, dtype, monkeypatch, plans):
    """And what must raise does by both, float64 in it being dtype."""
    monkeypatch.setenv("NKICONV_CPU", mode)
    torch.manual_seed(0)
    ours, theirs = FUNCTIONS[name]
    for one in entry(name).sample_inputs("cpu", dtype):
        tensors = [one.input, *(each for each in one.args if each is not None)]
        check(*(functools.partial(f, **one.kwargs) for f in (ours, theirs)), tensors)
    for error in entry(name).error_inputs("cpu") if dtype in (torch.float32, torch.float64) else ():
        one = error.sample_input
        tensors = [
            each.to(dtype) if isinstance(each, torch.Tensor) and each.dtype == torch.float64 else each
            for each in (one.input, *one.args)
        ]
        for function in (ours, theirs):
            with pytest.raises(error.error_type):
                function(*tensors, **one.kwargs)
