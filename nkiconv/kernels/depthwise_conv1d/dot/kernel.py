"""Depthwise conv1d with long filters and few columns: dot products of whole rows on the Tensor Engine.

    y[c, q] = sum over s of w[c, s] * x[c, s + q]              (stride and dilation: schedules/dot.py)

The taps of a row are spread over partitions and slots, s = n p + t: slot t is x[:, t::n], transposed on the array from
[channels, 128] to [128, channels], and the same for w. A lag q then is the shift of t by q along the free dim. One
matmul takes 8 slots of 16 channels of w as the stationary and the 8 + Q - 1 slots of these channels of x that meet them
as the moving operand: the contraction over p makes [(8 t, 16 c), (8 + Q - 1 t', 16 c')], of which c = c' and t' - t = q
are wanted. It accumulates over all blocks of 8 slots; then

    keep c = c' (mask) and sum over c'      [(t, c), t']       Vector, read-out of PSUM
    keep t' - t = q (mask) and sum over t'  [(t, c), q]        GpSimd, Vector
    sum over t                              [c, q]             one small fp32 matmul for several tiles

Engine plan: DMA loads rows of x and w, each once from HBM, 128 channels a tile; Tensor transposes tile i + 1 between
the matmuls of tile i; Scalar moves transposed slots to SBUF, pairs of 16-bit
elements as one fp32 element, which copies bits; the tails of tiles i - 1 and i - 2 come later, where no engine waits
for another. Channel c0 + p * L + r is row p of the results, so that those of several tiles leave in one DMA of long
runs. Bound by Tensor, then DMA: per 128 channels and tap of bf16 with Q = 4, the transposes take 0.91 ns and the
matmuls 0.59, HBM 1.43. Vector's masks grow with Q, which is at most 64.

Zeros are multiplied: a NaN or Inf reaches every column of the channels that share a matmul with it.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.dot import batches, build, dot_settings, dot_units, images_of, padded_columns, steps_of, window_of
from ....schedules.tiles import BANK_COLUMNS, cut_at, share
from ..._dma import load, store
from ..._epilogue import evacuate
from ..._masks import keep_equal
from ..._warm import warm_up, warm_zeros
from ..free_channels import move_free
from .rows import load_ahead, move_slots, multiply_slots, next_rows, start_dot, sum_taps

#: Banks of transposed slots that are on their way before the first matmul of the tile before.
LEAD = 2


def dot(operands, geometry, options, config):
    """Write operands.y. config: (name, value) pairs of DotSettings."""
    settings = dot_settings(geometry, config)
    plan = build(geometry, settings)
    first, count = share(len(batches(geometry, plan)), nl.num_programs(), nl.program_id(0))
    if count > 0:
        warm_up(warm_zeros(), settings.warmup, 1)
        run_units(operands, geometry, options, plan, dot_units(geometry, plan, first, count))


def run_units(operands, geometry, options, plan, units):
    """Four units in flight: transposes of one between the matmuls of the one before and the tails of two others."""
    masks = make_masks(plan)
    run = start_dot(operands, geometry, options, plan, units)
    x_before, w_before, partials, ready, kept, sums, tap_sums = None, None, [], [], [], None, None
    for index in range(len(units) + 3):
        moves, x_next, w_next, w_rows = [], None, None, None
        if index < len(units):
            load_ahead(run)
            w_rows = run.loaded[index][1]
            x_next, w_next = next_rows(run, index, moves)
        steps, unit = [], units[min(max(0, index - 1), len(units) - 1)]
        if 0 < index and index <= len(units):
            steps = steps_of(plan, unit)
            partials = new_partials(plan, unit)
        done, last = 0, None
        # while the second unit's rows are still on their way, the first one's matmuls go before its transposes
        for move in range(-1 if index == 1 else 0, max(len(moves), LEAD)):
            if 0 <= move and move < len(moves):
                move_slots(moves[move], nisa.engine.scalar)
            if move == LEAD - 1 and 2 <= index and index <= len(units) + 1:
                kept = mask_lags(units[index - 2].groups, ready, plan, masks)
            wanted = len(steps)
            if move + 1 < len(moves) and index != 1:
                wanted = (len(steps) * max(0, move + 1 - LEAD)) // max(1, len(moves) - LEAD)
            while done < wanted:
                images = images_of(geometry, plan, unit)[1]
                products = multiply_step(x_before, w_before, plan, masks, unit, steps[done], images)
                if done > 0:
                    sum_channels(partials, plan, steps[done - 1], last)
                last = products
                done += 1
        if done > 0:
            sum_channels(partials, plan, steps[done - 1], last)
        if index >= 3:
            finish_batch(run, masks, units[index - 3], sums)
        if 2 <= index and index <= len(units) + 1:
            sums = add_unit(plan, units[index - 2], kept, sums)
        if index < len(units) and operands.sums != None:
            tap_sums = sum_taps(run, units[index], w_rows, tap_sums)
        ready = partials
        x_before, w_before = x_next, w_next


def add_unit(plan, unit, kept, sums):
    """Put a unit's results into its batch's [(t, c), (image, r), q]; returns them, new for the first of a batch."""
    batch = unit.batch
    if unit.n == batch.n0 and unit.k == batch.k0 and unit.chunk == 0:
        shape = (nl.tile_size.pmax, batch.width * batch.nn, padded_columns(plan))
        sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    column = (unit.n - batch.n0) * batch.width + (unit.k - batch.k0) * plan.taps
    sum_lags(sums, column, unit.groups, kept, plan, unit.chunk > 0)
    return sums


def finish_batch(run, masks, unit, sums):
    """After a batch's last unit, the results of each image leave."""
    batch, plan = unit.batch, run.plan
    end, r0 = batch.n0 + batch.nn, batch.k0 * plan.taps
    if unit.n == end - 1 and unit.k == batch.k0 + batch.kn - 1 and unit.chunk == plan.chunks - 1:
        extra = []
        for n in range(batch.n0, end):
            extra.append(load_epilogue(run, batch, n, r0, batch.width))
        for n in range(batch.n0, end):
            first = (n - batch.n0) * batch.width
            of_image = sums[0 : nl.tile_size.pmax, first : first + batch.width, 0 : padded_columns(plan)]
            leave(run, batch, n, r0, of_image, masks.same_channel, extra[n - batch.n0])


@dataclass
class Masks:
    """fp32 ones and zeros; partition t * channels + c stands for slot t and channel c of a stationary.

    same_channel: [128, channels], c' == c. same_lag: [128, lags, taps + lags - 1], t' == t + lag.
    """

    same_channel: object
    same_lag: object


def make_masks(plan):
    """Masks from the identity matrix [(t, c), (t', c')]."""
    P_MAX, taps, channels = nl.tile_size.pmax, plan.taps, plan.channels
    window = window_of(plan)
    identity_sbuf = nl.ndarray((P_MAX, taps, channels), dtype=nl.float32, buffer=nl.sbuf)
    ones_sbuf = nl.ndarray((P_MAX, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=1.0)
    source_sbuf = ones_sbuf.expand_dim(1).broadcast(1, taps).broadcast(2, channels)
    keep_equal(identity_sbuf, [[-channels, taps], [-1, channels]], source_sbuf)
    same_channel_sbuf = nl.ndarray((P_MAX, channels), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=same_channel_sbuf, op=nl.add, data=identity_sbuf.permute((0, 2, 1)), axis=2)
    slot_sbuf = nl.ndarray((P_MAX, 1, taps), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=slot_sbuf, op=nl.add, data=identity_sbuf, axis=2)
    same_lag_sbuf = nl.ndarray((P_MAX, plan.lags, window), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=same_lag_sbuf, value=0.0)
    nisa.tensor_copy(
        dst=same_lag_sbuf.ap(pattern=[[plan.lags * window, P_MAX], [window + 1, plan.lags], [1, taps]], offset=0),
        src=slot_sbuf.broadcast(1, plan.lags),
    )
    return Masks(same_channel=same_channel_sbuf, same_lag=same_lag_sbuf)


def new_partials(plan, unit):
    """For each block of lags, [(t, c), g, t']: the sums over p of w[p, t, c] * x[p, t', c] of a unit."""
    found = []
    for _ in range(plan.column_phases * plan.lag_blocks):
        found.append(nl.ndarray((nl.tile_size.pmax, unit.groups, window_of(plan)), dtype=nl.float32, buffer=nl.sbuf))
    return found


def multiply_step(x_sbuf, w_sbuf, plan, masks, unit, step, images):
    """Matmuls of a step over all slots; of [(t, c), (g, t'), c'] only a channel's products with itself are kept."""
    P_MAX, channels, window = nl.tile_size.pmax, plan.channels, window_of(plan)
    g0, gn, phase, lag_block = step
    products_psum = nl.ndarray((P_MAX, gn * window, channels), dtype=nl.float32, buffer=nl.psum)
    for index in range(gn):
        of_group = products_psum[0:P_MAX, index * window : (index + 1) * window, 0:channels]
        multiply_slots(of_group, x_sbuf, w_sbuf, plan, unit, g0 + index, phase, lag_block, images)
    kept_sbuf = nl.ndarray((P_MAX, gn * window, channels), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=kept_sbuf,
        data1=products_psum,
        data2=masks.same_channel.expand_dim(1).broadcast(1, gn * window),
        op=nl.multiply,
    )
    return kept_sbuf


def sum_channels(partials, plan, step, kept_sbuf):
    """Sum a step's products over c'."""
    g0, gn, phase, lag_block = step
    into = partials[phase * plan.lag_blocks + lag_block]
    of_step = into[0 : nl.tile_size.pmax, g0 : g0 + gn, 0 : window_of(plan)]
    nisa.tensor_reduce(dst=of_step, op=nl.add, data=kept_sbuf, axis=2)


def mask_lags(groups, partials, plan, masks):
    """For each block of lags [(t, c), g, lag, t']: partials where t' = t + lag, else zeros."""
    P_MAX, lags = nl.tile_size.pmax, plan.lags
    found = []
    for partial in partials:
        kept_sbuf = nl.ndarray((P_MAX, groups, lags, window_of(plan)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(
            dst=kept_sbuf,
            data1=partial.expand_dim(2).broadcast(2, lags),
            data2=masks.same_lag.expand_dim(1).broadcast(1, groups),
            op=nl.multiply,
            engine=nisa.engine.gpsimd,
        )
        found.append(kept_sbuf)
    return found


def sum_lags(sums, column, groups, kept, plan, accumulate):
    """sums[(t, c), column + g, q] = (or += for a later chunk) masked lags summed over t', for every q."""
    P_MAX, lags = nl.tile_size.pmax, plan.lags
    for phase in range(plan.column_phases):
        for lag_block in range(plan.lag_blocks):
            kept_sbuf = kept[phase * plan.lag_blocks + lag_block]
            q0 = lag_block * lags * plan.column_phases + phase
            end = q0 + (lags - 1) * plan.column_phases + 1
            into = sums[0:P_MAX, column : column + groups, q0 : end : plan.column_phases]
            if accumulate:
                more_sbuf = nl.ndarray((P_MAX, groups, lags), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(dst=more_sbuf, op=nl.add, data=kept_sbuf, axis=3)
                nisa.tensor_tensor(dst=into, data1=into, data2=more_sbuf, op=nl.add)
            else:
                nisa.tensor_reduce(dst=into, op=nl.add, data=kept_sbuf, axis=3)


def dot_places(geometry, n):
    """HBM elements of y between channels and columns, and where image n begins."""
    return geometry.y_c, geometry.y_q, n * geometry.y_n


def load_epilogue(run, batch, n, r0, width):
    """(bias [rows, width, 1], residual [rows, width, columns]) of channels r0 .. of each row, in SBUF, or None."""
    epilogue, operands = run.options.epilogue, run.operands
    rows, bias_sbuf, residual_sbuf = run.plan.channels, None, None
    if epilogue.bias:
        bias_sbuf = nl.ndarray((rows, width, 1), dtype=nl.float32, buffer=nl.sbuf)
        move_free(bias_sbuf, operands.bias, batch.block, r0, (1, 0, 0), load)
    if epilogue.residual != "":
        residual_sbuf = nl.ndarray((rows, width, run.geometry.Q), dtype=operands.residual.dtype, buffer=nl.sbuf)
        move_free(residual_sbuf, operands.residual, batch.block, r0, dot_places(run.geometry, n), load)
    return bias_sbuf, residual_sbuf


def leave(run, batch, n, r0, sums, stationary, extra):
    """Results of channels r0 .. of each row of a batch's block in image n: sums over slots, epilogue, store.

    sums: fp32 [(slot, channel), channels of a row, columns] in SBUF. stationary: ones where a partition belongs to a
    row. extra: of `load_epilogue`.
    """
    rows, width, columns, Q = run.plan.channels, sums.shape[1], sums.shape[2], run.geometry.Q
    bias_sbuf, residual_sbuf = extra
    y_sbuf = nl.ndarray((rows, width, Q), dtype=run.operands.y.dtype, buffer=nl.sbuf)
    for a, an in cut_at(width, BANK_COLUMNS // columns):
        acc_psum = nl.ndarray((rows, an, columns), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=acc_psum,
            stationary=stationary,
            moving=sums[0 : nl.tile_size.pmax, a : a + an, 0:columns],
            is_stationary_onezero=True,
            accumulate=False,
        )
        bias, residual = None, None
        if bias_sbuf != None:
            bias = bias_sbuf[0:rows, a : a + an, 0:1].broadcast(2, Q)
        if residual_sbuf != None:
            residual = residual_sbuf[0:rows, a : a + an, 0:Q]
        y, epilogue = y_sbuf[0:rows, a : a + an, 0:Q], run.options.epilogue
        evacuate(y, acc_psum[0:rows, 0:an, 0:Q], bias, residual, epilogue, nisa.engine.vector)
    move_free(y_sbuf, run.operands.y, batch.block, r0, dot_places(run.geometry, n), store)
