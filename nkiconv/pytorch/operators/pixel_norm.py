"""Norms over the output channels of each pixel, between a convolution's sums and its activation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from ... import pixel_norms, rules
from ...errors import refuse, refused
from ..computers import host
from ..errors import NkiconvError, UnsupportedError
from .convolution import Convolution
from .prologue import Scales
from .tensor_kinds import channel_violations


class PixelNorm(NamedTuple):
    """The norm arguments of `conv2d` and `conv3d`, y_norm and the others; weight, bias: [K] or None; before: whether to
    return the norm's input too."""

    kind: str | None
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    before: bool


def norm_of(kind: Any, weight: Any, bias: Any, eps: Any, before: Any) -> PixelNorm | None:
    """An unchecked norm; None if no argument asks for one."""
    if kind is weight is bias is None and before is False:
        refuse(UnsupportedError, "" if type(eps) is float and eps == pixel_norms.NORM_EPS else pixel_norms.eps(eps))
        return None
    return PixelNorm(kind, weight, bias, eps, before)


def violations(norm: PixelNorm, asked: Convolution, x: Tensor, w: Tensor, scales: Scales) -> Iterator[NkiconvError]:
    """Why a norm does not go with a call."""
    yield from refused(UnsupportedError, pixel_norms.kind(norm.kind), pixel_norms.eps(norm.eps))
    flag = rules.flag("return_before_norm", norm.before)
    yield from refused(UnsupportedError, flag)
    if flag:
        return
    given = asked_of_planner(norm)
    belong = (pixel_norms.belongs(name, given[name], norm.kind) for name in pixel_norms.BELONG)
    yield from refused(UnsupportedError, *belong)
    for name, one in zip(pixel_norms.OF_CHANNELS, (norm.weight, norm.bias), strict=True):
        yield from channel_violations(name, one, asked.outputs(w), x)
    if asked.groups != 1:
        yield UnsupportedError(
            f"y_norm={norm.kind!r}, groups={asked.groups}: kernels have some channels of a pixel at a time where there "
            f"are groups; normalize the result"
        )
    if asked.return_stats is not None:
        yield UnsupportedError(
            f"y_norm={norm.kind!r}, return_stats={asked.return_stats!r}: statistics of a normalized y are those that "
            f"channel_stats takes of it"
        )
    if asked.has_prologue(scales):
        yield UnsupportedError(
            f"y_norm={norm.kind!r}: is not taken with x_scale, x_shift, x_activation, x_upsample; apply these before"
        )


def normalized(u: Tensor, norm: PixelNorm) -> Tensor:
    """The norm of u [N, K, ...], fp32 or float64."""
    if norm.kind == "layer":
        u = u - u.mean(1, keepdim=True)
    found = u * (u.square().mean(1, keepdim=True) + norm.eps).rsqrt()
    found = found if norm.weight is None else found * host.by_channel(norm.weight.to(u.dtype), u)
    return found if norm.bias is None else found + host.by_channel(norm.bias.to(u.dtype), u)


def finished(asked: Convolution, u: Tensor, residual: Tensor | None, norm: PixelNorm) -> Tensor:
    """y from the norm's input u, both fp32 or float64: norm, activation, and a residual after the activation."""
    y = normalized(u, norm)
    y = y if asked.activation is None else host.activate(y, asked.activation)
    return y if residual is None or asked.residual_position == "pre_activation" else y + host.wide(residual)


def both(norm: PixelNorm, y: Tensor, *before: Tensor) -> tuple[Tensor, Tensor]:
    """(y, the norm's input), or an empty tensor in its place where it is not asked for."""
    return y, before[0] if norm.before else y.new_empty(*y.shape[:2], 0)


def numbers_of(norm: PixelNorm) -> dict[str, Any]:
    """A kernel's arguments that are no tensors."""
    found: dict[str, Any] = {"y_norm": norm.kind, "y_norm_eps": float(norm.eps)}
    return found | ({"return_before_norm": True} if norm.before else {})


def asked_of_planner(norm: PixelNorm) -> dict[str, Any]:
    """The norm's fields of `planner.request.Asked`."""
    flags = norm.weight is not None, norm.bias is not None, norm.before
    return {"y_norm": norm.kind, **dict(zip(pixel_norms.BELONG, flags, strict=True))}


def tensors_of(norm: PixelNorm) -> dict[str, Tensor]:
    """A kernel's arguments that are tensors."""
    named = zip(pixel_norms.OF_CHANNELS, (norm.weight, norm.bias), strict=True)
    return {name: one for name, one in named if one is not None}
