"""The loop of the filter gradient: tiles of blocks are loaded, each position of a block is a matmul for each
accumulator, and accumulators are evacuated at the end."""

from dataclasses import replace
from functools import partial

from ..._nki import nl
from ...schedules.blocks import apart_beside, taps_seen, units_of
from ...schedules.blocks_order import order_of
from ...schedules.blocks_transposes import AHEAD, FAR, PACE
from ...schedules.tiles import PSUM_BANKS, div_ceil
from .._dma import Feed
from .._warm import warm_up, warm_zeros
from ..conv.call import of_array, part_of_core
from ..conv.sums import along, multiply
from .held import hold, pools_of, start_buffers
from .loads import as_stored, is_channels_last, tile_of
from .sums import add_up, further_of, leavings_of, run_parts, start_joint, start_ones, store_sums
from .transposes import start_transposes, transposes_for


def run_weight(work):
    """Compute this core's part of the passes."""
    plan = work.plan
    if plan.geometry.flipped:
        work.operands = replace(work.operands, x=work.operands.w, w=work.operands.x)
    warm_up(warm_zeros(), plan.settings.warmup, 1)
    start_ones(work, work.operands.w_dtype)
    buffers = start_buffers(work)
    own = part_of_core((plan.passes[: plan.middle], plan.passes[plan.middle :]))
    run_parts(work, sum(own, ()), lambda passes: run_passes(work, passes, buffers))


def run_passes(work, passes, buffers):
    """Compute the products of passes in order; tiles are loaded, or transposed, as far ahead as there are buffers."""
    (tiles, products), work.leavings = order_of(work.plan, passes, work.half), leavings_of(work, passes)
    ahead = start_transposes(work) if work.plan.transposes != None else None
    feed = Feed(tiles, [replace(one) for one in buffers], partial(hold, work, pools_of(buffers)))
    sums, held, joint, apart = [], [None] * PSUM_BANKS, None, apart_beside(work.geometry)
    columns = work.plan.settings.columns
    for at, some in enumerate(products):
        one = some.one
        if ahead == None:
            feed.until(some.oldest + len(feed.buffers))
        if some.starts:
            sums = [start_sums(work, accumulator) for accumulator in one.accumulators]
            joint = None if work.half < 0 else start_joint(one.accumulators)
        banks = range(some.banks[0], some.banks[0] + some.banks[1])
        for column in range(columns):
            q = (one.first[1] + column) % columns
            for bank in banks:
                if q % (one.accumulators[bank].beside * apart) < apart:
                    if ahead != None:
                        transpose_ahead(work, ahead, feed, products, at, q)
                        ahead.columns += columns_of_matmul(work, one.accumulators[bank])
                    add_products(work, one.accumulators[bank], sums[bank], feed, some, q, some.adds or column > 0)
        for bank in banks if some.ends else ():
            end_chain(work, some, bank, sums[bank], held, joint)


def end_chain(work, some, bank, acc_psum, held, joint):
    """Add the sums of a bank's chain in SBUF to the chains before; store them after the last chain, or with the pass's
    if a half is exchanged."""
    sums = acc_psum
    if held[bank] != None or not some.last:
        sums = nl.ndarray(acc_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
        add_up(work, [acc_psum], held[bank], sums)
    held[bank] = None if some.last else sums
    if some.last:
        store_sums(work, some.one.accumulators, bank, sums, joint)


def transpose_ahead(work, ahead, feed, products, at, q):
    """Transpose the tiles of these products, and of products after column q if buffers are free: up to AHEAD matmul
    columns after it, from the third tile on half as many, and up to FAR a bank for each PACE columns of matmuls, so
    that the Tensor Engine does not wait for evacuations. Loads of the first tiles may not be there so early."""
    left = sum(columns_in(work, products[later], q if later == at else 0) for later in range(at, ahead.done))
    while ahead.done < len(products):
        some = products[ahead.done]
        near, far = (AHEAD // 2, FAR) if some.index > 1 else (AHEAD, AHEAD)
        is_paced, is_due = left >= near, ahead.done <= at
        if not is_due and (left >= far or some.index >= products[at].oldest + len(feed.buffers)):
            return
        if not is_due and is_paced and ahead.columns < PACE:
            return
        if ahead.steps == None:
            ahead.steps = transposes_for(work, ahead, feed, some)
        for _ in ahead.steps:
            if not is_due and is_paced:
                ahead.columns = 0
                return
        left += columns_in(work, some, 0)
        ahead.done, ahead.steps = ahead.done + 1, None


def columns_in(work, some, q):
    """Columns of the matmuls of Products, from column q of gy on."""
    acc = some.one.accumulators[some.banks[0]]
    return div_ceil(work.plan.settings.columns - q, acc.beside) * some.banks[1] * columns_of_matmul(work, acc)


def columns_of_matmul(work, acc):
    """Columns of a matmul of an accumulator, as long as it takes."""
    return max(nl.tile_size.pmax, acc.c[1] * acc.r[1] * columns_of(work, acc, acc.beside))


def start_sums(work, acc):
    """A new bank of sums [k, rows, columns, c] for an accumulator."""
    sizes = acc.beside * acc.pitch, acc.r[1], columns_of(work, acc, acc.beside), acc.c[1]
    return tile_of(is_channels_last(work.geometry.x_strides), sizes, nl.float32, nl.psum)


def columns_of(work, accumulator, count):
    """Columns of taps of `count` columns of gy that share a matmul."""
    return accumulator.s[1] + (count - 1) * further_of(work, accumulator)


def add_products(work, acc, acc_psum, feed, some, q, adds):
    """Add products of a row and a column of all blocks, and of the columns packed with it, to an accumulator's sums:
    the first of all taps, later ones of the taps that see x in any block."""
    settings, (rows, columns), operands = work.plan.settings, (work.geometry.rows, work.geometry.columns), work.operands
    tile, one, blocks = feed.tiles[some.index], feed.tiles[some.index].one, feed.of(some.index)
    apart = apart_beside(work.geometry)
    count = min(acc.beside, div_ceil(settings.columns - q, apart))
    first = acc.part * (nl.tile_size.pmax // settings.side)
    units, k, p = slice(first, first + units_of(tile.tile)), acc.k[0] - one.k[0], some.member * settings.rows + some.row
    h = some.row * rows.stride + (acc.r[0] - one.r[0]) * rows.dilation
    w = q * columns.stride + (acc.s[0] - one.s[0]) * columns.dilation
    r, s, last = (0, acc.r[1]), (0, columns_of(work, acc, count)), is_channels_last(work.geometry.x_strides)
    if adds and acc.t >= 0:
        r, s = taps_seen(h, r[1], rows.dilation, tile.inside[0]), taps_seen(w, s[1], columns.dilation, tile.inside[1])
    if r[0] == r[1] or s[0] == s[1]:
        return
    if acc.bias and acc.t >= 0:
        stationary = ones_of(work, units)
    else:
        stationary = of_array(blocks.y, operands)[units, p : p + 1, along(q, count, apart), k : k + acc.pitch]
    if acc.t < 0:
        moving = ones_of(work, units)
    else:
        h, w, c = h + some.member * one.h[1] - one.h[0], w - one.w[0], acc.c[0] - one.c[acc.part][0]
        x_rows = along(h + r[0] * rows.dilation, r[1] - r[0], rows.dilation)
        x_columns = along(w + s[0] * columns.dilation, s[1] - s[0], columns.dilation)
        moving = as_stored(of_array(blocks.x[acc.t], operands)[units, x_rows, x_columns, c : c + acc.c[1]], last)
    sums = as_stored(acc_psum[0 : count * acc.pitch, slice(*r), slice(*s)], last)
    multiply(sums, stationary, moving, adds, (acc.part, settings.side))


def ones_of(work, units):
    """Ones on the partitions of units."""
    return of_array(work.ones_sbuf, work.operands)[units, 0:1, 0:1, 0:1]
