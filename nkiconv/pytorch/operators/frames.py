"""What is in front of an input, frames of a conv3d's or the state of rows, and the last planes or columns of both."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ... import rules
from ...errors import refuse, refused
from ...integers import plain_ints
from ..errors import GeometryError, KindError, NkiconvError
from .tensor_kinds import beside_violations, tensor_violations


def joined(x: Tensor, frames: Tensor | None) -> Tensor:
    """Both one after the other; x itself without frames."""
    return x if frames is None else torch.cat([frames, x], 2)


def shaped(x: Tensor, frames: Tensor | None) -> Tensor:
    """In place of both one after the other, a tensor that is only their shape."""
    return x if frames is None else x[:, :, :1].expand(-1, -1, frames.shape[2] + x.shape[2], -1, -1)


def violations(x: Tensor, frames: Tensor | None) -> Iterator[NkiconvError]:
    """Why frames do not go in front of x, a tensor [N, C, D, H, W]."""
    if frames is None:
        return
    errors = list(tensor_violations("initial_frames", frames))
    yield from errors
    if errors:
        return
    if x.dim() != frames.dim() or x.dim() != 5 or x.shape[2] < 1:
        yield GeometryError(
            f"initial_frames.shape={tuple(frames.shape)}: input.shape={tuple(x.shape)} has other axes; pass [N, C, "
            f"planes, H, W] for both"
        )
        return
    yield from refused(GeometryError, rules.frames(frames.shape, x.shape, 2, least=1, x="input"))
    yield from beside_violations("initial_frames", frames, x)


def with_state(x: Tensor, state: Tensor | None, size: int) -> Tensor:
    """[N, C, size + L]: rows after their state, or after zeros."""
    return torch.cat([x.new_zeros(*x.shape[:2], size) if state is None else state, x], 2)


def last_of(rows: Tensor, size: int, lent: bool = False) -> Tensor:
    """The last columns of rows [N, C, ...], a copy unless they are lent."""
    found = rows.narrow(2, rows.shape[2] - size, size)
    return found if lent else found.clone(memory_format=torch.contiguous_format)


def last(x: Tensor, frames: Tensor | None, wanted: bool | int, window: int) -> Tensor:
    """A copy of the last planes of both: `wanted`, or for True those that a window needs that begins after them, or as
    many of them as there are. Raises KindError, GeometryError."""
    held = 0 if frames is None else frames.shape[-3]
    planes = held + x.shape[-3]
    wanted = plain_ints(wanted)
    if not isinstance(wanted, (bool, int)):
        raise KindError(rules.frame_count(wanted))
    count = min(window - 1, planes) if wanted is True else int(wanted)
    refuse(GeometryError, rules.frame_count(count, planes))
    own = min(count, x.shape[-3])
    found = x.narrow(-3, x.shape[-3] - own, own)
    if frames is None or own == count:
        return found.clone()
    return torch.cat([frames.narrow(-3, held - (count - own), count - own), found], -3)
