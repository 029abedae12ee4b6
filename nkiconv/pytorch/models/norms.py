"""Norms of channels, and of the channels of pixels, as a run in float64 shows them: their classes prove nothing.

- `affine_of`: scale, shift and activation of a norm with fixed statistics, any module with running_mean and
  running_var, torch's or not: act(scale * x + shift) for each channel, on numbers far to both sides of where
  activations bend.
- `activation_within`: the activation in a subclass of torch's norms with its own forward, as timm's BatchNormAct2d: it
  must return its base class's result, activated, and leave the same buffers, in both modes.
- `kind_of`: which of `pixel_norms.NORMS` a norm over the channels of pixels computes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ...activations import ACTIVATIONS
from ...pixel_norms import NORMS
from ..computers.host import activate
from ..norm_act_modules import is_hooked
from ..operators.pixel_norm import PixelNorm, normalized

#: How far a norm may be off, of the sum of its terms: it may compute in fp32.
CLOSE = 1e-5
#: The norms that are known without a run, for parameters without data, by the number of axes of their images.
KNOWN = {rank: (getattr(torch.nn, f"BatchNorm{rank}d"), torch.nn.SyncBatchNorm) for rank in (1, 2, 3)}


def alone_of(module: torch.nn.Module, is_meta: bool = False) -> Any:
    """A copy of a module in float64 on the host, for a run by itself; without numbers where it has none."""
    return (copy.deepcopy(module).to_empty(device="cpu") if is_meta else copy.deepcopy(module).cpu()).double()


def are_close(found: Any, expected: Tensor) -> bool:
    """Whether a result is the one expected, within rounding."""
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return False
    return bool(((found - expected).abs() <= CLOSE * (1 + expected.abs())).all())


@dataclass(frozen=True)
class Affine:
    """act(scale * x + shift), in float64, of [C]."""

    scale: Tensor
    shift: Tensor
    activation: str | None = None  # one that nkiconv fuses
    child: str | None = None  # otherwise the norm's own module that follows


def is_norm(module: torch.nn.Module) -> bool:
    """Whether a module may be a norm with statistics."""
    return isinstance(module, _BatchNorm) or _statistics(module) is not None


def _statistics(module: torch.nn.Module) -> tuple[Tensor, Tensor] | None:
    mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if not (isinstance(mean, Tensor) and isinstance(var, Tensor)) or mean.dim() != 1 or mean.shape != var.shape:
        return None
    return mean, var


def channels_of(module: torch.nn.Module) -> int | None:
    """A norm's number of channels; None if it has no statistics."""
    found = _statistics(module)
    return None if found is None else found[0].shape[0]


@torch.no_grad()
def affine_of(module: torch.nn.Module, rank: int) -> Affine | str:
    """A norm's scale, shift and activation for images of `rank` axes, or the reason why it cannot be folded."""
    found, eps = _statistics(module), getattr(module, "eps", None)
    if found is None:
        return "has no running statistics"
    if not isinstance(eps, float):
        return "has no eps"
    affine = (getattr(module, name, None) for name in ("weight", "bias"))
    weight, bias = (None if one is None else one.double() for one in affine)
    scale = (found[1].double() + eps).rsqrt() * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - found[0].double() * scale
    if found[0].is_meta:
        return Affine(scale, shift) if type(module) in KNOWN[rank] else "has no data to see what it computes"
    return _probed(module, rank, scale, shift)


def _probed(module: torch.nn.Module, rank: int, scale: Tensor, shift: Tensor) -> Affine | str:
    generator = torch.Generator().manual_seed(0)
    z = 24 * torch.rand(2, len(scale), *[5] * rank, dtype=torch.float64, generator=generator) - 12
    z[..., 0] *= 100
    each = [-1, *[1] * rank]
    wide, offset = scale.cpu().reshape(each), shift.cpu().reshape(each)
    x = torch.where(wide == 0, z, (z - offset) / torch.where(wide == 0, 1, wide))
    z = wide * x + offset
    limit = CLOSE * (1 + (wide * x).abs() + offset.abs())
    try:
        alone = alone_of(module)
        y = alone(x.clone())
    except Exception as error:  # the module's own code may raise any exception
        return f"raises {type(error).__name__} on a probe in float64: {error}"
    if not isinstance(y, Tensor) or y.shape != z.shape:
        return "does not return what has its input's shape"
    for activation, child, expected in _candidates(alone, z):
        if bool(((y - expected).abs() <= limit).all()):
            return Affine(scale, shift, activation, child)
    return f"is a {type(module).__name__}, which does not compute act(scale * x + shift) of each channel"


def _candidates(module: torch.nn.Module, z: Tensor) -> Iterator[tuple[str | None, str | None, Tensor]]:
    """(activation, child, the norm's result with it)."""
    yield None, None, z
    for name in ACTIVATIONS:
        yield name, None, activate(z, name)
    for name, child in module.named_children():
        found = _called(child, z.clone())
        if found is not None and found.shape == z.shape:
            yield None, name, found


def _called(function: Callable[[Tensor], Any], z: Tensor) -> Tensor | None:
    try:
        y = function(z)
    except Exception:  # a child that takes something else
        return None
    return y if isinstance(y, Tensor) else None


#: Attribute of a norm: the result of `activation_within`.
_OWN = "nkiconv_own_activation"
#: A norm has none.
NO_ACTIVATION = ""
_RANKS = {torch.nn.GroupNorm: 2, torch.nn.BatchNorm1d: 1, torch.nn.BatchNorm2d: 2, torch.nn.BatchNorm3d: 3}


def base_forward_of(norm: Any) -> Any:
    """The forward of torch that a norm has, or has something after."""
    return torch.nn.GroupNorm.forward if isinstance(norm, torch.nn.GroupNorm) else _BatchNorm.forward


def activation_within(norm: Any) -> str | None:
    """nkiconv's name of the activation in a norm's own forward, or NO_ACTIVATION; None: it does something else. Found
    once, and noted on the module."""
    if _OWN not in vars(norm):
        vars(norm)[_OWN] = _seen(norm)
    found: str | None = vars(norm)[_OWN]
    return found


@torch.no_grad()
def _seen(norm: Any) -> str | None:
    rank = next((rank for kind, rank in _RANKS.items() if isinstance(norm, kind)), None)
    if rank is None or is_hooked(*norm.modules()):
        return None
    is_meta = any(one.is_meta for one in norm.state_dict().values())
    alone = alone_of(norm, is_meta)
    generator = torch.Generator().manual_seed(0)
    for one in alone.state_dict().values():
        one.copy_(8 * torch.rand(one.shape, dtype=torch.float64, generator=generator) + 1)
    channels = norm.num_channels if isinstance(norm, torch.nn.GroupNorm) else norm.num_features
    x = torch.randn(3, channels, *[4] * rank, dtype=torch.float64, generator=generator)
    names = {NO_ACTIVATION, *ACTIVATIONS}
    for training in (False, True):
        own, base = (copy.deepcopy(alone).train(training) for _ in range(2))
        try:
            y, z = own(x.clone()), base_forward_of(norm)(base, x)
        except Exception:  # the norm's own code may raise any exception
            return None
        names = {name for name in names if are_close(y, activate(z, name) if name else z)}
        buffers = zip(own.state_dict().values(), base.state_dict().values(), strict=True)
        if not names or not all(are_close(*pair) for pair in buffers):
            return None
    return min(names)


#: What torch.nn.functional.normalize takes for the least length of a pixel; it has no eps.
_LEAST_LENGTH = 1e-12
#: Lengths of pixels on which a norm is seen, at which an eps of 1e-6 would show.
_SCALES = (1e-3, 1.0, 1e3)


def affine_of_pixels(norm: Any, channels: int) -> tuple[Tensor | None, Tensor | None] | None:
    """Weight and bias of a norm, [K] or None; None where they are not of so many channels."""
    weight, bias = getattr(norm, "gamma", getattr(norm, "weight", None)), getattr(norm, "bias", None)
    if weight is None and not isinstance(bias, Tensor):
        return None, None
    if not isinstance(weight, Tensor) or weight.numel() != channels or weight.shape[0] != channels:
        return None
    return weight.flatten(), bias.flatten() if isinstance(bias, Tensor) and bias.numel() == channels else None


def norm_of_kind(
    norm: Any, kind: str, channels: int, scale: Tensor | None = None, shift: Tensor | None = None
) -> PixelNorm:
    """A norm with its parameters as they are now, times scale plus shift, [K] or None."""
    own, eps = affine_of_pixels(norm, channels), getattr(norm, "eps", None)
    assert own is not None  # they were found to go with the convolution
    weight, bias = (one if scale is None or one is None else one * scale for one in own)
    weight = scale if weight is None else weight
    bias = bias if shift is None else shift if bias is None else bias + shift
    return PixelNorm(kind, weight, bias, eps if isinstance(eps, float) else _LEAST_LENGTH**2 / channels, False)


@torch.no_grad()
def kind_of(norm: Any, channels: int, rank: int, is_meta: bool, last: bool = False) -> str | None:
    """Which of `pixel_norms.NORMS` a norm computes, in float64, of pixels of several lengths and of zeros, of images of
    so many axes, whose channels are the last of all where `last` says so."""
    if getattr(norm, "eps", 0.0) is None:  # of x's dtype
        return None
    alone = alone_of(norm, is_meta)
    generator = torch.Generator().manual_seed(0)
    for one in alone.parameters():
        one.copy_(torch.randn(one.shape, dtype=torch.float64, generator=generator))
    u = torch.randn(len(_SCALES) + 1, channels, *[2] * rank, dtype=torch.float64, generator=generator)
    u *= torch.tensor([0.0, *_SCALES], dtype=torch.float64).reshape(-1, *[1] * (rank + 1))
    try:
        expected = alone(u.movedim(1, -1)).movedim(-1, 1) if last else alone(u)
    except Exception:  # the norm's own code, which may raise whatever it likes
        return None
    for kind in NORMS:
        if are_close(expected, normalized(u, norm_of_kind(alone, kind, channels))):
            return kind
    return None
