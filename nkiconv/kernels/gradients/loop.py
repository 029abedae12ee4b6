"""The loop of the filter gradient: tiles of blocks are loaded, each of their positions is a matmul for each
accumulator, which are evacuated at the end."""

from dataclasses import dataclass, replace

from ..._nki import nisa, nl
from ...schedules.blocks import taps_seen, units_of
from ...schedules.blocks_order import order_of
from ...schedules.blocks_schedule import ROWS_REGIONS
from ...schedules.blocks_transposes import AHEAD
from ...schedules.tiles import PARTS, PSUM_BANKS, div_ceil, filled, share, some_of
from .._warm import warm_up, warm_zeros
from ..conv.call import of_array
from .halves import start_ones
from .loads import Piece, clear_x, clear_y, is_channels_last, load_lines, load_units, part_of, room_of
from .sums import add_beside, leavings_of, multiply, part_of_joint, start_joint, store_joint, store_sums
from .transposes import start_transposes, transpose_for


@dataclass
class Blocks(nl.NKIObject):
    """A buffer in SBUF of a tile of units: of x by plane of taps (None where no accumulator has it) [units, rows,
    columns, c], or with c first, and gy [units, rows, columns, k], or with k first. strip: of
    diagonals, number of the strip that the zeros beside blocks are there for."""

    x: list
    y: object
    strip: int = -1


@dataclass
class Feed(nl.NKIObject):
    """Tiles in the order of need, a circular buffer for them, and how many are loaded, or on their way."""

    tiles: tuple
    buffers: list
    loaded: int = 0


def run_weight(work):
    """This core's part of the passes; or the sums of halves of the tiles of each, one a core, and their sum."""
    plan, cores, core = work.plan, nl.num_programs(), nl.program_id(0)
    if plan.geometry.flipped:
        work.operands = replace(work.operands, x=work.operands.w, w=work.operands.x)
    warm_up(warm_zeros(), plan.settings.warmup, 1)
    start_ones(work, work.operands.w_dtype)
    buffers = start_buffers(work)
    if not plan.split:
        mine = some_of(plan.passes, share(len(plan.passes), cores, core))
        run_passes(work, mine, -1, buffers)
        return
    mine = share(PARTS, cores, core)
    for half in range(mine[0], mine[0] + mine[1]):
        work.half = half
        run_passes(work, plan.passes, half, buffers)


def run_passes(work, passes, half, buffers):
    """Products of passes in their order, over a half of the units or, -1, all; tiles are loaded, or transposed, as far
    ahead as there are buffers."""
    order, work.leavings = order_of(work.plan, passes, half), leavings_of(work, passes)
    feed, settings = Feed(order.tiles, buffers), work.plan.settings
    sums, held, joint = [], filled(PSUM_BANKS, None), None
    ahead = start_transposes(work, len(feed.buffers)) if work.plan.transposes != None else None
    for at, some in enumerate(order.products):
        if ahead == None:
            load_until(work, feed, some.stays + len(feed.buffers))
        if some.starts:
            sums = [start_sums(work, accumulator) for accumulator in some.accumulators]
            joint = None if work.half < 0 else start_joint(some.accumulators)
        clips, banks = feed.tiles[some.index].one.clips, range(some.banks[0], some.banks[0] + some.banks[1])
        begin = 0 if clips == None else clips[1]
        for column in range(settings.columns):
            q = (begin + column) % settings.columns
            if ahead != None:
                transpose_ahead(work, ahead, feed, order.products, at, q)
            for bank in banks:
                if q % (some.accumulators[bank].beside * work.plan.apart) < work.plan.apart:
                    add_products(work, some.accumulators[bank], sums[bank], feed, some, q, some.adds or column > 0)
        for bank in banks if some.ends else ():
            end_chain(work, some, bank, sums[bank], held, joint)


def end_chain(work, some, bank, acc_psum, held, joint):
    """Sums of a bank's chain: added in SBUF to those before; the last one's leave, or wait for the round's."""
    number, is_last, sums, accumulator = some.chain, some.last, acc_psum, some.accumulators[bank]
    if number > 0 or not is_last:
        sums = nl.ndarray(acc_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
        if number == 0:
            nisa.tensor_copy(dst=sums, src=acc_psum, engine=nisa.engine.vector)
        else:
            nisa.tensor_tensor(dst=sums, data1=acc_psum, data2=held[bank], op=nl.add)
        held[bank] = sums
    if is_last and joint == None:
        store_sums(work, accumulator, sums)
    elif is_last:
        add_beside(work, accumulator, sums, part_of_joint(work, accumulator, joint[0], joint[1][bank]), None)
        if bank == len(some.accumulators) - 1:
            store_joint(work, some.accumulators, joint)


def transpose_ahead(work, ahead, feed, products, at, q):
    """Transpose what these products need, and up to AHEAD matmul columns beyond column q, if buffers are free."""
    left = sum(columns_in(work, products[later], q if later == at else 0) for later in range(at, ahead.done))
    while ahead.done < len(products) and (ahead.done <= at or left < AHEAD):
        some = products[ahead.done]
        if some.index >= products[at].oldest + len(feed.buffers):
            return
        transpose_for(work, ahead, feed, blocks_of(feed, some.index), some)
        left += columns_in(work, some, 0)
        ahead.done += 1


def columns_in(work, some, q):
    """Columns of matmuls of Products from column q of gy on."""
    acc = some.accumulators[some.banks[0]]
    each = max(nl.tile_size.pmax, acc.c[1] * acc.r[1] * columns_of(work, acc, acc.beside))
    return div_ceil(work.plan.settings.columns - q, acc.beside) * some.banks[1] * each


def load_until(work, feed, end):
    """Have the tiles of a Feed below number `end` be loaded."""
    while feed.loaded < min(end, len(feed.tiles)):
        load_blocks(work, feed, feed.loaded)
        feed.loaded += 1


def start_sums(work, accumulator):
    """A bank of sums for an accumulator."""
    acc, columns = accumulator, columns_of(work, accumulator, accumulator.beside)
    shape = room_of(work.geometry.x_strides, acc.c[1], acc.r[1], columns, acc.beside * acc.pitch)
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)


def start_buffers(work):
    """Buffers of a Feed for all passes, of the most that any of them needs; nothing is loaded."""
    geometry, plan, settings = work.geometry, work.plan, work.plan.settings
    x_shape = room_of(geometry.x_strides, plan.x[2], plan.gang * plan.x[0], plan.x[1])
    y_shape = room_of(geometry.y_strides, plan.k, plan.gang * settings.rows, settings.columns)
    tiles = sum(len(one.tiles) for one in plan.passes)
    return [new_blocks(work, x_shape, y_shape, plan.planes, plan.cleared) for _ in range(min(settings.buffers, tiles))]


def new_blocks(work, x_shape, y_shape, planes, cleared=(0, 0)):
    """Blocks of these shapes, with x at some planes of taps. cleared: (first, end) channels of gy that are zeros."""
    taps, operands = work.geometry.planes.taps, work.operands
    x = [nl.ndarray(x_shape, dtype=operands.x_dtype, buffer=nl.sbuf) if t in planes else None for t in range(taps)]
    y, (first, end) = nl.ndarray(y_shape, dtype=operands.w_dtype, buffer=nl.sbuf), cleared
    if first < end:
        read = part_of(y, work.geometry.y_strides, (0, y.shape[0]), (None, None), (None, None), (first, end))
        nisa.memset(dst=read, value=0.0, engine=nisa.engine.vector)
    return Blocks(x=x, y=y)


def blocks_of(feed, index):
    """Blocks of a Feed's tile."""
    return feed.buffers[index % len(feed.buffers)]


def load_blocks(work, feed, index):
    """A Feed's tile into its buffers."""
    one, tile, blocks = feed.tiles[index].one, feed.tiles[index].tile, blocks_of(feed, index)
    plan, geometry, settings, size = work.plan, work.geometry, work.plan.settings, (one.r, one.s, one.h, one.w)
    each = nl.tile_size.pmax // settings.side
    pieces = [
        Piece(settings.rows, settings.columns, one.k, c, *size, part * each)
        for part, c in enumerate(one.c)
        if part == 0 or c[1] > 0
    ]
    for t in one.planes:
        clear_x(geometry, pieces[0], tile, blocks.x[t], t)
    clear_y(geometry, pieces[0], tile, blocks.y)
    if plan.lines:
        if len(one.planes) > 0:
            load_lines(work.operands.x, plan.source.x_strides, one.c[0], tile, blocks.x[0])
        load_lines(work.operands.w, plan.source.y_strides, one.k, tile, blocks.y)
        return
    # planes without zeros around them are runs
    by_rows = len(tile) <= ROWS_REGIONS and (is_channels_last(geometry.x_strides) or one.clips == None)
    load_units(work, pieces, tile, blocks, one.planes, settings.rows if by_rows else 1)


def columns_of(work, accumulator, count):
    """Columns of taps of so many columns of gy that share a matmul."""
    return accumulator.s[1] if accumulator.t < 0 else accumulator.s[1] + (count - 1) * work.plan.further


def add_products(work, accumulator, acc_psum, feed, some, q, adds):
    """Products of a row and a column of all blocks, and of those beside it, added to an accumulator's sums; all taps of
    the first, then those that meet x in any block."""
    acc, settings, geometry = accumulator, work.plan.settings, work.geometry
    tile, one, blocks = feed.tiles[some.index], feed.tiles[some.index].one, blocks_of(feed, some.index)
    rows, columns, apart = geometry.rows, geometry.columns, work.plan.apart
    count = min(acc.beside, div_ceil(settings.columns - q, apart))
    first = acc.part * (nl.tile_size.pmax // settings.side)
    units, k, p = (first, first + units_of(tile.tile)), acc.k[0] - one.k[0], some.member * settings.rows + some.row
    y_sbuf, beside = of_array(blocks.y, work.operands), (q, q + (count - 1) * apart + 1, apart)
    stationary = part_of(y_sbuf, geometry.y_strides, units, (p, p + 1), beside, (k, k + acc.pitch))
    if acc.bias and acc.t >= 0:
        stationary = ones_of(work, units)
    elif not is_channels_last(geometry.y_strides):
        stationary = stationary.permute((0, 2, 3, 1))
    h = some.row * rows.stride + (acc.r[0] - one.r[0]) * rows.dilation
    w = q * columns.stride + (acc.s[0] - one.s[0]) * columns.dilation
    r, s = (0, acc.r[1]), (0, columns_of(work, acc, count))
    if adds and acc.t >= 0:
        seen = tile.inside[some.member]
        r, s = taps_seen(h, r[1], rows.dilation, seen[0]), taps_seen(w, s[1], columns.dilation, seen[1])
    if r[0] == r[1] or s[0] == s[1]:
        return
    sums = part_of(acc_psum, geometry.x_strides, (0, count * acc.pitch), r, s, (0, acc.c[1]))
    place = h + some.member * one.h[1] - one.h[0], w - one.w[0]
    moving = moving_of(work, acc, (blocks, units, acc.c[0] - one.c[acc.part][0]), place, r, s)
    multiply(sums, stationary, moving, adds, (acc.part, settings.side))


def moving_of(work, accumulator, some, place, r, s):
    """The window of x of an accumulator, which begins at a row and column of blocks (Blocks, partitions, first
    channel), at rows and columns of taps (first, end); or ones."""
    (blocks, units, c), rows, columns = some, work.geometry.rows.dilation, work.geometry.columns.dilation
    if accumulator.t < 0:
        return ones_of(work, units)
    x_sbuf = of_array(blocks.x[accumulator.t], work.operands)
    h, h1 = place[0] + r[0] * rows, place[0] + (r[1] - 1) * rows + 1
    w, w1 = place[1] + s[0] * columns, place[1] + (s[1] - 1) * columns + 1
    return part_of(x_sbuf, work.geometry.x_strides, units, (h, h1, rows), (w, w1, columns), (c, c + accumulator.c[1]))


def ones_of(work, units):
    """Ones on the partitions (first, end) of some units."""
    return of_array(work.ones_sbuf, work.operands)[units[0] : units[1], 0:1, 0:1, 0:1]
