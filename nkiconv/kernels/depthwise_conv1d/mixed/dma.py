"""DMAs of tiles with channels on partitions: x with its halo, residual, filters, biases and states in; y out.

x comes from HBM once, straight to its place, in runs of whole rows. Zeros of the padding are memsets of the columns
that hold them; an initial state is a DMA into these columns, or, where it is a few elements, comes by way of SBUF: one
DMA of long runs for all tiles but the first, as channels p * T + t of neighbouring tiles are neighbours in HBM, then a
small copy for each. Only lhs_dilation takes a second step, a strided copy on chip that opens the gaps.
"""

from ...._nki import nisa, nl
from ....schedules.depthwise import residual_places
from ....schedules.rows import (
    channel_runs,
    channels_of,
    held_by_all,
    places_between,
    places_of_y,
    positions_of,
    run_length,
    spans,
)
from ....schedules.tiles import div_ceil
from ..._dma import copy, load, store
from ..._prologue import Arrival, finish_gates, load_rows, outside_of
from ..geometry import gates_due, sources_of


def copy_groups(tile_sbuf, hbm, tile, places, c_step, hbm_step, move):
    """DMAs between a tile's groups and HBM, one for each span of their places.

    c_step, hbm_step: in HBM, between the channels of a tile and between columns; move: `load_rows`, `load` or `store`.
    """
    offsets, firsts, counts = places
    for g, num, apart in spans(places):
        here = tile_sbuf[g * tile.P : (g + num) * tile.P, firsts[g] : firsts[g] + counts[g]]
        move(here, hbm, [[apart, num], [c_step, tile.P], [hbm_step, counts[g]]], offsets[g])


def filler(plan):
    """The engine that fills columns outside of rows."""
    return nisa.engine.vector if plan.vector_fills else nisa.engine.gpsimd


def fill_outside(run, dst_sbuf, source=None):
    """What is where a source has no element, zeros of none, from the engine that fills."""
    nisa.memset(dst=dst_sbuf, value=outside_of(source), engine=filler(run.plan))


def load_tile_x(run, tile, cuts):
    """What the taps read, [rows, run]; and the products, or the prologue, that it waits for, in order of columns.

    cuts: columns of the tile after which a new DMA begins, the last is the tile's width.
    """
    geometry, size = run.geometry, run_length(run.geometry, tile.qn)
    sources, tiles, gates = sources_of(run.operands), [], []
    numbers = load_numbers(run, tile)
    for source in sources:
        tiles.append(nl.ndarray((tile.rows, size), dtype=source.dtype, buffer=nl.sbuf))
    if geometry.lhs_dilation > 1:
        for source, x_sbuf in zip(sources, tiles):
            load_dilated(run, tile, x_sbuf, source, numbers)
        return tiles[0], gates_due(geometry, tiles)
    firsts, begin = positions_of(geometry, tile), 0
    for source, x_sbuf in zip(sources, tiles):
        clear_outside(run, x_sbuf, firsts, source)
    for columns in cuts:
        end = run_length(geometry, columns)
        for source, x_sbuf in zip(sources, tiles):
            if follows_state(run, source) and (run.plan.states == 0 or run.loaded == 0):
                load_state(run, tile, x_sbuf, firsts, begin, end)
            elif follows_state(run, source) and begin == 0 and firsts[0] < 0:
                fill_state(run, tile, x_sbuf, -firsts[0])
            load_elements(run, tile, x_sbuf, firsts, begin, end, source)
        gates += gates_due(geometry, [x_sbuf[0 : tile.rows, begin:end] for x_sbuf in tiles])
        gates += arrivals(run, tiles[0], firsts[0], begin, end, numbers)
        begin = end
    return tiles[0], gates


def load_numbers(run, tile):
    """What the channels of a tile are scaled and shifted by, each [rows, 1] or None."""
    prologue, C = run.operands.prologue, run.geometry.C
    if prologue is None:
        return None, None
    found, n = [None, None], tile.groups[0][0]
    for index, hbm in enumerate((prologue.scale, prologue.shift)):
        if hbm is not None:
            steps = (0 if len(hbm.shape) == 1 else C, 1, 1)
            found[index] = load_channels(run, hbm, nl.float32, (n, 1), tile.t, 1, steps, 1)[0 : tile.rows, 0, 0:1]
    return found


def arrivals(run, x_sbuf, first, begin, end, numbers):
    """The prologue of what there is of x in columns begin .. end-1, of which column 0 is element `first`; none without
    one."""
    begin, end = max(begin, -first), min(end, run.geometry.W - first)
    if run.operands.prologue is None or begin >= end:
        return []
    return [Arrival(x_sbuf[0 : x_sbuf.shape[0], begin:end], run.operands.prologue, *numbers)]


def load_dilated(run, tile, x_sbuf, source, numbers):
    """A run of x with gaps of zeros: its elements as neighbours, then their copy to where they belong."""
    geometry = run.geometry
    step, before = geometry.lhs_dilation, max(0, geometry.pad_left)
    fill_outside(run, x_sbuf, source)
    shift, firsts = 0, []
    for position in positions_of(geometry, tile):
        element = div_ceil(position + before * step, step) - before
        shift = element * step - position
        firsts.append(element)
    if shift < x_sbuf.shape[1]:
        count = (x_sbuf.shape[1] - 1 - shift) // step + 1
        dense_sbuf = nl.ndarray((tile.rows, count), dtype=source.dtype, buffer=nl.sbuf)
        clear_outside(run, dense_sbuf, firsts, source)
        load_elements(run, tile, dense_sbuf, firsts, 0, count, source)
        finish_gates(arrivals(run, dense_sbuf, firsts[0], 0, count, numbers), None)
        end = shift + (count - 1) * step + 1
        nisa.tensor_copy(dst=x_sbuf[0 : tile.rows, shift:end:step], src=dense_sbuf, engine=nisa.engine.gpsimd)


def clear_outside(run, dst_sbuf, firsts, source):
    """Zeros, or what a factor has for them, in the columns that hold no element in some group."""
    rows, size = dst_sbuf.shape
    left, right = held_by_all(run.geometry, follows_state(run, source), firsts, size)
    if left > 0:
        fill_outside(run, dst_sbuf[0:rows, 0:left], source)
    if right < size:
        fill_outside(run, dst_sbuf[0:rows, right:size], source)


def follows_state(run, source):
    """Whether a state precedes the rows of a source: that of x, not its factor's."""
    return run.options.state and source is run.operands.x


def load_elements(run, tile, dst_sbuf, firsts, begin, end, source):
    """What there is of a source in columns begin .. end-1; group g starts at element firsts[g]."""
    geometry = run.geometry
    steps = (geometry.x_n, geometry.x_c, geometry.x_w)
    where = places_between(tile, steps, firsts, begin, end, 0, geometry.W)
    copy_groups(dst_sbuf, source, tile, where, run.plan.rows.T * geometry.x_c, geometry.x_w, load_rows)


def load_state(run, tile, dst_sbuf, firsts, begin, end):
    """The same of the state, elements -pad_left .. -1."""
    L = run.geometry.pad_left
    where = places_between(tile, (run.geometry.C * L, L, 1), firsts, begin, end, -L, 0)
    copy_groups(dst_sbuf, run.operands.state, tile, where, run.plan.rows.T * L, 1, load_rows)


def tap_view(run, i, s, q0, qn):
    """What tap s meets at columns q0 .. q0+qn-1 of tile i: [rows, qn], strided."""
    geometry, tile, x_sbuf = run.geometry, run.tiles[i], run.held[i].x
    begin = q0 * geometry.stride + s * geometry.dilation
    return x_sbuf[0 : tile.rows, begin : begin + (qn - 1) * geometry.stride + 1 : geometry.stride]


def store_y(run, piece, y_sbuf):
    """The columns of a piece to HBM."""
    geometry, tile = run.geometry, run.tiles[piece.tile]
    where = places_of_y(tile, (geometry.y_n, geometry.y_c, geometry.y_q), 0, piece.q0, piece.qn)
    copy_groups(y_sbuf, run.operands.y, tile, where, run.plan.rows.T * geometry.y_c, geometry.y_q, store)


def load_mixed_residual(run, tile):
    """The residual of a tile, or y's factor, [rows, qn] in its own dtype, zeros where y has no column; None without."""
    geometry, residual = run.geometry, run.operands.residual
    if residual is None:
        return None
    residual_sbuf = nl.ndarray((tile.rows, tile.qn), dtype=residual.dtype, buffer=nl.sbuf)
    n_step, c_step, q_step, start = residual_places(geometry)
    where = places_of_y(tile, (n_step, c_step, q_step), start, 0, tile.qn)
    least = min(where[2])
    if least < tile.qn:
        fill_outside(run, residual_sbuf[0 : tile.rows, least : tile.qn])
    copy_groups(residual_sbuf, residual, tile, where, run.plan.rows.T * c_step, q_step, load)
    return residual_sbuf


def load_channels(run, src_hbm, dtype, images, t0, tn, steps, inner):
    """What belongs to the channels of tiles t0 .. t0+tn-1: [partitions, 1, tn * inner], the same in every group.

    steps: between images, channels and the `inner` elements of a channel in HBM. images: of which it is, (first, how
    many), whose channels are side by side: [partitions, images, tn * inner]; (0, 0): of no image.
    """
    groups, T, (n0, images) = run.plan.rows.G, run.plan.rows.T, images
    n_step, c_step, step = steps
    P = channels_of(run.geometry.C, T, t0)
    dst_sbuf = nl.ndarray((groups * P, max(1, images), tn * inner), dtype=dtype, buffer=nl.sbuf)
    for p0, pn, count in channel_runs(run.geometry.C, T, t0, tn):
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


def fill_state(run, tile, x_sbuf, missing):
    """Copy the `missing` elements before the row of a tile into its first columns, from the part's states."""
    first, last, L = run.tiles[0], run.tiles[len(run.tiles) - 1], run.geometry.pad_left
    n0, n1 = first.groups[0][0], last.groups[0][0] + 1
    if run.states is None:
        state, steps = run.operands.state, (run.geometry.C * L, L, 1)
        run.states = load_channels(run, state, state.dtype, (n0, n1 - n0), first.t, last.t + 1 - first.t, steps, L)
    count, end = min(missing, x_sbuf.shape[1]), (tile.t - first.t + 1) * L
    nisa.tensor_copy(
        dst=x_sbuf[0 : tile.rows, 0:count],
        src=run.states[0 : tile.rows, tile.groups[0][0] - n0, end - missing : end - missing + count],
        engine=filler(run.plan),
    )
