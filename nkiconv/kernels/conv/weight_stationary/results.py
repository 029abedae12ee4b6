"""Results of output tiles and their stores; loads of residuals and biases; statistics of y with several outputs of a
block on the partitions, (u, k).

With M packing and K packing u is a row of y; with groups it is a row of a block, one slot of partitions after the
other.
"""

import itertools
from dataclasses import dataclass
from functools import partial

from ...._nki import nisa, nl
from ....schedules.block_axes import planes_of
from ....schedules.block_schedule import banks_of, blocks_in, counted_outputs, output_in, places_of, size_of
from ....schedules.tiles import div_ceil
from ..._engines import copy_by_vector
from ..._statistics import OutputStatistics
from ..call import scale_residual
from ..filter_feed import tiles_in_turn
from ..regions import (
    block_pieces,
    clear_window,
    load_region,
    load_regions,
    offset_at,
    region_at,
    residual_of,
    store_regions,
)
from ..sums import spaced


class Biases(nl.NKIObject):
    """Biases of row tiles, fp32 on the partitions of outputs that are evacuated together.

    A DMA takes an engine 55 ns for each single number, so biases are loaded as rows [row tile, k], up to 128 row tiles
    each, and the Tensor Engine transposes all with equally many channels at once.
    """

    def __init__(self, bias_hbm, schedule, row_tiles):
        self.bias_hbm, self.schedule, self.rows, self.made = bias_hbm, schedule, [], {}
        pack = schedule.pack
        #: outputs with the same bias; channels of a row tile, by the first of them
        self.times = schedule.together_rows * schedule.segments if pack is None else pack.U * pack.Z
        self.channels = {one.k0: one.kn if pack is None else one.kn // self.times for one in row_tiles}
        self.order = sorted(self.channels)

    def load(self):
        """Load all rows; for groups with zeros after the channels, as their slots are not full."""
        sizes = [(k0, self.channels[k0]) for k0 in self.order]
        for first in range(0, len(sizes) if self.bias_hbm != None else 0, nl.tile_size.pmax):
            some = sizes[first : first + nl.tile_size.pmax]
            width = self.schedule.slot if self.schedule.gathers else max(kn for _, kn in some)
            rows_sbuf, at = nl.ndarray((len(some), width), dtype=nl.float32, buffer=nl.sbuf), 0
            if min(kn for _, kn in some) < width:
                nisa.memset(dst=rows_sbuf, value=0.0, engine=nisa.engine.gpsimd)
            for kn, alike in itertools.groupby(some, key=lambda one: one[1]):  # by one DMA
                count = len([*alike])
                load_region(rows_sbuf, self.bias_hbm, (at, 0), [[kn, count], [1, kn]], some[at][0])
                at += count
            self.rows.append(rows_sbuf)

    def of(self, row_tile):
        """Biases [(output, k), 1] of a row tile, or None."""
        if len(self.rows) == 0:
            return None
        part, column = divmod(self.order.index(row_tile.k0), nl.tile_size.pmax)
        rows_sbuf = self.rows[part]
        kn, (n, width) = self.channels[row_tile.k0], rows_sbuf.shape
        key = part, width if self.schedule.gathers else kn
        size = self.times * key[1]
        if key not in self.made:
            axis = 2 if self.schedule.stack is not None and self.schedule.stack.diagonal else 1
            outputs = rows_sbuf[:, 0 : key[1]].expand_dim(axis).broadcast(axis, self.times)
            biases_psum = nl.ndarray((size, n), dtype=nl.float32, buffer=nl.psum)
            self.made[key] = nl.ndarray((size, n), dtype=nl.float32, buffer=nl.sbuf)
            nisa.nc_transpose(dst=biases_psum, data=outputs, engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=self.made[key], src=biases_psum, engine=nisa.engine.vector)
        return self.made[key][0:size, column : column + 1]


class Results(nl.NKIObject):
    """Tiles of results, and of residuals, of an M tile for an output tile.

    Groups: the rows of a block are evacuated together to neighbouring slots of partitions. One slot is where the row
    tile's results belong; the other rows are copied there. Row tiles whose evacuations overlap use different tiles.
    Transposed convolutions: results of several output tiles or M tiles are packed along the partitions, as more
    partitions use more DMA engines.
    """

    #: whether channels of y are neighbours in HBM
    by_pixels = False

    def __init__(self, operands, geometry, schedule, ledger):
        self.operands, self.geometry, self.schedule, self.ledger = operands, geometry, schedule, ledger
        self.ys, self.residuals, self.base, self.count = [], [], 0, 0
        self.slots = nl.tile_size.pmax // schedule.slot

    def start(self, tile, lanes):
        """Allocate results of an M tile, and load its residuals."""
        schedule, self.residuals = self.schedule, self.load_residuals(tile, lanes)
        if schedule.gathers:
            shape = nl.tile_size.pmax, *(max(lane[axis].yn for lane in lanes) for axis in range(3))
            self.ys = tiles_in_turn(schedule.pages * schedule.together_rows, shape, self.operands.y.dtype)
            return
        if self.count % self.slots == 0:
            self.ys = tiles_in_turn(1, (self.slots * schedule.slot, *schedule.extents), self.operands.y.dtype)
        self.base, self.count = self.count % self.slots * schedule.slot, self.count + 1

    def load_residuals(self, tile, lanes):
        """Load residuals by row tile, gathered rows as [(row, k), planes, blocks, columns]; None without one."""
        schedule = self.schedule
        z, p, q = (max(lane[axis].yn for lane in lanes) for axis in range(3))
        if schedule.gathers:
            shape = (schedule.together_rows * schedule.slot, z, max(lane[1].bn for lane in lanes), q)
            regions = [self._residual_regions(one, lanes[one.lane]) for one in tile]
            return [residual_of(self.operands, shape, one, slice(None), self.by_pixels) for one in regions]
        regions = self._regions(tile[0], lanes, tuple((0, part.bn) for part in lanes[0]), 0)
        shape = (schedule.segments * tile[0].kn, z, p, q)
        return [residual_of(self.operands, shape, regions, slice(None) if schedule.segments > 1 else None)]

    def place(self, index, row_tile):
        """(tile of results, first partition of a row tile's sums, the row of a block that belongs there)."""
        schedule = self.schedule
        if not schedule.gathers:
            return self.ys[0], self.base, 0
        rows, each = schedule.together_rows, schedule.together_rows * schedule.slot
        page, first = divmod(row_tile.first // schedule.rows * schedule.slot, nl.tile_size.pmax)
        own = first % each // schedule.slot
        return self.ys[page * rows + own], first // each * each, own

    def finish(self, tile, lanes, blocks, last):
        """Finish blocks whose results are complete: gather their rows, and store them, but gathered rows with the whole
        output tile unless no work would hide that."""
        if self.schedule.gathers:
            for row_tile in tile:
                self._gather(row_tile, lanes[row_tile.lane], blocks)
        if last or not self.schedule.gathers:
            self.store(tile, lanes, blocks)

    def _gather(self, row_tile, lane, blocks):
        """Copy rows of a row tile's blocks to their partitions and places."""
        y_sbuf, base, own = self.place(0, row_tile)
        rows, slot = self.schedule.together_rows, self.schedule.slot
        (z, zn), _, (q, qn) = places_of(lane, blocks)
        m, part = blocks[1][0], lane[1]
        for row in range(rows):
            there = div_ceil(part.axis.out - row, rows) - part.b0 - m
            count = min(blocks[1][1], part.bn - m, there)
            if row != own and zn * count * qn > 0:
                to, source = (base + own * slot, row_tile.kn), (base + row * slot, row_tile.kn)
                dst = spaced(y_sbuf, to, (z, zn), (m * rows + row, count, rows), (q, qn))
                src = spaced(y_sbuf, source, (z, zn), (m * rows + own, count, rows), (q, qn))
                copy_by_vector(dst, src, self.ledger)

    def store(self, tile, lanes, blocks):
        """Store some blocks of an M tile's lanes."""
        for row_tile in tile if self.schedule.gathers else tile[:1]:
            y_sbuf, base, own = self.place(0, row_tile)
            some = lanes[row_tile.lane : row_tile.lane + 1] if self.schedule.gathers else lanes
            first = base + own * self.schedule.slot
            store_regions(self.operands.y, y_sbuf, self._regions(row_tile, some, blocks, first))

    def end(self):
        """Store what waits after the last output tile: nothing."""

    def _regions(self, row_tile, lanes, blocks, first):
        """Regions of a tensor of results for the outputs inside y of blocks of lanes, from partition `first` on."""
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
            count = min(rows.bn, div_ceil(rows.axis.out - row, together) - rows.b0)
            if count > 0:
                there = (row_tile.k0, planes_of(planes)[0], rows.b0 * together + row, 0)
                counts = (row_tile.kn, planes.qn, count, columns.qn)
                found.append(region_at(strides, (row * slot, 0, 0, 0), there, counts, together))
        return found


class PackedResults(Results):
    """Results of M packing and K packing: for each row tile [(u, k), planes, blocks, columns], or with V rows a block
    [(u, k), (plane, block), V, columns]; k counts packed planes of y. Results that are stored together rotate through
    the partitions, as a DMA engine serves eight of them."""

    def start(self, tile, lanes):
        """Allocate results, as their regions see them and as [(u, k), planes, rows, columns], and load residuals."""
        self.residuals = self.load_residuals(tile, lanes)
        parts = nl.tile_size.pmax if self.slots > 1 else tile[0].kn
        self.ys = [self._tile(parts, self.operands.y.dtype, lanes[one.lane]) for one in tile]

    def load_residuals(self, tile, lanes):
        """Load residuals [(u, k), planes, rows, columns] by row tile; None for each without one."""
        found, V = [], self.schedule.pack.V
        for one in tile if self.operands.residual != None else []:
            z, p, q = lane = lanes[one.lane]
            loaded_sbuf, residual_sbuf = self._tile(one.kn, self.operands.residual.dtype, lane)
            clear_window(residual_sbuf, self._whole(p) * V, p.bn * V, 0, q.yn, nisa.engine.gpsimd)
            load_regions(loaded_sbuf, self.operands.residual, self._rows(one, lane, (0, z.yn), (0, p.bn), 0))
            found.append(scale_residual(residual_sbuf, self.operands.beta))
        return found or [None] * len(tile)

    def _tile(self, parts, dtype, lane):
        """A tile [partitions, planes, blocks, columns], or [partitions, (plane, block), V, columns], and its view."""
        (z, p, q), V = lane, self.schedule.pack.V
        shape = (parts, z.yn, p.bn, q.yn) if V == 1 else (parts, z.yn * p.bn, V, q.yn)
        tile_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
        return tile_sbuf, tile_sbuf.reshape((parts, z.yn, p.bn * V, q.yn))

    def _whole(self, rows):
        """The number of blocks of rows whose planes and rows are all in y."""
        pack = self.schedule.pack
        if pack.depth.out // pack.depth.images % pack.Z > 0:
            return 0
        return rows.bn - (1 if (rows.b0 + rows.bn) * pack.U * pack.V > self.geometry.rows.out else 0)

    def place(self, index, row_tile):
        """(tile [(u, k), planes, rows, columns], first partition, 0) of a row tile's results."""
        return self.ys[index][1], (self.count + index) % self.slots * self.schedule.slot, 0

    def finish(self, tile, lanes, blocks, last):
        """Store whole rows of some blocks."""
        for index, one in enumerate(tile):
            z, p, _ = lane = lanes[one.lane]
            planes = (0, z.yn) if self.schedule.stack != None else z.places(blocks[0])
            rows = blocks[1][0], min(blocks[1][1], p.bn - blocks[1][0])
            _, base, _ = self.place(index, one)
            store_regions(self.operands.y, self.ys[index][0], self._rows(one, lane, planes, rows, base))
        self.count += len(tile)

    def _rows(self, row_tile, lane, planes, blocks, base):
        """Regions of planes and blocks (first, count) of a lane, with the rows inside y: as few as the dims of an
        access pattern allow."""
        geometry, pack, (z, p, q), strides = self.geometry, self.schedule.pack, lane, self.geometry.y_strides
        by_k, by_n, by_p, by_q = strides[:4]
        kn, each, columns, found = row_tile.kn // pack.U, pack.depth.out // pack.depth.images, [by_q, q.yn], []
        z0, j0, volume = planes_of(z)[0] + planes[0], p.b0 + blocks[0], geometry.planes.out // geometry.planes.images
        for (n, nn, _, zn, _), (j, jn, u0, un, height) in itertools.product(
            block_pieces(each, pack.Z, 1, z0 % volume, planes[1]),
            block_pieces(geometry.rows.out, pack.U, pack.V, j0, blocks[1]),
        ):
            together = un if pack.Z == 1 else 1
            outputs = [[pack.V * by_p, together], [by_n // pack.Z, zn], [by_k, kn // pack.Z]]
            outputs = [one for one in outputs if one[1] > 1 or one is outputs[2]]
            if self.schedule.stack != None and self.schedule.stack.diagonal:
                outputs = outputs[::-1]
            rows = [pack.U * pack.V * by_p, jn]
            for u in range(u0, u0 + un, together):
                at, row, first = base + u * kn, ((j0 + j) * pack.U + u) * pack.V, blocks[0] + j
                if pack.V == 1:
                    there, place = (row_tile.k0, z0 + n, row, q.q0), (at, planes[0] + n, first, 0)
                    found.append((place, [*outputs, [by_n, nn], rows, columns], offset_at(strides, there)))
                for plane in range(planes[0] + n, planes[0] + n + nn if pack.V > 1 else 0):
                    there = row_tile.k0, z0 - planes[0] + plane, row, q.q0
                    place, pattern = (at, plane * p.bn + first, 0, 0), [*outputs, rows, [by_p, height], columns]
                    found.append((place, pattern, offset_at(strides, there)))
        return found


@dataclass
class Columns(nl.NKIObject):
    """Output channels k0 .. k0+kn-1 of an M tile, for each of `rows` rows of y, or outputs of a block."""

    k0: int
    kn: int
    rows: int


def new_output_statistics(operands, geometry, schedule, steps, ledger):
    """Statistics of the y of some steps, or None if they are not asked for."""
    if operands.stats is None:
        return None
    tiles, visits = [one for resident in schedule.residents for tile in resident.tiles for one in tile], []
    U = 1 if schedule.pack is None else schedule.pack.U
    for tile, lanes in schedule.m_tiles_of(steps):
        for bank, row_tile in itertools.product(banks_of(schedule, lanes, tile[0].k0), tile):
            sweep, lane = schedule.sweeps[bank.sweep], lanes[row_tile.lane]
            place = row_tile, lane, sweep, blocks_in(sweep, lane, bank.blocks)
            for _, columns, plane, (planes, *_), *_ in counted(schedule, geometry, place):
                visits.append((columns, plane, planes[1]))
    every = {one.k0: Columns(one.k0, one.kn // U, U) for one in tiles}
    slot = schedule.slot if schedule.pack is None else None
    return OutputStatistics(operands.stats, operands.image_planes, ledger, every.values(), visits, slot)


def counted(schedule, geometry, place):
    """Statistics of a bank, call by call, of outputs that are evacuated together: (the first output, Columns, first
    plane of y of all images, (first, count) of planes and rows in the bank, rows of blocks that are all in y, rows of
    the next block in y)."""
    (row_tile, lane, sweep, blocks), pack = place, schedule.pack
    if pack is None:
        for output, outputs, places, plane in counted_outputs(sweep, lane, blocks, schedule.together_rows):
            yield output, Columns(row_tile.k0, row_tile.kn, outputs), plane, places, places[1][1], 0
        return
    (first, count), out = blocks[1], geometry.rows.out - sweep.outputs[0][1]
    whole = min(count, max(0, (out - (pack.U - 1) * pack.V - 1) // (pack.U * pack.V) + 1 - first))
    rest = max(0, div_ceil(out - (first + whole) * pack.U * pack.V, pack.V)) if whole < count else 0
    if size_of(blocks) > 0 and whole + rest > 0:
        # planes with gaps between them, which are of one image, count as neighbours
        _, ((z, planes, _), _, _) = output_in(lane, blocks, sweep.outputs[0])
        plane = lane[0].image * lane[0].axis.out + lane[0].y0 + z
        columns = Columns(row_tile.k0, row_tile.kn // pack.U, pack.U)
        yield 0, columns, plane, ((0, planes), (0, whole + min(1, rest))), whole, rest


def counter(core, place, first=0, offsets=(0, 0, 0)):
    """What takes statistics of sums, (values, bias that they lack), at their evacuation; None if nothing does.

    place: their row tile, lane, sweep and blocks. Of outputs of a block, those evacuated together, from `first` on, and
    without the bank's first `offsets` planes, rows and columns.
    """
    return None if core.statistics is None else partial(add_counted, core, place, first, offsets)


def add_counted(core, place, first, offsets, values, bias):
    """Take statistics of outputs of a block, from `first` on: values [(output, k), planes, rows, columns] of blocks of
    their bank; of rows of y [(u, k), planes, blocks, columns]."""
    for output, columns, plane, places, rows, last in counted(core.schedule, core.geometry, place):
        if first <= output < first + core.schedule.together_rows:
            at = (output - first) * core.schedule.slot
            parts = slice(at, min(at + columns.rows * core.schedule.slot, values.shape[0]))
            where = [slice(at - off, at - off + n) for (at, n), off in zip(places, offsets, strict=False)]
            core.statistics.add(columns, values[(parts, *where)], plane, rows, bias, last)
