"""The loop: x of output tiles comes in, every tap is a matmul on the window of it that it meets, sums go out.

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

Filters are transposed just before their first sums, K tile by K tile, and those that are needed next between the
matmuls of what goes before, so that the array neither waits for them nor for their evacuation. Of output tiles that are
alike one body is issued, in a loop on the device, which two sets of tiles of x outside of it rotate through.
"""

from dataclasses import dataclass
from typing import Any

from ...._nki import nisa, nl
from ....schedules.cuts import Bank, OutTile, same_place
from ....schedules.implicit_gemm_channels import ALONE, MTile, stores_channels, sums_pitch
from ....schedules.implicit_gemm_outputs import banks_of, k_tile_window, lead_k_tiles, m_tile_out_tile, row_parts
from ....schedules.implicit_gemm_products import TapPair, filter_order, matmuls_of, num_matmuls
from ....schedules.implicit_gemm_schedule import WAITING_MAX, kinds_of, sums_of
from ....schedules.options import adds_bias_alone
from ....schedules.pairs_of_planes import bank_of_y, out_tile_of_y, planes_at_once
from ....schedules.tiles import share
from ..._engines import new_ledger
from ..._epilogue import evacuate, load_bias, round_out, unrounded
from ..._statistics import OutputStatistics
from ..._warm import accumulator, warm_up, warm_zeros
from ..call import moved_operands, of_array
from ..regions import offset_at, store_regions
from ..sums import elements_met, is_whole, sums_met, zero_sums
from ..transposes import store_transposed
from .filters import Filters
from .fp8 import load_paired, multiply_pair, new_rows
from .fp16x3 import Pairs, read_sums_out
from .norms import Norms
from .preparing import Deferred, Factor, Pace
from .rows import load_residual, load_rows, regions_of_bank, rows_in, rows_of_all, rows_tile, whole_bank, window
from .stationaries import stationary_of_product
from .winograd import Frames, read_pair_out

#: Filters are transposed between the matmuls of this part of an M tile, when they have come and before they are due.
TRANSPOSE_FROM, TRANSPOSE_UNTIL = 0.45, 0.85
#: And those of a K tile that comes soon between the matmuls of this part of one, as they may be on their way still.
LEAD_FROM, LEAD_UNTIL = 0.1, 0.7
#: Matmuls between a bank's sums and the transposes of its results, at least.
WAIT_MATMULS = 6


@dataclass
class Results(nl.NKIObject):
    """What an M tile (its index) makes of an output tile, in its own rows: banks, y_sbuf, residual_sbuf [outputs,
    images, rows, columns] or None."""

    index: int
    m_tile: MTile
    out_tile: OutTile
    banks: list
    y_sbuf: object
    residual_sbuf: object


@dataclass
class Sums(nl.NKIObject):
    """A bank of sums of Results (`which` of them), in as many banks of PSUM as are evacuated together, and whether a
    product is there yet."""

    results: Results
    which: int
    bank: Bank
    banks: list
    started: bool


class Group:
    """M tiles whose filters are in SBUF together, and what each needs. at_once: indices of M tiles, those together
    whose sums are made together, K tile by K tile of x."""

    def __init__(self, core, index, first):
        schedule, geometry = core.schedule, core.geometry
        self.index, self.m_tiles, self.k_tiles = index, schedule.batches[index], schedule.k_tiles[index]
        every = list(range(len(self.m_tiles)))
        self.at_once = [every] if schedule.together else [[m_tile] for m_tile in every]
        # the first filters of all are waited for: too long by DMA
        plan = filter_order(geometry, self.m_tiles, max(first, schedule.moved[index]), schedule.together)
        pairing = core.preparing if geometry.direct is None else None
        first_bytes = schedule.first_bytes if first else 0
        self.filters = Filters(core.operands, geometry, core.ledger, pairing, plan, first_bytes)
        self.operands, self.biases = core.operands, []

    def load_biases(self, last):
        """Load the biases of M tiles up to `last`."""
        for m_tile in self.m_tiles[len(self.biases) : last + 1]:
            self.biases.append(load_bias(self.operands.bias, m_tile.k0, m_tile.kn, m_tile.rows))


class Core:
    """What one core has at hand. now: x of the output tile that is worked on, by K tile; late: results that wait to be
    transposed; pace: of pieces of coming filters; preparing: what has x that is multiplied otherwise than it comes, or
    None; statistics: of y, or None."""

    group: Any = None
    following: Any = None
    preparing: Any = None
    now: Any = None
    statistics: Any = None

    def __init__(self, operands, geometry, options, schedule, zeros_sbuf):
        self.operands, self.geometry, self.options, self.schedule = operands, geometry, options, schedule
        self.ledger, self.zeros_sbuf, self.warm, self.pace = new_ledger(), zeros_sbuf, [], Pace()
        self.late, self.every = Deferred(WAIT_MATMULS, self.store_pixels), []
        self.norms = None if options.epilogue.norm is None else Norms(self)

    def start(self, item):
        """x of the first output tile: of each K tile the first filters that there is room for and the rows of the first
        sums, then all others."""
        geometry, schedule = self.geometry, self.schedule
        if geometry.direct is not None:
            self.preparing = Frames(self, schedule.spare_bytes)
        elif geometry.precision == "fp16x3":
            self.preparing = Pairs(self)
        self.group = group = Group(self, item.batch, 1)
        self.warm = warm_up(self.zeros_sbuf, schedule.warmup, 1)
        filters, tiles, m_tile, out_tile = group.filters, [None] * len(group.k_tiles), group.m_tiles[0], item.out_tile
        parts, lead, places = (
            row_parts(geometry, out_tile, True, m_tile.rows),
            lead_k_tiles(geometry),
            filters.plan.places,
        )
        for which, k_tile in enumerate(m_tile.k_tiles):
            last = max(places[0][which] + lead - 1, places[group.at_once[0][-1]][which])
            filters.load_first(last)
            if parts:
                self.bring_rows(group.k_tiles, tiles, group.k_tiles.index(k_tile), out_tile, parts[0])
        for index, tile in enumerate(tiles):
            if parts and tile is None:
                self.bring_rows(group.k_tiles, tiles, index, out_tile, parts[0])
        group.load_biases(0)
        for part in parts[1:]:
            for index in range(len(tiles)):
                self.bring_rows(group.k_tiles, tiles, index, out_tile, part)
        return tiles

    def load_next(self, index, now):
        """x of the item after one, which may be what is there; where it has other M tiles, their first filters before
        it."""
        item, coming = self.schedule.items[index], self.schedule.items[index + 1]
        group = self.group
        if coming.batch != item.batch:
            self.following = group = Group(self, coming.batch, 0)
            group.filters.load_ahead()
            group.load_biases(0)
        if group.k_tiles == self.group.k_tiles and same_place(coming.out_tile, item.out_tile):
            return now
        tiles, parts = [None] * len(group.k_tiles), row_parts(self.geometry, coming.out_tile, False, 1)
        for part in parts:
            for k_tile in range(len(tiles)):
                self.bring_rows(group.k_tiles, tiles, k_tile, coming.out_tile, part)
        return tiles

    def bring_rows(self, k_tiles, tiles, index, out_tile, part):
        """x of a K tile in a part (first row, rows) of an output tile, into its tile."""
        operands, geometry, k_tile = self.operands, self.geometry, k_tiles[index]
        if k_tile.pairing != ALONE:
            if tiles[index] is None:
                tiles[index] = new_rows(operands, geometry, k_tile, out_tile)
            load_paired(operands, geometry, k_tile, tiles[index], out_tile, part)
        elif self.preparing is None:
            if tiles[index] is None:
                tiles[index] = rows_tile(operands, geometry, k_tile, out_tile)
            rows_sbuf = rows_in(tiles[index], part[0], part[1])
            load_rows(self, k_tile, rows_sbuf, out_tile, out_tile.h0 + part[0], len(k_tiles) == 1)
        else:
            if tiles[index] is None:
                tiles[index] = self.preparing.new_tile(k_tile, out_tile)
            self.preparing.add(k_tiles, index, tiles[index], out_tile, part)

    def steps(self, first, stop, end):
        """(M tiles that are summed together, item, x, whether it is a core's last) of items first .. stop - 1, of which
        x of the first is there; x of the item after each is loaded before `end`."""
        for index in range(first, stop):
            item, coming, after = self.schedule.items[index], self.schedule.items[min(index + 1, end - 1)], None
            if self.group.index != item.batch:
                self.group, self.following = self.following, None
            group = self.group
            for which, m_tiles in enumerate(group.at_once):
                group.load_biases(m_tiles[-1] + 1)
                group.filters.load_ahead()
                if index + 1 < end and which == (len(group.at_once) - 1 if coming.batch != item.batch else 0):
                    after = self.load_next(index, self.now)
                self.set_rate(m_tiles, item.out_tile)
                yield m_tiles, item, self.now, index + 1 == end
            self.now = after

    def set_rate(self, m_tiles, out_tile):
        """Transpose the filters of the next M tile, or the first of the following group, during the matmuls of
        `m_tiles`."""
        geometry, group, filters, last = self.geometry, self.group, self.group.filters, m_tiles[-1]
        banks = len(banks_of(m_tile_out_tile(out_tile, group.m_tiles[last]), False))
        matmuls, coming = len(m_tiles) * banks * num_matmuls(geometry, group.m_tiles[last]) * kinds_of(geometry), 0
        if self.preparing is not None:
            self.preparing.set_pace(matmuls)
        if last + 1 < len(group.m_tiles):
            coming = filters.left_to(filters.plan.after_m_tile(last + 1) - 1)
            coming -= filters.pieces_to(filters.plan.after_m_tile(last) - 1)
        elif self.following is not None:
            coming = self.following.filters.left_to(0)
        self.pace = Pace(coming, matmuls, TRANSPOSE_FROM, TRANSPOSE_UNTIL)

    def transpose_due(self, pieces):
        """After a matmul: transpose what is due of the next M tile's or group's filters; pieces: whether by the array
        too."""
        for _ in range(self.pace.due()):
            filters = self.group.filters
            last = len(filters.plan.order) - 1
            if filters.left_to(last) == 0 and self.following is not None:
                filters, last = self.following.filters, 0
            if filters.moves_to(last) > 0:
                filters.move_block()
            elif pieces and filters.pieces_to(last) > 0:
                filters.transpose_piece()

    def work_out_tile(self, m_tiles, item, tiles, last):
        """Results of some M tiles for one output tile: their PSUM banks one after the other, or together, K tile by K
        tile of x.

        last: whether nothing hides the stores, so that each bank's results leave at once.
        """
        every = [self.start_results(index, item) for index in m_tiles]
        places = [(results, which) for results in every for which in range(len(results.banks))]
        at_once = len(places) if self.schedule.together else 1
        for first in range(0, len(places), at_once):
            sums = [self.start_sums(*place) for place in places[first : first + at_once]]
            for k_tile in range(len(sums[0].results.m_tile.k_tiles)):
                for one in sums:
                    self.add_k_tile(one, k_tile, tiles)
            for one in sums:
                self.finish_sums(one, item, last)

    def start_results(self, index, item):
        """Results of an M tile for an item, of which nothing is there yet but the residual."""
        operands, geometry, m_tile = self.operands, self.geometry, self.group.m_tiles[index]
        out_tile = m_tile_out_tile(item.out_tile, m_tile)
        shape = (m_tile.rows * m_tile.kn, planes_at_once(geometry) * out_tile.zn, out_tile.pn, out_tile.qn)
        banks = banks_of(out_tile, item.last and index == len(self.group.m_tiles) - 1)
        dtype = operands.y.dtype if self.norms is None else nl.float32
        y_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
        residual_sbuf = load_residual(operands, geometry, m_tile, out_tile_of_y(geometry, item.out_tile), self.ledger)
        results = Results(index, m_tile, out_tile, banks, y_sbuf, residual_sbuf)
        self.every = [*(self.every if index > 0 else []), results]
        return results

    def start_sums(self, results, which):
        """A bank of results, of which no product is there yet."""
        bank, m_tile, geometry = results.banks[which], results.m_tile, self.geometry
        apart = sums_pitch(geometry, m_tile.k_tiles, bank.zn, bank.pn)
        shape = (m_tile.rows * m_tile.kn, bank.zn, apart, bank.qn)
        # a last plane of a volume is none that the last bank of pairs of planes is for
        alone = bank_of_y(geometry, results.out_tile, bank).zn < planes_at_once(geometry)
        count = sums_of(geometry) - (1 if alone else 0)
        if count == 1:
            first_psum, started = accumulator(self.warm, shape)
            return Sums(results, which, bank, [first_psum], started)
        banks = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum) for _ in range(count)]
        return Sums(results, which, bank, banks, False)

    def add_k_tile(self, one, k_tile, tiles):
        """Products of all taps of a K tile of x, added to a bank of Sums.

        A tap that meets all of the bank comes first, so that the others add to what is there; where none does, a
        product of zeros does.
        """
        geometry, group, results = self.geometry, self.group, one.results
        filters, own, bank = group.filters, results.m_tile.k_tiles[k_tile], one.bank
        tile = tiles[group.k_tiles.index(own)]
        every = [] if tile is None else matmuls_of(geometry, results.m_tile, own, results.out_tile, bank, one.which)
        if not one.started and not (every and is_whole(every[0], bank.zn, bank.pn, bank.qn)):
            for acc_psum in one.banks:
                zero_sums(acc_psum, self.zeros_sbuf)
            one.started = True
        if not every:
            return
        plan, place, lead = filters.plan, filters.plan.places[results.index][k_tile], lead_k_tiles(geometry)
        last_bank = self.schedule.together or one.which + 1 == len(results.banks)
        end = len(plan.order) if last_bank else plan.after_m_tile(results.index)
        filters.transpose_until(min(place + lead, end) - 1)
        soon = filters.pieces_to(min(place + lead, end - 1))
        factors = self.factors(one, k_tile, place, tile, every)
        pace, out_tile = Pace(soon, len(every) * len(factors), LEAD_FROM, LEAD_UNTIL), results.out_tile
        outputs = (out_tile.z0 + bank.z, out_tile.p0 + bank.p, out_tile.q0 + bank.q)
        elements = (out_tile.d0, out_tile.h0, k_tile_window(geometry, own, out_tile)[0])
        for kind, factor in enumerate(factors):
            if factor.low:
                self.preparing.end(filters, plan.order[place].end[1], factor.parts)
            for which, product in enumerate(every):
                adds = one.started or which > 0 or factor.adds
                if isinstance(product, TapPair):
                    multiply_pair(geometry, one, own, factor, product, adds)
                else:
                    nisa.nc_matmul(
                        dst=sums_met(factor.acc_psum, product, outputs),
                        stationary=stationary_of_product(factor.stationaries, geometry, results.m_tile, own, product),
                        moving=elements_met(factor.x_sbuf, (0, product.parts), product, elements),
                        accumulate=adds,
                    )
                for _ in range(min(soon, pace.due())):
                    soon -= 1
                    filters.transpose_piece()
                self.transpose_due(soon == 0)
                self.late.after_matmul()
                if self.norms is not None:
                    self.norms.waiting.after_matmul()
                if self.preparing is not None:
                    self.preparing.after_matmul(kind * len(every) + which, len(factors))
        one.started = True

    def factors(self, one, k_tile, place, tile, every):
        """Factors of a K tile: one, or those of x that is prepared until the last row that products meet."""
        filters, preparing, results = self.group.filters, self.preparing, one.results
        w_sbuf = filters.tiles[place]
        if preparing is None:
            return [Factor(one.banks[0], of_array(w_sbuf, self.operands), of_array(tile, self.operands))]
        end = max(product.rows[3] + (product.rows[2] - 1) * product.rows[4] + 1 for product in every)
        parts = tile.parts_to(end - results.out_tile.h0)
        preparing.prepare_to(parts)
        ends = 0 < k_tile == len(results.m_tile.k_tiles) - 1
        return preparing.factors(one.banks, w_sbuf, filters.lows.get(place), tile, parts, ends)

    def finish_sums(self, one, item, last):
        """Evacuate a bank of sums, take statistics of it, if they are asked for, and store it, or with the last one all
        of them, as `last` has it in `work_out_tile`."""
        results, geometry, epilogue = one.results, self.geometry, self.options.epilogue
        bank, out_tile = bank_of_y(geometry, item.out_tile, one.bank), out_tile_of_y(geometry, item.out_tile)
        residual = None if results.residual_sbuf is None else window(results.residual_sbuf, bank)
        y_sbuf, bias_sbuf = window(results.y_sbuf, bank), self.group.biases[results.index]
        if self.norms is not None:
            acc_psum = one.banks[0][0 : y_sbuf.shape[0], 0 : bank.zn, 0 : bank.pn, 0 : bank.qn]
            self.norms.evacuate(y_sbuf, acc_psum, bias_sbuf, residual)
            if results.index + 1 == len(self.group.m_tiles):
                self.norms.add(self.every, bank)
            return
        plain = len(one.banks) == 1 and geometry.direct is None
        held = self.statistics is not None and not (plain and adds_bias_alone(epilogue))
        sums_sbuf = counted = unrounded(y_sbuf) if held else y_sbuf
        if geometry.direct is not None:
            read_pair_out(sums_sbuf, one.banks, bias_sbuf, residual, epilogue, self.ledger)
        elif len(one.banks) > 1:
            read_sums_out(sums_sbuf, one.banks[0], one.banks[1], bias_sbuf, residual, epilogue, self.ledger)
        else:
            acc_psum = one.banks[0][0 : y_sbuf.shape[0], 0 : bank.zn, 0 : bank.pn, 0 : bank.qn]
            strict, counted = self.options.strict_nonfinite, counted if held else acc_psum
            evacuate(sums_sbuf, acc_psum, bias_sbuf, residual, epilogue, self.ledger, strict)
        if self.statistics is not None:
            rows = rows_of_all(results.m_tile, out_tile, bank)
            self.statistics.add(results.m_tile, counted, out_tile.z0 + bank.z, rows, None if held else bias_sbuf)
            round_out(y_sbuf, sums_sbuf, self.ledger)
        if stores_channels(geometry):
            first = (results.m_tile.k0, out_tile.z0 + bank.z, out_tile.p0 + bank.p, out_tile.q0 + bank.q)
            self.late.finish(WAITING_MAX - 1)
            self.late.add(y_sbuf, offset_at(geometry.y_strides, first))
        elif last or one.which + 1 == len(results.banks):
            stored = bank if last else whole_bank(results.m_tile, out_tile)
            regions = regions_of_bank(geometry.y_strides, results.m_tile, out_tile, stored)
            store_regions(self.operands.y, results.y_sbuf, regions, self.operands.moved)

    def store_pixels(self, y_sbuf, offset):
        """Results as NHWC pass the array in tiles of 128 pixels, to leave as rows of channels."""
        store_transposed(self.operands.y, self.geometry.y_strides, y_sbuf, offset, self.ledger)

    def run_repeat(self, repeat):
        """A Repeat, of which x of the first item is there; x of the next item is in the same tiles then."""
        filters, items, k_tiles = self.group.filters, self.schedule.items, self.group.k_tiles
        filters.transpose_until(len(filters.plan.order) - 1)
        sets = (
            self.now,
            [rows_tile(self.operands, self.geometry, k_tile, items[repeat.first].out_tile) for k_tile in k_tiles],
        )

        def body(at):
            # a register moves x, y and residual; what engines have had to do starts anew
            moved = moved_operands(self.operands, repeat.register, at)
            core = Core(moved, self.geometry, self.options, self.schedule, self.zeros_sbuf)
            core.group = self.group
            for which in range(repeat.out_tiles):
                item, coming = items[repeat.first + which], items[repeat.first + which + 1]
                for k_tile, tile in zip(k_tiles, sets[(which + 1) % 2], strict=True):
                    load_rows(core, k_tile, tile, coming.out_tile, coming.out_tile.h0, len(k_tiles) == 1)
                for m_tiles in core.group.at_once:
                    core.work_out_tile(m_tiles, item, sets[which % 2], False)

        by = repeat.register.by
        nl.fori_loop(0, repeat.count * by, body, by)


def new_output_statistics(operands, schedule, ledger, first, count):
    """Statistics of what items first .. first + count - 1 make of y, or None where they are not asked for."""
    if operands.stats is None:
        return None
    m_tiles = {m_tile.k0: m_tile for batch in schedule.batches for m_tile in batch}
    visits = schedule.banks_of_y(first, count)
    return OutputStatistics(operands.stats, operands.image_planes, ledger, m_tiles.values(), visits)


def run_implicit_gemm(operands, geometry, options, schedule):
    """This core's part of the items; x of the next one is loaded before one is worked on."""
    index, count = share(len(schedule.items), nl.num_programs(), nl.program_id(0))
    if count == 0:
        new_output_statistics(operands, schedule, new_ledger(), index, 0)
        return
    end, core = index + count, Core(operands, geometry, options, schedule, warm_zeros())
    core.now = core.start(schedule.items[index])
    core.statistics = new_output_statistics(operands, schedule, core.ledger, index, count)
    for repeat in schedule.repeats(index, count):
        for step in core.steps(index, repeat.first, end):
            core.work_out_tile(*step)
        core.run_repeat(repeat)
        index = repeat.first + repeat.count * repeat.out_tiles
    for step in core.steps(index, end, end):
        core.work_out_tile(*step)
    if core.statistics is not None:
        core.statistics.end()
    core.late.finish()
    if core.norms is not None:
        core.norms.waiting.finish()
