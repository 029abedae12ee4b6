"""Output tiles of a Schedule of blocks: as even as possible, and equally many for each core."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from .block_axes import BlockAxis, Part, part_of
from .block_schedule import Lanes
from .cuts import axis_elements, cut_planes
from .geometry import Geometry
from .tiles import BANK_COLUMNS, PARTS, cut_at, cut_into, div_ceil, some_of

#: For groups, bytes per partition of an output tile's fp32 results, and of its x; rows of one block are loaded in any
#: case.
GROUPS_Y_BYTES, GROUPS_X_BYTES = 12_288, 12_288
#: For transposed convolutions, bytes per partition of an output tile's x.
X_BYTES = 32_768


def items_of_groups(geometry: Geometry, axes: tuple[BlockAxis, ...], lanes: int, both: bool) -> Iterator[Lanes]:
    """Output tiles of an M tile; both: both cores share them, so each half of the work has equally many."""
    planes, rows, columns = axes
    size, M, J = geometry.columns.size, rows.blocks, columns.blocks
    most = max(rows.window, GROUPS_X_BYTES // (axis_elements(geometry.planes, 1) * size * geometry.itemsize))
    blocks = M if geometry.rows.size <= most else min(M, (most - rows.window) // rows.apart + 1)
    blocks = min(blocks, max(1, GROUPS_Y_BYTES // (4 * rows.step * geometry.columns.out)))
    images = 1
    if blocks == M:
        images = max(1, min(BANK_COLUMNS // (M * J), most // max(1, geometry.rows.size), planes.blocks))
    # each lane has its own images, or rows if there are too few images
    total = planes.images * planes.blocks
    of_rows = total < lanes
    n_images = total if of_rows else div_ceil(total, images * lanes)
    n_blocks = div_ceil(M, blocks * lanes) if of_rows else div_ceil(M, blocks)
    if both and n_images * n_blocks % PARTS == 1:
        if not of_rows and n_images * lanes < total:
            n_images += 1
        elif n_blocks < M:
            n_blocks += 1
    whole = part_of(columns, 0, 0, J)
    for z0, zn in cut_planes(total, planes.images, n_images):
        for m0, mn in cut_into(M, n_blocks):
            if of_rows:
                own = [(z0, (m0 + m, n)) for m, n in cut_into(mn, min(mn, lanes))]
                yield _lanes(planes, rows, whole, own, 1)
                continue
            each = zn // lanes
            if each > 0:
                yield _lanes(planes, rows, whole, [(z0 + lane * each, (m0, mn)) for lane in range(lanes)], each)
            if zn > each * lanes:
                own = [(z, (m0, mn)) for z in range(z0 + each * lanes, z0 + zn)]
                yield _lanes(planes, rows, whole, own, 1)


def _lanes(planes: BlockAxis, rows: BlockAxis, columns: Part, own: list[tuple[int, tuple[int, int]]], zn: int) -> Lanes:
    """Lanes of (first block of planes, blocks of rows), with `zn` blocks of planes each."""
    return tuple(
        (part_of(planes, z // planes.blocks, z % planes.blocks, zn), part_of(rows, 0, *m, whole=True), columns)
        for z, m in own
    )


def items_of_phases(axes: tuple[BlockAxis, ...], sizes: Sequence[int], segments: Sequence[int]) -> Iterator[Lanes]:
    """Output tiles of so many blocks along each axis, for each of so many neighbouring segments."""
    z, p, q = (_part_lists(*one, max(segments) > 1) for one in zip(axes, sizes, segments, strict=True))
    for one in itertools.product(z, p, q):
        # at most one of the three lists has several Parts
        yield tuple((a, b, c) for a in one[0] for b in one[1] for c in one[2])


def _part_lists(axis: BlockAxis, blocks: int, segments: int, alike: bool) -> list[list[Part]]:
    """Lists of `segments` neighbouring Parts of `blocks` blocks, the last list shorter. alike: includes elements
    outside x, and places for outputs outside y."""
    found = []
    for image in range(axis.images):
        cuts = cut_at(axis.blocks, blocks)
        parts = [part_of(axis, image, b0, blocks if alike else bn, padded=alike, whole=alike) for b0, bn in cuts]
        found += [some_of(parts, some) for some in cut_at(len(parts), segments)]
    return found


def item_sizes(
    geometry: Geometry, axes: tuple[BlockAxis, ...], segments: Sequence[int], y_bytes: int, k_tiles: int, cores: int
) -> list[int]:
    """Blocks of an output tile along each axis: as many as fit with x, in so many K tiles, and results, and a multiple
    of `cores` output tiles if possible."""
    most_x, most_y = X_BYTES // (k_tiles * geometry.itemsize), y_bytes // 4
    most = [div_ceil(axis.blocks, n) for axis, n in zip(axes, segments, strict=True)]
    sizes = [1, 1, most[2]]
    room = _blocks_with_room(axes, sizes, 2, most_x, most_y)
    if room < most[2]:
        sizes[2] = room // BANK_COLUMNS * BANK_COLUMNS if room > BANK_COLUMNS else room
    if sizes[2] == most[2] or segments[2] > 1:
        sizes[1] = min(most[1], _blocks_with_room(axes, sizes, 1, most_x, most_y))
        if sizes[1] == most[1]:
            sizes[0] = min(most[0], _blocks_with_room(axes, sizes, 0, most_x, most_y))
    uneven, found = count_items(axes, sizes, segments) % cores > 0, []
    for axis, size, n in zip(axes, sizes, segments, strict=True):
        parts = div_ceil(axis.blocks, size)
        if uneven and parts + n <= axis.blocks and size > 1:
            parts, uneven = parts + n, False
        found.append(div_ceil(axis.blocks, parts))
    return found


def count_items(axes: tuple[BlockAxis, ...], sizes: Sequence[int], segments: Sequence[int]) -> int:
    """Output tiles of so many blocks and segments along each axis."""
    every = zip(axes, sizes, segments, strict=True)
    return axes[0].images * math.prod(div_ceil(div_ceil(axis.blocks, size), n) for axis, size, n in every)


def _blocks_with_room(axes: tuple[BlockAxis, ...], sizes: Sequence[int], which: int, most_x: int, most_y: int) -> int:
    """Blocks along axis `which`, at least one, whose x and results fit, with these sizes along the other axes."""
    for index, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        if index != which:
            most_x //= (size - 1) * axis.apart + axis.window
            most_y //= size * axis.step
    own = axes[which]
    return max(1, min(max(0, most_x - own.window) // own.apart + 1, most_y // own.step))
