"""Calls of the operators: their arguments, from what they ask for and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..computers import modes
from .convolution import Convolution
from .prologue import NO_SCALES, Scales

_NOTHING: tuple[Any, ...] = ()
#: Arguments of an operator after its four tensors, and before the packed filter.
ARGUMENTS = 8
#: What follows the name of a plain operator: of one with frames in front of x, with a prologue, with it and statistics
#: of y, with a norm of pixels of y.
WITH_FRAMES, WITH_PROLOGUE, WITH_STATS, WITH_NORM = "_with_frames", "_with_prologue", "_with_stats", "_with_norm"


def asked_of(
    name: str,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    lhs_dilation: Sequence[int],
    groups: int,
    activation: str | None,
    residual_position: str,
    layer: str | None,
    packed: Tensor | None = None,
    strict_nonfinite: bool = False,
    x_activation: str | None = None,
    *,
    return_stats: str | None = None,
) -> Convolution:
    """The Convolution of an operator's arguments after its tensors; packed: is not part of it."""
    return Convolution(
        name=name,
        stride=tuple(stride),
        padding=tuple(zip(padding[::2], padding[1::2], strict=True)),
        dilation=tuple(dilation),
        lhs_dilation=tuple(lhs_dilation),
        groups=groups,
        activation=activation,
        residual_position=residual_position,
        layer=layer,
        strict_nonfinite=strict_nonfinite,
        x_activation=x_activation,
        return_stats=return_stats,
    )


def call(
    asked: Convolution,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    packed: Tensor | None = None,
    frames: Tensor | None = None,
    scales: Scales = NO_SCALES,
) -> Any:
    """y by the operator that `asked` names, or the one that takes frames in front of x, or a prologue of x; with
    asked.return_stats (y, stats)."""
    name, more, last = asked.name, _NOTHING, _NOTHING
    if frames is not None:
        name, more = f"{name}{WITH_FRAMES}", (frames,)
    elif asked.return_stats is not None or asked.has_prologue(scales):
        suffix = WITH_PROLOGUE if asked.return_stats is None else WITH_STATS
        name, more, last = f"{name}{suffix}", scales, (asked.x_activation,)
    operator = getattr(torch.ops.nkiconv, name).default
    found = operator(
        x,
        w,
        bias,
        residual,
        *more,
        list(asked.stride),
        [zeros for pair in asked.padding for zeros in pair],
        list(asked.dilation),
        list(asked.lhs_dilation),
        asked.groups,
        asked.activation,
        asked.residual_position,
        asked.layer,
        packed,
        asked.strict_nonfinite,
        *last,
    )
    return own(found) if isinstance(found, Tensor) else tuple(map(own, found))


def own(y: Tensor) -> Tensor:
    """An operator's result as callers may change it in place: selective checkpointing keeps the operator's."""
    return y.clone() if modes.is_checkpointed() else y


def with_batch(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """A tensor with its batch in front, the same in all of it where it has none."""
    return tensor if dim is not None else tensor.expand(size, *tensor.shape)
