"""The loop: windows of x come in, every tap of 128 pixels is a matmul with all output channels, rows of pixels go out.

The first banks of a batch, one where there are several taps, go through the filters chunk by chunk as these come in and
are transposed; later ones bank by bank. Every sum adds chunks and taps in the same order.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import same_place, window_of
from ....schedules.geometry import Geometry, num_taps
from ....schedules.options import Extras
from ....schedules.tiles import BANK_COLUMNS, cut, cut_at, div_ceil
from ..._engines import Ledger, new_ledger
from ..._warm import warm_up, warm_zeros
from ..boxes import load_bias_as, offset_at, residual_of, store_boxes
from ..call import Operands, finish_rows, of_array, part_of_core
from ..sums import spaced
from .filters import fold_filters, load_swapped_filters, start_swapped_filters, transpose_load, transpose_to, waiting_to
from .load import load_part, load_parts, new_window
from .shape import Block, blocks_of, pixels_of, place_in, sees_x
from .tiling import Swapped

#: Matmuls between the transposes of a chunk's filters and their use, at least: they hide the read-outs.
SWAPPED_LEAD_MATMULS = 12


@dataclass
class SwappedUnit(nl.NKIObject):
    """One bank of sums: tiles t0 .. t0+tn-1 of a block, output channels k0 .. k0+kn-1 from the batch's first."""

    block: Block
    t0: int
    tn: int
    k0: int
    kn: int


@dataclass
class SwappedWork(nl.NKIObject):
    """What one core has at hand; y_sbuf and residual_sbuf: of the block that is being read out."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    plan: Swapped
    ledger: Ledger
    filters: object = None
    bias_sbuf: object = None
    y_sbuf: object = None
    residual_sbuf: object = None


def run_swapped(operands, geometry, extras, plan):
    """This core's part of the items; x of the next one is loaded before one is worked on."""
    _, items = part_of_core(plan.items)
    if len(items) == 0:
        return
    work = SwappedWork(operands=operands, geometry=geometry, extras=extras, plan=plan, ledger=new_ledger())
    warm_up(warm_zeros(), plan.warmup, 1)
    now_sbuf, batch = None, -1
    for index in range(len(items)):
        item = items[index]
        fresh = item.batch != batch
        if fresh:
            batch = item.batch
            k0, kn = plan.batches[batch]
            work.filters = start_swapped_filters(operands, geometry, k0, kn, plan.chunks, plan.way)
        if now_sbuf == None:
            now_sbuf = load_band(work, item.band, True)
        if fresh:
            P_MAX, fold = nl.tile_size.pmax, plan.source.fold
            bias_pattern = [[0, P_MAX], [0, fold], [1, kn]]
            work.bias_sbuf = load_bias_as(operands.bias, (P_MAX, fold * kn), bias_pattern, k0)
        after_sbuf = None
        if index + 1 < len(items):
            after, after_sbuf = items[index + 1], now_sbuf
            if not same_place(after.band, item.band):
                after_sbuf = load_band(work, after.band, False)
        units = units_of(plan, item)
        together = min(len(units), plan.banks if fresh else 1)
        work_units(work, item, now_sbuf, units[:together])
        for unit in units[together:]:
            work_units(work, item, now_sbuf, [unit])
        now_sbuf = after_sbuf


def load_band(work, band, start):
    """x of a band; start: of the first one: of each chunk what the first block needs and filters, then the rest."""
    operands, geometry, plan = work.operands, work.geometry, work.plan
    x_sbuf = new_window(operands, plan.source, band, plan.chunks, nisa.engine.vector if start else nisa.engine.gpsimd)
    parts = load_parts(geometry, plan.source, band, blocks_of(plan.sizes, band)[0], len(plan.chunks), start)
    for part in range(len(parts)):
        for chunk in range(len(plan.chunks)):
            channels = plan.chunks[chunk]
            load_part(operands, geometry, plan.source, band, x_sbuf, chunk, channels, parts[part], work.ledger)
            if start and part == 0:
                load_swapped_filters(operands, geometry, work.filters, chunk, work.ledger)
    return x_sbuf


def units_of(plan, item):
    """Banks of an item in the order of the work."""
    parts = cut(plan.batches[item.batch][1] * plan.source.fold, plan.k_tile)
    found = []
    for block in blocks_of(plan.sizes, item.band):
        for group in cut_at(plan.sizes.side, max(1, BANK_COLUMNS // parts[-1][1])):
            for part in parts:
                found.append(SwappedUnit(block=block, t0=group[0], tn=group[1], k0=part[0], kn=part[1]))
    return found


def work_units(work, item, x_sbuf, units):
    """Sums of some banks, together, and their way out."""
    geometry, plan, filters = work.geometry, work.plan, work.filters
    source = plan.source
    sums, matmuls, taps = [], 0, num_taps(source)
    for unit in units:
        matmuls += unit.tn * taps
        sums.append(nl.ndarray((pixels_of(unit.block), unit.tn, unit.kn), dtype=nl.float32, buffer=nl.psum))
    lead, seen = div_ceil(SWAPPED_LEAD_MATMULS, matmuls), []
    dilated = source.rows.lhs_dilation * source.columns.lhs_dilation > 1
    for unit in units if dilated else []:
        found = []
        for tile in range(unit.tn):
            found.append(taps_seen(source, item.band, unit.block, plan.sizes.side, unit.t0 + tile))
            if len(found[tile]) == 0:
                zeros = sums[len(seen)][0 : pixels_of(unit.block), tile, 0 : unit.kn]
                nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
        seen.append(found)
    for chunk in range(len(plan.chunks)):
        transpose_to(work.operands, geometry, filters, chunk, work.ledger)
        if source.fold > 1 and not filters.folded:
            fold_filters(geometry, source, filters)
        load_swapped_filters(work.operands, geometry, filters, len(plan.chunks) - 1, work.ledger)
        for tap in range(taps):
            for index in range(len(units)):
                unit = units[index]
                for tile in range(unit.tn):
                    if not dilated:
                        add_tap(work, item.band, x_sbuf, unit, sums[index], tile, chunk, tap, chunk > 0 or tap > 0)
                    elif tap in seen[index][tile]:
                        more = chunk > 0 or tap != seen[index][tile][0]
                        add_tap(work, item.band, x_sbuf, unit, sums[index], tile, chunk, tap, more)
                    if waiting_to(filters, chunk + lead) > 0:
                        transpose_load(work.operands, geometry, filters, work.ledger)
    for index in range(len(units)):
        leave(work, item, units[index], sums[index])


def taps_seen(source, band, block, side, tile):
    """Taps at which pixels of a tile of a block see anything but zeros between elements of x."""
    found, rows, columns = [], source.rows, source.columns
    for tap in range(num_taps(source)):
        r, s = tap // columns.taps % rows.taps, tap % columns.taps
        if sees_x(rows, band.p0 + block.p, block.apart, r) and sees_x(columns, band.q0 + tile, side, s):
            found.append(tap)
    return found


def add_tap(work, band, x_sbuf, unit, acc_psum, tile, chunk, tap, more):
    """One matmul: the pixels of a tile at a tap, all output channels of a bank. more: whether sums are there."""
    source, block, side = work.plan.source, unit.block, work.plan.sizes.side
    planes, rows, columns = source.planes, source.rows, source.columns
    t, r, s = tap // (rows.taps * columns.taps), tap // columns.taps % rows.taps, tap % columns.taps
    d = chunk * window_of(planes, band.zn) + block.z * planes.stride + t * planes.dilation
    h = place_in(rows, band.p0, band.p0 + block.p, r, source.dense)
    w = place_in(columns, band.q0, band.q0 + unit.t0 + tile, s, source.dense)
    by_row, by_column = block.apart * rows.stride, side * columns.stride
    if source.dense:
        by_row, by_column = by_row // rows.lhs_dilation, by_column // columns.lhs_dilation
    count = work.plan.chunks[chunk][1] * source.slots
    nisa.nc_matmul(
        dst=acc_psum[0 : acc_psum.shape[0], tile, 0 : unit.kn],
        stationary=spaced(
            of_array(x_sbuf, work.operands),
            (0, count),
            (d, block.zn, planes.stride),
            (h, block.pn, by_row),
            (w, block.units, by_column),
        ),
        moving=of_array(work.filters.tile, work.operands)[0:count, chunk, tap, unit.k0 : unit.k0 + unit.kn],
        accumulate=more,
    )


def leave(work, item, unit, acc_psum):
    """Read a bank out into its block's results; the last one of a block sends them off."""
    operands, geometry, plan, extras = work.operands, work.geometry, work.plan, work.extras
    k0, kn = plan.batches[item.batch]
    block, side, fold = unit.block, plan.sizes.side, plan.source.fold
    if work.y_sbuf == None:
        shape = (pixels_of(block), side, fold * kn)
        work.y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
        boxes = block_runs(geometry.y_strides, item.band, block, side, fold, k0, kn)
        work.residual_sbuf = residual_of(operands, shape, boxes, False)
    bias_sbuf, residual_sbuf = work.bias_sbuf, work.residual_sbuf
    if bias_sbuf != None:
        bias_sbuf = bias_sbuf[0 : pixels_of(block), unit.k0 : unit.k0 + unit.kn]
    if residual_sbuf != None:
        residual_sbuf = place(residual_sbuf, unit)
    y_sbuf, strict = place(work.y_sbuf, unit), extras.strict_nonfinite
    finish_rows(y_sbuf, acc_psum, bias_sbuf, residual_sbuf, extras.epilogue, work.ledger, strict)
    if unit.t0 + unit.tn == side and unit.k0 + unit.kn == fold * kn:
        boxes = block_runs(geometry.y_strides, item.band, block, side, fold, k0, kn)
        store_boxes(operands.y, work.y_sbuf, boxes)
        work.y_sbuf = None
        work.residual_sbuf = None


def place(tile_sbuf, unit):
    """What a bank holds of its block's tile [pixels, side, K]."""
    return tile_sbuf[0 : tile_sbuf.shape[0], unit.t0 : unit.t0 + unit.tn, unit.k0 : unit.k0 + unit.kn]


def block_runs(strides, band, block, side, fold, k0, kn):
    """Boxes of a block, [pixels, side, (row, K)], with output channels k0 .. k0+kn-1 of all rows of y that are beside
    each other; those channels are all of K if there are several. strides: of y or the residual along k, n, p, q."""
    s_k, s_n, s_p, s_q = strides[0], strides[1], strides[2], strides[3]
    found = []
    for row in range(fold):
        offset = offset_at(strides, (k0, band.z0 + block.z, (band.p0 + block.p) * fold + row, band.q0))
        pattern = [
            [s_n, block.zn],
            [fold * block.apart * s_p, block.pn],
            [side * s_q, block.units],
            [s_q, side],
            [s_k, kn],
        ]
        found.append(((0, 0, row * kn), pattern, offset))
    return found
