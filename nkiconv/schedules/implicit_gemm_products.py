"""`implicit_gemm`: output tiles, banks of sums, loads of rows, the x that a K tile holds for an output tile; the
matmuls of a K tile for a bank, and the blocks and pieces of filters in the order of the matmuls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .cuts import (
    Bank,
    OutTile,
    Product,
    axis_elements,
    covering_first,
    cut_planes,
    home_tap,
    in_order,
    most_of,
    num_plane_parts,
    tap_blocks,
    window_of,
)
from .geometry import Axis, Geometry, Met, filter_rows, num_taps, span, valid_range
from .implicit_gemm import (
    ALONE,
    NEIGHBOURS,
    TAPS,
    Batch,
    ImplicitGemmSettings,
    KTile,
    MTile,
    by_input,
    group_depth,
    is_depthwise_m_tile,
    lies_ready,
    m_tile_axis,
    sums_pitch,
    tap_groups,
)
from .planes import is_by_plane
from .tiles import BANK_COLUMNS, PARTS, Part, cut, cut_at, div_ceil, share, transposes_of_bank

#: Elements a partition of an M tile's results for one output tile.
Y_ELEMENTS = 4096
#: About the bytes a partition of one load of an output tile's rows, if no product waits for them.
PART_BYTES = 4096
#: Bytes of a row of x that cost less than another run.
RUN_BYTES = 127
#: Columns of a matmul that keep the Tensor Engine busy until the next one: of either part of a split bank.
COLUMNS_MIN = 128
#: The fewest matmuls between the transposes of a K tile's filters and their use: they hide the evacuations.
LEAD_MATMULS = 4


def lead_k_tiles(geometry: Geometry) -> int:
    """K tiles whose filters are transposed ahead of the current one."""
    return div_ceil(LEAD_MATMULS * (2 if geometry.precision == "fp16x3" else 1), num_taps(geometry))


def group_met(geometry: Geometry, k_tile: KTile, group: int, q0: int, qn: int) -> Met:
    """The valid range of a group of taps, as `valid_range`; a folded K tile includes the zeros next to x."""
    columns = geometry.columns
    if k_tile.depth == 1:
        return valid_range(columns, group, q0, qn)
    first = q0 * columns.stride + group * k_tile.depth * columns.dilation - columns.before
    return q0, 1, qn, first, columns.stride


def k_tile_window(geometry: Geometry, k_tile: KTile, out_tile: OutTile) -> Part:
    """(first column, columns) of x that a K tile holds for an output tile; it begins left of x if zeros are stored
    there."""
    if k_tile.depth == 1 and k_tile.pairing != TAPS:
        return out_tile.w0, out_tile.wn
    columns = geometry.columns
    last = (tap_groups(geometry, k_tile) - 1) * k_tile.depth * columns.dilation
    first, width = out_tile.q0 * columns.stride - columns.before, (out_tile.qn - 1) * columns.stride + last + 1
    if k_tile.pairing == TAPS and first == 0 and out_tile.wn == columns.size:
        width = max(width, out_tile.wn)  # rows that are loaded as one run
    return first, width


@dataclass(frozen=True)
class XPlace:
    """A K tile's x in SBUF for an output tile, of a slot: planes, and rows and columns of each, zeros included, from
    this row and column of x on."""

    planes: int
    row: int
    rows: int
    column: int
    columns: int

    @property
    def elements(self) -> int:
        """Elements a partition."""
        return self.planes * self.rows * self.columns


def x_place(geometry: Geometry, k_tile: KTile, out_tile: OutTile) -> XPlace:
    """The XPlace of a K tile for an output tile."""
    rows, one = geometry.rows, out_tile
    window = k_tile_window(geometry, k_tile, one)
    if k_tile.pairing == ALONE:
        return XPlace(one.dn, one.h0, one.hn, *window)
    planes, extent = one.zn, window_of(rows, one.pn)
    pitch = extent if one.zn == 1 else sums_pitch(geometry, [k_tile], one.zn, one.pn) * rows.stride
    planes += extent > pitch
    return XPlace(planes, one.p0 * rows.stride - rows.before, pitch, *window)


def m_tile_out_tile(out_tile: OutTile, m_tile: MTile) -> OutTile:
    """An output tile in an M tile's rows: pairs of rows, if it makes two at once."""
    return replace(out_tile, p0=out_tile.p0 // m_tile.rows, pn=div_ceil(out_tile.pn, m_tile.rows))


def out_tiles_of(
    geometry: Geometry, k_tiles: Sequence[KTile], step: int, halves: int, settings: ImplicitGemmSettings, strict: bool
) -> list[OutTile]:
    """Output tiles of all images; at least `halves` of them. step: output rows that an M tile makes at once; strict:
    whether no zeros may lie between the images of a pair's output tile."""
    P, Q, planes = geometry.rows.out, geometry.columns.out, geometry.planes
    most = settings.x_bytes // (sum(k_tile.slots for k_tile in k_tiles) * geometry.itemsize)

    def fits(zn: int, pn: int, qn: int) -> bool:
        row = axis_elements(planes, zn) * axis_elements(geometry.columns, qn)
        return axis_elements(geometry.rows, pn) * row <= most and zn * pn * qn <= Y_ELEMENTS

    zn, pn, qn = 1, step, Q
    while qn > 1 and not fits(1, pn, qn):
        qn = div_ceil(qn, 2)
    # pairs of planes with rows of taps as channels: as many planes as fit, each with its own banks, as they share
    # frames, while the rows of an output tile share none
    if geometry.direct is not None and geometry.depth is not None:
        while zn < planes.out // planes.images and fits(zn + 1, 1, qn):
            zn += 1
    apart = zn > 1
    while pn < P and fits(zn, pn + step, qn):
        pn += step
    if pn >= P and qn >= Q and not apart and not (strict and k_tiles[0].pairing != ALONE):
        zn = next((count for count in range(images_together(geometry, k_tiles), 1, -1) if fits(count, P, Q)), 1)
    num_parts = num_plane_parts(planes, zn)
    if halves > 1 and num_parts % 2 == 1 and num_parts < planes.out and (not apart or P == 1):
        num_parts += 1
    in_halves = halves > 1 and (num_parts * div_ceil(Q, qn)) % 2 == 1
    if P <= step:
        parts = div_ceil(min(qn, Q), BANK_COLUMNS)
        parts = div_ceil(parts, PARTS) * PARTS if in_halves else parts
        qn = div_ceil(qn, min(parts, qn))
    parts_of_planes = cut_planes(planes.out, planes.images, num_parts)
    # rows that fill a bank, a multiple of `step`
    images = 1 if apart else most_of(parts_of_planes)
    unit = min(pn, max(1, BANK_COLUMNS // (images * min(qn, BANK_COLUMNS))))
    unit = max(step, unit // step * step)
    parts_of_rows = cut_rows(P, pn, unit, step, in_halves, settings.loop > 0)
    depths = [(*part, *span(planes, *part)) for part in parts_of_planes]
    rows = [(p0, n, *span(geometry.rows, p0, div_ceil(n, step) * step)) for p0, n in parts_of_rows]
    columns = [(*part, *_columns_of_x(geometry, *part)) for part in cut_at(Q, qn)]
    return [
        OutTile(*z[:2], *p[:2], *q[:2], *z[2:], *p[2:], *q[2:]) for z, p, q in itertools.product(depths, rows, columns)
    ]


def _columns_of_x(geometry: Geometry, q0: int, qn: int) -> Part:
    """Columns of x (first, count) for columns of outputs: all of them, in one run, if few are unneeded."""
    axis, (w0, wn) = geometry.columns, span(geometry.columns, q0, qn)
    in_line = geometry.x_strides[3] == 1 and geometry.x_strides[2] == axis.size and qn == axis.out
    wide = in_line and wn > 0 and axis.size - wn <= RUN_BYTES // geometry.itemsize
    return (0, axis.size) if wide else (w0, wn)


def images_together(geometry: Geometry, k_tiles: Sequence[KTile]) -> int:
    """Whole images of one bank of sums, at least one; one too if zeros lie between images and each has enough
    columns."""
    P, Q = geometry.rows.out, geometry.columns.out
    each = geometry.planes.out // geometry.planes.images
    apart = sums_pitch(geometry, k_tiles, each, P)
    if apart > P and P * Q >= COLUMNS_MIN:
        return 1
    return max(1, min(each, BANK_COLUMNS // (apart * Q)))


def bank_rows(out_tile: OutTile) -> int:
    """Output rows of one bank of sums."""
    planes = min(out_tile.zn, max(1, BANK_COLUMNS // (out_tile.pn * out_tile.qn)))
    return max(1, min(out_tile.pn, BANK_COLUMNS // (planes * min(out_tile.qn, BANK_COLUMNS))))


def banks_of(out_tile: OutTile, last: bool) -> Sequence[Bank]:
    """Banks of sums of an output tile; last: the last bank is small, as no work hides its evacuation."""
    return _banks(out_tile.zn, out_tile.pn, out_tile.qn, bank_rows(out_tile), last)


@lru_cache(maxsize=256)
def _banks(planes: int, rows: int, columns: int, pt: int, last: bool) -> Sequence[Bank]:
    """Banks of `pt` rows for so many planes, rows and columns."""
    qt, zt = min(columns, BANK_COLUMNS), min(planes, max(1, BANK_COLUMNS // (rows * columns)))
    parts = itertools.product(cut_at(rows, pt), cut_at(planes, zt), cut_at(columns, qt))
    found = [Bank(z, zn, p, pn, q, qn) for (p, pn), (z, zn), (q, qn) in parts]
    return tuple(_split_last(found) if last else found)


def _split_last(banks: list[Bank]) -> list[Bank]:
    """Banks with the last one cut in two, by images, rows or columns, if both parts have enough columns."""
    one, before = banks[-1], banks[:-1]
    for first, count, each in (("z0", "zn", one.pn * one.qn), ("p0", "pn", one.qn), ("q0", "qn", 1)):
        total, tail = getattr(one, count), div_ceil(COLUMNS_MIN, each)
        if (total - tail) * each >= COLUMNS_MIN:
            begin = getattr(one, first) + total - tail
            return [*before, replace(one, **{count: total - tail}), replace(one, **{first: begin, count: tail})]
        if total > 1:
            break
    return banks


def row_parts(geometry: Geometry, out_tile: OutTile, start: bool, pairs: int) -> list[Part]:
    """(first row, rows) of the loads of an output tile's rows; empty if it needs no x. start: first the rows of one
    bank, then of another, then growing parts, each as long as all before, up to PART_BYTES: the next rows must not wait
    for more. pairs: output rows that the first M tile makes at once, which a bank's x must cover."""
    if out_tile.dn == 0 or out_tile.hn == 0 or out_tile.wn == 0:
        return []
    rows, unit = geometry.rows, bank_rows(out_tile) * pairs
    most = max(1, PART_BYTES // (unit * rows.stride * out_tile.dn * out_tile.wn * geometry.itemsize))
    found: list[Part] = []
    first, outputs, banks = 0, 0, 1 if start else most
    while first < out_tile.hn:
        outputs, end = min(out_tile.pn, outputs + banks * unit), out_tile.hn
        if outputs < out_tile.pn:
            h0, hn = span(rows, out_tile.p0, outputs)
            end = min(out_tile.hn, max(first + 1, h0 + hn - out_tile.h0))
        found.append((first, end - first))
        first, banks = end, banks if len(found) == 1 else min(most, 2 * banks)
    return found


def cut_rows(P: int, most: int, unit: int, step: int, in_halves: bool, alike: bool) -> list[Part]:
    """(first, count) of output tiles of at most `most` rows, in whole units, as even as possible, or `alike` with a
    smaller last one; in_halves: the two cores' halves first, with equally many units. step: rows that are never cut."""
    units = div_ceil(P, unit)
    if in_halves and P > step:  # also if units are even: the last one, core 1's, may be shorter
        unit = div_ceil(div_ceil(P, units + units % 2), step) * step
        units = div_ceil(P, unit)
    halves, parts = 2 if in_halves and units > 1 else 1, []
    for first, count in (share(units, halves, half) for half in range(halves)):
        inner = cut(count, max(1, most // unit))
        if alike and inner:
            inner = cut_at(count, div_ceil(count, len(inner)))
        for begin, many in inner:
            row = (first + begin) * unit
            parts.append((row, min(P, row + many * unit) - row))
    return parts


#: Bytes a partition of a loaded block of taps.
RAW_BYTES = 24_576
#: Kinds of filters of a K tile: packed; a transposed convolution's, stationaries as loaded or copied into order; of one
#: input channel, spread along diagonals; planes of taps, which become sums, and plain taps, which the Tensor Engine
#: transposes; taps that DMA transposes.
PACKED, READY, BACKWARDS, DIAGONALS, PLANES, PLAIN, MOVED = (
    "packed", "ready", "backwards", "diagonals", "planes", "plain", "moved"
)  # fmt: skip


def home_row(geometry: Geometry, rows: Axis) -> tuple[int, bool]:
    """(the row of taps, counted over all planes, that all sums begin with; whether it covers all outputs of planes and
    rows); if no row does, the middle one, which covers most. rows: the Axis of an M tile. Sums of separate planes have
    one plane."""
    row, taps = home_tap(rows), geometry.planes.taps if geometry.direct is None else 1
    plane = home_tap(geometry.planes) if taps > 1 else 0
    first = (plane if plane >= 0 else taps // 2) * rows.taps + (row if row >= 0 else rows.taps // 2)
    return first, plane >= 0 and row >= 0


def products(geometry: Geometry, m_tile: MTile, k_tile: KTile, out_tile: OutTile, bank: Bank) -> list[Product]:
    """Matmuls of a K tile for a bank of outputs, in the order of the taps' transposes; one that covers all outputs is
    first."""
    axis, found = m_tile_axis(geometry, m_tile), list[Product]()
    first, meets_all = home_row(geometry, axis)
    home = home_tap(geometry.columns) if k_tile.depth == 1 else 0
    # planes of taps with separate sums have the same valid ranges
    rows = (geometry.planes.taps if geometry.direct is None else 1) * axis.taps
    for row in in_order(rows, first):
        on_planes = valid_range(geometry.planes, row // axis.taps, out_tile.z0 + bank.z0, bank.zn)
        on_rows = valid_range(axis, row % axis.taps, out_tile.p0 + bank.p0, bank.pn)
        for group in range(tap_groups(geometry, k_tile) if on_planes[2] > 0 and on_rows[2] > 0 else 0):
            on_columns = group_met(geometry, k_tile, group, out_tile.q0 + bank.q0, bank.qn)
            if on_columns[2] > 0:
                parts = group_depth(geometry, k_tile, group) * k_tile.cn
                found.append(Product(on_planes, on_rows, on_columns, row, group, parts))
    if meets_all and home >= 0:
        return sorted(found, key=lambda one: (one.row, one.group) != (first, home))
    return covering_first(found, bank.zn, bank.pn, bank.qn)


def matmuls_of(geometry: Geometry, m_tile: MTile, k_tile: KTile, out_tile: OutTile, bank: Bank) -> Sequence[Product]:
    """Matmuls of a K tile for a bank of its output tile; empty without x. Pairs of taps cover the whole bank, as zeros
    are stored around x, and so do the rows of several images' chunks."""
    if 0 in (out_tile.dn, out_tile.hn, out_tile.wn):
        return []
    every = products(geometry, m_tile, k_tile, out_tile, bank)
    rows = (out_tile.p0 + bank.p0, 1, bank.pn, 0, 0)
    if k_tile.slots > 1 and bank.zn > 1:
        return [replace(one, rows=rows) for one in every]
    if k_tile.pairing != TAPS:
        return every
    window = (out_tile.z0 + bank.z0, 1, bank.zn, 0, 0), rows, (out_tile.q0 + bank.q0, 1, bank.qn, 0, 0)
    taps = [(one.row, one.group) for one in every]
    pairs = (sorted(taps[first : first + 2]) for first in range(0, len(taps), 2))
    return [Product(*window, *tap, second=next(iter(other), None)) for tap, *other in pairs]


@dataclass(frozen=True)
class FilterBlock:
    """Taps that are loaded together, for K tile number `place` in the order of the work: their kind, channels (first
    within the group, count), rows, columns and slot, and bytes a partition before they become stationaries."""

    m_tile: MTile
    k_tile: KTile
    place: int
    kind: str
    c0: int
    channels: int
    r0: int
    rn: int
    s0: int
    sn: int
    slot: int
    num_bytes: int

    @property
    def again(self) -> int:
        """Its first channels that the slot before has too."""
        return self.k_tile.again if self.slot > 0 else 0


@dataclass(frozen=True)
class Piece:
    """Taps that are transposed together: in a row of a block (by index), groups of columns of equal depth; or the whole
    block, unless its taps are plain."""

    block: int
    row: int
    first: int
    count: int
    depth: int
    #: of NEIGHBOURS, whose slots share blocks
    slot: int = 0


@dataclass(frozen=True)
class FilterOrder:
    """Filters of a group in the order of the work: blocks, pieces that the Tensor Engine transposes, pieces that DMA
    transposes, and places of K tiles by M tile. ends: (blocks, pieces, moves) that complete the first n K tiles."""

    blocks: tuple[FilterBlock, ...]
    pieces: tuple[Piece, ...]
    moves: tuple[Piece, ...]
    places: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, int, int], ...]

    @property
    def count(self) -> int:
        """K tiles of all M tiles."""
        return len(self.ends) - 1

    def after(self, index: int) -> int:
        """The number of K tiles, in the order of the work, up to an M tile's last one."""
        return self.places[index][-1] + 1


def filter_order(geometry: Geometry, m_tiles: Batch, moved_from: int, together: bool) -> FilterOrder:
    """The FilterOrder of a group; DMA transposes from M tile `moved_from` on. together: the filters of all M tiles for
    a K tile precede those for the next K tile."""
    blocks: list[FilterBlock] = []
    pieces: list[Piece] = []
    moves: list[Piece] = []
    ends, places = [(0, 0, 0)], [[0] * len(m_tile.k_tiles) for m_tile in m_tiles]
    every = [(index, which) for index, m_tile in enumerate(m_tiles) for which in range(len(m_tile.k_tiles))]
    for index, which in sorted(every, key=lambda one: one[1]) if together else every:
        m_tile, places[index][which] = m_tiles[index], len(ends) - 1
        for block in _blocks_of(geometry, m_tile, m_tile.k_tiles[which], len(ends) - 1, index >= moved_from):
            own = pieces if block.kind != MOVED else moves
            own += _pieces_of(geometry, block, len(blocks))
            blocks.append(block)
        ends.append((len(blocks), len(pieces), len(moves)))
    return FilterOrder(tuple(blocks), tuple(pieces), tuple(moves), tuple(map(tuple, places)), tuple(ends))


def kind_of(geometry: Geometry, m_tile: MTile, k_tile: KTile, moved: bool) -> str:
    """The kind of a K tile's filters; moved: whether DMA transposes them, unless they are folded."""
    if moved and m_tile.rows == k_tile.depth == 1:
        return MOVED
    if geometry.packed > 0:
        return PACKED
    if is_depthwise_m_tile(geometry, m_tile):
        return DIAGONALS
    if by_input(geometry, m_tile):
        return READY if lies_ready(geometry, m_tile, k_tile) else BACKWARDS
    return PLAIN if geometry.direct is None else PLANES


def _blocks_of(geometry: Geometry, m_tile: MTile, k_tile: KTile, place: int, moved: bool) -> Iterator[FilterBlock]:
    """Blocks of a K tile; only plain taps have several."""
    R, S, kind = filter_rows(geometry), geometry.columns.taps, kind_of(geometry, m_tile, k_tile, moved)
    per_c = geometry.C // geometry.groups
    own = per_c if m_tile.pack > 1 else k_tile.cn * (2 if k_tile.pairing == NEIGHBOURS else 1)
    parts = tap_blocks(geometry, own, RAW_BYTES) if kind in (PLAIN, MOVED) else [(0, R, 0, S)]
    for slot in range(1 if k_tile.pairing == NEIGHBOURS else k_tile.slots):
        c0 = 0 if m_tile.pack > 1 else k_tile.first_channel(slot) % per_c
        for r0, rn, s0, sn in parts:
            elements = own * rn * sn if geometry.direct is None else own * num_taps(geometry.direct)
            if kind == BACKWARDS:
                elements = m_tile.kn // m_tile.pack * R * S
            if kind == READY or (kind == PACKED and geometry.precision != "fp16x3"):
                elements = 0
            size = elements * geometry.itemsize
            yield FilterBlock(m_tile, k_tile, place, kind, c0, own, r0, rn, s0, sn, slot, size)


def _pieces_of(geometry: Geometry, block: FilterBlock, index: int) -> Iterator[Piece]:
    """Pieces of a block: for each row groups of taps of one depth, at most a transposed bank of them."""
    k_tile, S = block.k_tile, geometry.columns.taps
    if block.kind in (DIAGONALS, MOVED) or (block.kind in (PACKED, BACKWARDS) and geometry.precision == "fp16x3"):
        yield Piece(index, 0, 0, S, 1)
    elif block.kind not in (PACKED, READY):
        most, depth = transposes_of_bank(block.m_tile.kn, geometry.itemsize), k_tile.depth
        first, end = block.s0 // depth, div_ceil(block.s0 + block.sn, depth)
        rest = group_depth(geometry, k_tile, end - 1)
        whole = end if rest == depth else end - 1
        slots = range(k_tile.slots if k_tile.pairing == NEIGHBOURS else 1)
        rows = in_order(block.rn, home_row(geometry, geometry.rows)[0] - block.r0)
        for row, slot in itertools.product(rows, slots):
            for group in range(first, whole, most):
                yield Piece(index, row, group, min(most, whole - group), depth, slot)
            if whole < end:
                yield Piece(index, row, whole, 1, rest, slot)


def needs_order(geometry: Geometry) -> bool:
    """Whether a block's channels are sorted into the order of x on the partitions after the load: they are planes of
    taps."""
    return geometry.packed == 0 and is_by_plane(geometry)
