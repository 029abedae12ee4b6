"""Convolutions of no input channels are torch's in every mode: results without channels, gradients of zeros."""

import pytest

torch = pytest.importorskip("torch")
functional = pytest.importorskip("nkiconv.pytorch.functional")
nn = pytest.importorskip("nkiconv.pytorch.nn")
transposed = pytest.importorskip("nkiconv.pytorch.transposed")

from nkiconv import GeometryError  # noqa: E402

MODES = ("torch", "simulate", "compare")


def tensors(rank, dtype=torch.bfloat16):
    """x, w and bias with gradients."""
    shapes = (2, 0, *(9,) * rank), (8, 0, *(3,) * rank), (8,)
    return [torch.ones(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("numbers", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2}])
def test_as_torch(monkeypatch, mode, rank, numbers):
    monkeypatch.setenv("NKICONV_CPU", mode)
    x, w, bias = tensors(rank)
    expected = getattr(torch.nn.functional, f"conv{rank}d")(x, w, bias, **numbers)
    expected.sum().backward()
    conv = getattr(functional, f"conv{rank}d")
    residual = torch.ones(expected.shape, dtype=torch.bfloat16, requires_grad=True)
    for more in ({}, {"activation": "silu"}, {"activation": "relu", "residual": residual}):
        mine = tensors(rank)
        y = conv(*mine, **numbers, **more)
        assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
        y.sum().backward()
        for one, other in zip(mine, (x, w, bias), strict=True):
            assert torch.equal(one.grad, other.grad)
            assert one.grad.dtype == other.grad.dtype
    assert residual.grad.shape == residual.shape


@pytest.mark.cover(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_layers_and_compiled_calls(monkeypatch, mode, rank):
    monkeypatch.setenv("NKICONV_CPU", mode)
    with pytest.warns(UserWarning, match="zero-element"):
        layer = getattr(nn, f"Conv{rank}d")(0, 8, 3, activation="relu")
    x = torch.ones(2, 0, *(9,) * rank)
    assert layer(x).shape == layer(x[0])[None].expand(2, *(-1,) * (rank + 1)).shape == (2, 0, *(7,) * rank)
    assert torch.compile(layer, backend="eager", fullgraph=True)(x).shape == (2, 0, *(7,) * rank)
    assert torch.func.vmap(layer)(x[:, None]).shape == (2, 1, 0, *(7,) * rank)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_what_torch_refuses(monkeypatch, mode, rank):
    """Transposed filters of no channels, and filters without outputs."""
    monkeypatch.setenv("NKICONV_CPU", mode)
    x, w, _ = tensors(rank)
    with pytest.raises(GeometryError, match="every extent but N must be at least 1"):
        getattr(transposed, f"conv_transpose{rank}d")(x, w.transpose(0, 1))
    with pytest.raises(GeometryError, match="every extent but N and C must be at least 1"):
        getattr(functional, f"conv{rank}d")(x, w[:0])
