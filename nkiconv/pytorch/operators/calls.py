"""Calls of the operators: arguments from a Convolution, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..computers import modes
from .convolution import Convolution
from .prologue import NO_SCALES, Scales

_NOTHING: tuple[Any, ...] = ()
#: Arguments of an operator after its four tensors, and before the packed filter.
ARGUMENTS = 8
#: Suffixes of a plain operator's name: with frames in front of x; with a prologue; with a prologue and statistics of y;
#: with a norm over the channels of y's pixels.
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
    x_upsample: int = 1,
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
        x_upsample=x_upsample,
        return_stats=return_stats,
    )


def arguments_of(asked: Convolution, packed: Tensor | None) -> tuple[Any, ...]:
    """The reverse of `asked_of`, as far as all operators have it."""
    padding = [zeros for pair in asked.padding for zeros in pair]
    numbers = list(asked.stride), padding, list(asked.dilation), list(asked.lhs_dilation), asked.groups
    return *numbers, asked.activation, asked.residual_position, asked.layer, packed, asked.strict_nonfinite


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
        name, more, last = f"{name}{suffix}", scales, (asked.x_activation, asked.x_upsample)
    operator = getattr(torch.ops.nkiconv, name).default
    found = operator(x, w, bias, residual, *more, *arguments_of(asked, packed), *last)
    return own(found) if isinstance(found, Tensor) else tuple(map(own, found))


def own(y: Tensor) -> Tensor:
    """An operator's result as callers may change it in place: selective checkpointing keeps the operator's."""
    return y.clone() if modes.is_checkpointed() else y


def batched_images(
    operator: Callable[..., Sequence[Tensor]],
    size: int,
    dims: Sequence[int | None],
    args: Sequence[Any],
    images: Sequence[int],
    one_of_all: int | None = None,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """(an operator's results, their batch axes) of a batch of arguments: where only images have one, more images in one
    call; else call by call.

    dims: axes of the batch of the first arguments, which are tensors or None; images: places of those that have an
    image each; one_of_all: the place of an argument that holds for the batch's calls together alone.
    """
    count = len(dims)
    moved = [
        one if one is None or dim is None else one.movedim(dim, 0) for one, dim in zip(args[:count], dims, strict=True)
    ]
    if all(dim is None for place, dim in enumerate(dims) if place not in images):
        given = [
            one if one is None or place not in images else with_batch(one, dims[place], size).flatten(0, 1)
            for place, one in enumerate(moved)
        ]
        results = operator(*given, *args[count:])
        return tuple(one.reshape(size, one.shape[0] // size, *one.shape[1:]) for one in results), (0,) * len(results)
    rest = [None if place == one_of_all else one for place, one in enumerate(args[count:], count)]
    each = [
        operator(*(one if dim is None else one[i] for one, dim in zip(moved, dims, strict=True)), *rest)
        for i in range(size)
    ]
    found = tuple(torch.stack(some) for some in zip(*each, strict=True))
    return found, (0,) * len(found)


def with_batch(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """A tensor with its batch in front, the same in all of it where it has none."""
    return tensor if dim is not None else tensor.expand(size, *tensor.shape)
