"""Calls of the operators: their arguments from a Called, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..computers import dispatch, modes
from .called import Called
from .convolution import Convolution
from .pixel_norm import PixelNorm
from .registrar import Arguments
from .tensor_kinds import memory_format

#: Suffixes of a plain operator's name: with frames in front of x; with a prologue; with a prologue and statistics of y;
#: with a norm over the channels of y's pixels.
WITH_FRAMES, WITH_PROLOGUE, WITH_STATS, WITH_NORM = "_with_frames", "_with_prologue", "_with_stats", "_with_norm"
_NUMBERS: Arguments = {
    **dict.fromkeys(("stride", "padding", "dilation", "lhs_dilation"), Sequence[int]),
    "groups": int,
    "activation": str | None,
    "residual_position": str,
    "layer": str | None,
    "packed": (Tensor | None, None),
    "strict_nonfinite": (bool, False),
}
#: Where `packed` is among these.
PACKED = list(_NUMBERS).index("packed")
_PROLOGUE = (
    {"x_scale": Tensor | None, "x_shift": Tensor | None},
    {"x_activation": (str | None, None), "x_upsample": (int, 1)},
)
#: By suffix, the arguments after input, weight, bias and residual, and those after all numbers.
_MORE: dict[str, tuple[Arguments, Arguments]] = {
    "": ({}, {}),
    WITH_FRAMES: ({"initial_frames": Tensor}, {}),
    WITH_PROLOGUE: _PROLOGUE,
    WITH_STATS: _PROLOGUE,
    WITH_NORM: (
        {"initial_frames": Tensor | None, "norm_weight": Tensor | None, "norm_bias": Tensor | None},
        {"packed": Tensor | None, "strict_nonfinite": bool}
        | {"y_norm": str, "y_norm_eps": float, "return_before_norm": bool},
    ),
}


def arguments_with(suffix: str) -> Arguments:
    """Arguments of an operator with a suffix."""
    tensors, more = _MORE[suffix]
    first = {"input": Tensor, "weight": Tensor, "bias": Tensor | None, "residual": Tensor | None}
    return {**first, **tensors, **_NUMBERS, **more}


def suffix_of(name: str) -> str:
    """The suffix of an operator's name."""
    return max((one for one in _MORE if name.endswith(one)), key=len)


#: Tensors of an operator before its numbers, by suffix.
TENSORS = {suffix: 4 + len(tensors) for suffix, (tensors, _) in _MORE.items()}


def asked_of(name: str, *numbers: Any, return_stats: str | None = None) -> Convolution:
    """The Convolution of an operator's arguments after its tensors; packed: is not part of it."""
    named = zip((*_NUMBERS, *_PROLOGUE[1]), numbers, strict=False)
    given: dict[str, Any] = {one: tuple(value) if isinstance(value, (list, tuple)) else value for one, value in named}
    given.pop("packed", None)
    given["padding"] = tuple(zip(given["padding"][::2], given["padding"][1::2], strict=True))
    return Convolution(name=name, return_stats=return_stats, **given)


def arguments_of(asked: Convolution, packed: Tensor | None) -> tuple[Any, ...]:
    """The reverse of `asked_of`, as far as all operators have it."""
    padding = [zeros for pair in asked.padding for zeros in pair]
    numbers = list(asked.stride), padding, list(asked.dilation), list(asked.lhs_dilation), asked.groups
    return *numbers, asked.activation, asked.residual_position, asked.layer, packed, asked.strict_nonfinite


def read(name: str, args: Sequence[Any]) -> Called:
    """The call of operator `nkiconv::name` with these arguments."""
    suffix = suffix_of(name)
    count = TENSORS[suffix]
    (x, w, bias, residual, *more), rest = args[:count], args[count:]
    packed, norm, stats = (*rest[PACKED:], None)[0], None, "channel" if suffix == WITH_STATS else None
    if suffix == WITH_NORM:
        kind, eps, before = rest[len(_NUMBERS) :]
        norm = PixelNorm(kind, more[1], more[2], eps, before)
        more, rest = more[:1], rest[: len(_NUMBERS)]
    asked = asked_of(name.removesuffix(suffix), *rest, return_stats=stats)
    return with_more(Called(asked, x, w, bias, residual, packed, norm=norm), more)


def with_more(called: Called, more: Sequence[Any]) -> Called:
    """A call with what its operator has after the residual, of x: nothing, frames, or a scale and a shift."""
    if len(more) == 2:
        return called._replace(scales=(more[0], more[1]))
    return called._replace(frames=more[0]) if more else called


def call(called: Called) -> Any:
    """Results by the operator that takes all that a call has: y, with asked.return_stats (y, stats), with a norm (y,
    the norm's input or an empty tensor)."""
    asked, norm = called.asked, called.norm
    suffix = ""
    more: tuple[Any, ...] = ()
    last: tuple[Any, ...] = ()
    if norm is not None:
        suffix, more = WITH_NORM, (called.frames, norm.weight, norm.bias)
        last = norm.kind, norm.eps, norm.before
    elif called.frames is not None:
        suffix, more = WITH_FRAMES, (called.frames,)
    elif asked.return_stats is not None or called.has_prologue:
        suffix = WITH_PROLOGUE if asked.return_stats is None else WITH_STATS
        more, last = called.scales, (asked.x_activation, asked.x_upsample)
    operator = getattr(torch.ops.nkiconv, f"{asked.name}{suffix}").default
    found = operator(*called[1:5], *more, *arguments_of(asked, called.packed), *last)
    return own(found) if isinstance(found, Tensor) else tuple(map(own, found))


def computed(called: Called) -> Any:
    """A call's results as `call` returns them, after its checks, in torch's memory format."""
    called.check()
    found, order = dispatch.convolve(called), memory_format(called.x, called.w)
    if isinstance(found, Tensor):
        return found.contiguous(memory_format=order)
    y, more = found
    is_image = called.norm is not None and called.norm.before
    return y.contiguous(memory_format=order), more.contiguous(memory_format=order) if is_image else more


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
    pairs = [*zip(args[:count], dims, strict=True)]
    if all(dim is None for place, dim in enumerate(dims) if place not in images):
        given = [
            one if one is None or place not in images else with_batch(one, dim, size).flatten(0, 1)
            for place, (one, dim) in enumerate(pairs)
        ]
        results = operator(*given, *args[count:])
        return tuple(one.reshape(size, one.shape[0] // size, *one.shape[1:]) for one in results), (0,) * len(results)
    rest = [None if place == one_of_all else one for place, one in enumerate(args[count:], count)]
    each = [operator(*(one if dim is None else one.select(dim, i) for one, dim in pairs), *rest) for i in range(size)]
    found = tuple(torch.stack(some) for some in zip(*each, strict=True))
    return found, (0,) * len(found)


def with_batch(tensor: Tensor | None, dim: int | None, size: int) -> Any:
    """A tensor with its batch axis `dim` in front, the same in all of a batch where it has none; None of None."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
