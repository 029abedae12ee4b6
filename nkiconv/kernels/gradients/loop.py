"""The loop of the filter gradient: tiles of blocks come in, each of their positions is a matmul for each bank of sums,
sums go out when all tiles have passed."""

from dataclasses import dataclass

from ..._nki import nisa, nl
from .._dma import copy
from .._engines import Ledger, pick
from .._tiles import PARTS, cut_at, filled, share, size_of, some_of
from .._warm import warm_up, warm_zeros
from ..conv.boxes import load_box, offset_at
from ..conv.call import Operands, of_array
from ..conv.geometry import Geometry, met
from ..conv.relayout import meet
from .plan import ROWS_BOXES, WeightPlan, window_sizes
from .units import units_of

#: Columns of a piece of what both cores have summed up.
SUM_COLUMNS = 512


@dataclass
class WeightWork(nl.NKIObject):
    """What one core has at hand. operands: x, gy as w, and as y fp32 sums or the result in HBM; added: what that is
    added to, or None; bias: of its gradient in HBM, or None."""

    operands: Operands
    geometry: Geometry
    plan: WeightPlan
    added: object
    bias: object
    ones_sbuf: object
    ledger: Ledger


@dataclass
class Blocks(nl.NKIObject):
    """A buffer in SBUF of a tile of units: of x by plane of taps (None where no job has it) [units, rows, columns, c],
    or with c first, and gy [units, rows, columns, k], or with k first.

    zeros: for each plane of taps, and for gy, which tile with which taps the zeros around blocks are there for.
    """

    x: list
    y: object
    zeros: list


@dataclass
class Feed(nl.NKIObject):
    """Tiles of all passes in the order of need, (Pass, number) each, which take buffers in turn; how many are loaded,
    or on their way."""

    tiles: list
    buffers: list
    loaded: int


def run_weight(work):
    """This core's part of the passes; or the sums of halves of the tiles of each, one a core, and their sum."""
    plan, cores, core = work.plan, nl.num_programs(), nl.program_id(0)
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, plan.warmup, 1)
    if work.bias != None:
        work.ones_sbuf = nl.ndarray((nl.tile_size.pmax, 1, 1, 1), dtype=work.operands.w_dtype, buffer=nl.sbuf)
        nisa.memset(dst=work.ones_sbuf, value=1.0, engine=nisa.engine.vector)
    buffers = start_buffers(work)
    if not plan.split:
        mine = some_of(plan.passes, share(len(plan.passes), cores, core))
        run_passes(work, mine, buffers, (0, 1))
        return
    into, bias, added = work.operands.y, work.bias, work.added
    operands, halves, biases = work.operands, [], []
    for _ in range(PARTS):
        halves.append(nl.ndarray(into.shape, dtype=nl.float32, buffer=nl.shared_hbm))
        biases.append(None if bias == None else nl.ndarray(bias.shape, dtype=nl.float32, buffer=nl.shared_hbm))
    mine = share(PARTS, cores, core)
    work.added = None
    for half in range(mine[0], mine[0] + mine[1]):
        operands.y = halves[half]
        work.bias = biases[half]
        run_passes(work, plan.passes, buffers, (half, PARTS))
    for one in halves:
        meet(one)
    add_halves(halves, into, added)
    if bias != None:
        for one in biases:
            meet(one)
        add_halves(biases, bias, None)


def add_halves(halves, into, added):
    """This core's part of the sum of two tensors in HBM, and of one that it is added to, or None."""
    first, count = share(size_of(into.shape), nl.num_programs(), nl.program_id(0))
    whole = count // SUM_COLUMNS
    for some in cut_at(whole, nl.tile_size.pmax):
        add_piece(halves, into, added, (first + some[0] * SUM_COLUMNS, some[1], SUM_COLUMNS))
    if count % SUM_COLUMNS > 0:
        add_piece(halves, into, added, (first + whole * SUM_COLUMNS, 1, count % SUM_COLUMNS))


def add_piece(halves, into, added, piece):
    """The same of neighbouring elements: (first, rows, columns)."""
    offset, parts, columns = piece
    pattern, sums = [[columns, parts], [1, columns]], []
    for one in halves if added == None else halves + [added]:
        part_sbuf = nl.ndarray((parts, columns), dtype=nl.float32, buffer=nl.sbuf)
        copy(part_sbuf, one.ap(pattern=pattern, offset=offset))
        sums.append(part_sbuf)
    found_sbuf = nl.ndarray((parts, columns), dtype=into.dtype, buffer=nl.sbuf)
    if added != None:
        nisa.tensor_tensor(dst=sums[0], data1=sums[0], data2=sums[1], op=nl.add)
        nisa.tensor_tensor(dst=found_sbuf, data1=sums[0], data2=sums[2], op=nl.add)
    else:
        nisa.tensor_tensor(dst=found_sbuf, data1=sums[0], data2=sums[1], op=nl.add)
    copy(into.ap(pattern=pattern, offset=offset), found_sbuf)


def run_passes(work, passes, buffers, part):
    """Passes one after the other over this part (number, of how many) of their tiles."""
    feed, spans = Feed(tiles=[], buffers=buffers, loaded=0), []
    for one in passes:
        first, count = share(len(one.tiles), part[1], part[0])
        spans.append((len(feed.tiles), count))
        for number in range(first, first + count):
            feed.tiles.append((one, number))
    for index in range(len(passes)):
        run_pass(work, passes[index], feed, spans[index])


def run_pass(work, one, feed, span):
    """Sums of the jobs of a Pass over tiles of a Feed (first, how many), and their results: the first round goes along
    with the loads, those of the next pass go along with the last one."""
    first, count = span
    ahead, last_round = len(feed.buffers), len(one.rounds) - 1
    for which in range(len(one.rounds)):
        jobs = one.rounds[which]
        sums, done = start_sums(work, jobs), 0
        while which == 0 and done < count - 1:
            # tiles of several rounds stay
            load_until(work, feed, first + (done if last_round == 0 else 0) + ahead)
            for place in work.plan.places:
                for bank in range(len(jobs)):
                    add_products(work, jobs[bank], sums[bank], feed, first + done, place, done > 0 or place != (0, 0))
            done += 1
        load_until(work, feed, first + (count - 1 if last_round == 0 else 0) + ahead)
        # bank by bank, so that each is read out while the next is summed up
        for bank in range(len(jobs)):
            for index in range(done, count):
                for place in work.plan.places:
                    adds = index > 0 or place != (0, 0)
                    add_products(work, jobs[bank], sums[bank], feed, first + index, place, adds)
            store_sums(work, jobs[bank], sums[bank])


def load_until(work, feed, end):
    """Have the tiles of a Feed below number `end` be loaded."""
    for index in range(feed.loaded, min(end, len(feed.tiles))):
        one, number = feed.tiles[index]
        load_blocks(work, one, number, feed.buffers[index % len(feed.buffers)], index == 0)
    feed.loaded = max(feed.loaded, min(end, len(feed.tiles)))


def start_sums(work, jobs):
    """A bank of sums for each job."""
    found = []
    for job in jobs:
        outputs, columns = work.plan.beside * job.kn, columns_of(work, job, work.plan.beside)
        shape = (outputs, job.cn, job.rn, columns)
        if is_channels_last(work.geometry.x_strides):
            shape = (outputs, job.rn, columns, job.cn)
        found.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    return found


def is_channels_last(strides):
    """Whether channels are side by side."""
    return strides[0] == 1


def start_buffers(work):
    """Buffers that the tiles of all passes take in turn, of the most that any of them needs; nothing is loaded."""
    geometry, plan, found = work.geometry, work.plan, []
    rows, columns, c, k, planes, tiles = 1, 1, 1, 1, [], 0
    for one in plan.passes:
        sizes = window_sizes(geometry, plan, one)
        rows, columns = max(rows, sizes[0]), max(columns, sizes[1])
        c, k, tiles = max(c, one.c[1]), max(k, one.k[1]), tiles + len(one.tiles)
        for t in one.planes:
            if t not in planes:
                planes.append(t)
    P_MAX = nl.tile_size.pmax
    x_shape = (P_MAX, rows, columns, c) if is_channels_last(geometry.x_strides) else (P_MAX, c, rows, columns)
    y_shape = (P_MAX, plan.rows, plan.columns, k)
    if not is_channels_last(geometry.y_strides):
        y_shape = (P_MAX, k, plan.rows, plan.columns)
    for _ in range(min(plan.buffers, tiles)):
        x = filled(geometry.planes.taps, None)
        for t in planes:
            x[t] = nl.ndarray(x_shape, dtype=work.operands.x_dtype, buffer=nl.sbuf)
        y_sbuf = nl.ndarray(y_shape, dtype=work.operands.w_dtype, buffer=nl.sbuf)
        found.append(Blocks(x=x, y=y_sbuf, zeros=filled(geometry.planes.taps + 1, None)))
    return found


def load_blocks(work, one, number, blocks, is_first):
    """A Pass's tile of this number into a buffer. is_first: whether nothing was loaded before, so that rows come in the
    order in which they are needed, each by itself."""
    plan, rows, tile, y_zeros = work.plan, work.geometry.rows, one.tiles[number], work.geometry.planes.taps
    by_rows = is_first and len(tile) <= ROWS_BOXES
    if blocks.zeros[y_zeros] != number:
        clear_y(work, tile, blocks)
        blocks.zeros[y_zeros] = number
    for t in one.planes:
        if blocks.zeros[t] != (number, one.r, one.s):
            clear_x(work, one, tile, blocks, t)
            blocks.zeros[t] = (number, one.r, one.s)
    steps, there = plan.rows if by_rows else 1, 0
    for p in range(steps):
        needed = window_sizes(work.geometry, plan, one)[0] if p + 1 == steps else p * rows.stride + one.r[1]
        for t in one.planes:
            load_x_of(work, one, tile, blocks, t, (there, needed))
        there = max(there, needed)
        load_y(work, one, tile, blocks, (p, p + 1) if by_rows else (0, plan.rows))


def clear_y(work, tile, blocks):
    """Zeros where a block of gy has fewer rows or columns."""
    plan, inside = work.plan, (work.plan.rows, work.plan.columns)
    for box in tile:
        inside = (min(inside[0], box.rows.extent), min(inside[1], box.columns.extent))
    last = is_channels_last(work.geometry.y_strides)
    clear_sides(blocks.y, last, (0, inside[0]), (0, inside[1]), (plan.rows, plan.columns))


def clear_x(work, one, tile, blocks, t):
    """Zeros around x, at a plane of taps, where it is not there for all units of a tile."""
    geometry, sizes = work.geometry, window_sizes(work.geometry, work.plan, one)
    low, high, left, right = 0, sizes[0], 0, sizes[1]
    for box in tile:
        low, left = max(low, box.rows.low), max(left, box.columns.low)
        high, right = min(high, box.rows.high), min(right, box.columns.high)
        if met(geometry.planes, t, box.z, 1)[2] == 0:
            low, high = 0, 0
    last = is_channels_last(geometry.x_strides)
    clear_sides(blocks.x[t], last, (low, max(low, high)), (left, max(left, right)), sizes)


def load_y(work, one, tile, blocks, rows):
    """Rows (first, end) of gy of a tile's units."""
    strides = work.geometry.y_strides
    last = is_channels_last(strides)
    for box in tile:
        end = min(rows[1], box.rows.extent)
        if rows[0] < end:
            offset = offset_at(strides, (one.k[0], box.z, box.p + rows[0], box.q))
            extents = (one.k[1], end - rows[0], box.columns.extent)
            pattern = lead_of(box, strides, (1, 1, 1)) + free_of(strides, extents)
            load_box(blocks.y, work.operands.w, place_of(box.part, rows[0], 0, last), pattern, offset)


def load_x_of(work, one, tile, blocks, t, window):
    """Rows (first, end) of the windows of x of a tile's units at a plane of taps."""
    geometry, strides = work.geometry, work.geometry.x_strides
    rows, columns, last = geometry.rows, geometry.columns, is_channels_last(strides)
    steps = (geometry.planes.stride, rows.stride, columns.stride)
    for box in tile:
        plane = met(geometry.planes, t, box.z, 1)
        low, high = max(window[0], box.rows.low), min(window[1], box.rows.high)
        wn = box.columns.high - box.columns.low
        if plane[2] > 0 and low < high and wn > 0:
            h = box.p * rows.stride + one.r[0] * rows.dilation - rows.before + low
            w = box.q * columns.stride + one.s[0] * columns.dilation - columns.before + box.columns.low
            offset = offset_at(strides, (one.c[0], plane[3], h, w))
            place = place_of(box.part, low, box.columns.low, last)
            pattern = lead_of(box, strides, steps) + free_of(strides, (one.c[1], high - low, wn))
            load_box(blocks.x[t], work.operands.x, place, pattern, offset)


def place_of(part, row, column, last):
    """Where a box begins in a tile of units."""
    return (part, row, column, 0) if last else (part, 0, row, column)


def free_of(strides, extents):
    """Entries of an access pattern for (channels, rows, columns), as they lie in a tile of units."""
    channels, rows = [strides[0], extents[0]], [strides[2], extents[1]]
    if is_channels_last(strides):
        return [rows, [strides[3], extents[2]], channels]
    return [channels, rows, [strides[3], extents[2]]]


def lead_of(box, strides, steps):
    """Entries of an access pattern for the units of a Box. steps: elements of x from output to output."""
    apart = (strides[1] * steps[0], strides[2] * steps[1] * box.rows.apart, strides[3] * steps[2] * box.columns.apart)
    found = []
    for axis in range(3):
        if box.counts[axis] > 1:
            found.append([apart[axis], box.counts[axis]])
    return found if len(found) > 0 else [[1, 1]]


def clear_sides(tile, last, rows, columns, sizes):
    """Zeros in a tile of units but for rows and columns (first, end) that all of them load."""
    parts, each, index = tile.shape[0], tile.shape[3], 0
    strips = ((0, rows[0], 0, sizes[1]), (rows[1], sizes[0], 0, sizes[1]))
    strips = strips + ((rows[0], rows[1], 0, columns[0]), (rows[0], rows[1], columns[1], sizes[1]))
    if last and each % 2 == 0 and tile.dtype != nl.float32:
        # two channels at once
        tile = tile.view(nl.float32)
        each = each // 2
    for some in strips:
        h0, h1, w0, w1 = some
        if h0 < h1 and w0 < w1:
            engine = nisa.engine.vector if index % 2 == 0 else nisa.engine.gpsimd
            index += 1
            if last:
                nisa.memset(dst=tile[0:parts, h0:h1, w0:w1, 0:each], value=0.0, engine=engine)
            else:
                nisa.memset(dst=tile[0:parts, 0 : tile.shape[1], h0:h1, w0:w1], value=0.0, engine=engine)


def columns_of(work, job, count):
    """Columns of taps of so many columns of gy beside each other."""
    return job.sn if job.t < 0 else job.sn + (count - 1) * work.plan.further


def add_products(work, job, acc_psum, feed, index, place, adds):
    """Products of a position of all blocks of a Feed's tile, and of those beside it, added to a job's sums."""
    one, number = feed.tiles[index]
    blocks, units = feed.buffers[index % len(feed.buffers)], units_of(one.tiles[number])
    k, stationary = job.k0 - one.k[0], None
    p, q = place
    count = min(work.plan.beside, work.plan.columns - q)
    outputs, columns = count * job.kn, columns_of(work, job, count)
    y_sbuf = of_array(blocks.y, work.operands)
    if is_channels_last(work.geometry.y_strides):
        stationary = y_sbuf[0:units, p, q : q + count, k : k + job.kn]
    else:
        stationary = y_sbuf[0:units, k : k + job.kn, p, q : q + count].permute((0, 2, 1))
    sums = acc_psum
    if count < work.plan.beside and is_channels_last(work.geometry.x_strides):
        sums = acc_psum[0:outputs, 0 : job.rn, 0:columns, 0 : job.cn]
    elif count < work.plan.beside:
        sums = acc_psum[0:outputs, 0 : job.cn, 0 : job.rn, 0:columns]
    moving = moving_of(work, one, job, (blocks, units), place, columns)
    nisa.nc_matmul(dst=sums, stationary=stationary, moving=moving, accumulate=adds)


def moving_of(work, one, job, some, place, count):
    """The window of x of a job at a position of blocks (Blocks, how many), with so many columns of taps; or ones."""
    blocks, units = some
    rows, columns, c = work.geometry.rows, work.geometry.columns, job.c0 - one.c[0]
    if job.t < 0:
        return of_array(work.ones_sbuf, work.operands)[0:units, 0:1, 0:1, 0:1]
    x_sbuf = of_array(blocks.x[job.t], work.operands)
    h = place[0] * rows.stride + (job.r0 - one.r[0]) * rows.dilation
    w = place[1] * columns.stride + (job.s0 - one.s[0]) * columns.dilation
    h1, w1 = h + (job.rn - 1) * rows.dilation + 1, w + (count - 1) * columns.dilation + 1
    if is_channels_last(work.geometry.x_strides):
        return x_sbuf[0:units, h : h1 : rows.dilation, w : w1 : columns.dilation, c : c + job.cn]
    return x_sbuf[0:units, c : c + job.cn, h : h1 : rows.dilation, w : w1 : columns.dilation]


def store_sums(work, job, acc_psum):
    """A job's sums, in the order of the filter, to HBM."""
    operands, strides, added = work.operands, work.geometry.w_strides, None
    # channels of a group are counted from its first one
    c, row = job.c0 % (work.geometry.C // work.geometry.groups), max(0, job.t) * work.geometry.rows.taps + job.r0
    offset, into = job.k0 * strides[0] + c * strides[1] + row * strides[2] + job.s0 * strides[3], operands.y
    channels, taps = [strides[1], job.cn], [[strides[2], job.rn], [strides[3], job.sn]]
    # as the filter lies, so that runs are long
    last = strides[1] < strides[3]
    pattern = [[strides[0], job.kn]] + (taps + [channels] if last else [channels] + taps)
    if job.t < 0:
        pattern, offset, into = [[1, job.kn], [1, 1], [1, 1], [1, 1]], job.k0, work.bias
    shape = (pattern[0][1], pattern[1][1], pattern[2][1], pattern[3][1])
    if job.t >= 0 and work.added != None:
        added = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        copy(added, work.added.ap(pattern=pattern, offset=offset))
    found_sbuf = nl.ndarray(shape, dtype=into.dtype, buffer=nl.sbuf)
    for index in range(work.plan.beside):
        sums, end = sums_beside(work, job, acc_psum, index, last), index + 1 == work.plan.beside
        into_sbuf = found_sbuf if end else nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        if added == None:
            nisa.tensor_copy(dst=into_sbuf, src=sums, engine=pick(work.ledger, size_of(shape[1:]), False))
        else:
            nisa.tensor_tensor(dst=into_sbuf, data1=sums, data2=added, op=nl.add)
        added = into_sbuf
    copy(into.ap(pattern=pattern, offset=offset), found_sbuf)


def sums_beside(work, job, acc_psum, index, last):
    """A job's sums of the index-th of the columns of gy beside each other, in the order of the filter: channels last or
    first."""
    k, far = index * job.kn, 0 if job.t < 0 else index * work.plan.further
    if is_channels_last(work.geometry.x_strides):
        sums = acc_psum[k : k + job.kn, 0 : job.rn, far : far + job.sn, 0 : job.cn]
        return sums if last else sums.permute((0, 3, 1, 2))
    sums = acc_psum[k : k + job.kn, 0 : job.cn, 0 : job.rn, far : far + job.sn]
    return sums.permute((0, 2, 3, 1)) if last else sums
