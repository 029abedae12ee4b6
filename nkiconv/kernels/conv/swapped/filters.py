"""Filters as moving operands, [c, chunk, tap, k] in SBUF: chunks of input channels, all output channels of a batch.

Four ways from HBM: "copy", where output channels lie side by side (RSCK, or packed): runs of them; "dma", where input
channels do (KRSC, or one tap) and no cast is due: DMA transposes them; "array": blocks of taps as they lie, each [k, c]
of a tap transposed on the array, several to a bank of PSUM, in the order in which the sums need them: the loop
transposes a block between any two matmuls; "backwards", of transposed convolutions: [c, k, taps] as it lies, whose taps
go to their places then.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import most_of, tap_blocks
from ....schedules.geometry import filter_rows, num_taps
from ....schedules.tiles import BANK_BYTES, cut, div_ceil, whole_words
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..boxes import load_packed, offset_at, pattern_of
from ..filter_feed import transpose_together
from ..transposes import load_transposed

#: Bytes a partition of a block of taps as it lies, and of all that are on their way together, if more than one.
SWAPPED_RAW_BYTES = 16_384
SWAPPED_AHEAD_BYTES = 28_672


@dataclass
class SwappedFilters(nl.NKIObject):
    """Filters of a batch on their way: loads, (chunk, block of taps, output channels from the batch's first), in order;
    `ends`: by chunk, how many until it is complete."""

    way: str
    k0: int
    kn: int
    chunks: list
    loads: list
    ends: list
    #: tiles of loads that are to be transposed
    raws: list
    #: [c, chunks, taps, kn] in SBUF, and whether it is folded
    tile: object
    folded: bool = False
    #: how many loads are in their places
    done: int = 0


def way_of(geometry):
    """How filters come."""
    if geometry.packed > 0 or geometry.w_strides[0] == 1:
        return "copy"
    if geometry.flipped:
        return "backwards"
    if geometry.w_strides[1] == 1 and geometry.hbm_itemsize == 2:
        return "dma"
    return "array"


def comes_raw(way):
    """Whether filters are put in place when they have come."""
    return way in ("array", "backwards")


def blocks_as_they_lie(geometry, channels):
    """(first row, rows, first column, columns) of blocks of taps that come together."""
    if geometry.flipped:
        return [(0, filter_rows(geometry), 0, geometry.columns.taps)]
    return tap_blocks(geometry, channels, SWAPPED_RAW_BYTES)


def block_bytes_of(geometry, channels, block, kn):
    """Bytes a partition of a block as it lies."""
    return (kn if geometry.flipped else channels) * block[1] * block[3] * geometry.itemsize


def start_swapped_filters(operands, geometry, k0, kn, chunks, way):
    """Filters of output channels k0 .. k0+kn-1 of which nothing is loaded yet; straight ones come a chunk at a time."""
    loads, ends, shape = [], [], (most_of(chunks), len(chunks), num_taps(geometry), kn)
    for chunk in range(len(chunks)):
        if comes_raw(way):
            for block in blocks_as_they_lie(geometry, chunks[chunk][1]):
                for part in cut(kn, nl.tile_size.pmax):
                    loads.append((chunk, block, part))
        else:
            loads.append((chunk, None, (0, kn)))
        ends.append(len(loads))
    return SwappedFilters(
        way=way,
        k0=k0,
        kn=kn,
        chunks=chunks,
        loads=loads,
        ends=ends,
        raws=[],
        tile=nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf),
    )


def load_swapped_filters(operands, geometry, filters, chunk, ledger):
    """Load what there is room for, up to a chunk."""
    waiting_bytes = 0
    for index in range(filters.done, len(filters.loads)):
        load = filters.loads[index]
        if comes_raw(filters.way):
            waiting_bytes += block_bytes_of(geometry, filters.chunks[load[0]][1], load[1], load[2][1])
        if index >= filters.done + len(filters.raws):
            if load[0] > chunk or waiting_bytes > SWAPPED_AHEAD_BYTES:
                return
            load_swapped_next(operands, geometry, filters, ledger)


def load_swapped_next(operands, geometry, filters, ledger):
    """The next load: a block of taps [kn, channels, rows, columns] in SBUF, or all of a chunk to its place."""
    chunk, block, part = filters.loads[filters.done + len(filters.raws)]
    c0, count = filters.chunks[chunk]
    if not comes_raw(filters.way):
        load_straight(operands, geometry, filters, chunk, ledger)
        return
    r0, rn, s0, sn = block
    shape, strides = (part[1], count, rn, sn), geometry.w_strides
    first = (filters.k0 + part[0], c0, r0, s0)
    if geometry.flipped:
        shape, strides = (count, part[1], rn, sn), (strides[1], strides[0], strides[2], strides[3])
        first = (c0, filters.k0 + part[0], r0, s0)
    raw_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
    copy(raw_sbuf, operands.w.ap(pattern=pattern_of(strides, shape), offset=offset_at(strides, first)))
    filters.raws.append(raw_sbuf)


def load_straight(operands, geometry, filters, chunk, ledger):
    """A chunk straight from HBM."""
    kn, R, S = filters.kn, filter_rows(geometry), geometry.columns.taps
    c0, count = filters.chunks[chunk]
    filters.done = filters.done + 1
    tile_sbuf = filters.tile[0:count, chunk, 0 : R * S, 0:kn]
    if geometry.packed > 0:
        load_packed(tile_sbuf, operands.w, geometry, c0, count, filters.k0, kn)
        return
    by_k, by_c, by_r, by_s = geometry.w_strides
    offset = filters.k0 * by_k + c0 * by_c
    if filters.way == "copy":
        pattern = [[by_c, count], [by_r, R], [by_s, S], [1, kn]]
        copy(tile_sbuf, operands.w.ap(pattern=pattern, offset=offset))
    else:
        shape = (count, R, S, kn)
        load_transposed(tile_sbuf.reshape(shape), operands.w, (by_c, by_r, by_s, by_k), offset, False, ledger)


def waiting_to(filters, chunk):
    """Loads that are not transposed yet of chunks up to one."""
    return max(0, filters.ends[min(chunk, len(filters.ends) - 1)] - filters.done)


def transpose_to(operands, geometry, filters, chunk, ledger):
    """Have all of a chunk in its place."""
    load_swapped_filters(operands, geometry, filters, chunk, ledger)
    while waiting_to(filters, chunk) > 0:
        transpose_load(operands, geometry, filters, ledger)


def transpose_load(operands, geometry, filters, ledger):
    """Transpose the taps of the next load, or put them in place, and load ahead."""
    if len(filters.raws) == 0:
        load_swapped_next(operands, geometry, filters, ledger)
    chunk, block, part = filters.loads[filters.done]
    r0, rn, s0, sn = block
    k0, kn = part
    raw_sbuf, count = filters.raws[0], filters.chunks[chunk][1]
    for tap in range(rn * sn if geometry.flipped else 0):
        at = rn * sn - 1 - tap
        src, dst = raw_sbuf[0:count, 0:kn, at // sn, at % sn], filters.tile[0:count, chunk, tap, k0 : k0 + kn]
        nisa.tensor_copy(dst=dst, src=src, engine=pick(ledger, kn, is_16bit(raw_sbuf.dtype)))
    for r in range(0 if geometry.flipped else rn):
        # taps of fp32 too begin at even columns of a bank
        for some in cut(sn, BANK_BYTES // (whole_words(kn, 2) * geometry.itemsize)):
            first, num = some
            sources, tap = [], (r0 + r) * geometry.columns.taps + s0 + first
            for s in range(first, first + num):
                sources.append(raw_sbuf[0:kn, 0:count, r, s])
            into = filters.tile[0:count, chunk, tap : tap + num, k0 : k0 + kn]
            transpose_together(into, sources, 2, ledger)
    filters.raws = filters.raws[1:]
    filters.done = filters.done + 1
    load_swapped_filters(operands, geometry, filters, len(filters.chunks) - 1, ledger)


def fold_filters(geometry, source, filters):
    """Replace the filters by those of `fold` rows of y at once: [(slot, c), 1, taps, (row, k)], zero where a slot's row
    of x is none of a row's window."""
    rows, S, K = geometry.rows, geometry.columns.taps, filters.kn
    fold, slots = source.fold, source.slots
    cn = filters.chunks[0][1]
    shape = (slots * cn, 1, source.rows.taps, S, fold * K)
    folded_sbuf = nl.ndarray(shape, dtype=filters.tile.dtype, buffer=nl.sbuf)
    nisa.memset(dst=folded_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for row in range(fold):
        for r in range(rows.taps):
            place = row * rows.stride + r * rows.dilation
            slot, tap = place % slots, place // slots
            copy(
                folded_sbuf[slot * cn : (slot + 1) * cn, 0, tap, 0:S, row * K : (row + 1) * K],
                filters.tile[0:cn, 0, r * S : (r + 1) * S, 0:K],
            )
    filters.tile = folded_sbuf.reshape((slots * cn, 1, source.rows.taps * S, fold * K))
    filters.folded = True


def raw_bytes(geometry, chunks):
    """Bytes a partition of all loads that are there together, at most."""
    channels = most_of(chunks)
    block = blocks_as_they_lie(geometry, channels)[0]
    one = block_bytes_of(geometry, channels, block, min(geometry.K, nl.tile_size.pmax))
    return max(SWAPPED_AHEAD_BYTES, one) + one


def transposes_of(kn, taps, chunks):
    """Transposes of the filters of kn output channels, and read-outs of them, at most."""
    return len(chunks) * taps * div_ceil(kn, nl.tile_size.pmax)
