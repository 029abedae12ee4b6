"""From transposed slots to results, for `dot`: products, masks that keep products of y, sums, stores."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.dot import window_of
from ....schedules.tiles import BANK_COLUMNS, cut_at
from ..._epilogue import evacuate
from ..._masks import keep_equal
from ..free_channels import move_free
from .rows import multiply_slots


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
    shape, count = (nl.tile_size.pmax, unit.groups, window_of(plan)), plan.column_phases * plan.lag_blocks
    return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)]


def multiply_step(x_sbuf, w_sbuf, plan, masks, unit, step):
    """Matmuls of a step over all slots, [(t, c), (g, t'), c']; returns them with zeros at c' != c."""
    P_MAX, channels, window = nl.tile_size.pmax, plan.channels, window_of(plan)
    g0, gn, phase, lag_block = step
    products_psum = nl.ndarray((P_MAX, gn * window, channels), dtype=nl.float32, buffer=nl.psum)
    for index in range(gn):
        of_group = products_psum[0:P_MAX, index * window : (index + 1) * window, 0:channels]
        multiply_slots(of_group, x_sbuf, w_sbuf, plan, unit, g0 + index, phase, lag_block)
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


def sum_lags(sums, groups, kept, plan, accumulate):
    """sums[(t, c), g, q] = (or += for a later chunk) masked lags summed over t', for every q."""
    P_MAX, lags = nl.tile_size.pmax, plan.lags
    for index, kept_sbuf in enumerate(kept):
        phase, lag_block = divmod(index, plan.lag_blocks)
        q0 = lag_block * lags * plan.column_phases + phase
        end = q0 + (lags - 1) * plan.column_phases + 1
        into = sums[0:P_MAX, 0:groups, q0 : end : plan.column_phases]
        target = nl.ndarray((P_MAX, groups, lags), dtype=nl.float32, buffer=nl.sbuf) if accumulate else into
        nisa.tensor_reduce(dst=target, op=nl.add, data=kept_sbuf, axis=3)
        if accumulate:
            nisa.tensor_tensor(dst=into, data1=into, data2=target, op=nl.add)


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


def leave(run, unit, sums, same_channel, extra):
    """Results of a unit's channels in its image: sums over slots, epilogue, store.

    sums: fp32 [(slot, channel), channels of a row, columns] in SBUF. same_channel: as in Masks. extra: bias and
    residual from `load_epilogue`.
    """
    rows, Q, (_, width, columns) = run.plan.channels, run.geometry.Q, sums.shape
    y_sbuf = nl.ndarray((rows, width, Q), dtype=run.tensors.y.dtype, buffer=nl.sbuf)
    for a, an in cut_at(width, BANK_COLUMNS // columns):
        acc_psum = nl.ndarray((rows, an, columns), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=acc_psum,
            stationary=same_channel,
            moving=sums[0 : nl.tile_size.pmax, a : a + an, 0:columns],
            is_stationary_onezero=True,
            accumulate=False,
        )
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
