"""Results of groups whose channels are neighbours in HBM: the Tensor Engine transposes them, and pixels are stored with
the channels of all row tiles."""

import itertools

from ...._nki import nl
from ....schedules.block_schedule import places_of
from ....schedules.regions import offset_at
from ....schedules.tiles import cut, cut_at, div_ceil, some_of, transposes_of_bank
from ..._dma import store
from ..._engines import copy_balanced, itemsize_of
from ..filter_feed import transposed_bank
from .results import Results


class PixelResults(Results):
    """Results as evacuated: the rows of a block are not gathered, as pixels of each are stored apart anyway.

    late: (row tiles with their places, extents of a lane) of results that are transposed after the next sums.
    """

    by_pixels = True

    def __init__(self, *given):
        super().__init__(*given)
        self.late = []

    def finish(self, tile, lanes, blocks, last):
        """Store what waits, and keep the last blocks until the next call: other sums hide their evacuation."""
        self.end(is_end=False)
        if last:
            self.store(tile, lanes, blocks)

    def store(self, tile, lanes, blocks):
        """Keep some blocks of an M tile's lanes to be stored."""
        for index, some in itertools.groupby(tile, lambda one: one.lane):
            lane, places = lanes[index], [(one, *self.place(0, one)) for one in some]
            self.late.append((places, [part.existing(at) for part, at in zip(lane, places_of(lane, blocks))]))

    def end(self, is_end=True):
        """Transpose and store the results that wait. is_end: whether they are the last, whose rows are not stored
        together: each is as soon as it is evacuated."""
        for places, ((z, z0, zn), (p, p0, pn), (q, q0, qn)) in self.late:
            for n, (first, width) in itertools.product(range(zn), cut(qn, nl.tile_size.pmax)):
                groups = cut_at(div_ceil(pn, self.schedule.together_rows), nl.tile_size.pmax // width)
                most = transposes_of_bank(nl.tile_size.pmax, itemsize_of(self.operands.y.dtype))
                for _, alike in itertools.groupby(groups, key=lambda one: one[1]):
                    alike = [*alike]
                    for part in cut_at(len(alike), most):
                        start, there = (z + n, p, q + first), (z0 + n, p0, q0 + first)
                        self._store_pixels(places, some_of(alike, part), start, there, (pn, width), is_end)
        self.late = []

    def _store_pixels(self, places, groups, first, there, extents, is_end):
        """Store pixels of some columns of equally many blocks, (first, count) of each group, from `there` on; extents:
        rows and columns inside y. The rows of a block are on separate partitions, of alternate row tiles in separate
        tiles of results."""
        rows, slot, strides = self.schedule.together_rows, self.schedule.slot, self.geometry.y_strides
        (z, p, q), (pn, width), mn, y_hbm = first, extents, groups[0][1], self.operands.y
        k0, kn = places[0][0].k0, sum(one.kn for one, *_ in places)
        pixels_sbuf = nl.ndarray((mn * width, rows, len(groups), kn), dtype=y_hbm.dtype, buffer=nl.sbuf)
        tiles = {}
        for one in places:
            tiles.setdefault(id(one[1]), []).append(one)
        for mine in tiles.values():
            (_, y_sbuf, begin, own), end = mine[0], mine[-1][2] + rows * slot
            lines = (p + own + m * rows for m, _ in groups)
            lines = (slice(line, line + (mn - 1) * rows + 1, rows) for line in lines)
            sources = [y_sbuf[begin:end, z, line, q : q + width] for line in lines]
            pixels_psum = transposed_bank(sources, mn * width, end - begin)
            for (one, _, base, _), row in itertools.product(mine, range(rows)):
                c = base - begin + row * slot
                dst = pixels_sbuf[:, row, :, one.k0 - k0 : one.k0 - k0 + one.kn]
                copy_balanced(dst, pixels_psum[:, :, c : c + one.kn], self.ledger)
        # groups with all their rows by one DMA, then others row by row
        m0, by_row = groups[0][0], strides[2]
        whole = sum(pn >= (m + mn) * rows for m, _ in groups)
        together = 1 if is_end else rows
        stores = [(row, together, 0, whole, mn) for row in range(0, rows if whole > 0 else 0, together)]
        for index, (m, _) in enumerate(groups[whole:], whole):
            counts = [min(mn, div_ceil(pn - row, rows) - m) for row in range(rows)]
            stores += [(row, 1, index, 1, count) for row, count in enumerate(counts) if count > 0]
        for row, each, index, count, lines in stores:
            free = [[by_row, each], [mn * rows * by_row, count], [1, kn]]
            offset = offset_at(strides, (k0, there[0], there[1] + (m0 + index * mn) * rows + row, there[2]))
            own_sbuf = pixels_sbuf[0 : lines * width, row : row + each, index : index + count]
            store(own_sbuf, y_hbm, [[rows * by_row, lines], [strides[3], width], *free], offset)
