"""From transposed slots to results, for `dot`: products, the masks that keep what is wanted of them, sums, stores."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._tiles import BANK_COLUMNS
from ..free_channels import ChannelBlock, finish_free, load_free, store_free
from .plan import batch_width, padded_columns, x_slots


@dataclass
class Masks(nl.NKIObject):
    """fp32 ones and zeros; partition t * channels + c stands for slot t and channel c of a stationary.

    same_channel: [128, channels], c' == c. same_lag: [128, lags, taps + lags - 1], t' == t + lag. ones: [128, 1].
    """

    same_channel: object
    same_lag: object
    ones: object


@dataclass
class Step(nl.NKIObject):
    """Groups g0 .. g0+gn-1 of a tile and one block of lags of one column phase: what shares a PSUM bank."""

    g0: int
    gn: int
    phase: int
    lag_block: int


def make_masks(plan):
    """Masks from the identity matrix [(t, c), (t', c')]."""
    P_MAX, taps, channels = nl.tile_size.pmax, plan.taps, plan.channels
    window = taps + plan.lags - 1
    identity_sbuf = nl.ndarray((P_MAX, taps, channels), dtype=nl.float32, buffer=nl.sbuf)
    ones_sbuf = nl.ndarray((P_MAX, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=1.0)
    nisa.affine_select(
        dst=identity_sbuf,
        pattern=[[-channels, taps], [-1, channels]],
        channel_multiplier=1,
        on_true_tile=ones_sbuf.expand_dim(1).broadcast(1, taps).broadcast(2, channels),
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
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
    return Masks(same_channel=same_channel_sbuf, same_lag=same_lag_sbuf, ones=ones_sbuf)


def steps_of(plan, groups):
    """Steps of a tile, in order."""
    most = BANK_COLUMNS // ((plan.taps + plan.lags - 1) * plan.channels)
    steps = []
    for g0 in range(0, groups, most):
        for phase in range(plan.column_phases):
            for lag_block in range(plan.lag_blocks):
                steps.append(Step(g0=g0, gn=min(most, groups - g0), phase=phase, lag_block=lag_block))
    return steps


def new_partials(plan, groups):
    """For each block of lags, [(t, c), g, t']: the sums over p of w[p, t, c] * x[p, t', c] of a unit."""
    found = []
    for _ in range(plan.column_phases * plan.lag_blocks):
        found.append(
            nl.ndarray((nl.tile_size.pmax, groups, plan.taps + plan.lags - 1), dtype=nl.float32, buffer=nl.sbuf)
        )
    return found


def multiply_step(x_turned, w_turned, plan, masks, groups, step):
    """Matmuls of a Step over all slots; of [(t, c), (g, t'), c'] only a channel's products with itself are kept."""
    P_MAX, taps, channels = nl.tile_size.pmax, plan.taps, plan.channels
    window = taps + plan.lags - 1
    products_psum = nl.ndarray((P_MAX, step.gn * window, channels), dtype=nl.float32, buffer=nl.psum)
    for index in range(step.gn):
        g = step.g0 + index
        matmuls = 0
        for r in range(plan.tap_phases):
            x0 = (step.phase * plan.tap_phases + r) * x_slots(plan) + step.lag_block * plan.lags
            for t0 in range(0, plan.slots, taps):
                tn = min(taps, plan.slots - t0)
                xn = tn + plan.lags - 1
                w0 = r * plan.slots + t0
                nisa.nc_matmul(
                    dst=products_psum[0 : tn * channels, index * window : index * window + xn, 0:channels],
                    stationary=w_turned[0:P_MAX, w0 : w0 + tn, g : channels * groups : groups],
                    moving=x_turned[0:P_MAX, x0 + t0 : x0 + t0 + xn, g : channels * groups : groups],
                    accumulate=matmuls > 0,
                )
                matmuls += 1
    kept_sbuf = nl.ndarray((P_MAX, step.gn * window, channels), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=kept_sbuf,
        data1=products_psum,
        data2=masks.same_channel.expand_dim(1).broadcast(1, step.gn * window),
        op=nl.multiply,
    )
    return kept_sbuf


def sum_channels(partials, plan, step, kept_sbuf):
    """Sum a Step's products over c'."""
    window = plan.taps + plan.lags - 1
    into = partials[step.phase * plan.lag_blocks + step.lag_block]
    nisa.tensor_reduce(
        dst=into[0 : nl.tile_size.pmax, step.g0 : step.g0 + step.gn, 0:window], op=nl.add, data=kept_sbuf, axis=2
    )


def mask_lags(groups, partials, plan, masks):
    """For each block of lags [(t, c), g, lag, t']: partials where t' = t + lag, else zeros."""
    P_MAX, lags = nl.tile_size.pmax, plan.lags
    found = []
    for index in range(len(partials)):
        kept_sbuf = nl.ndarray((P_MAX, groups, lags, plan.taps + lags - 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(
            dst=kept_sbuf,
            data1=partials[index].expand_dim(2).broadcast(2, lags),
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


def row_block():
    """The block of channels that results of the only row have."""
    return ChannelBlock(c0=0, count=1, length=1)


def finish_batch(operands, geometry, extras, plan, masks, batch, sums):
    """Sum over t and leave: rows are p, columns (image, r, q) of channels c0 + p * length + r0 + r.

    The parts of one row are summed over p and r, too.
    """
    columns = padded_columns(plan)
    channels, block, r0 = plan.channels, batch.block, batch.k0 * plan.taps
    width, parts = batch_width(plan, batch), 1
    if plan.parts > 1:
        channels, block, width, parts = 1, row_block(), 1, width
    total = width * batch.nn
    shape = (channels, total, geometry.Q)
    bias_sbuf = None
    if extras.epilogue.bias:
        bias_sbuf = nl.ndarray((channels, width, 1), dtype=nl.float32, buffer=nl.sbuf)
        load_free(bias_sbuf, operands.bias, block, r0, 1, 0, 0)
    residual_sbuf = None
    if extras.epilogue.residual != "":
        residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
        for index in range(batch.nn):
            load_free(
                residual_sbuf[0:channels, index * width : index * width + width, 0 : geometry.Q],
                operands.residual,
                block,
                r0,
                geometry.y_c,
                geometry.y_q,
                (batch.n0 + index) * geometry.y_n,
            )
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    most = BANK_COLUMNS // columns
    for index in range(batch.nn):
        for a in range(0, width, most):
            an = min(most, width - a)
            at = index * width + a
            acc_psum = nl.ndarray((channels, an, columns), dtype=nl.float32, buffer=nl.psum)
            for part in range(parts):
                nisa.nc_matmul(
                    dst=acc_psum,
                    stationary=masks.same_channel if plan.parts == 1 else masks.ones,
                    moving=sums[0 : nl.tile_size.pmax, at + part : at + part + an, 0:columns],
                    accumulate=part > 0,
                )
            bias_view = None
            if bias_sbuf != None:
                bias_view = bias_sbuf[0:channels, a : a + an, 0:1].broadcast(2, geometry.Q)
            finish_free(
                y_sbuf[0:channels, at : at + an, 0 : geometry.Q],
                acc_psum[0:channels, 0:an, 0 : geometry.Q],
                bias_view,
                None if residual_sbuf == None else residual_sbuf[0:channels, at : at + an, 0 : geometry.Q],
                extras.epilogue,
                nisa.engine.vector,
                0,
            )
        store_free(
            operands.y,
            y_sbuf[0:channels, index * width : index * width + width, 0 : geometry.Q],
            block,
            r0,
            geometry.y_c,
            geometry.y_q,
            (batch.n0 + index) * geometry.y_n,
        )
