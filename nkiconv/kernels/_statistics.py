"""Count, mean and variance of values that lie along the free axis of a tile: bn_stats, as many times as it takes, and
bn_aggr, by Chan's formula for parts, so that no difference of large squares is ever taken.

A bn_stats gives two triples (count, mean, count * variance). When there are `TRIPLES` of a partition, bn_aggr makes one
of them, so that SBUF holds no more however many values there are.

AWS documents what the triples are, not what bn_stats writes for the odd elements of one element, nor triples of no
elements for bn_aggr: count 0 with mean and variance 0, which count for nothing, are inferred.

Source of the formula: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing sample variances,
1979; bn_stats and bn_aggr: AWS, nki.isa.
"""

from dataclasses import dataclass
from typing import Any

from .._nki import nisa, nl
from ..schedules.options import MOVING_MAX, TRIPLES
from ..schedules.tiles import cut_at, size_of
from ._dma import copy, store
from ._engines import book_vector

#: Statistics that engines copy to other partitions at once, at most.
COPIED_MAX = 1


@dataclass
class Statistics(nl.NKIObject):
    """Triples [P, TRIPLES, 3] fp32 in SBUF, how many there are, and of how many values a partition."""

    triples: Any
    used: int
    count: int


def new_statistics(partitions, most=TRIPLES):
    """Statistics of no values yet. most: triples that are kept, at least 4 where values are added."""
    triples_sbuf = nl.ndarray((partitions, most, 3), dtype=nl.float32, buffer=nl.sbuf)
    return Statistics(triples=triples_sbuf, used=0, count=0)


def add_values(statistics, data):
    """Take in [P, ...] of SBUF or PSUM, at most 512 values a partition."""
    partitions, most, _ = statistics.triples.shape
    if statistics.used + 2 > most:
        whole_sbuf = nl.ndarray((partitions, most, 3), dtype=nl.float32, buffer=nl.sbuf)
        finish_triple(statistics, whole_sbuf[0:partitions, 0, 0:3])
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


def finish_triple(statistics, dst):
    """(count, mean, count * variance) of all values into dst, [P, 3] fp32 in SBUF: a triple to be combined further."""
    finish(statistics, dst)
    of_squares = dst[0 : dst.shape[0], 2:3]
    nisa.tensor_scalar(dst=of_squares, data=of_squares, op0=nl.multiply, operand0=float(statistics.count))


def combine_each(dst, triples, count):
    """(count, mean, variance) of each of some pieces of `count` values, from the triples of the bn_stats of each.

    All pieces together, by Chan's formula as it is for two: a bn_aggr each takes as long as the bn_stats of a small
    image.

    Args: dst: [P, pieces, 3], fp32 in SBUF. triples: [P, pieces, 2, 3], the same; overwritten.
    """
    P, n = dst.shape[0], dst.shape[1]
    even, odd = ([triples[0:P, 0:n, half, part] for part in range(3)] for half in range(2))
    share, apart_sbuf = count // 2 / count, nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
    square_sbuf = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=dst[0:P, 0:n, 0], value=float(count), engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(dst=apart_sbuf, data1=odd[1], data2=even[1], op=nl.subtract)
    nisa.tensor_tensor(dst=even[2], data1=even[2], data2=odd[2], op=nl.add)
    for into, data, factor, op, other in (
        (dst[0:P, 0:n, 1], apart_sbuf, share, nl.add, even[1]),
        (square_sbuf, apart_sbuf, share * (1 - share), nl.multiply, apart_sbuf),
        (dst[0:P, 0:n, 2], even[2], 1 / count, nl.add, square_sbuf),
    ):
        nisa.scalar_tensor_tensor(dst=into, data=data, op0=nl.multiply, operand0=factor, op1=op, operand1=other)


@dataclass
class Channels(nl.NKIObject):
    """Statistics of output channels of an image, by how many rows of y the partitions are of that hold the values, all
    that share the columns or the first of them; a bias [P, 1] that the values lack, or None; banks of sums that are
    left to come."""

    parts: dict
    bias: object
    left: int


class OutputStatistics:
    """This core's part of the statistics of y by image and output channel, [P, N, K, 3] fp32 in HBM.

    Output channels are told apart by the first of their M tile. What of y the core makes is known before, so that
    statistics are stored when their last values are there, and zeros for what it does not make.
    """

    def __init__(self, stats_hbm, planes, ledger, m_tiles, visits, slot=None):
        """planes: of y, of an image. m_tiles: all there are. visits: (M tile, first plane, planes) of each bank of sums
        to come. slot: partitions from a row of y to the next, where engines may begin; None: as many as it has
        channels."""
        self.slot = slot
        self.hbm, self.planes, self.ledger, self.open, self.left = stats_hbm, planes, ledger, {}, {}
        self.moving = []
        for m_tile, first, count in visits:
            for image, _, _ in self.images(first, count):
                self.left[image, m_tile.k0] = self.left.get((image, m_tile.k0), 0) + 1
        for m_tile in m_tiles:
            missing = [image for image in range(stats_hbm.shape[1]) if (image, m_tile.k0) not in self.left]
            for first, count in runs(missing):
                self.store_nothing(m_tile, first, count)

    def images(self, first, count):
        """(image, first of the planes, planes) of each image that planes of y are of."""
        found, plane = [], first
        while plane < first + count:
            image = plane // self.planes
            end = min(first + count, (image + 1) * self.planes)
            found.append((image, plane - first, end - plane))
            plane = end
        return found

    def add(self, m_tile, values, first, rows, bias=None, last=1):
        """Take in values [partitions, planes, rows, columns], fp32 in SBUF or PSUM, of planes of y from `first` on.

        rows: how many of them are of y for all partitions; one more may be for those of the first `last` rows of y that
        share the columns. bias: [partitions, 1] fp32 in SBUF that is in y and not in them, or None.
        """
        partitions, planes, pn, qn = values.shape
        found, done = self.images(first, planes), []
        for image, z, zn in found:
            if (image, m_tile.k0) not in self.open:
                self.open[image, m_tile.k0] = Channels({}, bias, self.left[image, m_tile.k0])
            one = self.open[image, m_tile.k0]
            for at, count in cut_at(zn, max(1, nl.tile_size.bn_stats_fmax // (pn * qn))):
                part = slice(z + at, z + at + count)
                if rows > 0:
                    self.add_piece(one, m_tile.rows, values[0:partitions, part, 0:rows, 0:qn])
                if rows < pn:
                    self.add_piece(one, last, values[0 : last * (self.slot or m_tile.kn), part, rows:pn, 0:qn])
            one.left = one.left - 1
            if one.left == 0:
                done.append(image)
        # after those of all images, so that Vector does not wait for what it has just begun
        for image in done:
            self.store_channels(image, m_tile, self.open.pop((image, m_tile.k0)))

    def add_piece(self, one, rows, data):
        """Take in values of partitions of so many rows, at most 512 a partition at once."""
        if rows not in one.parts:
            one.parts[rows] = new_statistics(data.shape[0])
        parts, planes, pn, qn = data.shape
        for at, count in cut_at(pn, pn if planes > 1 else max(1, nl.tile_size.bn_stats_fmax // qn)):
            add_values(one.parts[rows], data[0:parts, 0:planes, at : at + count, 0:qn])
        book_vector(self.ledger, size_of(data.shape[1:]))

    def store_channels(self, image, m_tile, one):
        """Store the statistics of an M tile of an image; of several rows of y together when they have been moved to the
        same partitions, which may take as long as the loads before it."""
        if list(one.parts) == [1]:
            self.store_one(image, m_tile, one.parts[1], one.bias)
            return
        kn, slot, every = m_tile.kn, self.slot or m_tile.kn, new_statistics(m_tile.kn, sum(one.parts))
        for rows, part in sorted(one.parts.items(), reverse=True):
            if rows == 1:
                finish_triple(part, every.triples[0:kn, every.used, 0:3])
            else:
                triple_sbuf = nl.ndarray((rows * slot, 3), dtype=nl.float32, buffer=nl.sbuf)
                finish_triple(part, triple_sbuf)
                for row in range(rows):
                    src = triple_sbuf[row * slot : row * slot + kn, 0:3]
                    self.move(every.triples[0:kn, every.used + row, 0:3], src)
            every.used, every.count = every.used + rows, every.count + rows * part.count
        self.store_moved(MOVING_MAX if self.slot is None else COPIED_MAX)
        self.moving.append(lambda: self.store_one(image, m_tile, every, one.bias))

    def move(self, dst, src):
        """Bring a row's statistics to other partitions: by an engine where it may begin there, else by DMA."""
        if self.slot is None:
            copy(dst, src)
        else:
            nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.gpsimd)

    def end(self):
        """Store what waits to be moved to other partitions."""
        self.store_moved(0)

    def store_moved(self, most):
        """Store statistics that are moved to other partitions, until so many are left."""
        while len(self.moving) > most:
            self.moving.pop(0)()

    def store_one(self, image, m_tile, statistics, bias):
        """Store the statistics of an M tile of an image."""
        kn = m_tile.kn
        stats_sbuf = nl.ndarray((kn, 3), dtype=nl.float32, buffer=nl.sbuf)
        finish(statistics, stats_sbuf)
        if bias is not None:
            mean_sbuf = stats_sbuf[0:kn, 1:2]
            nisa.tensor_tensor(dst=mean_sbuf, data1=mean_sbuf, data2=bias[0:kn, 0:1], op=nl.add)
        store(stats_sbuf, self.hbm, [[3, kn], [1, 3]], self.offset(image, m_tile))

    def store_nothing(self, m_tile, first, count):
        """Store that this core makes nothing of an M tile of some images."""
        step, size = self.hbm.shape[2] * 3, 3 * m_tile.kn
        for image, several in cut_at(count, nl.tile_size.pmax):
            zeros_sbuf = nl.ndarray((several, size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=zeros_sbuf, value=0.0, engine=nisa.engine.gpsimd)
            store(zeros_sbuf, self.hbm, [[step, several], [1, size]], self.offset(first + image, m_tile))

    def offset(self, image, m_tile):
        """Where this core's part of an M tile of an image begins."""
        images, channels = self.hbm.shape[1], self.hbm.shape[2]
        return 3 * ((nl.program_id(0) * images + image) * channels + m_tile.k0)


def runs(numbers):
    """(first, how many) of runs of neighbours among rising numbers."""
    found = []
    for number in numbers:
        if found and found[-1][0] + found[-1][1] == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return found
