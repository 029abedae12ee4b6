"""Stationaries of grouped conv2d: [(tile, c), a, b, (uw, uh, k)] in SBUF for a wave of tiles.

Filters come in as [(tile, k), c, r, s]. Each row is spread over the input channels of all tiles under a mask; a matmul
with rows of identities then transposes a tap and puts the k of every tile into the same columns:

    transposed[(tile, c), k] = sum over (tile', k') of spread[(tile', k'), (tile, c)] * I[k', k],

products of a single weight and 1, so exact. From PSUM a tap goes to its place for each output of a block; the other
places are zeroed once, and stay so. Depthwise filters and those of transposed convolutions need no transpose: they come
in as [(tile, c), k, r, s], those with their taps backwards, and are multiplied with rows of identities, or of a mask.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import blocks_of_taps
from ....schedules.geometry import filter_rows
from ....schedules.tiles import BANK_COLUMNS
from ..._engines import START_WORK, copy_work, pick
from ..._masks import keep_between
from ..boxes import load_box
from ..call import of_array
from ..filter_feed import clear_words, tiles_in_turn, turn_forwards
from .units import tiles_of_wave


@dataclass
class Rulers(nl.NKIObject):
    """What spreads and transposes the filters of any wave."""

    #: tiles whose output channels share the partitions
    together: int
    #: [(tile, k), tile, group] 1 where k is of the tile's group; by input [(tile, c), 1, group] where c is of the group
    mask_sbuf: object
    #: [(tile, k), k] 1 where they are the same output channel of a tile; None by input
    ones_sbuf: object
    #: buffers of stationaries that waves take in turn
    ring: list


def is_by_input(geometry):
    """Whether filters come in by input channels: where a group is one, and those of a transposed convolution."""
    return geometry.groups == geometry.C or geometry.flipped


def tiles_together(geometry, grouped):
    """Tiles whose filters lie on the partitions together as they are loaded."""
    if is_by_input(geometry):
        return grouped.tiles
    return min(grouped.tiles, nl.tile_size.pmax // grouped.Kt)


def make_rulers(operands, geometry, grouped, count):
    """Rulers with `count` buffers."""
    together = tiles_together(geometry, grouped)
    if is_by_input(geometry):
        mask_sbuf, ones_sbuf = inputs_of_groups(operands, geometry, grouped, together).expand_dim(1), None
    else:
        mask_sbuf = same_group_mask(operands, geometry, grouped, together)
        ones_sbuf = identities(operands, together, grouped.Kt, grouped.Kt)
    height = geometry.planes.taps * grouped.rows.taps
    shape = (nl.tile_size.pmax, height, grouped.columns.taps, grouped.Uw * grouped.Uh * grouped.Kt)
    ring = tiles_in_turn(count, shape, operands.w_dtype)
    for index in range(count):
        # only the first is waited for
        clear_words(ring[index], nisa.engine.vector if index == 0 else nisa.engine.gpsimd)
    return Rulers(together=together, mask_sbuf=mask_sbuf, ones_sbuf=ones_sbuf, ring=ring)


def identities(operands, times, size, width):
    """[(time, i), j] in SBUF, i < size, j < width: 1 where i == j."""
    ones_sbuf = nl.ndarray((times * size, width), dtype=operands.w_dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for index in range(times):
        nisa.affine_select(
            dst=ones_sbuf,
            pattern=[[-1, width]],
            channel_multiplier=1,
            on_true_tile=ones_sbuf,
            on_false_value=1.0,
            cmp_op=nl.not_equal,
            offset=-index * size,
        )
    return ones_sbuf


def inputs_of_groups(operands, geometry, grouped, together):
    """[(tile, c), group] in SBUF: 1 where c is of the group."""
    per_c = geometry.C // geometry.groups
    if per_c == 1:
        return identities(operands, together, grouped.T, grouped.G)
    mask_sbuf = nl.ndarray((together * grouped.T, grouped.G), dtype=operands.w_dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    for index in range(together):
        own_sbuf = mask_sbuf[index * grouped.T : (index + 1) * grouped.T, 0 : grouped.G]
        keep_between(own_sbuf, [[-per_c, grouped.G]], per_c, own_sbuf)
    return mask_sbuf


def same_group_mask(operands, geometry, grouped, together):
    """[(tile, k), tile, group] in SBUF: 1 where k is of the tile's group."""
    Kt, per_k = grouped.Kt, geometry.K // geometry.groups
    mask_sbuf = nl.ndarray((together * Kt, together, grouped.G), dtype=operands.w_dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    keep_between(mask_sbuf, [[-Kt, together], [-per_k, grouped.G]], per_k, mask_sbuf)
    return mask_sbuf


def load_grouped_filters(operands, geometry, grouped, wave):
    """Filters of a wave [(tile, k), c, r, s] in SBUF for each `tiles_together` tiles, zeros where there is none; by
    input [(tile, c), k, r, s], of a transposed convolution with their taps backwards."""
    per_c, R, S = geometry.C // geometry.groups, filter_rows(geometry), geometry.columns.taps
    step, second, second_step, size = geometry.w_strides[0], per_c, geometry.w_strides[1], grouped.Kt
    if is_by_input(geometry):
        second, second_step, size = geometry.K // geometry.groups, geometry.w_strides[0], grouped.T
        step = geometry.w_strides[1] if geometry.flipped else second * second_step
    together = tiles_together(geometry, grouped)
    lanes = grouped.waves[wave][2]
    tiles = tiles_of_wave(geometry, grouped, wave, lanes)
    found = []
    for first in range(0, len(tiles), together):
        some = tiles[first : min(first + together, len(tiles))]
        raw_sbuf = nl.ndarray((len(some) * size, second, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        total = 0
        for tile in some:
            total += tile_channels(geometry, tile)
        if total < len(some) * size:
            nisa.memset(dst=raw_sbuf, value=0.0, engine=nisa.engine.vector)
        dense = lanes == 1 and tile_channels(geometry, some[0]) == size
        for index in range(1 if dense else len(some)):
            tile = some[index]
            count = total if dense else tile_channels(geometry, tile)
            offset = tile.c0 * step if geometry.flipped else tile.k0 * geometry.w_strides[0]
            pattern = [[step, count], [second_step, second], [geometry.w_strides[2], R], [geometry.w_strides[3], S]]
            load_box(raw_sbuf, operands.w, (index * size, 0, 0, 0), pattern, offset)
        found.append(raw_sbuf)
    return found


def tile_channels(geometry, tile):
    """Channels by which the filters of a tile come in."""
    return tile.cn if is_by_input(geometry) else tile.kn


def spread_filters(loaded, geometry, grouped, rulers):
    """What `load_grouped_filters` returned, block by block of taps, with zeros between the groups."""
    blocks = blocks_of_plane(geometry, grouped)
    found = []
    for loaded_sbuf in loaded:
        raw_sbuf = turn_forwards(loaded_sbuf) if geometry.flipped else loaded_sbuf
        for block in blocks:
            found.append(spread(raw_sbuf, geometry, grouped, rulers, block))
    return found


def blocks_of_plane(geometry, grouped):
    """Blocks of taps that a bank holds, (first row of taps, rows, first column, columns), plane by plane."""
    found = []
    for t in range(geometry.planes.taps):
        for block in blocks_of_taps(geometry.rows.taps, geometry.columns.taps, BANK_COLUMNS // grouped.Kt):
            found.append((t * geometry.rows.taps + block[0], block[1], block[2], block[3]))
    return found


def build_filters(operands, spreads, geometry, grouped, rulers, turn, ledger):
    """Stationaries of a wave [(tile, c), a, b, (uw, uh, k)] from what `spread_filters` returned, in the buffer whose
    turn it is."""
    filters_sbuf = rulers.ring[turn % len(rulers.ring)]
    blocks = blocks_of_plane(geometry, grouped)
    for index in range(len(spreads)):
        first = index // len(blocks) * rulers.together * grouped.T
        block = blocks[index % len(blocks)]
        taps = spreads[index] if is_by_input(geometry) else transpose_spread(spreads[index], grouped, rulers)
        place_in_window(filters_sbuf, taps, geometry, grouped, first, block, ledger)
    return of_array(filters_sbuf, operands)


def taps_of_block(raw_sbuf, geometry, block):
    """A block's taps as loaded: [partition, second, taps]."""
    r0, rn, s0, sn = block
    parts, second = raw_sbuf.shape[0], raw_sbuf.shape[1]
    if sn == geometry.columns.taps:
        return raw_sbuf[0:parts, 0:second, r0 : r0 + rn, 0:sn].reshape((parts, second, rn * sn))
    return raw_sbuf[0:parts, 0:second, r0, s0 : s0 + sn]


def transpose_spread(spread_sbuf, grouped, rulers):
    """[(tile, c), taps, k] in PSUM: weights of a block."""
    parts, taps, inputs = spread_sbuf.shape
    taps_psum = nl.ndarray((inputs, taps, grouped.Kt), dtype=nl.float32, buffer=nl.psum)
    ones = rulers.ones_sbuf[0:parts, 0 : grouped.Kt]
    for tap in range(taps):
        own_psum, own_sbuf = taps_psum[0:inputs, tap, 0 : grouped.Kt], spread_sbuf[0:parts, tap, 0:inputs]
        nisa.nc_matmul(dst=own_psum, stationary=own_sbuf, moving=ones, accumulate=False)
    return taps_psum


def place_in_window(filters_sbuf, taps, geometry, grouped, first, block, ledger):
    """Taps [(tile, c), taps, k] of a block to all places that they have, from partition `first` on.

    What is in PSUM is read once: copies inside SBUF are faster.
    """
    r0, rn, s0, sn = block
    rows, columns, Kt = geometry.rows, geometry.columns, grouped.Kt
    inputs, kn = taps.shape[0], taps.shape[2]
    src = taps.reshape((inputs, rn, sn, kn))
    for uh in range(grouped.Uh):
        for uw in range(grouped.Uw):
            t, r = r0 // rows.taps, r0 % rows.taps
            a = t * grouped.rows.taps + uh * rows.stride + r * rows.dilation
            b = uw * columns.stride + s0 * columns.dilation
            k = (uw * grouped.Uh + uh) * Kt
            dst = filters_sbuf[
                first : first + inputs,
                a : a + (rn - 1) * rows.dilation + 1 : rows.dilation,
                b : b + (sn - 1) * columns.dilation + 1 : columns.dilation,
                k : k + kn,
            ]
            in_psum = not is_by_input(geometry) and uh + uw == 0
            engine = nisa.engine.vector
            if in_psum:
                engine = pick(ledger, rn * sn * kn, False)
            else:
                ledger.vector = ledger.vector + START_WORK + rn * sn * kn * copy_work(filters_sbuf.dtype)
            nisa.tensor_copy(dst=dst, src=src, engine=engine)
            if in_psum:
                src = dst


def spread(raw_sbuf, geometry, grouped, rulers, block):
    """[(tile, k), tap, (tile, c)] in SBUF: weights of k at the channels of its group, zero elsewhere; by input
    [(tile, c), tap, (group, k)]: weights where c is of the group."""
    raw = taps_of_block(raw_sbuf, geometry, block)
    parts, each, taps = raw.shape
    raw = raw.permute((0, 2, 1)).expand_dim(2)
    inputs, times, groups = rulers.mask_sbuf.shape
    width = groups * each if is_by_input(geometry) else grouped.T
    spread_sbuf = nl.ndarray((parts, taps, times * width), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    mask_sbuf = rulers.mask_sbuf.reshape((inputs, times * groups))
    if groups * each < width:
        nisa.memset(dst=spread_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    else:
        # an instruction has few dims: only where tiles leave gaps it takes one for each of them
        times, groups = 1, times * groups
    for index in range(times):
        own_sbuf = spread_sbuf[0:parts, 0:taps, index * width : index * width + groups * each]
        mask = mask_sbuf[0:parts, index * groups : (index + 1) * groups].expand_dim(1).broadcast(1, taps)
        nisa.tensor_tensor(
            dst=own_sbuf.reshape((parts, taps, groups, each)),
            data1=raw.broadcast(2, groups),
            data2=mask.expand_dim(3).broadcast(3, each),
            op=nl.multiply,
        )
    return spread_sbuf
