"""Two 1x1 convolutions as one call of PyTorch's: who computes it, derivatives, refusals, tools of torch."""

import pytest
import torch
from chained import image
from torch.nn import functional as F

from nkiconv.errors import DtypeError, GeometryError, LayoutError, UnsupportedError
from nkiconv.pytorch import pointwise_mlp

C, M, K = 5, 12, 7
NAMES = ("input", "weight1", "weight2", "bias1", "bias2", "residual")


def drawn(dtype=torch.float32, pixels=(4, 3)):
    """All tensors of a call."""
    shapes = (2, C, *pixels), (M, C), (K, M), (M,), (K,), (2, K, *pixels)
    return {
        name: image(*shape, seed=i).to(dtype) / 4 for i, (name, shape) in enumerate(zip(NAMES, shapes, strict=True))
    }


def truth(input, weight1, weight2, bias1=None, bias2=None, residual=0.0):
    """The same by torch's linear layers, in the dtype of what is given."""
    hidden = F.gelu(F.linear(input.movedim(1, -1), weight1, bias1))
    return F.linear(hidden, weight2, bias2).movedim(-1, 1) + residual


def wide(given):
    return {name: one.double() for name, one in given.items()}


@pytest.mark.parametrize("pixels", [(9,), (4, 3), (2, 3, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_agrees_with_linear_layers(mode, dtype, pixels):
    given = drawn(dtype, pixels)
    found, expected = pointwise_mlp(**given), truth(**wide(given))
    assert found.dtype == dtype
    assert (found - expected).abs().max() <= 2 * torch.finfo(dtype).eps * max(1, expected.abs().max())


def test_what_may_be_left_out(mode):
    given = {name: one for name, one in drawn().items() if name in NAMES[:3]}
    expected = truth(**wide(given))
    assert (pointwise_mlp(**given) - expected).abs().max() <= 4 * M * 2.0**-24 * expected.abs().max()
    assert pointwise_mlp(**given | {"input": given["input"][:0]}).shape == (0, K, 4, 3)


@pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
def test_gradients(mode):
    given = {name: one.requires_grad_() for name, one in drawn().items()}
    g = image(2, K, 4, 3, seed=9)
    found = torch.autograd.grad(pointwise_mlp(**given), [*given.values()], g)
    far = {name: one.detach().double().requires_grad_() for name, one in given.items()}
    expected = torch.autograd.grad(truth(**far), [*far.values()], g.double())
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 4 * 60 * M * 2.0**-24 * max(1, other.abs().max())


def test_second_derivatives():
    given = [one.double().requires_grad_() for one in drawn(pixels=(2,)).values()]
    call = torch.ops.nkiconv.pointwise_mlp
    assert torch.autograd.gradcheck(lambda *tensors: call(*tensors, "gelu", None), given)
    assert torch.autograd.gradgradcheck(lambda *tensors: call(*tensors, "gelu", None), given)


REFUSED = {
    "rank": ({"input": torch.ones(C, 4)}, LayoutError, "input.shape"),
    "channels": ({"weight1": torch.ones(M, C + 1)}, GeometryError, "weight1.shape"),
    "hidden": ({"weight2": torch.ones(K, M + 1)}, GeometryError, "weight2.shape"),
    "bias": ({"bias1": torch.ones(M + 1)}, GeometryError, "bias1.shape"),
    "residual": ({"residual": torch.ones(2, C, 4, 3)}, GeometryError, "residual.shape"),
    "dtypes": ({"weight2": torch.ones(K, M).half()}, DtypeError, "weight2.dtype"),
    "complex": ({"weight2": torch.ones(K, M, dtype=torch.complex64)}, DtypeError, "weight2.dtype"),
    "no pixels": ({"input": torch.ones(2, C, 0)}, GeometryError, "every extent but N"),
    "no tensor": ({"weight1": None}, DtypeError, "weight1: must be a torch.Tensor"),
    "activation": ({"activation": "mish"}, UnsupportedError, "activation='mish'"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why):
    changed, error, message = REFUSED[why]
    with pytest.raises(error, match=message):
        pointwise_mlp(**drawn() | changed)


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
        torch.ops.nkiconv.pointwise_mlp(*given.values(), "gelu", None)
    assert counter.get_total_flops() == 2 * 2 * 12 * M * (C + K)
