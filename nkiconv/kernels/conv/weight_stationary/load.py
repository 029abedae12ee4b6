"""x of output tiles on its way in: [(row tile, c) or (segment, c), planes, rows, columns] of each K tile."""

from ...._nki import nisa, nl
from ....schedules.block_schedule import banks_of
from ..boxes import boxes_of_x, load_x
from ..sums import spaced


class Inputs(nl.NKIObject):
    """x of each step, K tile by K tile: tiles that are loaded and not taken yet, None where a step sees no x."""

    def __init__(self, operands, geometry, schedule, steps):
        self.operands, self.geometry, self.schedule, self.steps = operands, geometry, schedule, steps
        self.tiles = []

    def load(self, count):
        """Issue loads until there are `count`, or all."""
        chunks = len(self.schedule.chunks)
        while len(self.tiles) < min(count, len(self.steps) * chunks):
            b, i = self.steps[len(self.tiles) // chunks]
            resident = self.schedule.residents[b]
            self.tiles.append(self._load(resident.tiles[0], resident.items[i], len(self.tiles)))

    def take(self, index):
        """x of a step, by K tile."""
        chunks = len(self.schedule.chunks)
        found = self.tiles[index * chunks : (index + 1) * chunks]
        self.tiles[index * chunks : (index + 1) * chunks] = [None] * chunks
        return found

    def _load(self, tile, lanes, index):
        """One K tile of an output tile; of the first, the rows of its first bank before the others."""
        schedule, chunk = self.schedule, index % len(self.schedule.chunks)
        sources = self._sources(tile, lanes, chunk)
        extents = [max(lane[axis].xn for lane in lanes) for axis in range(3)]
        if min(extents) == 0:
            return None
        parts = nl.tile_size.pmax if schedule.gathers else schedule.chunks[chunk][1] * schedule.chunks[chunk][3]
        x_sbuf = nl.ndarray((parts, *extents), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        split = 0
        if index == 0 and schedule.gathers:
            rows = schedule.axes[1]
            split = (next(banks_of(schedule, lanes)).blocks[1][1] - 1) * rows.apart + rows.window
        for low, high in ((0, split), (split, extents[1])) if split > 0 else ((0, extents[1]),):
            for first, lane, c0, cn in sources:
                if lane >= len(lanes):
                    nisa.memset(dst=x_sbuf[first : first + cn], value=0.0, engine=nisa.engine.gpsimd)
                    continue
                self._load_rows(x_sbuf, lanes[lane], first, (c0, cn), low, high)
        return x_sbuf

    def _sources(self, tile, lanes, chunk):
        """(first partition, lane, first channel, how many) of what comes by a DMA."""
        c0, cn, segment, held = self.schedule.chunks[chunk]
        if not self.schedule.gathers:
            return [(index * cn, segment + index, c0, cn) for index in range(held)]
        tile = [one for one in tile if one.lane < len(lanes)]
        if tile[0].cn < self.schedule.rows:
            return [(one.first, one.lane, one.c0, one.cn) for one in tile]
        # row tiles without gaps between their channels come together
        found = []
        for lane in range(len(lanes)):
            own = [one for one in tile if one.lane == lane]
            found.append((own[0].first, lane, own[0].c0, own[-1].c0 + own[-1].cn - own[0].c0))
        return found

    def _load_rows(self, x_sbuf, lane, first, channels, low, high):
        """Rows low .. high-1 of a lane, zeros around x where the lane has elements outside it."""
        (z, d0, dn), (p, h0, hn), (q, w0, wn) = (part.inside() for part in lane)
        start, end = max(low, p), min(high, p + hn)
        if low == 0:
            self._clear(x_sbuf, lane, first, channels[1])
        if dn * wn > 0 and start < end:
            boxes = boxes_of_x(self.geometry, channels, (d0, dn), (h0 + start - p, w0), (end - start, wn))
            for (part, plane, row, column), pattern, offset, framed in boxes:
                place = (first + part, z + plane, start + row, q + column)
                load_x(x_sbuf, self.operands, [(place, pattern, offset, framed)])

    def _clear(self, x_sbuf, lane, first, cn):
        """Zeros in the elements of a lane that x does not have."""
        sizes = [part.xn for part in lane]
        for axis, part in enumerate(lane):
            held, _, count = part.inside()
            held = min(part.xn, held)
            for begin, end in ((0, held), (min(part.xn, held + count), part.xn)):
                if begin < end:
                    places = [(0, size, 1) for size in sizes]
                    places[axis] = (begin, end - begin, 1)
                    if min(size for _, size, _ in places) > 0:
                        zeros = spaced(x_sbuf, (first, cn), *places)
                        nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)
