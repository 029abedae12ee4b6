"""DMAs of tiles with channels on partitions: x with its halo, filters, bias, residual in; y out.

x comes from HBM once, straight to its place: runs of whole rows where taps are near each other, one copy of each tap's
columns where they are far apart. Zeros of the padding are memsets of the columns that hold them; an initial state is a
DMA into these columns, or comes by way of `states`. Only lhs_dilation takes a second step, a strided copy on chip that
opens the gaps.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import div_ceil
from ..positions import columns_met
from .tiles import run_length


def spans(offsets, firsts, counts):
    """Neighbouring groups that one access pattern can address: (first group, groups, HBM elements between groups).

    offsets: HBM element of each group's first column; firsts and counts: where its columns go in the tile, how many.
    """
    found = []
    g = 0
    while g < len(offsets):
        num = 1
        step = 1
        if g + 1 < len(offsets):
            step = offsets[g + 1] - offsets[g]
        while (
            g + num < len(offsets)
            and step > 0
            and offsets[g + num] - offsets[g + num - 1] == step
            and firsts[g + num] == firsts[g]
            and counts[g + num] == counts[g]
        ):
            num += 1
        if counts[g] > 0:
            found.append((g, num, 1 if num == 1 else step))
        g += num
    return found


def copy_in(dst_sbuf, tile, src_hbm, offsets, firsts, counts, dst_step, c_step, src_step):
    """DMAs of groups into columns first, first + dst_step, ... of their partitions; one for each span."""
    found = spans(offsets, firsts, counts)
    for index in range(len(found)):
        span = found[index]
        g = span[0]
        end = firsts[g] + (counts[g] - 1) * dst_step + 1
        copy(
            dst_sbuf[g * tile.P : (g + span[1]) * tile.P, firsts[g] : end : dst_step],
            src_hbm.ap(pattern=[[span[2], span[1]], [c_step, tile.P], [src_step, counts[g]]], offset=offsets[g]),
        )


def ceil_signed(a, b):
    """Smallest int that is at least a / b, for b > 0: // only of what is not negative."""
    return div_ceil(a, b) if a >= 0 else -((-a) // b)


def zero(plan, dst_sbuf):
    """Zeros, from the engine that fills."""
    nisa.memset(dst=dst_sbuf, value=0.0, engine=filler_of(plan))


def filler_of(plan):
    """The engine that fills columns outside of rows."""
    return nisa.engine.vector if plan.filler == "vector" else nisa.engine.gpsimd


def allocate_x(operands, geometry, plan, tile):
    """SBUF for what the taps read: [rows, run], or [rows, S * qn] where each tap has its columns apart."""
    size = run_length(geometry, tile.qn) if plan.runs else geometry.S * tile.qn
    return nl.ndarray((tile.rows, size), dtype=operands.x.dtype, buffer=nl.sbuf)


def load_x(operands, geometry, extras, plan, tile, x_sbuf, cuts, with_state):
    """Fill x_sbuf. cuts: columns of the tile after which a new DMA begins, the last is the tile's width.

    with_state: whether the state goes straight to the columns in front of the rows.
    """
    if not plan.runs:
        for s in range(geometry.S):
            load_tap(operands, geometry, extras, plan, tile, x_sbuf[0 : tile.rows, s * tile.qn : (s + 1) * tile.qn], s)
        return
    if geometry.lhs_dilation == 1:
        firsts = ()
        for g in range(len(tile.starts)):
            firsts = firsts + (tile.starts[g] * geometry.stride - geometry.pad_left,)
        clear_outside(geometry, extras, plan, x_sbuf, firsts)
        begin = 0
        for index in range(len(cuts)):
            end = run_length(geometry, cuts[index])
            load_elements(operands, geometry, plan, tile, x_sbuf, firsts, begin, end, with_state)
            begin = end
        return
    zero(plan, x_sbuf)
    shift = 0
    firsts = ()
    for g in range(len(tile.starts)):
        position = tile.starts[g] * geometry.stride - geometry.pad_left
        element = ceil_signed(position, geometry.lhs_dilation)
        shift = element * geometry.lhs_dilation - position
        firsts = firsts + (element,)
    if shift < x_sbuf.shape[1]:
        count = (x_sbuf.shape[1] - 1 - shift) // geometry.lhs_dilation + 1
        dense_sbuf = nl.ndarray((tile.rows, count), dtype=operands.x.dtype, buffer=nl.sbuf)
        clear_outside(geometry, extras, plan, dense_sbuf, firsts)
        load_elements(operands, geometry, plan, tile, dense_sbuf, firsts, 0, count, False)
        end = shift + (count - 1) * geometry.lhs_dilation + 1
        nisa.tensor_copy(
            dst=x_sbuf[0 : tile.rows, shift : end : geometry.lhs_dilation], src=dense_sbuf, engine=nisa.engine.gpsimd
        )


def clear_outside(geometry, extras, plan, dst_sbuf, firsts):
    """Zeros in the columns that hold no element of x in some group; group g starts at element firsts[g]."""
    size = dst_sbuf.shape[1]
    left = 0
    right = size
    for g in range(len(firsts)):
        if not extras.state:
            left = max(left, min(size, -firsts[g]))
        right = min(right, max(0, geometry.W - firsts[g]))
    if left >= right:
        zero(plan, dst_sbuf)
        return
    if left > 0:
        zero(plan, dst_sbuf[0 : dst_sbuf.shape[0], 0:left])
    if right < size:
        zero(plan, dst_sbuf[0 : dst_sbuf.shape[0], right:size])


def load_elements(operands, geometry, plan, tile, dst_sbuf, firsts, begin, end, with_state):
    """Columns begin .. end-1 of a tile whose group g starts at element firsts[g]: what is x, and what is the state."""
    offsets, columns, counts = [], [], []
    state_offsets, state_columns, state_counts = [], [], []
    for g in range(len(firsts)):
        low = min(end, max(begin, -firsts[g]))
        high = max(low, min(end, geometry.W - firsts[g]))
        offsets.append(tile.images[g] * geometry.x_n + tile.t * geometry.x_c + (firsts[g] + low) * geometry.x_w)
        columns.append(low)
        counts.append(high - low)
        state_offsets.append(
            (tile.images[g] * geometry.C + tile.t) * geometry.pad_left + geometry.pad_left + firsts[g] + begin
        )
        state_columns.append(begin)
        state_counts.append(low - begin)
    if with_state:
        c_step = plan.T * geometry.pad_left
        copy_in(dst_sbuf, tile, operands.state, state_offsets, state_columns, state_counts, 1, c_step, 1)
    copy_in(dst_sbuf, tile, operands.x, offsets, columns, counts, 1, plan.T * geometry.x_c, geometry.x_w)


def load_tap(operands, geometry, extras, plan, tile, dst_sbuf, s):
    """The columns of one tap, [rows, qn]: elements of x where it meets any, the state or zeros elsewhere."""
    offsets, columns, counts = [], [], []
    state_offsets, state_columns, state_counts = [], [], []
    q_step, e_step, least = 1, 1, tile.qn
    for g in range(len(tile.starts)):
        q0 = tile.starts[g]
        met = columns_met(geometry, s, q0, tile.qn)
        q_step = met[1]
        if met[2] > 0:
            e_step = met[4]
        offsets.append(tile.images[g] * geometry.x_n + tile.t * geometry.x_c + met[3] * geometry.x_w)
        columns.append(met[0] - q0)
        counts.append(met[2])
        position = q0 + s * geometry.dilation - geometry.pad_left
        before = min(tile.qn, max(0, -position)) if extras.state else 0
        state_offsets.append((tile.images[g] * geometry.C + tile.t) * geometry.pad_left + geometry.pad_left + position)
        state_columns.append(0)
        state_counts.append(before)
        least = min(least, met[2] + before)
    if least < tile.qn:
        zero(plan, dst_sbuf)
    if extras.state:
        c_step = plan.T * geometry.pad_left
        copy_in(dst_sbuf, tile, operands.state, state_offsets, state_columns, state_counts, 1, c_step, 1)
    copy_in(dst_sbuf, tile, operands.x, offsets, columns, counts, q_step, plan.T * geometry.x_c, e_step * geometry.x_w)


def tap_view(x_sbuf, geometry, plan, tile, s, q0, qn):
    """What tap s meets at columns q0 .. q0+qn-1 of a tile: [rows, qn], strided."""
    if not plan.runs:
        return x_sbuf[0 : tile.rows, s * tile.qn + q0 : s * tile.qn + q0 + qn]
    begin = q0 * geometry.stride + s * geometry.dilation
    return x_sbuf[0 : tile.rows, begin : begin + (qn - 1) * geometry.stride + 1 : geometry.stride]


def y_spans(tile, geometry, q0, qn):
    """(offsets, columns, counts) of the columns q0 .. q0+qn-1 of a tile that are y's."""
    offsets, columns, counts = [], [], []
    for g in range(len(tile.starts)):
        q = tile.starts[g] + q0
        offsets.append(tile.images[g] * geometry.y_n + tile.t * geometry.y_c + q * geometry.y_q)
        columns.append(0)
        counts.append(max(0, min(qn, tile.valid[g] - q0)))
    return offsets, columns, counts


def store_y(operands, geometry, plan, tile, y_sbuf, q0, qn):
    """Columns q0 .. q0+qn-1 of a tile to HBM, one DMA for each span of groups."""
    where = y_spans(tile, geometry, q0, qn)
    found = spans(where[0], where[1], where[2])
    for index in range(len(found)):
        span = found[index]
        g = span[0]
        copy(
            operands.y.ap(
                pattern=[[span[2], span[1]], [plan.T * geometry.y_c, tile.P], [geometry.y_q, where[2][g]]],
                offset=where[0][g],
            ),
            y_sbuf[g * tile.P : (g + span[1]) * tile.P, 0 : where[2][g]],
        )


def load_residual_rows(operands, geometry, plan, tile):
    """The residual of a tile, [rows, qn] in its own dtype, zeros where y has no column; None without one."""
    if operands.residual == None:
        return None
    residual_sbuf = nl.ndarray((tile.rows, tile.qn), dtype=operands.residual.dtype, buffer=nl.sbuf)
    where = y_spans(tile, geometry, 0, tile.qn)
    least = tile.qn
    for g in range(len(tile.valid)):
        least = min(least, tile.valid[g])
    if least < tile.qn:
        zero(plan, residual_sbuf[0 : tile.rows, least : tile.qn])
    c_step = plan.T * geometry.y_c
    copy_in(residual_sbuf, tile, operands.residual, where[0], where[1], where[2], 1, c_step, geometry.y_q)
    return residual_sbuf


def load_channels(src_hbm, dtype, geometry, plan, groups, t0, tn, c_step, inner, inner_step):
    """What belongs to the channels of tiles t0 .. t0+tn-1: [partitions, tn * inner], the same in every group.

    src_hbm: channel c has `inner` elements, inner_step apart, from c * c_step.
    """
    P = channels_most(geometry.C, plan.T, t0)
    dst_sbuf = nl.ndarray((groups * P, tn * inner), dtype=dtype, buffer=nl.sbuf)
    full = (geometry.C - t0 - tn) // plan.T + 1 if geometry.C >= t0 + tn else 0
    if full > 0:
        pattern = [[0, groups], [plan.T * c_step, full], [c_step, tn], [inner_step, inner]]
        if groups == 1:
            pattern = pattern[1:]
        copy(dst_sbuf[0 : groups * full, 0 : tn * inner], src_hbm.ap(pattern=pattern, offset=t0 * c_step))
    if full < P:
        rest = geometry.C - full * plan.T - t0
        pattern = [[plan.T * c_step, 1], [c_step, rest], [inner_step, inner]]
        copy(
            dst_sbuf[full : full + 1, 0 : rest * inner],
            src_hbm.ap(pattern=pattern, offset=(full * plan.T + t0) * c_step),
        )
    return dst_sbuf


def channels_most(C, T, t0):
    """Partitions of the largest of the tiles from t0 on."""
    return div_ceil(C - t0, T)
