"""Rows of x and w for `dot`: loads ahead with zeros where there is no element, and transposed slots."""

from dataclasses import dataclass, field

from ...._nki import nisa, nl
from ....schedules.channels import full_rows, row_runs
from ....schedules.dot import BUFFERS, needs_filter, x_slots
from ....schedules.tiles import BANK_BYTES, cut, filled, some_of
from ..._dma import copy, load
from ..._prologue import finish_gates, load_rows, outside_of
from ..geometry import gates_due, sources_of


@dataclass
class DotRun:
    """What a core works on, and rows of its units on their way: x_tiles, w_tiles: SBUF [128, length] for rows of x,
    with those of its factor, and of w in flight, used in rotation; loaded: (x, w, products that x waits for) of each
    unit that was loaded and is not yet at work, w None where its filter is kept; filters: transposed, by chunk."""

    operands: object
    geometry: object
    options: object
    plan: object
    units: list
    x_tiles: list
    w_tiles: list
    filters: list
    loaded: list = field(default_factory=list)


def start_dot(operands, geometry, options, plan, units):
    """A DotRun, and loads of the first units, all but the last of those in flight."""
    x_tiles, w_tiles, P_MAX = [], [], nl.tile_size.pmax
    for _ in range(min(BUFFERS, len(units))):
        x_shape = P_MAX, plan.x_length
        x_tiles.append([nl.ndarray(x_shape, dtype=one.dtype, buffer=nl.sbuf) for one in sources_of(operands)])
        w_tiles.append(nl.ndarray((P_MAX, plan.w_length), dtype=operands.w.dtype, buffer=nl.sbuf))
    run = DotRun(operands, geometry, options, plan, units, x_tiles, w_tiles, filled(plan.chunks, None))
    for _ in range(len(x_tiles) - 1):
        load_ahead(run)
    return run


def load_ahead(run):
    """Load the rows of the next unit, if there is one: its filter's taps, then what they meet of x."""
    index = len(run.loaded)
    if index < len(run.units):
        turn, w_sbuf, plan, unit = index % len(run.x_tiles), None, run.plan, run.units[index]
        tiles = run.x_tiles[turn]
        if needs_filter(plan, run.units, index):
            w_sbuf = run.w_tiles[turn]
            load_dot_taps(run, unit, w_sbuf)
        for source, x_sbuf in zip(sources_of(run.operands), tiles):
            load_dot_x(run, unit, x_sbuf, source)
        rows = unit.groups * plan.channels
        loaded = [x_sbuf[0:rows, 0 : plan.x_length] for x_sbuf in tiles]
        run.loaded.append((tiles[0], w_sbuf, gates_due(run.geometry, loaded)))


def load_dot_taps(run, unit, w_sbuf):
    """A unit's taps of w."""
    geometry, plan, block = run.geometry, run.plan, unit.block
    first = unit.chunk * plan.slots * nl.tile_size.pmax * plan.tap_phases
    taps = min(plan.w_length, geometry.S - first)
    clear_dot_rows(plan, block, w_sbuf, 0, taps, 0.0)
    offset = block.c0 * geometry.w_c + first * geometry.w_s
    load_dot_rows(w_sbuf, run.operands.w, unit, (geometry.w_c, geometry.w_s, offset), 0, taps, load)


def load_dot_x(run, unit, x_sbuf, source):
    """What a unit's taps meet of x and of the initial state, or of x's factor."""
    geometry, plan, operands, block = run.geometry, run.plan, run.operands, unit.block
    # in the padded row, 0 being its first element
    start = geometry.stride * plan.spread * unit.chunk * plan.slots * nl.tile_size.pmax
    used = (geometry.Q - 1) * geometry.stride + (geometry.S - 1) * geometry.dilation + 1
    length = min(plan.x_length, used - start)
    from_x = min(length, max(0, geometry.pad_left - start))
    end = max(from_x, min(length, geometry.W + geometry.pad_left - start))
    first = 0 if run.options.state and source is operands.x else from_x
    clear_dot_rows(plan, block, x_sbuf, first, end, outside_of(source))
    if first < from_x:
        offset = (unit.n * geometry.C + block.c0) * geometry.pad_left + start
        load_dot_rows(x_sbuf, operands.state, unit, (geometry.pad_left, 1, offset), 0, from_x, load_rows)
    if end > from_x:
        position = start + from_x - geometry.pad_left
        offset = unit.n * geometry.x_n + block.c0 * geometry.x_c + position * geometry.x_w
        load_dot_rows(x_sbuf, source, unit, (geometry.x_c, geometry.x_w, offset), from_x, end, load_rows)


def clear_dot_rows(plan, block, rows_sbuf, first, end, outside):
    """Zeros, or what a factor has for them, where no element first .. end-1 of a channel will be."""
    rows, length = rows_sbuf.shape
    if full_rows(block)[0] < plan.channels:
        nisa.memset(dst=rows_sbuf, value=outside, engine=nisa.engine.gpsimd)
    else:
        for low, high in ((0, first), (end, length)):
            if low < high:
                nisa.memset(dst=rows_sbuf[0:rows, low:high], value=outside, engine=nisa.engine.gpsimd)


def load_dot_rows(rows_sbuf, src_hbm, unit, places, first, end, move):
    """Elements first .. end-1 of a unit's rows: channel p * length + r0 + g of a block is on partition p * groups + g.

    places: HBM elements between channels and between elements, and the one of the block's first channel that goes to
    `first`; move: `load_rows` of x, `load` of w.
    """
    c_step, step, offset = places
    block = unit.block
    for row, rows, channels in row_runs(block, unit.r0, unit.groups):
        at = row * unit.groups
        pattern = [[block.length * c_step, rows], [c_step, channels], [step, end - first]]
        start = offset + (unit.r0 + row * block.length) * c_step
        move(rows_sbuf[at : at + rows * channels, first:end], src_hbm, pattern, start)


def next_rows(run, index, moves):
    """Tiles for unit `index`'s transposed slots, (x, w), and the Moves that fill them.

    Slot t of tap phase r of w is number r * slots + t; slot t of column phase m and tap phase r of x is number
    (m * R + r) * x_slots + t.
    """
    plan, stride, dilation = run.plan, run.geometry.stride, run.geometry.dilation
    unit = run.units[index]
    x_rows, w_rows, gates = run.loaded[index]
    finish_gates(gates, None)
    run.loaded[index] = None
    phases = range(plan.tap_phases)
    x_firsts = [stride * m + dilation * r for m in range(plan.column_phases) for r in phases]
    if w_rows != None:
        run.filters[unit.chunk] = slot_moves(moves, plan, unit, w_rows, phases, plan.slots, plan.tap_phases)
    x_sbuf = slot_moves(moves, plan, unit, x_rows, x_firsts, x_slots(plan), stride * plan.spread)
    return x_sbuf, run.filters[unit.chunk]


def sum_taps(run, unit, w_rows, parts_sbuf):
    """Sums of a unit's taps, which Vector and Scalar share, into columns of parts_sbuf, new for a tile's first chunk;
    after its last they leave for operands.sums. Returns parts_sbuf."""
    plan, block, rows = run.plan, unit.block, unit.groups * run.plan.channels
    if unit.chunk == 0:
        parts_sbuf = nl.ndarray((nl.tile_size.pmax, 2 * plan.chunks), dtype=nl.float32, buffer=nl.sbuf)
    column, half = 2 * unit.chunk, plan.w_length // 2
    nisa.tensor_reduce(dst=parts_sbuf[0:rows, column : column + 1], op=nl.add, data=w_rows[0:rows, 0:half], axis=1)
    same_sbuf = nl.ndarray((rows, plan.w_length - half), dtype=w_rows.dtype, buffer=nl.sbuf)
    nisa.activation_reduce(
        dst=same_sbuf,
        op=nl.copy,
        data=w_rows[0:rows, half : plan.w_length],
        reduce_op=nl.add,
        reduce_res=parts_sbuf[0:rows, column + 1 : column + 2],
    )
    if unit.chunk == plan.chunks - 1:
        sums_sbuf = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=sums_sbuf[0:rows, 0:1], op=nl.add, data=parts_sbuf[0:rows, 0 : column + 2], axis=1)
        for row, count, channels in row_runs(block, unit.r0, unit.groups):
            pattern, at = [[block.length, count], [1, channels], [1, 1]], row * unit.groups
            offset = block.c0 + unit.r0 + row * block.length
            copy(run.operands.sums.ap(pattern=pattern, offset=offset), sums_sbuf[at : at + count * channels, 0:1])
    return parts_sbuf


@dataclass
class Move:
    """Slots that go through a PSUM bank: slots first .. of slots_sbuf [128, slots, rows] from rows_sbuf [rows, ...].

    Entry p of a slot is element start + p * step.
    """

    slots_sbuf: object
    rows_sbuf: object
    first: int
    starts: list
    step: int


def slot_moves(moves, plan, unit, rows_sbuf, firsts, count, step):
    """A tile for transposed slots, [128, slots, rows], and the Moves that fill it appended.

    `count` slots of each phase, whose first begins at one of `firsts`, the others `step` elements apart.
    """
    starts, rows = [first + step * t for first in firsts for t in range(count)], unit.groups * plan.channels
    slots_sbuf = nl.ndarray((nl.tile_size.pmax, len(starts), rows), dtype=rows_sbuf.dtype, buffer=nl.sbuf)
    itemsize = 4 if rows_sbuf.dtype == nl.float32 else 2
    for part in cut(len(starts), BANK_BYTES // (rows * itemsize)):
        moves.append(Move(slots_sbuf, rows_sbuf, part[0], some_of(starts, part), step * plan.slots))
    return slots_sbuf


def move_slots(move):
    """Transpose the slots of a Move on the array, and Scalar copies them to SBUF; 16-bit ones in pairs, as fp32."""
    depth, rows, count = move.slots_sbuf.shape[0], move.slots_sbuf.shape[2], len(move.starts)
    slots_psum = nl.ndarray((depth, count, rows), dtype=move.slots_sbuf.dtype, buffer=nl.psum)
    for index, start in enumerate(move.starts):
        nisa.nc_transpose(
            dst=slots_psum[0:depth, index, 0:rows],
            data=move.rows_sbuf[0:rows, start : start + (depth - 1) * move.step + 1 : move.step],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(
        dst=move.slots_sbuf[0:depth, move.first : move.first + count, 0:rows].view(nl.float32),
        src=slots_psum.view(nl.float32),
        engine=nisa.engine.scalar,
    )


def multiply_slots(dst_psum, x_sbuf, w_sbuf, plan, unit, g, phase, lag_block):
    """dst [(slot, channel), window, channels of x]: products of group g over all blocks of slots."""
    P_MAX, columns, matmuls = nl.tile_size.pmax, plan.channels * unit.groups, 0
    for r in range(plan.tap_phases):
        x0 = (phase * plan.tap_phases + r) * x_slots(plan) + lag_block * plan.lags
        for t0 in range(0, plan.slots, plan.taps):
            tn = min(plan.taps, plan.slots - t0)
            xn, w0 = tn + plan.lags - 1, r * plan.slots + t0
            nisa.nc_matmul(
                dst=dst_psum[0 : tn * plan.channels, 0:xn, 0 : plan.channels],
                stationary=w_sbuf[0:P_MAX, w0 : w0 + tn, g : columns : unit.groups],
                moving=x_sbuf[0:P_MAX, x0 + t0 : x0 + t0 + xn, g : columns : unit.groups],
                accumulate=matmuls > 0,
            )
            matmuls += 1
