"""Statistics of y with several outputs of a block on the partitions: (u, k).

With M packing and K packing u is a row of y; with groups and transposed convolutions it is an output of a block, one
slot of partitions after the other: bn_stats reads all in PSUM at once.
"""

import itertools
from dataclasses import dataclass

from ...._nki import nl
from ....schedules.block_schedule import banks_of, blocks_in, counted_outputs, output_in, size_of
from ....schedules.options import adds_bias_alone
from ....schedules.tiles import div_ceil
from ..._epilogue import round_out, unrounded
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


def before_rounding(work, y_sbuf, alone):
    """The tile that a bank is evacuated into; alone: whether no other sums are added to the bank's."""
    if work.statistics is None or (alone and adds_bias_alone(work.options.epilogue)):
        return y_sbuf
    return unrounded(y_sbuf)


def leave(work, y_sbuf, sums_sbuf, acc, bias_sbuf, place):
    """Take statistics of a bank evacuated into `before_rounding`'s tile, and round it to y.

    acc: its sums in PSUM, None if others are added to them. place: its row tile, lane, sweep and blocks.
    """
    if work.statistics is None:
        return
    if work.schedule.pack is not None:
        add_rows(work, sums_sbuf, acc, bias_sbuf, place)
    round_out(y_sbuf, sums_sbuf, work.ledger)


def add_rows(work, sums_sbuf, acc, bias_sbuf, place):
    """Take statistics of rows of y; the arguments of `leave`."""
    row_tile, lane, sweep, blocks = place
    sweep, counted, bias = work.schedule.sweeps[sweep], sums_sbuf, None
    if acc is not None and adds_bias_alone(work.options.epilogue):
        counted, bias = acc, bias_sbuf
    whole, last = rows_of_bank(work.schedule, sweep, blocks[1], work.rows_out)
    if whole + last > 0:
        parts, planes, _, columns = counted.shape
        counted = counted[0:parts, 0:planes, 0 : whole + min(1, last), 0:columns]
        first, _ = planes_of_bank(sweep, lane, blocks)
        work.statistics.add(columns_of(work.schedule, row_tile), counted, first, whole, bias, last)


def add_outputs(work, data, bias, place, first, together, offsets=(0, 0, 0)):
    """Take statistics of `together` outputs of a block, from `first` on.

    data: [(output, k), planes, rows, columns] of blocks of their bank, without its first `offsets` planes, rows and
    columns. place: as in `leave`.
    """
    row_tile, lane, sweep, blocks = place
    slot = work.schedule.slot
    for one in counted_outputs(work.schedule.sweeps[sweep], lane, blocks, together):
        if first <= one.first < first + together:
            at = (one.first - first) * slot
            parts = slice(at, min(at + one.outputs * slot, data.shape[0]))
            where = [slice(at - off, at - off + n) for (at, n), off in zip(one.blocks, offsets, strict=True)]
            columns = Columns(row_tile.k0, row_tile.kn, one.outputs)
            work.statistics.add(columns, data[parts, where[0], where[1], where[2]], one.plane, one.blocks[1][1], bias)
