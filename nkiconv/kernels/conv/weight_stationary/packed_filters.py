"""Filters of M packing as stationaries: [c, (plane, row of x), g, (t, u, k)] in SBUF for each K tile.

A row of w, one output channel, is contiguous in HBM; the Tensor Engine transposes [k, c] of one tap into [c, k],
several taps to a PSUM bank. Row u of a block meets tap r at row u * stride + r * dilation of x, so the filters of u are
one copy of all taps, shifted down by u * stride rows, beside those of the other rows; all else is zero.
"""

import itertools

from ...._nki import nisa, nl
from ....schedules.geometry import filter_rows
from ....schedules.planes import is_by_plane
from ....schedules.tiles import cut_at
from ..._engines import is_16bit, pick
from ..filter_feed import clear_tile, clear_words, transpose_together, transposes_of_bank
from ..regions import load_packed, load_region, pattern_of


class PackedFilters(nl.NKIObject):
    """Filters of one M tile: as loaded, and stationaries by K tile."""

    def __init__(self, operands, geometry, schedule, ledger):
        self.operands, self.geometry, self.schedule, self.ledger = operands, geometry, schedule, ledger
        self.loaded, self.made = [], []

    def load(self, tile, k_tile):
        """Load all filters, as many K tiles together as fit the partitions."""
        if k_tile == 0:
            self.loaded = load_all(self.operands, self.geometry, self.schedule)

    def start(self, residents):
        """Zeroed stationaries [c, (plane, row of x), g, t, slot] for each K tile."""
        geometry, schedule, shift = self.geometry, self.schedule, self.schedule.shift
        rows = geometry.planes.taps * len(schedule.axes[1].elements(0))
        for k_tile in range(len(schedule.k_tiles)):
            shape = (lane_parts(schedule, k_tile), rows, shift.groups, shift.T, schedule.slot)
            self.made.append(nl.ndarray(shape, dtype=self.operands.w_dtype, buffer=nl.sbuf))
            clear_words(self.made[-1], nisa.engine.vector if k_tile % 2 == 0 else nisa.engine.gpsimd)

    def prepare(self):
        """Nothing is loaded ahead."""

    def make(self, tiles):
        """Transpose what was loaded, and put it in its places."""
        for first, together, raw_sbuf in self.loaded:
            taps_sbuf = transpose_loaded(raw_sbuf, self.geometry, self.ledger)
            K = self.geometry.K
            for part in range(together):
                k_tile = first + part
                count = lane_parts(self.schedule, k_tile)
                own_sbuf = taps_sbuf[0:count, 0 : taps_sbuf.shape[1], part * K : (part + 1) * K]
                for u in range(self.schedule.shift.U):
                    place_row(self.made[k_tile], own_sbuf, self.geometry, self.schedule, u, self.ledger)
        for k_tile, made_sbuf in enumerate(self.made):
            parts, rows, groups, T, slot = made_sbuf.shape
            self.made[k_tile] = made_sbuf.reshape((parts, rows * groups, T * slot))

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary of a product of a row tile: [c, (t, u, k)]."""
        first, cn = row_tile.first, self.schedule.k_tiles[k_tile][1]
        return self.made[k_tile][first : first + cn, product.index, 0 : self.schedule.width(row_tile.kn)]


def lane_parts(schedule, k_tile):
    """Partitions of a K tile of all row tiles."""
    return (schedule.shift.lanes - 1) * schedule.rows + schedule.k_tiles[k_tile][1]


def load_all(operands, geometry, schedule):
    """(first K tile, how many, tile [(K tile, k), c, r, s], or of one K tile [c, taps, k] of a packed filter) of all
    filters as loaded: as many K tiles packed along the partitions as fit, so that one transpose of a tap serves them
    all. The last K tile has most channels, so that each can be loaded as if it had as many."""
    if geometry.flipped:
        return load_reversed(operands, geometry, schedule)
    K, R, S, lanes = geometry.K, filter_rows(geometry), geometry.columns.taps, schedule.shift.lanes
    found = []
    for first, count in loaded_together(geometry, schedule):
        last = first + count - 1 if is_by_plane(geometry) else len(schedule.k_tiles) - 1
        channels, parts = schedule.k_tiles[last][1], lane_parts(schedule, last)
        c0, cn, *_ = schedule.k_tiles[first]
        if geometry.packed > 0:
            tile_sbuf = nl.ndarray((lane_parts(schedule, first), R * S, K), dtype=operands.w_dtype, buffer=nl.sbuf)
            if lanes > 1 and cn < schedule.rows:
                nisa.memset(dst=tile_sbuf, value=0.0, engine=nisa.engine.gpsimd)
            for begin in range(0, lanes * schedule.rows, schedule.rows):
                load_packed(tile_sbuf[begin : begin + cn, 0 : R * S, 0:K], operands.w, geometry, c0, cn, 0, K)
            found.append((first, count, tile_sbuf))
            continue
        tile_sbuf = nl.ndarray((count * K, parts, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        for end in range(schedule.rows, lanes * schedule.rows, schedule.rows):
            if cn < schedule.rows:
                gap_sbuf = tile_sbuf[0 : count * K, end - schedule.rows + cn : end, 0:R, 0:S]
                nisa.memset(dst=gap_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        if schedule.shift.Z > 1:
            load_windows(tile_sbuf, operands.w, geometry, schedule, first)
        for index, lane in itertools.product(range(count if schedule.shift.Z == 1 else 0), range(lanes)):
            pattern = pattern_of(geometry.w_strides, (K, channels, R, S))
            offset = schedule.k_tiles[first + index][0] * geometry.w_strides[1]
            load_region(tile_sbuf, operands.w, (index * K, lane * schedule.rows, 0, 0), pattern, offset)
        found.append((first, count, tile_sbuf))
    return found


def loaded_together(geometry, schedule):
    """(first, how many) K tiles whose filters are loaded together: where channels are plane by plane, K tiles of as
    many channels, as each plane's begin there."""
    most = 1 if geometry.packed > 0 else nl.tile_size.pmax // geometry.K
    if not is_by_plane(geometry):
        return cut_at(len(schedule.k_tiles), most)
    found = []
    for index in range(len(schedule.k_tiles)):
        first, count = found[-1] if len(found) > 0 else (0, most)
        if count < most and schedule.k_tiles[index][1] == schedule.k_tiles[first][1]:
            found[-1] = (first, count + 1)
        else:
            found.append((index, 1))
    return found


def load_reversed(operands, geometry, schedule):
    """The same of the filter of a transposed convolution of images: [c, k, taps reversed], a channel's in a run."""
    K, R, S, strides, found = geometry.K, filter_rows(geometry), geometry.columns.taps, geometry.w_strides, []
    for k_tile, (c0, cn, *_) in enumerate(schedule.k_tiles):
        tile_sbuf = nl.ndarray((lane_parts(schedule, k_tile), K, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        if schedule.shift.lanes > 1 and cn < schedule.rows:
            nisa.memset(dst=tile_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        pattern = pattern_of((strides[1], strides[0], strides[2], strides[3]), (cn, K, R, S))
        for lane in range(schedule.shift.lanes):
            load_region(tile_sbuf, operands.w, (lane * schedule.rows, 0, 0, 0), pattern, c0 * strides[1])
        found.append((k_tile, 1, tile_sbuf))
    return found


def load_windows(tile_sbuf, w_hbm, geometry, schedule, first):
    """Filters of K tiles from `first` on into a tile [(K tile, plane, k), c, r, s] for each plane of y of a window: c
    has all planes of x that the window sees, and zeros where it does not look at them."""
    rows, channels, R, S = tile_sbuf.shape
    each, depth, apart = geometry.depth.taps, schedule.shift.depth, geometry.w_strides
    K, C = geometry.K // schedule.shift.Z, channels // each
    clear_tile(tile_sbuf, geometry.itemsize, nisa.engine.vector)
    planes_sbuf = tile_sbuf.reshape((rows, C, each, R, S))
    pattern = [[apart[0], K], [apart[1], C], [R * apart[2], depth.taps], [apart[2], R], [apart[3], S]]
    for part in range(rows // K):
        d = part % schedule.shift.Z * depth.stride
        seen = planes_sbuf[0:rows, 0:C, d : d + (depth.taps - 1) * depth.dilation + 1 : depth.dilation, 0:R, 0:S]
        offset = schedule.k_tiles[first + part // schedule.shift.Z][0] // each * apart[1]
        load_region(seen, w_hbm, (part * K, 0, 0, 0, 0), pattern, offset)


def transpose_loaded(raw_sbuf, geometry, ledger):
    """Loaded filters as [c, taps, (K tile, k)] in SBUF: as many transposes to a PSUM bank as fit, then one
    evacuation."""
    if geometry.packed > 0:
        return raw_sbuf
    rows, channels, R, S = raw_sbuf.shape
    if geometry.flipped:
        return forwards(raw_sbuf, ledger)
    taps_sbuf = nl.ndarray((channels, R * S, rows), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    each = geometry.depth.taps if is_by_plane(geometry) else 1
    by_channel = raw_sbuf.reshape((rows, channels // each, each, R, S))
    for part in cut_at(R * S, transposes_of_bank(rows, geometry.itemsize)):
        first, count = part
        sources = []
        for tap in range(first, first + count):
            if each == 1:
                sources.append(raw_sbuf[0:rows, 0:channels, tap // S, tap % S])
            else:
                own = by_channel[0:rows, 0 : channels // each, 0:each, tap // S, tap % S]
                sources.append(own.permute((0, 2, 1)))
        own_sbuf = taps_sbuf[0:channels, first : first + count, 0:rows]
        transpose_together(own_sbuf, sources, geometry.itemsize, ledger)
    return taps_sbuf


def forwards(raw_sbuf, ledger):
    """[c, k, taps reversed] as [c, taps, k]."""
    parts, K, R, S = raw_sbuf.shape
    taps_sbuf = nl.ndarray((parts, R * S, K), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    for tap in range(R * S):
        at = R * S - 1 - tap
        src = raw_sbuf[0:parts, 0:K, at // S, at % S]
        nisa.tensor_copy(dst=taps_sbuf[0:parts, tap, 0:K], src=src, engine=pick(ledger, K, is_16bit(raw_sbuf.dtype)))
    return taps_sbuf


def place_row(tile_sbuf, taps_sbuf, geometry, schedule, u, ledger):
    """The taps of row u of a block in its columns of the lines that meet them, for each group of columns of taps."""
    S, K, T = geometry.columns.taps, geometry.K, schedule.shift.T
    count, taps, _ = taps_sbuf.shape
    of_rows = taps_sbuf.reshape((count, taps // S, S, K))
    runs = runs_of_taps(schedule.axes[1], u)
    for index in range(geometry.planes.taps * len(runs)):
        tap, tap_step, line, line_step, num = runs[index % len(runs)]
        tap += index // len(runs) * geometry.rows.taps
        line += index // len(runs) * len(schedule.axes[1].elements(0))
        for g in range(schedule.shift.groups):
            tn = min(T, S - g * T)
            lines = tile_sbuf[0:count, line : line + (num - 1) * line_step + 1 : line_step, g, 0:tn, u * K : u * K + K]
            src = of_rows[0:count, tap : tap + (num - 1) * tap_step + 1 : tap_step, g * T : g * T + tn, 0:K]
            nisa.tensor_copy(dst=lines, src=src, engine=pick(ledger, num * tn * K, is_16bit(taps_sbuf.dtype)))


def runs_of_taps(rows, u):
    """(first row of taps, step, index of its row of x, step of those, how many) of the rows of taps that row u of a
    block meets: one where both are evenly spaced, else one for each."""
    elements = rows.elements(0)
    found = [(tap, 1, elements.index(e), 1, 1) for tap, e in rows.taps[u]]
    if len(found) < 2:
        return found
    first, step, by = found[0], found[1][0] - found[0][0], found[1][2] - found[0][2]
    even = all(one[0] - first[0] == n * step and one[2] - first[2] == n * by for n, one in enumerate(found))
    return [(first[0], step, first[2], by, len(found))] if even else found
