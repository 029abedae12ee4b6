"""The loop of turned: a row of x of each segment comes in for all planes, tiles of 128 positions pass the array, their
sums are turned while the next tile's are made, rows of y go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import Outputs, window_of
from ....schedules.geometry import Geometry, span
from ....schedules.options import Extras
from ....schedules.tiles import cut_at, div_ceil, filled, whole_words
from ..._engines import Ledger, is_16bit, new_ledger, pick
from ..._warm import warm_up, warm_zeros
from ..boxes import load_bias_as, offset_at, store_boxes
from ..call import Operands, finish_rows, of_array, part_of_core
from ..filter_feed import transposed_bank, transposes_of_bank
from ..moved import moved_operands
from ..sums import zero_sums
from .filters import load_turned_filters, turn_filters
from .load import TurnedRows, copy_of_rows, load_turned_row, start_rows
from .products import parts_of
from .tiling import Turned, moves_of, segment_rows, stored_together


@dataclass
class TurnedWork(nl.NKIObject):
    """What one core has at hand; waiting: TurnedResults that are not turned yet, or None."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    plan: Turned
    ledger: Ledger
    rows: TurnedRows
    filters: object
    bias_sbuf: object
    zeros_sbuf: object
    waiting: object


@dataclass
class Step(nl.NKIObject):
    """Row `row` of each segment of an item; count: segments that have one; y_sbuf [(z, k) of a block, blocks, segments,
    columns]."""

    item: Outputs
    row: int
    count: int
    y_sbuf: object


@dataclass
class TurnedResults(nl.NKIObject):
    """A tile of a Step, columns q .. q+qn-1 from the item's first: [position, (z, k)]."""

    step: Step
    q: int
    qn: int
    sums_sbuf: object


def run_turned(operands, geometry, extras, plan):
    """This core's part of the items."""
    _, items = part_of_core(plan.items)
    if len(items) == 0:
        return
    raws = load_turned_filters(operands, geometry)
    ledger, zeros_sbuf, P_MAX = new_ledger(), warm_zeros(), nl.tile_size.pmax
    work = TurnedWork(
        operands=operands,
        geometry=geometry,
        extras=extras,
        plan=plan,
        ledger=ledger,
        rows=start_rows(operands, geometry, plan),
        filters=None,
        bias_sbuf=load_bias_as(operands.bias, (P_MAX, geometry.K), [[0, P_MAX], [1, geometry.K]], 0),
        zeros_sbuf=zeros_sbuf,
        waiting=None,
    )
    tiles = start_tiles(work, items[0], geometry.rows.taps)
    warm_up(zeros_sbuf, plan.warmup, 1)
    work.filters = of_array(turn_filters(operands, geometry, plan, raws, ledger), operands)
    for index in range(len(items)):
        after = None
        if index + 1 < len(items):
            after = items[index + 1]
        tiles = work_item(work, items[index], tiles, after)
    turn_waiting(work)


def start_tiles(work, item, most):
    """Tiles of x by row, None where one is not there: of an item's first step at most so many are."""
    tiles = filled(segment_rows(work.plan, item) * work.geometry.rows.stride + work.plan.rows, None)
    load_step(work, item, tiles, 0, most)
    return tiles


def load_step(work, item, tiles, step, most):
    """Load those of the first so many rows of x that a step sees which are not there."""
    axis = work.geometry.rows
    for r in range(most):
        row = step * axis.stride + r * axis.dilation
        if tiles[row] == None:
            tiles[row] = load_turned_row(work.operands, work.geometry, work.plan, work.rows, item, row)


def work_item(work, item, tiles, after):
    """Results of an item, of whose first step rows of x are there, perhaps not all; returns those of the item after it,
    for which there is room beside this one's."""
    geometry, plan, axis = work.geometry, work.plan, work.geometry.rows
    load_step(work, item, tiles, 0, axis.taps)
    moves, apart, coming, row = moves_of(geometry, plan, item), segment_rows(plan, item), [], 0
    while row < apart:
        if plan.steps != None and row == plan.steps.first:
            run_steps(work, item, moves, tiles)
            row += plan.steps.each * plan.steps.count
        if row + 1 < apart:
            load_step(work, item, tiles, row + 1, axis.taps)
        elif after != None:
            # those of its rows for which there are tiles beside the rows of this step
            rows = work.rows
            rows.first = rows.first + row * axis.stride + window_of(axis, 1)
            coming = start_tiles(work, after, min(axis.taps, div_ceil(axis.stride, axis.dilation)))
        turn_step(work, item, moves, tiles, row, None)
        row += 1
    return coming


def run_steps(work, item, moves, tiles):
    """Those steps of an item that a loop on the device does; what waits to be turned lies in the same tiles before each
    iteration, and x in those of the step that many rows earlier."""
    steps, stride, waiting = work.plan.steps, work.geometry.rows.stride, work.waiting

    def body(at):
        work_steps(work, item, moves, tiles, at)

    by = steps.register.by
    nl.fori_loop(0, steps.count * by, body, by)
    done = steps.each * steps.count
    for row in range(steps.first * stride, steps.first * stride + work.plan.rows):
        tiles[row + done * stride] = tiles[row]
    step = waiting.step
    step.row = step.row + done


def work_steps(work, item, moves, tiles, at):
    """The body of these steps. at: the register that moves them."""
    steps, taps, tiles = work.plan.steps, work.geometry.rows.taps, tiles[:]
    own = TurnedWork(
        operands=moved_operands(work.operands, work.geometry.precision, steps.register, at),
        geometry=work.geometry,
        extras=work.extras,
        plan=work.plan,
        ledger=new_ledger(),
        rows=copy_of_rows(work.rows),
        filters=work.filters,
        bias_sbuf=work.bias_sbuf,
        zeros_sbuf=work.zeros_sbuf,
        waiting=work.waiting,
    )
    for row in range(steps.first, steps.first + steps.each):
        load_step(own, item, tiles, row + 1, taps)
        turn_step(own, item, moves, tiles, row, work.waiting if row + 1 == steps.first + steps.each else None)


def turn_step(work, item, moves, tiles, row, kept):
    """Results of a step of an item. kept: None, or the TurnedResults whose tiles its last ones take."""
    geometry, plan, y_sbuf = work.geometry, work.plan, None
    count = div_ceil(item.pn - row, segment_rows(plan, item))
    if kept != None:
        y_sbuf = kept.step.y_sbuf
    else:
        shape = (min(nl.tile_size.pmax, item.zn * geometry.K), plan.blocks, count, item.qn)
        y_sbuf = nl.ndarray(shape, dtype=work.operands.y.dtype, buffer=nl.sbuf)
    step = Step(item=item, row=row, count=count, y_sbuf=y_sbuf)
    for tile in cut_at(item.qn, plan.width):
        sums, sums_sbuf = multiply_turned(work, step, moves, tiles, tile), None
        turn_waiting(work)
        if kept != None and tile[0] + tile[1] == item.qn:
            sums_sbuf = kept.sums_sbuf
        read_tile(work, step, sums, tile, sums_sbuf)


def multiply_turned(work, step, moves, tiles, tile):
    """Banks of sums [position, planes, k] of a tile (first column, how many)."""
    geometry, plan, item, sums = work.geometry, work.plan, step.item, []
    rows, columns, dn = geometry.rows, geometry.columns, span(geometry.planes, item.z0, item.zn)[1]
    for bank in plan.banks:
        planes = min(bank[1], item.zn - bank[0])
        if planes > 0:
            shape = (step.count * tile[1], planes, geometry.K)
            sums.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    for move in moves:
        acc_psum = sums[move.bank][0 : step.count * tile[1], move.z : move.z + move.count, 0 : geometry.K]
        if move.product < 0:
            zero_sums(acc_psum, work.zeros_sbuf)
            continue
        product = plan.products[move.product]
        x_sbuf = of_array(tiles[step.row * rows.stride + product.r * rows.dilation], work.operands)
        parts, d = parts_of(plan.chunks[product.chunk], product.pieces), product.chunk * dn + move.plane
        w = tile[0] * columns.stride + product.s * columns.dilation
        end = w + (tile[1] - 1) * columns.stride + 1
        nisa.nc_matmul(
            dst=acc_psum,
            stationary=x_sbuf[0:parts, d, 0 : step.count, w : end : columns.stride],
            moving=work.filters[0:parts, move.product, move.tau : move.tau + move.count, 0 : geometry.K],
            accumulate=move.adds,
        )
    return sums


def read_tile(work, step, sums, tile, sums_sbuf):
    """Read a tile's sums out, with the epilogue, as y's dtype, into [position, (z, k)], or where that is None into one
    of their own."""
    positions, planes, K = step.count * tile[1], step.item.zn, work.geometry.K
    if sums_sbuf == None:
        sums_sbuf = nl.ndarray((positions, planes * K), dtype=work.operands.y.dtype, buffer=nl.sbuf)
    bias_sbuf, epilogue, by_plane = work.bias_sbuf, work.extras.epilogue, sums_sbuf.reshape((positions, planes, K))
    if bias_sbuf != None:
        bias_sbuf = bias_sbuf[0:positions, 0:K]
    for bank in range(len(sums)):
        first, count = work.plan.banks[bank][0], sums[bank].shape[1]
        y_sbuf = by_plane[0:positions, first : first + count, 0:K]
        finish_rows(y_sbuf, sums[bank], bias_sbuf, None, epilogue, work.ledger, False)
    work.waiting = TurnedResults(step=step, q=tile[0], qn=tile[1], sums_sbuf=sums_sbuf)


def turn_waiting(work):
    """Turn what waits into rows of y, and send off those of a step that is complete."""
    results, P_MAX = work.waiting, nl.tile_size.pmax
    if results == None:
        return
    step, item = results.step, results.step.item
    positions, size = results.sums_sbuf.shape
    whole = size // P_MAX
    for few in cut_at(whole, transposes_of_bank(positions, work.extras.epilogue.y_itemsize)):
        turn_blocks(work, results, few[0], few[1], P_MAX)
    if size % P_MAX > 0:
        turn_blocks(work, results, whole, 1, size % P_MAX)
    if results.q + results.qn == item.qn:
        store_step(work, step)
    work.waiting = None


def turn_blocks(work, results, first, count, parts):
    """Turn neighbouring blocks of `parts` columns of results by one bank, and put them into their rows."""
    step, sums_sbuf, sources = results.step, results.sums_sbuf, []
    positions, dtype = sums_sbuf.shape[0], sums_sbuf.dtype
    for block in range(first, first + count):
        at = block * nl.tile_size.pmax
        sources.append(sums_sbuf[0:positions, at : at + parts])
    turned_psum = transposed_bank(sources, parts, whole_words(positions, work.extras.epilogue.y_itemsize))
    for index in range(count):
        nisa.tensor_copy(
            dst=step.y_sbuf[0:parts, first + index, 0 : step.count, results.q : results.q + results.qn],
            src=turned_psum[0:parts, index, 0:positions].reshape((parts, step.count, results.qn)),
            engine=pick(work.ledger, positions, is_16bit(dtype)),
        )


def store_step(work, step):
    """Rows of y of a step: of each block the output channels of a plane by one DMA."""
    geometry, item, strides = work.geometry, step.item, work.geometry.y_strides
    K, P_MAX, apart, boxes = geometry.K, nl.tile_size.pmax, segment_rows(work.plan, item), []
    for some in stored_together(item.zn, K):
        at, count = some
        pattern = [[strides[0], count], [0, 1], [apart * strides[2], step.count], [strides[3], item.qn]]
        offset = offset_at(strides, (at % K, item.z0 + at // K, item.p0 + step.row, item.q0))
        boxes.append(((at % P_MAX, at // P_MAX, 0, 0), pattern, offset))
    store_boxes(work.operands.y, step.y_sbuf, boxes, work.operands.moved)
