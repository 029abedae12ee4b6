"""The loop of the filter gradient: tiles of blocks come in, each of their positions is a matmul for each bank of sums,
sums go out when all tiles have passed."""

from dataclasses import dataclass

from ..._nki import nisa, nl
from .._dma import copy
from .._engines import pick
from .._tiles import PARTS, filled, share, size_of, some_of
from .._warm import warm_up, warm_zeros
from ..conv.call import of_array
from .halves import end_halves, start_halves, start_ones, take_half
from .loads import Piece, clear_x, clear_y, is_channels_last, load_x_of, load_y, room_of
from .plan import ROWS_BOXES, window_sizes
from .units import units_of


@dataclass
class Blocks(nl.NKIObject):
    """A tile of units in SBUF: of x by plane of taps (None where no job has it) [units, rows, columns, c], or with c
    first, and gy [units, rows, columns, k], or with k first."""

    x: list
    y: object
    units: int


def run_weight(work):
    """This core's part of the passes; or the sums of halves of the tiles of each, one a core, and their sum."""
    plan, cores, core = work.plan, nl.num_programs(), nl.program_id(0)
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, plan.warmup, 1)
    start_ones(work)
    if not plan.split:
        for one in some_of(plan.passes, share(len(plan.passes), cores, core)):
            run_pass(work, one, one.tiles)
        return
    halves, mine = start_halves(work), share(PARTS, cores, core)
    for half in range(mine[0], mine[0] + mine[1]):
        take_half(work, halves, half)
        for one in plan.passes:
            run_pass(work, one, some_of(one.tiles, share(len(one.tiles), PARTS, half)))
    end_halves(halves)


def run_pass(work, one, tiles):
    """Sums of the jobs of a Pass over these tiles, and their results: the first round goes along with the loads."""
    buffers = start_buffers(work, one)
    loaded, last = [load_blocks(work, one, tiles[0], buffers[0], len(tiles[0]) <= ROWS_BOXES)], len(tiles) - 1
    for which in range(len(one.rounds)):
        jobs = one.rounds[which]
        sums, done = start_sums(work, jobs), 0
        while which == 0 and done < max(1, last):
            # the next tile comes meanwhile, where it has room of its own
            if len(buffers) > 1 and done < last:
                loaded.append(load_blocks(work, one, tiles[done + 1], buffers[(done + 1) % len(buffers)], False))
            for place in work.plan.places:
                for bank in range(len(jobs)):
                    add_products(work, one, jobs[bank], sums[bank], loaded[done], place, done > 0 or place != (0, 0))
            if len(buffers) == 1 and done < last:
                loaded.append(load_blocks(work, one, tiles[done + 1], buffers[0], False))
            done += 1
        # bank by bank, so that each is read out while the next is summed up
        for bank in range(len(jobs)):
            for index in range(done, len(tiles)):
                for place in work.plan.places:
                    add_products(work, one, jobs[bank], sums[bank], loaded[index], place, index > 0 or place != (0, 0))
            store_sums(work, jobs[bank], sums[bank])


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


def start_buffers(work, one):
    """Blocks that tiles take in turn; nothing is loaded."""
    geometry, plan, found = work.geometry, work.plan, []
    rows, columns = window_sizes(geometry, plan, one)
    x_shape = room_of(geometry.x_strides, one.c[1], rows, columns)
    y_shape = room_of(geometry.y_strides, one.k[1], plan.rows, plan.columns)
    for _ in range(min(plan.buffers, len(one.tiles))):
        x = filled(geometry.planes.taps, None)
        for t in one.planes:
            x[t] = nl.ndarray(x_shape, dtype=work.operands.x_dtype, buffer=nl.sbuf)
        y_sbuf = nl.ndarray(y_shape, dtype=work.operands.w_dtype, buffer=nl.sbuf)
        found.append(Blocks(x=x, y=y_sbuf, units=0))
    return found


def load_blocks(work, one, tile, into, by_rows):
    """Blocks of a tile of units. by_rows: whether rows come in the order in which they are needed, each by itself."""
    plan, geometry = work.plan, work.geometry
    rows, columns = window_sizes(geometry, plan, one)
    piece = Piece(
        rows=plan.rows,
        columns=plan.columns,
        k=one.k,
        c=one.c,
        r=one.r,
        s=one.s,
        h=(0, rows),
        w=(0, columns),
        part=0,
    )
    blocks = Blocks(x=into.x, y=into.y, units=units_of(tile))
    clear_y(geometry, piece, tile, blocks.y)
    for t in one.planes:
        clear_x(geometry, piece, tile, blocks.x[t], t)
    steps, there = plan.rows if by_rows else 1, 0
    for p in range(steps):
        needed = rows if p + 1 == steps else p * geometry.rows.stride + one.r[1]
        for t in one.planes:
            load_x_of(work, piece, tile, blocks.x[t], t, (there, needed))
        there = max(there, needed)
        load_y(work, piece, tile, blocks.y, (p, p + 1) if by_rows else (0, plan.rows))
    return blocks


def columns_of(work, job, count):
    """Columns of taps of so many columns of gy beside each other."""
    return job.sn if job.t < 0 else job.sn + (count - 1) * work.plan.further


def add_products(work, one, job, acc_psum, blocks, place, adds):
    """Products of a position of all blocks of a tile, and of those beside it, added to a job's sums."""
    units, k, stationary = blocks.units, job.k0 - one.k[0], None
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
    moving = moving_of(work, one, job, blocks, place, columns)
    nisa.nc_matmul(dst=sums, stationary=stationary, moving=moving, accumulate=adds)


def moving_of(work, one, job, blocks, place, count):
    """The window of x of a job at a position of all blocks, with so many columns of taps; or ones."""
    rows, columns, c = work.geometry.rows, work.geometry.columns, job.c0 - one.c[0]
    if job.t < 0:
        return of_array(work.ones_sbuf, work.operands)[0 : blocks.units, 0:1, 0:1, 0:1]
    x_sbuf = of_array(blocks.x[job.t], work.operands)
    h = place[0] * rows.stride + (job.r0 - one.r[0]) * rows.dilation
    w = place[1] * columns.stride + (job.s0 - one.s[0]) * columns.dilation
    h1, w1 = h + (job.rn - 1) * rows.dilation + 1, w + (count - 1) * columns.dilation + 1
    if is_channels_last(work.geometry.x_strides):
        return x_sbuf[0 : blocks.units, h : h1 : rows.dilation, w : w1 : columns.dilation, c : c + job.cn]
    return x_sbuf[0 : blocks.units, c : c + job.cn, h : h1 : rows.dilation, w : w1 : columns.dilation]


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
