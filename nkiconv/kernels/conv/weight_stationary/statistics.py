"""Statistics of y with several outputs of a block on the partitions: (u, k).

With M packing and K packing u is a row of y; with groups and transposed convolutions it is an output of a block, one
slot of partitions after the other: bn_stats reads all in PSUM at once.
"""

import itertools
from dataclasses import dataclass
from functools import partial

from ...._nki import nl
from ....schedules.block_schedule import banks_of, blocks_in, counted_outputs, output_in, size_of
from ....schedules.options import adds_bias_alone
from ....schedules.tiles import div_ceil
from ..._statistics import OutputStatistics


@dataclass
class Columns(nl.NKIObject):
    """Output channels k0 .. k0+kn-1 of an M tile, for each of `rows` rows of y, or outputs of a block."""

    k0: int
    kn: int
    rows: int


def new_output_statistics(operands, geometry, options, schedule, steps, ledger):
    """Statistics of the y of some steps, or None if they are not asked for."""
    if operands.stats is None:
        return None
    tiles, visits = [tile for one in schedule.residents for tile in one.tiles], []
    slot = schedule.slot if schedule.pack is None else None
    for tile, lanes in schedule.m_tiles_of(steps):
        for bank, row_tile in itertools.product(banks_of(schedule, lanes, tile[0].k0), tile):
            sweep, lane = schedule.sweeps[bank.sweep], lanes[row_tile.lane]
            blocks = blocks_in(sweep, lane, bank.blocks)
            if slot is not None:
                for one in counted_outputs(sweep, lane, blocks, outputs_together(schedule, sweep, options)):
                    visits.append((columns_of(schedule, row_tile), one.plane, one.blocks[0][1]))
            elif size_of(blocks) > 0 and any(rows_of_bank(schedule, sweep, blocks[1], geometry.rows.out)):
                visits.append((columns_of(schedule, row_tile), *planes_of_bank(sweep, lane, blocks)))
    columns = {one.k0: columns_of(schedule, one) for tile in tiles for one in tile}
    return OutputStatistics(operands.stats, operands.image_planes, ledger, columns.values(), visits, slot)


def outputs_together(schedule, sweep, options):
    """Outputs of a block in one statistics call: all in PSUM, else those that are evacuated together."""
    return len(sweep.outputs) if adds_bias_alone(options.epilogue) else schedule.together_rows


def columns_of(schedule, row_tile):
    """Columns of a row tile; for outputs of a block, of one of them."""
    rows = 1 if schedule.pack is None else schedule.pack.U
    return Columns(row_tile.k0, row_tile.kn // rows, rows)


def planes_of_bank(sweep, lane, blocks):
    """(first, count) planes of y of some blocks in a sweep; planes with gaps between them, which are of one image,
    count as neighbours."""
    _, ((first, count, _), _, _) = output_in(lane, blocks, sweep.outputs[0])
    return lane[0].image * lane[0].axis.out + lane[0].y0 + first, count


def rows_of_bank(schedule, sweep, blocks, out):
    """(number of blocks of rows whose rows are all in y, of `out` rows; rows of the next block in y)."""
    U, V = schedule.pack.U, schedule.pack.V
    v = sweep.outputs[0][1]
    first, count = blocks
    whole = min(count, max(0, (out - v - (U - 1) * V - 1) // (U * V) + 1 - first))
    rest = max(0, div_ceil(out - v - (first + whole) * U * V, V))
    return whole, rest if whole < count else 0


def counter(core, place, first=0, offsets=(0, 0, 0)):
    """What takes statistics of sums, (values, bias that they lack), at their evacuation; None if nothing does.

    place: their row tile, lane, sweep and blocks. Of outputs of a block, those evacuated together, from `first` on, and
    without the bank's first `offsets` planes, rows and columns.
    """
    if core.statistics is None:
        return None
    if core.schedule.pack is not None:
        return partial(add_rows, core, place)
    if adds_bias_alone(core.options.epilogue):
        return None
    return partial(add_outputs, core, place, first, core.schedule.together_rows, offsets)


def count_outputs(core, place, acc_psum, bias_sbuf):
    """Take statistics of all outputs of a block from PSUM, if they lack nothing but a bias."""
    if core.statistics is not None and core.schedule.pack is None and adds_bias_alone(core.options.epilogue):
        bias = None if bias_sbuf is None else bias_sbuf[0 : place[0].kn]
        add_outputs(core, place, 0, len(place[2].outputs), (0, 0, 0), acc_psum, bias)


def add_rows(core, place, values, bias):
    """Take statistics of rows of y."""
    row_tile, lane, sweep, blocks = place
    whole, last = rows_of_bank(core.schedule, sweep, blocks[1], core.geometry.rows.out)
    if whole + last > 0:
        first, _ = planes_of_bank(sweep, lane, blocks)
        counted = values[:, :, 0 : whole + min(1, last)]
        core.statistics.add(columns_of(core.schedule, row_tile), counted, first, whole, bias, last)


def add_outputs(core, place, first, together, offsets, values, bias):
    """Take statistics of `together` outputs of a block, from `first` on: values [(output, k), planes, rows, columns] of
    blocks of their bank."""
    (row_tile, lane, sweep, blocks), slot = place, core.schedule.slot
    for one in counted_outputs(sweep, lane, blocks, together):
        if first <= one.first < first + together:
            at = (one.first - first) * slot
            parts = slice(at, min(at + one.outputs * slot, values.shape[0]))
            where = [slice(at - off, at - off + n) for (at, n), off in zip(one.blocks, offsets, strict=True)]
            columns = Columns(row_tile.k0, row_tile.kn, one.outputs)
            core.statistics.add(columns, values[(parts, *where)], one.plane, one.blocks[1][1], bias)
