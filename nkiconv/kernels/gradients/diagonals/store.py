"""Sums of taps of a pass on their way to HBM: a matmul with ones adds up their positions."""

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, cut_at, div_ceil
from ..._dma import load, store
from ..._engines import pick
from ..halves import own_part, with_other_half


def store_taps(work, constants, parts, sums):
    """Sums of taps of a pass, over all positions, to HBM."""
    plan = work.plan
    most = nl.tile_size.pmax if plan.transposed else BANK_COLUMNS // plan.each
    for part in range(len(parts)):
        sums_sbuf = with_other_half(work, sums[part])
        if sums_sbuf != None:
            mine = own_part(work, div_ceil(parts[part][1], plan.settings.below))
            for t in range(work.geometry.planes.taps):
                for some in cut_at(mine[1], most):
                    store_sets(work, constants, sums_sbuf, parts[part], (mine[0] + some[0], some[1]), t)


def store_sets(work, constants, sums_sbuf, part, some, t):
    """The same of a plane of taps and some (first, how many) of a part's sets below each other: [k, sets, taps], or
    transposed, [sets, k, taps], so that many DMA engines store."""
    plan, T, ones_sbuf = work.plan, work.geometry.planes.taps, constants.ones_sbuf
    first, rows, k = some[0] * T + t, plan.rows_of_sums, plan.settings.below * plan.k
    taken_sbuf = sums_sbuf[0:rows, first : first + (some[1] - 1) * T + 1 : T, 0 : plan.each]
    lead = (some[1], k) if plan.transposed else (k, some[1])
    found_psum = nl.ndarray((lead[0], lead[1], plan.each), dtype=nl.float32, buffer=nl.psum)
    for tap in range(plan.each if plan.transposed else 1):
        nisa.nc_matmul(
            dst=found_psum[0 : lead[0], 0 : lead[1], tap] if plan.transposed else found_psum,
            stationary=taken_sbuf[0:rows, 0 : some[1], tap] if plan.transposed else ones_sbuf,
            moving=ones_sbuf if plan.transposed else taken_sbuf,
            is_stationary_onezero=not plan.transposed,
            is_moving_onezero=plan.transposed,
            accumulate=False,
        )
    into, R, S = work.operands.y, work.geometry.rows.taps, work.geometry.columns.taps
    found_sbuf = nl.ndarray((lead[0], lead[1], plan.own, R, S), dtype=into.dtype, buffer=nl.sbuf)
    flat_sbuf = found_sbuf.reshape(found_psum.shape)
    if work.added == None:
        engine = pick(work.ledger, lead[1] * plan.each, False)
        nisa.tensor_copy(dst=flat_sbuf, src=found_psum, engine=engine)
    else:
        added_sbuf = nl.ndarray(found_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        if part[1] % plan.settings.below > 0:
            nisa.memset(dst=added_sbuf, value=0.0, engine=nisa.engine.vector)
        move_filters(work, added_sbuf, work.added, (part, some, t), load)
        nisa.tensor_tensor(dst=flat_sbuf, data1=found_psum, data2=added_sbuf.reshape(found_psum.shape), op=nl.add)
    move_filters(work, found_sbuf, into, (part, some, t), store)


def move_filters(work, tile_sbuf, hbm, place, move):
    """Filters of (a part, some of its sets, whose last may have fewer, a plane of taps) to HBM, or from there."""
    plan, strides, (part, some, t) = work.plan, work.geometry.w_strides, place
    R, S, below, sizes = work.geometry.rows.taps, work.geometry.columns.taps, plan.settings.below, tile_sbuf.shape
    whole = min(some[1], part[1] // below - some[0])
    for piece in ((0, whole, below * plan.k), (whole, some[1] - whole, part[1] % below * plan.k)):
        first, count, k = piece
        if count > 0:
            sets, channels = [below * plan.k * strides[0], count], [strides[0], k]
            lead = [sets, channels] if plan.transposed else [channels, sets]
            pattern = lead + [[strides[1], plan.own], [strides[2], R], [strides[3], S]]
            channel = (part[0] + (some[0] + first) * below) * plan.k
            a, b = ((first, first + count), (0, k)) if plan.transposed else ((0, k), (first, first + count))
            part_sbuf = tile_sbuf[a[0] : a[1], b[0] : b[1], 0 : sizes[2], 0 : sizes[3], 0 : sizes[4]]
            offset = channel * strides[0] + t * R * strides[2]
            move(part_sbuf, hbm, pattern, offset)
