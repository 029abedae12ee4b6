"""Filters of a K tile: loads, and stationaries.

A row of w, one output channel, is contiguous in HBM; the Tensor Engine transposes [k, c] of one tap into [c, k],
several taps to a PSUM bank. If an M tile has several groups, each row is first spread over the groups' channels by a
mask: its transpose is block-diagonal, and one matmul serves all groups.
"""

import itertools

from ...._nki import nisa, nl
from ....schedules.geometry import filter_rows, num_taps
from ....schedules.implicit_gemm_channels import (
    ALONE,
    group_depth,
    lies_ready,
    m_tile_axis,
    stationary_columns,
    tap_groups,
)
from ....schedules.planes import channel_runs
from ....schedules.regions import offset_at, pattern_of
from ....schedules.tiles import div_ceil
from ..._engines import copy_balanced
from ..._masks import constant, keep_between, keep_equal
from ..filter_feed import turn_forwards
from ..regions import load_depthwise, load_filters, load_region


def new_tile(geometry, block, dtype, whole=False):
    """A new tile of stationaries, slot by slot, with zeros in rows of taps that a row of outputs lacks and, for pairs
    or if `whole`, in the last group of columns."""
    m_tile, k_tile = block.m_tile, block.k_tile
    each, groups = m_tile_axis(geometry, m_tile).taps, tap_groups(geometry, k_tile)
    height = geometry.planes.taps * each
    parts, shift = k_tile.cn * k_tile.depth, each - geometry.rows.taps
    shape = (parts, k_tile.slots * height, groups, m_tile.rows, stationary_columns(geometry, m_tile))
    tile_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    lacking = []
    for u in range(m_tile.rows if m_tile.rows > 1 else 0):
        without = [r for r in range(height) if not 0 <= r % each - u * shift < geometry.rows.taps]
        lacking += [tile_sbuf[0:parts, r, 0:groups, u, 0 : m_tile.kn] for r in without]
    if (whole or k_tile.pairing != ALONE) and group_depth(geometry, k_tile, groups - 1) < k_tile.depth:
        lacking += [tile_sbuf[0:parts, 0:height, groups - 1, u, 0 : m_tile.kn] for u in range(m_tile.rows)]
    for zeros in lacking:
        nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    return tile_sbuf


def rows_apart(geometry, m_tile):
    """Rows of taps between an M tile's output rows at once."""
    return m_tile_axis(geometry, m_tile).taps - geometry.rows.taps


def slot_of(tile_sbuf, geometry, slot):
    """A slot of a K tile's stationaries."""
    parts, _, groups, rows, columns = tile_sbuf.shape
    first, end = slot * geometry.rows.taps, (slot + 1) * geometry.rows.taps
    return tile_sbuf if slot == 0 else tile_sbuf[0:parts, first:end, 0:groups, 0:rows, 0:columns]


def load_channels(operands, geometry, block):
    """Load the filters of a depthwise M tile by channel of x: [cn, multiplier, taps] in SBUF."""
    raw_sbuf = load_depthwise(operands, geometry, *block.k_tile[:2])
    return raw_sbuf.reshape((*raw_sbuf.shape[:2], num_taps(geometry)))


def load_stationaries(tile_sbuf, operands, geometry, block):
    """Load a packed filter as stationaries: in runs of a channel's taps, or of one tap if they are folded."""
    m_tile, (c0, cn, depth, *_) = block.m_tile, block.k_tile
    (taps, each, S), shift = (num_taps(geometry), geometry.packed, geometry.columns.taps), rows_apart(geometry, m_tile)
    _, height, groups, _, columns = tile_sbuf.shape
    runs = [
        (at + run[0], *run[1:])
        for at, channel, count in block.k_tile.slot_channels(block.slot)
        for run in channel_runs(geometry, c0 + channel, count)
    ]
    for (at, channel, step, count), u, d, part in itertools.product(
        runs, range(m_tile.rows), range(depth), range(m_tile.kn // each)
    ):
        p, counts = at + d * cn, (count, block.rn, div_ceil(S - d, depth), each)
        tap = ((m_tile.k0 // each + part) * geometry.C + channel) * taps + block.r0 * S + d
        own_sbuf = tile_sbuf[p : p + count, 0:height, 0:groups, u, 0:columns]
        pattern = pattern_of((step * taps * each, S * each, depth * each, 1), counts)
        load_region(own_sbuf, operands.w, (0, block.r0 + u * shift, 0, part * each), pattern, tap * each)
    again = block.k_tile.again_of(block.slot)
    for p in range(0, depth * cn if again > 0 else 0, cn):
        zeros = tile_sbuf[p : p + again, block.r0 : block.r0 + block.rn, 0:groups, 0, 0 : m_tile.kn]
        nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)


def make_diagonals(raw_sbuf, geometry):
    """Stationaries [cn, rows, columns, 1, kn] with the filters of channel c in the columns of its outputs and zeros
    elsewhere, by one select. Taps in reverse order are reversed first.
    """
    if geometry.flipped:
        raw_sbuf = turn_forwards(raw_sbuf)
    count, each, taps = raw_sbuf.shape
    filters_sbuf = nl.ndarray((count, taps, count, each), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    source_sbuf = raw_sbuf.permute((0, 2, 1)).expand_dim(2).broadcast(2, count)
    keep_equal(filters_sbuf, [[0, taps], [-1, count], [0, each]], source_sbuf)
    return filters_sbuf.reshape((count, filter_rows(geometry), geometry.columns.taps, 1, count * each))


def load_taps(operands, geometry, block):
    """Load the taps of a block: [kn, channels, rows, columns] in SBUF."""
    m_tile, k_tile, strides = block.m_tile, block.k_tile, geometry.w_strides
    kn, columns, rn, sn = m_tile.kn, stationary_columns(geometry, m_tile), block.rn, block.sn
    raw_sbuf = nl.ndarray((columns, block.channels, rn, sn), dtype=operands.w_dtype, buffer=nl.sbuf)
    for at, channel, count in k_tile.slot_channels(block.slot) if block.slot > 0 else [(0, 0, block.channels)]:
        offset = offset_at(strides, (m_tile.k0, block.c0 + channel, block.r0, block.s0))
        pattern = pattern_of(strides, (kn, count, rn, sn))
        load_region(raw_sbuf, operands.w, (0, at, 0, 0), pattern, offset)
        if columns > kn:  # any numbers do
            load_region(raw_sbuf, operands.w, (kn, at, 0, 0), [[0, columns - kn], *pattern[1:]], offset)
    again = k_tile.again_of(block.slot)
    if again > 0:
        nisa.memset(dst=raw_sbuf[0:kn, 0:again, 0:rn, 0:sn], value=0.0, engine=nisa.engine.gpsimd)
    return raw_sbuf


def in_order(raw_sbuf, geometry, c0, ledger, by_tap=False):
    """Loaded taps [kn, channels, rows, columns], whose first channel is c0, with channels in the order of x on the
    partitions; by_tap: as [kn, rows, columns, channels]."""
    kn, channels, rn, sn = raw_sbuf.shape
    shape = (kn, rn, sn, channels) if by_tap else raw_sbuf.shape
    found_sbuf = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    into_sbuf = found_sbuf.permute((0, 3, 1, 2)) if by_tap else found_sbuf
    for at, channel, step, count in channel_runs(geometry, c0, channels):
        first = channel - c0
        src = raw_sbuf[0:kn, first : first + (count - 1) * step + 1 : step, 0:rn, 0:sn]
        dst = into_sbuf[0:kn, at : at + count, 0:rn, 0:sn]
        if by_tap:
            dst, src = dst.permute((0, 2, 3, 1)), src.permute((0, 2, 3, 1))
        copy_balanced(dst, src, ledger)
    return found_sbuf


def load_backwards(operands, geometry, block):
    """Load all taps of a K tile of a transposed convolution's filter: [depth * channels, kn, rows, columns] in SBUF,
    one copy for each tap of a folded group."""
    k = block.m_tile.k0 % (geometry.K // geometry.groups), block.m_tile.kn
    return load_filters(operands, geometry, k, block.k_tile[:2], by_input=True, copies=block.k_tile.depth)


def place_backwards(filters_sbuf, raw_sbuf, geometry, block, piece, ledger):
    """Copy a piece's taps in order to filters_sbuf, because folded channels cannot be used as loaded."""
    m_tile, k_tile, count, kn = block.m_tile, block.k_tile, block.k_tile.cn, block.m_tile.kn
    R, S, shift = geometry.rows.taps, geometry.columns.taps, rows_apart(geometry, m_tile)
    for group in range(piece.first, piece.first + piece.count):
        for p in range(0, piece.depth * count, count):
            s = S - 1 - group * k_tile.depth - p // count
            for u in range(m_tile.rows):
                dst = filters_sbuf[p : p + count, piece.row + u * shift, group, u, 0:kn]
                copy_balanced(dst, raw_sbuf[p : p + count, 0:kn, R - 1 - piece.row, s], ledger)


def stationary_of_product(filters_sbuf, geometry, m_tile, k_tile, product):
    """The stationary of a product: [partitions, k], or [partitions, rows of outputs, k]."""
    parts, row, group = product.parts, product.row, product.group
    if lies_ready(geometry, m_tile, k_tile):
        return filters_sbuf[0:parts, 0 : m_tile.kn, geometry.rows.taps - 1 - row, geometry.columns.taps - 1 - group]
    return filters_sbuf[0:parts, row, group, 0 : m_tile.rows, 0 : m_tile.kn]


def group_mask(m_tile, geometry, dtype):
    """A mask [kn, pack] in SBUF: 1 if output channel k belongs to the group."""
    per_k = geometry.K // geometry.groups
    mask_sbuf = constant((m_tile.kn, m_tile.pack), dtype, 1.0)
    keep_between(mask_sbuf, [[-per_k, m_tile.pack]], per_k, mask_sbuf)
    return mask_sbuf


def spread_groups(taps, mask_sbuf, m_tile):
    """Taps [kn, pack * channels of a group] in SBUF: each row at its group's channels, zeros elsewhere."""
    kn, channels = taps.shape[0], taps.shape[1]
    wide_sbuf = nl.ndarray((kn, m_tile.pack, channels), dtype=mask_sbuf.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=wide_sbuf,
        data1=taps.expand_dim(1).broadcast(1, m_tile.pack),
        data2=mask_sbuf.expand_dim(2).broadcast(2, channels),
        op=nl.multiply,
    )
    return wide_sbuf
