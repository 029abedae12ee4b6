"""Videos in chunks: the planes that `nn.CausalConv3d` puts in front, zeros, the first frame, or a chunk's cache."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import rules
from ..errors import refuse, shown
from .errors import GeometryError, KindError, LayoutError, UnsupportedError

#: Kinds of padding in front of a video.
TIME_PADDINGS = ("zeros", "replicate")
Sides = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def sides_of(padding: int | tuple[int, ...], window: int) -> Sides:
    """((front, 0), (top, bottom), (left, right)) of a CausalConv3d's padding; window: of planes.

    Raises GeometryError, KindError.
    """
    values = (
        (padding,) * 3 if isinstance(padding, int) else tuple(padding) if isinstance(padding, (tuple, list)) else ()
    )
    if len(values) not in (2, 3) or not all(isinstance(one, int) for one in values):
        raise KindError(
            f"padding={shown(padding)}: must be an int, (height, width) or (depth, height, width); pass one"
        )
    refuse(GeometryError, rules.numbers("padding", values, least=0))
    front = window - 1 if len(values) == 2 else 2 * values[0]
    return (front, 0), (values[-2], values[-2]), (values[-1], values[-1])


def check_time_padding(time_padding: str) -> None:
    """Check a time_padding. Raises UnsupportedError."""
    refuse(UnsupportedError, rules.accepted("time_padding", time_padding, TIME_PADDINGS))


def in_front(x: Tensor, cache: Tensor | None, front: int, time_padding: str) -> tuple[Tensor | None, int]:
    """(planes in front of x, zeros before these) where a layer wants `front` planes there.

    These are the cache and, where it lacks some, zeros or copies of the first plane. Raises LayoutError.
    """
    for name, one in (("input", x), ("cache_x", cache)):
        if one is not None and (not isinstance(one, Tensor) or one.dim() not in (4, 5)):
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
