"""The tensor that an operator convolves, made of its arguments: frames in front of x, or x after a prologue.

With v = x * x_scale + x_shift, h = x_activation(v) upsampled, g the sum of dL/dh over the copies of each pixel of x:

    dL/dx = g act'(v) x_scale, dL/dx_scale = sum of g act'(v) x, dL/dx_shift = sum of g act'(v)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...activations import ACTIVATIONS
from ..computers import host
from .called import Called
from .convolution import filter_like
from .frames import joined

#: dL/d or tangents of x and what it is made of besides, None where they are not needed or constant.
Each = Sequence["Tensor | None"]


def convolved(called: Called) -> Tensor:
    """h, or both frames and x."""
    if called.frames is not None:
        return joined(called.x, called.frames)
    return host.prologued(called.asked, called.x, called.scales)


def stand_in(called: Called) -> Tensor:
    """In its place a tensor that is only its shape."""
    x = called.whole
    return filter_like(x, (*x.shape[:2], *called.asked.convolved(x)), x.dtype)


def gradients(called: Called, g: Tensor | None, needs: Sequence[bool]) -> Each:
    """dL/d x and what it is made of besides, as needed, from g, that by the tensor that is convolved."""
    if g is None:
        return (None,) * len(needs)
    if called.frames is not None:
        planes = called.frames.shape[2]
        return g[:, :, planes:] if needs[0] else None, g[:, :, :planes] if needs[1] else None
    if not called.has_prologue:
        return g, *[None] * (len(needs) - 1)
    x, (scale, shift) = called.x, called.scales
    g, wide = _gathered(host.wide(g), called.asked.x_upsample), host.wide(x)
    slope = _slope(called)
    g = g if slope is None else g * slope
    of_x = of_scale = of_shift = None
    if needs[0]:
        of_x = (g if scale is None else g * host.by_channel(scale, x)).to(x.dtype)
    if needs[1] and scale is not None:
        of_scale = _summed(g * wide, scale)
    if needs[2] and shift is not None:
        of_shift = _summed(g, shift)
    return of_x, of_scale, of_shift


def tangent(called: Called, tangents: Each) -> Tensor | None:
    """The tangent of the tensor that is convolved; None if it is constant."""
    dx, x = tangents[0], called.x
    if called.frames is not None:
        dframes = tangents[1]
        if dx is None and dframes is None:
            return None
        return joined(
            torch.zeros_like(x) if dx is None else dx, torch.zeros_like(called.frames) if dframes is None else dframes
        )
    if not called.has_prologue:
        return dx
    dscale, dshift = tangents[1:]
    scale, terms = called.scales[0], list[Any]()
    if dx is not None:
        terms.append(host.wide(dx) if scale is None else host.wide(dx) * host.by_channel(scale, x))
    if dscale is not None:
        terms.append(host.wide(x) * host.by_channel(dscale, x))
    if dshift is not None:
        terms.append(host.by_channel(dshift, x).expand(x.shape))
    if not terms:
        return None
    found, slope = sum(terms[1:], terms[0]), _slope(called)
    return host.upsampled(found if slope is None else found * slope, called.asked.x_upsample).to(x.dtype)


def _slope(called: Called) -> Tensor | None:
    """The derivative of x_activation; None for the identity."""
    activation = called.asked.x_activation
    if activation is None:
        return None
    own, argument = ACTIVATIONS[activation], host.prologue_argument(called.x, called.scales)
    slope: Tensor = own.slope(host.activate(argument, activation) if own.by_result else argument)
    return slope


def _gathered(g: Tensor, times: int) -> Tensor:
    """The sum over the pixels that are one of x."""
    if times == 1:
        return g
    rows, columns = g.shape[2:]
    return g.reshape(*g.shape[:2], rows // times, times, columns // times, times).sum((3, 5))


def _summed(g: Tensor, numbers: Tensor) -> Tensor:
    """The sum for each of the numbers, [C] or [N, C]."""
    return g.sum([*range(2, g.dim())] if numbers.dim() == 2 else [0, *range(2, g.dim())])
