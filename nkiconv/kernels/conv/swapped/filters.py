"""Filters as moving operands, [c, chunk, tap, k] in SBUF: chunks of input channels, all output channels of a batch.

Three ways from HBM: "copy", where output channels lie side by side (RSCK, or packed): runs of them; "dma", where input
channels do (KRSC, or one tap) and no cast is due: DMA transposes them; "array": blocks of taps as they lie, each [k, c]
of a tap transposed on the array, several to a bank of PSUM, in the order in which the sums need them: the loop
transposes a block between any two matmuls.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..._tiles import BANK_BYTES, cut, div_ceil, whole_words
from ..boxes import load_packed, offset_at, pattern_of
from ..cuts import most_of, tap_blocks
from ..geometry import filter_rows, num_taps
from ..transposes import load_transposed

#: Bytes a partition of a block of taps as it lies, and of all that are on their way together, if more than one.
SWAPPED_RAW_BYTES = 16_384
SWAPPED_AHEAD_BYTES = 28_672


@dataclass
class RawTaps(nl.NKIObject):
    """A load: of a chunk, rows and columns of taps, and at most 128 output channels from the batch's first."""

    chunk: int
    r0: int
    rn: int
    s0: int
    sn: int
    k0: int
    kn: int


@dataclass
class SwappedFilters(nl.NKIObject):
    """Filters of a batch on their way; loads in order, `ends`: by chunk, how many until it is complete."""

    way: str
    k0: int
    kn: int
    chunks: list
    loads: list
    ends: list
    #: tiles of loads, None once they are transposed; how many are, and chunks that came straight
    raws: list
    done: int
    straight: int
    #: [c, chunks, taps, kn] in SBUF, and whether it is folded
    tile: object
    folded: bool


def way_of(geometry):
    """How filters come."""
    if geometry.packed > 0 or geometry.w_strides[0] == 1:
        return "copy"
    if geometry.w_strides[1] == 1 and geometry.hbm_itemsize == 2:
        return "dma"
    return "array"


def start_swapped_filters(operands, geometry, k0, kn, chunks, way):
    """Filters of output channels k0 .. k0+kn-1 of which nothing is loaded yet."""
    loads, ends = [], []
    for chunk in range(len(chunks)):
        if way == "array":
            add_loads(geometry, chunk, chunks[chunk][1], kn, loads)
        ends.append(len(loads))
    shape = (most_of(chunks), len(chunks), num_taps(geometry), kn)
    return SwappedFilters(
        way=way,
        k0=k0,
        kn=kn,
        chunks=chunks,
        loads=loads,
        ends=ends,
        raws=[],
        done=0,
        straight=0,
        tile=nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf),
        folded=False,
    )


def add_loads(geometry, chunk, channels, kn, loads):
    """Append the loads of a chunk."""
    for block in tap_blocks(geometry, channels, SWAPPED_RAW_BYTES):
        r0, rn, s0, sn = block
        for part in cut(kn, nl.tile_size.pmax):
            loads.append(RawTaps(chunk=chunk, r0=r0, rn=rn, s0=s0, sn=sn, k0=part[0], kn=part[1]))


def load_bytes(geometry, filters, index):
    """Bytes a partition of one load."""
    load = filters.loads[index]
    return filters.chunks[load.chunk][1] * load.rn * load.sn * geometry.itemsize


def load_swapped_filters(operands, geometry, filters, chunk, ledger):
    """Load what there is room for, up to a chunk."""
    while filters.way != "array" and filters.straight <= min(chunk, len(filters.chunks) - 1):
        load_straight(operands, geometry, filters, ledger)
    waiting_bytes = 0
    for index in range(len(filters.raws)):
        if filters.raws[index] != None:
            waiting_bytes += load_bytes(geometry, filters, index)
    for index in range(len(filters.raws), len(filters.loads)):
        load = filters.loads[index]
        waiting_bytes += load_bytes(geometry, filters, index)
        if load.chunk > chunk or waiting_bytes > SWAPPED_AHEAD_BYTES:
            return
        load_raw(operands, geometry, filters)


def load_raw(operands, geometry, filters):
    """The next load: [kn, channels, rows, columns] in SBUF."""
    load, strides = filters.loads[len(filters.raws)], geometry.w_strides
    c0, count = filters.chunks[load.chunk]
    raw_sbuf = nl.ndarray((load.kn, count, load.rn, load.sn), dtype=operands.w_dtype, buffer=nl.sbuf)
    pattern = pattern_of(strides, (load.kn, count, load.rn, load.sn))
    offset = offset_at(strides, (filters.k0 + load.k0, c0, load.r0, load.s0))
    copy(raw_sbuf, operands.w.ap(pattern=pattern, offset=offset))
    filters.raws.append(raw_sbuf)


def load_straight(operands, geometry, filters, ledger):
    """The next chunk straight from HBM."""
    chunk, kn = filters.straight, filters.kn
    R, S = filter_rows(geometry), geometry.columns.taps
    c0, count = filters.chunks[chunk]
    filters.straight = chunk + 1
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
    """Transpose the taps of the next load, and load ahead."""
    index = filters.done
    if len(filters.raws) <= index:
        load_raw(operands, geometry, filters)
    load, raw_sbuf, dtype = filters.loads[index], filters.raws[index], operands.w_dtype
    count, pitch = filters.chunks[load.chunk][1], whole_words(load.kn, 2)
    for r in range(load.rn):
        for part in cut(load.sn, BANK_BYTES // (pitch * geometry.itemsize)):
            first, num = part
            taps_psum = nl.ndarray((count, num, pitch), dtype=dtype, buffer=nl.psum)
            for s in range(num):
                nisa.nc_transpose(
                    dst=taps_psum[0:count, s, 0 : load.kn],
                    data=raw_sbuf[0 : load.kn, 0:count, r, first + s],
                    engine=nisa.engine.tensor,
                )
            tap = (load.r0 + r) * geometry.columns.taps + load.s0 + first
            nisa.tensor_copy(
                dst=filters.tile[0:count, load.chunk, tap : tap + num, load.k0 : load.k0 + load.kn],
                src=taps_psum[0:count, 0:num, 0 : load.kn],
                engine=pick(ledger, num * load.kn, is_16bit(dtype)),
            )
    filters.raws[index] = None
    filters.done = index + 1
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
    block = tap_blocks(geometry, channels, SWAPPED_RAW_BYTES)[0]
    one = channels * block[1] * block[3] * geometry.itemsize
    return max(SWAPPED_AHEAD_BYTES, one) + one


def transposes_of(kn, taps, chunks):
    """Transposes of the filters of kn output channels, and read-outs of them, at most."""
    return len(chunks) * taps * div_ceil(kn, nl.tile_size.pmax)
