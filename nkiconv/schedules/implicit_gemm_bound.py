"""A lower bound of the time of `implicit_gemm`'s schedules: the busiest engine of the core with more sums, plus the
start-up before it."""

from __future__ import annotations

from typing import Any

from .cuts import OutTile
from .geometry import filter_rows, is_transposed, moves_pairs, num_taps
from .implicit_gemm import (
    TAPS,
    KTile,
    MTile,
    by_input,
    counted,
    is_depthwise_m_tile,
    m_tile_axis,
    stores_channels,
    tap_groups,
)
from .implicit_gemm_products import banks_of
from .implicit_gemm_schedule import Schedule, kinds_of
from .pairs_of_planes import planes_at_once
from .prices import Busy, Prices, met_outputs, planes_met, total_ns
from .tiles import P_MAX, PARTS, div_ceil, share, some_of


class Bound(Prices):
    """Lower bounds of the schedules of one problem."""

    def ns(self, plan: Schedule) -> float:
        """ns from the first DMA to the last."""
        item, m_tile, busy = plan.items[-1], plan.batches[0][0], self.core(plan)
        first, last, tile = plan.items[0].out_tile, plan.batches[item.batch][-1], item.out_tile
        x_ns = self.loaded_ns(first, m_tile.k_tiles[0]) / len(banks_of(first, False))
        # the last bank's evacuation and its share of the output tile's DMA
        end_ns = self.read_ns(0, pixels_of(tile) / last.rows) + self.stored_ns(last, tile)
        end_ns = self.target.last_store_ns + end_ns / len(banks_of(tile, item.last))
        return total_ns(self.target, self.filters_there_ns(m_tile) + x_ns, x_ns, busy, end_ns)

    def core(self, plan: Schedule) -> Busy:
        """The Busy of the items of the core with more sums."""
        found, kinds = Busy(), dict[Any, list[Any]]()
        sums = [sum(1 / m_tile.rows for m_tile in batch) for batch in plan.batches]
        halves = [some_of(plan.items, share(len(plan.items), PARTS, half)) for half in range(PARTS)]
        for one in max(halves, key=lambda some: sum(sums[item.batch] * pixels_of(item.out_tile) for item in some)):
            tile = one.out_tile
            sizes = tile.zn, tile.pn, tile.qn, tile.dn, tile.hn, tile.wn
            kinds.setdefault((one.batch, one.last, sizes), [tile, one.last, 0])[2] += 1
        for index in {batch for batch, *_ in kinds}:
            own = [kind for (batch, *_), kind in kinds.items() if batch == index]
            pixels = sum(n * pixels_of(tile) for tile, _, n in own)
            banks = sum(n * len(banks_of(tile, last)) for tile, last, n in own)
            for number, m_tile in enumerate(plan.batches[index]):
                found.add(self.m_tile(m_tile, pixels, banks, number < plan.moved[index]))
                found.dma += sum(n * self.stored_ns(m_tile, tile) for tile, _, n in own)
                if self.options.residual:
                    found.dma += sum(n * self.residual_ns(m_tile, tile) for tile, _, n in own)
            for k_tile, alike in counted(plan.k_tiles[index]):
                found.dma += alike * sum(n * self.loaded_ns(tile, k_tile) for tile, _, n in own)
                if self.options.prologue.asked:
                    read = sum(n * tile.dn * tile.hn * tile.wn for tile, _, n in own)
                    found.scalar += alike * k_tile.slots * read * self.target.scalar_ns
        return found

    def m_tile(self, m_tile: MTile, pixels: int, banks: int, by_array: bool) -> Busy:
        """Filters of an M tile, and its sums of so many pixels in so many banks. by_array: whether the Tensor Engine,
        not DMA, transposes the filters."""
        geometry, target, found = self.geometry, self.target, Busy()
        for k_tile, alike in counted(m_tile.k_tiles):
            columns, passes = self.met(m_tile, k_tile)
            columns *= alike * kinds_of(geometry) * pixels
            matmuls = alike * kinds_of(geometry) * passes * div_ceil(banks, m_tile.rows)
            columns_ns = max(columns, matmuls * target.matmul_columns_min) * self.column_ns
            found.add(Busy(columns_ns + matmuls * self.fixed_ns, columns * self.column_ns))
        transposes = div_ceil(pixels, P_MAX) if stores_channels(geometry) else 0
        transposing_ns = transposes * self.transpose_ns() + (self.transposing_ns(m_tile) if by_array else 0.0)
        found.add(Busy(transposing_ns, transposing_ns, self.read_ns(banks, pixels / m_tile.rows)))
        if self.options.statistics:
            found.vector += banks * target.vector_fixed_psum_ns + pixels / m_tile.rows * target.vector_ns
        found.dma += sum(one.slots for one in m_tile.k_tiles) * self.filters_ns(m_tile)
        return found

    def transposing_ns(self, m_tile: MTile) -> float:
        """ns of the Tensor Engine to transpose the filters of an M tile."""
        geometry = self.geometry
        if geometry.packed > 0 or geometry.flipped or is_depthwise_m_tile(geometry, m_tile):
            return 0.0
        count = filter_rows(geometry) * sum(k_tile.slots * tap_groups(geometry, k_tile) for k_tile in m_tile.k_tiles)
        # Vector spreads filters of several groups
        spread_ns = self.target.vector_fixed_ns + P_MAX * self.target.copy_ns(geometry.itemsize)
        return count * (self.transpose_ns() if m_tile.pack == 1 else spread_ns)

    def met(self, m_tile: MTile, k_tile: KTile) -> tuple[float, float]:
        """(columns of a K tile's matmuls for an output, matmuls of a bank); none for planes of taps outside x."""
        geometry, axis, groups = self.geometry, m_tile_axis(self.geometry, m_tile), tap_groups(self.geometry, k_tile)
        taps, planes = axis.taps * groups, planes_met(geometry)
        if k_tile.pairing == TAPS:
            pairs = div_ceil(geometry.planes.taps * taps, 2)
            return pairs, pairs
        columns = groups if k_tile.depth > 1 else met_outputs(geometry.columns) / geometry.columns.out
        return planes * met_outputs(axis) / geometry.rows.out * columns, planes * taps

    def stored_ns(self, m_tile: MTile, tile: OutTile) -> float:
        """ns of DMA for an M tile's results of an output tile."""
        geometry, parts = self.geometry, m_tile.kn * m_tile.rows
        elements = planes_at_once(geometry) * tile.zn * tile.pn * tile.qn * m_tile.kn
        if stores_channels(geometry):
            return self.moved_ns(elements, m_tile.kn)
        run = tile.qn if m_tile.rows > 1 else run_of(tile.pn, tile.qn, *geometry.y_strides[2:4])
        return self.moved_ns(elements, run, parts)

    def residual_ns(self, m_tile: MTile, tile: OutTile) -> float:
        """ns of DMA for the residual of an M tile's results of an output tile."""
        if not stores_channels(self.geometry):
            return self.stored_ns(m_tile, tile)
        return self.transposed_ns(m_tile.kn, pixels_of(tile), tile.qn)

    def loaded_ns(self, tile: OutTile, k_tile: KTile) -> float:
        """ns of DMA for x of an output tile for a K tile."""
        geometry = self.geometry
        height, width = tile.hn / geometry.upsample, tile.wn / geometry.upsample
        elements = tile.dn * height * width
        if elements == 0:  # its windows are padding alone
            return 0.0
        run = run_of(height, width, *geometry.x_strides[2:4])
        if is_transposed(geometry) or moves_pairs(geometry):
            run = height * width if width == geometry.columns.size else width
            return k_tile.slots * self.transposed_ns(k_tile.cn, elements, run)
        if k_tile.depth > 1 or k_tile.pairing == TAPS:  # rows between zeros
            run = min(run, width)
        parts = k_tile.cn * k_tile.depth
        return k_tile.slots * self.moved_ns(parts * elements, run, parts)

    @property
    def taps(self) -> int:
        """Taps of a filter in HBM, all planes."""
        return num_taps(self.geometry.direct or self.geometry)

    def filters_ns(self, m_tile: MTile) -> float:
        """ns of DMA for a K tile's filters of an M tile, in memory order."""
        channels, parts = m_tile.k_tiles[0].cn // m_tile.pack, m_tile.kn
        run = self.taps * (channels if self.geometry.w_strides[1] == self.taps else 1)
        if by_input(self.geometry, m_tile):
            parts, channels, run = m_tile.k_tiles[0].cn, m_tile.kn, m_tile.kn * self.taps
        return self.moved_ns(parts * channels * self.taps, run, parts)

    def filters_there_ns(self, m_tile: MTile) -> float:
        """ns from a core's start until a K tile's filters of an M tile are loaded."""
        return self.target.first_load_ns + self.filters_ns(m_tile)

    def move_ns(self, m_tile: MTile) -> float:
        """ns of DMA to transpose the filters of an M tile within SBUF."""
        num_bytes = len(m_tile.k_tiles) * self.taps * m_tile.kn * P_MAX * self.geometry.itemsize
        return float(num_bytes * self.target.byte_ns / (self.target.dma_engines * self.target.transpose_rate_sbuf))


def pixels_of(tile: OutTile) -> int:
    """Outputs of an output tile, of a channel."""
    return tile.zn * tile.pn * tile.qn


def run_of(height: float, width: float, row_step: int, column_step: int) -> float:
    """Elements of a run in an image of one channel: the whole image, a row, or one element."""
    return 1 if column_step > 1 else max(1, width if row_step > width else height * width)
