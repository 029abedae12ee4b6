"""Loads of x of output tiles: [(row tile, c) or (segment, c), planes, rows, columns] of each K tile."""

import itertools
import math

from ...._nki import nisa, nl
from ....schedules.block_axes import plane_span, planes_of
from ....schedules.block_schedule import banks_of
from ....schedules.geometry import is_transposed
from ....schedules.planes import misses_planes
from ....schedules.regions import regions_of_x
from ....schedules.tiles import size_of
from ..._engines import book_vector
from ..._prologue import load_region_of_x, load_x
from ..filter_feed import clear_tile, tiles_in_turn
from ..regions import clear_window
from ..sums import along, spaced

#: Bytes a partition of M packing's x (all K tiles) up to which one transfer loads it; else of each transfer.
WHOLE_BYTES, PIECE_BYTES = 8192, 4096


class Inputs(nl.NKIObject):
    """x of each step, by K tile: tiles that are loaded and not taken yet, None if a step reads no x."""

    def __init__(self, operands, geometry, schedule, steps, ledger):
        self.operands, self.geometry, self.schedule, self.steps = operands, geometry, schedule, steps
        self.ledger = ledger
        self.tiles = []
        #: by K tile the last output tile and its x; (step, to, from) of rows that a tile shares with the one before
        self.before, self.held = {}, []

    def load(self, count):
        """Issue loads until there are `count`, or all."""
        k_tiles = len(self.schedule.k_tiles)
        for index in range(len(self.tiles), min(count, len(self.steps) * k_tiles)):
            b, i = self.steps[index // k_tiles]
            resident = self.schedule.residents[b]
            self.tiles.append(self._load(resident.tiles[0], resident.items[i], index))
            self.before[index % k_tiles] = resident.items[i], self.tiles[-1]

    def take(self, index):
        """Take the x of a step, by K tile."""
        k_tiles = len(self.schedule.k_tiles)
        found = self.tiles[index * k_tiles : (index + 1) * k_tiles]
        self.tiles[index * k_tiles : (index + 1) * k_tiles] = [None] * k_tiles
        return found

    def _load(self, tile, lanes, index):
        """Load a K tile of an output tile; of the first one, the rows of its first bank before the others."""
        schedule, k_tile = self.schedule, index % len(self.schedule.k_tiles)
        sources = self._sources(tile, lanes, k_tile)
        extents = [max(lane[axis].xn for lane in lanes) for axis in range(3)]
        if min(extents) == 0:
            return None
        _, cn, _, held = schedule.k_tiles[k_tile]
        parts = nl.tile_size.pmax if schedule.gathers else cn * held
        if schedule.shift != None:
            parts = (schedule.shift.lanes - 1) * schedule.rows + cn
        x_sbuf = nl.ndarray((parts, *extents), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        cuts = [0, extents[1]]
        if index == 0 and schedule.gathers:
            rows = schedule.axes[1]
            cuts.insert(1, (next(banks_of(schedule, lanes)).blocks[1][1] - 1) * rows.apart + rows.window)
        if schedule.shift != None:
            row_bytes = extents[0] * extents[2] * self.geometry.itemsize
            each = max(1, PIECE_BYTES // row_bytes)
            if len(schedule.k_tiles) * extents[1] * row_bytes <= WHOLE_BYTES:
                each = extents[1]
            if any(misses_planes(self.geometry, *plane_span(lane[0])) for lane in lanes):
                clear_tile(x_sbuf, self.geometry.itemsize, nisa.engine.vector)
            elif self.geometry.depth != None:
                # zero a column of x, so that the load does not overtake filters and loads that wait for zeros
                w = extents[2] // 2
                clear_window(x_sbuf, 0, extents[1], w, w + 1, nisa.engine.vector)
            held = self._rows_held(x_sbuf, lanes, index)
            cuts = [*range(held, extents[1], each), extents[1]]
        for low, high in itertools.pairwise(cuts):
            for first, lane, c0, cn in sources:
                if lane >= len(lanes):
                    nisa.memset(dst=x_sbuf[first : first + cn], value=0.0, engine=nisa.engine.gpsimd)
                    continue
                self._load_rows(x_sbuf, lanes[lane], first, (c0, cn), low, high)
        return x_sbuf

    def _rows_held(self, x_sbuf, lanes, index):
        """The number of rows of x that the preceding output tile holds too: `copy_held` copies them."""
        k_tiles = len(self.schedule.k_tiles)
        others, other_sbuf = self.before.get(index % k_tiles, ((), None))
        if other_sbuf == None or len(lanes) != len(others):
            return 0
        held = []
        for (z, p, _), (other_z, other_p, _) in zip(lanes, others, strict=True):
            same = z == other_z and other_p.x0 <= p.x0
            held.append(min(p.xn, other_p.x0 + other_p.xn - p.x0) if same else 0)
        count = max(0, min(held))
        for lane in range(len(lanes) if count > 0 else 0):
            parts = along(lane * self.schedule.rows, self.schedule.k_tiles[index % k_tiles][1])
            row, planes = lanes[lane][1].x0 - others[lane][1].x0, slice(0, lanes[lane][0].xn)
            dst, src = x_sbuf[parts, planes, 0:count], other_sbuf[parts, planes, row : row + count]
            self.held.append((index // k_tiles, dst, src))
        return count

    def copy_held(self, step):
        """Copy the shared rows of x of the loaded steps up to this one from the steps before them."""
        while self.held and self.held[0][0] <= step:
            _, dst, src = self.held.pop(0)
            nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)

    def _sources(self, tile, lanes, k_tile):
        """(first partition, lane, first channel, count) of each DMA."""
        c0, cn, segment, held = self.schedule.k_tiles[k_tile]
        if self.schedule.shift == None and not self.schedule.gathers:
            return [(index * cn, segment + index, c0, cn) for index in range(held)]
        # one DMA transpose, or one prologue, of many partitions; else matmuls of a row tile wait for its own load alone
        joins = is_transposed(self.geometry) or self.operands.prologue is not None
        return self.schedule.x_runs(tile, lanes, k_tile, joins)

    def _load_rows(self, x_sbuf, lane, first, channels, low, high):
        """Load rows low .. high-1 of a lane, with zeros in its elements outside x."""
        if low == 0:
            self._clear(x_sbuf, lane, first, channels[1])
        (z, d0, dn), rows, columns = lane[0].inside(), lane[1], lane[2]
        if dn > 0 and low < rows.xn:
            dst = x_sbuf[first : first + channels[1], z : z + dn, low : min(high, rows.xn), 0 : columns.xn]
            place, geometry = (channels[0], d0, rows.x0 + low, columns.x0), self.geometry
            reads_pixels = geometry.itemsize == geometry.hbm_itemsize
            load_x(dst, self.operands, geometry, place, ledger=self.ledger, transposes=reads_pixels, row=first)

    def _clear(self, x_sbuf, lane, first, cn):
        """Zero the elements of a lane outside x."""
        for axis, part in enumerate(lane):
            held, _, count = part.inside()
            held = min(part.xn, held)
            for begin, end in ((0, held), (min(part.xn, held + count), part.xn)):
                places = [(0, other.xn) for other in lane]
                places[axis] = (begin, end - begin)
                if min(size for _, size in places) > 0:
                    zeros = spaced(x_sbuf, (first, cn), *places)
                    nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)


class StackedInputs(nl.NKIObject):
    """X [(d, b, c), planes, blocks, columns] of K packing for each step, with zeros outside x, in a circular buffer,
    planes below each other; rest: those of the channels that have an X of their own, or None."""

    def __init__(self, operands, geometry, schedule, steps, ledger, stack=None):
        residents, which, stack = schedule.residents, int(stack is not None), stack or schedule.stack
        given = operands, geometry, schedule, steps, ledger
        self.rest = None if stack.rest is None else StackedInputs(*given, stack.rest)
        self.prologue = None if operands.prologue is None else StackedPrologue(operands, stack, ledger)
        #: (step, arguments of the prologue's `clear`)
        self.filled = []
        #: (channels, lane) of each step
        self.loads = []
        for b, i in steps:
            one = residents[b].tiles[0][0]
            channels = (one.c0, one.cn) if stack.diagonal else (stack.c0, stack.geometry.C)
            self.loads.append((channels, schedule.stack.lanes_of(residents[b].items[i][0])[which][1]))
        self.operands, self.geometry, self.stack, self.issued = operands, geometry, stack, 0
        self.height = max(rows.xn for _, (_, rows, _) in self.loads)
        extents = max(1, *[planes.xn for _, (planes, _, _) in self.loads]) * self.height, stack.width
        self.tiles = tiles_in_turn(min(stack.ring, len(self.loads)), (stack.parts, *extents), operands.x_dtype)

    def load(self, count):
        """Issue loads until there are `count`, or all; `clear` must precede the first.

        Each load of an output tile waits for columns that are zeroed although x is loaded there; otherwise it would
        overtake more urgent loads: the second output tile waits for the triggers of the filters, others wait for the
        output tile before.
        """
        stack = self.stack
        while self.issued < min(count, len(self.loads)):
            index, (channels, lane) = self.issued, self.loads[self.issued]
            if index > 0:
                hold = stack.hold // (lane[0].bn * lane[1].xn) if index == 1 else 0
                self.clear(index, 0 if stack.diagonal else 1 + hold)
            for first, end, regions in stack.x_pieces(lane, index == 0):
                for region in regions:
                    self._load_region(self._tile(index), channels, lane, region)
                if self.prologue is not None:
                    place = self._x(index), lane, first, end
                    self.prologue.apply(*place)
                    self.filled.append((index, place))
                    self.copy_held(0)
            self.issued += 1
            if self.rest is not None:
                self.rest.load(self.issued)

    def take(self, index):
        """The X of a step, by K tile."""
        return [self._x(index)] if self.rest is None else [self._x(index), self.rest._x(index)]

    def _x(self, index):
        """X of a step."""
        tile, (planes, rows, columns) = self._tile(index), self.loads[index][1]
        whole = tile.reshape((tile.shape[0], tile.shape[1] // self.height, self.height, columns.xn))
        return whole[0 : tile.shape[0], 0 : max(1, planes.xn), 0 : rows.xn, 0 : columns.xn]

    def copy_held(self, step):
        """Zero the surroundings of x, which a prologue has filled, in the loaded steps up to this one: not earlier, as
        evacuations would wait for loads."""
        while self.prologue is not None and self.filled and self.filled[0][0] <= step:
            self.prologue.clear(*self.filled.pop(0)[1])

    def clear(self, index, hold):
        """Zero blocks that x does not fill on all partitions, and `hold` columns next to them, unless the buffer has
        these zeros already; in the first tile before all else."""
        if index == 0 and self.rest is not None:
            self.rest.clear(index, hold)
        stack, count, lane = self.stack, len(self.tiles), self.loads[index][1]
        missing = misses_planes(self.geometry, *planes_of(lane[0]))
        if index >= count and not missing:
            planes, rows, columns = self.loads[index - count][1]
            if (planes.xn, rows, columns) == (lane[0].xn, lane[1], lane[2]):
                return
        engine = nisa.engine.vector if index == 0 else nisa.engine.gpsimd
        if missing:
            nisa.memset(dst=self._tile(index), value=0.0, engine=engine)
            return
        x_sbuf, m0, width = self._x(index), lane[1].x0, stack.width
        spans = stack.spans(lane[2].x0)
        left, right = max(one[0] for one in spans), min(one[1] for one in spans)
        mn = x_sbuf.shape[2]
        first, last = (m - m0 for m in stack.whole_blocks(m0, mn))
        clear_window(x_sbuf, 0, first, 0, width, engine)
        clear_window(x_sbuf, last, mn, 0, width, engine)
        clear_window(x_sbuf, first, last, max(left, right), width, engine)
        clear_window(x_sbuf, first, last, 0, min(width, left + hold), engine)

    def _tile(self, index):
        return self.tiles[index % len(self.tiles)]

    def _load_region(self, tile, channels, lane, region):
        """Load an XBox of some channels. An access pattern has five dims, so that planes of several taps and channels
        take a DMA for each plane or row."""
        geometry, stack, by_h = self.geometry, self.stack, self.geometry.x_strides[2]
        planes_sbuf = tile.reshape((tile.shape[0], tile.shape[1] // self.height, self.height, tile.shape[2]))
        planes, counts = plane_span(lane[0]), (region.mn, region.high - region.low)
        first = (region.m * stack.G + region.b - stack.top, region.low + region.moved)
        for place, pattern, offset, framed in regions_of_x(geometry, channels, planes, first, counts):
            ahead, (by_plane, zn) = [one for one in pattern[:-3] if one[1] > 1] or pattern[:1], pattern[-3]
            # if planes read x alike: all channels and rows together; else a row at a time
            together = math.prod(count for _, count in ahead) == channels[1]
            by_planes = together and len(ahead) > 1 and zn <= region.bn
            zn, bn = 1 if by_planes else zn, region.bn if together and (by_planes or len(ahead) == 1) else 1
            rows = [[by_h, bn]] if bn > 1 else []
            own = [*ahead, *rows] if stack.diagonal else [*rows, *ahead]
            own += [[by_plane, zn]] if zn > 1 else []
            own += [[stack.G * by_h, region.mn], [geometry.x_strides[3], counts[1]]]
            for z, b in itertools.product(range(0, pattern[-3][1], zn), range(0, region.bn, bn)):
                part, at = (region.d * stack.B + region.b + b) * channels[1] + place[0], place[1] + z
                into, at = (planes_sbuf, [at]) if zn > 1 else (planes_sbuf[:, at], [])
                there = (part, *at, region.m - lane[1].x0, region.low)
                load_region_of_x(into, self.operands, there, own, offset + z * by_plane + b * by_h, framed)


class StackedPrologue(nl.NKIObject):
    """A prologue, and its masks, which are made at their first use.

    x is in other columns of X [(d, b, c), ..] for each shift d, and only on some rows b of blocks at the image's edges.
    As engines begin at few partitions, elements outside x pass the prologue too, and are then multiplied by 0: strips
    of columns by a tile, rows of a block by a number for each partition.
    """

    def __init__(self, operands, stack, ledger):
        self.on_x, self.dtype, self.stack, self.ledger = operands.prologue, operands.x_dtype, stack, ledger
        spans = [(low, high) for low, high, _ in stack.spans(0) if low < high] or [(0, 0)]
        self.low, self.high = min(low for low, _ in spans), max(high for _, high in spans)
        #: columns in which only some shifts have x
        lows, highs = max(low for low, _ in spans), min(high for _, high in spans)
        every_has = len(spans) == stack.D and lows < highs
        self.strips = [(self.low, lows), (highs, self.high)] if every_has else [(self.low, self.high)]
        self.strips = [one for one in self.strips if one[0] < one[1]]
        self.masks = {}

    def apply(self, x_sbuf, lane, first, end):
        """Apply the prologue to loaded blocks first .. end - 1 of X [(d, b, c), planes, blocks, columns]."""
        stack, m0, (d0, dn) = self.stack, lane[1].x0, plane_span(lane[0])
        held = self.blocks_held(first, end)
        if held and dn > 0:
            whole = x_sbuf[:, 0:dn, held[0] - m0 : held[-1] + 1 - m0, self.low : self.high]
            self.on_x.apply_once(whole, whole, 0, 0, d0, self.ledger, stack.D * stack.B)

    def blocks_held(self, first, end):
        """The blocks among first .. end - 1 with rows of x; empty if no column has x."""
        some = range(first, end) if self.low < self.high else ()
        return [m for m in some if self.stack.rows_held(m)[1] > 0]

    def clear(self, x_sbuf, lane, first, end):
        """Zero the elements outside x again, in the same blocks."""
        stack, m0, (_, dn), parts = self.stack, lane[1].x0, plane_span(lane[0]), x_sbuf.shape[0]
        held = self.blocks_held(first, end)
        if not held or dn == 0:
            return
        for low, high in self.strips:
            strip = x_sbuf[0:parts, 0:dn, held[0] - m0 : held[-1] + 1 - m0, low:high]
            mask = self.mask_of_columns(low, high).expand_dim(1).broadcast(1, len(held))
            for plane in range(dn):
                own = strip[0:parts, plane]
                nisa.tensor_tensor(dst=own, data1=own, data2=mask, op=nl.multiply, engine=nisa.engine.vector)
                book_vector(self.ledger, size_of(own.shape[1:]))
        for m in held:
            if stack.rows_held(m)[1] < stack.B:
                block = x_sbuf[0:parts, 0:dn, m - m0, self.low : self.high]
                nisa.tensor_scalar(
                    dst=block, data=block, op0=nl.multiply, operand0=self.mask_of_rows(*stack.rows_held(m)),
                    engine=nisa.engine.vector,
                )  # fmt: skip
                book_vector(self.ledger, size_of(block.shape[1:]))

    def mask_of_columns(self, low, high):
        """A mask [(d, b, c), columns]: 1 if columns low .. high - 1 are in x at shift d, else 0."""
        stack, fills = self.stack, []
        for d in reversed(range(stack.D)):
            (begin, end, _), count = stack.spans(0)[d], (d + 1) * stack.B * stack.geometry.C
            fills += [(count, 0, high - low, 0.0), (count, max(begin, low) - low, min(end, high) - low, 1.0)]
        return self.mask((low, high), self.dtype, high - low, fills)

    def mask_of_rows(self, b, bn):
        """A mask [(d, b, c), 1] in fp32: 1 for rows b .. b + bn - 1, else 0."""
        B, C = self.stack.B, self.stack.geometry.C
        rows = [(end, value) for begin, end, value in ((b + bn, B, 0.0), (b, b + bn, 1.0), (0, b, 0.0)) if begin < end]
        fills = [((d * B + end) * C, 0, 1, value) for d in reversed(range(self.stack.D)) for end, value in rows]
        return self.mask((b, bn, "rows"), nl.float32, 1, fills)

    def mask(self, key, dtype, width, fills):
        """A mask [(d, b, c), width] of fills (partitions from 0 on, first column, end, number), one over the other."""
        if key not in self.masks:
            self.masks[key] = nl.ndarray((self.stack.parts, width), dtype=dtype, buffer=nl.sbuf)
            for count, begin, end, number in fills:
                if begin < end:
                    nisa.memset(dst=self.masks[key][0:count, begin:end], value=number, engine=nisa.engine.gpsimd)
        return self.masks[key]
