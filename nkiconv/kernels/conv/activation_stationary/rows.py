"""y of volumes as NCDHW: load rows of x of all planes, transpose sums of 128 positions, store rows of y.

Padding is stored as zeros around rows. The Tensor Engine transposes the results of a tile while the next tile's sums
are computed. A residual, which has channels on partitions too, is one more product: the identity moves. Equal steps may
be the body of a device loop.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

from ...._nki import nisa, nl
from ....schedules.channel_pieces import parts_of
from ....schedules.cuts import Outputs, places_inside, window_of
from ....schedules.geometry import span
from ....schedules.tiles import cut_at, div_ceil, whole_words
from ....schedules.volume_rows import moves_of, rows_window, segment_rows, stored_together
from ..._engines import copy_balanced, new_ledger
from ..._masks import select_ones
from ..._prologue import load_x
from ..._warm import warm_up
from ..call import moved_operands
from ..filter_feed import tiles_in_turn, transposed_bank
from ..regions import around, clear_window, offset_at, residual_of, store_regions
from ..sums import zero_sums
from .filters import Filters
from .loop import Core

#: Rotating tiles of rows of y if a norm delays their stores: with one tile the next rows of a device loop wait for
#: these, and chain wan_96 takes 8,988 modelled us for 6,269 (`make chains`). Shorter volumes show no difference.
Y_TILES = 2


@dataclass
class Results(nl.NKIObject):
    """Columns q .. q+qn-1, from the output tile's first, of row `row` of each segment that has it, of y and perhaps of
    a norm's input: `sums` [position, (z, k)] of each, None until it is allocated, to be transposed into `rows`
    [(z, k) of a block, blocks, segments, columns]; residual: as rows, or None."""

    item: Outputs
    row: int
    rows: list
    q: int
    qn: int
    sums: object
    residual: object


class RowCore(Core):
    """The loop of a core over tiles of 128 positions.

    ring: the circular buffer of rows of x, tiles [c, K tile * planes, segments, columns]; first: the tile of an output
    tile's first row; loaded: rows of the output tile that were loaded. y_tiles: rotating tiles of rows of y, and of a
    norm's input, or None. waiting: Results to be transposed, or None. identity: moves to add a residual, or None.
    """

    y_tiles: Any = None
    waiting: Any = None
    identity: Any = None

    def __init__(self, operands, geometry, options, plan):
        super().__init__(operands, geometry, options, plan)
        if operands.residual is not None:  # it is in the sums before they are evacuated
            self.options = replace(options, epilogue=replace(options.epilogue, residual=""))
            size, dtype = nl.tile_size.pmax, operands.residual.dtype if operands.beta == 1.0 else nl.float32
            self.identity = select_ones(size, [[-1, size]], 0, dtype)

    @property
    def written(self):
        """Tensors in HBM that the core writes: y, and a norm's input."""
        return [one for one in (self.operands.y, self.operands.kept) if one is not None]

    def tiles(self, items):
        """Tiles of items, as `run` takes them; the first rows of the next item are loaded before an item's last
        step."""
        geometry, plan = self.geometry, self.plan
        self.filters = Filters(self, 0, geometry.K)
        self.filters.load(len(plan.k_tiles) - 1)
        self.load_bias(0, geometry.K)
        segments = max(div_ceil(item.pn, segment_rows(plan, item)) for item in plan.items)
        parts, (planes, width) = max(parts_of(one, len(one)) for one in plan.k_tiles), rows_window(geometry, plan)
        shape = (parts, len(plan.k_tiles) * max(1, planes), segments, whole_words(width, geometry.itemsize))
        self.ring = tiles_in_turn(plan.ring, shape, self.operands.x_dtype)
        self.first, self.loaded = 0, set()
        if self.norm is not None and (plan.steps is None or plan.steps.each % Y_TILES == 0):
            shape = (nl.tile_size.pmax, plan.blocks, segments, max(item.qn for item in plan.items))
            self.y_tiles = [tiles_in_turn(Y_TILES, shape, one.dtype) for one in self.written]
        warm_up(self.zeros_sbuf, plan.warmup, 1)
        for item, after in zip(items, [*items[1:], None]):
            yield from self.item_tiles(item, after)
        self.transpose_waiting()

    def load_step(self, item, step, most=None):
        """Load the first `most` rows of x that a step sees, all by default, unless they are loaded; returns the tiles
        of all."""
        axis = self.geometry.rows
        rows = [step * axis.stride + tap * axis.dilation for tap in range(axis.taps)]
        for row in rows[:most]:
            if row not in self.loaded:
                self.load_row(item, row)
                self.loaded.add(row)
        return list(map(self.row_tile, rows))

    def row_tile(self, row):
        """The tile of a row of x of each segment, counted from the first that the output tile's first row sees."""
        return self.ring[(self.first + row) % self.plan.ring]

    def load_row(self, item, row):
        """Load row `row` of x of each segment of an output tile."""
        geometry, plan, axis, columns = self.geometry, self.plan, self.geometry.rows, self.geometry.columns
        tile_sbuf, apart = self.row_tile(row), segment_rows(plan, item)
        segments = div_ceil(item.pn, apart)
        d0, dn = span(geometry.planes, item.z0, item.zn)
        width, step = window_of(columns, item.qn), apart * axis.stride
        h, w = item.p0 * axis.stride - axis.before + row, item.q0 * columns.stride - columns.before
        for index, k_tile in enumerate(plan.k_tiles if dn > 0 else ()):
            corners = [(h + piece.r * axis.dilation, w + piece.s * columns.dilation) for piece in k_tile]
            rows = [places_inside(top, step, segments, axis.size) for top, _ in corners]
            runs = [places_inside(left, 1, width, columns.size) for _, left in corners]
            # first segment, end, first column, end that all pieces of a K tile have of x
            inside = [limit(ends) for one in (rows, runs) for limit, ends in zip((max, min), zip(*one))]
            planes_sbuf = tile_sbuf[:, index * dn : (index + 1) * dn, 0:segments]
            for h0, h1, w0, w1 in around(segments, planes_sbuf.shape[3], inside):
                clear_window(planes_sbuf, h0, h1, w0, w1, nisa.engine.gpsimd)
            for piece, corner in zip(k_tile, corners):
                dst = planes_sbuf[piece.part : piece.part + piece.count, 0:dn, 0:segments, 0:width]
                load_x(dst, self.operands, geometry, (piece.c0, d0, *corner), row_step=step)

    def item_tiles(self, item, after):
        """Tiles of an item; the next step's rows of x are loaded before a step, of the next item, `after`, as many as
        the buffer has room for."""
        axis, steps, apart, row = self.geometry.rows, self.plan.steps, segment_rows(self.plan, item), 0
        self.load_step(item, 0)
        while row < apart:
            if steps is not None and row == steps.first:
                self.run_steps(item)
                row += steps.each * steps.count
            x, residual_sbuf = self.load_step(item, row), self.load_residual(item, row)
            if row + 1 < apart:
                self.load_step(item, row + 1)
            elif after is not None:
                self.first, self.loaded = self.first + row * axis.stride + window_of(axis, 1), set()
                self.load_step(after, 0, div_ceil(axis.stride, axis.dilation))
            yield from self.step_tiles(item, row, x, residual_sbuf, None)
            row += 1

    def run_steps(self, item):
        """Run an output tile's steps in a device loop. Before each iteration waiting results are in the same tile, and
        x is in the tiles of the step one body earlier."""
        steps, waiting = self.plan.steps, self.waiting
        by, done = steps.register.by, steps.each * steps.count

        def body(at):
            own = copy.copy(self)
            own.loaded = set(self.loaded)
            own.operands, own.ledger = moved_operands(self.operands, steps.register, at), new_ledger()
            for row in range(steps.first, steps.first + steps.each):
                x, residual_sbuf = own.load_step(item, row), own.load_residual(item, row)
                own.load_step(item, row + 1)
                reused = waiting if row + 1 == steps.first + steps.each else None
                own.run(own.step_tiles(item, row, x, residual_sbuf, reused))

        nl.fori_loop(0, steps.count * by, body, by)
        self.loaded = {row + done * self.geometry.rows.stride for row in self.loaded}
        waiting.row += done

    def shape_of_step(self, item, row):
        """[(z, k) of a block, blocks, segments, columns] of a step of an item."""
        segments, size = div_ceil(item.pn - row, segment_rows(self.plan, item)), item.zn * self.geometry.K
        return min(nl.tile_size.pmax, size), div_ceil(size, nl.tile_size.pmax), segments, item.qn

    def load_residual(self, item, row):
        """The residual of a step of an item times beta, fp32 if beta is not 1; or None."""
        shape, whole = self.shape_of_step(item, row), item.zn * self.geometry.K // nl.tile_size.pmax
        ragged = (slice(None), slice(whole, None)) if self.operands.beta != 1.0 and 0 < whole < shape[1] else None
        return residual_of(self.operands, shape, self.regions_of_step(item, row, shape[2]), ragged)

    def step_tiles(self, item, row, x, residual_sbuf, reused):
        """Tiles of a step of an item, row `row` of each segment; x: tiles of its rows. reused: None, or the Results
        whose tiles the step's last Results reuse."""
        shape = self.shape_of_step(item, row)
        if self.y_tiles is not None:
            rows = [some[row % Y_TILES][tuple(slice(0, extent) for extent in shape)] for some in self.y_tiles]
        elif reused is not None:
            rows = reused.rows
        else:
            rows = [nl.ndarray(shape, dtype=one.dtype, buffer=nl.sbuf) for one in self.written]
        for q, qn in cut_at(item.qn, self.plan.width):
            sums = reused.sums if reused is not None and q + qn == item.qn else None
            yield self.sums_of(Results(item, row, rows, q, qn, sums, residual_sbuf), x)

    def sums_of(self, results, rows_of_x):
        """Banks of sums [position, planes, k] of Results, as `run` takes them; they are evacuated to results.sums, new
        tiles if it is None, and transposed after the next tile's sums."""
        geometry, plan, item, K = self.geometry, self.plan, results.item, self.geometry.K
        columns, dn = geometry.columns, span(geometry.planes, item.z0, item.zn)[1]
        segments, moves = results.rows[0].shape[2], moves_of(geometry.planes, plan.each, item.z0, item.zn)
        banks = cut_at(item.zn, plan.each)
        positions = segments * results.qn
        sums = [nl.ndarray((positions, count, K), dtype=nl.float32, buffer=nl.psum) for _, count in banks]

        def products(k_tile):
            self.filters.complete(k_tile, K)
            for index, product in enumerate(plan.products[k_tile]):
                x_sbuf = rows_of_x[product.r]
                parts = parts_of(plan.k_tiles[k_tile], product.pieces)
                w = results.q * columns.stride + product.s * columns.dilation
                end = w + (results.qn - 1) * columns.stride + 1
                for move in moves[0 if k_tile + index == 0 else 1]:
                    acc_psum = sums[move.bank][0:positions, move.z : move.z + move.count, 0:K]
                    if move.plane < 0:
                        zero_sums(acc_psum, self.zeros_sbuf)
                        continue
                    tap = index * geometry.planes.taps + move.tau
                    x = x_sbuf[0:parts, k_tile * dn + move.plane, 0:segments, w : end : columns.stride]
                    yield acc_psum, x, self.filters.tiles[k_tile][0:parts, tap : tap + move.count, 0:K], move.adds
            if results.residual is not None and k_tile + 1 == len(plan.k_tiles):
                yield from self.products_of_residual(results, banks, sums)

        def leave():
            self.transpose_waiting()
            if results.sums is None:
                shape = (positions, item.zn * K)
                results.sums = [nl.ndarray(shape, dtype=one.dtype, buffer=nl.sbuf) for one in self.written]
            by_plane = [one.reshape((positions, item.zn, K)) for one in results.sums]
            for (z, count), acc_psum in zip(banks, sums):
                y, *kept = (one[0:positions, z : z + count].expand_dim(2) for one in by_plane)
                self.evacuate_pixels(y, acc_psum.expand_dim(2), 0, kept_sbuf=kept[0] if kept else None)
            self.waiting = results

        return products, leave

    def products_of_residual(self, results, banks, sums):
        """Products that add a residual to sums, as `sums_of` yields them: of each block, and of the part of a bank that
        is in it."""
        P_MAX, K, segments = nl.tile_size.pmax, self.geometry.K, results.residual.shape[2]
        size = results.item.zn * K
        for (z, count), acc_psum in zip(banks, sums):
            flat_psum = acc_psum.reshape((acc_psum.shape[0], count * K))
            for block in range(z * K // P_MAX, div_ceil((z + count) * K, P_MAX)):
                first, parts = block * P_MAX, min(P_MAX, size - block * P_MAX)
                begin, end = max(first, z * K), min(first + parts, (z + count) * K)
                stationary = results.residual[0:parts, block, 0:segments, results.q : results.q + results.qn]
                moving = self.identity[0:parts, begin - first : end - first]
                yield flat_psum[:, begin - z * K : end - z * K], stationary, moving, True

    def transpose_waiting(self):
        """Transpose waiting results into rows of y, and store the rows of a complete step."""
        results = self.waiting
        if results is None:
            return
        for sums_sbuf, rows_sbuf in zip(results.sums, results.rows):
            positions, size = sums_sbuf.shape
            columns = whole_words(positions, self.options.epilogue.y_itemsize)
            for block, (first, parts) in enumerate(cut_at(size, nl.tile_size.pmax)):
                y = rows_sbuf[0:parts, block, :, results.q : results.q + results.qn]
                bank_psum = transposed_bank([sums_sbuf[:, first : first + parts]], parts, columns)
                copy_balanced(y, bank_psum[0:parts, 0, 0:positions].reshape(y.shape), self.ledger)
        if results.q + results.qn == results.item.qn:
            regions = self.regions_of_step(results.item, results.row, results.rows[0].shape[2])
            for hbm, rows_sbuf in zip(self.written, results.rows):
                store_regions(hbm, rows_sbuf, regions, self.operands.moved)
        self.waiting = None

    def regions_of_step(self, item, row, segments):
        """Regions of y, or of the residual, of a step: one for the output channels of a plane in a block."""
        K, strides, P_MAX, regions = self.geometry.K, self.geometry.y_strides, nl.tile_size.pmax, []
        rows = [segment_rows(self.plan, item) * strides[2], segments]
        for at, count in stored_together(item.zn, K):
            offset = offset_at(strides, (at % K, item.z0 + at // K, item.p0 + row, item.q0))
            pattern = [[strides[0], count], [0, 1], rows, [strides[3], item.qn]]
            regions.append(((at % P_MAX, at // P_MAX, 0, 0), pattern, offset))
        return regions
