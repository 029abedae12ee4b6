"""Copies in HBM of depthwise rows whose channels are neighbours (NHWC): as rows, where single elements take longer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .depthwise import Options, RowGeometry
from .prices import first_load_ns, last_store_ns
from .relayout import Transposed, copy_ns, to_rows
from .tiles import PARTS


@dataclass(frozen=True)
class RowCopies:
    """The Transposed of x with all chunks of its channels, of y back from its copy, of the residual; None: no copy."""

    x: Transposed | None
    y: Transposed | None
    residual: Transposed | None


@functools.lru_cache(maxsize=256)
def copies_of(geometry: RowGeometry, options: Options) -> RowCopies:
    """What is copied; of y and the residual both or none."""
    N, C, W, Q, item = (
        geometry.N,
        geometry.C * len(geometry.chunks),
        geometry.W,
        geometry.Q,
        options.epilogue.y_itemsize,
    )
    x = to_rows((C, N, 1, W), geometry.itemsize, (geometry.x_c, geometry.x_n, 0, geometry.x_w), 1, N, 0)
    there = to_rows((geometry.C, N, 1, Q), item, (geometry.y_c, geometry.y_n, 0, geometry.y_q), 1, N, 0)
    back = replace(  # a of a Transposed has stride 1 in the source, b in the target
        there,
        shape=(Q, N, 1, C),
        source=tuple(there.target[axis] for axis in (3, 1, 2, 0)),
        target=tuple(there.source[axis] for axis in (3, 1, 2, 0)),
    )
    y = back if pays(there) else None
    plain = options.epilogue.residual != "" and "C" not in geometry.chunks
    return RowCopies(x if pays(x) else None, y, replace(there, item=4) if y and plain else None)


def pays(part: Transposed) -> bool:
    """Whether channels are neighbours and a copy of them takes less time than single elements."""
    C, N, _, width = part.shape
    if part.source[0] != 1 or part.source[3] == 1 or C == 1 or width == 1:
        return False
    target = Target.of(Rates())
    ends_ns = first_load_ns(target) + last_store_ns(target)
    return ends_ns + copy_ns(target, part) < C * N * width * target.run_ns(part.item) / (PARTS * target.dma_engines)


def rows_of(geometry: RowGeometry, copies: RowCopies) -> RowGeometry:
    """The RowGeometry that an algorithm sees: strides of the copies."""
    channels = geometry.C * len(geometry.chunks)
    if copies.x:
        geometry = replace(geometry, x_n=channels * geometry.W, x_c=geometry.W, x_w=1)
    if copies.y:
        geometry = replace(geometry, y_n=geometry.C * geometry.Q, y_c=geometry.Q, y_q=1)
    return geometry
