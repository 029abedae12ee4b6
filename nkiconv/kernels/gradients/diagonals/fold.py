"""From sums of pairs to sums of taps: indices of the diagonals, and what adds up their positions."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._masks import keep_between, keep_equal


@dataclass
class Folding(nl.NKIObject):
    """In SBUF: indices [(p, q, k), groups, gathered], uint32; ones [(p, q, k), k'] where k' is k, fp32."""

    indices_sbuf: object
    ones_sbuf: object


def make_folding(plan):
    """The Folding of a plan's blocks."""
    settings, k, rows, columns = plan.settings, plan.k, plan.geometry.rows, plan.geometry.columns
    size = settings.rows * settings.columns
    # of the first tap of each position, where that is the partition's
    firsts_sbuf = nl.ndarray((size * k, size), dtype=nl.float32, buffer=nl.sbuf)
    steps = [[rows.stride * plan.window[1], settings.rows], [columns.stride, settings.columns]]
    nisa.iota(dst=firsts_sbuf, pattern=steps, offset=0, channel_multiplier=0)
    keep_between(firsts_sbuf, [[-k, size]], k, firsts_sbuf)
    first_sbuf = nl.ndarray((size * k, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=first_sbuf, op=nl.add, data=firsts_sbuf, axis=1)
    places_sbuf = nl.ndarray((size * k, plan.per_gather, plan.each), dtype=nl.float32, buffer=nl.sbuf)
    taps = rows.taps * columns.taps
    wanted = plan.c * taps
    by_window = [[plan.c * plan.window[0] * plan.window[1], plan.per_gather], [plan.window[0] * plan.window[1], plan.c]]
    by_tap = [[rows.dilation * plan.window[1], rows.taps], [columns.dilation, columns.taps]]
    into = places_sbuf[0 : size * k, 0 : plan.per_gather, 0:wanted]
    nisa.iota(dst=into, pattern=by_window + by_tap, offset=0, channel_multiplier=0)
    indices_sbuf = nl.ndarray((size * k, plan.per_gather, plan.each), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=indices_sbuf[0 : size * k, 0 : plan.per_gather, 0:wanted], data=into, op0=nl.add, operand0=first_sbuf
    )
    return Folding(indices_sbuf=indices_sbuf, ones_sbuf=make_ones(k, size))


def make_ones(k, size):
    """Ones [(position, k), k'] where k' is k, zeros elsewhere."""
    ones_sbuf = nl.ndarray((size * k, k), dtype=nl.float32, buffer=nl.sbuf)
    if k == 1:
        nisa.memset(dst=ones_sbuf, value=1.0, engine=nisa.engine.vector)
        return ones_sbuf
    each_sbuf = nl.ndarray((size * k, k, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=each_sbuf, value=1.0, engine=nisa.engine.vector)
    keep_equal(each_sbuf, [[-1, k], [-k, size]], each_sbuf)
    nisa.tensor_reduce(dst=ones_sbuf, op=nl.add, data=each_sbuf, axis=2)
    return ones_sbuf
