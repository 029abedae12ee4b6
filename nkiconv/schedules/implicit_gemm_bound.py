"""A lower bound of the time of `implicit_gemm`'s schedules: the busiest engine of the busier core, plus the start-up
before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ..simulator.timing.target import Target
from .cuts import OutTile, tap_blocks
from .frames import is_transposed
from .geometry import Geometry, filter_rows, num_taps
from .implicit_gemm_channels import (
    HALVES,
    STAGED,
    Batch,
    KTile,
    MTile,
    by_input,
    counted,
    is_depthwise_m_tile,
    m_tile_axis,
    stores_channels,
    sums_pitch,
    tap_groups,
    word_of,
)
from .implicit_gemm_outputs import banks_of, folded_width, images_together, row_parts
from .implicit_gemm_products import RAW_BYTES, home_row
from .implicit_gemm_schedule import Item, Schedule, kinds_of
from .options import Options
from .pairs_of_planes import planes_at_once
from .prices import (
    Busy,
    array_end_ns,
    first_load_ns,
    last_store_ns,
    matmul_rates,
    met_outputs,
    overlapped_ns,
    prologue_ns,
    read_ns,
    transpose_ns,
)
from .products import home_tap
from .tiles import P_MAX, PARTS, div_ceil, share, some_of, transposes_of_bank


class Bound:
    """Lower bounds of the schedules of one problem."""

    def __init__(self, target: Target, geometry: Geometry, options: Options) -> None:
        self.target, self.geometry, self.options = target, geometry, options
        self.outputs = geometry.planes.out * geometry.rows.out * geometry.columns.out
        #: taps of a filter in HBM, all planes
        self.taps = num_taps(geometry.direct or geometry)
        self.transpose_ns = transpose_ns(target, geometry)
        self.known: dict[Any, list[Busy]] = {}

    def ns(self, plan: Schedule) -> float:
        """ns from the first DMA to the last."""
        target, first_ns, m_tile = self.target, self.first_rows_ns(plan), plan.batches[0][0]
        busy = max(self.cores(plan), key=lambda one: max(one.tensor, *one.others()))
        begin_ns = self.filters_there_ns(m_tile) + first_ns
        if is_transposed(self.geometry):  # filters are loaded before x
            begin_ns += target.hwdge_issue_ns + first_load_ns(target)
        begin_ns += self.spread_ns(m_tile)
        streamed = busy.streamed / busy.tensor if busy.tensor > 0 else 1.0  # 0 ns: all outputs read padding alone
        made_ns, tensor_ns = self.first_block(m_tile) * self.transposing_ns(m_tile) / len(m_tile.k_tiles), busy.tensor
        if made_ns > 0 and plan.moved[0] == 0:
            begin_ns = array_end_ns(target, begin_ns, made_ns)
            begin_ns += target.matmul_done_ns + target.hop_ns + target.vector_done_ns
            tensor_ns = max(0.0, tensor_ns - made_ns)
        array_ns = array_end_ns(target, begin_ns, tensor_ns, streamed) - begin_ns
        return begin_ns + overlapped_ns(array_ns, *busy.others(first_ns)) + self.last_ns(plan)

    def last_ns(self, plan: Schedule) -> float:
        """ns from the last sums to the last store's end: a bank's evacuation and its share of the output tile's DMA."""
        item = plan.items[-1]
        m_tile, tile, banks = plan.batches[item.batch][-1], item.out_tile, banks_of(item.out_tile, item.last)
        pixels = tile.zn * tile.pn * tile.qn / m_tile.rows / len(banks)
        stored = self.stored(m_tile, tile).moved_ns / len(banks)
        return last_store_ns(self.target) + read_ns(self.target, self.options, 0, pixels) + stored

    def first_block(self, m_tile: MTile) -> float:
        """The share of a K tile's filters in its first block of taps."""
        if by_input(self.geometry):
            return 1.0
        _, rn, _, sn = tap_blocks(self.geometry, m_tile.k_tiles[0].cn // m_tile.pack, RAW_BYTES)[0]
        return rn * sn / num_taps(self.geometry)

    def first_rows_ns(self, plan: Schedule) -> float:
        """ns of DMA for the rows of x of the first bank of sums, for one K tile."""
        m_tile, tile = plan.batches[0][0], plan.items[0].out_tile
        parts = row_parts(self.geometry, tile, True, m_tile.rows)
        k_tile = m_tile.k_tiles[0]
        return k_tile.slots * tile.dn * self.rows(tile, k_tile).dma * parts[0][1] / tile.hn if parts else 0.0

    def cores(self, plan: Schedule) -> list[Busy]:
        """The Busy of each of two cores, computed once for settings."""
        if plan.settings not in self.known:
            halves = [some_of(plan.items, share(len(plan.items), PARTS, half)) for half in range(PARTS)]
            self.known[plan.settings] = [self.core(plan, items) for items in halves]
        return self.known[plan.settings]

    def core(self, plan: Schedule, items: Sequence[Item]) -> Busy:
        """The Busy of some items."""
        found, known, before, forms = Busy(), dict[Any, Busy](), None, dict[Any, int]()
        for index, same in groupby(items, key=lambda item: item.batch):
            own, batch, k_tiles = list(same), plan.batches[index], plan.k_tiles[index]
            alike = {(one.out_tile.zn, one.out_tile.pn, one.out_tile.qn, one.last): one for one in own}
            counts = Counter((one.out_tile.zn, one.out_tile.pn, one.out_tile.qn, one.last) for one in own)
            pixels = sum(count * zn * pn * qn for (zn, pn, qn, _), count in counts.items())
            banks = sum(counts[kind] * len(banks_of(one.out_tile, one.last)) for kind, one in alike.items())
            for number, m_tile in enumerate(batch):
                shape = (m_tile.kn, m_tile.rows, tuple(one[1:] for one in m_tile.k_tiles), number < plan.moved[index])
                if (shape, pixels, banks) not in known:
                    known[shape, pixels, banks] = self.m_tile(m_tile, pixels, banks, shape[-1])
                found.add(known[shape, pixels, banks])
            often: Counter[Any] = Counter()
            # batches of equal channels store and load alike
            form = tuple((m_tile.kn, m_tile.rows) for m_tile in batch), tuple(k_tile[1:] for k_tile in k_tiles)
            number = forms.setdefault(form, len(forms))
            for one in own:
                tile = one.out_tile
                sizes = (number, tile.zn, tile.pn, tile.dn, tile.hn, tile.wn, tile.qn)
                here = k_tiles, tile
                fresh, before = before != here, here
                if (sizes, fresh) not in known:
                    known[sizes, fresh] = self.out_tile(batch, k_tiles, tile, fresh)
                often[sizes, fresh] += 1
            for kind, count in often.items():
                found.add(known[kind], count)
        return found

    def m_tile(self, m_tile: MTile, pixels: int, banks: int, by_array: bool) -> Busy:
        """Filters of an M tile, and its sums of so many pixels in so many banks. by_array: whether the Tensor Engine,
        not DMA, transposes the filters."""
        geometry, target, found = self.geometry, self.target, Busy()
        column_ns, fixed_ns = matmul_rates(target, geometry)
        for k_tile, alike in counted(m_tile.k_tiles):
            columns, passes = self.met(m_tile, k_tile)
            columns = alike * kinds_of(geometry) * columns * pixels / self.outputs
            matmuls = alike * kinds_of(geometry) * passes * div_ceil(banks, m_tile.rows)
            found.tensor += max(columns, matmuls * target.matmul_columns_min) * column_ns + matmuls * fixed_ns
            found.streamed += columns * column_ns
        rows = m_tile_axis(geometry, m_tile)
        if home_tap(geometry.columns) < 0 or not home_row(geometry, rows)[1]:  # sums begin as a product of zeros
            found.tensor += pixels * column_ns + banks * fixed_ns
            found.streamed += pixels * column_ns
        transposes = div_ceil(pixels, P_MAX) if stores_channels(geometry) else 0
        found.gpsimd += self.spread_ns(m_tile)
        transposing_ns = transposes * self.transpose_ns + (self.transposing_ns(m_tile) if by_array else 0.0)
        found.tensor += transposing_ns
        found.streamed += transposing_ns * min(1.0, m_tile.kn / target.matmul_columns_min)
        found.add(self.filters(m_tile), sum(one.slots for one in m_tile.k_tiles))
        found.read += read_ns(target, self.options, banks, pixels / m_tile.rows)
        found.vector += self.options.statistics * pixels / m_tile.rows * target.vector_ns
        return found

    def spread_ns(self, m_tile: MTile) -> float:
        """ns of GpSimd to spread filters of one input channel along the diagonals of stationaries."""
        if not is_depthwise_m_tile(self.geometry, m_tile):
            return 0.0
        elements = num_taps(self.geometry) * m_tile.kn
        return self.target.gpsimd_fixed_ns + elements * self.target.gpsimd_select_ns

    def transposing_ns(self, m_tile: MTile) -> float:
        """ns of the Tensor Engine to transpose the filters of an M tile."""
        geometry = self.geometry
        if geometry.packed > 0 or geometry.flipped or is_depthwise_m_tile(geometry, m_tile):
            return 0.0
        count = filter_rows(geometry) * sum(k_tile.slots * tap_groups(geometry, k_tile) for k_tile in m_tile.k_tiles)
        if m_tile.pack == 1:
            return count * self.transpose_ns
        # Vector spreads filters of several groups, a piece of a bank at a time; two pieces overlap
        target, cn = self.target, m_tile.k_tiles[0].cn
        taps = min(geometry.columns.taps, transposes_of_bank(m_tile.kn, geometry.itemsize))
        hops_ns = target.vector_done_ns + target.hop_tensor_ns + target.matmul_done_half_ns + target.hop_ns
        vector_ns = target.vector_16bit_ns if geometry.itemsize == 2 else target.vector_ns
        spread_ns = target.vector_fixed_ns + cn * vector_ns + m_tile.kn * target.vector_16bit_ns
        return count * (spread_ns + (hops_ns + target.vector_fixed_psum_ns) / (2 * taps))

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

    def out_tile(self, batch: Batch, k_tiles: Sequence[KTile], tile: OutTile, fresh: bool) -> Busy:
        """Stores of an output tile's results and, if x is not loaded yet (`fresh`), loads of its x."""
        geometry, target, found = self.geometry, self.target, Busy()
        for m_tile in batch:
            found.add(self.stored(m_tile, tile))
        kinds = {one[1:]: one for one in k_tiles} if fresh else {}
        counts = Counter(one[1:] for one in k_tiles)
        for kind, k_tile in kinds.items():
            alike = counts[kind]
            found.add(self.rows(tile, k_tile), alike * k_tile.slots * tile.dn)
            pixels = tile.dn * tile.hn * tile.wn
            images = tile.dn / geometry.image_planes
            found.scalar += alike * k_tile.depth * prologue_ns(target, self.options.prologue, pixels, 1, images)
            if k_tile.pairing == STAGED:
                copies = k_tile.depth - 1
                words = tile.wn // word_of(geometry) + 2 + copies * (copies + 1) * geometry.columns.dilation
                found.gpsimd += alike * tile.dn * tile.hn * words * target.gpsimd_ns
        return found

    def stored(self, m_tile: MTile, tile: OutTile) -> Busy:
        """Stores of an M tile's results of an output tile."""
        geometry, parts = self.geometry, m_tile.kn * m_tile.rows
        pixels = planes_at_once(geometry) * tile.zn * tile.pn * tile.qn / m_tile.rows
        if stores_channels(geometry):
            return self.moved(P_MAX, parts * pixels / P_MAX, m_tile.kn)
        step = geometry.y_strides[2:4]
        return self.moved(parts, pixels, tile.qn if m_tile.rows > 1 else run_of(tile.pn, tile.qn, *step))

    def moved(self, parts: int, elements: float, run: float, itemsize: int = 0) -> Busy:
        """DMA of `elements` of each of `parts` partitions, in runs of `run` elements; itemsize 0: bytes as on chip."""
        target, item = self.target, itemsize or self.geometry.itemsize
        dma_ns = min(parts, target.rows_an_engine) * elements / run * target.run_ns(run * item)
        return Busy(dma=dma_ns, hbm=parts * elements * item * target.hbm_byte_ns)

    def rows(self, tile: OutTile, k_tile: KTile) -> Busy:
        """Loads of a plane of x of an output tile for a K tile."""
        if tile.dn * tile.hn * tile.wn == 0:  # its windows are padding alone
            return Busy()
        geometry, target, item = self.geometry, self.target, self.geometry.hbm_itemsize
        height, width, parts = tile.hn / geometry.upsample, tile.wn / geometry.upsample, k_tile.cn * k_tile.depth
        if is_transposed(geometry):
            num_bytes = height * width * k_tile.cn * item
            dma_ns = num_bytes * target.byte_ns / (target.dma_engines * target.transpose_rate)
            # one queue triggers all of them
            return Busy(dma=max(dma_ns, target.hwdge_again_ns / tile.dn), hbm=num_bytes * target.hbm_byte_ns)
        run = run_of(height, width, *geometry.x_strides[2:4])
        if self.row_by_row(k_tile):
            width = min(geometry.columns.size, folded_width(geometry, k_tile, tile.qn))
            run = max(1, min(run, width))
        return self.moved(parts, height * width, run, item)

    def row_by_row(self, k_tile: KTile) -> bool:
        """Whether rows of x of a K tile are loaded one by one, because zeros lie between them."""
        columns = self.geometry.columns
        rest = columns.size - (columns.out - 1) * columns.stride - (columns.taps - 1) * columns.dilation - 1
        dense = k_tile.depth == 1 and columns.before == 0 and 0 <= rest < columns.stride
        return k_tile.pairing != STAGED and (k_tile.depth > 1 or k_tile.stores_zeros) and not dense

    def filters(self, m_tile: MTile) -> Busy:
        """Loads of a K tile's filters of an M tile, in memory order."""
        geometry, channels = self.geometry, m_tile.k_tiles[0].cn // m_tile.pack
        if by_input(geometry):
            return self.moved(m_tile.k_tiles[0].cn, m_tile.kn * self.taps, m_tile.kn * self.taps)
        inside = geometry.w_strides[3] == 1  # else single elements: channels lie between taps
        run = self.taps * (channels if geometry.w_strides[1] == self.taps else 1) if inside else 1
        return self.moved(m_tile.kn, channels * self.taps, run)

    def filters_there_ns(self, m_tile: MTile) -> float:
        """ns from a core's start until the first block of an M tile's filters is loaded."""
        return first_load_ns(self.target) + self.filters(m_tile).dma * self.first_block(m_tile)

    def move_ns(self, m_tile: MTile) -> float:
        """ns of DMA to transpose the filters of an M tile within SBUF."""
        num_bytes = len(m_tile.k_tiles) * self.taps * m_tile.kn * P_MAX * self.geometry.itemsize
        return float(num_bytes * self.target.byte_ns / (self.target.dma_engines * self.target.transpose_rate_sbuf))


def run_of(height: float, width: float, row_step: int, column_step: int) -> float:
    """Elements of a run in an image of one channel: the whole image, a row, or one element."""
    return 1 if column_step > 1 else max(1, width if row_step > width else height * width)
