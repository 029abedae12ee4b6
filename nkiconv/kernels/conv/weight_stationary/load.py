"""x of output tiles on its way in: [(row tile, c) or (segment, c), planes, rows, columns] of each K tile."""

from ...._nki import nisa, nl
from ....schedules.block_schedule import banks_of
from ....schedules.planes import misses_planes
from ..._prologue import load_x
from ..filter_feed import clear_tile
from ..regions import clear_window
from ..sums import spaced

#: Bytes a partition of x of M packing that comes in one transfer, all K tiles; else of a transfer.
WHOLE_BYTES, PIECE_BYTES = 8192, 4096


def plane_span(part):
    """(first, how many) planes of x of a Part, of all images."""
    return part.image * part.axis.size + part.x0, part.xn


class Inputs(nl.NKIObject):
    """x of each step, K tile by K tile: tiles that are loaded and not taken yet, None where a step sees no x."""

    def __init__(self, operands, geometry, schedule, steps):
        self.operands, self.geometry, self.schedule, self.steps = operands, geometry, schedule, steps
        self.tiles = []
        #: by K tile the last output tile and its x; rows that a tile has of the one before it, by step: (to, from)
        self.before, self.held, self.copied = {}, {}, 0

    def load(self, count):
        """Issue loads until there are `count`, or all."""
        chunks = len(self.schedule.chunks)
        while len(self.tiles) < min(count, len(self.steps) * chunks):
            b, i = self.steps[len(self.tiles) // chunks]
            resident = self.schedule.residents[b]
            index = len(self.tiles)
            x_sbuf = self._load(resident.tiles[0], resident.items[i], index)
            self.tiles.append(x_sbuf)
            self.before[index % chunks] = resident.items[i], x_sbuf

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
        if schedule.shift != None:
            parts = (schedule.shift.lanes - 1) * schedule.rows + schedule.chunks[chunk][1]
        x_sbuf = nl.ndarray((parts, *extents), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        split = 0
        if index == 0 and schedule.gathers:
            rows = schedule.axes[1]
            split = (next(banks_of(schedule, lanes)).blocks[1][1] - 1) * rows.apart + rows.window
        pieces = ((0, split), (split, extents[1])) if split > 0 else ((0, extents[1]),)
        if schedule.shift != None:
            row_bytes = extents[0] * extents[2] * self.geometry.itemsize
            each = max(1, PIECE_BYTES // row_bytes)
            if len(schedule.chunks) * extents[1] * row_bytes <= WHOLE_BYTES:
                each = extents[1]
            if any(misses_planes(self.geometry, *plane_span(lane[0])) for lane in lanes):
                clear_tile(x_sbuf, self.geometry.itemsize, nisa.engine.vector)
            elif self.geometry.depth != None:
                # a column where x comes: else it would overtake filters and loads that wait for zeros
                w = extents[2] // 2
                clear_window(x_sbuf, 0, extents[1], w, w + 1, nisa.engine.vector)
            held = self._rows_held(x_sbuf, lanes, index)
            pieces = [(first, min(extents[1], first + each)) for first in range(held, extents[1], each)]
        for low, high in pieces:
            for first, lane, c0, cn in sources:
                if lane >= len(lanes):
                    nisa.memset(dst=x_sbuf[first : first + cn], value=0.0, engine=nisa.engine.gpsimd)
                    continue
                self._load_rows(x_sbuf, lanes[lane], first, (c0, cn), low, high)
        return x_sbuf

    def _rows_held(self, x_sbuf, lanes, index):
        """How many rows the output tile before this one has of its x: `copy_held` copies them."""
        chunks = len(self.schedule.chunks)
        others, other_sbuf = self.before.get(index % chunks, ((), None))
        if other_sbuf == None or len(lanes) != len(others):
            return 0
        held = []
        for (z, p, _), (other_z, other_p, _) in zip(lanes, others, strict=True):
            same = z == other_z and other_p.x0 <= p.x0
            held.append(min(p.xn, other_p.x0 + other_p.xn - p.x0) if same else 0)
        count = max(0, min(held))
        for lane in range(len(lanes) if count > 0 else 0):
            parts = (lane * self.schedule.rows, self.schedule.chunks[index % chunks][1])
            planes, columns = (0, lanes[lane][0].xn, 1), (0, x_sbuf.shape[3], 1)
            row = lanes[lane][1].x0 - others[lane][1].x0
            dst = spaced(x_sbuf, parts, planes, (0, count, 1), columns)
            src = spaced(other_sbuf, parts, planes, (row, count, 1), columns)
            self.held.setdefault(index // chunks, []).append((dst, src))
        return count

    def copy_held(self, step):
        """Copy what steps until this one, as far as they are loaded, have of the x of the steps before them."""
        while self.copied <= min(step, len(self.tiles) // len(self.schedule.chunks) - 1):
            for dst, src in self.held.pop(self.copied, []):
                nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)
            self.copied += 1

    def _sources(self, tile, lanes, chunk):
        """(first partition, lane, first channel, how many) of what comes by a DMA."""
        c0, cn, segment, held = self.schedule.chunks[chunk]
        if self.schedule.shift != None:
            return [(lane * self.schedule.rows, lane, c0, cn) for lane in range(len(lanes))]
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
        if low == 0:
            self._clear(x_sbuf, lane, first, channels[1])
        (z, d0, dn), rows, columns = lane[0].inside(), lane[1], lane[2]
        if dn > 0 and low < rows.xn:
            dst = x_sbuf[first : first + channels[1], z : z + dn, low : min(high, rows.xn), 0 : columns.xn]
            load_x(dst, self.operands, self.geometry, (channels[0], d0, rows.x0 + low, columns.x0))

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
