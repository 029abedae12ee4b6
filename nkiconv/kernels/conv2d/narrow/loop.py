"""The loop of narrow: rows of x come in, each passes the array once for all rows of y and taps of a block, shifted sums
are added as they are read out, rows of y go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import new_ledger
from ..._warm import warm_up, warm_zeros
from ..boxes import block_pieces, clear_window, load_bias_as, load_box, offset_at, pattern_of, residual_of, store_boxes
from ..call import of_array
from ..cuts import part_of_core
from ..sums import spaced
from .config import NARROW_WARM_UP_FIRST
from .cuts import rows_met, steps_of
from .filters import clear_stationaries, lay_out, load_narrow_filters, transpose_loaded
from .readouts import add_shifted


@dataclass
class Load(nl.NKIObject):
    """Rows h0 .. h0+hn-1 of planes z0 .. z0+zn-1, and their tiles once they are loaded."""

    z0: int
    zn: int
    h0: int
    hn: int
    tiles: list


def run_narrow(operands, geometry, extras, narrow):
    """This core's part of the steps."""
    _, steps = part_of_core(steps_of(geometry, narrow))
    if len(steps) == 0:
        return
    loaded = load_narrow_filters(operands, geometry, narrow)
    bias_pattern = [[0, narrow.U], [1, geometry.K], [1, 1]]
    bias_sbuf = load_bias_as(operands.bias, (narrow.U * geometry.K, 1), bias_pattern, 0)
    loads = loads_of(geometry, narrow, steps)
    cleared = clear_stationaries(operands, narrow)
    ring = x_of_loads(operands, narrow, len(loads))
    ledger, zeros = new_ledger(), []
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, min(narrow.warmup, NARROW_WARM_UP_FIRST), 1)
    filters = None
    issued, first = 0, 0
    for index in range(len(steps)):
        step = steps[index]
        while not holds(loads[first], narrow, step):
            first += 1
        while issued < len(loads) and issued < first + narrow.buffers:
            load_lines(operands, geometry, narrow, loads[issued], ring[issued % len(ring)])
            issued += 1
        if filters == None:
            transposed = []
            for part in loaded:
                transposed.append(transpose_loaded(part, geometry, ledger))
            warm_up(zeros_sbuf, narrow.warmup - NARROW_WARM_UP_FIRST, 1)
            filters = lay_out(operands, loaded, transposed, cleared, geometry, narrow, ledger)
        passes = passes_of(geometry, narrow, step, loads, first)
        last = index + 1 == len(steps)
        work_step(
            operands, geometry, extras.epilogue, narrow, step, passes, filters, bias_sbuf, ledger, zeros, index, last
        )


def loads_of(geometry, narrow, steps):
    """Loads of all rows that steps need, in order; cut at the same rows whoever has which steps."""
    found, n0 = [], -1
    low, high = rows_met(geometry)
    for step in steps:
        if step.z0 != n0:
            n0, last = step.z0, step
            for other in steps:
                last = other if other.z0 == n0 else last
            h = max(low, narrow.first + step.j0 * narrow.step)
            stop = min(high, narrow.first + (last.j0 + last.jn - 1) * narrow.step + narrow.window)
            while h < stop:
                hn = min(stop, low + (grid_of(narrow, low, h) + 1) * narrow.height) - h
                found.append(Load(z0=n0, zn=step.zn, h0=h, hn=hn, tiles=[]))
                h += hn
    return found


def grid_of(narrow, low, h):
    """Which of the loads of all rows from `low` on holds row h."""
    return (h - low) // narrow.height


def holds(load, narrow, step):
    """Whether a load holds rows that a step, or one after it, needs."""
    if load.z0 != step.z0:
        return load.z0 > step.z0
    return load.h0 + load.hn > narrow.first + step.j0 * narrow.step


def x_of_loads(operands, narrow, num_loads):
    """Tiles of x that loads take in turn, one for every chunk; zeros beside the rows, where nothing loads."""
    height, pad, width = narrow.height, narrow.pad, narrow.wn + 2 * narrow.pad
    ring = []
    for _ in range(min(narrow.buffers, num_loads)):
        tiles = []
        for chunk in narrow.chunks:
            x_sbuf = nl.ndarray((chunk[1], narrow.images, height, width), dtype=operands.x_dtype, buffer=nl.sbuf)
            clear_window(x_sbuf, 0, height, 0, pad, nisa.engine.gpsimd)
            clear_window(x_sbuf, 0, height, width - pad, width, nisa.engine.gpsimd)
            tiles.append(x_sbuf)
        ring.append(tiles)
    return ring


def load_lines(operands, geometry, narrow, load, tiles):
    """Rows of x of a load into a buffer."""
    strides = geometry.x_strides
    for chunk in range(len(narrow.chunks)):
        c0, count = narrow.chunks[chunk]
        pattern = pattern_of(strides, (count, load.zn, load.hn, narrow.wn))
        offset = offset_at(strides, (c0, load.z0, load.h0, narrow.w0))
        load_box(tiles[chunk], operands.x, (0, 0, 0, narrow.pad), pattern, offset)
        load.tiles.append(of_array(tiles[chunk], operands))


def results_of(operands, geometry, narrow, step, turn):
    """[(u, k), images, blocks, Q] in SBUF for y of a step. Slots of partitions take turns: a DMA engine serves eight
    partitions, so that always the same would make a few engines do all stores."""
    outputs, slots = narrow.U * geometry.K, nl.tile_size.pmax // narrow.slot
    first = turn % slots * narrow.slot
    shape = (first + outputs, step.zn, step.jn, geometry.columns.out)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    return y_sbuf[first : first + outputs, 0 : shape[1], 0 : shape[2], 0 : shape[3]]


def work_step(operands, geometry, epilogue, narrow, step, passes, filters, bias_sbuf, ledger, zeros, turn, last):
    """Results of one step, the turn-th: banks of sums one after the other, then the store."""
    y_sbuf = results_of(operands, geometry, narrow, step, turn)
    outputs, Q = narrow.U * geometry.K, geometry.columns.out
    boxes = block_boxes(geometry, narrow, step, geometry.r_strides, 0, Q)
    # rows that y does not have
    ragged = (step.j0 + step.jn) * narrow.U > geometry.rows.out
    residual_sbuf = residual_of(operands, (outputs, step.zn, step.jn, Q), boxes, ragged)
    by = geometry.y_strides
    for index in range(len(narrow.tiles)):
        q0, qn, w0, wn = narrow.tiles[index]
        acc_psum = nl.ndarray((narrow.outputs, step.zn, step.jn, wn), dtype=nl.float32, buffer=nl.psum)
        multiply_lines(acc_psum, narrow, step, passes, filters, w0, wn)
        residual = None
        if residual_sbuf != None:
            residual = residual_sbuf[0:outputs, 0 : step.zn, 0 : step.jn, q0 : q0 + qn]
        y = y_sbuf[0:outputs, 0 : step.zn, 0 : step.jn, q0 : q0 + qn]
        bank = turn * len(narrow.tiles) + index
        add_shifted(y, acc_psum, narrow, index, bias_sbuf, residual, epilogue, ledger, zeros, bank)
        if last:
            store_boxes(operands.y, y_sbuf, block_boxes(geometry, narrow, step, by, q0, qn))
    if not last:
        store_boxes(operands.y, y_sbuf, block_boxes(geometry, narrow, step, by, 0, Q))


@dataclass
class Pass(nl.NKIObject):
    """A line for blocks j .. j+jn-1 of a step, whose rows lie in one load from row h on; whether it is their first."""

    line: int
    load: Load
    h: int
    j: int
    jn: int
    starts: bool


def passes_of(geometry, narrow, step, loads, first):
    """All Passes of a step; lines that all blocks have come first, so that none is cut at what has started.

    first: the load that holds the step's first row.
    """
    low, high = rows_met(geometry)
    whole, partial = [], []
    for line in range(len(narrow.lines)):
        h = narrow.first + step.j0 * narrow.step + narrow.lines[line]
        if low <= h and h + (step.jn - 1) * narrow.step < high:
            whole.append(line)
        else:
            partial.append(line)
    order = whole + partial
    started, found = [], []
    for _ in range(step.jn):
        started.append(False)
    for line in order:
        run = None
        for j in range(step.jn):
            h = narrow.first + (step.j0 + j) * narrow.step + narrow.lines[line]
            if low <= h and h < high:
                load = loads[first + grid_of(narrow, low, h) - grid_of(narrow, low, loads[first].h0)]
                if run != None and run.load.h0 == load.h0 and run.starts != started[j]:
                    run.jn += 1
                else:
                    run = Pass(line=line, load=load, h=h - load.h0, j=j, jn=1, starts=not started[j])
                    found.append(run)
                started[j] = True
            else:
                run = None
    return found


def multiply_lines(acc_psum, narrow, step, passes, filters, w0, wn):
    """All products of a bank of sums: [(t, slot), images, blocks, columns]."""
    images = (0, step.zn, 1)
    for one in passes:
        started = not one.starts
        for chunk in range(len(narrow.chunks)):
            count = narrow.chunks[chunk][1]
            rows = (one.h, one.jn, narrow.step)
            for g in range(narrow.groups):
                nisa.nc_matmul(
                    dst=acc_psum[0 : narrow.outputs, 0 : step.zn, one.j : one.j + one.jn, 0:wn],
                    stationary=filters[chunk][0:count, one.line, g, 0 : narrow.outputs],
                    moving=spaced(one.load.tiles[chunk], (0, count), images, rows, (w0 + g * narrow.shift, wn, 1)),
                    accumulate=started,
                )
                started = True


def block_boxes(geometry, narrow, step, strides, q0, qn):
    """Columns q0 .. q0+qn-1 of a step as boxes, as far as y has their rows. strides: in HBM along k, n, p, q."""
    by_k, by_n, by_p, by_q = strides
    found = []
    for piece in block_pieces(geometry.rows.out, narrow.U, 1, step.j0, step.jn):
        j, jn, un = piece[0], piece[1], piece[3]
        pattern = [[by_p, un], [by_k, geometry.K], [by_n, step.zn], [narrow.U * by_p, jn], [by_q, qn]]
        found.append(((0, 0, j, q0), pattern, offset_at(strides, (0, step.z0, (step.j0 + j) * narrow.U, q0))))
    return found
