"""The loop: load x of output tiles, multiply on row tiles in parallel, interleave outputs by evacuation, store rows.

    | problem     | stationary             | K (partitions)     | M (columns)          | N       | evacuation    |
    |-------------|------------------------|--------------------|----------------------|---------|---------------|
    | groups      | w placed, on row tiles | c of each row tile | columns, rows, k     | z, m, j | interleave    |
    | transposed  | w as torch has it      | segment, c         | phase, segment, k    | z, m, j | interleave    |
    | few outputs | w placed               | c                  | s, rows p, planes, k | z, m, w | shift-and-add |
    | few inputs  | w placed               | s, rows of x, c    | rows p, k            | z, m, q | plain         |
    | depthwise   | Toeplitz matrices of w | c, all H rows      | c, all P             | z, q    | plain         |

Pseudocode, of one core; `schedules/weight_stationary.py` has the formula, `schedules/stacked.py` that of few inputs:

    for (weight-resident group, output tile):
        load x of the next output tiles; make the stationaries of the next group
        for M tile, bank of (sweep, blocks of outputs):
            for K tile, element e of a block's window, row tile:       # row tiles work in parallel
                PSUM[(u, segment, k), z, m, j] += F[e]^T x[c, z, m * apart + e, ..]
            for output u of a block:                                   # groups: the rows of a block together
                y[.., m * step + u] = epilogue(PSUM[u])
            groups: copy rows to their partitions
            few outputs: y[.., q] = epilogue(sum over taps s of PSUM[(s, ..), .., q * stride + s * dilation])
        store y
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any

from ...._nki import nl
from ....schedules.block_schedule import banks_of, blocks_in, output_in, size_of
from ....schedules.implicit_gemm import stores_channels
from ....schedules.planes import with_windows
from ....schedules.tiles import cut_at
from ..._engines import new_ledger
from ..._statistics import evacuate_counted
from ..._warm import accumulator, warm_up
from ..call import of_array
from ..sums import (
    Product,
    covering_first,
    elements_met,
    is_whole,
    multiply,
    spaced,
    sums_met,
    zero_sums,
)
from .filters import Residents, StackedResidents
from .load import Inputs, StackedInputs
from .pixel_results import PixelResults
from .results import PackedResults, Results, counter, new_output_statistics
from .shift_and_add import ShiftAndAdd


@dataclass
class Sums(nl.NKIObject):
    """The accumulator of a row tile for a bank: its blocks; (sweep, lane, Products in order) of each K tile; started:
    whether it holds sums."""

    psum: object
    blocks: tuple
    products: list
    started: bool
    #: the first products, which write where no other has
    fresh: int = 0


class Core:
    """State that all output tiles of a core share; adder: ShiftAndAdd, or None; statistics: OutputStatistics, or
    None."""

    adder: Any = None

    def __init__(self, operands, geometry, options, schedule, steps, ledger, statistics):
        self.operands, self.geometry, self.options, self.schedule = operands, geometry, options, schedule
        self.steps, self.ledger, self.statistics = steps, ledger, statistics
        given, stacked = (operands, geometry, schedule, steps, ledger), schedule.stack
        self.inputs = Inputs(*given) if stacked is None else StackedInputs(*given)
        self.residents = Residents(*given) if stacked is None else StackedResidents(*given)
        kind = PixelResults if schedule.gathers and stores_channels(geometry) else Results
        self.results = (kind if schedule.pack is None else PackedResults)(operands, geometry, schedule, ledger)
        self.zeros_sbuf = self.residents.start(self.inputs)
        # columns of a warm-up matmul, in 128s
        blocks, late = 4 if stacked is not None and stacked.diagonal else 1, schedule.late_warmup
        self.warm = warm_up(self.zeros_sbuf, schedule.warmup - late, blocks)
        self.residents.make_first()
        self.warm += warm_up(self.zeros_sbuf, late, blocks)
        if schedule.shift is not None:
            self.adder = ShiftAndAdd(schedule, steps, options.epilogue, ledger)

    def work_tile(self, tile, lanes, x, together, index):
        """Compute an M tile's results for the output tile of a step, `together` banks at a time."""
        last = index + 1 == len(self.steps)  # no work hides the stores
        schedule, results = self.schedule, self.results
        tile = [one for one in tile if one.lane < len(lanes)]
        results.start(tile, lanes)
        biases = [self.residents.biases.of(one) for one in tile]
        banks = list(banks_of(schedule, lanes, tile[0].k0))
        for first, n in cut_at(len(banks), together):
            # two banks before the Tensor Engine needs them, so that evacuation waits for no loads of later rows
            self.inputs.copy_held(index + (2 if len(banks) == 1 else 1 if first + 2 >= len(banks) else 0))
            some = banks[first : first + n]
            every = [[self.new_sums(one, lanes, bank) for one in tile] for bank in some]
            for k_tile in range(len(x)):
                for bank, sums in zip(some, every, strict=True):
                    self.add_products(tile, bank.sweep, x, sums, k_tile)
            for bank, sums in zip(some, every, strict=True):
                for place, one in enumerate(sums):
                    if one != None:
                        self.evacuate_bank(tile, place, lanes, bank, one, biases[place])
                if bank.done:
                    results.finish(tile, lanes, bank.blocks, last)
        if schedule.gathers and not last:
            results.store(tile, lanes, [(0, max(lane[axis].bn for lane in lanes)) for axis in range(3)])

    def new_sums(self, row_tile, lanes, bank):
        """New Sums of a row tile for a bank, None if its lane has no such blocks; they begin with a product of zeros if
        no product is valid at all blocks."""
        schedule, lane = self.schedule, lanes[row_tile.lane]
        sweep = schedule.sweeps[bank.sweep]
        blocks = blocks_in(sweep, lane, bank.blocks)
        if size_of(blocks) == 0:
            return None
        counts = [count for _, count in blocks]
        psum, started = accumulator(self.warm, (schedule.width(row_tile.kn), *counts))
        operands = schedule.operands_of(bank.sweep, lane)
        (_, _, found), *others = [(own, seen, products_met(own, seen, blocks)) for own, seen in operands]
        found, fresh = covering_first(found, *counts), 0
        # later K tiles would issue the cut products too
        if schedule.shift != None and schedule.shift.groups > 1 and len(schedule.k_tiles) == 1:
            found, fresh = fresh_first(found, blocks, schedule.shift.groups)
        if not started and fresh == 0 and (len(found) == 0 or not is_whole(found[0], *counts)):
            zero_sums(psum, self.zeros_sbuf)
            started = True
        every = [(sweep, lane, found), *others] * len(schedule.k_tiles)
        return Sums(psum, blocks, every, started, 0 if started else fresh)

    def add_products(self, tile, sweep, x, every, k_tile):
        """Add the products of a K tile of a step to the sums of each row tile of a bank; the row tiles work in
        parallel."""
        schedule = self.schedule
        met = (sums.products[k_tile][2] if sums != None else () for sums in every)
        for which, products in enumerate(itertools.zip_longest(*met)):
            for row_tile, sums, product in zip(tile, every, products, strict=True):
                if product == None:
                    continue
                own, lane, _ = sums.products[k_tile]
                place, x_sbuf = own.products[product.group], of_array(x[k_tile], self.operands)
                stationary = self.residents.filters.stationary(tile, k_tile, sweep, row_tile, place)
                parts = (row_tile.first, stationary.shape[0])
                dst = sums_met(sums.psum, product, [first for first, _ in sums.blocks])
                moving = elements_met(x_sbuf, parts, product, [part.x0 for part in lane])
                adds = sums.started and which >= sums.fresh
                side = row_tile.first // schedule.rows, nl.tile_size.pmax // schedule.rows
                multiply(dst, of_array(stationary, self.operands), moving, adds, side)
                sums.started = True

    def evacuate_bank(self, tile, index, lanes, bank, sums, bias_sbuf):
        """Evacuate an accumulator to its places in the results: one packed output after the other, or the rows of a
        block together if they are gathered."""
        schedule, results, row_tile = self.schedule, self.results, tile[index]
        sweep, lane = schedule.sweeps[bank.sweep], lanes[row_tile.lane]
        place = row_tile, lane, sweep, sums.blocks
        if schedule.shift != None:
            self.shift_out(place, index, sums.psum, bias_sbuf)
            return
        rows = schedule.together_rows
        size = rows * schedule.slot if schedule.gathers else schedule.segments * row_tile.kn
        y_sbuf, base, own = results.place(index, row_tile)
        for first in range(0, len(sweep.outputs), rows):
            fz, fp, fq = sweep.outputs[first]
            (z, p, q), (yz, yp, yq) = output_in(lane, sums.blocks, (fz, own if schedule.gathers else fp, fq))
            if z[1] * p[1] * q[1] > 0:
                acc = spaced(sums.psum, (first * schedule.slot, size), z, p, q)
                residual = results.residuals[index]
                if residual != None:
                    there = (p[0] + sums.blocks[1][0] - lane[1].b0, p[1], p[2]) if schedule.gathers else yp
                    residual = spaced(residual, (0, size), yz, there, yq)
                y, count = spaced(y_sbuf, (base, size), yz, yp, yq), counter(self, place, first, (z[0], p[0], q[0]))
                evacuate_counted(y, acc, bias_sbuf, residual, self.options, self.ledger, count)

    def shift_out(self, place, index, acc_psum, bias_sbuf):
        """Shift and add the sums of several columns of taps, and evacuate them to their places in the results."""
        row_tile, lane, sweep, blocks = place
        y_sbuf, base, _ = self.results.place(index, row_tile)
        (z, m, _), (yz, _, _) = output_in(lane, blocks, sweep.outputs[0])
        column = next(one for one in lane[2].tiles if one[2] == blocks[2][0])
        rows, columns = (blocks[1][0] - lane[1].b0, m[1]), column[:2]
        acc_psum = acc_psum[:, z[0] : z[0] + z[1], 0 : m[1]]
        residual = self.results.residuals[index]
        if residual != None:
            residual = spaced(residual, (0, row_tile.kn), yz, rows, columns)
        y, alone = spaced(y_sbuf, (base, row_tile.kn), yz, rows, columns), None
        if self.statistics is not None:
            alone = self.adder.alone(acc_psum, column, (row_tile.kn, z[1], m[1]))

        def adds(into):
            self.adder.add(into, acc_psum, column, bias_sbuf, residual)

        count = counter(self, place)
        evacuate_counted(y, alone, bias_sbuf, residual, self.options, self.ledger, count, adds)


def run_weight_stationary(operands, geometry, options, schedule):
    """Compute this core's share of the output tiles."""
    if schedule.shift != None:
        geometry = with_windows(geometry, schedule.shift.Z)
    steps, ledger = schedule.steps(nl.program_id(0), nl.num_programs()), new_ledger()
    statistics = new_output_statistics(operands, geometry, schedule, steps, ledger)
    if len(steps) == 0:
        return
    core = Core(operands, geometry, options, schedule, steps, ledger, statistics)
    for index, (b, i) in enumerate(steps):
        core.residents.load_before(index + schedule.buffers)
        core.inputs.load((index + schedule.buffers) * len(schedule.k_tiles))  # meanwhile x of the next ones
        x, resident = core.inputs.take(index), schedule.residents[b]
        for place, tile in enumerate(resident.tiles):
            core.residents.make_until(index, place)
            core.work_tile(tile, resident.items[i], x, schedule.together if index + place == 0 else 1, index)
    core.results.end()
    if statistics is not None:
        statistics.store_moved()


def products_met(sweep, lane, blocks):
    """Products of a sweep that meet x at blocks of a lane, by index."""
    found = []
    for index, place in enumerate(sweep.products):
        planes, rows, columns = (lane[axis].valid_range(place.e[axis], blocks[axis]) for axis in range(3))
        if planes[2] * rows[2] * columns[2] > 0:
            found.append(Product(planes=planes, rows=rows, columns=columns, group=index))
    return found


def fresh_first(products, blocks, groups):
    """(Products, number of the first ones that write where no other has): first the groups of columns of taps of a row
    of x that is valid at all blocks, each cut at the columns that those before it wrote, then the others; (products, 0)
    without such a row."""
    (_, zn), (_, mn), (low, count) = blocks
    for first in range(len(products) - groups + 1):
        some, new, again, end = products[first : first + groups], [], [], low + count
        met = {(one.planes, one.rows) for one in some}
        if len(met) > 1 or (some[0].planes[2], some[0].rows[2]) != (zn, mn):
            continue
        for product in some:
            begin, _, width, element, _ = product.columns
            fresh = min(width, end - begin)
            if begin + width < end or fresh <= 0:
                break
            new.append(replace(product, columns=(begin, 1, fresh, element, 1)))
            if fresh < width:
                again.append(replace(product, columns=(begin + fresh, 1, width - fresh, element + fresh, 1)))
            end = begin
        if end == low and len(new) == len(some):
            return new + again + products[:first] + products[first + groups :], len(new)
    return products, 0
