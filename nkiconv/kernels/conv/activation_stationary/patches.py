"""Patches of y: columns of x are the stationaries, filters pass as they are stored, rows of y leave as runs."""

from itertools import product

from ...._nki import nl
from ....schedules.tiles import div_ceil
from ..._epilogue import evacuate
from ..._prologue import load_x
from ..._warm import warm_up
from ..regions import load_bias_as, load_region, offset_at, store_regions


def patch_tiles(work, items):
    """Output tiles of items of a core; x of the next one, and filters of other rows of taps, are loaded before."""
    plan, geometry = work.plan, work.geometry
    warm_up(work.zeros_sbuf, plan.settings.warmup, 1)
    shape = (nl.tile_size.pmax, geometry.K)
    work.bias_sbuf = load_bias_as(work.operands.bias, shape, [[0, shape[0]], [1, shape[1]]], 0)
    filters, after = {}, None
    for index, item in enumerate(items):
        x_sbuf = load_tile(work, item, filters) if after is None else after
        after = load_tile(work, items[index + 1], filters) if index + 1 < len(items) else None
        rows, columns, across = item.r[1], geometry.columns.taps, plan.across
        shape = (item.n[1] * item.i[1] * across, geometry.K, rows, plan.side, columns)
        y_sbuf = nl.ndarray(shape, dtype=work.operands.y.dtype, buffer=nl.sbuf)
        banks = plan.banks(geometry, item)
        for column in range(plan.side):
            for bank in banks:
                yield bank_of(work, item, (x_sbuf, filters[item.r], y_sbuf), column, bank)
        store_patches(work, item, y_sbuf)


def load_tile(work, item, filters):
    """x of an output tile, [c, image, row, column] of each K tile, and filters of its rows of taps, of each K tile
    after its x, if they are not there yet."""
    geometry, plan, operands, found = work.geometry, work.plan, work.operands, []
    by_k, by_c, by_r, by_s = geometry.w_strides
    K, (r0, rn), S = geometry.K, item.r, geometry.columns.taps
    fresh = item.r not in filters
    filters.setdefault(item.r, [])
    for c0, cn in plan.k_tiles:
        x_sbuf = nl.ndarray((cn, item.n[1], item.i[1], geometry.columns.size), dtype=operands.x_dtype, buffer=nl.sbuf)
        load_x(x_sbuf, operands, geometry, (c0, item.n[0], item.i[0], 0), ledger=work.ledger)
        found.append(x_sbuf)
        if fresh:
            w_sbuf = nl.ndarray((cn, K, rn, S), dtype=operands.w_dtype, buffer=nl.sbuf)
            pattern = [[by_c, cn], [by_k, K], [by_r, rn], [by_s, S]]
            load_region(w_sbuf, operands.w, (0, 0, 0, 0), pattern, offset_at(geometry.w_strides, (0, c0, r0, 0)))
            filters[item.r].append(w_sbuf)
    return found


def bank_of(work, item, tiles, column, bank):
    """Sums of a bank at a column of each partition's part of a row, as `work_tiles` takes them."""
    (x, filters, y_sbuf), ((k, kn), (r, rn)) = tiles, bank
    geometry, side, first = work.geometry, work.plan.side, r - item.r[0]
    parts, S, Q = y_sbuf.shape[0], geometry.columns.taps, geometry.columns.size
    acc_psum = nl.ndarray((parts, kn, rn, S), dtype=nl.float32, buffer=nl.psum)

    def products(_):
        for index, (x_sbuf, w_sbuf) in enumerate(zip(x, filters)):
            cn, images, rows = x_sbuf.shape[0:3]
            stationary = x_sbuf[0:cn, 0:images, 0:rows, column:Q:side]
            yield acc_psum, stationary, w_sbuf[0:cn, k : k + kn, first : first + rn, 0:S], index > 0

    def leave():
        into, bias_sbuf = y_sbuf[0:parts, k : k + kn, first : first + rn, column, 0:S], work.bias_sbuf
        if bias_sbuf != None:
            bias_sbuf = bias_sbuf[0:parts, k : k + kn].expand_dim(2).expand_dim(3).broadcast(2, rn).broadcast(3, S)
        options = work.options
        evacuate(into, acc_psum, bias_sbuf, None, options.epilogue, work.ledger, options.strict_nonfinite)

    return products, len(x), leave


def store_patches(work, item, y_sbuf):
    """Rows of y of an output tile: of each output channel and plane of taps, as an access pattern has few dims."""
    operands, geometry, across = work.operands, work.geometry, work.plan.across
    _, by_n, by_p, by_q, *_ = geometry.y_strides
    T, R, wide, (first, rows) = geometry.planes.taps, geometry.rows.taps, work.plan.side * geometry.columns.taps, item.r
    for k, t in product(range(geometry.K), range(first // R, div_ceil(first + rows, R))):
        r0, end = max(first, t * R), min(first + rows, (t + 1) * R)
        pattern = [[T * by_n, item.n[1]], [R * by_p, item.i[1]], [wide * by_q, across], [by_p, end - r0], [by_q, wide]]
        offset = offset_at(geometry.y_strides, (k, item.n[0] * T + t, item.i[0] * R + r0 - t * R, 0))
        rows_sbuf = y_sbuf[0 : y_sbuf.shape[0], k, r0 - first : end - first].reshape((y_sbuf.shape[0], end - r0, wide))
        store_regions(operands.y, rows_sbuf, [((0, 0, 0), pattern, offset)])
