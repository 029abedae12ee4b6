"""Results of `diagonals` stored to HBM: indices of the diagonals, matmuls with ones that add up their positions, and
the bias's gradient: Vector sums gy of each unit after its load, and a matmul with ones sums all units after a pass.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, cut, cut_at, div_ceil
from ..._dma import copy, load, store
from ..._engines import book_vector, copy_balanced
from ..._masks import constant, keep_between, keep_equal
from ..halves import own_part, with_other_half
from ..sums import multiply


def store_taps(work, constants, parts, sums):
    """Store a pass's sums of taps, added over all positions."""
    plan = work.plan
    most = nl.tile_size.pmax if plan.transposed else BANK_COLUMNS // plan.each
    for part, part_sbuf in zip(parts, sums):
        sums_sbuf, (first, count) = (
            with_other_half(work, part_sbuf),
            own_part(work, div_ceil(part[1], plan.settings.below)),
        )
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
    for tap in range(plan.each if plan.transposed else 1):
        nisa.nc_matmul(
            dst=found_psum[0 : lead[0], 0 : lead[1], tap] if plan.transposed else found_psum,
            stationary=taken_sbuf[0:rows, 0 : some[1], tap] if plan.transposed else ones_sbuf,
            moving=ones_sbuf if plan.transposed else taken_sbuf,
            is_stationary_onezero=not plan.transposed,
            is_moving_onezero=plan.transposed,
            accumulate=False,
        )
    into, taps = work.operands.y, (work.geometry.rows.taps, work.geometry.columns.taps)
    found_sbuf = nl.ndarray((*lead, plan.own, *taps), dtype=into.dtype, buffer=nl.sbuf)
    flat_sbuf = found_sbuf.reshape(found_psum.shape)
    if work.added == None:
        copy_balanced(flat_sbuf, found_psum, work.ledger)
    else:
        added_sbuf = nl.ndarray(found_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        if part[1] % plan.settings.below > 0:
            nisa.memset(dst=added_sbuf, value=0.0, engine=nisa.engine.vector)
        move_filters(work, added_sbuf, work.added, (part, some, t), load)
        nisa.tensor_tensor(dst=flat_sbuf, data1=found_psum, data2=added_sbuf.reshape(found_psum.shape), op=nl.add)
    move_filters(work, found_sbuf, into, (part, some, t), store)


def move_filters(work, tile_sbuf, hbm, place, move):
    """Store filters of `place` to HBM, or load them: (a part, some of its sets, the last with perhaps fewer groups, a
    plane of taps)."""
    plan, strides, (part, some, t) = work.plan, work.geometry.w_strides, place
    R, S, below = work.geometry.rows.taps, work.geometry.columns.taps, plan.settings.below
    whole = min(some[1], part[1] // below - some[0])
    for first, count, k in ((0, whole, below * plan.k), (whole, some[1] - whole, part[1] % below * plan.k)):
        if count > 0:
            sets, channels = [below * plan.k * strides[0], count], [strides[0], k]
            lead = [sets, channels] if plan.transposed else [channels, sets]
            pattern = lead + [[strides[1], plan.own], [strides[2], R], [strides[3], S]]
            channel, own = (part[0] + (some[0] + first) * below) * plan.k, slice(first, first + count)
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
        keep_between(firsts_sbuf[first:end, 0:places], [[-own, places]], own, firsts_sbuf[first:end, 0:places])
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


def start_biases(work):
    """A new tile for sums of biases [units, channels of a pass], fp32; None without a bias gradient."""
    if work.bias == None:
        return None
    shape = (nl.tile_size.pmax, work.plan.settings.groups * work.plan.k)
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def add_biases(work, step, y_sbuf, spans, biases_sbuf):
    """Sum gy over the positions of a step's units, and write the sums or add them to earlier steps'. spans: (first
    partition, end, groups) of units."""
    settings = work.plan.settings
    rows, columns = settings.rows * settings.down, settings.columns * settings.across
    for first, end, groups in spans:
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
    plan, parts, side, below = work.plan, step.parts, work.plan.settings.side, (0, work.plan.settings.below)
    size = nl.tile_size.pmax // side
    for k, most in cut(parts[0][1] * plan.k, BANK_COLUMNS // len(parts)):
        # one bank for all row tiles
        sums_psum = nl.ndarray((1, len(parts), most), dtype=nl.float32, buffer=nl.psum)
        for part, (group, groups) in enumerate(parts):
            first, count = part * size, min(most, groups * plan.k - k)
            if count > 0:
                moving, target = biases_sbuf[first : first + units, k : k + count], sums_psum[0:1, part, 0:count]
                multiply(target, work.ones_sbuf[first : first + units, 0, 0, 0:1], moving, False, (part, side), below)
                found_sbuf = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.sbuf)
                copy_balanced(found_sbuf, target, work.ledger)
                whole_sbuf, mine = with_other_half(work, found_sbuf), own_part(work, count)
                if whole_sbuf != None and mine[1] > 0:
                    into = work.bias.ap(pattern=[[mine[1], 1], [1, mine[1]]], offset=group * plan.k + k + mine[0])
                    copy(into, whole_sbuf[0:1, mine[0] : mine[0] + mine[1]])
