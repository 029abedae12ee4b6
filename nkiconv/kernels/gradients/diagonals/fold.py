"""From sums of pairs to sums of taps: indices of the diagonals, and what adds up their positions."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._masks import keep_between, keep_equal


@dataclass
class Constants(nl.NKIObject):
    """In SBUF: zeros [128, 128]; tiles of sums as read out, some for each tile of rows, zeros where no x is; indices
    [(p, q, k), groups, gathered], uint32; ones [(p, q, k), k'] where k' is k, fp32; both for each group of those below
    each other, and k' of all of them."""

    zeros_sbuf: object
    reads: list
    indices_sbuf: object
    ones_sbuf: object


def make_constants(plan, zeros_sbuf, reads):
    """The Constants of a plan's blocks."""
    settings, k, rows, columns = plan.settings, plan.k, plan.geometry.rows, plan.geometry.columns
    size, below = settings.rows * settings.columns, settings.below
    each = size * k if below == 1 else nl.tile_size.pmax // below
    parts = each * below
    # of the first tap of each position and group, where these are the partition's
    own, places, seen = k // settings.beside, size * settings.beside, plan.window[0] * plan.window[1]
    firsts_sbuf = nl.ndarray((parts, places), dtype=nl.float32, buffer=nl.sbuf)
    steps = [[rows.stride * plan.window[1], settings.rows], [columns.stride, settings.columns]]
    steps = steps + [[plan.own * seen, settings.beside]]
    nisa.iota(dst=firsts_sbuf, pattern=steps, offset=0, channel_multiplier=0)
    ones_sbuf = nl.ndarray((parts, below * k), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=0.0, engine=nisa.engine.vector)
    for number in range(below):
        first, end = number * each, (number + 1) * each
        keep_between(firsts_sbuf[first:end, 0:places], [[-own, places]], own, firsts_sbuf[first:end, 0:places])
        each_sbuf = nl.ndarray((size * k, k, size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=each_sbuf, value=1.0, engine=nisa.engine.vector)
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
