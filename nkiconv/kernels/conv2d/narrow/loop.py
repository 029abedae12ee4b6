"""The loop of narrow: rows of x come in, each passes the array once for all rows of y and taps of a block, shifted sums
are added as they are read out, rows of y go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import share
from ..._warm import warm_up, warm_zeros
from ..call import of_array, scale_residual
from .config import NARROW_WARM_UP_FIRST
from .cuts import rows_met, steps_of
from .filters import clear_stationaries, lay_out, load_filters, turn_filters
from .readouts import add_taps, start_books


@dataclass
class Load(nl.NKIObject):
    """Rows h0 .. h0+hn-1 of images n0 .. n0+nn-1, and their tiles once they are loaded."""

    n0: int
    nn: int
    h0: int
    hn: int
    tiles: list


def run_narrow(operands, geometry, extras, narrow):
    """This core's part of the steps."""
    steps = steps_of(geometry, narrow)
    mine = share(len(steps), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    end = mine[0] + mine[1]
    loaded = load_filters(operands, geometry, narrow)
    bias_sbuf = load_bias_of_blocks(operands.bias, geometry, narrow)
    loads = loads_of(geometry, narrow, steps, mine[0], end)
    cleared = clear_stationaries(operands, narrow)
    ring = x_ring(operands, narrow, len(loads))
    books = start_books(geometry, narrow)
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, min(narrow.warmup, NARROW_WARM_UP_FIRST), 1)
    filters = None
    issued, first = 0, 0
    for index in range(mine[0], end):
        step = steps[index]
        while not holds(loads[first], narrow, step):
            first += 1
        while issued < len(loads) and issued < first + narrow.buffers:
            load_rows(operands, geometry, narrow, loads[issued], ring[issued % len(ring)])
            issued += 1
        if filters == None:
            turned = []
            for part in range(len(loaded)):
                turned.append(turn_filters(loaded[part], geometry, books.ledger))
            warm_up(zeros_sbuf, narrow.warmup - NARROW_WARM_UP_FIRST, 1)
            filters = lay_out(operands, loaded, turned, cleared, geometry, narrow, books.ledger)
        passes = passes_of(geometry, narrow, step, loads, first)
        y_sbuf = results_of(operands, geometry, narrow, step, index)
        last = index + 1 == end
        work_step(operands, geometry, extras.epilogue, narrow, step, passes, filters, bias_sbuf, y_sbuf, books, last)


def loads_of(geometry, narrow, steps, first, end):
    """Loads of all rows that steps first .. end-1 need, in order; cut at the same rows whoever has which steps."""
    found = []
    low, high = rows_met(geometry)
    index = first
    while index < end:
        first_step = steps[index]
        last_step = first_step
        step = first_step
        while index < end and step.n0 == first_step.n0:
            last_step = step
            index += 1
            step = steps[min(index, end - 1)]
        h = max(low, narrow.first + first_step.j0 * narrow.step)
        stop = min(high, narrow.first + (last_step.j0 + last_step.jn - 1) * narrow.step + narrow.window)
        while h < stop:
            hn = min(stop, low + (grid_of(narrow, low, h) + 1) * narrow.height) - h
            found.append(Load(n0=first_step.n0, nn=first_step.nn, h0=h, hn=hn, tiles=[]))
            h += hn
    return found


def grid_of(narrow, low, h):
    """Which of the loads of all rows from `low` on holds row h."""
    return (h - low) // narrow.height


def holds(load, narrow, step):
    """Whether a load holds rows that a step, or one after it, needs."""
    if load.n0 != step.n0:
        return load.n0 > step.n0
    return load.h0 + load.hn > narrow.first + step.j0 * narrow.step


def x_ring(operands, narrow, num_loads):
    """Buffers of x that loads take in turn, each a tile for every chunk; zeros beside the rows, where nothing loads."""
    images, height = narrow.images, narrow.height
    pad, width = narrow.pad, narrow.wn + 2 * narrow.pad
    ring = []
    for _ in range(min(narrow.buffers, num_loads)):
        tiles = []
        for chunk in range(len(narrow.chunks)):
            count = narrow.chunks[chunk][1]
            x_sbuf = nl.ndarray((count, images, height, width), dtype=operands.x_dtype, buffer=nl.sbuf)
            for side in range(2 if pad > 0 else 0):
                w = side * (width - pad)
                nisa.memset(dst=x_sbuf[0:count, 0:images, 0:height, w : w + pad], value=0.0, engine=nisa.engine.gpsimd)
            tiles.append(x_sbuf)
        ring.append(tiles)
    return ring


def load_rows(operands, geometry, narrow, load, tiles):
    """Rows of x of a load into a buffer."""
    for chunk in range(len(narrow.chunks)):
        c0, count = narrow.chunks[chunk]
        offset = load.n0 * geometry.x_n + c0 * geometry.x_c + load.h0 * geometry.x_h + narrow.w0 * geometry.x_w
        pattern = [
            [geometry.x_c, count],
            [geometry.x_n, load.nn],
            [geometry.x_h, load.hn],
            [geometry.x_w, narrow.wn],
        ]
        copy(
            tiles[chunk][0:count, 0 : load.nn, 0 : load.hn, narrow.pad : narrow.pad + narrow.wn],
            operands.x.ap(pattern=pattern, offset=offset),
        )
        load.tiles.append(of_array(tiles[chunk], operands))


def results_of(operands, geometry, narrow, step, index):
    """[(u, k), images, blocks, Q] in SBUF for y of a step. Slots of partitions take turns: a DMA engine serves eight
    partitions, so that always the same would make a few engines do all stores."""
    outputs, slots = narrow.U * geometry.K, nl.tile_size.pmax // narrow.slot
    first = index % slots * narrow.slot
    shape = (first + outputs, step.nn, step.jn, geometry.columns.out)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    return y_sbuf[first : first + outputs, 0 : shape[1], 0 : shape[2], 0 : shape[3]]


def work_step(operands, geometry, epilogue, narrow, step, passes, filters, bias_sbuf, y_sbuf, books, last):
    """Results of one step into y_sbuf: banks of sums one after the other, then the store."""
    outputs, Q = narrow.U * geometry.K, geometry.columns.out
    residual_sbuf = load_residual(operands, geometry, narrow, step)
    for index in range(len(narrow.tiles)):
        q0, qn, w0, wn = narrow.tiles[index]
        acc_psum = nl.ndarray((narrow.outputs, step.nn, step.jn, wn), dtype=nl.float32, buffer=nl.psum)
        multiply(acc_psum, narrow, step, passes, filters, w0, wn)
        residual = None
        if residual_sbuf != None:
            residual = residual_sbuf[0:outputs, 0 : step.nn, 0 : step.jn, q0 : q0 + qn]
        add_taps(
            y_sbuf[0:outputs, 0 : step.nn, 0 : step.jn, q0 : q0 + qn],
            acc_psum,
            narrow,
            index,
            bias_sbuf,
            residual,
            epilogue,
            books,
        )
        if last:
            store_blocks(operands.y, y_sbuf, geometry, narrow, step, q0, qn)
    if not last:
        store_blocks(operands.y, y_sbuf, geometry, narrow, step, 0, Q)


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
        h = narrow.first + step.j0 * narrow.step + narrow.lines[line].row
        if low <= h and h + (step.jn - 1) * narrow.step < high:
            whole.append(line)
        else:
            partial.append(line)
    order = whole + partial
    started, found = [], []
    for _ in range(step.jn):
        started.append(False)
    for index in range(len(order)):
        line = order[index]
        run = None
        for j in range(step.jn):
            h = narrow.first + (step.j0 + j) * narrow.step + narrow.lines[line].row
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


def multiply(acc_psum, narrow, step, passes, filters, w0, wn):
    """All products of a bank of sums: [(t, slot), images, blocks, columns]."""
    for index in range(len(passes)):
        one = passes[index]
        starts = one.starts
        for chunk in range(len(narrow.chunks)):
            x_sbuf = one.load.tiles[chunk]
            count = narrow.chunks[chunk][1]
            for g in range(narrow.groups):
                w = w0 + g * narrow.shift
                nisa.nc_matmul(
                    dst=acc_psum[0 : narrow.outputs, 0 : step.nn, one.j : one.j + one.jn, 0:wn],
                    stationary=filters[chunk][0:count, one.line, g, 0 : narrow.outputs],
                    moving=x_sbuf[
                        0:count,
                        0 : step.nn,
                        one.h : one.h + (one.jn - 1) * narrow.step + 1 : narrow.step,
                        w : w + wn,
                    ],
                    accumulate=not starts,
                )
                starts = False


def load_bias_of_blocks(bias_hbm, geometry, narrow):
    """[(u, k), 1] fp32 in SBUF, or None."""
    if bias_hbm == None:
        return None
    bias_sbuf = nl.ndarray((narrow.U * geometry.K, 1), dtype=nl.float32, buffer=nl.sbuf)
    copy(bias_sbuf, bias_hbm.ap(pattern=[[0, narrow.U], [1, geometry.K], [1, 1]], offset=0))
    return bias_sbuf


@dataclass
class Piece(nl.NKIObject):
    """Blocks j .. j+jn-1 of a step in HBM, as far as y has their rows: partitions 0 .. parts-1, an access pattern."""

    parts: int
    j: int
    jn: int
    pattern: list
    offset: int


def pieces_of(geometry, narrow, step, strides, q0, qn):
    """Whole blocks of a step together, then what there is of a last one. strides: in HBM along n, k, p, q."""
    K, U, P = geometry.K, narrow.U, geometry.rows.out
    by_n, by_k, by_p, by_q = strides
    whole = max(0, min(step.jn, P // U - step.j0))
    found = []
    for part in range(2):
        j, jn = (0, whole) if part == 0 else (whole, step.jn - whole)
        un = U if part == 0 else P % U
        if jn > 0:
            pattern = [[by_p, un], [by_k, K], [by_n, step.nn], [U * by_p, jn], [by_q, qn]]
            offset = step.n0 * by_n + (step.j0 + j) * U * by_p + q0 * by_q
            found.append(Piece(parts=un * K, j=j, jn=jn, pattern=pattern, offset=offset))
    return found


def load_residual(operands, geometry, narrow, step):
    """The residual of a step times beta, fp32 if it was multiplied, or None; zeros in rows that y does not have."""
    if operands.residual == None:
        return None
    Q = geometry.columns.out
    shape = (narrow.U * geometry.K, step.nn, step.jn, Q)
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    if (step.j0 + step.jn) * narrow.U > geometry.rows.out:
        nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    strides = geometry.r_n, geometry.r_k, geometry.r_p, geometry.r_q
    pieces = pieces_of(geometry, narrow, step, strides, 0, Q)
    for index in range(len(pieces)):
        piece = pieces[index]
        copy(
            residual_sbuf[0 : piece.parts, 0 : step.nn, piece.j : piece.j + piece.jn, 0:Q],
            operands.residual.ap(pattern=piece.pattern, offset=piece.offset),
        )
    return scale_residual(residual_sbuf, operands.beta)


def store_blocks(y_hbm, y_sbuf, geometry, narrow, step, q0, qn):
    """Columns q0 .. q0+qn-1 of a step's results."""
    strides = geometry.y_n, geometry.y_k, geometry.y_p, geometry.y_q
    pieces = pieces_of(geometry, narrow, step, strides, q0, qn)
    for index in range(len(pieces)):
        piece = pieces[index]
        copy(
            y_hbm.ap(pattern=piece.pattern, offset=piece.offset),
            y_sbuf[0 : piece.parts, 0 : step.nn, piece.j : piece.j + piece.jn, q0 : q0 + qn],
        )
