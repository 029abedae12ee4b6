"""Stationaries of weight-resident groups.

Filters of transposed convolutions are stored as torch stores them, [C, K, ...]: a stationary is a view of loaded
filters or, if phases or segments share it, a composition of copies into zeros (`PhaseFilters`).

Filters of groups are loaded as [(row tile, k), c, r, s]. Each row is spread over the input channels of all row tiles by
a mask; a matmul with rows of identities then transposes a tap and puts the k of every row tile into the same columns:

    transposed[(row tile, c), k] = sum over (row tile', k') of spread[(row tile', k'), (row tile, c)] * I[k', k],

products of a single weight and 1, so exact. If row tiles have one group each, nothing is spread, and several taps of
all row tiles are transposed together. A tap is then copied to its place for each output of a block; the other places
are zeroed once, and stay so. Depthwise filters and those of transposed convolutions need no transpose: they are loaded
as [(row tile, c), k, r, s], the latter with reversed taps, and multiplied by a mask (`GroupFilters`).
"""

import itertools

from ...._nki import nisa, nl
from ....schedules.cuts import blocks_of_taps
from ....schedules.geometry import filter_rows, num_taps
from ....schedules.tiles import BANK_COLUMNS, cut_at, div_ceil, transposes_of_bank
from ....schedules.weight_stationary import FILTER_BUFFERS
from ..._engines import START_WORK, copy_balanced, copy_work, is_16bit, pick
from ..._masks import constant, keep_between, keep_equal
from ..._warm import warm_zeros
from ..filter_feed import clear_tile, clear_words, tiles_in_turn, transposed_bank, turn_forwards
from ..regions import load_filters, load_region
from ..sums import multiply
from .packed_filters import PackedFilters
from .results import Biases
from .stacked_filters import ToeplitzFilters, TransposedFilters


class PhaseFilters(nl.NKIObject):
    """Filters of transposed convolutions: each sweep's, loaded or composed, by M tile and K tile."""

    def __init__(self, operands, geometry, schedule, ledger):
        self.operands, self.geometry, self.schedule, self.ledger, self.made = operands, geometry, schedule, ledger, {}

    def load(self, tile, k_tile):
        """Load the filters of an M tile for a K tile: [(segment, c), k, tap]."""
        c0, cn, _, held = self.schedule.k_tiles[k_tile]
        k = tile[0].k0, tile[0].kn
        raw_sbuf = load_filters(self.operands, self.geometry, k, (c0, cn), by_input=True, copies=held)
        self.made[tile[0], k_tile] = [raw_sbuf.reshape((*raw_sbuf.shape[:2], num_taps(self.geometry)))]

    def _packed(self, raw_sbuf, sweep, first, held):
        """Stationaries of a sweep for some segments: block-diagonal over these, zero for the others."""
        kn, cn, slot = raw_sbuf.shape[1], raw_sbuf.shape[0] // held, self.schedule.slot
        shape = (raw_sbuf.shape[0], max(1, sweep.size), self.schedule.width(kn))
        packed_sbuf = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
        clear_words(packed_sbuf, nisa.engine.gpsimd)
        for product in sweep.products:
            for output, tap in enumerate(product.taps):
                for segment in range(held if tap >= 0 else 0):
                    column = output * slot + (first + segment) * kn
                    own = slice(segment * cn, (segment + 1) * cn)
                    dst = packed_sbuf[own, product.index, column : column + kn]
                    copy_balanced(dst, raw_sbuf[own, 0:kn, tap], self.ledger)
        return packed_sbuf

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary of a product: [(segment, c), columns]."""
        if self.schedule.packs:
            packed_sbuf = self.made[tile[0], k_tile][sweep]
            return packed_sbuf[:, product.index]
        raw_sbuf = self.made[tile[0], k_tile][0]
        return raw_sbuf[:, :, product.index]

    def make(self, tiles):
        """Compose a weight-resident group's shared stationaries: [(segment, c), place, columns]."""
        for tile in tiles if self.schedule.packs else []:
            for k_tile, (_, _, first, held) in enumerate(self.schedule.k_tiles):
                (raw_sbuf,) = self.made[tile[0], k_tile]
                self.made[tile[0], k_tile] = [
                    self._packed(raw_sbuf, sweep, first, held) for sweep in self.schedule.sweeps
                ]


class GroupFilters(nl.NKIObject):
    """Filters of groups: M tiles as loaded, spread and made; rotating buffers of stationaries.

    mask_sbuf: [(row tile, k), row tile, group], 1 if k is in the row tile's group; by input [(row tile, c), 1, group],
    1 if c is in the group. ones_sbuf: [(row tile, k), k], 1 if they are the same output channel of a row tile.
    """

    def __init__(self, operands, geometry, schedule, ledger):
        self.operands, self.geometry, self.schedule, self.ledger = operands, geometry, schedule, ledger
        self.loaded, self.spreads, self.made, self.buffers, self.count = [], {}, {}, [], 0
        #: whether filters are loaded by input channels: depthwise ones, and those of a transposed convolution
        self.by_input = geometry.groups == geometry.C or geometry.flipped
        #: input and output channels of a group; whether row tiles have one group each
        self.each = geometry.C // geometry.groups, geometry.K // geometry.groups
        self.alone = schedule.k_tiles[0][1] == self.each[0]
        #: taps of such row tiles that are transposed together
        self.beside = nl.tile_size.pmax // schedule.rows
        #: partitions of a row tile's loaded filters, and row tiles that share the partitions
        self.size = schedule.rows if self.by_input else schedule.slot
        self.together = nl.tile_size.pmax // max(schedule.rows, self.size)
        #: blocks of taps that fit a bank, (first row of taps, rows, first column, columns), plane by plane
        R, S = geometry.rows.taps, geometry.columns.taps
        most = BANK_COLUMNS // schedule.slot
        if self.alone:  # by input all of them are placed as loaded
            most = self.beside * transposes_of_bank(self.together * self.size, geometry.itemsize)
            most = R * S if self.by_input else most
        own = blocks_of_taps(R, S, most)
        self.blocks = [(t * R + r0, *one) for t in range(geometry.planes.taps) for r0, *one in own]

    def load(self, tile, k_tile):
        """Load the filters of an M tile, `together` row tiles at once: [(row tile, k), c, r, s] with zeros on unused
        partitions, or for c that a row tile with one group lacks; by input [(row tile, c), k, r, s], with reversed taps
        of a transposed convolution."""
        geometry, size = self.geometry, self.size
        step, by_c, by_r, by_s = geometry.w_strides
        R, S = filter_rows(geometry), geometry.columns.taps
        second = [by_c, self.each[0]]
        if self.by_input:
            second = [step, self.each[1]]
            step = by_c if geometry.flipped else second[1] * step
        found = []
        for first, count in cut_at(len(tile), self.together):
            channels = [(one.c0, one.cn) if self.by_input else (one.k0, one.kn) for one in tile[first : first + count]]
            width = self.schedule.rows if self.alone and not self.by_input else second[1]
            raw_sbuf = nl.ndarray((count * size, width, R, S), dtype=self.operands.w_dtype, buffer=nl.sbuf)
            if self.alone and (sum(n for _, n in channels) < count * size or second[1] < width):
                is_first = self.count + len(self.loaded) + len(self.spreads) == 0  # the others are not waited for
                clear_tile(raw_sbuf, geometry.itemsize, nisa.engine.vector if is_first else nisa.engine.gpsimd)
            elif sum(n for _, n in channels) < count * size:
                nisa.memset(dst=raw_sbuf, value=0.0, engine=nisa.engine.vector)
            for index, (channel, n) in enumerate(channels):
                pattern = [[step, n], second, [by_r, R], [by_s, S]]
                load_region(raw_sbuf, self.operands.w, (index * size, 0, 0, 0), pattern, channel * step)
            found.append(raw_sbuf)
        self.loaded.append((tile, found))

    def start(self, residents):
        """Make the masks that spread and transpose filters of any M tile, and buffers for `residents` groups."""
        geometry, schedule, (_, rows, columns) = self.geometry, self.schedule, self.schedule.axes
        per_c, per_k = self.each
        groups = schedule.k_tiles[0][1] // per_c
        if self.by_input and not self.alone:
            self.mask_sbuf = self._ones(groups, per_c).expand_dim(1)
        elif not self.alone:
            shape = self.together * self.size, self.together, groups
            self.mask_sbuf = constant(shape, self.operands.w_dtype, 1.0)
            keep_between(self.mask_sbuf, [[-self.size, self.together], [-per_k, groups]], per_k)
            self.ones_sbuf = self._ones(self.size, 1)
        window = geometry.planes.taps * rows.window, columns.window
        shape = (nl.tile_size.pmax, *window, schedule.width(schedule.slot))
        self.buffers = tiles_in_turn(min(FILTER_BUFFERS, residents), shape, self.operands.w_dtype)
        for index, buffer_sbuf in enumerate(self.buffers):  # only the first is waited for
            clear_words(buffer_sbuf, nisa.engine.vector if index == 0 else nisa.engine.gpsimd)

    def prepare(self):
        """Spread the filters of the M tile that was loaded first, if any, over its groups, block by block of taps; none
        if row tiles have one group."""
        if len(self.loaded) > 0:
            tile, loaded = self.loaded.pop(0)
            self.spreads[tile[0]] = found = []
            for index, raw_sbuf in enumerate(loaded):
                taps_sbuf = turn_forwards(raw_sbuf) if self.geometry.flipped else raw_sbuf
                parts, each, R, S = taps_sbuf.shape
                for r0, rn, s0, sn in self.blocks:
                    first = r0 * S + s0
                    own = taps_sbuf.reshape((parts, each, R * S))[:, :, first : first + rn * sn].permute((0, 2, 1))
                    found.append((index, (r0, rn, s0, sn), own if self.alone else self._spread(own)))

    def make(self, tiles):
        """Make the stationaries of a weight-resident group, one M tile, in the next buffer: [(row tile, c), place, (uw,
        uh, k)]."""
        ((tile, *_),) = tiles
        filters_sbuf = self.buffers[self.count % len(self.buffers)]
        self.count += 1
        if tile not in self.spreads:
            self.prepare()
        for index, block, taps in self.spreads.pop(tile):
            first = index * self.together * self.schedule.rows
            if not self.by_input:
                taps = self._transposed_alone(taps) if self.alone else self._transposed(taps)
            self._place(filters_sbuf, taps, first, block)
        shape = (nl.tile_size.pmax, self.schedule.sweeps[0].size, filters_sbuf.shape[3])
        self.made[tile] = filters_sbuf.reshape(shape)

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary of a product of a row tile: [c, (uw, uh, k)]."""
        filters_sbuf, first = self.made[tile[0]], row_tile.first
        return filters_sbuf[first : first + row_tile.cn, product.index]

    def _ones(self, width, each):
        """A mask [(row tile, i), j] in SBUF, j < width: 1 if i // each is j."""
        ones_sbuf = constant((self.together * self.size, width), self.operands.w_dtype, 1.0)
        for first in range(0, self.together * self.size, self.size):
            own_sbuf = ones_sbuf[first : first + self.size]
            if each == 1:
                keep_equal(own_sbuf, [[-1, width]], own_sbuf)
            else:
                keep_between(own_sbuf, [[-each, width]], each)
        return ones_sbuf

    def _transposed(self, spread_sbuf):
        """The weights of a block, transposed into PSUM: [(row tile, c), taps, k]."""
        parts, taps, inputs = spread_sbuf.shape
        taps_psum = nl.ndarray((inputs, taps, self.size), dtype=nl.float32, buffer=nl.psum)
        for tap in range(taps):
            own_sbuf, ones_sbuf = spread_sbuf[:, tap], self.ones_sbuf[0:parts, 0 : self.size]
            multiply(taps_psum[:, tap], own_sbuf, ones_sbuf, False)
        return taps_psum

    def _transposed_alone(self, raw):
        """Weights [(row tile, k), taps, c] of row tiles with one group, transposed: [(row tile, c), taps, k] in SBUF.
        Taps that fill the array's columns are transposed together, to [(tap, c), (row tile, k)] in PSUM."""
        (parts, taps, rows), beside, kn = raw.shape, self.beside, self.each[1]
        sources = [raw[0:parts, tap : tap + n] for tap, n in cut_at(taps, beside)]
        taps_psum = transposed_bank(sources, beside * rows, parts)
        taps_sbuf = nl.ndarray((parts // self.size * rows, taps, kn), dtype=raw.dtype, buffer=nl.sbuf)
        for first, place in itertools.product(range(min(beside, taps)), range(parts // self.size)):
            n, k = div_ceil(taps - first, beside), place * self.size
            dst = taps_sbuf[place * rows : (place + 1) * rows, first:taps:beside]
            src = taps_psum[first * rows : (first + 1) * rows, 0:n, k : k + kn]
            copy_balanced(dst, src, self.ledger)
        return taps_sbuf

    def _place(self, filters_sbuf, taps, first, block):
        """Copy taps [(row tile, c), taps, k] of a block to all of their places, from partition `first` on.

        PSUM and filters as loaded are read once: copies between places are faster.
        """
        (r0, rn, s0, sn), (_, by_rows, by_columns), (inputs, _, kn) = block, self.schedule.axes, taps.shape
        src, (t, r0) = taps.reshape((inputs, rn, sn, kn)), divmod(r0, self.geometry.rows.taps)
        for uh, uw in itertools.product(range(by_rows.beside), range(by_columns.beside)):
            rows = by_rows.places_met(uh, r0, rn, t * by_rows.window)
            columns, k = by_columns.places_met(uw, s0, sn, 0), (uw * by_rows.beside + uh) * self.schedule.slot
            if rows is None or columns is None:
                continue
            dst = filters_sbuf[first : first + inputs, rows[1], columns[1], k : k + kn]
            own = src[0:inputs, rows[0], columns[0], 0:kn]
            if self.by_input != self.alone or uh + uw > 0:
                self.ledger.vector += START_WORK + rn * sn * kn * copy_work(filters_sbuf.dtype)
                nisa.tensor_copy(dst=dst, src=own, engine=nisa.engine.vector)
                continue
            engine = pick(self.ledger, rn * sn * kn, is_16bit(own.dtype))
            nisa.tensor_copy(dst=dst, src=own, engine=engine)
            if own.shape == src.shape:
                src = dst

    def _spread(self, raw):
        """Weights [partitions, taps, n] of a block in SBUF: [(row tile, k), tap, (row tile, c)], k's at the channels of
        its group, zero elsewhere; by input [(row tile, c), tap, (group, k)], c's at its group."""
        parts, taps, each = raw.shape
        _, times, groups = self.mask_sbuf.shape
        width = groups * each if self.by_input else self.schedule.rows
        spread_sbuf = nl.ndarray((parts, taps, times * width), dtype=raw.dtype, buffer=nl.sbuf)
        mask_sbuf = self.mask_sbuf.reshape((self.mask_sbuf.shape[0], times * groups))
        if groups * each < width:
            nisa.memset(dst=spread_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        else:
            # an instruction has few dims: one for each row tile, but only if row tiles leave gaps
            times, groups = 1, times * groups
        for index in range(times):
            own_sbuf = spread_sbuf[:, :, index * width : index * width + groups * each]
            mask = mask_sbuf[0:parts, index * groups : (index + 1) * groups].expand_dim(1).broadcast(1, taps)
            nisa.tensor_tensor(
                dst=own_sbuf.reshape((parts, taps, groups, each)),
                data1=raw.expand_dim(2).broadcast(2, groups),
                data2=mask.expand_dim(3).broadcast(3, each),
                op=nl.multiply,
            )
        return spread_sbuf


def filters_of(operands, geometry, schedule, tiles, ledger):
    """The filters object that loads and makes the stationaries of a core's M tiles."""
    if schedule.stack is not None:
        stacked = ToeplitzFilters if schedule.stack.diagonal else TransposedFilters
        m_tiles = [(one.k0, one.kn // schedule.stack.U) for (one,) in tiles]
        return stacked(operands, schedule.stack.geometry, schedule.stack, m_tiles, ledger)
    own = PackedFilters if schedule.shift != None else PhaseFilters if geometry.groups == 1 else GroupFilters
    return own(operands, geometry, schedule, ledger)


#: The most output tiles between the stationaries of groups and their first use.
AHEAD = 2


class Residents(nl.NKIObject):
    """Stationaries and biases of the M tiles of a core's steps (weight-resident group, output tile).

    Stationaries of groups are made AHEAD output tiles before their first use, and filters are loaded a weight-resident
    group ahead: engines spread them with zeros while the Tensor Engine works on others. Filters of transposed
    convolutions are loaded at their first output tile: they take most of SBUF's room for filters.
    """

    def __init__(self, operands, geometry, schedule, steps, ledger):
        self.schedule, self.steps, self.order = schedule, steps, sorted({b for b, _ in steps})
        tiles = [tile for b in self.order for tile in schedule.residents[b].tiles]
        self.biases = Biases(operands.bias, schedule, [one for tile in tiles for one in tile])
        self.filters = filters_of(operands, geometry, schedule, tiles, ledger)
        self.ahead, self.loaded, self.made = 1 if schedule.gathers else 0, [], 0

    def start(self, inputs):
        """Load filters and x of the first sums, K tile by K tile; returns the zeros of `warm_zeros`."""
        tile = self.schedule.residents[self.order[0]].tiles[0]
        for k_tile in range(len(self.schedule.k_tiles)):
            self.filters.load(tile, k_tile)
            if k_tile == 0:
                self.biases.load()
            inputs.load(k_tile + 1)
        self.loaded.append(tile)
        self._load(1 + self.ahead if self.ahead > 0 else 0)
        return warm_zeros()

    def make_first(self):
        """Make the stationaries of the first group."""
        if self.ahead > 0:
            self.filters.start(len(self.order))
        self._make(1)

    def make_until(self, index, place):
        """Make the stationaries of a step and of the next ones, at most one group ahead: the group after that reuses
        this one's buffers."""
        at = self.order.index(self.steps[index][0])
        soon = self.steps[min(index + AHEAD * self.ahead, len(self.steps) - 1)][0]
        self._make(min(self.order.index(soon), at + 1) + 1)

    def load_before(self, count):
        """Load the filters of groups whose x is among that of the first `count` steps: sums wait for filters first."""
        if self.ahead > 0:
            self._load(self.order.index(self.steps[min(count, len(self.steps)) - 1][0]) + 1)

    def _load(self, count):
        """Load the first `count` groups, or all."""
        tiles = [tile for b in self.order[:count] for tile in self.schedule.residents[b].tiles]
        for tile in tiles[len(self.loaded) :]:
            for k_tile in range(len(self.schedule.k_tiles)):
                self.filters.load(tile, k_tile)
            self.loaded.append(tile)

    def _make(self, count):
        """Make the stationaries of the first `count` groups."""
        while self.made < count:
            self._load(self.made + 1)
            self.filters.make(self.schedule.residents[self.order[self.made]].tiles)
            self.made += 1
            self._load(self.made + self.ahead)
            if self.ahead > 0:
                self.filters.prepare()


class StackedResidents(Residents):
    """Stationaries and biases of K packing; filters are loaded by M tiles, a few ahead."""

    def start(self, inputs):
        """Load filters, biases and x of the first sums, then x as room allows."""
        # filters that wait for zeros must not wait for those of all rows
        late = self.schedule.stack.filters == "straight" and not self.schedule.stack.fits_window
        if not late:
            inputs.clear(0, 0)
        zeros_sbuf = warm_zeros()
        self.filters.start()
        self.biases.load()
        if late:
            inputs.clear(0, 1)
        inputs.load(1)
        self.filters.load(0)
        inputs.load(len(inputs.tiles))
        return zeros_sbuf

    def make_first(self):
        """Make the stationaries of the first M tile."""
        self.filters.place(0)

    def make_until(self, index, place):
        """Load and make the stationaries of an M tile of a step."""
        m_tile = self.order.index(self.steps[index][0]) + place
        self.filters.load(m_tile + 1)
        self.filters.place(m_tile)
