"""The loop of the filter gradient: tiles of blocks come in, each of their positions is a matmul for each bank of sums,
sums go out when all tiles have passed."""

from dataclasses import dataclass

from ..._nki import nisa, nl
from .._tiles import PARTS, PSUM_BANKS, div_ceil, filled, share, some_of
from .._warm import warm_up, warm_zeros
from ..conv.call import of_array
from .halves import start_ones
from .lines import load_lines
from .loads import Piece, clear_x, clear_y, hold_loads, is_channels_last, load_x_of, load_y, room_of
from .plan import ROWS_BOXES, buffer_sizes, window_sizes
from .sums import add_beside, part_of_joint, start_joint, store_joint, store_sums
from .turns import start_turns, turn_for
from .units import chains_of, units_of

#: Columns of matmuls ahead of which x and gy are turned; chosen by modelled times.
AHEAD = 2048


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
    warm_up(warm_zeros(), plan.warmup, 1)
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
    feed, batches = Feed(tiles=[], buffers=buffers, loaded=0), []
    turns = start_turns(work, len(buffers)) if work.plan.turns else None
    for one in passes:
        first, count, start = 0, len(one.tiles), len(feed.tiles)
        if half >= 0:
            first = one.half * half
            count = one.half if half == 0 else count - one.half
        for number in range(first, first + count):
            feed.tiles.append((one, number))
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
        if turns == None:
            load_until(work, feed, batch.stays + len(buffers))
        if batch.starts:
            sums = start_sums(work, batch.jobs)
            joint = None if work.half < 0 else start_joint(work, batch.jobs)
        first, count = batch.banks
        for q in range(0, work.plan.columns, work.plan.beside):
            if turns != None:
                turn_ahead(work, turns, feed, batches, at, q)
            for bank in range(first, first + count):
                add_products(work, batch.jobs[bank], sums[bank], feed, batch, q)
        if batch.ends:
            end_chain(work, batch, sums[first], held, joint)


def end_chain(work, batch, acc_psum, held, joint):
    """Sums of a bank's chain: added to those of chains before, in SBUF, if there are several; the last one's leave,
    those of a half of the units when the round's are there."""
    bank, (number, is_last) = batch.banks[0], batch.chain
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
    """Append the Batches of a Pass over tiles of a Feed (first, how many): the first round goes along with the loads,
    those of the next pass go along with the last one."""
    first, count = span
    for which in range(len(one.rounds)):
        jobs, begin, last = one.rounds[which], len(batches), which == len(one.rounds) - 1
        done, rows = first + count - 1 if which == 0 else first, (0, work.plan.rows)
        every = one, jobs, (0, len(jobs))
        for index in range(first, done):
            append_rows(batches, work, feed, every, (index, rows), (first, len(one.rounds) == 1))
        if which == 0 and work.half >= 0 and not work.plan.turns:
            # rows of the last tile as they come, but for the last one
            append_rows(batches, work, feed, every, (done, (0, rows[1] - 1)), (first, len(one.rounds) == 1))
            rows = (rows[1] - 1, 1)
        # bank by bank, so that each is read out while the next is summed up
        for bank in range(len(jobs)):
            # tiles of several rounds stay until the last bank
            goes = len(one.rounds) == 1 or (last and bank == len(jobs) - 1)
            for index in range(done, first + count):
                append_rows(batches, work, feed, (one, jobs, (bank, 1)), (index, rows), (first, goes))
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
    members = len(one.tiles[number]) if work.plan.turns else 1
    for row in range(rows[0], rows[0] + rows[1]):
        for member in range(members):
            batches.append(
                Batch(
                    index=index,
                    row=row,
                    member=member,
                    jobs=jobs,
                    banks=banks,
                    adds=index > tiles[0] or row > 0 or member > 0,
                    stays=index if tiles[1] else tiles[0],
                )
            )


def turn_ahead(work, turns, feed, batches, at, q):
    """Have be turned what a Batch needs, and those that begin less than AHEAD columns of matmuls after its column q,
    unless a buffer has other tiles yet."""
    now, left, there = batches[at], 0, False
    for later in range(at, turns.batches):
        left += columns_in(work, batches[later], q if later == at else 0)
    while turns.batches < len(batches) and (turns.batches <= at or left < AHEAD) and not there:
        batch = batches[turns.batches]
        there = batch.index >= now.oldest + len(feed.buffers)
        if not there:
            turn_for(work, turns, feed, batch.index, batch.row, some_of(batch.jobs, batch.banks))
            left += columns_in(work, batch, 0)
            turns.batches = turns.batches + 1


def columns_in(work, batch, q):
    """Columns of matmuls of a Batch from column q of gy on."""
    job = batch.jobs[batch.banks[0]]
    each = max(nl.tile_size.pmax, job.cn * job.rn * columns_of(work, job, work.plan.beside))
    return div_ceil(work.plan.columns - q, work.plan.beside) * batch.banks[1] * each


def load_until(work, feed, end):
    """Have the tiles of a Feed below number `end` be loaded."""
    for index in range(feed.loaded, min(end, len(feed.tiles))):
        one, number = feed.tiles[index]
        load_blocks(work, (one, number), feed.buffers[index % len(feed.buffers)], index == 0, index < len(feed.buffers))
    feed.loaded = max(feed.loaded, min(end, len(feed.tiles)))


def start_sums(work, jobs):
    """A bank of sums for each job."""
    found = []
    for job in jobs:
        outputs, columns = work.plan.beside * job.kn, columns_of(work, job, work.plan.beside)
        last = is_channels_last(work.geometry.x_strides)
        shape = (outputs, job.rn, columns, job.cn) if last else (outputs, job.cn, job.rn, columns)
        found.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    return found


def start_buffers(work):
    """Buffers that the tiles of all passes take in turn, of the most that any of them needs; nothing is loaded."""
    geometry, plan, found, tiles = work.geometry, work.plan, [], 0
    for one in plan.passes:
        tiles += len(one.tiles)
    window, k, planes = buffer_sizes(geometry, plan)
    x_shape = room_of(geometry.x_strides, window[2], plan.gang * window[0], window[1])
    y_shape = room_of(geometry.y_strides, k, plan.gang * plan.rows, plan.columns)
    for _ in range(min(plan.buffers, tiles)):
        x = filled(geometry.planes.taps, None)
        for t in planes:
            x[t] = nl.ndarray(x_shape, dtype=work.operands.x_dtype, buffer=nl.sbuf)
        y_sbuf = nl.ndarray(y_shape, dtype=work.operands.w_dtype, buffer=nl.sbuf)
        found.append(Blocks(x=x, y=y_sbuf, zeros=filled(geometry.planes.taps + 1, None)))
    return found


def load_blocks(work, what, blocks, is_first, is_new):
    """A tile (Pass, number) into a buffer. is_first: whether nothing was loaded before, so that rows come in the order
    in which they are needed, each by itself; is_new: whether nothing was in this buffer before, for which it waits."""
    one, number = what
    plan, geometry, tile = work.plan, work.geometry, one.tiles[number]
    rows, columns = window_sizes(geometry, plan, one)
    piece = Piece(rows=plan.rows, columns=plan.columns, k=one.k, c=one.c, r=one.r, s=one.s, h=(0, rows), w=(0, columns))
    holds = is_new and not is_first
    # which blocks a tile has depends on the taps of its pass
    held = (number, one.r, one.s)
    if blocks.zeros[geometry.planes.taps] != held:
        clear_y(geometry, piece, tile, blocks.y)
        if holds:
            hold_loads(blocks.y, geometry.y_strides, 0, 0)
        blocks.zeros[geometry.planes.taps] = held
    for t in one.planes:
        if blocks.zeros[t] != held:
            clear_x(geometry, piece, tile, blocks.x[t], t, holds)
            blocks.zeros[t] = held
    if plan.lines:
        operands = work.operands
        if len(one.planes) > 0:
            load_lines(operands.x, plan.source.x_strides, one.c, tile, blocks.x[0])
        load_lines(operands.w, plan.source.y_strides, one.k, tile, blocks.y)
        return
    by_rows = len(tile) <= ROWS_BOXES
    steps, there = plan.rows if by_rows else 1, 0
    for p in range(steps):
        needed = rows if p + 1 == steps else p * geometry.rows.stride + one.r[1]
        for t in one.planes:
            load_x_of(work, piece, tile, blocks.x[t], t, (there, needed))
        there = max(there, needed)
        load_y(work, piece, tile, blocks.y, (p, p + 1) if by_rows else (0, plan.rows))


def columns_of(work, job, count):
    """Columns of taps of so many columns of gy beside each other."""
    return job.sn if job.t < 0 else job.sn + (count - 1) * work.plan.further


def add_products(work, job, acc_psum, feed, batch, q):
    """Products of a Batch's row and a column of all blocks, and of those beside it, added to a job's sums."""
    one, number = feed.tiles[batch.index]
    blocks, units = feed.buffers[batch.index % len(feed.buffers)], units_of(one.tiles[number])
    k, stationary, p = job.k0 - one.k[0], None, batch.member * work.plan.rows + batch.row
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
    first = batch.row * work.geometry.rows.stride
    if batch.member > 0:
        first += batch.member * window_sizes(work.geometry, work.plan, one)[0]
    moving = moving_of(work, one, job, (blocks, units), (first, q), columns)
    nisa.nc_matmul(dst=sums, stationary=stationary, moving=moving, accumulate=batch.adds or q > 0)


def moving_of(work, one, job, some, place, count):
    """The window of x of a job at a position (row of x, column of gy) of blocks (Blocks, how many), with so many
    columns of taps; or ones."""
    blocks, units = some
    rows, columns, c = work.geometry.rows, work.geometry.columns, job.c0 - one.c[0]
    if job.t < 0:
        return of_array(work.ones_sbuf, work.operands)[0:units, 0:1, 0:1, 0:1]
    x_sbuf = of_array(blocks.x[job.t], work.operands)
    h = place[0] + (job.r0 - one.r[0]) * rows.dilation
    w = place[1] * columns.stride + (job.s0 - one.s[0]) * columns.dilation
    h1, w1 = h + (job.rn - 1) * rows.dilation + 1, w + (count - 1) * columns.dilation + 1
    if is_channels_last(work.geometry.x_strides):
        return x_sbuf[0:units, h : h1 : rows.dilation, w : w1 : columns.dilation, c : c + job.cn]
    return x_sbuf[0:units, c : c + job.cn, h : h1 : rows.dilation, w : w1 : columns.dilation]
