"""y of volumes as NCDHW: rows of x come in for all planes, sums of 128 positions are transposed, rows of y leave.

Padding is stored as zeros around rows. The Tensor Engine transposes the results of a tile while the next one's are
made. Steps that are alike may be one body of a loop on the device.
"""

import dataclasses
from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.channel_pieces import parts_of
from ....schedules.cuts import Outputs, places_inside, window_of
from ....schedules.geometry import span
from ....schedules.tiles import cut_at, div_ceil, filled, whole_words
from ....schedules.volume_rows import moves_of, rows_window, segment_rows, stored_together
from ..._engines import is_16bit, new_ledger, pick
from ..._prologue import load_x
from ..._warm import warm_up
from ..call import moved_operands
from ..filter_feed import tiles_in_turn, transposed_bank, transposes_of_bank
from ..regions import around, clear_window, offset_at, store_regions
from ..sums import zero_sums
from .filters import load_filters, start_filters
from .loop import evacuate_pixels, load_bias, work_tiles

#: Tiles that rows of y take in turn where a norm delays their stores, which would hold up the next rows in one.
Y_TILES = 2


@dataclass
class Ring(nl.NKIObject):
    """Tiles [c, K tile * planes, segments, columns] that rows of x rotate through: the one that an output tile takes
    first, and by tile the output tile (its first output) for which columns around x are zeros."""

    tiles: list
    first: int
    cleared: list


@dataclass
class Step(nl.NKIObject):
    """Row `row` of each segment of an output tile; count: segments that have one; y_sbuf [(z, k) of a block, blocks,
    segments, columns]."""

    item: Outputs
    row: int
    count: int
    y_sbuf: object


@dataclass
class Results(nl.NKIObject):
    """A tile of a Step, columns q .. q+qn-1 from the output tile's first: [position, (z, k)]."""

    step: Step
    q: int
    qn: int
    sbuf: object


def row_tiles(work, items):
    """Output tiles of items of a core; the first rows of the next one are loaded before the last step of one."""
    geometry, plan = work.geometry, work.plan
    start_filters(work, 0, geometry.K)
    load_filters(work, len(plan.k_tiles) - 1)
    load_bias(work, 0, geometry.K)
    ring = start_ring(work)
    if work.norm != None and (plan.steps == None or plan.steps.each % Y_TILES == 0):
        shape = (nl.tile_size.pmax, plan.blocks, ring.tiles[0].shape[2], max(item.qn for item in plan.items))
        work.y_tiles = tiles_in_turn(Y_TILES, shape, work.operands.y.dtype)
    tiles = start_tiles(work, ring, items[0], geometry.rows.taps)
    warm_up(work.zeros_sbuf, plan.warmup, 1)
    for item, after in zip(items, [*items[1:], None]):
        tiles = yield from item_tiles(work, ring, item, tiles, after)
    transpose_waiting(work)


def start_ring(work):
    """A Ring of which no tile is taken."""
    geometry, plan = work.geometry, work.plan
    segments = max(div_ceil(item.pn, segment_rows(plan, item)) for item in plan.items)
    parts = max(parts_of(k_tile, len(k_tile)) for k_tile in plan.k_tiles)
    planes, width = rows_window(geometry, plan)
    shape = (parts, len(plan.k_tiles) * max(1, planes), segments, whole_words(width, geometry.itemsize))
    return Ring(tiles_in_turn(plan.ring, shape, work.operands.x_dtype), 0, filled(plan.ring, (-1, -1, -1)))


def start_tiles(work, ring, item, most):
    """Tiles of x by row, None where one is not there: of an output tile's first step at most so many are."""
    tiles = filled(segment_rows(work.plan, item) * work.geometry.rows.stride + work.plan.ring, None)
    load_step(work, ring, item, tiles, 0, most)
    return tiles


def load_step(work, ring, item, tiles, step, most):
    """Load those of the first so many rows of x that a step sees which are not there."""
    axis = work.geometry.rows
    for r in range(most):
        row = step * axis.stride + r * axis.dilation
        if tiles[row] == None:
            tiles[row] = load_row(work, ring, item, row)


def load_row(work, ring, item, row):
    """A tile with row `row` of x of each segment of an output tile, counted from the first that its first row sees."""
    geometry, plan, axis, columns = work.geometry, work.plan, work.geometry.rows, work.geometry.columns
    which, apart = (ring.first + row) % plan.ring, segment_rows(plan, item)
    tile_sbuf, segments = ring.tiles[which], div_ceil(item.pn, apart)
    d0, dn = span(geometry.planes, item.z0, item.zn)
    width, step = window_of(columns, item.qn), apart * axis.stride
    h, w = item.p0 * axis.stride - axis.before + row, item.q0 * columns.stride - columns.before
    whose = (item.z0, item.p0, item.q0)
    for index in range(len(plan.k_tiles) if dn > 0 else 0):
        corners, inside = [], (0, segments, 0, width)
        for piece in plan.k_tiles[index]:
            corners.append((h + piece.r * axis.dilation, w + piece.s * columns.dilation))
            first, end = places_inside(corners[-1][0], step, segments, axis.size)
            low, high = places_inside(corners[-1][1], 1, width, columns.size)
            inside = (max(inside[0], first), min(inside[1], end), max(inside[2], low), min(inside[3], high))
        parts, _, _, whole = tile_sbuf.shape
        planes_sbuf = tile_sbuf[0:parts, index * dn : (index + 1) * dn, 0:segments, 0:whole]
        engine = nisa.engine.vector if index % 2 == 0 else nisa.engine.gpsimd
        clear_around(planes_sbuf, inside, ring.cleared[which] != whose, engine)
        for piece, (top, left) in zip(plan.k_tiles[index], corners):
            dst = planes_sbuf[piece.part : piece.part + piece.count, 0:dn, 0:segments, 0:width]
            load_x(dst, work.operands, geometry, (piece.c0, d0, top, left), row_step=step)
    ring.cleared[which] = whose
    return tile_sbuf


def clear_around(planes_sbuf, inside, fresh, engine):
    """Zeros in planes of a tile where not all pieces of a K tile are inside x: (first segment, end, first column, end).
    Columns are zeros still, but in a fresh tile, where they were for the output tile's rows before."""
    _, _, segments, width = planes_sbuf.shape
    for g0, g1, w0, w1 in around(segments, width, inside):
        if w1 - w0 == width and planes_sbuf.dtype != nl.float32:
            words_sbuf = planes_sbuf.view(nl.float32)
            clear_window(words_sbuf, g0, g1, 0, words_sbuf.shape[3], engine)
        elif fresh or w1 - w0 == width:
            clear_window(planes_sbuf, g0, g1, w0, w1, engine)


def item_tiles(work, ring, item, tiles, after):
    """Tiles of an item, of whose first step rows of x are there, perhaps not all; returns those of the one
    after it, for which there is room next to this one's."""
    geometry, plan, axis = work.geometry, work.plan, work.geometry.rows
    load_step(work, ring, item, tiles, 0, axis.taps)
    moves, apart, coming, row = moves_of(geometry, plan, item), segment_rows(plan, item), [], 0
    while row < apart:
        if plan.steps != None and row == plan.steps.first:
            run_steps(work, ring, item, moves, tiles)
            row += plan.steps.each * plan.steps.count
        if row + 1 < apart:
            load_step(work, ring, item, tiles, row + 1, axis.taps)
        elif after != None:
            # those of its rows for which there are tiles besides the rows of this step
            ring.first = ring.first + row * axis.stride + window_of(axis, 1)
            coming = start_tiles(work, ring, after, min(axis.taps, div_ceil(axis.stride, axis.dilation)))
        yield from step_tiles(work, item, moves, tiles, row, None)
        row += 1
    return coming


def run_steps(work, ring, item, moves, tiles):
    """Those steps of an output tile that a loop on the device does; results that wait are in the same tiles before each
    iteration, and x in those of the step that many rows earlier."""
    steps, taps, stride, waiting = work.plan.steps, work.geometry.rows.taps, work.geometry.rows.stride, work.waiting

    def body(at):
        own_tiles, own_ring = tiles[:], dataclasses.replace(ring, cleared=ring.cleared[:])
        own = dataclasses.replace(
            work,
            operands=moved_operands(work.operands, steps.register, at),
            ledger=new_ledger(),
        )
        for row in range(steps.first, steps.first + steps.each):
            load_step(own, own_ring, item, own_tiles, row + 1, taps)
            kept = waiting if row + 1 == steps.first + steps.each else None
            work_tiles(own, step_tiles(own, item, moves, own_tiles, row, kept))

    by = steps.register.by
    nl.fori_loop(0, steps.count * by, body, by)
    done = steps.each * steps.count
    for row in range(steps.first * stride, steps.first * stride + work.plan.ring):
        tiles[row + done * stride] = tiles[row]
    waiting.step.row = waiting.step.row + done


def step_tiles(work, item, moves, tiles, row, kept):
    """Tiles of a step of an item. kept: None, or the Results whose tiles its last ones take."""
    geometry, plan = work.geometry, work.plan
    count = div_ceil(item.pn - row, segment_rows(plan, item))
    y_sbuf = None if kept == None else kept.step.y_sbuf
    shape = (min(nl.tile_size.pmax, item.zn * geometry.K), plan.blocks, count, item.qn)
    if work.y_tiles != None:
        y_sbuf = work.y_tiles[row % Y_TILES][0 : shape[0], 0 : plan.blocks, 0:count, 0 : item.qn]
    elif kept == None:
        y_sbuf = nl.ndarray(shape, dtype=work.operands.y.dtype, buffer=nl.sbuf)
    step = Step(item, row, count, y_sbuf)
    for q, qn in cut_at(item.qn, plan.width):
        yield tile_of(work, step, moves, tiles, (q, qn), kept.sbuf if kept != None and q + qn == item.qn else None)


def tile_of(work, step, moves, tiles, part, into_sbuf):
    """Banks of sums [position, planes, k] of columns (first, how many), as `work_tiles` takes them; their results go to
    a tile of their own where there is none, and are transposed after the next tile's sums."""
    geometry, plan, item, K = work.geometry, work.plan, step.item, work.geometry.K
    rows, columns, dn = geometry.rows, geometry.columns, span(geometry.planes, item.z0, item.zn)[1]
    positions = step.count * part[1]
    counts = [min(count, item.zn - first) for first, count in plan.banks if first < item.zn]
    sums = [nl.ndarray((positions, count, K), dtype=nl.float32, buffer=nl.psum) for count in counts]

    def products(k_tile):
        for index, product in enumerate(plan.products[k_tile]):
            x_sbuf = tiles[step.row * rows.stride + product.r * rows.dilation]
            parts = parts_of(plan.k_tiles[k_tile], product.pieces)
            w = part[0] * columns.stride + product.s * columns.dilation
            end = w + (part[1] - 1) * columns.stride + 1
            for move in moves[0 if k_tile + index == 0 else 1]:
                acc_psum = sums[move.bank][0:positions, move.z : move.z + move.count, 0:K]
                if move.plane < 0:
                    zero_sums(acc_psum, work.zeros_sbuf)
                    continue
                tap = index * geometry.planes.taps + move.tau
                x = x_sbuf[0:parts, k_tile * dn + move.plane, 0 : step.count, w : end : columns.stride]
                yield acc_psum, x, work.filters.tiles[k_tile][0:parts, tap : tap + move.count, 0:K], move.adds

    def leave():
        transpose_waiting(work)
        work.waiting = Results(step, *part, evacuate_tile(work, sums, item.zn, into_sbuf))

    return products, max(1, len(moves[1])) * len(plan.products[0]), leave


def evacuate_tile(work, sums, planes, into_sbuf):
    """A tile's sums as y's dtype in [position, (z, k)]: in a tile of their own where there is none."""
    positions, K = sums[0].shape[0], work.geometry.K
    if into_sbuf == None:
        into_sbuf = nl.ndarray((positions, planes * K), dtype=work.operands.y.dtype, buffer=nl.sbuf)
    by_plane = into_sbuf.reshape((positions, planes, K))
    for (first, _), acc_psum in zip(work.plan.banks, sums):
        evacuate_pixels(work, by_plane[0:positions, first : first + acc_psum.shape[1], 0:K], acc_psum, 0)
    return into_sbuf


def transpose_waiting(work):
    """Transpose results that wait into rows of y, and send off those of a step that is complete."""
    results, P_MAX = work.waiting, nl.tile_size.pmax
    if results == None:
        return
    step = results.step
    positions, size = results.sbuf.shape
    for first, count in cut_at(size // P_MAX, transposes_of_bank(positions, work.options.epilogue.y_itemsize)):
        transpose_blocks(work, results, first, count, P_MAX)
    if size % P_MAX > 0:
        transpose_blocks(work, results, size // P_MAX, 1, size % P_MAX)
    if results.q + results.qn == step.item.qn:
        store_step(work, step)
    work.waiting = None


def transpose_blocks(work, results, first, count, parts):
    """Transpose neighbouring blocks of `parts` columns of results by one bank, and put them into their rows."""
    step, positions, P_MAX = results.step, results.sbuf.shape[0], nl.tile_size.pmax
    sources = [results.sbuf[0:positions, at * P_MAX : at * P_MAX + parts] for at in range(first, first + count)]
    bank_psum = transposed_bank(sources, parts, whole_words(positions, work.options.epilogue.y_itemsize))
    for index in range(count):
        nisa.tensor_copy(
            dst=step.y_sbuf[0:parts, first + index, 0 : step.count, results.q : results.q + results.qn],
            src=bank_psum[0:parts, index, 0:positions].reshape((parts, step.count, results.qn)),
            engine=pick(work.ledger, positions, is_16bit(results.sbuf.dtype)),
        )


def store_step(work, step):
    """Rows of y of a step: of each block the output channels of a plane by one DMA."""
    geometry, item, strides = work.geometry, step.item, work.geometry.y_strides
    K, P_MAX, apart, regions = geometry.K, nl.tile_size.pmax, segment_rows(work.plan, item), []
    for at, count in stored_together(item.zn, K):
        pattern = [[strides[0], count], [0, 1], [apart * strides[2], step.count], [strides[3], item.qn]]
        offset = offset_at(strides, (at % K, item.z0 + at // K, item.p0 + step.row, item.q0))
        regions.append(((at % P_MAX, at // P_MAX, 0, 0), pattern, offset))
    store_regions(work.operands.y, step.y_sbuf, regions, work.operands.moved)
