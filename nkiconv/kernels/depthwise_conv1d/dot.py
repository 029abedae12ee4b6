"""Depthwise conv1d with long filters and few columns: dot products of whole rows on the Tensor Engine.

    y[c, q] = sum over s of w[c, s] * x[c, s + q]              (stride and dilation: schedules/dot.py)

The taps of a row are spread over partitions and slots, s = n p + t: slot t is x[:, t::n], which the Tensor Engine
transposes from [channels, 128] to [128, channels], and the same for w. A lag q is then a shift of t by q along the free
dim. One matmul has 8 slots of 16 channels of w as the stationary operand and the 8 + Q - 1 slots of these channels of x
in their window as the moving one: the contraction over p gives [(8 t, 16 c), (8 + Q - 1 t', 16 c')], whose elements
with c = c' and t' - t = q are products of y. It accumulates over all blocks of 8 slots; then

    keep c = c' (mask) and sum over c'      [(t, c), t']       Vector, evacuation of PSUM
    keep t' - t = q (mask) and sum over t'  [(t, c), q]        GpSimd, Vector
    sum over t                              [c, q]             one small fp32 matmul

Engine plan: DMA loads rows of x and w, each once from HBM, 128 channels a tile; Tensor transposes tile i + 1 around
the matmuls of tile i; Scalar copies transposed slots to SBUF, pairs of 16-bit elements as one fp32 element, which
copies bits; the masks and sums of tiles i - 1 and i - 2 follow later, so that no engine waits for another. Channel
c0 + p * L + r is row p of the results, which are stored in long runs. Bound by Tensor, then DMA: per 128 channels and
tap of bf16 with Q = 4, the transposes take 0.91 ns and the matmuls 0.59, HBM 1.43. The time of Vector's masks grows
with Q.

Zeros are multiplied: a NaN or Inf reaches every column of the channels that share a matmul with it.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..._nki import nisa, nl
from ...schedules.channels import row_runs
from ...schedules.depthwise import Options, RowGeometry
from ...schedules.dot import BUFFERS, DotSchedule, steps_of, tiles, window_of, x_slots
from ...schedules.tiles import BANK_BYTES, BANK_COLUMNS, cut, cut_at, some_of
from .._dma import Feed
from .._engines import itemsize_of
from .._epilogue import evacuate
from .._masks import constant, keep_equal
from .._prologue import finish_gates
from .._warm import warm_up, warm_zeros
from ..conv.call import part_of_core
from ..conv.filter_feed import transposed_bank
from ..conv.sums import multiply
from .tensors import RowTensors, move_block, move_free

#: Banks of a tile's transposed slots in flight before the first matmul of the previous tile.
LEAD = 2


def dot(tensors, geometry, options, plan):
    """Write y."""
    every = part_of_core(tiles(geometry, plan))
    units = [replace(tile, chunk=chunk) for tile in every for chunk in range(plan.chunks)]
    if units:
        warm_up(warm_zeros(), plan.warmup, 1)
        run_units(DotRun(tensors, geometry, options, plan), units)


@dataclass
class DotRun:
    """The arguments of all units' functions."""

    tensors: RowTensors
    geometry: RowGeometry
    options: Options
    plan: DotSchedule


@dataclass
class UnitRows:
    """A unit's rows as loaded, [128, length] in SBUF: of x and of its factor; of w; pending products of x."""

    x: list
    w: Any
    gates: list = field(default_factory=list)


def run_units(run, units):
    """Four units in flight: transposes of one before and after the matmuls of the previous one, masks and sums of two
    earlier ones."""
    plan, (same_channel, same_lag) = run.plan, make_masks(run.plan)
    feed = Feed(units, [new_rows(run) for _ in range(min(BUFFERS, len(units)))], partial(load_unit, run))
    feed.until(len(feed.buffers) - 1)
    slots, partials, ready, kept, sums, tap_sums = None, [], [], [], None, None
    for index in range(len(units) + 3):
        coming, now, masked, summed = (
            units[at] if 0 <= at < len(units) else None for at in range(index, index - 4, -1)
        )
        moves, steps, next_slots, before = [], [], None, None
        if coming is not None:
            feed.until(index + len(feed.buffers))
            next_slots = start_slots(run, coming, feed.of(index), moves)
        if now is not None:
            steps, partials = steps_of(plan, now), new_partials(plan, now)
        # the first unit's matmuls precede the second unit's transposes, whose rows are still in flight
        lead = 0 if index == 1 else LEAD
        for move in moves[:lead]:
            move()
        if masked is not None:
            kept = mask_lags(masked.groups, ready, plan, same_lag)
        for step in steps:
            products = multiply_step(slots, plan, same_channel, now, step)
            if before is not None:
                sum_channels(partials, plan, *before)
            before = step, products
        for move in moves[lead:]:
            move()
        if before is not None:
            sum_channels(partials, plan, *before)
        if summed is not None and summed.chunk == plan.chunks - 1:
            leave(run, summed, sums, same_channel)
        if masked is not None:
            sums = sum_lags(sums, masked, kept, plan)
        if coming is not None and run.tensors.sums is not None:
            tap_sums = sum_taps(run, coming, feed.of(index).w, tap_sums)
        ready, slots = partials, next_slots


def new_rows(run):
    """UnitRows, with nothing loaded."""
    (tensors, plan), P_MAX = (run.tensors, run.plan), nl.tile_size.pmax
    x_tiles = [nl.ndarray((P_MAX, plan.x_length), dtype=one.dtype, buffer=nl.sbuf) for one in tensors.sources]
    return UnitRows(x_tiles, nl.ndarray((P_MAX, plan.w_length), dtype=tensors.w.dtype, buffer=nl.sbuf))


def load_unit(run, feed, index):
    """Load a unit's rows: its filter's taps, then their window of x and of the state."""
    geometry, plan, tensors, unit, into = run.geometry, run.plan, run.tensors, feed.tiles[index], feed.of(index)
    # the first tap of a chunk, counted by phases
    tap = unit.chunk * plan.slots * nl.tile_size.pmax
    load_lines(plan, unit, into.w, [tensors.w], tap * plan.tap_phases, plan.w_length)
    start = geometry.stride * plan.spread * tap - geometry.pad_left
    end = (geometry.Q - 1) * geometry.stride + (geometry.S - 1) * geometry.dilation + 1 - geometry.pad_left
    for source, x_sbuf in zip(tensors.sources, into.x):
        parts = [tensors.state, source] if source is tensors.x and tensors.state is not None else [source]
        load_lines(plan, unit, x_sbuf, parts, start, min(plan.x_length, end - start))
    into.gates = tensors.gates([x_sbuf[0 : unit.groups * plan.channels] for x_sbuf in into.x])


def load_lines(plan, unit, tile_sbuf, parts, start, length):
    """Load elements start .. start+length-1 of a unit's rows from the tensors `parts`; zeros, or a factor's value
    `outside`, outside them."""
    (lines, columns), outside = tile_sbuf.shape, parts[-1].outside
    spans = [(max(0, rows.low - start), min(length, rows.high - start)) for rows in parts]
    spans = [(first, max(first, end)) for first, end in spans]
    held = [span for span in spans if span[0] < span[1]] or [(0, 0)]
    if sum(rows * count for _, rows, count in row_runs(unit.block, unit.r0, unit.groups)) < plan.channels * unit.groups:
        nisa.memset(dst=tile_sbuf, value=outside, engine=nisa.engine.gpsimd)
    else:
        for low, high in ((0, held[0][0]), (held[-1][1], columns)):
            if low < high:
                nisa.memset(dst=tile_sbuf[0:lines, low:high], value=outside, engine=nisa.engine.gpsimd)
    for rows, (first, end) in zip(parts, spans):
        if first < end:
            some = unit.r0, unit.groups
            move_block(tile_sbuf[0:lines, first:end], rows, unit.block, some, (unit.n, start + first))


def start_slots(run, unit, rows, moves):
    """Tiles for a unit's transposed slots, (x, w); appends the transposes that fill them to `moves`.

    Slot t of tap phase r of w is number r * slots + t; slot t of column phase m and tap phase r of x is number
    (m * R + r) * x_slots + t.
    """
    plan, stride, dilation, phases = run.plan, run.geometry.stride, run.geometry.dilation, range(run.plan.tap_phases)
    finish_gates(rows.gates, None)
    x_firsts = [stride * m + dilation * r for m in range(plan.column_phases) for r in phases]
    w_sbuf = slot_moves(moves, plan, unit, rows.w, phases, plan.slots, plan.tap_phases)
    return slot_moves(moves, plan, unit, rows.x[0], x_firsts, x_slots(plan), stride * plan.spread), w_sbuf


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


def slot_moves(moves, plan, unit, rows_sbuf, firsts, count, step):
    """A tile for transposed slots, [128, slots, rows]; appends the transposes that fill it to `moves`.

    Each phase has `count` slots, the first from its element of `firsts` on, the others `step` elements apart.
    """
    starts, rows = [first + step * t for first in firsts for t in range(count)], unit.groups * plan.channels
    slots_sbuf = nl.ndarray((nl.tile_size.pmax, len(starts), rows), dtype=rows_sbuf.dtype, buffer=nl.sbuf)
    for part in cut(len(starts), BANK_BYTES // (rows * itemsize_of(rows_sbuf.dtype))):
        moves.append(partial(move_slots, slots_sbuf, rows_sbuf, part[0], some_of(starts, part), step * plan.slots))
    return slots_sbuf


def move_slots(slots_sbuf, rows_sbuf, first, starts, step):
    """Tensor transposes a bank of slots of rows, entry p of a slot being element start + p * step; Scalar copies them
    to slots first .. of slots_sbuf [128, slots, rows], 16-bit elements in pairs, as fp32."""
    depth, _, rows = slots_sbuf.shape
    sources = [rows_sbuf[0:rows, start : start + (depth - 1) * step + 1 : step] for start in starts]
    slots_psum, into = transposed_bank(sources, depth, rows), slots_sbuf[0:depth, first : first + len(starts), 0:rows]
    nisa.tensor_copy(dst=into.view(nl.float32), src=slots_psum.view(nl.float32), engine=nisa.engine.scalar)


def multiply_slots(dst_psum, slots, plan, unit, g, phase, lag_block):
    """dst [(slot, channel), window, channels of x]: products of group g over all blocks of slots."""
    P_MAX, columns, (x_sbuf, w_sbuf) = nl.tile_size.pmax, plan.channels * unit.groups, slots
    for r in range(plan.tap_phases):
        x0 = (phase * plan.tap_phases + r) * x_slots(plan) + lag_block * plan.lags
        for t0 in range(0, plan.slots, plan.taps):
            tn = min(plan.taps, plan.slots - t0)
            xn, w0 = tn + plan.lags - 1, r * plan.slots + t0
            w = w_sbuf[0:P_MAX, w0 : w0 + tn, g : columns : unit.groups]
            x = x_sbuf[0:P_MAX, x0 + t0 : x0 + t0 + xn, g : columns : unit.groups]
            multiply(dst_psum[0 : tn * plan.channels, 0:xn, 0 : plan.channels], w, x, r + t0 > 0)


def make_masks(plan):
    """(same_channel [128, channels], same_lag [128, lags, taps + lags - 1]), fp32 ones where c' = c, and t' = t + lag:
    partition t * channels + c stands for slot t and channel c of a stationary."""
    P_MAX, taps, channels = nl.tile_size.pmax, plan.taps, plan.channels
    window = window_of(plan)
    identity_sbuf = nl.ndarray((P_MAX, taps, channels), dtype=nl.float32, buffer=nl.sbuf)
    ones_sbuf = constant((P_MAX, 1), nl.float32, 1.0, nisa.engine.vector)
    source_sbuf = ones_sbuf.expand_dim(1).broadcast(1, taps).broadcast(2, channels)
    keep_equal(identity_sbuf, [[-channels, taps], [-1, channels]], source_sbuf)
    same_channel_sbuf = nl.ndarray((P_MAX, channels), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=same_channel_sbuf, op=nl.add, data=identity_sbuf.permute((0, 2, 1)), axis=2)
    slot_sbuf = nl.ndarray((P_MAX, 1, taps), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=slot_sbuf, op=nl.add, data=identity_sbuf, axis=2)
    same_lag_sbuf = constant((P_MAX, plan.lags, window), nl.float32, 0.0, nisa.engine.vector)
    nisa.tensor_copy(
        dst=same_lag_sbuf.ap(pattern=[[plan.lags * window, P_MAX], [window + 1, plan.lags], [1, taps]], offset=0),
        src=slot_sbuf.broadcast(1, plan.lags),
    )
    return same_channel_sbuf, same_lag_sbuf


def new_partials(plan, unit):
    """For each block of lags, [(t, c), g, t']: the sums over p of w[p, t, c] * x[p, t', c] of a unit."""
    shape, count = (nl.tile_size.pmax, unit.groups, window_of(plan)), plan.column_phases * plan.lag_blocks
    return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)]


def multiply_step(slots, plan, same_channel, unit, step):
    """Matmuls of a step over all slots, [(t, c), (g, t'), c']; returns them with zeros at c' != c."""
    P_MAX, channels, window = nl.tile_size.pmax, plan.channels, window_of(plan)
    g0, gn, phase, lag_block = step
    products_psum = nl.ndarray((P_MAX, gn * window, channels), dtype=nl.float32, buffer=nl.psum)
    for index in range(gn):
        of_group = products_psum[0:P_MAX, index * window : (index + 1) * window, 0:channels]
        multiply_slots(of_group, slots, plan, unit, g0 + index, phase, lag_block)
    kept_sbuf = nl.ndarray((P_MAX, gn * window, channels), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=kept_sbuf, data1=products_psum, data2=same_channel.expand_dim(1).broadcast(1, gn * window), op=nl.multiply
    )
    return kept_sbuf


def sum_channels(partials, plan, step, kept_sbuf):
    """Sum a step's products over c'."""
    g0, gn, phase, lag_block = step
    into = partials[phase * plan.lag_blocks + lag_block]
    of_step = into[0 : nl.tile_size.pmax, g0 : g0 + gn, 0 : window_of(plan)]
    nisa.tensor_reduce(dst=of_step, op=nl.add, data=kept_sbuf, axis=2)


def mask_lags(groups, partials, plan, same_lag):
    """For each block of lags [(t, c), g, lag, t']: partials where t' = t + lag, else zeros."""
    P_MAX, lags = nl.tile_size.pmax, plan.lags
    found = []
    for one in partials:
        kept_sbuf = nl.ndarray((P_MAX, groups, lags, window_of(plan)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(
            dst=kept_sbuf,
            data1=one.expand_dim(2).broadcast(2, lags),
            data2=same_lag.expand_dim(1).broadcast(1, groups),
            op=nl.multiply,
            engine=nisa.engine.gpsimd,
        )
        found.append(kept_sbuf)
    return found


def sum_lags(sums, unit, kept, plan):
    """Add a unit's masked lags, summed over t', to its tile's sums [(t, c), g, q]; returns the sums, newly allocated
    for the first chunk."""
    P_MAX, lags, groups, accumulate = nl.tile_size.pmax, plan.lags, unit.groups, unit.chunk > 0
    if not accumulate:
        shape = P_MAX, groups, plan.lag_blocks * lags * plan.column_phases
        sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    for index, kept_sbuf in enumerate(kept):
        phase, lag_block = divmod(index, plan.lag_blocks)
        q0 = lag_block * lags * plan.column_phases + phase
        end = q0 + (lags - 1) * plan.column_phases + 1
        into = sums[0:P_MAX, 0:groups, q0 : end : plan.column_phases]
        target = nl.ndarray((P_MAX, groups, lags), dtype=nl.float32, buffer=nl.sbuf) if accumulate else into
        nisa.tensor_reduce(dst=target, op=nl.add, data=kept_sbuf, axis=3)
        if accumulate:
            nisa.tensor_tensor(dst=into, data1=into, data2=target, op=nl.add)
    return sums


def load_epilogue(run, unit):
    """[bias [rows, groups, 1], residual [rows, groups, Q]] of a unit's channels in SBUF, each None without one."""
    found = []
    for rows, dtype in ((run.tensors.bias, nl.float32), (run.tensors.residual, None)):
        tile_sbuf = None
        if rows is not None:
            shape = (run.plan.channels, unit.groups, rows.high)
            tile_sbuf = nl.ndarray(shape, dtype=dtype or rows.dtype, buffer=nl.sbuf)
            move_free(tile_sbuf, rows, unit.block, unit.r0, unit.n)
        found.append(tile_sbuf)
    return found


def leave(run, unit, sums, same_channel):
    """Results of a unit's channels in its image: sums fp32 [(slot, channel), channels of a row, columns] in SBUF over
    slots, epilogue, store."""
    extra, rows, Q, (_, width, columns) = load_epilogue(run, unit), run.plan.channels, run.geometry.Q, sums.shape
    y_sbuf = nl.ndarray((rows, width, Q), dtype=run.tensors.y.dtype, buffer=nl.sbuf)
    for a, an in cut_at(width, BANK_COLUMNS // columns):
        acc_psum = nl.ndarray((rows, an, columns), dtype=nl.float32, buffer=nl.psum)
        own = sums[0 : nl.tile_size.pmax, a : a + an, 0:columns]
        multiply(acc_psum, same_channel, own, False, is_stationary_onezero=True)
        bias, residual = (None if one is None else one[0:rows, a : a + an] for one in extra)
        evacuate(
            y_sbuf[0:rows, a : a + an, 0:Q],
            acc_psum[0:rows, 0:an, 0:Q],
            None if bias is None else bias.broadcast(2, Q),
            residual,
            run.options.epilogue,
            nisa.engine.vector,
        )
    move_free(y_sbuf, run.tensors.y, unit.block, unit.r0, unit.n, is_store=True)
