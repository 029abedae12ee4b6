"""The loop of narrow: rows of x come in, each passes the array once for all rows of y and taps of a block, shifted sums
are added as they are read out, rows of y go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import new_ledger
from ..._tiles import BANK_COLUMNS, filled
from ..._warm import warm_up, warm_zeros
from ..boxes import block_pieces, boxes_of_x, clear_window, load_bias_as, offset_at, residual_of, store_boxes
from ..call import of_array
from ..cuts import most_of, part_of_core
from ..geometry import is_of_planes, span
from ..planes import misses_planes, with_windows
from ..ring import load_until, start_ring, tile_of_load
from ..sums import Product, elements_met, planes_in_order, sums_met, zero_sums
from .config import NARROW_WARM_UP_FIRST
from .cuts import num_blocks, rows_met, steps_of, widest
from .filters import clear_stationaries, lay_out, load_narrow_filters, transpose_loaded
from .readouts import add_shifted


@dataclass
class Load(nl.NKIObject):
    """Rows h0 .. h0+hn-1 of x that steps from plane z0 of y on need, of planes d0 .. d0+dn-1."""

    z0: int
    d0: int
    dn: int
    h0: int
    hn: int


def run_narrow(operands, geometry, extras, narrow):
    """This core's part of the steps."""
    geometry = with_windows(geometry, narrow.V)
    _, steps = part_of_core(steps_of(geometry, narrow))
    if len(steps) == 0:
        return
    loaded = load_narrow_filters(operands, geometry, narrow)
    bias_pattern = [[0, narrow.U * narrow.V], [1, geometry.K // narrow.V], [1, 1]]
    bias_sbuf = load_bias_as(operands.bias, (narrow.U * geometry.K, 1), bias_pattern, 0)
    loads = loads_of(geometry, narrow, steps)
    cleared = clear_stationaries(operands, geometry, narrow)
    ring = ring_of_loads(operands, geometry, narrow, loads)
    ledger, zeros = new_ledger(), []
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, min(narrow.warmup, NARROW_WARM_UP_FIRST), 1)
    filters = None
    first = 0
    for index in range(len(steps)):
        step = steps[index]
        while not holds(loads[first], narrow, step):
            first += 1
        load_rows_until(ring, operands, geometry, loads, first + narrow.buffers)
        if filters == None:
            transposed = []
            for part in loaded:
                transposed.append(transpose_loaded(part, geometry, ledger))
            warm_up(zeros_sbuf, narrow.warmup - NARROW_WARM_UP_FIRST, 1)
            filters = lay_out(operands, loaded, transposed, cleared, geometry, narrow, ledger)
        passes = passes_of(geometry, narrow, step, loads, first)
        x = (ring, loads[first].d0, zeros_sbuf)
        last = index + 1 == len(steps)
        work_step(
            operands, geometry, extras.epilogue, narrow, step, x, passes, filters, bias_sbuf, ledger, zeros, index, last
        )


def loads_of(geometry, narrow, steps):
    """Loads of all rows that steps need, in order; cut at the same rows whoever has which steps."""
    found, z0 = [], -1
    low, high = rows_met(geometry)
    for step in steps:
        if step.z0 != z0:
            z0, last = step.z0, step
            d0, dn = span(geometry.planes, z0, step.zn)
            for other in steps:
                last = other if other.z0 == z0 else last
            h = max(low, narrow.first + step.j0 * narrow.step)
            stop = min(high, narrow.first + (last.j0 + last.jn - 1) * narrow.step + narrow.window)
            while h < stop:
                hn = min(stop, low + (grid_of(narrow, low, h) + 1) * narrow.height) - h
                found.append(Load(z0=z0, d0=d0, dn=dn, h0=h, hn=hn))
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


def ring_of_loads(operands, geometry, narrow, loads):
    """The Ring of x [c, chunk * planes, rows, columns]; zeros beside the rows, where nothing loads."""
    boxes, chunks, planes = [], narrow.chunks, 1
    for load in loads:
        planes = max(planes, load.dn)
    for load in loads:
        own = []
        for chunk in range(len(chunks) if load.dn > 0 else 0):
            counts = (load.hn, narrow.wn)
            for box in boxes_of_x(geometry, chunks[chunk], (load.d0, load.dn), (load.h0, narrow.w0), counts):
                place, pattern, offset, framed = box
                own.append(((place[0], chunk * planes + place[1], 0, narrow.pad), pattern, offset, framed))
        boxes.append(own)
    parts, height, pad, width = most_of(chunks), narrow.height, narrow.pad, narrow.wn + 2 * narrow.pad
    ring = start_ring(narrow.buffers, (parts, len(chunks) * planes, height, width), operands.x_dtype, boxes)
    for tile in ring.tiles:
        clear_window(tile, 0, height, 0, pad, nisa.engine.gpsimd)
        clear_window(tile, 0, height, width - pad, width, nisa.engine.gpsimd)
    return ring


def load_rows_until(ring, operands, geometry, loads, count):
    """Issue loads until `count` of them are, or all; zeros in the place of planes outside x."""
    while ring.issued < min(count, len(loads)):
        load, tile = loads[ring.issued], tile_of_load(ring, ring.issued)
        if misses_planes(geometry, load.d0, load.dn):
            nisa.memset(dst=tile, value=0.0, engine=nisa.engine.gpsimd)
        elif geometry.depth != None and ring.issued < len(ring.tiles):
            # a column where x comes: else it would overtake filters and loads that wait for zeros
            w = tile.shape[3] // 2
            clear_window(tile, 0, tile.shape[2], w, w + 1, nisa.engine.gpsimd)
        load_until(ring, operands, ring.issued + 1)


def results_of(operands, geometry, narrow, step, turn):
    """[(u, k), images, blocks, Q] in SBUF for y of a step. Slots of partitions take turns: a DMA engine serves eight
    partitions, so that always the same would make a few engines do all stores."""
    outputs, slots = narrow.U * geometry.K, nl.tile_size.pmax // narrow.slot
    first = turn % slots * narrow.slot
    shape = (first + outputs, step.zn, step.jn, geometry.columns.out)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    return y_sbuf[first : first + outputs, 0 : shape[1], 0 : shape[2], 0 : shape[3]]


def work_step(operands, geometry, epilogue, narrow, step, x, passes, filters, bias_sbuf, ledger, zeros, turn, last):
    """Results of one step, the turn-th: banks of sums one after the other, then the store. x: (ring of loads, their
    first plane, zeros)."""
    y_sbuf = results_of(operands, geometry, narrow, step, turn)
    outputs, Q = narrow.U * geometry.K, geometry.columns.out
    boxes = block_boxes(geometry, narrow, step, geometry.r_strides, 0, Q)
    volume = narrow.depth.out // narrow.depth.images
    # rows and planes that y does not have
    ragged = (step.j0 + step.jn) * narrow.U > geometry.rows.out or volume % narrow.V > 0
    residual_sbuf = residual_of(operands, (outputs, step.zn, step.jn, Q), boxes, ragged)
    by = geometry.y_strides
    for index in range(len(narrow.tiles)):
        q0, qn, w0, wn = narrow.tiles[index]
        acc_psum = nl.ndarray((narrow.outputs, step.zn, step.jn, wn), dtype=nl.float32, buffer=nl.psum)
        multiply_lines(acc_psum, operands, geometry, narrow, step, x, passes, filters, w0)
        zn, jn = step.zn, step.jn
        residual = None if residual_sbuf == None else residual_sbuf[0:outputs, 0:zn, 0:jn, q0 : q0 + qn]
        y = y_sbuf[0:outputs, 0:zn, 0:jn, q0 : q0 + qn]
        bank = turn * len(narrow.tiles) + index
        add_shifted(y, acc_psum, narrow, index, bias_sbuf, residual, epilogue, ledger, zeros, bank)
        if last:
            store_boxes(operands.y, y_sbuf, block_boxes(geometry, narrow, step, by, q0, qn))
    if not last:
        store_boxes(operands.y, y_sbuf, block_boxes(geometry, narrow, step, by, 0, Q))


@dataclass
class Pass(nl.NKIObject):
    """A line for blocks j .. j+jn-1 of a step, whose rows lie in a load (its index) from row h on; whether it is their
    first."""

    line: int
    load: int
    h: int
    j: int
    jn: int
    starts: bool


def passes_of(geometry, narrow, step, loads, first):
    """All Passes of a step; lines that all blocks have come first, so that none is cut at what has started.

    Sums of any step of a volume round alike: what counts there are all blocks of an image, if a bank holds these, or
    none. first: the load that holds the step's first row.
    """
    low, high = rows_met(geometry)
    j0, jn = step.j0, step.jn
    if is_of_planes(geometry):
        blocks = num_blocks(geometry, narrow)
        j0, jn = 0, blocks if blocks * widest(narrow.tiles) <= BANK_COLUMNS else 0
    whole, partial = [], []
    for line in range(len(narrow.lines)):
        h = narrow.first + j0 * narrow.step + narrow.lines[line]
        if jn == 0 or (low <= h and h + (jn - 1) * narrow.step < high):
            whole.append(line)
        else:
            partial.append(line)
    order = whole + partial
    started, found = filled(step.jn, False), []
    for line in order:
        run = None
        for j in range(step.jn):
            h = narrow.first + (step.j0 + j) * narrow.step + narrow.lines[line]
            if low <= h and h < high:
                load = first + grid_of(narrow, low, h) - grid_of(narrow, low, loads[first].h0)
                if run != None and run.load == load and run.starts != started[j]:
                    run.jn += 1
                else:
                    run = Pass(line=line, load=load, h=h - loads[load].h0, j=j, jn=1, starts=not started[j])
                    found.append(run)
                started[j] = True
            else:
                run = None
    return found


def multiply_lines(acc_psum, operands, geometry, narrow, step, x, passes, filters, w0):
    """All products of a bank of sums: [(t, slot), planes, blocks, columns]."""
    ring, d0, zeros_sbuf = x
    planes = planes_in_order(geometry.planes, step.z0, step.zn)
    zeroed = len(planes) == 0 or planes[0][1][2] < step.zn
    if zeroed:
        zero_sums(acc_psum, zeros_sbuf)
    for which in range(len(planes)):
        tap, on_planes = planes[which]
        for one in passes:
            started = zeroed or which > 0 or not one.starts
            rows = (one.j, 1, one.jn, one.h, narrow.step)
            tile = tile_of_load(ring, one.load)
            parts, dn, height, width = tile.shape
            dn = dn // len(narrow.chunks)
            for chunk in range(len(narrow.chunks)):
                count = narrow.chunks[chunk][1]
                x_sbuf = of_array(tile[0:parts, chunk * dn : (chunk + 1) * dn, 0:height, 0:width], operands)
                for g in range(narrow.groups):
                    columns = (0, 1, acc_psum.shape[3], w0 + g * narrow.shift, 1)
                    row = tap * len(narrow.lines) + one.line
                    product = Product(row=row, group=g, planes=on_planes, rows=rows, columns=columns)
                    nisa.nc_matmul(
                        dst=sums_met(acc_psum, product, (step.z0, 0, 0)),
                        stationary=filters[chunk][0:count, row, g, 0 : narrow.outputs],
                        moving=elements_met(x_sbuf, (0, count), product, (d0, 0, 0)),
                        accumulate=started,
                    )
                    started = True


def block_boxes(geometry, narrow, step, strides, q0, qn):
    """Columns q0 .. q0+qn-1 of a step as boxes, as far as y has their rows. strides: in HBM along k, n, p, q."""
    by_k, by_n, by_p, by_q = strides[0], strides[1], strides[2], strides[3]
    V, K, found = narrow.V, geometry.K // narrow.V, []
    groups = geometry.planes.out // geometry.planes.images
    for image in block_pieces(narrow.depth.out // narrow.depth.images, V, 1, step.z0 % groups, step.zn):
        z, zn, vn = image[0], image[1], image[3]
        for piece in block_pieces(geometry.rows.out, narrow.U, 1, step.j0, step.jn):
            j, jn, un = piece[0], piece[1], piece[3]
            leading, times = ([by_p, un], 1) if V == 1 else ([by_n // V, vn], un)
            for u in range(times):
                pattern = [leading, [by_k, K], [by_n, zn], [narrow.U * by_p, jn], [by_q, qn]]
                offset = offset_at(strides, (0, step.z0 + z, (step.j0 + j) * narrow.U + u, q0))
                found.append(((u * geometry.K, z, j, q0), pattern, offset))
    return found
