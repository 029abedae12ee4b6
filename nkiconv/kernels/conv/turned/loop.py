"""The loop of turned: a row of x of each segment comes in for all planes, tiles of 128 positions pass the array, their
sums are turned while the next tile's are made, rows of y go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import Ledger, is_16bit, new_ledger, pick
from ..._tiles import BANK_BYTES, cut_at, div_ceil, whole_words
from ..._warm import warm_up, warm_zeros
from ..boxes import load_bias_as, offset_at, store_boxes
from ..call import Extras, Operands, of_array
from ..cuts import part_of_core
from ..geometry import Geometry, span
from ..sums import zero_sums
from ..swapped.loop import SwappedUnit
from ..swapped.results import finish_rows
from .filters import load_turned_filters, turn_filters
from .load import TurnedRows, load_turned_row, start_rows
from .products import parts_of
from .tiling import Turned, moves_of, segment_rows


@dataclass
class TurnedWork(nl.NKIObject):
    """What one core has at hand; waiting: Results that are not turned yet."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    plan: Turned
    ledger: Ledger
    rows: TurnedRows
    filters: object
    bias_sbuf: object
    zeros_sbuf: object
    waiting: list


@dataclass
class Step(nl.NKIObject):
    """Row `row` of each segment of an item, which are `apart` rows each; count: segments that have one; y_sbuf [(z, k)
    of a block, blocks, segments, columns]."""

    item: object
    row: int
    apart: int
    count: int
    y_sbuf: object


@dataclass
class TurnedResults(nl.NKIObject):
    """A tile of a Step, columns q .. q+qn-1 from the item's first: [position, (z, k)]; whether it is the last."""

    step: Step
    q: int
    qn: int
    sums_sbuf: object
    last: bool


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
        waiting=[],
    )
    rows = more_rows(work, items[0], [], 0, geometry.rows.taps)
    warm_up(zeros_sbuf, plan.warmup, 1)
    work.filters = of_array(turn_filters(operands, geometry, plan, raws, ledger), operands)
    for index in range(len(items)):
        after = None
        if index + 1 < len(items):
            after = items[index + 1]
        rows = work_item(work, items[index], rows, after)
    turn_waiting(work)


def rows_wanted(geometry, step):
    """Rows of x that row `step` of a segment sees, from the first that its row 0 does."""
    found = []
    for r in range(geometry.rows.taps):
        found.append(step * geometry.rows.stride + r * geometry.rows.dilation)
    return found


def more_rows(work, item, rows, step, most):
    """Rows of x that are there and those of a step, at most so many of them, loaded if they are not."""
    found, there = rows[:], []
    for one in rows:
        there.append(one.row)
    for row in rows_wanted(work.geometry, step)[:most]:
        if row not in there:
            found.append(load_turned_row(work.operands, work.geometry, work.plan, work.rows, item, row))
    return found


def work_item(work, item, rows, after):
    """Results of an item, of whose first step `rows` of x are there, perhaps not all; returns those of the item after
    it, for which there is room beside this one's."""
    geometry, plan, taps = work.geometry, work.plan, work.geometry.rows.taps
    rows = more_rows(work, item, rows, 0, taps)
    moves, apart, coming = moves_of(geometry, plan, item), segment_rows(plan, item), []
    tiles = cut_at(item.qn, plan.width)
    for row in range(apart):
        wanted, kept = rows_wanted(geometry, row), []
        for one in rows:
            if one.row >= wanted[0]:
                kept.append(one)
        rows = kept
        if row + 1 < apart:
            rows = more_rows(work, item, rows, row + 1, taps)
        elif after != None:
            coming = more_rows(work, after, [], 0, min(taps, geometry.rows.stride))
        count = div_ceil(item.pn - row, apart)
        shape = (min(nl.tile_size.pmax, item.zn * geometry.K), plan.blocks, count, item.qn)
        y_sbuf = nl.ndarray(shape, dtype=work.operands.y.dtype, buffer=nl.sbuf)
        step = Step(item=item, row=row, apart=apart, count=count, y_sbuf=y_sbuf)
        for index in range(len(tiles)):
            sums = multiply_turned(work, step, moves, rows, tiles[index])
            turn_waiting(work)
            read_tile(work, step, sums, tiles[index], index + 1 == len(tiles))
    return coming


def multiply_turned(work, step, moves, rows, tile):
    """Banks of sums [position, planes, k] of a tile (first column, how many)."""
    geometry, plan, item = work.geometry, work.plan, step.item
    columns, positions, dn = geometry.columns, step.count * tile[1], span(geometry.planes, item.z0, item.zn)[1]
    wanted, of_taps, sums = rows_wanted(geometry, step.row), [], []
    for row in wanted:
        for one in rows:
            if one.row == row:
                of_taps.append(of_array(one.x_sbuf, work.operands))
    for bank in plan.banks:
        planes = max(0, min(bank[1], item.zn - bank[0]))
        if planes > 0:
            sums.append(nl.ndarray((positions, planes, geometry.K), dtype=nl.float32, buffer=nl.psum))
    for move in moves:
        acc_psum = sums[move.bank][0:positions, move.z : move.z + move.count, 0 : geometry.K]
        if move.product < 0:
            zero_sums(acc_psum, work.zeros_sbuf)
            continue
        product = plan.products[move.product]
        x_sbuf, parts = of_taps[product.r], parts_of(plan.chunks[product.chunk], product.riders)
        d = product.chunk * dn + move.plane
        w = tile[0] * columns.stride + product.s * columns.dilation
        end = w + (tile[1] - 1) * columns.stride + 1
        nisa.nc_matmul(
            dst=acc_psum,
            stationary=x_sbuf[0:parts, d, 0 : step.count, w : end : columns.stride],
            moving=work.filters[0:parts, move.product, move.tau : move.tau + move.count, 0 : geometry.K],
            accumulate=move.adds,
        )
    return sums


def read_tile(work, step, sums, tile, last):
    """Read a tile's sums out, with the epilogue, as y's dtype."""
    geometry, plan = work.geometry, work.plan
    positions, planes = step.count * tile[1], step.item.zn
    sums_sbuf = nl.ndarray((positions, planes, geometry.K), dtype=work.operands.y.dtype, buffer=nl.sbuf)
    for bank in range(len(sums)):
        first, count = plan.banks[bank][0], sums[bank].shape[1]
        unit = SwappedUnit(block=None, t0=first, tn=count, k0=0, kn=geometry.K, last=False)
        finish_rows(sums_sbuf, sums[bank], work.bias_sbuf, None, unit, work.extras.epilogue, work.ledger, False)
    flat_sbuf = sums_sbuf.reshape((positions, planes * geometry.K))
    work.waiting.append(TurnedResults(step=step, q=tile[0], qn=tile[1], sums_sbuf=flat_sbuf, last=last))


def turn_waiting(work):
    """Turn what waits into rows of y, and send off those of a step that is complete."""
    for one in work.waiting:
        positions, size = one.sums_sbuf.shape
        step, dtype = one.step, one.sums_sbuf.dtype
        item_bytes = 4 if dtype == nl.float32 else 2
        pitch = whole_words(positions, item_bytes)
        P_MAX = nl.tile_size.pmax
        whole = size // P_MAX
        for some in ((0, whole, P_MAX), (whole, 1, size % P_MAX)):
            parts = some[2]
            for few in cut_at(some[1] if parts > 0 else 0, BANK_BYTES // (pitch * item_bytes)):
                first, count = some[0] + few[0], few[1]
                turned_psum = nl.ndarray((parts, count, pitch), dtype=dtype, buffer=nl.psum)
                for index in range(count):
                    at = (first + index) * P_MAX
                    nisa.nc_transpose(
                        dst=turned_psum[0:parts, index, 0:positions],
                        data=one.sums_sbuf[0:positions, at : at + parts],
                        engine=nisa.engine.tensor,
                    )
                for index in range(count):
                    rows_psum = turned_psum[0:parts, index, 0:positions].reshape((parts, step.count, one.qn))
                    nisa.tensor_copy(
                        dst=step.y_sbuf[0:parts, first + index, 0 : step.count, one.q : one.q + one.qn],
                        src=rows_psum,
                        engine=pick(work.ledger, positions, is_16bit(dtype)),
                    )
        if one.last:
            store_step(work, step)
    work.waiting = []


def store_step(work, step):
    """Rows of y of a step: of each block the output channels of a plane by one DMA."""
    geometry, item, strides = work.geometry, step.item, work.geometry.y_strides
    K, size, boxes = geometry.K, step.item.zn * geometry.K, []
    at = 0
    while at < size:
        block, z, k = at // nl.tile_size.pmax, at // K, at % K
        count = min(min(K - k, (block + 1) * nl.tile_size.pmax - at), size - at)
        pattern = [[strides[0], count], [0, 1], [step.apart * strides[2], step.count], [strides[3], item.qn]]
        offset = offset_at(strides, (k, item.z0 + z, item.p0 + step.row, item.q0))
        boxes.append(((at % nl.tile_size.pmax, block, 0, 0), pattern, offset))
        at += count
    store_boxes(work.operands.y, step.y_sbuf, boxes)
