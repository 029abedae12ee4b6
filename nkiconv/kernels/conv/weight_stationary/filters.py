"""Stationaries of weight-resident groups.

Of transposed convolutions filters come as torch stores them, [C, K, ...]: a stationary is a view of what was loaded,
or, where phases or segments share it, is put together by copies into zeros (`PhaseFilters`).

Of groups filters come as [(row tile, k), c, r, s]. Each row is spread over the input channels of all row tiles under a
mask; a matmul with rows of identities then transposes a tap and puts the k of every row tile into the same columns:

    transposed[(row tile, c), k] = sum over (row tile', k') of spread[(row tile', k'), (row tile, c)] * I[k', k],

products of a single weight and 1, so exact. From PSUM a tap goes to its place for each output of a block; the other
places are zeroed once, and stay so. Depthwise filters and those of transposed convolutions need no transpose: they come
in as [(row tile, c), k, r, s], those with their taps reversed, and are multiplied by a mask (`GroupFilters`).
"""

from dataclasses import dataclass
from typing import Any

from ...._nki import nisa, nl
from ....schedules.block_schedule import Schedule
from ....schedules.cuts import blocks_of_taps
from ....schedules.geometry import Geometry, filter_rows, num_taps
from ....schedules.tiles import BANK_COLUMNS
from ....schedules.weight_stationary import FILTER_BUFFERS
from ..._engines import START_WORK, Ledger, copy_work, is_16bit, pick
from ..._masks import keep_between
from ..call import Operands
from ..filter_feed import clear_words, tiles_in_turn, turn_forwards
from ..regions import load_region
from .packed_filters import PackedFilters
from .stacked_filters import TransposedFilters
from .toeplitz_filters import ToeplitzFilters


@dataclass
class PhaseFilters(nl.NKIObject):
    """Filters of transposed convolutions: by M tile and K tile those of each sweep, as loaded or put together."""

    operands: Operands
    geometry: Geometry
    schedule: Schedule
    ledger: Ledger
    made: dict

    def load(self, tile, k_tile):
        """Load the filters of an M tile for a K tile: [(segment, c), k, tap]."""
        geometry, own = self.geometry, tile[0]
        c0, cn, _, held = self.schedule.k_tiles[k_tile]
        rows, columns = filter_rows(geometry), geometry.columns.taps
        by_k, by_c, by_r, by_s = geometry.w_strides
        raw_sbuf = nl.ndarray((held * cn, own.kn, rows, columns), dtype=self.operands.w_dtype, buffer=nl.sbuf)
        pattern = [[by_c, cn], [by_k, own.kn], [by_r, rows], [by_s, columns]]
        for segment in range(held):
            load_region(raw_sbuf, self.operands.w, (segment * cn, 0, 0, 0), pattern, c0 * by_c + own.k0 * by_k)
        self.made[tile[0], k_tile] = [raw_sbuf.reshape((held * cn, own.kn, num_taps(geometry)))]

    def _packed(self, raw_sbuf, sweep, first, held):
        """Stationaries of a sweep for some segments, block-diagonal over these and zero for the others."""
        kn, cn, slot = raw_sbuf.shape[1], raw_sbuf.shape[0] // held, self.schedule.slot
        shape = (raw_sbuf.shape[0], max(1, sweep.size), self.schedule.width(kn))
        packed_sbuf = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
        clear_words(packed_sbuf, nisa.engine.gpsimd)
        for product in sweep.products:
            for output, tap in enumerate(product.taps):
                for segment in range(held if tap >= 0 else 0):
                    column = output * slot + (first + segment) * kn
                    own = slice(segment * cn, (segment + 1) * cn)
                    nisa.tensor_copy(
                        dst=packed_sbuf[own, product.index, column : column + kn],
                        src=raw_sbuf[own, 0:kn, tap],
                        engine=pick(self.ledger, kn, is_16bit(raw_sbuf.dtype)),
                    )
        return packed_sbuf

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary of a product: [(segment, c), columns]."""
        if self.schedule.packs:
            packed_sbuf = self.made[tile[0], k_tile][sweep]
            return packed_sbuf[0 : packed_sbuf.shape[0], product.index, 0 : packed_sbuf.shape[2]]
        raw_sbuf = self.made[tile[0], k_tile][0]
        return raw_sbuf[0 : raw_sbuf.shape[0], 0 : raw_sbuf.shape[1], product.index]

    def start(self, residents):
        """Nothing is needed but what `load` makes."""

    def prepare(self):
        """The same."""

    def make(self, tiles):
        """Put filters of a weight-resident group that share a stationary together: [(segment, c), place, columns]."""
        for tile in tiles if self.schedule.packs else []:
            for k_tile, (_, _, first, held) in enumerate(self.schedule.k_tiles):
                (raw_sbuf,) = self.made[tile[0], k_tile]
                self.made[tile[0], k_tile] = [
                    self._packed(raw_sbuf, sweep, first, held) for sweep in self.schedule.sweeps
                ]


@dataclass
class GroupFilters(nl.NKIObject):
    """Filters of groups: those as loaded, spread and made of M tiles; buffers of stationaries that rotate.

    together: row tiles whose output channels share the partitions. mask_sbuf: [(row tile, k), row tile, group] 1 where
    k is of the row tile's group; by input [(row tile, c), 1, group] where c is of the group. ones_sbuf: [(row tile, k),
    k] 1 where they are the same output channel of a row tile; None by input.
    """

    operands: Operands
    geometry: Geometry
    schedule: Schedule
    ledger: Ledger
    together: int
    loaded: list
    spreads: dict
    made: dict
    buffers: list
    count: int = 0
    mask_sbuf: Any = None
    ones_sbuf: Any = None

    def load(self, tile, k_tile):
        """Load the filters of an M tile, [(row tile, k), c, r, s], of each `together` row tiles, zeros where there is
        none; by input [(row tile, c), k, r, s], of a transposed convolution with their taps reversed."""
        geometry, schedule = self.geometry, self.schedule
        by_k, by_c, by_r, by_s = geometry.w_strides
        R, S, size = filter_rows(geometry), geometry.columns.taps, schedule.slot
        step, second, second_step = by_k, geometry.C // geometry.groups, by_c
        if is_by_input(geometry):
            second, second_step, size = geometry.K // geometry.groups, by_k, schedule.rows
            step = by_c if geometry.flipped else second * by_k
        found = []
        for first in range(0, len(tile), self.together):
            some = tile[first : first + self.together]
            channels = [one.cn if is_by_input(geometry) else one.kn for one in some]
            raw_sbuf = nl.ndarray((len(some) * size, second, R, S), dtype=self.operands.w_dtype, buffer=nl.sbuf)
            if sum(channels) < len(some) * size:
                nisa.memset(dst=raw_sbuf, value=0.0, engine=nisa.engine.vector)
            dense = tile[-1].lane == 0 and channels[0] == size
            for index in range(1 if dense else len(some)):
                offset = some[index].c0 * step if geometry.flipped else some[index].k0 * by_k
                partitions = sum(channels) if dense else channels[index]
                pattern = [[step, partitions], [second_step, second], [by_r, R], [by_s, S]]
                load_region(raw_sbuf, self.operands.w, (index * size, 0, 0, 0), pattern, offset)
            found.append(raw_sbuf)
        self.spreads[tile[0]] = None
        self.loaded.append((tile, found))

    def start(self, residents):
        """What spreads and transposes the filters of any M tile, and buffers for so many
        weight-resident groups."""
        geometry, schedule = self.geometry, self.schedule
        T, Kt = schedule.rows, schedule.slot
        groups = schedule.k_tiles[0][1] // (geometry.C // geometry.groups)
        if is_by_input(geometry):
            self.mask_sbuf = inputs_of_groups(self.operands, geometry, self.together, T, groups).expand_dim(1)
        else:
            self.mask_sbuf = same_group_mask(self.operands, geometry, self.together, Kt, groups)
            self.ones_sbuf = identities(self.operands, self.together, Kt, Kt)
        _, rows, columns = schedule.axes
        shape = (nl.tile_size.pmax, geometry.planes.taps * rows.window, columns.window, schedule.width(Kt))
        self.buffers = tiles_in_turn(min(FILTER_BUFFERS, residents), shape, self.operands.w_dtype)
        for index in range(len(self.buffers)):
            # only the first is waited for
            clear_words(self.buffers[index], nisa.engine.vector if index == 0 else nisa.engine.gpsimd)

    def prepare(self):
        """Put zeros between the groups of the M tile that was loaded first, if there is one, block by block of taps."""
        if len(self.loaded) > 0:
            tile, loaded = self.loaded.pop(0)
            found = []
            for loaded_sbuf in loaded:
                raw_sbuf = turn_forwards(loaded_sbuf) if self.geometry.flipped else loaded_sbuf
                for block in self._blocks():
                    found.append(self._spread(raw_sbuf, block))
            self.spreads[tile[0]] = found

    def make(self, tiles):
        """Make the stationaries of a weight-resident group, one M tile, in the next buffer: [(row tile, c), place, (uw,
        uh, k)]."""
        geometry, blocks, tile = self.geometry, self._blocks(), tiles[0]
        filters_sbuf = self.buffers[self.count % len(self.buffers)]
        self.count += 1
        if self.spreads[tile[0]] is None:
            self.prepare()
        spreads = self.spreads.pop(tile[0])
        for index in range(len(spreads)):
            first = index // len(blocks) * self.together * self.schedule.rows
            taps = spreads[index] if is_by_input(geometry) else self._transposed(spreads[index])
            self._place(filters_sbuf, taps, first, blocks[index % len(blocks)])
        shape = (nl.tile_size.pmax, self.schedule.sweeps[0].size, filters_sbuf.shape[3])
        self.made[tile[0]] = filters_sbuf.reshape(shape)

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary of a product of a row tile: [c, (uw, uh, k)]."""
        filters_sbuf, first = self.made[tile[0]], row_tile.first
        return filters_sbuf[first : first + row_tile.cn, product.index, 0 : filters_sbuf.shape[2]]

    def _blocks(self):
        """Blocks of taps that a bank holds, (first row of taps, rows, first column, columns), plane by plane."""
        R, S, found = self.geometry.rows.taps, self.geometry.columns.taps, []
        for t in range(self.geometry.planes.taps):
            for r0, rn, s0, sn in blocks_of_taps(R, S, BANK_COLUMNS // self.schedule.slot):
                found.append((t * R + r0, rn, s0, sn))
        return found

    def _transposed(self, spread_sbuf):
        """[(row tile, c), taps, k] in PSUM: weights of a block."""
        parts, taps, inputs = spread_sbuf.shape
        Kt = self.schedule.slot
        taps_psum = nl.ndarray((inputs, taps, Kt), dtype=nl.float32, buffer=nl.psum)
        ones = self.ones_sbuf[0:parts, 0:Kt]
        for tap in range(taps):
            own_psum, own_sbuf = taps_psum[0:inputs, tap, 0:Kt], spread_sbuf[0:parts, tap, 0:inputs]
            nisa.nc_matmul(dst=own_psum, stationary=own_sbuf, moving=ones, accumulate=False)
        return taps_psum

    def _place(self, filters_sbuf, taps, first, block):
        """Taps [(row tile, c), taps, k] of a block to all places that they have, from partition `first` on.

        What is in PSUM is read once: copies inside SBUF are faster.
        """
        r0, rn, s0, sn = block
        _, by_rows, by_columns = self.schedule.axes
        Kt, inputs, kn = self.schedule.slot, taps.shape[0], taps.shape[2]
        src, plane = taps.reshape((inputs, rn, sn, kn)), r0 // self.geometry.rows.taps
        for uh in range(by_rows.beside):
            for uw in range(by_columns.beside):
                rows = by_rows.places_met(uh, r0 % self.geometry.rows.taps, rn, plane * by_rows.window)
                columns, k = by_columns.places_met(uw, s0, sn, 0), (uw * by_rows.beside + uh) * Kt
                if rows is None or columns is None:
                    continue
                dst = filters_sbuf[first : first + inputs, rows[1], columns[1], k : k + kn]
                own = src[0:inputs, rows[0], columns[0], 0:kn]
                in_psum = not is_by_input(self.geometry) and uh + uw == 0
                engine = nisa.engine.vector
                if in_psum:
                    engine = pick(self.ledger, rn * sn * kn, False)
                else:
                    self.ledger.vector += START_WORK + rn * sn * kn * copy_work(filters_sbuf.dtype)
                nisa.tensor_copy(dst=dst, src=own, engine=engine)
                if in_psum and own.shape == src.shape:
                    src = dst

    def _spread(self, raw_sbuf, block):
        """[(row tile, k), tap, (row tile, c)] in SBUF: weights of k at the channels of its group, zero elsewhere; by
        input [(row tile, c), tap, (group, k)]: weights where c is of the group."""
        raw = taps_of_block(raw_sbuf, self.geometry, block)
        parts, each, taps = raw.shape
        raw = raw.permute((0, 2, 1)).expand_dim(2)
        inputs, times, groups = self.mask_sbuf.shape
        width = groups * each if is_by_input(self.geometry) else self.schedule.rows
        spread_sbuf = nl.ndarray((parts, taps, times * width), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
        mask_sbuf = self.mask_sbuf.reshape((inputs, times * groups))
        if groups * each < width:
            nisa.memset(dst=spread_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        else:
            # an instruction has few dims: only where row tiles leave gaps it takes one for each of them
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


def filters_of(operands, geometry, schedule, tiles, ledger):
    """What loads and makes the stationaries of a core's M tiles."""
    if schedule.stack is not None:
        own = ToeplitzFilters if schedule.stack.diagonal else TransposedFilters
        m_tiles = [(one.k0, one.kn // schedule.stack.U) for (one,) in tiles]
        return own(operands, geometry, schedule.stack, m_tiles, ledger)
    if schedule.shift != None:
        return PackedFilters(operands, geometry, schedule, ledger)
    if geometry.groups == 1:
        return PhaseFilters(operands, geometry, schedule, ledger, {})
    count = nl.tile_size.pmax // schedule.rows
    together = count if is_by_input(geometry) else min(count, nl.tile_size.pmax // schedule.slot)
    return GroupFilters(operands, geometry, schedule, ledger, together, [], {}, {}, [])


def is_by_input(geometry):
    """Whether filters come in by input channels: where a group is one, and those of a transposed convolution."""
    return geometry.groups == geometry.C or geometry.flipped


def taps_of_block(raw_sbuf, geometry, block):
    """A block's taps as loaded: [partition, second, taps]."""
    r0, rn, s0, sn = block
    parts, second = raw_sbuf.shape[0], raw_sbuf.shape[1]
    if sn == geometry.columns.taps:
        return raw_sbuf[0:parts, 0:second, r0 : r0 + rn, 0:sn].reshape((parts, second, rn * sn))
    return raw_sbuf[0:parts, 0:second, r0, s0 : s0 + sn]


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


def inputs_of_groups(operands, geometry, together, rows, groups):
    """[(row tile, c), group] in SBUF: 1 where c is of the group."""
    per_c = geometry.C // geometry.groups
    if per_c == 1:
        return identities(operands, together, rows, groups)
    mask_sbuf = nl.ndarray((together * rows, groups), dtype=operands.w_dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    for index in range(together):
        own_sbuf = mask_sbuf[index * rows : (index + 1) * rows, 0:groups]
        keep_between(own_sbuf, [[-per_c, groups]], per_c, own_sbuf)
    return mask_sbuf


def same_group_mask(operands, geometry, together, Kt, groups):
    """[(row tile, k), row tile, group] in SBUF: 1 where k is of the row tile's group."""
    per_k = geometry.K // geometry.groups
    mask_sbuf = nl.ndarray((together * Kt, together, groups), dtype=operands.w_dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    keep_between(mask_sbuf, [[-Kt, together], [-per_k, groups]], per_k, mask_sbuf)
    return mask_sbuf
