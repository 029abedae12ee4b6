"""The loop of narrow: rows of x come in, each passes the array once for all rows of y and taps of a block, shifted sums
are added as they are read out, rows of y go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.geometry import is_of_planes, span
from ....schedules.planes import misses_planes, with_windows
from ....schedules.tiles import BANK_COLUMNS, cut_at, filled
from ..._engines import new_ledger
from ..._warm import warm_up, warm_zeros
from ..boxes import block_pieces, boxes_of_x, clear_window, load_bias_as, offset_at, residual_of, store_boxes
from ..call import of_array, part_of_core
from ..ring import load_until, start_ring, tile_of_load
from ..sums import Product, elements_met, planes_in_order, sums_met, zero_sums
from .cuts import columns_of_group, lane_parts, lane_steps, num_blocks, rows_met, rows_of_piece, steps_of, widest
from .filters import clear_stationaries, lay_out, load_narrow_filters, transpose_loaded
from .readouts import add_shifted, parts_of_steps


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
    zeros_sbuf = warm_zeros()
    cleared = clear_stationaries(operands, geometry, narrow)
    ring = ring_of_loads(operands, geometry, narrow, loads)
    ledger, ahead = new_ledger(), parts_of_steps(geometry, narrow, steps)
    warm_up(zeros_sbuf, narrow.warmup, 1)
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
            filters = lay_out(operands, loaded, transposed, cleared, geometry, narrow, ledger)
        passes = passes_of(geometry, narrow, step, loads, first)
        x = (ring, loads[first].d0, zeros_sbuf)
        last = index + 1 == len(steps)
        work_step(
            operands, geometry, extras.epilogue, narrow, step, x, passes, filters, bias_sbuf, ledger, ahead, index, last
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


def planes_of_load(geometry, narrow, load, lane):
    """(first, how many) planes of x of a load's lane; one lane may have fewer."""
    d0 = load.d0 + lane * narrow.lane.out
    return (d0, load.dn) if narrow.L == 1 else (d0, max(0, min(load.dn, geometry.planes.size - d0)))


def holds(load, narrow, step):
    """Whether a load holds rows that a step, or one after it, needs."""
    if load.z0 != step.z0:
        return load.z0 > step.z0
    return load.h0 + load.hn > narrow.first + step.j0 * narrow.step


def ring_of_loads(operands, geometry, narrow, loads):
    """The Ring of x [c, chunk * planes, rows, columns]."""
    boxes, chunks, planes = [], narrow.chunks, 1
    for load in loads:
        planes = max(planes, load.dn)
    for load in loads:
        own = []
        # a long load is several transfers, so that the first rows need not wait for the last
        for piece in cut_at(load.hn if load.dn > 0 else 0, rows_of_piece(geometry, narrow, planes)):
            h0, counts = load.h0 + piece[0], (piece[1], narrow.wn)
            for index in range(len(chunks) * narrow.L):
                chunk, lane = index // narrow.L, index % narrow.L
                for box in boxes_of_x(
                    geometry, chunks[chunk], planes_of_load(geometry, narrow, load, lane), (h0, narrow.w0), counts
                ):
                    place, pattern, offset, framed = box
                    first = (lane * narrow.apart + place[0], chunk * planes + place[1], piece[0], 0)
                    own.append((first, pattern, offset, framed))
        boxes.append(own)
    shape = (lane_parts(narrow, len(chunks) - 1), len(chunks) * planes, narrow.height, narrow.wn)
    return start_ring(narrow.buffers, shape, operands.x_dtype, boxes)


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


def work_step(operands, geometry, epilogue, narrow, step, x, passes, filters, bias_sbuf, ledger, ahead, turn, last):
    """Results of one step, the turn-th: banks of sums of all lanes one after the other, then the stores. x: (ring of
    loads, their first plane, zeros)."""
    outputs, Q = narrow.U * geometry.K, geometry.columns.out
    volume = narrow.depth.out // narrow.depth.images
    # rows and planes that y does not have
    ragged = (step.j0 + step.jn) * narrow.U > geometry.rows.out or volume % narrow.V > 0
    own, results, residuals, by = lane_steps(geometry, narrow, step), [], [], geometry.y_strides
    for lane in range(len(own)):
        results.append(results_of(operands, geometry, narrow, own[lane], turn * narrow.L + lane))
        boxes = block_boxes(geometry, narrow, own[lane], geometry.y_strides, 0, Q)
        residuals.append(residual_of(operands, (outputs, own[lane].zn, step.jn, Q), boxes, ragged))
    for index in range(len(narrow.tiles)):
        q0, qn, _, wn = narrow.tiles[index]
        sums = []
        for band in own:
            sums.append(nl.ndarray((narrow.outputs, band.zn, step.jn, wn), dtype=nl.float32, buffer=nl.psum))
        multiply_lines(sums, operands, geometry, narrow, own, x, passes, filters, narrow.tiles[index])
        for lane in range(len(own)):
            zn, jn, residual_sbuf, y_sbuf = own[lane].zn, step.jn, residuals[lane], results[lane]
            residual = None if residual_sbuf == None else residual_sbuf[0:outputs, 0:zn, 0:jn, q0 : q0 + qn]
            y = y_sbuf[0:outputs, 0:zn, 0:jn, q0 : q0 + qn]
            add_shifted(y, sums[lane], narrow, index, bias_sbuf, residual, epilogue, ledger, ahead)
            if last:
                store_boxes(operands.y, y_sbuf, block_boxes(geometry, narrow, own[lane], by, q0, qn))
    for lane in range(0 if last else len(own)):
        store_boxes(operands.y, results[lane], block_boxes(geometry, narrow, own[lane], by, 0, Q))


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


def multiply_lines(sums, operands, geometry, narrow, own, x, passes, filters, tile):
    """All products of a bank of sums of each lane: [(t, slot), planes, blocks, columns]. own: its step; tile: the part
    of a row."""
    ring, d0, zeros_sbuf = x
    first = own[0]
    planes = planes_in_order(geometry.planes, first.z0, first.zn)
    zeroed = len(planes) == 0 or planes[0][1][2] < first.zn or narrow.shift > narrow.wn
    for acc_psum in sums if zeroed else []:
        zero_sums(acc_psum, zeros_sbuf)
    for which in range(len(planes)):
        for one in passes:
            load = tile_of_load(ring, one.load)
            parts, dn, height, width = load.shape
            dn = dn // len(narrow.chunks)
            for index in range(len(narrow.chunks) * narrow.groups):
                chunk, g = index // narrow.groups, index % narrow.groups
                x_sbuf = of_array(load[0:parts, chunk * dn : (chunk + 1) * dn, 0:height, 0:width], operands)
                for run in runs_of_group(narrow, g, tile, one.starts and which == 0 and chunk == 0 and not zeroed):
                    for lane in range(len(own)):
                        product = product_of(geometry, narrow, own[lane], which, one, g, run)
                        first = (own[lane].z0, 0, tile[2]), (d0 + lane * narrow.lane.out, 0, 0)
                        multiply_line(sums[lane], narrow, lane, first, product, x_sbuf, filters[chunk], run[2])


def runs_of_group(narrow, g, tile, starts):
    """(first column of sums, how many, whether sums have started) that a group of taps meets in a part of a row;
    starts: whether no sums have, but those of groups before it."""
    met, fresh = columns_of_group(narrow, g, tile)
    fresh = fresh if starts else 0
    found = []
    for run in ((met[0], fresh, False), (met[0] + fresh, met[1] - fresh, True)):
        if run[1] > 0:
            found.append(run)
    return found


def product_of(geometry, narrow, band, which, one, g, run):
    """The Product of a pass for a lane's step: the which-th of the planes it meets, a group of columns of taps. run:
    (first, how many) of columns of sums."""
    planes = planes_in_order(geometry.planes, band.z0, band.zn)
    return Product(
        row=planes[which][0] * len(narrow.lines) + one.line,
        group=g,
        planes=planes[which][1],
        rows=(one.j, 1, one.jn, one.h, narrow.step),
        columns=(run[0], 1, run[1], run[0] + g * narrow.shift - narrow.pad, 1),
    )


def multiply_line(acc_psum, narrow, lane, first, product, x_sbuf, filters_sbuf, started):
    """One matmul of a lane, added to what is there if the sums have started. first: (plane, block, column) of the sums,
    (plane, row, column) of x."""
    parts = lane * narrow.apart, filters_sbuf.shape[0] - (narrow.L - 1) * narrow.apart
    row, group = product.row, product.group
    nisa.nc_matmul(
        dst=sums_met(acc_psum, product, first[0]),
        stationary=filters_sbuf[parts[0] : parts[0] + parts[1], row, group, 0 : narrow.outputs],
        moving=elements_met(x_sbuf, parts, product, first[1]),
        accumulate=started,
        tile_position=() if narrow.L == 1 else (parts[0], 0),
        tile_size=() if narrow.L == 1 else (narrow.apart, nl.tile_size.pmax),
    )


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
