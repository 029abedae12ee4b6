"""Copies in HBM, as rows, of depthwise rows whose channels are neighbours (NHWC), if single elements take longer."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .depthwise import Options, RowGeometry
from .relayout import Transposed, copies_ns, to_pixels, to_rows
from .tiles import P_MAX, PARTS, div_ceil

#: Algorithms that read and write channels that are neighbours without copies.
OWN = ("update",)


@dataclass(frozen=True)
class RowCopies:
    """Transposed parts of x with all chunks of its channels, of y back from its copy, of the residual; () if not
    copied."""

    x: tuple[Transposed, ...]
    y: tuple[Transposed, ...]
    residual: tuple[Transposed, ...]


@functools.lru_cache(maxsize=256)
def copies_of(algorithm: str, geometry: RowGeometry, options: Options) -> RowCopies:
    """The copies of a problem for an algorithm; y and the residual are both copied or neither."""
    if algorithm in OWN:
        return RowCopies((), (), ())
    N, C, Q, item = geometry.N, geometry.C, geometry.Q, options.epilogue.y_itemsize
    of_x, of_y = (C * len(geometry.chunks), N, 1, geometry.W), (C, N, 1, Q)
    x_strides, y_strides = (geometry.x_c, geometry.x_n, 0, geometry.x_w), (geometry.y_c, geometry.y_n, 0, geometry.y_q)
    x = tiled(to_rows(of_x, geometry.itemsize, x_strides, 1, N, 0))
    x = x if pays(x, of_x, x_strides, geometry.itemsize) else ()
    y = tuple(to_pixels(of_y, item, y_strides, 1))
    y = y if pays(y, of_y, y_strides, item) else ()
    has_residual = options.epilogue.residual != "" and "C" not in geometry.chunks
    return RowCopies(x, y, tiled(to_rows(of_y, 4, y_strides, 1, N, 0)) if y and has_residual else ())


def tiled(part: Transposed) -> tuple[Transposed, ...]:
    """The parts of a copy of rows, [c, n, 1, w], whose tiles of 128 channels share a DMA as rows of images do."""
    (C, N, _, W), (by_c, by_n, _, by_w), target = part.shape, part.source, part.target
    whole = C // P_MAX
    if part.is_sorted or whole == 0:
        return (part,)
    source, into = (by_c, by_n, P_MAX * by_c, by_w), (target[0], target[1], P_MAX * target[0], target[3])
    found = replace(part, shape=(P_MAX, N, whole, W), source=source, target=into)
    first = whole * P_MAX
    rest = replace(part, shape=(C - first, N, 1, W), source_first=first * by_c, target_first=first * target[0])
    return (found, rest) if C > first else (found,)


def pays(parts: tuple[Transposed, ...], shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> bool:
    """Whether channels of [c, n, 1, w] are neighbours, and copies take less time than single elements."""
    if strides[0] != 1 or strides[3] == 1 or shape[0] == 1 or shape[3] == 1:
        return False
    target = Target.of(Rates())
    copied_ns = parts_ns(target, parts)
    engines = min(target.dma_engines, div_ceil(shape[0] * shape[1], PARTS * target.rows_an_engine))
    return copied_ns < math.prod(shape) * target.run_ns(item) / (PARTS * engines)


def parts_ns(target: Target, parts: tuple[Transposed, ...]) -> float:
    """ns of a copy, which another one or an algorithm waits for; 0 without one."""
    return target.round_trip_ns + copies_ns(target, list(parts)) if parts else 0.0


def copied(geometry: RowGeometry, options: Options, target: Target) -> tuple[RowGeometry, float]:
    """(the RowGeometry of an algorithm that needs copies, ns of these)."""
    if geometry.x_w == geometry.y_q == 1:
        return geometry, 0.0
    copies = copies_of("", geometry, options)
    return rows_of(geometry, copies), sum(parts_ns(target, one) for one in vars(copies).values())


def rows_of(geometry: RowGeometry, copies: RowCopies) -> RowGeometry:
    """The RowGeometry of an algorithm, with the strides of the copies."""
    channels = geometry.C * len(geometry.chunks)
    if copies.x:
        geometry = replace(geometry, x_n=channels * geometry.W, x_c=geometry.W, x_w=1)
    if copies.y:
        geometry = replace(geometry, y_n=geometry.C * geometry.Q, y_c=geometry.Q, y_q=1)
    return geometry
