"""The loop of diagonals: load units, multiply blocks, evacuate and gather sums, and add them up at the end."""

from dataclasses import dataclass
from itertools import cycle, product

from ...._nki import nisa, nl
from ....schedules.blocks import units_of
from ....schedules.cuts import put_first
from ....schedules.diagonals import READS
from ....schedules.tiles import PARTS, cut_at, cut_into, share, size_of, some_of
from ..._engines import copy_balanced
from ..._warm import warm_up, warm_zeros
from ...conv.call import of_array
from ..halves import run_parts, start_ones
from ..loads import Piece, as_stored, clear_sides, clear_x, clear_y, is_channels_last, load_x, load_y, with_last
from ..loop import new_blocks
from ..sums import multiply
from .results import add_biases, make_constants, start_biases, store_biases, store_taps


@dataclass
class Step(nl.NKIObject):
    """A tile of units of a pass; whether it is the pass's first, and last; the number of its strip; whether its units
    are below the units of the step before, whose buffer has the rows of x that they share."""

    parts: list
    tile: list
    first: bool
    last: bool
    strip: int
    follows: bool


def run_diagonals(work):
    """Compute this core's part of the passes."""
    plan = work.plan
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, plan.settings.warmup, 1)
    start_ones(work, nl.float32)
    constants = make_constants(plan, zeros_sbuf, start_reads(plan))
    run_parts(work, lambda passes: run_steps(work, constants, steps_of(work, passes)))


def start_reads(plan):
    """Rotating sets of tiles of evacuated sums, one tile for each row tile; places where no window sees x are zeros."""
    ((h, hn), (w, wn)), shape = plan.seen, (plan.rows_of_sums, plan.per_gather * plan.c, *plan.window)
    flat = (shape[0], size_of(shape[1:]))
    found = [nl.ndarray(flat, dtype=nl.float32, buffer=nl.sbuf) for _ in range(READS * plan.settings.side)]
    for tile in found:
        clear_sides(with_last(tile.reshape(shape), False), False, (h, h + hn), (w, w + wn))
    return cycle([some_of(found, part) for part in cut_into(len(found), READS)])


def steps_of(work, passes):
    """Steps of passes over all tiles, or over the current half of them."""
    plan, found, every = work.plan, [], len(work.plan.tiles)
    begin, count = (0, every) if work.half < 0 else share(every, PARTS, work.half)
    for one in passes:
        for index in range(begin, begin + count):
            strip, below = plan.strips[index]
            first, last = index == begin, index + 1 == begin + count
            # a single buffer does not keep the step before
            follows = below and not first and plan.settings.buffers > 1
            found.append(Step(one, plan.tiles[index], first, last, strip, follows))
    return found


def run_steps(work, constants, steps):
    """Run steps, loaded as far ahead as there are buffers; a pass is stored after the products of the next step."""
    settings, sums, biases, units, waiting = work.plan.settings, [], None, 0, None
    buffers = start_units(work, min(settings.buffers, len(steps)))
    ahead = len(buffers) - 1
    for index in range(ahead):
        load_step(work, steps, index, buffers)
    for index, step in enumerate(steps):
        there = buffers[index % len(buffers)]
        if index + ahead < len(steps):
            load_step(work, steps, index + ahead, buffers)
        if not step.last and steps[index + 1].follows:
            copy_shared(work, steps[index + 1], there, buffers[(index + 1) % len(buffers)])
        if step.first:
            sums, biases, units = start_taps(work, step), start_biases(work), units_of(step.tile)
        run_products(work, constants, step, there, sums)
        if work.bias != None:
            add_biases(work, step, there.y, spans_of(work, step), biases)
        if waiting != None:
            store_pass(work, constants, *waiting)
        waiting = (step, sums, biases, units) if step.last else None
    if waiting != None:
        store_pass(work, constants, *waiting)


def store_pass(work, constants, step, sums, biases, units):
    """Store a pass's sums of taps and of biases. step: its last; units: the units of its first tile, the fullest."""
    store_taps(work, constants, step.parts, sums)
    if work.bias != None:
        store_biases(work, step, biases, units)


def start_units(work, count):
    """New Blocks for `count` steps; nothing is loaded."""
    geometry, plan, settings = work.geometry, work.plan, work.plan.settings
    x_sizes = plan.h[1], plan.w[1], settings.groups * plan.c
    y_sizes = settings.rows * settings.down, settings.columns * settings.across, settings.groups * plan.k
    return [new_blocks(work, x_sizes, y_sizes, range(geometry.planes.taps)) for _ in range(count)]


def piece_of(plan, part, group):
    """The Piece of the part-th row tile with groups (first, count)."""
    settings, r, s = plan.settings, (0, plan.geometry.rows.taps), (0, plan.geometry.columns.taps)
    rows, columns = settings.rows * settings.down, settings.columns * settings.across
    k, c = (group[0] * plan.k, group[1] * plan.k), (group[0] * plan.c, group[1] * plan.c)
    first = part * (nl.tile_size.pmax // settings.side)
    return Piece(rows=rows, columns=columns, k=k, c=c, r=r, s=s, h=plan.h, w=plan.w, part=first)


def load_step(work, steps, index, buffers):
    """Load a step's x and gy, except rows of x that it shares with the step before. Loads into other new buffers follow
    the first buffer's, which wait for zeros."""
    geometry, settings, taps = work.geometry, work.plan.settings, range(work.geometry.planes.taps)
    step, into, holds = steps[index], buffers[index % len(buffers)], 0 < index < len(buffers)
    whole = piece_of(work.plan, 0, step.parts[0])
    # a buffer keeps the zeros around planes while its strip is the same
    beside = settings.strips == 0 or into.strip != step.strip
    into.strip = step.strip
    for t in taps:
        clear_x(geometry, whole, step.tile, into.x[t], t, beside, holds)
    clear_y(geometry, whole, step.tile, into.y, beside, holds)
    there = whole.h[0] + (work.plan.shared if step.follows else 0)
    for part, groups in enumerate(step.parts):
        piece = piece_of(work.plan, part, groups)
        for t in taps:
            load_x(work, piece, step.tile, into.x[t], t, (there, piece.h[0] + piece.h[1]))
        load_y(work, piece, step.tile, into.y, (0, piece.rows))


def spans_of(work, step):
    """(first partition, end, groups) of a step's units: of all row tiles at once, if they are full and equal."""
    size, units = nl.tile_size.pmax // work.plan.settings.side, units_of(step.tile)
    if units == size and step.parts[-1][1] == step.parts[0][1]:
        return [(0, len(step.parts) * size, step.parts[0][1])]
    return [(part * size, part * size + units, groups) for part, (_, groups) in enumerate(step.parts)]


def copy_shared(work, step, above, below):
    """Copy the rows of x that a step shares with the step before, from that step's buffer to its own."""
    plan, count, last = work.plan, work.plan.shared, is_channels_last(work.geometry.x_strides)
    for t in range(work.geometry.planes.taps if count > 0 else 0):
        for first, end, groups in spans_of(work, step):
            into = below.x[t][first:end, 0:count, :, 0 : groups * plan.c]
            rows = above.x[t][first:end, plan.h[1] - count : plan.h[1], :, 0 : groups * plan.c]
            copy_balanced(as_stored(into, last), as_stored(rows, last), work.ledger)


def start_taps(work, step):
    """New tiles of a pass's sums of taps [(p, q, k), groups, gathered], one for each row tile."""
    plan = work.plan
    shapes = [(plan.rows_of_sums, plan.accumulators_of(part), plan.each) for part in step.parts]
    return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for shape in shapes]


def products_of(plan, tile):
    """(products of a group in a step, whether the first covers all of a block's window that is inside x). A product
    (p, q, h, w) is a block of the units: gy from (p, q) on, and rows and columns of its window of x as in `clipped`."""
    settings, geometry = plan.settings, plan.geometry
    height, width = max(region.rows.extent for region in tile), max(region.columns.extent for region in tile)
    found = []
    for p in range(0, min(height, settings.down * settings.rows), settings.rows):
        for q in range(0, min(width, settings.across * settings.columns), settings.columns):
            h = clipped(p * geometry.rows.stride, plan.window[0], plan.h, plan.seen[0])
            w = clipped(q * geometry.columns.stride, plan.window[1], plan.w, plan.seen[1])
            if h[1] > 0 and w[1] > 0:
                found.append((p, q, h, w))
    whole = [at for at, (_, _, h, w) in enumerate(found) if (h[1], w[1]) == (plan.seen[0][1], plan.seen[1][1])]
    return put_first(found, whole[0]) if whole else found, bool(whole)


def clipped(first, count, there, seen):
    """Elements first .. first+count-1 of a unit's window, clipped to `there`: (first of them in `there`, count, first
    of them in `seen`, the part of a block's window that any block sees)."""
    low, high = max(first, there[0]), min(first + count, there[0] + there[1])
    return low - there[0], max(0, high - low), low - first - seen[0]


def run_products(work, constants, step, there, sums):
    """Compute a step's sums of taps, and write them to the pass's sums or add them."""
    plan, products = work.plan, products_of(work.plan, step.tile)
    for some in cut_at(plan.accumulators_of(step.parts[0]), plan.per_gather):
        reads = next(constants.reads)
        for bank in cut_at(some[1], plan.per_bank):
            fill_banks(work, constants, step, there, (some[0] + bank[0], bank[1]), products, reads, bank[0])
        for part in range(len(step.parts)):
            count = some_accumulators(work, step.parts[part], some)
            if count > 0:
                gather_taps(work, constants, reads[part], sums[part], (some[0], count), step.first)


def some_accumulators(work, part, some):
    """The number of accumulators (first, count) that a row tile has."""
    return max(0, min(some[1], work.plan.accumulators_of(part) - some[0]))


def fill_banks(work, constants, step, there, some, products, reads, into):
    """Compute the sums of accumulators (first, count), groups and their planes of taps, of each row tile, and evacuate
    them from accumulator number `into` on."""
    plan, below, T, (each, covers) = work.plan, work.plan.settings.below, work.geometry.planes.taps, products
    covers = covers and (below == 1 or below * plan.positions == nl.tile_size.pmax)
    shape, groups = (plan.rows_of_sums, plan.per_bank * plan.columns), [count for _, count in step.parts]
    banks = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum) for _ in step.parts]
    counts = [some_accumulators(work, part, some) for part in step.parts]
    for index in range(some[1]):
        first = (some[0] + index) // T * below
        # consecutive matmuls are on different row tiles, which run at once
        for part, count in enumerate(counts):
            if index < count and not (covers and first + below <= groups[part]):
                add_zeros(plan, constants, banks[part], part, index)
        for number, group, part in product(range(len(each)), range(first, first + below), range(len(groups))):
            if group < groups[part]:
                place = part, group, (some[0] + index) % T, index
                adds = number > 0 or not covers or first + below > groups[part]
                add_product(work, step, there, each[number], banks[part], place, adds)
    for part, count in enumerate(counts):
        if count > 0:
            read_bank(work, banks[part], reads[part], count, into)


def read_bank(work, bank_psum, read_sbuf, count, into):
    """Evacuate a bank of `count` accumulators to places from the `into`-th on."""
    plan, rows, (height, width), ((h, hn), (w, wn)) = (
        work.plan,
        work.plan.rows_of_sums,
        work.plan.window,
        work.plan.seen,
    )
    pattern = [[read_sbuf.shape[1], rows], [height * width, count * plan.c], [width, hn], [1, wn]]
    sums = bank_psum[0:rows, 0 : count * plan.c * hn * wn]
    places = read_sbuf.ap(pattern=pattern, offset=(into * plan.c * height + h) * width + w)
    copy_balanced(places, sums.reshape((rows, count * plan.c, hn, wn)), work.ledger)


def add_zeros(plan, constants, bank_psum, part, index):
    """Write zeros by a matmul to an accumulator whose first block does not cover all of a window, or all partitions."""
    rows, columns = nl.tile_size.pmax // plan.settings.side, plan.c * plan.seen[0][1] * plan.seen[1][1]
    zeros_sbuf = constants.zeros_sbuf[part * rows : (part + 1) * rows, 0 : plan.rows_of_sums]
    moving = constants.zeros_sbuf[part * rows : (part + 1) * rows, 0:1].broadcast(1, columns)
    sums = bank_psum[0 : plan.rows_of_sums, index * columns : (index + 1) * columns]
    multiply(sums, zeros_sbuf, moving, False, (part, plan.settings.side), (0, plan.settings.below))


def add_product(work, step, there, one, bank_psum, place, adds):
    """Add a block's products to the sums at a place: (row tile, group, plane of taps, number in the bank)."""
    plan, c, k = work.plan, work.plan.c, work.plan.k
    (p, q, h, w), (part, group, t, index) = one, place
    first, number = part * (nl.tile_size.pmax // plan.settings.side), group % plan.settings.below
    units, hs, ws = slice(first, first + units_of(step.tile)), plan.seen[0][1], plan.seen[1][1]
    y_sbuf, x_sbuf = of_array(there.y, work.operands), of_array(there.x[t], work.operands)
    rows, columns = slice(p, p + plan.settings.rows), slice(q, q + plan.settings.columns)
    stationary = y_sbuf[units, rows, columns, group * k : (group + 1) * k]
    moving = x_sbuf[units, h[0] : h[0] + h[1], w[0] : w[0] + w[1], group * c : (group + 1) * c].permute((0, 3, 1, 2))
    pattern = [[bank_psum.shape[1], plan.positions], [hs * ws, c], [ws, h[1]], [1, w[1]]]
    offset = number * (nl.tile_size.pmax // plan.settings.below) * bank_psum.shape[1]
    sums = bank_psum.ap(pattern=pattern, offset=offset + index * c * hs * ws + h[2] * ws + w[2])
    multiply(sums, stationary, moving, adds, (part, plan.settings.side), (number, plan.settings.below))


def gather_taps(work, constants, read_sbuf, sums_sbuf, some, writes):
    """Gather the diagonals of accumulators (first, count) of a row tile, and write them to its sums of taps or add
    them."""
    plan, rows, count = work.plan, work.plan.rows_of_sums, some[1]
    into = sums_sbuf[0:rows, some[0] : some[0] + count, 0 : plan.each]
    target = into if writes else nl.ndarray((rows, count, plan.each), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(
        dst=target,
        data=read_sbuf[0:rows, 0 : count * plan.c * plan.window[0] * plan.window[1]],
        indices=constants.indices_sbuf[0:rows, 0:count, 0 : plan.each],
    )
    if not writes:
        # on GpSimd after the gather, so that Vector's sums of biases do not wait
        nisa.tensor_tensor(dst=into, data1=into, data2=target, op=nl.add, engine=nisa.engine.gpsimd)
