"""y as NHWC: windows of x of an output tile come in, rows of pixels leave.

The first banks of a weight-resident group, one where there are several taps, go through the filters K tile by K tile
as these come in and are transposed; later ones bank by bank. Every sum adds K tiles and taps in the same order.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import same_place, window_of
from ....schedules.pixel_tiles import (
    Block,
    blocks_of,
    inside,
    load_parts,
    pixels_of,
    place_in,
    rows_inside,
    sees_x,
    window_shape,
)
from ....schedules.tiles import BANK_COLUMNS, cut, cut_at, div_ceil
from ..._prologue import load_x
from ..._warm import warm_up
from ..regions import around, clear_window, offset_at, residual_of, store_regions
from ..sums import spaced
from .filters import load_filters, start_filters
from .loop import evacuate_pixels, load_bias


@dataclass
class Unit(nl.NKIObject):
    """One bank of sums: tiles t0 .. t0+tn-1 of a block, output channels k0 .. k0+kn-1 from the group's first."""

    block: Block
    t0: int
    tn: int
    k0: int
    kn: int


def pixel_tiles(work, items):
    """Output tiles of items of a core; x of the next one is loaded before one is worked on."""
    plan, now_sbuf, batch = work.plan, None, -1
    warm_up(work.zeros_sbuf, plan.warmup, 1)
    for index, item in enumerate(items):
        fresh = item.batch != batch
        if fresh:
            batch = item.batch
            start_filters(work, *plan.batches[batch])
        if now_sbuf == None:
            now_sbuf = load_out_tile(work, item.out_tile, True)
        if fresh:
            load_bias(work, plan.batches[batch][0], plan.batches[batch][1], plan.source.fold)
        after_sbuf = None
        if index + 1 < len(items):
            after, after_sbuf = items[index + 1], now_sbuf
            if not same_place(after.out_tile, item.out_tile):
                after_sbuf = load_out_tile(work, after.out_tile, False)
        units = units_of(plan, item)
        together = min(len(units), plan.banks if fresh else 1)
        for some in [units[:together], *([unit] for unit in units[together:])]:
            yield banks_of(work, item, now_sbuf, some)
        now_sbuf = after_sbuf


def load_out_tile(work, out_tile, start):
    """x of an output tile; start: of the first one: of each K tile what the first block needs and filters, then the
    rest."""
    plan = work.plan
    x_sbuf = new_window(work.operands, plan, out_tile, nisa.engine.vector if start else nisa.engine.gpsimd)
    parts = load_parts(work.geometry, plan, out_tile, start)
    for index, part in enumerate(parts):
        for k_tile in range(len(plan.k_tiles)):
            load_part(work, out_tile, x_sbuf, k_tile, part)
            if start and index == 0:
                load_filters(work, k_tile)
    return x_sbuf


def new_window(operands, plan, out_tile, engine):
    """A window [c, K tile * planes, rows, columns] of which only what is no element of x is written."""
    source, num_k_tiles = plan.source, len(plan.k_tiles)
    planes, rows, columns = window_shape(source, out_tile)
    shape = (max(k_tile[0].count for k_tile in plan.k_tiles) * source.slots, num_k_tiles * planes, rows, columns)
    x_sbuf = nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf)
    _, dn, before, _ = inside(source.planes, out_tile.z0, out_tile.zn)
    for k_tile in range(num_k_tiles):
        for first, end in ((0, before), (before + dn, planes)):
            if first < end:
                own_sbuf = x_sbuf[0 : shape[0], k_tile * planes + first : k_tile * planes + end, 0:rows, 0:columns]
                clear_window(own_sbuf, 0, rows, 0, columns, engine)
    _, wn, left, w_step = inside(source.columns, out_tile.q0, out_tile.qn, source.dense)
    top, end = 0, rows if w_step == 1 else 0
    for slot in range(source.slots):
        _, hn, first, h_step = rows_inside(source, out_tile.p0, out_tile.pn, slot)
        top, end = max(top, first), min(end, first + hn if h_step == 1 else 0)
    for h0, h1, w0, w1 in around(rows, columns, (top, end, left, left + wn)):
        clear_window(x_sbuf, h0, h1, w0, w1, engine)
    return x_sbuf


def load_part(work, out_tile, x_sbuf, k_tile, part):
    """A part of a K tile's window."""
    geometry, source, own = work.geometry, work.plan.source, work.plan.k_tiles[k_tile][0]
    first_plane, planes, start, count = part
    d0, dn, before, _ = inside(source.planes, out_tile.z0, out_tile.zn)
    n = max(first_plane, before)
    nn = max(0, min(first_plane + planes, before + dn) - n)
    w0, wn, left, w_step = inside(source.columns, out_tile.q0, out_tile.qn, source.dense)
    dn = window_of(source.planes, out_tile.zn)
    image, cn = k_tile * dn + n, own.count
    alone = x_sbuf.shape[1] == dn and source.slots == 1
    for slot in range(source.slots if wn > 0 and nn > 0 else 0):
        h0, hn, top, h_step = rows_inside(source, out_tile.p0, out_tile.pn, slot)
        skip = div_ceil(max(0, start - top), h_step)
        hn = min(hn, div_ceil(max(0, start + count - top), h_step)) - skip
        if hn <= 0:
            continue
        top += skip * h_step
        dst = spaced(x_sbuf, (slot * cn, cn), (image, nn, 1), (top, hn, h_step), (left, wn, w_step))
        row = (h0 + skip) * source.slots + (slot - source.rows.before if source.slots > 1 else 0)
        first = (own.c0, d0 + n - before, row, w0)
        load_x(
            dst, work.operands, geometry, first, row_step=source.slots, ledger=work.ledger, alone=alone, row=slot * cn
        )


def units_of(plan, item):
    """Banks of an item in the order of the work."""
    parts = cut(plan.batches[item.batch][1] * plan.source.fold, plan.most_k)
    groups = cut_at(plan.sizes.side, max(1, BANK_COLUMNS // parts[-1][1]))
    blocks = blocks_of(plan.sizes, item.out_tile)
    return [Unit(block, *group, *part) for block in blocks for group in groups for part in parts]


def banks_of(work, item, x_sbuf, units):
    """Some banks that go through the filters together, as `work_tiles` takes them."""
    plan, sums, seen = work.plan, [], []
    for unit in units:
        acc_psum = nl.ndarray((pixels_of(unit.block), unit.tn, unit.kn), dtype=nl.float32, buffer=nl.psum)
        sums.append(acc_psum)
        seen.append([taps_seen(plan, item.out_tile, unit.block, unit.t0 + tile) for tile in range(unit.tn)])
        for tile in range(unit.tn):
            if len(seen[-1][tile]) == 0:
                zeros = acc_psum[0 : acc_psum.shape[0], tile, 0 : unit.kn]
                nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    taps = plan.source.taps

    def products(k_tile):
        for tap in range(taps):
            for unit, acc_psum, of_tile in zip(units, sums, seen):
                for tile in range(unit.tn):
                    if tap in of_tile[tile]:
                        more = k_tile > 0 or tap != of_tile[tile][0]
                        x = pixels_at(plan, item.out_tile, x_sbuf, unit, tile, k_tile, tap)
                        filters = work.filters.tiles[k_tile]
                        moving = filters[0 : filters.shape[0], tap, unit.k0 : unit.k0 + unit.kn]
                        yield acc_psum[0 : acc_psum.shape[0], tile, 0 : unit.kn], x, moving, more

    def leave():
        for unit, acc_psum in zip(units, sums):
            evacuate_bank(work, item, unit, acc_psum)

    return products, taps * sum(unit.tn for unit in units), leave


def taps_seen(plan, out_tile, block, tile):
    """Taps at which pixels of a tile of a block see anything but zeros between elements of x."""
    source, side = plan.source, plan.sizes.side
    rows, columns = source.rows, source.columns
    if rows.lhs_dilation * columns.lhs_dilation == 1:
        return range(source.taps)
    found = []
    for tap in range(source.taps):
        r, s = tap // columns.taps % rows.taps, tap % columns.taps
        if sees_x(rows, out_tile.p0 + block.p, block.apart, r) and sees_x(columns, out_tile.q0 + tile, side, s):
            found.append(tap)
    return found


def pixels_at(plan, out_tile, x_sbuf, unit, tile, k_tile, tap):
    """The stationary of a tile: its pixels at a tap."""
    source, block, side = plan.source, unit.block, plan.sizes.side
    planes, rows, columns = source.planes, source.rows, source.columns
    t, r, s = tap // (rows.taps * columns.taps), tap // columns.taps % rows.taps, tap % columns.taps
    d = k_tile * window_of(planes, out_tile.zn) + block.z * planes.stride + t * planes.dilation
    h = place_in(rows, out_tile.p0, out_tile.p0 + block.p, r, source.dense)
    w = place_in(columns, out_tile.q0, out_tile.q0 + unit.t0 + tile, s, source.dense)
    by_row, by_column = block.apart * rows.stride, side * columns.stride
    if source.dense:
        by_row, by_column = by_row // rows.lhs_dilation, by_column // columns.lhs_dilation
    return spaced(
        x_sbuf,
        (0, plan.k_tiles[k_tile][0].count * source.slots),
        (d, block.zn, planes.stride),
        (h, block.pn, by_row),
        (w, block.units, by_column),
    )


def evacuate_bank(work, item, unit, acc_psum):
    """Evacuate a bank into its block's results; the last one of a block sends them off."""
    operands, strides, plan = work.operands, work.geometry.y_strides, work.plan
    k0, kn = plan.batches[item.batch]
    block, side, fold = unit.block, plan.sizes.side, plan.source.fold
    regions = block_runs(strides, item.out_tile, block, side, fold, k0, kn)
    if work.y_sbuf == None:
        shape = (pixels_of(block), side, fold * kn)
        work.y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
        work.residual_sbuf = residual_of(operands, shape, regions, False)
        if operands.kept != None:
            work.kept_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    residual, kept = (None if one == None else place_of(one, unit) for one in (work.residual_sbuf, work.kept_sbuf))
    evacuate_pixels(work, place_of(work.y_sbuf, unit), acc_psum, unit.k0, residual, kept)
    if unit.t0 + unit.tn == side and unit.k0 + unit.kn == fold * kn:
        store_regions(operands.y, work.y_sbuf, regions)
        if operands.kept != None:
            store_regions(operands.kept, work.kept_sbuf, regions)
        work.y_sbuf, work.residual_sbuf, work.kept_sbuf = None, None, None


def place_of(tile_sbuf, unit):
    """What a bank holds of its block's tile [pixels, side, K]."""
    return tile_sbuf[0 : tile_sbuf.shape[0], unit.t0 : unit.t0 + unit.tn, unit.k0 : unit.k0 + unit.kn]


def block_runs(strides, out_tile, block, side, fold, k0, kn):
    """Regions of a block, [pixels, side, (row, K)], with output channels k0 .. k0+kn-1 of all rows of y that are
    folded; those channels are all of K if there are several. strides: of y or the residual along k, n, p, q."""
    s_k, s_n, s_p, s_q = strides[0], strides[1], strides[2], strides[3]
    pattern = [[s_n, block.zn], [fold * block.apart * s_p, block.pn], [side * s_q, block.units], [s_q, side], [s_k, kn]]
    found = []
    for row in range(fold):
        offset = offset_at(strides, (k0, out_tile.z0 + block.z, (out_tile.p0 + block.p) * fold + row, out_tile.q0))
        found.append(((0, 0, row * kn), pattern, offset))
    return found
