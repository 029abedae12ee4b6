"""`implicit_gemm`: output tiles, banks of sums, loads of rows, and the x that a K tile holds for an output tile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .cuts import Bank, OutTile, axis_elements, bank_unit, cut_planes, most_of, num_plane_parts, window_of
from .geometry import Geometry, Met, num_taps, span, valid_range
from .implicit_gemm import ImplicitGemmSettings
from .implicit_gemm_channels import ALONE, STAGED, KTile, MTile, sums_pitch, tap_groups, word_of
from .tiles import BANK_COLUMNS, PARTS, Part, cut, cut_at, div_ceil, share

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
    if k_tile.depth == 1 and not k_tile.stores_zeros:
        return out_tile.w0, out_tile.wn
    columns = geometry.columns
    first, width = out_tile.q0 * columns.stride - columns.before, folded_width(geometry, k_tile, out_tile.qn)
    if comes_staged(geometry, k_tile, out_tile):  # whole rows of whole words
        word = word_of(geometry)
        left = div_ceil(columns.before, word) * word
        return -left, div_ceil(left + max(columns.size, first + width), word) * word
    if k_tile.stores_zeros and first == 0 and out_tile.wn == columns.size:
        width = max(width, out_tile.wn)  # rows that are loaded as one run
    return first, width


def comes_staged(geometry: Geometry, k_tile: KTile, out_tile: OutTile) -> bool:
    """Whether rows of x of a K tile are placed between zeros on chip."""
    return k_tile.pairing == STAGED and out_tile.qn == geometry.columns.out


def folded_width(geometry: Geometry, k_tile: KTile, qn: int) -> int:
    """Columns of x that each copy of a folded K tile holds for `qn` outputs of a row."""
    columns = geometry.columns
    last = (tap_groups(geometry, k_tile) - 1) * k_tile.depth * columns.dilation
    return (qn - 1) * columns.stride + last + 1


@dataclass(frozen=True)
class XPlace:
    """A K tile's x in SBUF for an output tile: slots, planes, and rows and columns of each plane, zeros included, from
    this row and column of x on."""

    slots: int
    planes: int
    row: int
    rows: int
    column: int
    columns: int

    @property
    def elements(self) -> int:
        """Elements a partition of a slot."""
        return self.planes * self.rows * self.columns


def x_place(geometry: Geometry, k_tile: KTile, out_tile: OutTile) -> XPlace:
    """The XPlace of a K tile for an output tile."""
    rows, one = geometry.rows, out_tile
    window = k_tile_window(geometry, k_tile, one)
    if k_tile.pairing == ALONE:
        return XPlace(1, one.dn, one.h0, one.hn, *window)
    planes, extent = one.zn, window_of(rows, one.pn)
    pitch = extent if one.zn == 1 else sums_pitch(geometry, [k_tile], one.zn, one.pn) * rows.stride
    planes += extent > pitch
    return XPlace(k_tile.slots, planes, one.p0 * rows.stride - rows.before, pitch, *window)


def m_tile_out_tile(out_tile: OutTile, m_tile: MTile) -> OutTile:
    """An output tile in an M tile's rows: pairs of rows, if it makes two at once."""
    return replace(out_tile, p0=out_tile.p0 // m_tile.rows, pn=div_ceil(out_tile.pn, m_tile.rows))


def out_tiles_of(
    geometry: Geometry, k_tiles: Sequence[KTile], step: int, halves: int, settings: ImplicitGemmSettings
) -> list[OutTile]:
    """Output tiles of all images; at least `halves` of them. step: output rows that an M tile makes at once."""
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
    if pn >= P and qn >= Q and not apart:
        zn = images_together(geometry, k_tiles)
        while zn > 1 and not fits(zn, P, Q):
            zn -= 1
    num_parts = num_plane_parts(planes, zn)
    if halves > 1 and num_parts % 2 == 1 and num_parts < planes.out and (not apart or P == 1):
        num_parts += 1
    in_halves = halves > 1 and (num_parts * div_ceil(Q, qn)) % 2 == 1
    if P <= step:
        parts = div_ceil(min(qn, Q), BANK_COLUMNS)
        parts = div_ceil(parts, PARTS) * PARTS if in_halves else parts
        qn = div_ceil(qn, min(parts, qn))
    parts_of_planes = cut_planes(planes.out, planes.images, num_parts)
    unit = bank_unit(1 if apart else most_of(parts_of_planes), pn, qn, step)
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
    for first, count, each in (("z", "zn", one.pn * one.qn), ("p", "pn", one.qn), ("q", "qn", 1)):
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
    if in_halves and units % 2 == 1 and P > step:
        unit = div_ceil(div_ceil(P, units + 1), step) * step
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
