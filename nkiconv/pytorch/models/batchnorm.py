"""Folding of norms in eval mode into the filters and bias of the convolutions before them.

`follows` finds pairs of convolution and norm; `norms` finds each norm's scale, shift and activation. Each fold is
compared with both modules in float64 before it is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parametrize

from ...errors import NkiconvError, UnsupportedError
from ..computers.host import activate
from ..norm_act_modules import is_hooked
from .flops import in_training
from .follows import pairs
from .norms import CLOSE, Affine, affine_of, alone_of, channels_of, is_norm
from .report import Fold
from .ways import Copy

_SHOWN = 3


def violations(model: torch.nn.Module, argument: str) -> Iterator[NkiconvError]:
    """Why an argument of `convert` is refused that is for eval mode: modules in training mode."""
    training = [name or "the model" for name, _ in in_training(model)]
    if training:
        names = ", ".join(training[:_SHOWN]) + (f" and {len(training) - _SHOWN} more" if training[_SHOWN:] else "")
        yield UnsupportedError(f"{argument}: needs eval mode, and {names} are in training; call model.eval()")


def find(model: torch.nn.Module, swapped: Sequence[str], copied: Copy) -> tuple[Fold, ...]:
    """A Fold for every norm, folded or with the reason against it; swapped: names of convolutions that may take one."""
    proved = pairs(model, copied)
    before = {pair.norm: pair.convolution for pair in proved.pairs}
    places = Counter(id(module) for _name, module in model.named_modules(remove_duplicate=False))
    owners = Counter(id(one) for module in model.modules() for one in module.parameters(recurse=False))
    found = []
    for name, module in model.named_modules():
        if not is_norm(module):
            continue
        if name not in before:
            found.append(Fold(name, None, reason=proved.why_not(name)))
            continue
        convolution = before[name]
        reason, activation = "its convolution stays in torch, or has its own forward", None
        if convolution in swapped:
            other = model.get_submodule(convolution)
            reason = "; ".join(_reasons(other, module, places, owners))
            reason, activation = (reason, None) if reason else _computes(other, module)
        found.append(Fold(name, convolution, reason, activation))
    return tuple(found)


def _reasons(convolution: Any, norm: Any, places: Counter[int], owners: Counter[int]) -> Iterator[str]:
    """Reasons against folding a pair that do not depend on the norm's values."""
    channels = channels_of(norm)
    if channels is not None and channels != convolution.out_channels:
        yield f"has {channels} channels, its convolution {convolution.out_channels}"
    parts = (convolution, *norm.modules())
    if is_hooked(*parts):
        yield "it or its convolution has hooks, which would see other values"
    if parametrize.is_parametrized(convolution) or convolution._parameters.get("weight") is None:
        yield "its convolution's weight is not a plain parameter"
    elif any(owners[id(one)] > 1 for one in convolution.parameters(recurse=False)):
        yield "its convolution shares parameters with another module"
    if max(places[id(convolution)], places[id(norm)]) > 1:
        yield "it or its convolution is in several places of the model"


def _computes(convolution: Any, norm: torch.nn.Module) -> tuple[str, str | None]:
    """(why a norm's arithmetic cannot be folded, or ""; the activation that the convolution's epilogue takes)."""
    affine = affine_of(norm, len(convolution.kernel_size))
    if isinstance(affine, str):
        return affine, None
    weight, bias = _folded(convolution, affine)
    if not weight.is_meta and not _agrees(convolution, norm, affine, weight, bias):
        return f"folded, it differs by more than rounding filters to {weight.dtype} explains", None
    return "", affine.activation


@torch.no_grad()
def _folded(convolution: Any, affine: Affine) -> tuple[Tensor, Tensor]:
    """(filters, bias) with a norm in them, multiplied in float64 and rounded once."""
    weight, bias = convolution.weight, convolution.bias
    ones = [1] * (weight.dim() - 2)
    by_k = affine.scale.reshape(-1, 1, *ones)
    if convolution.transposed:  # [C, K / groups, ...]
        each = weight.shape[0] // convolution.groups
        by_k = affine.scale.reshape(convolution.groups, -1, *ones).repeat_interleave(each, 0)
    scaled = weight.double() * by_k
    shifted = affine.shift if bias is None else bias.double() * affine.scale + affine.shift
    return scaled.to(weight.dtype), shifted.to(weight.dtype)


@torch.no_grad()
def _agrees(convolution: Any, norm: torch.nn.Module, affine: Affine, weight: Tensor, bias: Tensor) -> bool:
    """Whether the folded filters equal both modules in sequence, in float64."""
    rank, generator = len(convolution.kernel_size), torch.Generator().manual_seed(0)
    steps = zip(convolution.kernel_size, convolution.dilation, strict=True)
    extents = [(taps - 1) * step + 3 for taps, step in steps]
    x = torch.randn(2, convolution.in_channels, *extents, dtype=torch.float64, generator=generator)
    convolve: Any = getattr(F, f"conv{'_transpose' * convolution.transposed}{rank}d")
    how = {"dilation": convolution.dilation, "groups": convolution.groups}
    filters = [None if one is None else one.double().cpu() for one in (convolution.weight, convolution.bias)]
    z, own = convolve(x, *filters, **how), [weight.double().cpu(), bias.double().cpu()]
    found = convolve(x, *own, **how)
    limit = convolve(x.abs(), *(one.abs() for one in own), **how) * 2 * (torch.finfo(weight.dtype).eps + CLOSE)
    alone = alone_of(norm)
    expected = alone(z)
    if affine.activation is not None:
        found = activate(found, affine.activation)
    elif affine.child is not None:
        found = alone.get_submodule(affine.child)(found)
    return bool(((found - expected).abs() <= limit).all())


def fold(model: torch.nn.Module, asked: Fold) -> None:
    """Multiply a norm into its convolution; its activation goes into the epilogue, or stays in its place."""
    assert asked.convolution is not None
    convolution: Any = model.get_submodule(asked.convolution)
    norm: Any = model.get_submodule(asked.batchnorm)
    affine = affine_of(norm, len(convolution.kernel_size))
    assert isinstance(affine, Affine)
    weight, bias = _folded(convolution, affine)
    learns = convolution.weight.requires_grad
    convolution.weight = torch.nn.Parameter(weight, learns)
    convolution.bias = torch.nn.Parameter(bias, learns)
    if affine.activation is not None:
        convolution.activation = affine.activation
    parent, _dot, last = asked.batchnorm.rpartition(".")
    behind = torch.nn.Identity() if affine.child is None else norm.get_submodule(affine.child)
    setattr(model.get_submodule(parent), last, behind.train(norm.training))
