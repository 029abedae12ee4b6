"""DMAs of tiles with channels on partitions: x with its halo, residual, filters, biases and states in; y out.

x is loaded once, straight to its place, in runs of whole rows. Zeros of the padding are memsets of their columns; an
initial state is a DMA into these columns, or, if it is a few elements, is staged in SBUF: one DMA of long runs for all
tiles but the first, as channels p * T + t of neighbouring tiles are neighbours in HBM, then a small copy for each. Only
lhs_dilation takes a second step, a strided copy on chip that opens the gaps.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.rows import channel_runs, channels_of, held_by_all, positions_of, regions_of, run_length
from ....schedules.tiles import div_ceil
from ..._prologue import Arrival, finish_gates
from ..tensors import Rows


def move_groups(run, tile_sbuf, rows, tile, firsts, columns, high=None, is_store=False):
    """DMAs of columns (first, end) of a tile's groups, as far as rows in HBM have them below element `high`. Column 0
    of group g is element firsts[g]."""
    (_, c_step, step), T = rows.steps, run.plan.rows.T
    for one in regions_of(tile, rows.steps, firsts, columns, (rows.low, rows.high if high is None else high)):
        lines = slice(one.group * tile.P, (one.group + one.groups) * tile.P)
        pattern = [[one.apart, one.groups], [T * c_step, tile.P], [step, one.count]]
        here = tile_sbuf[lines, one.first : one.first + one.count]
        rows.move(here, pattern, one.n, tile.t, one.element, is_store)


def load_tile_x(run, tile, cuts):
    """(x [rows, run], its pending products or prologues in order of columns) of a tile.

    cuts: end columns of the tile's DMAs, the last is the tile's width.
    """
    geometry, tensors, gates, begin = run.geometry, run.tensors, [], 0
    firsts, numbers, size = positions_of(geometry, tile), load_numbers(run, tile), run_length(geometry, tile.qn)
    tiles = [nl.ndarray((tile.rows, size), dtype=source.dtype, buffer=nl.sbuf) for source in tensors.sources]
    if geometry.lhs_dilation > 1:
        for source, x_sbuf in zip(tensors.sources, tiles):
            load_dilated(run, tile, x_sbuf, source, numbers)
        return tiles[0], tensors.gates(tiles)
    for source, x_sbuf in zip(tensors.sources, tiles):
        clear_outside(run, x_sbuf, firsts, source)
    for columns in cuts:
        end = run_length(geometry, columns)
        for source, x_sbuf in zip(tensors.sources, tiles):
            if tensors.state is not None and source is tensors.x:
                load_state(run, tile, x_sbuf, firsts, (begin, end))
            move_groups(run, x_sbuf, source, tile, firsts, (begin, end))
        gates += tensors.gates([x_sbuf[0 : tile.rows, begin:end] for x_sbuf in tiles])
        gates += arrivals(run, tiles[0], firsts[0], begin, end, numbers)
        begin = end
    return tiles[0], gates


def load_numbers(run, tile):
    """The scale and shift of the prologue for a tile's channels, each [rows, 1] or None."""
    prologue, found = run.tensors.prologue, []
    for hbm in (None, None) if prologue is None else (prologue.scale, prologue.shift):
        if hbm is not None:
            rows = Rows(hbm, (0 if len(hbm.shape) == 1 else run.geometry.C, 1, 1), 0, 1)
            hbm = load_channels(run, rows, nl.float32, tile.t, 1, tile.groups[0][0])[0 : tile.rows, 0, 0:1]
        found.append(hbm)
    return found


def arrivals(run, x_sbuf, first, begin, end, numbers):
    """The prologue of the elements of x in columns begin .. end-1, column 0 being element `first`; [] without one."""
    begin, end = max(begin, -first), min(end, run.geometry.W - first)
    if run.tensors.prologue is None or begin >= end:
        return []
    return [Arrival(x_sbuf[0 : x_sbuf.shape[0], begin:end], run.tensors.prologue, *numbers)]


def load_dilated(run, tile, x_sbuf, source, numbers):
    """Load a run of x with gaps of zeros: its elements as neighbours, then a strided copy."""
    step, positions = run.geometry.lhs_dilation, positions_of(run.geometry, tile)
    nisa.memset(dst=x_sbuf, value=source.outside, engine=nisa.engine.vector)
    firsts, shift = [-(-position // step) for position in positions], -positions[-1] % step
    if shift < x_sbuf.shape[1]:
        count = div_ceil(x_sbuf.shape[1] - shift, step)
        dense_sbuf = nl.ndarray((tile.rows, count), dtype=source.dtype, buffer=nl.sbuf)
        clear_outside(run, dense_sbuf, firsts, source)
        move_groups(run, dense_sbuf, source, tile, firsts, (0, count))
        finish_gates(arrivals(run, dense_sbuf, firsts[0], 0, count, numbers), None)
        end = shift + (count - 1) * step + 1
        nisa.tensor_copy(dst=x_sbuf[0 : tile.rows, shift:end:step], src=dense_sbuf, engine=nisa.engine.gpsimd)


def clear_outside(run, dst_sbuf, firsts, source):
    """Zeros, or a factor's value `outside`, in the columns without an element in some group."""
    rows, size = dst_sbuf.shape
    has_state = run.tensors.state is not None and source is run.tensors.x
    left, right = held_by_all(run.geometry, has_state, firsts, size)
    for first, end in ((0, left), (right, size)):
        if first < end:
            nisa.memset(dst=dst_sbuf[0:rows, first:end], value=source.outside, engine=nisa.engine.vector)


def load_state(run, tile, x_sbuf, firsts, columns):
    """Load the state's elements in columns (first, end): from HBM, or from the part's staged states."""
    state, first, last, missing = run.tensors.state, run.tiles[0], run.tiles[-1], -firsts[0]
    if run.plan.states == 0 or run.loaded == 0:
        move_groups(run, x_sbuf, state, tile, firsts, columns)
    elif columns[0] == 0 and missing > 0:
        n0, length = first.groups[0][0], -state.low
        if run.states is None:
            t_count, images = last.t + 1 - first.t, last.groups[0][0] + 1 - n0
            run.states = load_channels(run, state, state.dtype, first.t, t_count, n0, images)
        count, end = min(missing, x_sbuf.shape[1]), (tile.t - first.t + 1) * length
        nisa.tensor_copy(
            dst=x_sbuf[0 : tile.rows, 0:count],
            src=run.states[0 : tile.rows, tile.groups[0][0] - n0, end - missing : end - missing + count],
            engine=nisa.engine.vector,
        )


def tap_view(run, i, s, q0, qn):
    """The elements of x that tap s multiplies for columns q0 .. q0+qn-1 of tile i: [rows, qn], strided."""
    geometry, tile, x_sbuf = run.geometry, run.tiles[i], run.held[i].x
    begin = q0 * geometry.stride + s * geometry.dilation
    return x_sbuf[0 : tile.rows, begin : begin + (qn - 1) * geometry.stride + 1 : geometry.stride]


@dataclass
class Store:
    """Columns of y that one DMA stores, [rows, columns] in SBUF, and how many of them are still missing."""

    y_sbuf: object
    missing: int


def store_y(run, piece):
    """Store the columns that a piece completes."""
    tile, (first, count) = run.tiles[piece.tile], piece.stored
    store = run.held[piece.tile].stores[first]
    store.missing -= piece.qn
    if store.missing == 0:
        firsts = [q0 + first for _, q0 in tile.groups]
        move_groups(run, store.y_sbuf, run.tensors.y, tile, firsts, (0, count), tile.end_q, is_store=True)


def load_mixed_residual(run, tile):
    """The residual of a tile, or y's factor, [rows, qn] in its dtype, with zeros outside y; None without one."""
    residual, firsts = run.tensors.residual, [q0 for _, q0 in tile.groups]
    if residual is None:
        return None
    residual_sbuf = nl.ndarray((tile.rows, tile.qn), dtype=residual.dtype, buffer=nl.sbuf)
    least = tile.end_q - max(firsts)
    if least < tile.qn:
        nisa.memset(dst=residual_sbuf[0 : tile.rows, least : tile.qn], value=0.0, engine=nisa.engine.vector)
    move_groups(run, residual_sbuf, residual, tile, firsts, (0, tile.qn), tile.end_q)
    return residual_sbuf


def load_channels(run, rows, dtype, t0, tn, n0=0, images=1):
    """Load the rows of the channels of tiles t0 .. t0+tn-1 of some images: [partitions, images, tn * elements], the
    same in every group."""
    groups, T, (n_step, c_step, step) = run.plan.rows.G, run.plan.rows.T, rows.steps
    P, inner = channels_of(run.geometry.C, T, t0), rows.size
    dst_sbuf = nl.ndarray((groups * P, images, tn * inner), dtype=dtype, buffer=nl.sbuf)
    for p0, pn, count in channel_runs(run.geometry.C, T, t0, tn):
        pattern = [[T * c_step, pn], [n_step, images], [c_step, count], [step, inner]]
        if groups > 1:  # all partitions have as many channels
            pattern = [[0, groups], *pattern]
        dst = dst_sbuf[p0 : p0 + groups * pn, 0:images, 0 : count * inner]
        rows.load(dst, pattern, n0, p0 * T + t0, rows.low)
    return dst_sbuf
