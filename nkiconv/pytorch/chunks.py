"""Streaming convolutions of rows, transposed ones too: chunk by chunk, with a state, equal to the whole rows; and the
planes that `nn.CausalConv3d` puts in front of videos: zeros, the first frame, or a chunk's cache.

A state holds inputs, not partial sums: each output is summed in fp32 and rounded once, whole or in chunks. The caller
keeps it as a tensor, visible to torch.compile, torch.export and autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import rules
from ..axis import BLANK_FROM, BLANK_MOST
from ..errors import refuse, refused, shown
from ..integers import is_int
from .errors import GeometryError, KindError, LayoutError, NkiconvError, raise_all
from .function_modes import unscripted
from .functional import conv1d
from .operators.tensor_kinds import beside_violations, tensor_violations
from .places import int_of, per_axis
from .transposed import conv_transpose1d

#: Padding in front of a first chunk, by torch's padding_mode, or of a video.
FRONTS = ("zeros", "replicate")


@unscripted
def conv1d_chunk(
    input: Tensor,
    state: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    layer: str | None = None,
    packed: Tensor | None = None,
    strict_nonfinite: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """`conv1d` of the next chunk of rows: all outputs whose windows are complete.

        y of chunk 1, chunk 2, ... one after the other = conv1d(all chunks one after the other, without padding)

    Args:
        input: [N, C, W] or [C, W], W at least 1, any from chunk to chunk.
        state: the state that the call before returned, [N, C, F] or [C, F] of input's dtype; for the first chunk the
            elements in front of the rows (zeros for padding), or None.
        weight, bias, stride, dilation, groups: as in `conv1d`, stride at most the window, (S - 1) * dilation + 1.
        activation, layer, packed, strict_nonfinite: as in `conv1d`.

    Returns: (y, state). y: [N, K, Q] or [K, Q] of input's dtype, Q = 0 if no window is complete yet. state: the inputs
    that later windows read: window - stride of them while chunks are multiples of stride.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    _check(input, state, weight)
    rows = input if state is None or state.shape[-1] == 0 else torch.cat([state, input], -1)
    (step,), (gap,) = per_axis("stride", stride, 1), per_axis("dilation", dilation, 1)
    window = (weight.shape[2] - 1) * gap + 1
    if not 1 <= step <= window:
        raise GeometryError(
            f"stride={stride!r}: must be from 1 to the window, {window}, for rows in chunks; leave inputs out before"
        )
    count = (rows.shape[-1] - window) // step + 1
    more: dict[str, Any] = {"activation": activation, "layer": layer, "strict_nonfinite": strict_nonfinite}
    if count > 0:
        y = conv1d(rows, weight, bias, step, 0, gap, groups, packed=packed, **more)
    else:
        count, y = 0, rows.new_zeros(*rows.shape[:-2], weight.shape[0], 0)
    return y, rows[..., count * step :].clone(memory_format=torch.contiguous_format)


@unscripted
def conv_transpose1d_chunk(
    input: Tensor,
    state: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    activation: str | None = None,
    layer: str | None = None,
    strict_nonfinite: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """`conv_transpose1d` of the next chunk of rows: `stride` outputs for each input.

        y of chunk 1, chunk 2, ... one after the other = conv_transpose1d(all chunks, no padding)[..., : W * stride]

    as causal codecs do. The window - stride outputs after the last chunk are those of a chunk of zeros.

    Args:
        input: [N, C, W] or [C, W], W at least 1, any from chunk to chunk.
        state: the state that the call before returned, [N, C, F] or [C, F] of input's dtype with
            F = (window - 1) // stride; None, for the first chunk, is zeros.
        weight, bias, stride, groups, dilation: as in `conv_transpose1d`; window: (S - 1) * dilation + 1.
        activation, layer, strict_nonfinite: as in `conv1d`.

    Returns: (y, state). y: [N, K, W * stride] or [K, W * stride] of input's dtype. state: the last F inputs.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    (step,), (gap,) = per_axis("stride", stride, 1), per_axis("dilation", dilation, 1)
    _check(input, state, weight)
    window = (weight.shape[2] - 1) * gap + 1
    wrong = rules.number("stride", step), rules.number("dilation", gap)
    raise_all("conv_transpose1d_chunk cannot run this call", list(refused(GeometryError, *wrong)))
    held = (window - 1) // step
    refuse(GeometryError, _too_large("dilation", gap, input, held))
    if state is None:
        state = input.new_zeros(*input.shape[:-1], held)
    if state.shape[-1] != held:
        raise GeometryError(
            f"state.shape={tuple(state.shape)}: must have {held} inputs, (window - 1) // stride; pass what the call "
            f"before returned"
        )
    rows = torch.cat([state, input], -1) if held else input
    more: dict[str, Any] = {"activation": activation, "layer": layer, "strict_nonfinite": strict_nonfinite}
    # outputs from the chunk's first input on, and none beyond the last one's `stride`
    sides, end = held * step, step - 1 - (window - 1) % step
    y = conv_transpose1d(rows, weight, bias, step, sides, end, groups, gap, **more)
    return y, rows[..., rows.shape[-1] - held :].clone(memory_format=torch.contiguous_format)


def front_of(input: Tensor, front: int, padding_mode: str) -> Tensor:
    """The padding in front of a first chunk: zeros, or copies of its first element. Raises GeometryError."""
    refuse(GeometryError, _too_large("front", front, input, front))
    if padding_mode == "replicate":
        return input[..., :1].expand(*input.shape[:-1], front)
    return input.new_zeros(*input.shape[:-1], front)


def check_front(front: int | None, window: int, stride: int) -> int:
    """Columns in front of a first chunk; None: window - stride. Raises GeometryError."""
    found = window - stride if front is None else int_of(front)
    if type(found) is not int or found < 0 or not 1 <= stride <= window:
        raise GeometryError(
            f"front={front!r}, stride={stride}: front must be an int of at least 0, and stride from 1 to the window, "
            f"{window}; pass such"
        )
    return found


def _too_large(name: str, value: int, input: Tensor, held: int) -> str:
    """Why an argument is refused that makes a state of so many inputs, nearly all of them zeros, or ""."""
    if held <= max(BLANK_FROM, BLANK_MOST * input.shape[-1]):
        return ""
    size = math.prod(input.shape[:-1]) * held * input.element_size()
    return (
        f"{name}={value:,}: its state has {held:,} inputs, {size / 2**30:,.1f} GiB, of which a chunk brings "
        f"{input.shape[-1]:,}; use less, or longer chunks"
    )


def _check(input: Any, state: Any, weight: Any) -> None:
    """Refuse tensors that are no rows, or a state that is not input's. Raises DtypeError, GeometryError and others."""
    given = {"input": input, "weight": weight, **({} if state is None else {"state": state})}
    errors: list[NkiconvError] = [error for name, one in given.items() for error in tensor_violations(name, one)]
    raise_all("a chunk cannot be convolved", errors)
    if input.dim() not in (2, 3) or weight.dim() != 3 or min(input.shape[-2:]) < 1 or min(weight.shape) < 1:
        errors.append(
            GeometryError(
                f"input.shape={tuple(input.shape)}, weight.shape={tuple(weight.shape)}: must be [N, C, W] or [C, W], "
                f"and have three axes, none of them 0 but N; reshape them"
            )
        )
    elif state is not None and (state.dim() != input.dim() or state.shape[:-1] != input.shape[:-1]):
        errors.append(
            GeometryError(
                f"state.shape={tuple(state.shape)}: must be input's, {tuple(input.shape)}, but for the last axis; pass "
                f"what the call before returned"
            )
        )
    if state is not None:
        errors += beside_violations("state", state, input)
    raise_all("a chunk cannot be convolved", errors)


Sides = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def sides_of(padding: int | tuple[int, ...], window: int) -> Sides:
    """((front, 0), (top, bottom), (left, right)) of a CausalConv3d's padding; window: of planes.

    Raises GeometryError, KindError.
    """
    values = tuple(map(int_of, padding if isinstance(padding, (tuple, list)) else (padding,) * 3))
    if len(values) not in (2, 3) or not all(map(is_int, values)):
        raise KindError(
            f"padding={shown(padding)}: must be an int, (height, width) or (depth, height, width); pass one"
        )
    refuse(GeometryError, rules.numbers("padding", values, least=0))
    front = window - 1 if len(values) == 2 else 2 * values[0]
    return (front, 0), (values[-2], values[-2]), (values[-1], values[-1])


def in_front(x: Tensor, cache: Tensor | None, front: int, time_padding: str) -> tuple[Tensor | None, int]:
    """(planes in front of x, zeros before these) where a layer wants `front` planes there.

    These are the cache and, where it lacks some, zeros or copies of the first plane. Raises LayoutError.
    """
    for name, one in (("input", x), ("cache_x", cache)):
        is_left_out = one is None and name == "cache_x"
        if not is_left_out and (not isinstance(one, Tensor) or one.dim() not in (4, 5)):
            told = tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__
            raise LayoutError(
                f"{name}: must be a tensor [N, C, planes, H, W] or [C, planes, H, W], not {told}; pass one"
            )
    if cache is not None:
        cache = cache.to(x.device)
    held = 0 if cache is None else cache.shape[-3]
    if time_padding == "zeros" or held >= front:
        return cache, front - held
    first = (x if cache is None or held == 0 else cache).narrow(-3, 0, 1)
    copies = first.expand(*first.shape[:-3], front - held, *first.shape[-2:])
    return copies if cache is None else torch.cat([copies, cache], -3), 0
