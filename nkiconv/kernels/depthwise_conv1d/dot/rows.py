"""Rows of x and w for `dot`: loads ahead, with zeros outside x and w, and transposed slots."""

from dataclasses import dataclass, field

from ...._nki import nisa, nl
from ....schedules.channels import full_rows
from ....schedules.depthwise import Options, RowGeometry
from ....schedules.dot import BUFFERS, DotSchedule, needs_filter, x_slots
from ....schedules.tiles import BANK_BYTES, cut, some_of
from ..._engines import itemsize_of
from ..._prologue import finish_gates
from ..free_channels import move_block
from ..tensors import RowTensors


@dataclass
class DotRun:
    """A core's units, and their rows in flight: x_tiles, w_tiles: SBUF [128, length] in rotation, for rows of x with
    those of its factor, and for rows of w; loaded: (x, w, pending products of x) of each loaded unit, None once its
    rows are transposed; w is None if its filter is kept; filters: transposed, by chunk."""

    tensors: RowTensors
    geometry: RowGeometry
    options: Options
    plan: DotSchedule
    units: list
    x_tiles: list = field(default_factory=list)
    w_tiles: list = field(default_factory=list)
    loaded: list = field(default_factory=list)
    filters: dict = field(default_factory=dict)


def start_dot(tensors, geometry, options, plan, units):
    """A DotRun with the loads of its first units, for all buffers but one."""
    run, P_MAX = DotRun(tensors, geometry, options, plan, units), nl.tile_size.pmax
    for _ in range(min(BUFFERS, len(units))):
        shape = P_MAX, plan.x_length
        run.x_tiles.append([nl.ndarray(shape, dtype=one.dtype, buffer=nl.sbuf) for one in tensors.sources])
        run.w_tiles.append(nl.ndarray((P_MAX, plan.w_length), dtype=tensors.w.dtype, buffer=nl.sbuf))
    for _ in range(len(run.x_tiles) - 1):
        load_ahead(run)
    return run


def load_ahead(run):
    """Load the rows of the next unit, if there is one: its filter's taps, then their window of x and of the state."""
    index, geometry, plan, tensors = len(run.loaded), run.geometry, run.plan, run.tensors
    if index == len(run.units):
        return
    unit, buffer, w_sbuf = run.units[index], index % len(run.x_tiles), None
    # the first tap of a chunk, counted by phases
    tap = unit.chunk * plan.slots * nl.tile_size.pmax
    if needs_filter(plan, run.units, index):
        w_sbuf = run.w_tiles[buffer]
        load_lines(plan, unit, w_sbuf, [tensors.w], tap * plan.tap_phases, plan.w_length)
    start = geometry.stride * plan.spread * tap - geometry.pad_left
    end = (geometry.Q - 1) * geometry.stride + (geometry.S - 1) * geometry.dilation + 1 - geometry.pad_left
    for source, x_sbuf in zip(tensors.sources, run.x_tiles[buffer]):
        parts = [tensors.state, source] if source is tensors.x and tensors.state is not None else [source]
        load_lines(plan, unit, x_sbuf, parts, start, min(plan.x_length, end - start))
    rows = unit.groups * plan.channels
    gates = tensors.gates([x_sbuf[0:rows, 0 : plan.x_length] for x_sbuf in run.x_tiles[buffer]])
    run.loaded.append((run.x_tiles[buffer][0], w_sbuf, gates))


def load_lines(plan, unit, tile_sbuf, parts, start, length):
    """Load elements start .. start+length-1 of a unit's rows from the tensors `parts`; zeros, or a factor's value
    `outside`, outside them."""
    (lines, columns), outside = tile_sbuf.shape, parts[-1].outside
    spans = [(max(0, rows.low - start), min(length, rows.high - start)) for rows in parts]
    spans = [(first, max(first, end)) for first, end in spans]
    held = [span for span in spans if span[0] < span[1]] or [(0, 0)]
    if full_rows(unit.block)[0] < plan.channels:
        nisa.memset(dst=tile_sbuf, value=outside, engine=nisa.engine.gpsimd)
    else:
        for low, high in ((0, held[0][0]), (held[-1][1], columns)):
            if low < high:
                nisa.memset(dst=tile_sbuf[0:lines, low:high], value=outside, engine=nisa.engine.gpsimd)
    for rows, (first, end) in zip(parts, spans):
        if first < end:
            some = unit.r0, unit.groups
            move_block(tile_sbuf[0:lines, first:end], rows, unit.block, some, (unit.n, start + first))


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
    if w_rows is not None:
        run.filters[unit.chunk] = slot_moves(moves, plan, unit, w_rows, phases, plan.slots, plan.tap_phases)
    x_sbuf = slot_moves(moves, plan, unit, x_rows, x_firsts, x_slots(plan), stride * plan.spread)
    return x_sbuf, run.filters[unit.chunk]


def sum_taps(run, unit, w_rows, parts_sbuf):
    """Sums of a unit's taps, a half by Vector and a half by Scalar, into columns of parts_sbuf, newly allocated for a
    tile's first chunk; stored after its last chunk. Returns parts_sbuf."""
    plan, rows = run.plan, unit.groups * run.plan.channels
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
        some = unit.r0, unit.groups
        move_block(sums_sbuf, run.tensors.sums, unit.block, some, (unit.n, 0), is_store=True)
    return parts_sbuf


@dataclass
class Move:
    """Slots transposed in one PSUM bank: slots first .. of slots_sbuf [128, slots, rows] from rows_sbuf [rows, ...].

    Entry p of a slot is element start + p * step.
    """

    slots_sbuf: object
    rows_sbuf: object
    first: int
    starts: list
    step: int


def slot_moves(moves, plan, unit, rows_sbuf, firsts, count, step):
    """A tile for transposed slots, [128, slots, rows]; appends the Moves that fill it to `moves`.

    Each phase has `count` slots, the first from its element of `firsts` on, the others `step` elements apart.
    """
    starts, rows = [first + step * t for first in firsts for t in range(count)], unit.groups * plan.channels
    slots_sbuf = nl.ndarray((nl.tile_size.pmax, len(starts), rows), dtype=rows_sbuf.dtype, buffer=nl.sbuf)
    for part in cut(len(starts), BANK_BYTES // (rows * itemsize_of(rows_sbuf.dtype))):
        moves.append(Move(slots_sbuf, rows_sbuf, part[0], some_of(starts, part), step * plan.slots))
    return slots_sbuf


def move_slots(move):
    """Tensor transposes the slots of a Move, Scalar copies them to SBUF; 16-bit elements in pairs, as fp32."""
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
