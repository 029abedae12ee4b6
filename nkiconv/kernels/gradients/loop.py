"""The loop of the filter gradient: tiles of blocks come in, a position of them is a matmul a bank, sums go out."""

from dataclasses import dataclass

from ..._nki import nisa, nl
from ...schedules.blocks_schedule import ROWS_BOXES, chains_of
from ...schedules.blocks_units import first_seen, taps_seen, units_of
from ...schedules.tiles import PARTS, PSUM_BANKS, cut_at, div_ceil, filled, share, some_of
from .._warm import warm_up, warm_zeros
from ..conv.call import of_array
from .halves import start_ones
from .loads import Piece, clear_x, clear_y, is_channels_last, load_lines, load_units, part_of, room_of
from .sums import add_beside, multiply, part_of_joint, start_joint, store_joint, store_sums
from .transposes import start_transposes, transpose_for

#: Columns of matmuls ahead of which x and gy are transposed; chosen by modelled times.
AHEAD = 2048


@dataclass
class Blocks(nl.NKIObject):
    """A buffer in SBUF of a tile of units: of x by plane of taps (None where no job has it) [units, rows, columns, c],
    or with c first, and gy [units, rows, columns, k], or with k first; either may be None. zeros: for each plane of
    taps, or for gy, which tile with which taps the zeros around blocks are there for."""

    x: list
    y: object
    zeros: list


@dataclass
class Feed(nl.NKIObject):
    """Tiles of all passes in the order of need, (Pass, number) each, whose gy takes buffers in turn, and whose x takes
    windows; what of the windows of each, of each of its gang, is x in any: rows and columns (first, end); how many are
    loaded, or on their way."""

    tiles: list
    seen: list
    windows: list
    buffers: list
    loaded: int


@dataclass
class Batch(nl.NKIObject):
    """Products of a row of all blocks of a Feed's tile, of one of its gang, for some banks (first, how many) of the
    jobs of a round. adds: whether they are not the first; starts, ends: whether they are those of the round, or the
    last of the bank; chain: (number, whether it is the last) of those whose sums are added in SBUF; stays: the first
    tile that must stay; oldest: that any product from now on needs."""

    index: int
    row: int
    member: int
    jobs: list
    banks: tuple
    adds: bool
    stays: int
    starts: bool = False
    ends: bool = False
    chain: tuple = (0, True)
    oldest: int = 0


def run_weight(work):
    """This core's part of the passes; or the sums of halves of the tiles of each, one a core, and their sum."""
    plan, cores, core = work.plan, nl.num_programs(), nl.program_id(0)
    warm_up(warm_zeros(), plan.settings.warmup, 1)
    start_ones(work, work.operands.w_dtype)
    buffers = start_buffers(work)
    if not plan.split:
        mine = some_of(plan.passes, share(len(plan.passes), cores, core))
        run_passes(work, mine, buffers, -1)
        return
    mine = share(PARTS, cores, core)
    for half in range(mine[0], mine[0] + mine[1]):
        work.half = half
        run_passes(work, plan.passes, buffers, half)


def run_passes(work, passes, buffers, half):
    """Passes one after the other over all of their tiles, half -1, or over a half of the units."""
    feed, batches = Feed(tiles=[], seen=[], windows=buffers[0], buffers=buffers[1], loaded=0), []
    ahead = start_transposes(work, len(feed.buffers)) if work.plan.transposes != None else None
    for one in passes:
        first, count, start = 0, len(one.tiles), len(feed.tiles)
        if half >= 0:
            first = one.half * half
            count = one.half if half == 0 else count - one.half
        for number in range(first, first + count):
            feed.tiles.append((one, number))
            feed.seen.append(windows_seen(one.tiles[number], ahead != None))
        chains = chains_of(work.plan, one, count)
        for number in range(len(chains)):
            begin, tiles = len(batches), (start + chains[number][0], chains[number][1])
            append_batches(batches, work, feed, one, tiles)
            for at in range(begin, len(batches)):
                batch = batches[at]
                batch.chain = (number, number + 1 == len(chains))
    oldest = len(feed.tiles)
    for at in range(len(batches) - 1, -1, -1):
        batch = batches[at]
        oldest = min(oldest, batch.index)
        batch.oldest = oldest
    sums, held, joint = [], filled(PSUM_BANKS, None), None
    for at in range(len(batches)):
        batch = batches[at]
        if ahead == None:
            load_until(work, feed, batch.stays + len(feed.buffers))
        if batch.starts:
            sums = start_sums(work, batch.jobs)
            joint = None if work.half < 0 else start_joint(work, batch.jobs)
        (first, count), columns, clips = batch.banks, work.plan.settings.columns, feed.tiles[batch.index][0].clips
        begin = 0 if clips == None else clips[1]
        for column in range(columns):
            q = (begin + column) % columns
            if ahead != None:
                transpose_ahead(work, ahead, feed, batches, at, q)
            for bank in range(first, first + count):
                job = batch.jobs[bank]
                if q % job.beside == 0:
                    add_products(work, job, sums[bank], feed, batch, q, batch.adds or column > 0)
        for bank in range(first, first + (count if batch.ends else 0)):
            end_chain(work, batch, bank, sums[bank], held, joint)


def end_chain(work, batch, bank, acc_psum, held, joint):
    """Sums of a bank's chain: added in SBUF to those before; the last one's leave, or wait for the round's."""
    number, is_last = batch.chain
    sums, job = acc_psum, batch.jobs[bank]
    if number > 0 or not is_last:
        sums = nl.ndarray(acc_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
        if number == 0:
            nisa.tensor_copy(dst=sums, src=acc_psum, engine=nisa.engine.vector)
        else:
            nisa.tensor_tensor(dst=sums, data1=acc_psum, data2=held[bank], op=nl.add)
        held[bank] = sums
    if is_last and joint == None:
        store_sums(work, job, sums)
    elif is_last:
        add_beside(work, job, sums, part_of_joint(work, job, joint[0], joint[1][bank]), None)
        if bank == len(batch.jobs) - 1:
            store_joint(work, batch.jobs, joint)


def append_batches(batches, work, feed, one, span):
    """Append the Batches of a Pass over tiles of a Feed (first, how many): the first round goes along with loads."""
    first, count = span
    for which in range(len(one.rounds)):
        jobs, begin, last = one.rounds[which], len(batches), which == len(one.rounds) - 1
        done, rows = first + count - 1 if which == 0 else first, (0, work.plan.settings.rows)
        every = one, jobs, (0, len(jobs))
        for index in range(first, done):
            append_rows(batches, work, feed, every, (index, rows), (first, len(one.rounds) == 1))
        if which == 0 and work.half >= 0 and work.plan.transposes == None:
            # rows of the last tile as they come, but for the last one
            append_rows(batches, work, feed, every, (done, (0, rows[1] - 1)), (first, len(one.rounds) == 1))
            rows = (rows[1] - 1, 1)
        # bank by bank, or one for each tile of rows, so that they are read out while others are summed up
        for banks in cut_at(len(jobs), work.plan.settings.side):
            # tiles of several rounds stay until the last bank
            goes = len(one.rounds) == 1 or (last and banks[0] + banks[1] == len(jobs))
            for index in range(done, first + count):
                append_rows(batches, work, feed, (one, jobs, banks), (index, rows), (first, goes))
            end = batches[-1]
            end.ends = True
        start = batches[begin]
        start.starts = True


def append_rows(batches, work, feed, some, where, tiles):
    """Append the Batches of rows of a Feed's tile. some: (Pass, jobs, which of these: (first, how many)); where: (the
    tile, (first, how many) rows); tiles: (first of the pass, whether those before may go)."""
    one, jobs, banks = some
    index, rows = where
    number = feed.tiles[index][1]
    members, order, first = len(one.tiles[number]) if work.plan.transposes != None else 1, [], -1
    if index == tiles[0]:
        # whose products write all sums: a row at which few taps meet zeros, or what is there first; never the last of
        # several, which may come bank by bank
        seen, most = feed.seen[index][0][0], max(1, work.plan.settings.rows - 1)
        first = 0 if one.opens else first_seen(work.geometry.rows, one.r[1], most, seen)
        first = first if one.clips == None else one.clips[0]
        order = [first] if rows[0] <= first and first < rows[0] + rows[1] else []
    for row in range(rows[0], rows[0] + rows[1]):
        if row != first:
            order.append(row)
    stays = index if tiles[1] else tiles[0]
    for row in order:
        for member in range(members):
            adds = row != first or member > 0
            batches.append(Batch(index=index, row=row, member=member, jobs=jobs, banks=banks, adds=adds, stays=stays))


def transpose_ahead(work, ahead, feed, batches, at, q):
    """Transpose the tiles that a Batch needs, and up to AHEAD matmul columns beyond column q, if buffers are free."""
    now, left, there = batches[at], 0, False
    for later in range(at, ahead.batches):
        left += columns_in(work, batches[later], q if later == at else 0)
    while ahead.batches < len(batches) and (ahead.batches <= at or left < AHEAD) and not there:
        batch = batches[ahead.batches]
        there = batch.index >= now.oldest + len(feed.buffers)
        if not there:
            place, jobs = (batch.index, batch.row), some_of(batch.jobs, batch.banks)
            transpose_for(work, ahead, feed, blocks_of(feed, batch.index), place, jobs)
            left += columns_in(work, batch, 0)
            ahead.batches = ahead.batches + 1


def columns_in(work, batch, q):
    """Columns of matmuls of a Batch from column q of gy on."""
    job = batch.jobs[batch.banks[0]]
    each = max(nl.tile_size.pmax, job.c[1] * job.r[1] * columns_of(work, job, job.beside))
    return div_ceil(work.plan.settings.columns - q, job.beside) * batch.banks[1] * each


def load_until(work, feed, end):
    """Have the tiles of a Feed below number `end` be loaded."""
    for index in range(feed.loaded, min(end, len(feed.tiles))):
        load_blocks(work, feed, index)
    feed.loaded = max(feed.loaded, min(end, len(feed.tiles)))


def start_sums(work, jobs):
    """A bank of sums for each job."""
    found = []
    for job in jobs:
        outputs, columns = job.beside * job.k[1], columns_of(work, job, job.beside)
        last = is_channels_last(work.geometry.x_strides)
        shape = (outputs, job.r[1], columns, job.c[1]) if last else (outputs, job.c[1], job.r[1], columns)
        found.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    return found


def start_buffers(work):
    """Windows and buffers of a Feed for all passes, of the most that any of them needs; nothing is loaded."""
    geometry, plan, tiles = work.geometry, work.plan, 0
    for one in plan.passes:
        tiles += len(one.tiles)
    x_shape = room_of(geometry.x_strides, plan.x[2], plan.gang * plan.x[0], plan.x[1])
    y_shape = room_of(geometry.y_strides, plan.k, plan.gang * plan.settings.rows, plan.settings.columns)
    windows = new_buffers(work, min(plan.windows, tiles), x_shape, None, plan.planes)
    return windows, new_buffers(work, min(plan.settings.buffers, tiles), None, y_shape, [])


def new_buffers(work, count, x_shape, y_shape, planes):
    """So many Blocks of these shapes, with x at some planes of taps."""
    taps, found, y_sbuf = work.geometry.planes.taps, [], None
    for _ in range(count):
        x = filled(taps, None)
        for t in planes:
            x[t] = nl.ndarray(x_shape, dtype=work.operands.x_dtype, buffer=nl.sbuf)
        if y_shape != None:
            y_sbuf = nl.ndarray(y_shape, dtype=work.operands.w_dtype, buffer=nl.sbuf)
        found.append(Blocks(x=x, y=y_sbuf, zeros=filled(taps, None)))
    return found


def blocks_of(feed, index):
    """Blocks of a Feed's tile."""
    x, y = feed.windows[index % len(feed.windows)], feed.buffers[index % len(feed.buffers)]
    return Blocks(x=x.x, y=y.y, zeros=[x.zeros, y.zeros])


def load_blocks(work, feed, index):
    """A Feed's tile into its buffers. Loads into new ones come behind those of the first tile, which wait for zeros."""
    (one, number), blocks, pieces = feed.tiles[index], blocks_of(feed, index), []
    plan, geometry, tile, zeros = work.plan, work.geometry, one.tiles[number], blocks.zeros
    rows, columns, r, s, h, w = plan.settings.rows, plan.settings.columns, one.r, one.s, one.h, one.w
    for part in range(plan.settings.side):
        first, c = part * (nl.tile_size.pmax // plan.settings.side), one.c[part]
        if part == 0 or c[1] > 0:
            pieces.append(Piece(rows=rows, columns=columns, k=one.k, c=c, r=r, s=s, h=h, w=w, part=first))
    # which blocks a tile has depends on the taps of its pass
    held = (number, one.r, one.s)
    for t in one.planes:
        if zeros[0][t] != held:
            clear_x(geometry, pieces[0], tile, blocks.x[t], t, 0 < index and index < plan.windows)
            zeros[0][t] = held
    if zeros[1][0] != held:
        clear_y(geometry, pieces[0], tile, blocks.y, 0 < index and index < plan.settings.buffers)
        zeros[1][0] = held
    if plan.lines:
        if len(one.planes) > 0:
            load_lines(work.operands.x, plan.source.x_strides, one.c[0], tile, blocks.x[0])
        load_lines(work.operands.w, plan.source.y_strides, one.k, tile, blocks.y)
        return
    # planes without zeros around them are runs
    by_rows = len(tile) <= ROWS_BOXES and (is_channels_last(geometry.x_strides) or one.clips == None)
    load_units(work, pieces, tile, blocks, one.planes, 0, plan.settings.rows if by_rows else 1)


def columns_of(work, job, count):
    """Columns of taps of so many columns of gy beside each other."""
    return job.s[1] if job.t < 0 else job.s[1] + (count - 1) * work.plan.further


def windows_seen(tile, each):
    """What a Feed knows of a tile's windows: of each of its gang, or of all units together."""
    found = []
    for box in tile:
        rows, columns = (box.rows.low, box.rows.high), (box.columns.low, box.columns.high)
        if len(found) > 0 and not each:
            before = found.pop()
            rows = min(rows[0], before[0][0]), max(rows[1], before[0][1])
            columns = min(columns[0], before[1][0]), max(columns[1], before[1][1])
        found.append((rows, columns))
    return found


def add_products(work, job, acc_psum, feed, batch, q, adds):
    """Products of a Batch's row and a column of all blocks, and of those beside it, added to a job's sums; all taps of
    the first, then those that meet x in any block."""
    one, number = feed.tiles[batch.index]
    blocks, first = blocks_of(feed, batch.index), job.part * (nl.tile_size.pmax // work.plan.settings.side)
    units = first, first + units_of(one.tiles[number])
    k, p = job.k[0] - one.k[0], batch.member * work.plan.settings.rows + batch.row
    count, rows, columns = min(job.beside, work.plan.settings.columns - q), work.geometry.rows, work.geometry.columns
    y_sbuf = of_array(blocks.y, work.operands)
    stationary = part_of(y_sbuf, work.geometry.y_strides, units, (p, p + 1, 1), (q, q + count, 1), (k, k + job.k[1]))
    if not is_channels_last(work.geometry.y_strides):
        stationary = stationary.permute((0, 2, 3, 1))
    h = batch.row * rows.stride + (job.r[0] - one.r[0]) * rows.dilation
    w = q * columns.stride + (job.s[0] - one.s[0]) * columns.dilation
    r, s = (0, job.r[1]), (0, columns_of(work, job, count))
    if adds and job.t >= 0:
        seen = feed.seen[batch.index][batch.member]
        r, s = taps_seen(h, r[1], rows.dilation, seen[0]), taps_seen(w, s[1], columns.dilation, seen[1])
    if r[0] == r[1] or s[0] == s[1]:
        return
    sums = part_of(acc_psum, work.geometry.x_strides, (0, count * job.k[1]), r + (1,), s + (1,), (0, job.c[1]))
    h += batch.member * one.h[1] - one.h[0]
    moving = moving_of(work, job, (blocks, units, job.c[0] - one.c[job.part][0]), (h, w - one.w[0]), r, s)
    multiply(sums, stationary, moving, adds, (job.part, work.plan.settings.side))


def moving_of(work, job, some, place, r, s):
    """The window of x of a job, which begins at a row and column of blocks (Blocks, partitions, first channel), at rows
    and columns of taps (first, end); or ones."""
    (blocks, units, c), rows, columns = some, work.geometry.rows.dilation, work.geometry.columns.dilation
    if job.t < 0:
        return of_array(work.ones_sbuf, work.operands)[units[0] : units[1], 0:1, 0:1, 0:1]
    x_sbuf = of_array(blocks.x[job.t], work.operands)
    h, h1 = place[0] + r[0] * rows, place[0] + (r[1] - 1) * rows + 1
    w, w1 = place[1] + s[0] * columns, place[1] + (s[1] - 1) * columns + 1
    return part_of(x_sbuf, work.geometry.x_strides, units, (h, h1, rows), (w, w1, columns), (c, c + job.c[1]))
