"""Count, mean and variance of values along the free axis of a tile: by bn_stats of parts, combined by bn_aggr with
Chan's formula, so that no large squares are subtracted.

A bn_stats writes two triples (count, mean, count * variance). After `TRIPLES` triples a partition, bn_aggr combines
them into one, so that their memory does not grow with the number of values.

AWS documents the triples, but not the triple that bn_stats writes for the odd elements of a single element, nor
bn_aggr's result with triples of no elements. Inferred: count, mean and variance 0, which bn_aggr ignores.

Source of the formula: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing sample variances,
1979; bn_stats and bn_aggr: AWS, nki.isa.
"""

from dataclasses import dataclass
from itertools import groupby

from .._nki import nisa, nl
from ..schedules.options import MOVING_MAX, TRIPLES, adds_bias_alone
from ..schedules.tiles import cut_at, parts_of_images, size_of
from ._dma import copy, store
from ._engines import book_vector, copy_balanced, scaled
from ._epilogue import evacuate
from ._masks import constant

#: The most statistics waiting while engines copy them to other partitions.
COPIED_MAX = 1


class Statistics:
    """Triples [P, most, 3] fp32 in SBUF, the number in use, and their number of values a partition. most: room for
    triples, at least 4 if values are added."""

    def __init__(self, partitions, most=TRIPLES):
        self.triples, self.used, self.count = nl.ndarray((partitions, most, 3), dtype=nl.float32, buffer=nl.sbuf), 0, 0

    def add(self, data):
        """Add values [P, ...] in SBUF or PSUM, at most 512 a partition."""
        if self.used + 2 > self.triples.shape[1]:
            whole_sbuf = nl.ndarray(self.triples.shape, dtype=nl.float32, buffer=nl.sbuf)
            self.finish_triple(whole_sbuf[:, 0])
            self.triples, self.used = whole_sbuf, 1
        nisa.bn_stats(dst=self.triples[:, self.used : self.used + 2], data=data)
        self.used, self.count = self.used + 2, self.count + size_of(data.shape[1:])

    def finish(self, dst):
        """Write (count, mean, variance) of all values to dst, [P, 3] fp32 in SBUF."""
        finish_all(dst.expand_dim(1), [self])

    def finish_triple(self, dst):
        """Write (count, mean, count * variance) of all values to dst, [P, 3] fp32 in SBUF: a triple to combine
        further."""
        self.finish(dst)
        nisa.tensor_scalar(dst=dst[:, 2:3], data=dst[:, 2:3], op0=nl.multiply, operand0=float(self.count))


def finish_all(dst, some):
    """Write (count, mean, variance) of each of some Statistics of equally many values to dst, [P, some, 3] fp32 in
    SBUF."""
    nisa.memset(dst=dst[:, :, 0:1], value=float(some[0].count), engine=nisa.engine.gpsimd)
    for index, one in enumerate(some):
        nisa.bn_aggr(dst=dst[:, index, 1:3], data=one.triples[0 : dst.shape[0], 0 : one.used])


def combine_each(dst, triples, count):
    """Write (count, mean, variance) of each piece of `count` values, from the triples of its bn_stats.

    All pieces together, by Chan's formula for two parts: a bn_aggr for each would take as long as the bn_stats of a
    small image.

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
        scaled(into, data, factor, op, other)


@dataclass
class Channels(nl.NKIObject):
    """Statistics of an M tile's output channels of an image. parts: by the number of rows of y on the partitions that
    hold the values, all rows that share the columns or the first of them; bias: [P, 1] that the values lack, or None;
    left: banks of sums to come."""

    parts: dict
    bias: object
    left: int


class OutputStatistics:
    """This core's part of the statistics of y for each image and output channel, [P, N, K, 3] fp32 in HBM.

    Output channels are identified by the first of their M tile. The core's part of y is known in advance: statistics
    are stored after their last values, and zeros for channels that it does not compute.
    """

    def __init__(self, stats_hbm, planes, ledger, m_tiles, visits, slot=None):
        """planes: y's in an image. m_tiles: all M tiles. visits: (M tile, first plane, planes) of each bank of sums to
        come. slot: partitions from a row of y to the next, at which engines may begin; None: its channels."""
        self.slot = slot
        self.hbm, self.planes, self.ledger, self.open, self.left = stats_hbm, planes, ledger, {}, {}
        self.moving = []
        for m_tile, first, count in visits:
            for image, _, _ in parts_of_images(first, count, self.planes):
                self.left[image, m_tile.k0] = self.left.get((image, m_tile.k0), 0) + 1
        for m_tile in m_tiles:
            missing = [image for image in range(stats_hbm.shape[1]) if (image, m_tile.k0) not in self.left]
            # runs of neighbours
            for _, some in groupby(enumerate(missing), key=lambda each: each[1] - each[0]):
                run = [image for _, image in some]
                self.store_nothing(m_tile, run[0], len(run))

    def add(self, m_tile, values, first, rows, bias=None, last=1):
        """Add values [partitions, planes, rows, columns], fp32 in SBUF or PSUM, of planes of y from `first` on.

        rows: rows of the values that are y's on all partitions; one more may be y's only on the partitions of the first
        `last` rows of y that share the columns. bias: [partitions, 1] fp32 in SBUF that y has and the values lack, or
        None.
        """
        _, planes, pn, qn = values.shape
        done = []
        for image, z, zn in parts_of_images(first, planes, self.planes):
            if (image, m_tile.k0) not in self.open:
                self.open[image, m_tile.k0] = Channels({}, bias, self.left[image, m_tile.k0])
            one = self.open[image, m_tile.k0]
            for at, count in cut_at(zn, max(1, nl.tile_size.bn_stats_fmax // (pn * qn))):
                part = slice(z + at, z + at + count)
                if rows > 0:
                    self.add_piece(one, m_tile.rows, values[:, part, 0:rows])
                if rows < pn:
                    self.add_piece(one, last, values[0 : last * (self.slot or m_tile.kn), part, rows:pn])
            one.left = one.left - 1
            if one.left == 0:
                done.append(image)
        # after the bn_stats of all images, so that Vector does not wait for its latest result
        found = [self.open.pop((image, m_tile.k0)) for image in done]
        if all(list(one.parts) == [1] for one in found):
            # neighbours of equally many values together
            every = range(len(done))
            for _, some in groupby(every, key=lambda index: (done[index] - index, found[index].parts[1].count)):
                run = list(some)
                self.store_images(done[run[0]], m_tile, [found[index].parts[1] for index in run], found[run[0]].bias)
            return
        for image, one in zip(done, found):
            self.store_channels(image, m_tile, one)

    def add_piece(self, one, rows, data):
        """Add values on partitions of `rows` rows of y, at most 512 a partition at once."""
        if rows not in one.parts:
            one.parts[rows] = Statistics(data.shape[0])
        _, planes, pn, qn = data.shape
        for at, count in cut_at(pn, pn if planes > 1 else max(1, nl.tile_size.bn_stats_fmax // qn)):
            one.parts[rows].add(data[:, :, at : at + count])
        book_vector(self.ledger, size_of(data.shape[1:]))

    def store_channels(self, image, m_tile, one):
        """Store the statistics of an M tile of an image. Several rows of y are stored after they have been moved to the
        same partitions, which may take as long as the loads before."""
        if list(one.parts) == [1]:
            self.store_images(image, m_tile, [one.parts[1]], one.bias)
            return
        kn, slot, every = m_tile.kn, self.slot or m_tile.kn, Statistics(m_tile.kn, sum(one.parts))
        for rows, part in sorted(one.parts.items(), reverse=True):
            if rows == 1:
                part.finish_triple(every.triples[:, every.used])
            else:
                triple_sbuf = nl.ndarray((rows * slot, 3), dtype=nl.float32, buffer=nl.sbuf)
                part.finish_triple(triple_sbuf)
                for row in range(rows):
                    src = triple_sbuf[row * slot : row * slot + kn]
                    self.move(every.triples[0:kn, every.used + row, 0:3], src)
            every.used, every.count = every.used + rows, every.count + rows * part.count
        self.store_moved(MOVING_MAX if self.slot is None else COPIED_MAX)
        self.moving.append(lambda: self.store_images(image, m_tile, [every], one.bias))

    def move(self, dst, src):
        """Move a row's statistics to other partitions: by an engine if it may begin there, else by DMA."""
        if self.slot is None:
            copy(dst, src)
        else:
            nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.gpsimd)

    def store_moved(self, most=0):
        """Store statistics that were moved to other partitions, all but the last `most`."""
        while len(self.moving) > most:
            self.moving.pop(0)()

    def store_images(self, first, m_tile, some, bias):
        """Store the statistics of an M tile of images from `first` on, each of equally many values."""
        kn, count, step = m_tile.kn, len(some), self.hbm.shape[2] * 3
        stats_sbuf = nl.ndarray((kn, count, 3), dtype=nl.float32, buffer=nl.sbuf)
        finish_all(stats_sbuf, some)
        if bias is not None:
            means = stats_sbuf[:, :, 1:2]
            each = bias[0:kn, 0:1].expand_dim(1).broadcast(1, count)
            nisa.tensor_tensor(dst=means, data1=means, data2=each, op=nl.add)
        store(stats_sbuf, self.hbm, [[3, kn], [step, count], [1, 3]], self.offset(first, m_tile))

    def store_nothing(self, m_tile, first, count):
        """Store zeros for an M tile of images that this core does not compute."""
        step, size = self.hbm.shape[2] * 3, 3 * m_tile.kn
        for image, several in cut_at(count, nl.tile_size.pmax):
            zeros_sbuf = constant((several, size), nl.float32, 0.0)
            store(zeros_sbuf, self.hbm, [[step, several], [1, size]], self.offset(first + image, m_tile))

    def offset(self, image, m_tile):
        """The offset of this core's part of an M tile of an image."""
        images, channels = self.hbm.shape[1], self.hbm.shape[2]
        return 3 * ((nl.program_id(0) * images + image) * channels + m_tile.k0)


def evacuate_counted(y_sbuf, acc, bias, residual, options, ledger, count, evacuates=None):
    """`evacuate` with statistics of y before it is rounded, of acc where a bias is all that is added to it.

    count: takes (values, the bias that they lack), or None. evacuates: evacuates into a tile in place of `evacuate`;
    acc is None then if other sums are added to it.
    """
    alone = acc is not None and adds_bias_alone(options.epilogue)
    into = y_sbuf
    if count is not None and not alone and y_sbuf.dtype != nl.float32:
        into = nl.ndarray(y_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    if evacuates is None:
        evacuate(into, acc, bias, residual, options.epilogue, ledger, options.strict_nonfinite)
    else:
        evacuates(into)
    if count is not None:
        count(*((acc, bias) if alone else (into, None)))
    if into is not y_sbuf:
        copy_balanced(y_sbuf, into, ledger)
