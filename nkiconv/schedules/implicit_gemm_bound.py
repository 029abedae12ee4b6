"""A lower bound of the time of `implicit_gemm`'s schedules: the busiest engine of the busier core, plus the start-up
before it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ..simulator.timing.target import Target
from .cuts import OutTile
from .geometry import Geometry, filter_rows, is_transposed, num_taps
from .implicit_gemm import (
    HALVES,
    STAGED,
    KTile,
    MTile,
    by_input,
    counted,
    is_depthwise_m_tile,
    m_tile_axis,
    stores_channels,
    sums_pitch,
    tap_groups,
)
from .implicit_gemm_products import banks_of, images_together
from .implicit_gemm_schedule import Item, Schedule, kinds_of
from .options import Options
from .pairs_of_planes import planes_at_once
from .prices import (
    Busy,
    dma_ns,
    first_load_ns,
    last_store_ns,
    matmul_rates,
    met_outputs,
    read_ns,
    total_ns,
    transpose_ns,
    transposed_ns,
)
from .tiles import P_MAX, PARTS, div_ceil, share, some_of


class Bound:
    """Lower bounds of the schedules of one problem."""

    def __init__(self, target: Target, geometry: Geometry, options: Options) -> None:
        self.target, self.geometry, self.options = target, geometry, options
        self.outputs = geometry.planes.out * geometry.rows.out * geometry.columns.out
        #: taps of a filter in HBM, all planes
        self.taps = num_taps(geometry.direct or geometry)
        self.transpose_ns = transpose_ns(target, geometry)

    def ns(self, plan: Schedule) -> float:
        """ns from the first DMA to the last."""
        target, item, m_tile = self.target, plan.items[-1], plan.batches[0][0]
        busy = max(self.cores(plan), key=lambda one: max(one.tensor, *one.others()))
        if sum(k_tile.depth > 1 for k_tile in m_tile.k_tiles) > 1:  # copies of both are loaded before the last sums
            busy.dma += busy.tensor * PARTS / (len(plan.items) * len(m_tile.k_tiles))
        begin_ns = self.filters_there_ns(m_tile)
        first, k_tile = plan.items[0].out_tile, m_tile.k_tiles[0]
        moved_ns = self.loaded_ns(first, k_tile) / len(banks_of(first, False))
        # the last bank's evacuation and its share of the output tile's DMA
        last, tile = plan.batches[item.batch][-1], item.out_tile
        end_ns = read_ns(target, self.options, 0, tile.zn * tile.pn * tile.qn / last.rows) + self.stored_ns(last, tile)
        end_ns = last_store_ns(target) + end_ns / len(banks_of(tile, item.last))
        return total_ns(target, begin_ns + moved_ns, moved_ns, busy, end_ns)

    def cores(self, plan: Schedule) -> list[Busy]:
        """The Busy of each of two cores."""
        return [self.core(plan, some_of(plan.items, share(len(plan.items), PARTS, half))) for half in range(PARTS)]

    def core(self, plan: Schedule, items: Sequence[Item]) -> Busy:
        """The Busy of some items."""
        found, before = Busy(), None
        for index, same in groupby(items, key=lambda item: item.batch):
            kinds, counts, loads = dict[Any, Item](), Counter[Any](), Counter[Any]()
            for one in same:
                tile = one.out_tile
                kind = one.last, tile.zn, tile.pn, tile.qn, tile.dn, tile.hn, tile.wn
                kinds[kind] = one
                counts[kind] += 1
                loads[kind] += before != (before := (plan.k_tiles[index], tile))
            pixels = sum(count * math.prod(kind[1:4]) for kind, count in counts.items())
            banks = sum(count * len(banks_of(kinds[kind].out_tile, kind[0])) for kind, count in counts.items())
            for number, m_tile in enumerate(plan.batches[index]):
                found.add(self.m_tile(m_tile, pixels, banks, number < plan.moved[index]))
                found.dma += sum(n * self.stored_ns(m_tile, kinds[kind].out_tile) for kind, n in counts.items())
            for k_tile, alike in counted(plan.k_tiles[index]):
                found.dma += alike * sum(n * self.loaded_ns(kinds[kind].out_tile, k_tile) for kind, n in loads.items())
        return found

    def m_tile(self, m_tile: MTile, pixels: int, banks: int, by_array: bool) -> Busy:
        """Filters of an M tile, and its sums of so many pixels in so many banks. by_array: whether the Tensor Engine,
        not DMA, transposes the filters."""
        geometry, target, found = self.geometry, self.target, Busy()
        column_ns, fixed_ns = matmul_rates(target, geometry)
        for k_tile, alike in counted(m_tile.k_tiles):
            columns, passes = self.met(m_tile, k_tile)
            columns *= alike * kinds_of(geometry) * pixels / self.outputs
            matmuls = alike * kinds_of(geometry) * passes * div_ceil(banks, m_tile.rows)
            found.tensor += max(columns, matmuls * target.matmul_columns_min) * column_ns + matmuls * fixed_ns
            found.streamed += columns * column_ns
        transposes = div_ceil(pixels, P_MAX) if stores_channels(geometry) else 0
        transposing_ns = transposes * self.transpose_ns + (self.transposing_ns(m_tile) if by_array else 0.0)
        found.tensor += transposing_ns
        found.streamed += transposing_ns
        found.dma += sum(one.slots for one in m_tile.k_tiles) * self.filters_ns(m_tile)
        found.read += read_ns(target, self.options, banks, pixels / m_tile.rows)
        return found

    def transposing_ns(self, m_tile: MTile) -> float:
        """ns of the Tensor Engine to transpose the filters of an M tile."""
        geometry = self.geometry
        if geometry.packed > 0 or geometry.flipped or is_depthwise_m_tile(geometry, m_tile):
            return 0.0
        count = filter_rows(geometry) * sum(k_tile.slots * tap_groups(geometry, k_tile) for k_tile in m_tile.k_tiles)
        # Vector spreads filters of several groups
        spread_ns = self.target.vector_fixed_ns + P_MAX * self.target.copy_ns(geometry.itemsize)
        return count * (self.transpose_ns if m_tile.pack == 1 else spread_ns)

    def met(self, m_tile: MTile, k_tile: KTile) -> tuple[float, int]:
        """(columns of a K tile's matmuls over all outputs, matmuls of a bank)."""
        geometry, axis, groups = self.geometry, m_tile_axis(self.geometry, m_tile), tap_groups(self.geometry, k_tile)
        taps = geometry.planes.taps * axis.taps * groups
        apart = sums_pitch(geometry, [k_tile], images_together(geometry, [k_tile]), geometry.rows.out)
        if k_tile.stores_zeros:
            passes = div_ceil(taps, 2)
            of_taps = taps / 2 if k_tile.pairing == HALVES else passes
            return geometry.planes.out * apart * geometry.columns.out * of_taps, passes
        columns = groups * geometry.columns.out if k_tile.depth > 1 else met_outputs(geometry.columns)
        return met_outputs(geometry.planes) * met_outputs(axis) * columns * apart / geometry.rows.out, taps

    def stored_ns(self, m_tile: MTile, tile: OutTile) -> float:
        """ns of DMA for an M tile's results of an output tile."""
        geometry, parts = self.geometry, m_tile.kn * m_tile.rows
        pixels = planes_at_once(geometry) * tile.zn * tile.pn * tile.qn / m_tile.rows
        if stores_channels(geometry):
            return self.moved_ns(P_MAX, parts * pixels / P_MAX, m_tile.kn)
        step = geometry.y_strides[2:4]
        return self.moved_ns(parts, pixels, tile.qn if m_tile.rows > 1 else run_of(tile.pn, tile.qn, *step))

    def moved_ns(self, parts: int, elements: float, run: float) -> float:
        """ns of DMA for `elements` of each of `parts` partitions, in runs of `run` elements."""
        return dma_ns(self.target, parts, parts, elements, run, self.geometry.hbm_itemsize)

    def loaded_ns(self, tile: OutTile, k_tile: KTile) -> float:
        """ns of DMA for x of an output tile for a K tile."""
        geometry, target = self.geometry, self.target
        height, width = tile.hn / geometry.upsample, tile.wn / geometry.upsample
        if tile.dn * height * width == 0:  # its windows are padding alone
            return 0.0
        times = k_tile.slots * tile.dn
        if is_transposed(geometry):
            run = height * width if width == geometry.columns.size else width
            each = tile.dn * height * width
            return k_tile.slots * transposed_ns(target, k_tile.cn, each, run, geometry.hbm_itemsize)
        run = run_of(height, width, *geometry.x_strides[2:4])
        if (k_tile.depth > 1 or k_tile.stores_zeros) and k_tile.pairing != STAGED:  # rows between zeros
            run = min(run, width)
        return times * self.moved_ns(k_tile.cn * k_tile.depth, height * width, run)

    def filters_ns(self, m_tile: MTile) -> float:
        """ns of DMA for a K tile's filters of an M tile, in memory order."""
        geometry, channels = self.geometry, m_tile.k_tiles[0].cn // m_tile.pack
        if by_input(geometry):
            return self.moved_ns(m_tile.k_tiles[0].cn, m_tile.kn * self.taps, m_tile.kn * self.taps)
        inside = geometry.w_strides[3] == 1  # else single elements: channels lie between taps
        run = self.taps * (channels if geometry.w_strides[1] == self.taps else 1) if inside else 1
        return self.moved_ns(m_tile.kn, channels * self.taps, run)

    def filters_there_ns(self, m_tile: MTile) -> float:
        """ns from a core's start until a K tile's filters of an M tile are loaded, and then x if transposed."""
        target, times = self.target, 2 if is_transposed(self.geometry) else 1
        return times * first_load_ns(target) + self.filters_ns(m_tile)

    def move_ns(self, m_tile: MTile) -> float:
        """ns of DMA to transpose the filters of an M tile within SBUF."""
        num_bytes = len(m_tile.k_tiles) * self.taps * m_tile.kn * P_MAX * self.geometry.itemsize
        return float(num_bytes * self.target.byte_ns / (self.target.dma_engines * self.target.transpose_rate_sbuf))


def run_of(height: float, width: float, row_step: int, column_step: int) -> float:
    """Elements of a run in an image of one channel: the whole image, a row, or one element."""
    return 1 if column_step > 1 else max(1, width if row_step > width else height * width)
