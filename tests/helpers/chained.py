"""A block of two fused chains, and numbers for its parameters and inputs."""

import copy

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

C = 8


def drawn(model, seed=0):
    """A model with parameters and statistics that no layer has by default."""
    generator = torch.Generator().manual_seed(seed)
    for name, one in model.state_dict().items():
        if one.is_floating_point():
            low = 0.5 if name.endswith("var") else -0.5
            one.copy_(torch.rand(one.shape, generator=generator) + low)
    return model


def image(*shape, seed=1):
    """[N, C, ...], with a mean that is no small number."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 2


def assert_same(converted, model, *inputs, terms):
    """Both within fp32 rounding of the modules in float64; terms: products in a sum of all layers."""
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(*(one.double() for one in inputs))
        for one in (converted, model):
            error = (one(*(given.clone() for given in inputs)) - truth).abs().max()
            assert error <= 4 * terms * 2.0**-24 * max(1, truth.abs().max())


def derived(model, kind, inputs):
    """(what a copy of a model gives of inputs in a dtype, gradients of inputs and parameters, and moved statistics)."""
    own, leaves = copy.deepcopy(model).to(kind), [one.to(kind, copy=True).requires_grad_() for one in inputs]
    y = tree_leaves(own(*(one.clone() for one in leaves)))
    sum((one * one.detach().cos()).sum() for one in y).backward()
    gradients = [one.grad for one in (*leaves, *own.parameters()) if one.grad is not None]
    return [one.detach() for one in y], [*gradients, *(one for one in own.buffers() if one.is_floating_point())]


def assert_gradients(converted, model, *inputs, terms):
    """Results as `assert_same` has them; gradients, in which pixels are summed as well, and statistics by that more."""
    found, truth = derived(converted, torch.float32, inputs), derived(model, torch.float64, inputs)
    for some, others, sums in zip(found, truth, (terms, terms * inputs[0][:, 0].numel()), strict=True):
        for one, other in zip(some, others, strict=True):
            assert (one - other).abs().max() <= 4 * sums * 2.0**-24 * max(1, other.abs().max())


class Block(nn.Module):
    """A residual block whose two chains share an activation, which another branch calls too."""

    def __init__(self, dropout=0.1, norm=lambda: nn.GroupNorm(2, C)):
        super().__init__()
        self.norm1, self.norm2, self.act = norm(), norm(), nn.SiLU()
        self.conv1, self.conv2 = nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 3, padding=1)
        self.dropout, self.time = nn.Dropout(dropout), nn.Linear(4, C)

    def forward(self, x, t):
        h = self.conv1(self.act(self.norm1(x)))
        h = h + self.time(self.act(t))[:, :, None, None]
        h = self.conv2(self.dropout(self.act(self.norm2(h))))
        return (x + h) / 2
