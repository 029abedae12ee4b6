"""The loop of the filter gradient by diagonals: units come in, blocks of a group pass the array, sums are read out,
gathered, and added up once all units have passed."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import pick
from ..._tiles import BANK_COLUMNS, PARTS, cut_at, div_ceil, share, some_of
from ..._warm import warm_up, warm_zeros
from ...conv.call import of_array
from ..halves import own_part, start_ones, with_other_half
from ..loads import Piece, clear_sides, clear_x, clear_y, is_channels_last, load_x_of, load_y, room_of
from ..loop import Blocks
from ..units import units_of
from .biases import add_biases, multiply, start_biases, store_biases
from .fold import make_constants
from .plan import READS


@dataclass
class Step(nl.NKIObject):
    """A chunk of tiles of units that are there together, of a pass; whether it is its first, and last."""

    parts: list
    tiles: list
    first: bool
    last: bool


@dataclass
class Product(nl.NKIObject):
    """A block of the units of a tile, by its number in a chunk: its gy from p, q on; of its window of x rows and
    columns (first of what is in SBUF, how many, first of the window)."""

    tile: int
    p: int
    q: int
    h: tuple
    w: tuple


def run_diagonals(work):
    """This core's part of the passes; or the sums of halves of the tiles of each, one a core, and their sum."""
    plan, cores, core = work.plan, nl.num_programs(), nl.program_id(0)
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, plan.settings.warmup, 1)
    start_ones(work, nl.float32)
    constants = make_constants(plan, zeros_sbuf, start_reads(plan))
    if not plan.split:
        mine = some_of(plan.passes, share(len(plan.passes), cores, core))
        run_steps(work, constants, steps_of(plan, mine, plan.tiles))
        return
    mine = share(PARTS, cores, core)
    for half in range(mine[0], mine[0] + mine[1]):
        work.half = half
        tiles = some_of(plan.tiles, share(len(plan.tiles), PARTS, half))
        run_steps(work, constants, steps_of(plan, plan.passes, tiles))


def start_reads(plan):
    """Tiles of sums as read out, READS for each tile of rows; zeros where a block's window never sees x."""
    rows, height, width, found = rows_of_sums(plan), plan.window[0], plan.window[1], []
    h, w, count = plan.seen[0], plan.seen[1], plan.per_gather * plan.c
    for _ in range(READS * plan.settings.side):
        read_sbuf = nl.ndarray((rows, count * height * width), dtype=nl.float32, buffer=nl.sbuf)
        windows = read_sbuf.reshape((rows, count, height, width))
        clear_sides(windows, False, (h[0], h[0] + h[1]), (w[0], w[0] + w[1]), plan.window)
        found.append(read_sbuf)
    return found


def steps_of(plan, passes, tiles):
    """Steps of some passes over some tiles."""
    found, chunks = [], cut_at(len(tiles), plan.settings.together)
    for one in passes:
        for index in range(len(chunks)):
            last = index + 1 == len(chunks)
            some = some_of(tiles, chunks[index])
            found.append(Step(parts=one, tiles=some, first=index == 0, last=last))
    return found


def run_steps(work, constants, steps):
    """Steps, each loaded so many ahead as there are buffers; a pass is stored after the products of the next step."""
    settings, sums, biases, units, waiting, turn = work.plan.settings, [], None, 0, [], 0
    buffers = start_units(work, min(settings.buffers, len(steps)))
    ahead = len(buffers) - 1
    for index in range(min(ahead, len(steps))):
        load_step(work, steps[index], buffers[index], index == 0 or index + 1 == len(steps))
    for index in range(len(steps)):
        step, there = steps[index], buffers[index % len(buffers)]
        if index + ahead < len(steps):
            by_rows = index + ahead == 0 or index + ahead + 1 == len(steps)
            load_step(work, steps[index + ahead], buffers[(index + ahead) % len(buffers)], by_rows)
        if step.first:
            sums, biases, units = start_taps(work, step), start_biases(work), units_of(step.tiles[0])
        turn = run_products(work, constants, step, there, sums, turn)
        if work.bias != None:
            add_biases(work, step, there, biases)
        for one in waiting:
            store_pass(work, constants, one)
        waiting = [(step, sums, biases, units)] if step.last else []
    for one in waiting:
        store_pass(work, constants, one)


def store_pass(work, constants, what):
    """Sums of a pass to HBM. what: (its last Step, sums of taps, of biases, units of its first tile, the fullest)."""
    step, sums, biases, units = what
    store_taps(work, constants, step.parts, sums)
    if work.bias != None:
        store_biases(work, step, biases, units)


def start_units(work, count):
    """Room for so many steps; nothing is loaded."""
    geometry, plan, settings, found = work.geometry, work.plan, work.plan.settings, []
    x_shape = room_of(geometry.x_strides, settings.groups * plan.c, plan.h[1], plan.w[1])
    rows, columns = settings.rows * settings.down, settings.columns * settings.across
    y_shape = room_of(geometry.y_strides, settings.groups * plan.k, rows, columns)
    for _ in range(count):
        tiles = []
        for _ in range(settings.together):
            x = []
            for _ in range(geometry.planes.taps):
                x.append(nl.ndarray(x_shape, dtype=work.operands.x_dtype, buffer=nl.sbuf))
            y_sbuf = nl.ndarray(y_shape, dtype=work.operands.w_dtype, buffer=nl.sbuf)
            tiles.append(Blocks(x=x, y=y_sbuf, zeros=[]))
        found.append(tiles)
    return found


def piece_of(plan, part, group):
    """The Piece of the part-th tile of rows: groups (first, how many)."""
    settings, geometry = plan.settings, plan.geometry
    return Piece(
        rows=settings.rows * settings.down,
        columns=settings.columns * settings.across,
        k=(group[0] * plan.k, group[1] * plan.k),
        c=(group[0] * plan.c, group[1] * plan.c),
        r=(0, geometry.rows.taps),
        s=(0, geometry.columns.taps),
        h=plan.h,
        w=plan.w,
        part=part * (nl.tile_size.pmax // settings.side),
    )


def load_step(work, step, tiles, by_rows):
    """What a step needs of x and gy. by_rows: whether rows of blocks come one by one, if each tile of rows has one
    group, so that products begin before all is there."""
    geometry, settings, taps = work.geometry, work.plan.settings, work.geometry.planes.taps
    bands = settings.down if by_rows and settings.groups == 1 else 1
    for index in range(len(step.tiles)):
        tile, into = step.tiles[index], tiles[index]
        whole = piece_of(work.plan, 0, step.parts[0])
        clear_y(geometry, whole, tile, into.y)
        for t in range(taps):
            clear_x(geometry, whole, tile, into.x[t], t)
        there, rows = whole.h[0], whole.rows // bands
        for band in range(bands):
            needed = whole.h[0] + whole.h[1]
            if band + 1 < bands:
                needed = min(needed, max(there, band * rows * geometry.rows.stride + work.plan.window[0]))
            for part in range(len(step.parts)):
                piece = piece_of(work.plan, part, step.parts[part])
                load_y(work, piece, tile, into.y, (band * rows, (band + 1) * rows))
                for t in range(taps):
                    load_x_of(work, piece, tile, into.x[t], t, (there, needed))
            there = needed


def start_taps(work, step):
    """Sums of taps [(p, q, k), groups, gathered] of a pass, for each tile of rows."""
    plan, found = work.plan, []
    for part in step.parts:
        shape = (rows_of_sums(plan), jobs_of(work, part), plan.each)
        found.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
    return found


def positions_of(plan):
    """Rows of the array's results of a group."""
    return plan.settings.rows * plan.settings.columns * plan.k


def rows_of_sums(plan):
    """Partitions of sums: of one group, or of those below each other."""
    return positions_of(plan) if plan.settings.below == 1 else nl.tile_size.pmax


def products_of(plan, tiles):
    """(Products of a group in a step, whether the first covers all that there is of a block's window)."""
    settings, rows, columns, found = plan.settings, plan.geometry.rows, plan.geometry.columns, []
    covers = False
    for index in range(len(tiles)):
        extent = (0, 0)
        for box in tiles[index]:
            extent = (max(extent[0], box.rows.extent), max(extent[1], box.columns.extent))
        for i in range(settings.down):
            for j in range(settings.across):
                p, q = i * settings.rows, j * settings.columns
                h = clipped(p * rows.stride, plan.window[0], plan.h, plan.seen[0])
                w = clipped(q * columns.stride, plan.window[1], plan.w, plan.seen[1])
                if p < extent[0] and q < extent[1] and h[1] > 0 and w[1] > 0:
                    one = [Product(tile=index, p=p, q=q, h=h, w=w)]
                    if not covers and (h[1], w[1]) == (plan.seen[0][1], plan.seen[1][1]):
                        covers, found = True, one + found
                    else:
                        found = found + one
    return found, covers


def clipped(first, count, there, seen):
    """(first of what is there, how many, first of what is seen of a window) of so many elements, some of which are
    there."""
    low, high = max(first, there[0]), min(first + count, there[0] + there[1])
    return low - there[0], max(0, high - low), low - first - seen[0]


def run_products(work, constants, step, tiles, sums, turn):
    """Sums of taps of a step: written, or added to those of the steps of the pass before. Returns how many sets of
    tiles as read out have been in use, `turn` before."""
    plan, products = work.plan, products_of(work.plan, step.tiles)
    for some in cut_at(jobs_of(work, step.parts[0]), plan.per_gather):
        first = turn % READS * plan.settings.side
        reads = constants.reads[first : first + plan.settings.side]
        for bank in cut_at(some[1], plan.per_bank):
            fill_banks(work, constants, step, tiles, (some[0] + bank[0], bank[1]), products, reads, bank[0])
        for part in range(len(step.parts)):
            gather_taps(work, constants, reads[part], sums[part], some, step.first)
        turn += 1
    return turn


def jobs_of(work, part):
    """Jobs of a tile of rows: of groups below each other, and a plane of taps."""
    return div_ceil(part[1], work.plan.settings.below) * work.geometry.planes.taps


def some_jobs(work, part, some):
    """How many of jobs (first, how many) a tile of rows has."""
    return max(0, min(some[1], jobs_of(work, part) - some[0]))


def fill_banks(work, constants, step, tiles, some, products, reads, into):
    """Sums of jobs (first, how many), groups and their planes of taps, of each tile of rows; read out, `into` on."""
    plan, banks, below, T = work.plan, [], work.plan.settings.below, work.geometry.planes.taps
    covers = products[1] and below == 1
    for _ in step.parts:
        banks.append(nl.ndarray((rows_of_sums(plan), plan.per_bank * plan.columns), dtype=nl.float32, buffer=nl.psum))
    for index in range(some[1]):
        first = (some[0] + index) // T * below
        # each after the other on other tiles of rows, which work side by side then
        for part in range(0 if covers else len(step.parts)):
            if index < some_jobs(work, step.parts[part], some):
                add_zeros(plan, constants, banks[part], part, index)
        for number in range(len(products[0])):
            product, adds = products[0][number], number > 0 or not covers
            for group in range(first, first + below):
                for part in range(len(step.parts)):
                    if group < step.parts[part][1]:
                        place = part, group, (some[0] + index) % T, index
                        add_product(work, step, tiles, product, banks[part], place, adds)
    for part in range(len(step.parts)):
        count = some_jobs(work, step.parts[part], some)
        if count > 0:
            read_bank(work, banks[part], reads[part], count, into)


def read_bank(work, bank_psum, read_sbuf, count, into):
    """A bank of so many jobs, read out from the `into`-th on."""
    plan, rows = work.plan, rows_of_sums(work.plan)
    hs, ws, size, width = plan.seen[0], plan.seen[1], plan.window[0] * plan.window[1], plan.window[1]
    pattern = [[read_sbuf.shape[1], rows], [size, count * plan.c], [width, hs[1]], [1, ws[1]]]
    sums = bank_psum[0:rows, 0 : count * plan.c * hs[1] * ws[1]]
    nisa.tensor_copy(
        dst=read_sbuf.ap(pattern=pattern, offset=into * plan.c * size + hs[0] * width + ws[0]),
        src=sums.reshape((rows, count * plan.c, hs[1], ws[1])),
        engine=pick(work.ledger, sums.shape[1], False),
    )


def add_zeros(plan, constants, bank_psum, part, index):
    """Zeros where no block covers all of a window, or all partitions."""
    rows, columns = nl.tile_size.pmax // plan.settings.side, plan.c * plan.seen[0][1] * plan.seen[1][1]
    zeros_sbuf = constants.zeros_sbuf[part * rows : (part + 1) * rows, 0 : rows_of_sums(plan)]
    moving = constants.zeros_sbuf[part * rows : (part + 1) * rows, 0:1].broadcast(1, columns)
    sums = bank_psum[0 : rows_of_sums(plan), index * columns : (index + 1) * columns]
    multiply(plan, sums, zeros_sbuf, moving, part, False)


def gy_of(work, step, tiles, product, part, group):
    """gy of a block of a group: [units, rows, columns, k]."""
    settings, k = work.plan.settings, work.plan.k
    first, there = part * (nl.tile_size.pmax // settings.side), tiles[product.tile]
    end, y_sbuf = first + units_of(step.tiles[product.tile]), of_array(there.y, work.operands)
    p, q = (product.p, product.p + settings.rows), (product.q, product.q + settings.columns)
    if is_channels_last(work.geometry.y_strides):
        return y_sbuf[first:end, p[0] : p[1], q[0] : q[1], group * k : (group + 1) * k]
    return y_sbuf[first:end, group * k : (group + 1) * k, p[0] : p[1], q[0] : q[1]].permute((0, 2, 3, 1))


def add_product(work, step, tiles, product, bank_psum, place, adds):
    """A block's products, added to the sums at a place: (tile of rows, group, plane of taps, number in the bank)."""
    plan, c, h, w = work.plan, work.plan.c, product.h, product.w
    if h[1] == 0 or w[1] == 0:
        return
    part, group, t, index = place
    there, first = tiles[product.tile], part * (nl.tile_size.pmax // plan.settings.side)
    number, parts = group % plan.settings.below, nl.tile_size.pmax // plan.settings.below
    end, x_sbuf = first + units_of(step.tiles[product.tile]), of_array(there.x[t], work.operands)
    if is_channels_last(work.geometry.x_strides):
        moving = x_sbuf[first:end, h[0] : h[0] + h[1], w[0] : w[0] + w[1], group * c : (group + 1) * c]
        moving = moving.permute((0, 3, 1, 2))
    else:
        moving = x_sbuf[first:end, group * c : (group + 1) * c, h[0] : h[0] + h[1], w[0] : w[0] + w[1]]
    hs, ws = plan.seen[0][1], plan.seen[1][1]
    pattern = [[bank_psum.shape[1], positions_of(plan)], [hs * ws, c], [ws, h[1]], [1, w[1]]]
    offset = number * parts * bank_psum.shape[1] + index * c * hs * ws + h[2] * ws + w[2]
    sums = bank_psum.ap(pattern=pattern, offset=offset)
    multiply(plan, sums, gy_of(work, step, tiles, product, part, group), moving, part, adds, number)


def gather_taps(work, constants, read_sbuf, sums_sbuf, some, writes):
    """Diagonals of jobs (first, how many) of a tile of rows, written to its sums of taps, or added."""
    plan, rows = work.plan, rows_of_sums(work.plan)
    count = max(0, min(some[1], sums_sbuf.shape[1] - some[0]))
    if count == 0:
        return
    into = sums_sbuf[0:rows, some[0] : some[0] + count, 0 : plan.each]
    target = into if writes else nl.ndarray((rows, count, plan.each), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(
        dst=target,
        data=read_sbuf[0:rows, 0 : count * plan.c * plan.window[0] * plan.window[1]],
        indices=constants.indices_sbuf[0:rows, 0:count, 0 : plan.each],
    )
    if not writes:
        # behind the gather, where nothing waits for the sums of biases
        nisa.tensor_tensor(dst=into, data1=into, data2=target, op=nl.add, engine=nisa.engine.gpsimd)


def store_taps(work, constants, parts, sums):
    """Sums of taps of a pass, over all positions, to HBM."""
    plan, T = work.plan, work.geometry.planes.taps
    most = max(1, BANK_COLUMNS // (plan.each * T))
    for part in range(len(parts)):
        sums_sbuf = with_other_half(work, sums[part])
        if sums_sbuf != None:
            mine = own_part(work, div_ceil(parts[part][1], plan.settings.below))
            for some in cut_at(mine[1], most):
                store_groups(work, constants, sums_sbuf, parts[part], (mine[0] + some[0], some[1]))


def store_groups(work, constants, sums_sbuf, part, some):
    """The same of a part's groups, some (first, how many) of those below each other."""
    plan, T = work.plan, work.geometry.planes.taps
    jobs, rows, below = (some[0] * T, some[1] * T), rows_of_sums(plan), plan.settings.below
    found_psum = nl.ndarray((below * plan.k, some[1], T, plan.each), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(
        dst=found_psum.reshape((below * plan.k, jobs[1], plan.each)),
        stationary=constants.ones_sbuf,
        moving=sums_sbuf[0:rows, jobs[0] : jobs[0] + jobs[1], 0 : plan.each],
        accumulate=False,
    )
    # the last ones may be fewer
    whole = min(some[1], part[1] // below - some[0])
    for t in range(T):
        for piece in ((0, whole, below), (whole, some[1] - whole, part[1] % below)):
            first, count, groups = piece
            if count > 0:
                sums = found_psum[0 : groups * plan.k, first : first + count, t, 0 : plan.each]
                k0 = part[0] + (some[0] + first) * below
                store_filters(work, sums, k0 * plan.k, t)


def store_filters(work, sums, k0, t):
    """Sums [(one below the other, k), groups, c * rows * columns of taps] of a plane of taps to HBM; k0: the first
    output channel."""
    plan, geometry, into, strides = work.plan, work.geometry, work.operands.y, work.geometry.w_strides
    R, S, groups = geometry.rows.taps, geometry.columns.taps, sums.shape[1]
    lead = [[strides[0], sums.shape[0]], [plan.settings.below * plan.k * strides[0], groups]]
    pattern = lead + [[strides[1], plan.c], [strides[2], R], [strides[3], S]]
    offset, shape = k0 * strides[0] + t * R * strides[2], (sums.shape[0], groups, plan.c, R, S)
    found_sbuf, flat = nl.ndarray(shape, dtype=into.dtype, buffer=nl.sbuf), (sums.shape[0], groups, plan.c * R * S)
    if work.added == None:
        nisa.tensor_copy(dst=found_sbuf.reshape(flat), src=sums, engine=pick(work.ledger, groups * flat[2], False))
    else:
        added_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        copy(added_sbuf, work.added.ap(pattern=pattern, offset=offset))
        nisa.tensor_tensor(dst=found_sbuf.reshape(flat), data1=sums, data2=added_sbuf.reshape(flat), op=nl.add)
    copy(into.ap(pattern=pattern, offset=offset), found_sbuf)
