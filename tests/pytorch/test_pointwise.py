"""Two 1x1 convolutions as one call of PyTorch's: who computes it, derivatives, refusals, tools of torch."""

import pytest
import torch
from chained import image
from gradchecks import assert_derivatives, assert_gradients
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.pixel_norms import NORMS
from nkiconv.pytorch import pointwise_mlp

C, M, K = 5, 12, 7
NAMES = ("input", "weight1", "weight2", "bias1", "bias2", "residual", "x_norm_weight", "x_norm_bias")
#: Those without a norm.
PLAIN = NAMES[:6]


def drawn(dtype=torch.float32, pixels=(4, 3), names=PLAIN):
    """All tensors of a call."""
    shapes = (2, C, *pixels), (M, C), (K, M), (M,), (K,), (2, K, *pixels), (C,), (C,)
    every = {
        name: image(*shape, seed=i).to(dtype) / 4 for i, (name, shape) in enumerate(zip(NAMES, shapes, strict=True))
    }
    return {name: every[name] for name in names}


def truth(
    input, weight1, weight2, bias1=None, bias2=None, residual=0.0, x_norm_weight=None, x_norm_bias=None, x_norm=None
):
    """The same by torch's linear layers and norms, in the dtype of what is given."""
    rows, affine = input.movedim(1, -1), (x_norm_weight, x_norm_bias)
    if x_norm == "layer":
        rows = F.layer_norm(rows, (C,), *affine, eps=1e-6)
    elif x_norm == "rms":
        rows = F.rms_norm(rows, (C,), affine[0], eps=1e-6) + (0 if affine[1] is None else affine[1])
    hidden = F.gelu(F.linear(rows, weight1, bias1))
    return F.linear(hidden, weight2, bias2).movedim(-1, 1) + residual


def wide(given):
    return {name: one.double() for name, one in given.items()}


@pytest.mark.cover(12)
@pytest.mark.parametrize("pixels", [(9,), (4, 3), (2, 3, 2)])
@pytest.mark.parametrize("norm", [None, *NORMS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_agrees_with_linear_layers(mode, dtype, norm, pixels):
    given = drawn(dtype, pixels, PLAIN if norm is None else NAMES)
    found, expected = pointwise_mlp(**given, x_norm=norm), truth(**wide(given), x_norm=norm)
    assert found.dtype == dtype
    roundings = 2 if norm is None else 4
    assert (found - expected).abs().max() <= roundings * torch.finfo(dtype).eps * max(1, expected.abs().max())


def test_what_may_be_left_out(mode):
    given = {name: one for name, one in drawn().items() if name in NAMES[:3]}
    layer = pointwise_mlp(**given, x_norm="layer")
    assert (layer - truth(**wide(given), x_norm="layer")).abs().max() <= 16 * M * 2.0**-24 * layer.abs().max()
    expected = truth(**wide(given))
    assert (pointwise_mlp(**given) - expected).abs().max() <= 4 * M * 2.0**-24 * expected.abs().max()
    assert pointwise_mlp(**given | {"input": given["input"][:0]}).shape == (0, K, 4, 3)


@pytest.mark.cover(3)
@pytest.mark.parametrize("norm", [None, *NORMS])
@pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
def test_gradients(mode, norm):
    names = PLAIN if norm is None else NAMES
    pair = (
        lambda *given, one=one: one(**dict(zip(names, given, strict=True)), x_norm=norm)
        for one in (pointwise_mlp, truth)
    )
    assert_gradients(*pair, [*drawn(names=names).values()])


@pytest.mark.parametrize("norm", [None, "layer"])
def test_second_derivatives(norm):
    given = [one.double().requires_grad_() for one in drawn(pixels=(2,), names=NAMES).values()]
    given = given if norm else [*given[:6], None, None]

    def call(*tensors):
        return torch.ops.nkiconv.pointwise_mlp(*tensors, "gelu", norm, 1e-6, None)

    assert_derivatives(call, given)


def test_forward_mode_and_vmap_are_refused_by_kernels(simulate):
    given = drawn()
    with pytest.raises(UnsupportedError, match="no derivatives in forward mode"):
        torch.func.jvp(lambda x: pointwise_mlp(**given | {"input": x}), (given["input"],), (given["input"],))
    with pytest.raises(UnsupportedError, match=r"torch.vmap does not take it"):
        torch.vmap(lambda x: pointwise_mlp(**given | {"input": x}))(given["input"][None])


def test_compile_export_and_flops():
    given = drawn()
    expected = pointwise_mlp(**given)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: pointwise_mlp(**given | {"input": x}), backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(given["input"]), expected, rtol=0, atol=M * 2.0**-22)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        torch.ops.nkiconv.pointwise_mlp(*given.values(), None, None, "gelu", None, 1e-6, None)
    assert counter.get_total_flops() == 2 * 2 * 12 * M * (C + K)
