"""The tensor that an operator convolves, made of its arguments: frames in front of x, or x after a prologue.

With v = x * x_scale + x_shift, h = x_activation(v) upsampled, dh = act'(v) (dx x_scale + x dx_scale + dx_shift), also
upsampled; dL/dx, dL/dx_scale and dL/dx_shift are torch's, through h computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...activations import ACTIVATIONS
from ..computers import host
from . import autograd
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

    def again(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> tuple[Tensor]:
        return (host.prologued(called.asked, x, (scale, shift)),)

    return autograd.by_running_again(again, (called.x, *called.scales), (g,))


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
