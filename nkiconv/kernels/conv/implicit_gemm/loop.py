"""The loop: load x of output tiles, multiply every tap by its window of x, store sums.

    | stationary | K (partitions)           | M (columns)     | N       | evacuation                     |
    |------------|--------------------------|-----------------|---------|--------------------------------|
    | w of a tap | c; folded: c and columns | k; folded: k, p | z, p, q | plain (NCHW), transpose (NHWC) |

Pseudocode, of one core:

    for (weight-resident group of M tiles, output tile):
        load x of the next output tile
        for M tile, bank of the output tile:
            for K tile, tap:
                PSUM[k, (z, p, q)] += w[c, tap, k]^T x[c, window of the tap]
                transpose filters that later matmuls need              # background work
            y = epilogue(PSUM)
        store y

Filters are transposed just before their first sums, one K tile after the other; those of the next K tiles are
transposed between earlier matmuls, so that the Tensor Engine waits neither for them nor for their evacuation. Equal
output tiles run in a device loop: its body is issued once, with two sets of tiles of x outside of it that rotate.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...._nki import nl
from ....schedules.cuts import Bank, OutTile
from ....schedules.geometry import num_taps
from ....schedules.implicit_gemm import ALONE, MTile, stores_channels, sums_pitch
from ....schedules.implicit_gemm_products import (
    banks_of,
    filter_order,
    lead_k_tiles,
    m_tile_out_tile,
    matmuls_of,
    row_parts,
    x_place,
)
from ....schedules.implicit_gemm_schedule import WAITING_MAX, Item, kinds_of, sums_of
from ....schedules.pairs_of_planes import bank_of_y, out_tile_of_y, planes_at_once
from ....schedules.tiles import share
from ..._engines import new_ledger
from ..._epilogue import load_bias
from ..._statistics import OutputStatistics, evacuate_counted
from ..._warm import accumulator, warm_up, warm_zeros
from ..call import moved_operands
from ..regions import offset_at, store_regions
from ..sums import elements_met, is_whole, multiply, sums_met, zero_sums
from .filters import Filters, stationary_of_product
from .fp8 import multiply_pair
from .fp16x3 import Pairs, read_sums_out
from .norms import Norms
from .rows import Deferred, Pace, Rows, load_residual, regions_of_bank, store_transposed, whole_bank, window
from .winograd import Frames, read_pair_out

#: The part of an M tile's matmuls between which the next M tile's filters are transposed: loaded, and not needed yet.
TRANSPOSE_FROM, TRANSPOSE_UNTIL = 0.45, 0.85
#: The part of a K tile's matmuls between which the following K tile's filters are transposed, as loads may still run.
LEAD_FROM, LEAD_UNTIL = 0.1, 0.7
#: The fewest matmuls between a bank's sums and the transposes of its results.
WAIT_MATMULS = 6


@dataclass
class Results(nl.NKIObject):
    """An M tile's results for an item (M tile by index; output tile in its rows): banks, and tiles y_sbuf and
    residual_sbuf [outputs, images, rows, columns], the residual or None."""

    index: int
    m_tile: MTile
    item: Item
    out_tile: OutTile
    banks: list
    y_sbuf: object
    residual_sbuf: object


@dataclass
class Sums(nl.NKIObject):
    """A bank of sums, number `which` of its Results, in the banks of PSUM that are evacuated together; started: whether
    it holds products yet."""

    results: Results
    which: int
    bank: Bank
    banks: list
    started: bool


class Group:
    """A weight-resident group of M tiles, with their filters and biases. at_once: lists of M tiles, by index, whose
    sums are made together, one K tile of x after the other."""

    def __init__(self, core, index, first):
        schedule = core.schedule
        self.index, self.m_tiles, self.k_tiles = index, schedule.batches[index], schedule.k_tiles[index]
        every = list(range(len(self.m_tiles)))
        self.at_once = [every] if schedule.together else [[m_tile] for m_tile in every]
        # the Tensor Engine transposes the first filters of all: DMA would keep it waiting
        order = filter_order(core.geometry, self.m_tiles, max(first, schedule.moved[index]), schedule.together)
        self.filters = Filters(core, order)
        self.operands, self.biases = core.operands, []

    def load_biases(self, last):
        """Load the biases of M tiles up to `last`."""
        for m_tile in self.m_tiles[len(self.biases) : last + 1]:
            self.biases.append(load_bias(self.operands.bias, m_tile.k0, m_tile.kn, m_tile.rows))


class Core:
    """State of one core. now: XTiles of the current output tile, by K tile; late: results that wait for their
    transposes; pace: of pieces of the next filters; beside: background work after each matmul; statistics: of y, or
    None."""

    rows: Any
    beside: list
    group: Any = None
    following: Any = None
    now: Any = None
    statistics: Any = None

    def __init__(self, operands, geometry, options, schedule, zeros_sbuf):
        self.operands, self.geometry, self.options, self.schedule = operands, geometry, options, schedule
        self.ledger, self.zeros_sbuf, self.warm, self.pace, self.every = new_ledger(), zeros_sbuf, [], Pace(), []
        if geometry.direct is not None:
            self.rows = Frames(self, schedule.frames_bytes)
        else:
            self.rows = Pairs(self) if geometry.precision == "fp16x3" else Rows(self)
        self.late = Deferred(WAIT_MATMULS, partial(store_transposed, operands.y, geometry.y_strides, self.ledger))
        self.norms = None if options.epilogue.norm is None else Norms(self)
        self.beside = [self.late, *([] if self.norms is None else [self.norms.waiting]), self.rows]

    def start(self, item):
        """Load x of the first output tile: for each K tile the first filters that there is room for and the rows of the
        first sums, then all other rows."""
        self.group = group = Group(self, item.batch, 1)
        self.warm = warm_up(self.zeros_sbuf, self.schedule.settings.warmup, 1)
        filters, places = group.filters, group.filters.plan.places
        parts = row_parts(self.geometry, item.out_tile, True, group.m_tiles[0].rows)
        self.now = self.new_tiles(group, item.out_tile, parts)
        left = dict(self.now)
        for m_tile, own in zip(group.m_tiles, places, strict=True):
            for which, k_tile in enumerate(m_tile.k_tiles):
                if k_tile in left:
                    ahead = own[which] + lead_k_tiles(self.geometry)
                    count = min(max(ahead, places[group.at_once[0][-1]][which] + 1), filters.plan.count)
                    filters.load_ahead(count)
                    self.bring([left.pop(k_tile)], parts[:1])
        group.load_biases(0)
        self.bring(self.now.values(), parts[1:])

    def load_next(self, item, coming):
        """XTiles of the next item, `coming`, after their loads; the current ones if they are the same. The first
        filters of a new group are loaded before x."""
        group = self.group
        if coming.batch != item.batch:
            self.following = group = Group(self, coming.batch, 0)
            group.filters.load_ahead()
            group.load_biases(0)
        if group.k_tiles == self.group.k_tiles and coming.out_tile == item.out_tile:
            return self.now
        parts = row_parts(self.geometry, coming.out_tile, False, 1)
        tiles = self.new_tiles(group, coming.out_tile, parts)
        self.bring(tiles.values(), parts)
        return tiles

    def new_tiles(self, group, out_tile, parts):
        """New XTiles of a group's K tiles, without rows; None instead if there are no parts."""
        every = group.k_tiles
        return {k_tile: self.rows.new(k_tile, out_tile) if parts else None for k_tile in every}

    def bring(self, tiles, parts):
        """Load parts (first row, rows) of XTiles."""
        for part in parts:
            for x in tiles:
                self.rows.add(x, *part)

    def work(self, first, stop, end):
        """(M tiles, item) of items first .. stop - 1, to be computed in turn; x of the first is loaded, x of the next
        item is loaded before each, before `end`."""
        for index in range(first, stop):
            item, coming = self.schedule.items[index], self.schedule.items[min(index + 1, end - 1)]
            if self.group.index != item.batch:
                self.group, self.following = self.following, None
            group, after = self.group, None
            for m_tiles in group.at_once:
                group.load_biases(m_tiles[-1] + 1)
                group.filters.load_ahead()
                if index + 1 < end and m_tiles is group.at_once[-1 if coming.batch != item.batch else 0]:
                    after = self.load_next(item, coming)
                self.set_rate(m_tiles, item.out_tile)
                yield m_tiles, item
            self.now = after

    def set_rate(self, m_tiles, out_tile):
        """Spread the transposes of filters, of the next M tile or else of the following group's first K tile, over the
        matmuls of `m_tiles`."""
        geometry, group, filters, last = self.geometry, self.group, self.group.filters, m_tiles[-1]
        m_tile, coming = group.m_tiles[last], 0
        banks = len(m_tiles) * len(banks_of(m_tile_out_tile(out_tile, m_tile), False))
        matmuls = banks * len(m_tile.k_tiles) * num_taps(geometry) * kinds_of(geometry)
        self.rows.set_pace(matmuls)
        if last + 1 < len(group.m_tiles):
            coming = sum(filters.left(filters.plan.after(last + 1))) - filters.left(filters.plan.after(last))[0]
        elif self.following is not None:
            coming = sum(self.following.filters.left(1))
        self.pace = Pace(coming, matmuls, TRANSPOSE_FROM, TRANSPOSE_UNTIL)

    def transpose_due(self, by_array):
        """After a matmul: transpose the filters that the pace allows; by_array: whether the Tensor Engine may."""
        for _ in range(self.pace.due()):
            filters, count = self.group.filters, self.group.filters.plan.count
            if not any(filters.left(count)) and self.following is not None:
                filters, count = self.following.filters, 1
            pieces, moves = filters.left(count)
            if moves > 0:
                filters.move_piece()
            elif by_array and pieces > 0:
                filters.transpose_piece()

    def work_out_tile(self, m_tiles, item):
        """Compute the results of M tiles for one output tile: one PSUM bank after the other, or all together, one K
        tile of x after the other."""
        every = [self.start_results(index, item) for index in m_tiles]
        places = [(results, which) for results in every for which in range(len(results.banks))]
        at_once = len(places) if self.schedule.together else 1
        for first in range(0, len(places), at_once):
            sums = [self.start_sums(*place) for place in places[first : first + at_once]]
            for k_tile in range(len(sums[0].results.m_tile.k_tiles)):
                for one in sums:
                    self.add_k_tile(one, k_tile)
            for one in sums:
                self.finish_sums(one)

    def start_results(self, index, item):
        """New Results of an M tile for an item, with the residual loaded."""
        operands, geometry, m_tile = self.operands, self.geometry, self.group.m_tiles[index]
        out_tile = m_tile_out_tile(item.out_tile, m_tile)
        shape = (m_tile.rows * m_tile.kn, planes_at_once(geometry) * out_tile.zn, out_tile.pn, out_tile.qn)
        banks = banks_of(out_tile, item.last and index == len(self.group.m_tiles) - 1)
        y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype if self.norms is None else nl.float32, buffer=nl.sbuf)
        of_y = [bank_of_y(geometry, item.out_tile, bank) for bank in banks]
        residual_sbuf = load_residual(operands, geometry, m_tile, out_tile_of_y(geometry, item.out_tile), of_y)
        results = Results(index, m_tile, item, out_tile, banks, y_sbuf, residual_sbuf)
        self.every = [*(self.every if index > 0 else []), results]
        return results

    def start_sums(self, results, which):
        """A new bank of Sums, without products."""
        bank, m_tile, geometry = results.banks[which], results.m_tile, self.geometry
        apart = sums_pitch(geometry, m_tile.k_tiles, bank.zn, bank.pn)
        shape = (m_tile.rows * m_tile.kn, bank.zn, apart, bank.qn)
        # an odd last plane that is alone in its bank needs no fourth product
        alone = bank_of_y(geometry, results.out_tile, bank).zn < planes_at_once(geometry)
        count = sums_of(geometry) - (1 if alone else 0)
        if count == 1:
            first_psum, started = accumulator(self.warm, shape)
            return Sums(results, which, bank, [first_psum], started)
        banks = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum) for _ in range(count)]
        return Sums(results, which, bank, banks, False)

    def add_k_tile(self, one, k_tile):
        """Add the products of all taps of a K tile of x to a bank of Sums.

        A tap that covers the whole bank comes first, so that the others add to existing sums; if none does, a product
        of zeros does.
        """
        geometry, filters, results, bank = self.geometry, self.group.filters, one.results, one.bank
        m_tile, out_tile, plan = results.m_tile, results.out_tile, filters.plan
        own = m_tile.k_tiles[k_tile]
        every = matmuls_of(geometry, m_tile, own, out_tile, bank)
        if not one.started and not (every and is_whole(every[0], bank.zn, bank.pn, bank.qn)):
            for acc_psum in one.banks:
                zero_sums(acc_psum, self.zeros_sbuf)
            one.started = True
        if not every:
            return
        x, place = self.now[own], plan.places[results.index][k_tile]
        last_bank, ahead = self.schedule.together or one.which + 1 == len(results.banks), place + lead_k_tiles(geometry)
        end = plan.count if last_bank else plan.after(results.index)
        filters.transpose_until(min(ahead, end))
        soon, _ = filters.left(min(ahead + 1, end))
        parts = self.rows.prepare(x, every)
        ends = 0 < k_tile == len(m_tile.k_tiles) - 1
        factors = self.rows.factors(one.banks, x, filters.tiles[place], ends)
        pace = Pace(soon, len(every) * len(factors), LEAD_FROM, LEAD_UNTIL)
        outputs = (out_tile.z0 + bank.z0, out_tile.p0 + bank.p0, out_tile.q0 + bank.q0)
        elements = (out_tile.d0, out_tile.h0, x.place.column)
        for factor in factors:
            if factor.low:
                self.rows.end(filters, plan.ends[place + 1][1], parts)
            for which, product in enumerate(every):
                adds = one.started or which > 0 or factor.adds
                if own.pairing != ALONE:
                    multiply_pair(geometry, one, x, factor, product, adds)
                else:
                    stationary = stationary_of_product(factor.w_sbuf, geometry, m_tile, own, product)
                    moving = elements_met(factor.x_sbuf, (0, product.parts), product, elements)
                    multiply(sums_met(factor.acc_psum, product, outputs), stationary, moving, adds)
                for _ in range(min(soon, pace.due())):
                    soon -= 1
                    filters.transpose_piece()
                self.transpose_due(soon == 0)
                for work in self.beside:
                    work.after_matmul()
        one.started = True

    def finish_sums(self, one):
        """Evacuate a bank of sums, add it to the statistics, and store it: with the output tile's last bank all of
        them, but each bank at once if no work hides the stores."""
        results, geometry, item = one.results, self.geometry, one.results.item
        bank, out_tile = bank_of_y(geometry, item.out_tile, one.bank), out_tile_of_y(geometry, item.out_tile)
        y_sbuf, residual = window(results.y_sbuf, bank), window(results.residual_sbuf, bank)
        bias_sbuf, m_tile = self.group.biases[results.index], results.m_tile
        acc_psum = one.banks[0][0 : y_sbuf.shape[0], 0 : one.bank.zn, 0 : one.bank.pn, 0 : one.bank.qn]
        if self.norms is not None:
            self.norms.evacuate(y_sbuf, acc_psum, bias_sbuf, residual)
            if results.index + 1 == len(self.group.m_tiles):
                self.norms.add(self.every, bank)
            return

        def reads(into):
            read_out = read_sums_out if geometry.direct is None else read_pair_out
            read_out(into, one.banks, bias_sbuf, residual, self.options.epilogue, self.ledger)

        def count(values, bias):
            # those in y for all of the M tile's output rows at once
            rows = max(0, min(bank.pn, out_tile.pn // m_tile.rows - bank.p0))
            self.statistics.add(m_tile, values, out_tile.z0 + bank.z0, rows, bias)

        plain, counts = len(one.banks) == 1 and geometry.direct is None, None if self.statistics is None else count
        acc, evacuates = (acc_psum, None) if plain else (None, reads)
        evacuate_counted(y_sbuf, acc, bias_sbuf, residual, self.options, self.ledger, counts, evacuates)
        if stores_channels(geometry):
            first = (m_tile.k0, out_tile.z0 + bank.z0, out_tile.p0 + bank.p0, out_tile.q0 + bank.q0)
            self.late.finish(WAITING_MAX - 1)
            self.late.add(y_sbuf, offset_at(geometry.y_strides, first))
        elif item.last or one.which + 1 == len(results.banks):
            stored = bank if item.last else whole_bank(m_tile, out_tile)
            regions = regions_of_bank(geometry.y_strides, m_tile, out_tile, stored)
            store_regions(self.operands.y, results.y_sbuf, regions, self.operands.moved)

    def run_repeat(self, repeat):
        """Run a Repeat; x of its first item is loaded, and afterwards x of the next item is in the same tiles."""
        filters, items, group, geometry = self.group.filters, self.schedule.items, self.group, self.geometry
        filters.transpose_until(filters.plan.count)
        others = self.new_tiles(group, items[repeat.first].out_tile, True)

        def body(at):
            # a register moves x, y and residual; the ledger of engine work starts anew
            moved = moved_operands(self.operands, repeat.register, at)
            core = Core(moved, geometry, self.options, self.schedule, self.zeros_sbuf)
            core.group, core.now, after = group, self.now, others
            for index in range(repeat.first, repeat.first + repeat.out_tiles):
                out_tile = items[index + 1].out_tile
                places = ((k_tile, x, x_place(geometry, k_tile, out_tile)) for k_tile, x in after.items())
                after = {k_tile: replace(x, out_tile=out_tile, place=place) for k_tile, x, place in places}
                core.bring(after.values(), [(0, out_tile.hn)])
                for m_tiles in group.at_once:
                    core.work_out_tile(m_tiles, items[index])
                core.now, after = after, core.now

        by = repeat.register.by
        nl.fori_loop(0, repeat.count * by, body, by)


def new_output_statistics(operands, schedule, ledger, first, count):
    """Statistics of the y of items first .. first + count - 1; None if they are not asked for."""
    if operands.stats is None:
        return None
    m_tiles = {m_tile.k0: m_tile for batch in schedule.batches for m_tile in batch}
    visits = schedule.banks_of_y(first, count)
    return OutputStatistics(operands.stats, operands.image_planes, ledger, m_tiles.values(), visits)


def run_implicit_gemm(operands, geometry, options, schedule):
    """Compute this core's share of the items; x of the next item is loaded during each."""
    index, count = share(len(schedule.items), nl.num_programs(), nl.program_id(0))
    if count == 0:
        new_output_statistics(operands, schedule, new_ledger(), index, 0)
        return
    end, core = index + count, Core(operands, geometry, options, schedule, warm_zeros())
    core.start(schedule.items[index])
    core.statistics = new_output_statistics(operands, schedule, core.ledger, index, count)
    for repeat in (*schedule.repeats(index, count), None):
        for m_tiles, item in core.work(index, end if repeat is None else repeat.first, end):
            core.work_out_tile(m_tiles, item)
        if repeat is not None:
            core.run_repeat(repeat)
            index = repeat.first + repeat.count * repeat.out_tiles
    if core.statistics is not None:
        core.statistics.store_moved()
    core.late.finish()
    if core.norms is not None:
        core.norms.waiting.finish()
