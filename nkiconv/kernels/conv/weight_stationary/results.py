"""Results of output tiles on their way out, residuals and biases in."""

import itertools

from ...._nki import nisa, nl
from ....schedules.block_axes import planes_of
from ....schedules.block_schedule import places_of
from ....schedules.tiles import slot_for
from ....schedules.weight_stationary import pages
from ..._engines import START_WORK, copy_work
from ..call import scale_residual
from ..filter_feed import tiles_in_turn
from ..regions import (
    block_pieces,
    load_bias_as,
    load_region,
    load_regions,
    offset_at,
    pattern_of,
    region_at,
    residual_of,
    store_regions,
)
from ..sums import spaced


def load_bias(operands, schedule, tile):
    """Biases of an M tile, fp32 at the partitions of what leaves PSUM together: [(row or segment, k), row tile]; None
    without any."""
    if operands.bias == None:
        return None
    if schedule.shift != None:
        K = tile[0].kn // (schedule.shift.U * schedule.shift.V)
        return load_bias_as(operands.bias, (tile[0].kn, 1), [[0, tile[0].kn // K], [1, K], [1, 1]], 0)
    times, slot = schedule.together_rows, schedule.slot
    if not schedule.gathers:
        times, slot = schedule.segments, tile[0].kn
    bias_sbuf = nl.ndarray((times * slot, len(tile)), dtype=nl.float32, buffer=nl.sbuf)
    if schedule.gathers:
        nisa.memset(dst=bias_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for index, one in enumerate(tile):
        for which in range(times):
            load_region(bias_sbuf, operands.bias, (which * slot, index), [[1, one.kn], [1, 1]], one.k0)
    return bias_sbuf


def load_bias_rows(bias_hbm, m_tiles):
    """Of K packing rows [M tiles, k] fp32 of up to 128 M tiles each; none without a bias.

    A DMA of single numbers takes an engine 55 ns for each, so that biases, one a partition, come as rows, and are
    transposed on the array."""
    found = []
    for first in range(0, len(m_tiles) if bias_hbm != None else 0, nl.tile_size.pmax):
        some = m_tiles[first : first + nl.tile_size.pmax]
        sizes = [one[1] for one in some]
        rows_sbuf = nl.ndarray((len(some), max(sizes)), dtype=nl.float32, buffer=nl.sbuf)
        if min(sizes) < max(sizes):
            nisa.memset(dst=rows_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        # M tiles of as many channels by one DMA
        at = 0
        while at < len(some):
            together = 1
            while at + together < len(some) and sizes[at + together] == sizes[at]:
                together += 1
            load_region(rows_sbuf, bias_hbm, (at, 0), [[sizes[at], together], [1, sizes[at]]], some[at][0])
            at += together
        found.append(rows_sbuf)
    return found


def transpose_biases(rows, stack, tiles):
    """[(u, k) or (k, u), 1] fp32 by M tile, None without a bias."""
    found, axis = [None] * (0 if rows else len(tiles)), 2 if stack.diagonal else 1
    for rows_sbuf in rows:
        n, by_size = rows_sbuf.shape[0], {}
        for index, (one,) in enumerate(tiles[len(found) : len(found) + n]):
            size = one.kn
            if size not in by_size:
                by_size[size] = nl.ndarray((size, n), dtype=nl.float32, buffer=nl.sbuf)
                biases_psum = nl.ndarray((size, n), dtype=nl.float32, buffer=nl.psum)
                outputs = rows_sbuf[0:n, 0 : size // stack.U].expand_dim(axis).broadcast(axis, stack.U)
                nisa.nc_transpose(dst=biases_psum, data=outputs, engine=nisa.engine.tensor)
                nisa.tensor_copy(dst=by_size[size], src=biases_psum, engine=nisa.engine.vector)
            found.append(by_size[size][0:size, index : index + 1])
    return dict(zip(tiles, found, strict=True))


class Results(nl.NKIObject):
    """Tiles of results, and of residuals, of an M tile for an output tile.

    Of groups a row tile's rows of a block leave PSUM to as many neighbouring partitions. One of them is where its
    results belong, the others are copied there; row tiles whose evacuations overlap take different tiles. Of transposed
    convolutions results of several output tiles or M tiles are packed along the partitions, as DMA has more
    engines for more of these.
    """

    def __init__(self, operands, geometry, schedule, ledger):
        self.operands, self.geometry, self.schedule, self.ledger = operands, geometry, schedule, ledger
        self.ys, self.residuals, self.base, self.count = [], [], 0, 0

    def start(self, tile, lanes):
        """Room for results, and residuals on their way."""
        schedule, most = self.schedule, nl.tile_size.pmax
        if schedule.gathers:
            extents = [max(lane[axis].yn for lane in lanes) for axis in range(3)]
            count = pages(schedule) * schedule.together_rows
            self.ys = tiles_in_turn(count, (most, *extents), self.operands.y.dtype)
            shape = (schedule.together_rows * schedule.slot, extents[0], max(lane[1].bn for lane in lanes), extents[2])
            regions = [self._residual_regions(one, lanes[one.lane]) for one in tile]
            self.residuals = [residual_of(self.operands, shape, one, True) for one in regions]
            return
        place = self.count % (most // schedule.slot)
        if place == 0:
            self.ys = tiles_in_turn(
                1, (most // schedule.slot * schedule.slot, *schedule.extents), self.operands.y.dtype
            )
        self.base, self.count = place * schedule.slot, self.count + 1
        whole = tuple((0, part.bn) for part in lanes[0])
        shape = (schedule.segments * tile[0].kn, *(part.yn for part in lanes[0]))
        regions = self._regions(tile[0], lanes, whole, 0)
        self.residuals = [residual_of(self.operands, shape, regions, schedule.segments > 1)]

    def place(self, row_tile):
        """(tile, first partition that a row tile's sums go to, which row of a block belongs there) of its results."""
        schedule = self.schedule
        if not schedule.gathers:
            return self.ys[0], self.base, 0
        rows, each = schedule.together_rows, schedule.together_rows * schedule.slot
        column = row_tile.first // schedule.rows * schedule.slot
        page, first = column // nl.tile_size.pmax, column % nl.tile_size.pmax
        own = first % each // schedule.slot
        return self.ys[page * rows + own], first // each * each, own

    def residual_at(self, index, size, places, block):
        """The residual of the row tile `index` at places (of gathered rows: at blocks from `block` of its lane on)."""
        residual_sbuf = self.residuals[index]
        if residual_sbuf == None:
            return None
        planes, (row, count, step), columns = places
        return spaced(residual_sbuf, (0, size), planes, (row + block, count, step), columns)

    def finish(self, tile, lanes, blocks, last):
        """What is to be done once the results of some blocks are there: gathered rows leave together with all of the
        output tile's, but where nothing would hide that."""
        if self.schedule.gathers:
            for row_tile in tile:
                self._gather(row_tile, lanes[row_tile.lane], blocks)
        if last or not self.schedule.gathers:
            self._store(tile, lanes, blocks)

    def end(self, tile, lanes, last):
        """The same of an output tile."""
        if self.schedule.gathers and not last:
            self._store(tile, lanes, tuple((0, max(lane[axis].bn for lane in lanes)) for axis in range(3)))

    def _gather(self, row_tile, lane, blocks):
        """Rows of a row tile's blocks to the partitions and places where they belong."""
        y_sbuf, base, own = self.place(row_tile)
        rows, slot = self.schedule.together_rows, self.schedule.slot
        (z, zn), _, (q, qn) = places_of(lane, blocks)
        m, part = blocks[1][0], lane[1]
        for row in range(rows):
            there = -(-(part.axis.out - row) // rows) - part.b0 - m
            count = min(blocks[1][1], part.bn - m, there)
            if row != own and zn * count * qn > 0:
                self.ledger.vector += START_WORK + zn * count * qn * copy_work(y_sbuf.dtype)
                to, source = base + own * slot, base + row * slot
                nisa.tensor_copy(
                    dst=spaced(y_sbuf, (to, row_tile.kn), (z, zn, 1), (m * rows + row, count, rows), (q, qn, 1)),
                    src=spaced(y_sbuf, (source, row_tile.kn), (z, zn, 1), (m * rows + own, count, rows), (q, qn, 1)),
                    engine=nisa.engine.vector,
                )

    def _store(self, tile, lanes, blocks):
        for row_tile in tile if self.schedule.gathers else tile[:1]:
            y_sbuf, base, own = self.place(row_tile)
            some = lanes[row_tile.lane : row_tile.lane + 1] if self.schedule.gathers else lanes
            first = base + own * self.schedule.slot
            store_regions(self.operands.y, y_sbuf, self._regions(row_tile, some, blocks, first))

    def _regions(self, row_tile, lanes, blocks, first):
        """Regions of a tensor of results for some blocks of lanes, those that exist, from a partition on."""
        found = []
        for index, lane in enumerate(lanes):
            (z, z0, zn), (p, p0, pn), (q, q0, qn) = (
                part.existing(places) for part, places in zip(lane, places_of(lane, blocks), strict=True)
            )
            if zn > 0 and pn > 0 and qn > 0:
                place, there = (first + index * row_tile.kn, z, p, q), (row_tile.k0, z0, p0, q0)
                found.append(region_at(self.geometry.y_strides, place, there, (row_tile.kn, zn, pn, qn)))
        return found

    def _residual_regions(self, row_tile, lane):
        """Regions of the residual of a row tile, [(row, k), planes, blocks, columns]."""
        planes, rows, columns = lane
        together, slot, strides = self.schedule.together_rows, self.schedule.slot, self.geometry.y_strides
        found = []
        for row in range(together):
            count = min(rows.bn, -(-(rows.axis.out - row) // together) - rows.b0)
            if count > 0:
                pattern = pattern_of(strides, (row_tile.kn, planes.qn, count, columns.qn))
                pattern[2][0] = together * strides[2]
                there = (row_tile.k0, planes.image * planes.axis.out + planes.q0, rows.b0 * together + row, 0)
                found.append(((row * slot, 0, 0, 0), pattern, offset_at(strides, there)))
        return found


def results_of(operands, geometry, schedule, steps, ledger):
    """Tiles of results of a Schedule."""
    if schedule.stack != None:
        return StackedResults(operands, geometry, schedule, steps)
    own = PackedResults if schedule.shift != None else Results
    return own(operands, geometry, schedule, ledger)


class PackedResults(nl.NKIObject):
    """The same of M packing: a row tile's results [(u, k), planes, blocks, columns], on partitions that rotate, as a
    DMA engine serves eight of them."""

    def __init__(self, operands, geometry, schedule, ledger):
        self.operands, self.geometry, self.schedule = operands, geometry, schedule
        self.ys, self.residuals, self.count = [], [], 0

    def start(self, tile, lanes):
        """Room for results, and residuals on their way."""
        self.ys, self.residuals, slot = [], [], self.schedule.slot
        shift = self.schedule.shift
        volume = shift.depth.out // shift.depth.images
        for one in tile:
            z, p, q = lanes[one.lane]
            base = self.count % (nl.tile_size.pmax // slot) * slot
            self.count += 1
            shape = (base + one.kn, z.yn, p.bn, q.yn)
            self.ys.append((nl.ndarray(shape, dtype=self.operands.y.dtype, buffer=nl.sbuf), base))
            ragged = (p.b0 + p.bn) * shift.U > p.axis.out or volume % shift.V > 0
            regions = self._regions(lanes[one.lane], (0, z.yn), (0, p.bn), (0, q.yn), 0)
            self.residuals.append(residual_of(self.operands, (one.kn, *shape[1:]), regions, ragged))

    def place(self, row_tile):
        """(tile, first partition, 0) of a row tile's results."""
        y_sbuf, base = self.ys[row_tile.lane]
        return y_sbuf, base, 0

    def finish(self, tile, lanes, blocks, last):
        """Store some blocks: whole rows together, but where nothing would hide that."""
        tiles = self.schedule.shift.tiles
        for one in tile:
            lane = lanes[one.lane]
            z, m = lane[0].places(blocks[0]), (blocks[1][0], min(blocks[1][1], lane[1].bn - blocks[1][0]))
            q = lane[2].places(blocks[2]) if last else (0, lane[2].yn)
            if (last or blocks[2][0] == tiles[-1][2]) and min(z[1], m[1]) > 0:
                y_sbuf, base = self.ys[one.lane]
                store_regions(self.operands.y, y_sbuf, self._regions(lane, z, m, q, base))

    def end(self, tile, lanes, last):
        """Nothing is left."""

    def _regions(self, lane, planes, blocks, columns, base):
        """Regions of (first, how many) planes, blocks and columns of a lane, as far as y has their rows."""
        geometry, shift = self.geometry, self.schedule.shift
        by_k, by_n, by_p, by_q = geometry.y_strides[:4]
        K, U, V = geometry.K // shift.V, shift.U, shift.V
        each, found = geometry.planes.out // geometry.planes.images, []
        z0 = lane[0].image * lane[0].axis.out + lane[0].q0 + planes[0]
        for z, zn, _, vn, _ in block_pieces(shift.depth.out // shift.depth.images, V, 1, z0 % each, planes[1]):
            for j, jn, _, un, _ in block_pieces(geometry.rows.out, U, 1, lane[1].b0 + blocks[0], blocks[1]):
                leading, times = ([by_p, un], 1) if V == 1 else ([by_n // V, vn], un)
                for u in range(times):
                    pattern = [leading, [by_k, K], [by_n, zn], [U * by_p, jn], [by_q, columns[1]]]
                    there = (0, z0 + z, (lane[1].b0 + blocks[0] + j) * U + u, columns[0])
                    place = (base + u * geometry.K, planes[0] + z, blocks[0] + j, columns[0])
                    found.append((place, pattern, offset_at(geometry.y_strides, there)))
        return found


class StackedResults(nl.NKIObject):
    """The same of K packing: an M tile's results [(u, k), planes, blocks of V rows, columns] of an output tile. What is
    stored together is on partitions that rotate, as a DMA engine serves eight of them."""

    def __init__(self, operands, geometry, schedule, steps):
        self.operands, self.geometry, self.stack = operands, geometry, schedule.stack
        #: (row tile, lane) of all M tiles of the steps
        self.wanted = [
            (tile[0], schedule.residents[b].items[i][0]) for b, i in steps for tile in schedule.residents[b].tiles
        ]
        planes, blocks = (max((lane[axis].bn for _, lane in self.wanted), default=1) for axis in range(2))
        shape = (self.stack.U * self.stack.kn, planes, blocks, self.stack.V, self.stack.row.out)
        count = 0 if operands.residual == None else self.stack.residual_depth
        self.tiles = tiles_in_turn(count, shape, operands.residual.dtype if count > 0 else None)
        self.loaded, self.count = [], 0

    def load(self, count):
        """Load residuals until there are so many, or all; none without one."""
        while len(self.loaded) < min(count, len(self.wanted)) and len(self.tiles) > 0:
            (one, lane), tile = self.wanted[len(self.loaded)], self.tiles[len(self.loaded) % len(self.tiles)]
            (z, p, q), parts = lane, one.kn
            residual_sbuf = tile[0:parts, 0 : z.bn, 0 : p.bn, 0 : self.stack.V, 0 : q.yn]
            if (p.b0 + p.bn) * self.stack.U * self.stack.V > self.geometry.rows.out:
                last_sbuf = residual_sbuf[0:parts, 0 : z.bn, p.bn - 1]
                nisa.memset(dst=last_sbuf, value=0.0, engine=nisa.engine.gpsimd)
            for dst_sbuf, region in self._regions(residual_sbuf, one, lane, (0, p.bn), 0):
                load_regions(dst_sbuf, self.operands.residual, [region])
            self.loaded.append(rows_of_blocks(residual_sbuf))

    def start(self, tile, lanes):
        """Room for results, and residuals on their way."""
        self.load(self.count + len(self.tiles))
        self.residual_sbuf = scale_residual(self.loaded[self.count], self.operands.beta) if self.tiles else None
        (z, p, q), slot = lanes[0], slot_for(tile[0].kn)
        slots = nl.tile_size.pmax // slot
        shape = (nl.tile_size.pmax if slots > 1 else tile[0].kn, z.bn, p.bn, self.stack.V, q.yn)
        self.y_sbuf = nl.ndarray(shape, dtype=self.operands.y.dtype, buffer=nl.sbuf)
        first = self.count * sum(bank.done for bank in self.stack.banks(lanes, tile[0].k0))
        self.bases = (index % slots * slot for index in itertools.count(first))
        self.base, self.count = next(self.bases), self.count + 1

    def place(self, row_tile):
        """(tile, first partition, 0) of a row tile's results."""
        return rows_of_blocks(self.y_sbuf), self.base, 0

    def residual_at(self, index, size, places, block):
        """The residual at places."""
        return None if self.residual_sbuf == None else spaced(self.residual_sbuf, (0, size), *places)

    def finish(self, tile, lanes, blocks, last):
        """Store some blocks."""
        for source_sbuf, region in self._regions(self.y_sbuf, tile[0], lanes[0], blocks[1], self.base):
            store_regions(self.operands.y, source_sbuf, [region])
        self.base = next(self.bases)

    def end(self, tile, lanes, last):
        """Nothing is left."""

    def _regions(self, tile_sbuf, row_tile, lane, part, base):
        """(view of a tile, region) of blocks (first, how many) of a lane, as far as there are rows, on the partitions
        from `base` on: as few as an access pattern has dims for."""
        (z, p, q), (j, jn), (parts, planes, most, V, _) = lane, part, tile_sbuf.shape
        kn, U, (by_k, by_n, by_p, by_q) = row_tile.kn // self.stack.U, self.stack.U, self.geometry.y_strides[:4]
        for first, count, u, un, height in block_pieces(self.geometry.rows.out, U, V, p.b0 + j, jn):
            outputs = [[V * by_p, un], [by_k, kn]]
            if self.stack.diagonal:
                outputs = [[by_k, kn], [V * by_p, un]]
            blocks, columns, own = [U * V * by_p, count], [by_q, q.yn], (base + u * kn, j + first, 0, 0)
            there = row_tile.k0, planes_of(z)[0], (p.b0 + j + first) * U * V + u * V, q.q0
            if V == 1:
                pattern, at = [*outputs, [by_n, z.bn], blocks, columns], (own[0], 0, own[1], 0)
                view_sbuf = tile_sbuf[0:parts, 0:planes, 0:most, 0, 0 : q.yn]
                yield view_sbuf, (at, pattern, offset_at(self.geometry.y_strides, there))
                continue
            for n in range(z.bn):
                offset = offset_at(self.geometry.y_strides, there) + n * by_n
                yield tile_sbuf[0:parts, n], (own, [*outputs, blocks, [by_p, height], columns], offset)


def rows_of_blocks(tile):
    """[partitions, planes, rows, columns] of a tile [partitions, planes, blocks, rows of each, columns]."""
    parts, planes, blocks, rows, columns = tile.shape
    return tile.reshape((parts, planes, blocks * rows, columns))
