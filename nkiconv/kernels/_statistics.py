"""Count, mean and variance of values that lie along the free axis of a tile: bn_stats, as many times as it takes, and
bn_aggr, by Chan's formula for parts, so that no difference of large squares is ever taken.

A bn_stats gives two triples (count, mean, count * variance). When there are `TRIPLES` of a partition, bn_aggr makes one
of them, so that SBUF holds no more however many values there are.

Source of the formula: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing sample variances,
1979; bn_stats and bn_aggr: AWS, nki.isa.
"""

from dataclasses import dataclass

from .._nki import nisa, nl
from ..schedules.tiles import size_of

#: Triples of a partition that are kept before they become one. bn_aggr takes 14 ns for each: about a microsecond is
#: left to do behind the last values.
TRIPLES = 64


@dataclass
class Statistics(nl.NKIObject):
    """Triples [P, TRIPLES, 3] fp32 in SBUF, how many there are, and of how many values a partition."""

    triples: object
    used: int
    count: int


def new_statistics(partitions, most=TRIPLES):
    """Statistics of no values yet. most: triples that are kept, at least 4."""
    triples_sbuf = nl.ndarray((partitions, most, 3), dtype=nl.float32, buffer=nl.sbuf)
    return Statistics(triples=triples_sbuf, used=0, count=0)


def add_values(statistics, data):
    """Take in [P, ...] of SBUF or PSUM, at most 512 values a partition."""
    partitions, most, _ = statistics.triples.shape
    if statistics.used + 2 > most:
        whole_sbuf = nl.ndarray((partitions, most, 3), dtype=nl.float32, buffer=nl.sbuf)
        finish(statistics, whole_sbuf[0:partitions, 0, 0:3])
        of_squares = whole_sbuf[0:partitions, 0, 2:3]
        nisa.tensor_scalar(dst=of_squares, data=of_squares, op0=nl.multiply, operand0=float(statistics.count))
        statistics.triples, statistics.used = whole_sbuf, 1
    first = statistics.used
    nisa.bn_stats(dst=statistics.triples[0:partitions, first : first + 2, 0:3], data=data)
    statistics.used = first + 2
    statistics.count = statistics.count + size_of(data.shape[1:])


def finish(statistics, dst):
    """(count, mean, variance) of all values into dst, [P, 3] fp32 in SBUF."""
    partitions = dst.shape[0]
    nisa.memset(dst=dst[0:partitions, 0:1], value=float(statistics.count), engine=nisa.engine.gpsimd)
    nisa.bn_aggr(dst=dst[0:partitions, 1:3], data=statistics.triples[0:partitions, 0 : statistics.used, 0:3])
