"""DMAs of tiles with channels on partitions: x with its halo, residual, filters, biases and states in; y out.

x comes from HBM once, straight to its place: runs of whole rows where taps are near each other, one copy of each tap's
columns where they are far apart. Zeros of the padding are memsets of the columns that hold them; an initial state is a
DMA into these columns, or comes by way of `states`. Only lhs_dilation takes a second step, a strided copy on chip that
opens the gaps.
"""

from ...._nki import nisa, nl
from ....schedules.axis import outputs_met
from ....schedules.tiles import div_ceil
from ..._dma import copy, copy_either_way
from .tiles import channels_of, run_length


def spans(offsets, firsts, counts):
    """Neighbouring groups that one access pattern can address: (first group, groups, HBM elements between groups).

    offsets: HBM element of each group's first column; firsts and counts: where its columns go in the tile, how many.
    """
    found = []
    g = 0
    while g < len(offsets):
        num, step = 1, 1
        if g + 1 < len(offsets):
            step = offsets[g + 1] - offsets[g]
        for other in range(g + 1, len(offsets) if step > 0 else 0):
            alike = offsets[other] - offsets[other - 1] == step
            if not alike or firsts[other] != firsts[g] or counts[other] != counts[g]:
                break
            num += 1
        if counts[g] > 0:
            found.append((g, num, 1 if num == 1 else step))
        g += num
    return found


def copy_groups(tile_sbuf, hbm, tile, where, tile_step, c_step, hbm_step, is_store):
    """DMAs between a tile's groups and HBM, one for each span. where: (offsets, firsts, counts) as `spans` has them.

    tile_step, hbm_step: between columns; c_step: in HBM, between the channels of a tile.
    """
    offsets, firsts, counts = where
    for span in spans(offsets, firsts, counts):
        g, num, apart = span
        end = firsts[g] + (counts[g] - 1) * tile_step + 1
        here = tile_sbuf[g * tile.P : (g + num) * tile.P, firsts[g] : end : tile_step]
        there = hbm.ap(pattern=[[apart, num], [c_step, tile.P], [hbm_step, counts[g]]], offset=offsets[g])
        copy_either_way(here, there, is_store)


def filler(plan):
    """The engine that fills columns outside of rows."""
    return nisa.engine.vector if plan.vector_fills else nisa.engine.gpsimd


def fill_zeros(run, dst_sbuf):
    """Zeros, from the engine that fills."""
    nisa.memset(dst=dst_sbuf, value=0.0, engine=filler(run.plan))


def load_tile_x(run, tile, cuts, with_state):
    """What the taps read: [rows, run], or [rows, S * qn] where each tap has its columns apart.

    cuts: columns of the tile after which a new DMA begins, the last is the tile's width. with_state: whether the state
    goes straight to the columns in front of the rows.
    """
    geometry, runs = run.geometry, run.plan.rows.runs
    size = run_length(geometry, tile.qn) if runs else geometry.S * tile.qn
    x_sbuf = nl.ndarray((tile.rows, size), dtype=run.operands.x.dtype, buffer=nl.sbuf)
    tile.x = x_sbuf
    if not runs:
        for s in range(geometry.S):
            load_tap(run, tile, x_sbuf[0 : tile.rows, s * tile.qn : (s + 1) * tile.qn], s)
    elif geometry.lhs_dilation > 1:
        load_dilated(run, tile, x_sbuf)
    else:
        firsts = positions_of(geometry, tile, 0)
        clear_outside(run, x_sbuf, firsts)
        begin = 0
        for columns in cuts:
            end = run_length(geometry, columns)
            if with_state:
                load_state(run, tile, x_sbuf, firsts, begin, end)
            load_elements(run, tile, x_sbuf, firsts, begin, end)
            begin = end


def positions_of(geometry, tile, s):
    """Positions of the padded row, 0 is x[0], that tap s meets at the first column of each group."""
    firsts = ()
    for group in tile.groups:
        firsts = firsts + (group[1] * geometry.stride + s * geometry.dilation - geometry.pad_left,)
    return firsts


def load_dilated(run, tile, x_sbuf):
    """A run of x with gaps of zeros: its elements side by side, then their copy to where they belong."""
    geometry = run.geometry
    step, before = geometry.lhs_dilation, max(0, geometry.pad_left)
    fill_zeros(run, x_sbuf)
    shift, firsts = 0, ()
    for position in positions_of(geometry, tile, 0):
        element = div_ceil(position + before * step, step) - before
        shift = element * step - position
        firsts = firsts + (element,)
    if shift < x_sbuf.shape[1]:
        count = (x_sbuf.shape[1] - 1 - shift) // step + 1
        dense_sbuf = nl.ndarray((tile.rows, count), dtype=run.operands.x.dtype, buffer=nl.sbuf)
        clear_outside(run, dense_sbuf, firsts)
        load_elements(run, tile, dense_sbuf, firsts, 0, count)
        end = shift + (count - 1) * step + 1
        nisa.tensor_copy(dst=x_sbuf[0 : tile.rows, shift:end:step], src=dense_sbuf, engine=nisa.engine.gpsimd)


def held_by_all(geometry, extras, firsts, size):
    """(first column, end) of those that hold an element of x, or of the state, in all groups; group g starts at element
    firsts[g]."""
    left, right = 0, size
    for first in firsts:
        if not extras.state:
            left = max(left, min(size, -first))
        right = min(right, max(0, geometry.W - first))
    return (left, right) if left < right else (size, size)


def clear_outside(run, dst_sbuf, firsts):
    """Zeros in the columns that hold no element of x in some group."""
    rows, size = dst_sbuf.shape
    left, right = held_by_all(run.geometry, run.extras, firsts, size)
    if left > 0:
        fill_zeros(run, dst_sbuf[0:rows, 0:left])
    if right < size:
        fill_zeros(run, dst_sbuf[0:rows, right:size])


def load_elements(run, tile, dst_sbuf, firsts, begin, end):
    """What is x of columns begin .. end-1; group g starts at element firsts[g]."""
    geometry = run.geometry
    steps = (geometry.x_n, geometry.x_c, geometry.x_w)
    where = places_between(tile, steps, firsts, begin, end, 0, geometry.W)
    copy_groups(dst_sbuf, run.operands.x, tile, where, 1, run.plan.rows.T * geometry.x_c, geometry.x_w, False)


def load_state(run, tile, dst_sbuf, firsts, begin, end):
    """The same of the state, elements -pad_left .. -1."""
    L = run.geometry.pad_left
    where = places_between(tile, (run.geometry.C * L, L, 1), firsts, begin, end, -L, 0)
    copy_groups(dst_sbuf, run.operands.state, tile, where, 1, run.plan.rows.T * L, 1, False)


def places_between(tile, steps, firsts, begin, end, low, high):
    """(offsets, columns, counts) of a tile's columns begin .. end-1 that meet elements low .. high-1 of rows, whose
    images, channels and elements are `steps` apart in HBM."""
    offsets, columns, counts = [], [], []
    for g in range(len(firsts)):
        first = min(end, max(begin, low - firsts[g]))
        offsets.append(tile.groups[g][0] * steps[0] + tile.t * steps[1] + (firsts[g] + first - low) * steps[2])
        columns.append(first)
        counts.append(max(first, min(end, high - firsts[g])) - first)
    return offsets, columns, counts


def columns_met(geometry, s, q0, qn):
    """The columns of q0 .. q0+qn-1 at which tap s meets an element of x, not a zero, as `_axis.outputs_met` says."""
    shift = s * geometry.dilation - geometry.pad_left
    return outputs_met(geometry.W, geometry.stride, geometry.lhs_dilation, shift, q0, qn)


def load_tap(run, tile, dst_sbuf, s):
    """The columns of one tap, [rows, qn]: elements of x where it meets any, the state or zeros elsewhere."""
    geometry = run.geometry
    positions = positions_of(geometry, tile, s)
    offsets, columns, counts = [], [], []
    q_step, e_step, least = 1, 1, tile.qn
    for g in range(len(positions)):
        first, q_step, count, element, apart = columns_met(geometry, s, tile.groups[g][1], tile.qn)
        if count > 0:
            e_step = apart
        offsets.append(tile.groups[g][0] * geometry.x_n + tile.t * geometry.x_c + element * geometry.x_w)
        columns.append(first - tile.groups[g][1])
        counts.append(count)
        before = min(tile.qn, max(0, -positions[g])) if run.extras.state else 0
        least = min(least, count + before)
    if least < tile.qn:
        fill_zeros(run, dst_sbuf)
    if run.extras.state:
        load_state(run, tile, dst_sbuf, positions, 0, tile.qn)
    c_step, x_step = run.plan.rows.T * geometry.x_c, e_step * geometry.x_w
    copy_groups(dst_sbuf, run.operands.x, tile, (offsets, columns, counts), q_step, c_step, x_step, False)


def tap_view(run, tile, s, q0, qn):
    """What tap s meets at columns q0 .. q0+qn-1 of a tile: [rows, qn], strided."""
    geometry = run.geometry
    if not run.plan.rows.runs:
        return tile.x[0 : tile.rows, s * tile.qn + q0 : s * tile.qn + q0 + qn]
    begin = q0 * geometry.stride + s * geometry.dilation
    return tile.x[0 : tile.rows, begin : begin + (qn - 1) * geometry.stride + 1 : geometry.stride]


def mixed_places(tile, geometry, q0, qn):
    """(offsets, columns, counts) of the columns q0 .. q0+qn-1 of a tile that are y's."""
    offsets, columns, counts = [], [], []
    for group in tile.groups:
        q = group[1] + q0
        offsets.append(group[0] * geometry.y_n + tile.t * geometry.y_c + q * geometry.y_q)
        columns.append(0)
        counts.append(max(0, min(qn, tile.end_q - q)))
    return offsets, columns, counts


def store_y(run, piece, y_sbuf):
    """The columns of a piece to HBM."""
    geometry, tile = run.geometry, run.tiles[piece.tile]
    where = mixed_places(tile, geometry, piece.q0, piece.qn)
    copy_groups(y_sbuf, run.operands.y, tile, where, 1, run.plan.rows.T * geometry.y_c, geometry.y_q, True)


def load_mixed_residual(run, tile):
    """The residual of a tile, [rows, qn] in its own dtype, zeros where y has no column; nothing without one."""
    geometry, residual = run.geometry, run.operands.residual
    if residual == None:
        return
    residual_sbuf = nl.ndarray((tile.rows, tile.qn), dtype=residual.dtype, buffer=nl.sbuf)
    tile.residual = residual_sbuf
    where, least = mixed_places(tile, geometry, 0, tile.qn), tile.qn
    for count in where[2]:
        least = min(least, count)
    if least < tile.qn:
        fill_zeros(run, residual_sbuf[0 : tile.rows, least : tile.qn])
    copy_groups(residual_sbuf, residual, tile, where, 1, run.plan.rows.T * geometry.y_c, geometry.y_q, False)


def load_channels(run, src_hbm, dtype, n0, images, t0, tn, steps, inner):
    """What belongs to the channels of tiles t0 .. t0+tn-1: [partitions, 1, tn * inner], the same in every group.

    steps: between images, channels and the `inner` elements of a channel in HBM. images: 0, or of how many from n0 on
    it is, whose channels are side by side: [partitions, images, tn * inner].
    """
    groups, T = run.plan.rows.G, run.plan.rows.T
    n_step, c_step, step = steps
    P = channels_of(run.geometry.C, T, t0)
    dst_sbuf = nl.ndarray((groups * P, max(1, images), tn * inner), dtype=dtype, buffer=nl.sbuf)
    for part in channel_runs(run.geometry, T, t0, tn):
        p0, pn, count = part
        pattern = [[T * c_step, pn], [c_step, count], [step, inner]]
        if images > 0:
            pattern = [[T * c_step, pn], [n_step, images], [step, count * inner]]
        if groups > 1:  # all partitions have as many channels
            pattern = [[0, groups], pattern[0], pattern[1], pattern[2]]
        copy(
            dst_sbuf[p0 : p0 + groups * pn, 0 : max(1, images), 0 : count * inner],
            src_hbm.ap(pattern=pattern, offset=n0 * n_step + (p0 * T + t0) * c_step),
        )
    return dst_sbuf


def channel_runs(geometry, T, t0, tn):
    """(first partition, partitions, channels of each) of what tiles t0 .. t0+tn-1 have: the last may have fewer."""
    full = (geometry.C - t0 - tn) // T + 1 if geometry.C >= t0 + tn else 0
    found = [(0, full, tn)] if full > 0 else []
    if full < channels_of(geometry.C, T, t0):
        found.append((full, 1, geometry.C - full * T - t0))
    return found
