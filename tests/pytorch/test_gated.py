"""gated_short_conv, glu_conv1d and their modules: values, derivatives, states, compilation and batching are torch's."""

import functools

import pytest
import torch
from gradchecks import assert_derivatives, assert_gradients
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, assert_within_share
from torch.nn import functional as F

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import nn


def close(found, wanted):
    """Fail unless fp32 sums of a few terms, and products of them, are wanted's in another order."""
    assert found.shape == wanted.shape
    assert_within_share([found], [wanted], FLOAT32_SUMS)


def short_conv(bcx, w, bias=None, states=None, order="BCx"):
    """y and final states by torch alone."""
    parts = dict(zip(order, bcx.chunk(3, 1), strict=True))
    product = parts["B"] * parts["x"]
    size = w.shape[-1] - 1
    before = product.new_zeros(*product.shape[:2], size) if states is None else states
    rows = torch.cat([before, product], 2)
    return parts["C"] * F.conv1d(rows, w.reshape(-1, 1, size + 1), bias, groups=w.shape[0]), rows[..., -size:]


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 12, 9), (4, 3), (4,), (2, 4, 2)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("order", ["BCx", "xCB"])
def test_gated_short_conv(mode, order, tensors):
    call = functools.partial(pytorch.gated_short_conv, order=order, return_final_states=True)
    assert_gradients(call, functools.partial(short_conv, order=order), tensors)
    x, w, *_ = tensors
    close(pytorch.gated_short_conv(x, w[:, None]), short_conv(x, w)[0])


@pytest.mark.cover(4)
@pytest.mark.parametrize("padding", ["same", "causal", 2])
def test_glu_conv1d(mode, padding, tensors):
    x, w, bias, _ = tensors

    def right(x, w, bias):
        x = F.glu(x, 1)
        rows = F.pad(x, (2, 0)) if padding == "causal" else x
        return F.silu(F.conv1d(rows, w[:, None], bias, padding=0 if padding == "causal" else padding, groups=4))

    assert_gradients(functools.partial(pytorch.glu_conv1d, padding=padding), right, [x[:, :8], w, bias])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("call", [pytorch.gated_short_conv, pytorch.glu_conv1d])
def test_16_bits_agree_within_the_bound(call, dtype, tensors, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    x, w, bias, _ = (one.detach().to(dtype) for one in tensors)
    assert call(x if call is pytorch.gated_short_conv else x[:, :8], w, bias).dtype == dtype


def test_second_derivatives(tensors):
    x, w, bias, states = (one.detach().double()[:1] if one.dim() == 3 else one.detach().double() for one in tensors)
    given = tuple(one.requires_grad_() for one in (x[..., :4].detach(), w, bias, states))
    assert_derivatives(pytorch.gated_short_conv, given)
    assert_derivatives(lambda x, w: pytorch.glu_conv1d(x[:, :8], w), given[:2])


@pytest.mark.parametrize("mode", ["torch", "simulate"])
def test_compiled_it_is_one_operator(mode, tensors, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", mode)
    x, w, bias, states = (one.detach() for one in tensors)
    compiled = torch.compile(lambda *given: pytorch.gated_short_conv(*given), fullgraph=True, backend="aot_eager")
    close(compiled(x, w, bias, states), short_conv(x, w, bias, states)[0])
    with Seen() as seen:
        pytorch.glu_conv1d(x[:, :8], w, bias)
    assert [name for name in seen.names if name.startswith("nkiconv::")] == ["nkiconv::gated_conv1d"]


@pytest.mark.parametrize("mode", ["torch", "simulate"])
@pytest.mark.parametrize("filters", [False, True])
def test_vmap(mode, filters, tensors, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", mode)
    x, w = (torch.stack([one.detach(), 2 * one.detach(), -one.detach()]) for one in tensors[:2])
    given = (x, w) if filters else (x, w[0])
    found = torch.vmap(pytorch.gated_short_conv, (0, 0 if filters else None))(*given)
    wanted = [short_conv(x[i], w[i] if filters else w[0])[0] for i in range(3)]
    close(found, torch.stack(wanted))


def test_steps_are_the_whole(tensors, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    x, w = (one.detach() for one in tensors[:2])
    module = nn.GatedShortConv(4, 3)
    module.weight.data.copy_(w[:, None])
    whole, final = module(x, return_final_states=True)
    states, found = torch.zeros(2, 4, 2), []
    for piece in x.split([4, 1, 1, 3], 2):
        y, states = module(piece, states, return_final_states=True)
        found.append(y)
    close(torch.cat(found, 2), whole)
    torch.testing.assert_close(states, final)


def test_lfm2s_stage(monkeypatch):
    modeling = pytest.importorskip("transformers.models.lfm2.modeling_lfm2")
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    torch.manual_seed(0)
    config = modeling.Lfm2Config(hidden_size=8, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2)
    theirs = modeling.Lfm2ShortConv(config, 0)
    hidden, ours = torch.randn(2, 7, 8), nn.GatedShortConv.from_module(theirs.conv)
    with torch.no_grad():
        wanted = theirs(hidden)
        found = theirs.out_proj(ours(theirs.in_proj(hidden).transpose(-1, -2)).transpose(-1, -2))
    close(found, wanted)
    assert ours.weight is theirs.conv.weight
    ours.load_state_dict(theirs.conv.state_dict())


def test_conformers_stage(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    torch.manual_seed(0)
    conv, norm = torch.nn.Conv1d(6, 6, 5, padding=2, groups=6, bias=False), torch.nn.BatchNorm1d(6)
    norm(torch.randn(4, 6, 9))
    conv, norm = conv.eval(), norm.eval()
    x = torch.randn(2, 12, 11)
    with torch.no_grad():
        wanted = F.silu(norm(conv(F.glu(x, 1))))
        found = nn.ConformerConv.from_modules(conv, norm)(x)
    close(found, wanted)
    alone = nn.ConformerConv.from_modules(conv, activation=None)
    assert alone.weight is conv.weight
    close(alone(x), conv(F.glu(x, 1)))


def test_forward_mode_is_refused_where_a_kernel_computes(monkeypatch):
    x, w = torch.ones(2, 12, 9), torch.ones(4, 3)
    assert torch.func.jvp(lambda x: pytorch.gated_short_conv(x, w), (x,), (x,))[1].shape == (2, 4, 9)
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with pytest.raises(UnsupportedError, match="forward mode"):
        torch.func.jvp(lambda x: pytorch.gated_short_conv(x, w), (x,), (x,))
