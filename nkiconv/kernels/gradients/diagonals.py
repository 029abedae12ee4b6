"""The filter gradient by diagonals, for groups of few channels, mainly depthwise filters: load units, multiply blocks,
evacuate and gather sums, and add them up at the end.

Diagonals are gathered by indices; matmuls with ones add up their positions. The bias's gradient: Vector sums gy of each
unit after its load, and a matmul with ones sums all units after a pass.
"""

from dataclasses import dataclass
from functools import partial
from itertools import cycle, product

from ..._nki import nisa, nl
from ...schedules.blocks import units_of
from ...schedules.cuts import put_first
from ...schedules.diagonals import READS
from ...schedules.tiles import BANK_COLUMNS, PARTS, cut_at, cut_into, div_ceil, share, size_of, some_of
from .._dma import Feed, copy, load, store
from .._engines import book_vector, copy_balanced
from .._masks import constant, keep_between, keep_equal
from .._warm import warm_up, warm_zeros
from ..conv.call import of_array, part_of_core
from ..conv.sums import multiply
from .held import new_blocks
from .loads import Piece, as_stored, clear_sides, clear_tile, is_channels_last, load_tile, with_last
from .sums import own_part, run_parts, start_ones, with_other_half


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
    run_parts(work, part_of_core(plan.passes), lambda passes: run_steps(work, constants, steps_of(work, passes)))


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
            follows = below and not first and plan.buffers > 1
            found.append(Step(one, plan.tiles[index], first, last, strip, follows))
    return found


def run_steps(work, constants, steps):
    """Run steps, loaded as far ahead as there are buffers; a pass is stored after the products of the next step."""
    sums, biases, units, waiting = [], None, 0, None
    plan, groups = work.plan, work.plan.settings.groups
    x_sizes, y_sizes = (plan.h[1], plan.w[1], groups * plan.c), (*plan.unit, groups * plan.k)
    count, taps = min(plan.buffers, len(steps)), range(work.geometry.planes.taps)
    buffers = [new_blocks(work, x_sizes, y_sizes, taps) for _ in range(count)]
    feed = Feed(steps, buffers, partial(load_step, work))
    for index, step in enumerate(steps):
        there = feed.of(index)
        feed.until(index + len(feed.buffers))
        if not step.last and steps[index + 1].follows:
            copy_shared(work, steps[index + 1], there, feed.of(index + 1))
        if step.first:
            (sums, biases), units = start_sums(work, step), units_of(step.tile)
        run_products(work, constants, step, there, sums)
        if work.bias != None:
            add_biases(work, step, there.y, biases)
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


def start_sums(work, step):
    """New tiles, fp32: of a pass's sums of taps [(p, q, k), groups, gathered] for each row tile, and of its sums of
    biases [units, channels], or None without them."""
    plan, taps, biases = work.plan, [], None
    for part in step.parts:
        shape = plan.rows_of_sums, plan.accumulators_of(part), plan.each
        taps.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
    if work.bias != None:
        biases = nl.ndarray((nl.tile_size.pmax, plan.settings.groups * plan.k), dtype=nl.float32, buffer=nl.sbuf)
    return taps, biases


def load_step(work, feed, index):
    """Load a step's x and gy, except rows of x that it shares with the step before. Loads into other new buffers follow
    the first buffer's, which wait for zeros."""
    step, into, plan, planes = feed.tiles[index], feed.of(index), work.plan, (*range(work.geometry.planes.taps), -1)
    of_unit = {"rows": plan.unit[0], "columns": plan.unit[1], "h": plan.h, "w": plan.w}
    of_unit |= {"r": (0, plan.geometry.rows.taps), "s": (0, plan.geometry.columns.taps)}
    channels = [plan.channels_of(groups) for groups in step.parts]
    pieces = [Piece(**of_unit, k=k, c=c, part=part * plan.units) for part, (k, c) in enumerate(channels)]
    # a buffer keeps the zeros around planes while its strip is the same
    beside = plan.settings.strips == 0 or into.strip != step.strip
    into.strip = step.strip
    clear_tile(work.geometry, pieces[0], step.tile, into, planes, beside, 0 < index < len(feed.buffers))
    if index < len(feed.buffers) or step.parts != feed.tiles[index - len(feed.buffers)].parts:
        clear_missing(plan, step.parts, pieces, into)
    there = plan.h[0] + (plan.shared if step.follows else 0)
    load_tile(work, pieces, step.tile, into, planes, pieces[0].rows, there)


def clear_missing(plan, parts, pieces, into):
    """Write zeros to the channels that the last set of row tiles lacks."""
    for (_, count), piece in zip(parts, pieces):
        units = slice(piece.part, piece.part + plan.units)
        for tile, (_, there), each in ((into.y, piece.k, plan.k), *((x, piece.c, plan.c) for x in into.x)):
            if there < count * each:
                nisa.memset(dst=tile[units, :, :, there : count * each], value=0.0, engine=nisa.engine.gpsimd)


def spans_of(work, step):
    """(first partition, end, groups) of a step's units: of all row tiles at once, if they are full and equal."""
    size, units = work.plan.units, units_of(step.tile)
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
            (height, width), ((h, hn), (w, wn)), rows = plan.window, plan.seen, plan.rows_of_sums
            pattern = [[reads[part].shape[1], rows], [height * width, count * plan.c], [width, hn], [1, wn]]
            places = reads[part].ap(pattern=pattern, offset=(into * plan.c * height + h) * width + w)
            sums = banks[part][:, 0 : count * plan.columns].reshape((rows, count * plan.c, hn, wn))
            copy_balanced(places, sums, work.ledger)


def add_zeros(plan, constants, bank_psum, part, index):
    """Write zeros by a matmul to an accumulator whose first block does not cover all of a window, or all partitions."""
    columns, units = plan.columns, slice(part * plan.units, (part + 1) * plan.units)
    zeros_sbuf = constants.zeros_sbuf[units, 0 : plan.rows_of_sums]
    moving = constants.zeros_sbuf[units, 0:1].broadcast(1, columns)
    sums = bank_psum[0 : plan.rows_of_sums, index * columns : (index + 1) * columns]
    multiply(sums, zeros_sbuf, moving, False, (part, plan.settings.side), (0, plan.settings.below))


def add_product(work, step, there, one, bank_psum, place, adds):
    """Add a block's products to the sums at a place: (row tile, group, plane of taps, number in the bank)."""
    plan, c, k = work.plan, work.plan.c, work.plan.k
    (p, q, h, w), (part, group, t, index) = one, place
    first, number = part * plan.units, group % plan.settings.below
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


def store_taps(work, constants, parts, sums):
    """Store a pass's sums of taps, added over all positions."""
    plan = work.plan
    most = nl.tile_size.pmax if plan.transposed else BANK_COLUMNS // plan.each
    for part, part_sbuf in zip(parts, sums):
        sums_sbuf = with_other_half(work, part_sbuf)
        first, count = own_part(work, div_ceil(part[1], plan.settings.below))
        for t in range(work.geometry.planes.taps if sums_sbuf != None else 0):
            for at, some in cut_at(count, most):
                store_sets(work, constants, sums_sbuf, part, (first + at, some), t)


def store_sets(work, constants, sums_sbuf, part, some, t):
    """As `store_taps`, for a plane of taps and some (first, count) of a part's sets below each other: [k, sets, taps],
    or transposed, [sets, k, taps], so that many DMA engines store."""
    plan, T, ones_sbuf = work.plan, work.geometry.planes.taps, constants.ones_sbuf
    first, rows, k = some[0] * T + t, plan.rows_of_sums, plan.settings.below * plan.k
    taken_sbuf = sums_sbuf[0:rows, first : first + (some[1] - 1) * T + 1 : T, 0 : plan.each]
    lead = (some[1], k) if plan.transposed else (k, some[1])
    found_psum = nl.ndarray((*lead, plan.each), dtype=nl.float32, buffer=nl.psum)
    if plan.transposed:
        for tap in range(plan.each):
            multiply(found_psum[:, :, tap], taken_sbuf[:, :, tap], ones_sbuf, False, is_moving_onezero=True)
    else:
        multiply(found_psum, ones_sbuf, taken_sbuf, False, is_stationary_onezero=True)
    into, taps = work.operands.y, (work.geometry.rows.taps, work.geometry.columns.taps)
    found_sbuf = nl.ndarray((*lead, plan.own, *taps), dtype=into.dtype, buffer=nl.sbuf)
    flat_sbuf = found_sbuf.reshape(found_psum.shape)
    if work.added == None:
        copy_balanced(flat_sbuf, found_psum, work.ledger)
    else:
        added_sbuf = nl.ndarray(found_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        if plan.channels_of(part)[0][1] % k > 0:
            nisa.memset(dst=added_sbuf, value=0.0, engine=nisa.engine.vector)
        move_filters(work, added_sbuf, work.added, (part, some, t), load)
        nisa.tensor_tensor(dst=flat_sbuf, data1=found_psum, data2=added_sbuf.reshape(found_psum.shape), op=nl.add)
    move_filters(work, found_sbuf, into, (part, some, t), store)


def move_filters(work, tile_sbuf, hbm, place, move):
    """Store filters of `place` to HBM, or load them: (a part, some of its sets below each other, the last with perhaps
    fewer channels, a plane of taps)."""
    plan, strides, (part, some, t) = work.plan, work.geometry.w_strides, place
    R, S, each = work.geometry.rows.taps, work.geometry.columns.taps, plan.settings.below * plan.k
    (start, channels), _ = plan.channels_of(part)
    whole = min(some[1], channels // each - some[0])
    for first, count, k in ((0, whole, each), (whole, some[1] - whole, channels % each)):
        if count > 0:
            sets, channels = [each * strides[0], count], [strides[0], k]
            lead = [sets, channels] if plan.transposed else [channels, sets]
            pattern = lead + [[strides[1], plan.own], [strides[2], R], [strides[3], S]]
            channel, own = start + (some[0] + first) * each, slice(first, first + count)
            part_sbuf = tile_sbuf[own, 0:k] if plan.transposed else tile_sbuf[0:k, own]
            move(part_sbuf, hbm, pattern, channel * strides[0] + t * R * strides[2])


@dataclass
class Constants(nl.NKIObject):
    """In SBUF: zeros [128, 128]; reads: rotating sets of tiles of evacuated sums; indices [(p, q, k), groups,
    gathered], uint32; ones [(p, q, k), k'], fp32, 1 if k' is k. Indices and ones have rows for each group below
    another, and k' counts the channels of all of them."""

    zeros_sbuf: object
    reads: object
    indices_sbuf: object
    ones_sbuf: object


def make_constants(plan, zeros_sbuf, reads):
    """The Constants of a plan's blocks."""
    settings, k, rows, columns = plan.settings, plan.k, plan.geometry.rows, plan.geometry.columns
    size, below = settings.rows * settings.columns, settings.below
    each = size * k if below == 1 else nl.tile_size.pmax // below
    parts = each * below
    # the index of the first tap of each position and group, kept on its own partitions
    own, places, seen = k // settings.beside, size * settings.beside, plan.window[0] * plan.window[1]
    firsts_sbuf = nl.ndarray((parts, places), dtype=nl.float32, buffer=nl.sbuf)
    steps = [[rows.stride * plan.window[1], settings.rows], [columns.stride, settings.columns]]
    steps = steps + [[plan.own * seen, settings.beside]]
    nisa.iota(dst=firsts_sbuf, pattern=steps, offset=0, channel_multiplier=0)
    ones_sbuf = constant((parts, below * k), nl.float32, 0.0, nisa.engine.vector)
    for number in range(below):
        first, end = number * each, (number + 1) * each
        keep_between(firsts_sbuf[first:end], [[-own, places]], own)
        each_sbuf = constant((size * k, k, size), nl.float32, 1.0, nisa.engine.vector)
        keep_equal(each_sbuf, [[-1, k], [-k, size]], each_sbuf)
        into_sbuf = ones_sbuf[first : first + size * k, number * k : (number + 1) * k]
        nisa.tensor_reduce(dst=into_sbuf, op=nl.add, data=each_sbuf, axis=2)
    first_sbuf = nl.ndarray((parts, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=first_sbuf, op=nl.add, data=firsts_sbuf, axis=1)
    places_sbuf = nl.ndarray((parts, plan.per_gather, plan.each), dtype=nl.float32, buffer=nl.sbuf)
    by_window = [[plan.c * seen, plan.per_gather], [seen, plan.own]]
    by_tap = [[rows.dilation * plan.window[1], rows.taps], [columns.dilation, columns.taps]]
    nisa.iota(dst=places_sbuf, pattern=by_window + by_tap, offset=0, channel_multiplier=0)
    indices_sbuf = nl.ndarray((parts, plan.per_gather, plan.each), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=indices_sbuf, data=places_sbuf, op0=nl.add, operand0=first_sbuf)
    return Constants(zeros_sbuf=zeros_sbuf, reads=reads, indices_sbuf=indices_sbuf, ones_sbuf=ones_sbuf)


def add_biases(work, step, y_sbuf, biases_sbuf):
    """Sum gy over the positions of a step's units, and write the sums or add them to earlier steps'."""
    rows, columns = work.plan.unit
    for first, end, groups in spans_of(work, step):
        count = groups * work.plan.k
        data = y_sbuf[first:end, 0:rows, 0:columns, 0:count].permute((0, 3, 1, 2))
        into = biases_sbuf[first:end, 0:count]
        target = into if step.first else nl.ndarray(into.shape, dtype=nl.float32, buffer=nl.sbuf)
        book_vector(work.ledger, rows * columns * count)
        nisa.tensor_reduce(dst=target, op=nl.add, data=data, axis=(2, 3))
        if not step.first:
            nisa.tensor_tensor(dst=into, data1=into, data2=target, op=nl.add)


def store_biases(work, step, biases_sbuf, units):
    """Store a pass's sums of biases over `units` units."""
    plan, tiles = work.plan, (work.plan.settings.side, work.plan.settings.below)
    for part, one in enumerate(step.parts):
        (channel, channels), _ = plan.channels_of(one)
        own = slice(part * plan.units, part * plan.units + units)
        for k, count in cut_at(channels, BANK_COLUMNS):
            sums_psum = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.psum)
            ones, moving = work.ones_sbuf[own, 0, 0, 0:1], biases_sbuf[own, k : k + count]
            multiply(sums_psum, ones, moving, False, (part, tiles[0]), (0, tiles[1]))
            found_sbuf = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.sbuf)
            copy_balanced(found_sbuf, sums_psum, work.ledger)
            whole_sbuf, (first, mine) = with_other_half(work, found_sbuf), own_part(work, count)
            if whole_sbuf != None and mine > 0:
                into = work.bias.ap(pattern=[[mine, 1], [1, mine]], offset=channel + k + first)
                copy(into, whole_sbuf[0:1, first : first + mine])
