"""A bound for `implicit_gemm`: its busiest engine, of the array for matmuls and transposes, DMA for x, filters and
results, and GpSimd; from the first filters on, at the throttle's rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ....kernels.conv.transposes import is_transposed
from ....schedules.cuts import tap_blocks
from ....schedules.geometry import filter_rows, num_taps
from ....schedules.implicit_gemm_channels import (
    ALONE,
    HALVES,
    STAGED,
    KTile,
    by_input,
    can_move,
    is_depthwise_m_tile,
    m_tile_axis,
    stores_channels,
    sums_pitch,
    tap_groups,
    word_of,
)
from ....schedules.implicit_gemm_outputs import banks_of, folded_width, images_together, row_parts
from ....schedules.implicit_gemm_products import RAW_BYTES
from ....schedules.implicit_gemm_schedule import kinds_of
from ....schedules.options import NO_PROLOGUE, Prologue
from ....schedules.pairs_of_planes import planes_at_once
from ....schedules.tiles import BANK_BYTES, BANK_COLUMNS, PARTS, div_ceil, share, whole_words
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..clock import Clock
from .common import last_ns, matmul_rates, met_outputs, planes_seen, prologue_ns

#: ns until the first x that DMA transposes is there, besides its bytes' time: its trigger, and filters that come
#: between. Calibrated on the golden table's rows of NHWC (whisper_conv2_s2, rn50_proj_s2, rn50_c5).
TRANSPOSED_NS = 1000.0
#: ns until DMA has transposed the first block of an M tile's filters: an engine's copy, the trigger, the first packet,
#: the end (trn2.toml, dma.hwdge_*).
MOVE_NS = 4000.0
#: ns until zeros are there to warm the array up with.
ZEROS_NS = 220.0
#: Share of the array's time that DMA may take, so that what is needed next is not late.
DMA_SHARE = 0.9


def bound_ns(target: Target, geometry: Any, plan: Any) -> float:
    """ns of the busier of two cores."""
    parts = [share(len(plan.items), PARTS, half) for half in range(PARTS)]
    work, m_tiles = (
        Work(target, geometry, plan.options.prologue),
        [m_tile for batch in plan.batches for m_tile in batch],
    )
    by_channels = plan.settings.shard == "channels" and len(m_tiles) > 1
    others_ns = max(
        work.dma_ns(m_tiles, by_channels, len(plan.batches)),
        work.gpsimd_ns(m_tiles, by_channels),
        work.prologue_ns(m_tiles, by_channels, len(plan.batches)),
        work.statistics_ns(m_tiles) if plan.options.statistics else 0.0,
    )
    return max(_core_ns(work, plan, plan.items[first : first + count], others_ns) for first, count in parts if count)


def _core_ns(work: Work, plan: Any, items: Sequence[Any], others_ns: float) -> float:
    """ns of a core for its items, in which other engines take so long."""
    target, first, last, clock = work.target, items[0], items[-1], Clock(work.target)
    clock.stream(ZEROS_NS, plan.warmup * PARTITIONS * target.tensor_column_ns)
    start_ns = _start_ns(work, plan.batches[first.batch][0], first)
    array_ns = busy_ns = 0.0
    for batch, same in groupby(items, key=lambda item: item.batch):
        out_tiles, m_tiles = (
            [(item.out_tile, len(banks_of(item.out_tile, item.last))) for item in same],
            plan.batches[batch],
        )
        pixels = sum(out_tile.zn * out_tile.pn * out_tile.qn for out_tile, _ in out_tiles)
        for each_ns in (
            work.part_ns(m_tiles, pixels, sum(banks for _, banks in out_tiles)),
            work.transposing_ns(m_tiles[: plan.moved[batch]]),
        ):
            array_ns, busy_ns = array_ns + each_ns[0], busy_ns + each_ns[1]
    summed_ns = clock.sums_end(start_ns, array_ns, busy_ns)
    if is_transposed(work.geometry):  # one queue triggers the transposes of x
        others_ns = max(others_ns, sum(len(plan.k_tiles[item.batch]) for item in items) * target.hwdge_again_ns)
    bank = banks_of(last.out_tile, last.last)[-1]
    behind_ns, _ = work.part_ns(plan.batches[last.batch][:1], bank.zn * bank.pn * bank.qn, 1)
    return max(summed_ns, start_ns + others_ns + behind_ns) + last_ns(target, 1 + stores_channels(work.geometry))


def _start_ns(work: Work, m_tile: Any, item: Any) -> float:
    """ns from which on a core's first sums go on without a wait for filters or the first rows of x."""
    target, geometry, k_tiles, k_tile = work.target, work.geometry, len(m_tile.k_tiles), m_tile.k_tiles[0]
    bank, parts = banks_of(item.out_tile, False)[0], row_parts(geometry, item.out_tile, True, m_tile.rows)
    each_ns = k_tile.slots * work.filters_ns(m_tile) * work.filters_on(m_tile)
    if parts:
        each_ns += k_tile.slots * work.rows_ns(item.out_tile, k_tile, parts[0][1])
    done_ns = (1 - 1 / k_tiles) * work.part_ns([m_tile], bank.zn * bank.pn * bank.qn, 1)[0]
    done_ns += work.transposing_ns([m_tile])[0]
    come_ns = TRANSPOSED_NS if is_transposed(geometry) else 0.0
    come_ns += target.first_packet_ns + target.load_skew_ns + target.dma_end_ns + target.dma_done_ns
    return float(max(work.stationaries_there_ns(m_tile), come_ns + k_tiles * each_ns - done_ns))


class Work:
    """What the array and the DMA engines of two cores are given by the M tiles of a problem."""

    def __init__(self, target: Target, geometry: Any, prologue: Prologue = NO_PROLOGUE) -> None:
        self.target = target
        self.geometry = geometry
        self.prologue = prologue
        self.taps: int = num_taps(geometry)
        #: those that a filter has in HBM for an input channel
        self.hbm_taps: int = num_taps(geometry.direct or geometry)
        #: planes of x that output tiles of one plane of outputs see, together
        self.planes: float = geometry.planes.out * planes_seen(geometry)
        self.outputs: int = geometry.planes.out * geometry.rows.out * geometry.columns.out
        passes = target.transpose_passes_fp32 if geometry.itemsize == 4 else 1
        #: ns of the array for a transpose of 128 columns
        self.transpose_ns = PARTITIONS * target.tensor_column_ns * passes + target.matmul_ns
        # outputs that taps meet, each tap's counted: along columns, and along rows by rows of an M tile, behind its
        # taps
        self._columns_met = met_outputs(geometry.columns)
        self._rows: dict[int, tuple[int, int]] = {}

    def array_ns(self, m_tiles: Sequence[Any]) -> float:
        """ns of the array for all matmuls, at its full rate; taps are clipped to what they meet of x."""
        return self.part_ns(m_tiles, self.outputs, self._banks(m_tiles))[0]

    def part_ns(self, m_tiles: Sequence[Any], pixels: int, banks: int) -> tuple[float, float]:
        """(`array_ns` of so many outputs in so many banks, those of them in which the array works: matmuls of few
        columns keep it waiting)."""
        geometry, target, part = self.geometry, self.target, pixels / self.outputs
        column_ns, fixed_ns = matmul_rates(target, geometry)
        total, work, kinds = 0.0, 0.0, kinds_of(geometry)
        for (together, depth, how), count in self._k_tiles(m_tiles).items():
            columns, passes = self._columns_of(together, KTile(0, 0, depth, how))
            columns, matmuls = kinds * columns * part, kinds * div_ceil(banks, together) * passes
            one_ns = max(columns, matmuls * target.matmul_columns_min) * column_ns + matmuls * fixed_ns
            total += count * one_ns
            work += count * columns * column_ns
        out_ns = self._transposed_out_ns(m_tiles) * part
        return total + out_ns, work + out_ns * min(1.0, m_tiles[0].kn / target.matmul_columns_min)

    def _k_tiles(self, m_tiles: Sequence[Any]) -> Counter[tuple[int, int, str]]:
        """K tiles of M tiles, by rows of outputs that an M tile makes at once, columns of taps of a matmul, and
        pairs."""
        found: Counter[tuple[int, int, str]] = Counter()
        for m_tile in m_tiles:
            if m_tile.rows not in self._rows:
                rows = m_tile_axis(self.geometry, m_tile)
                self._rows[m_tile.rows] = self.geometry.planes.taps * rows.taps, met_outputs(rows)
            k_tiles = m_tile.k_tiles
            found[(m_tile.rows, *k_tiles[0][2:4])] += max(0, len(k_tiles) - 2)
            for k_tile in k_tiles[-2:]:  # only these may be folded, or pair otherwise
                found[(m_tile.rows, *k_tile[2:4])] += 1
        return found

    def _columns_of(self, together: int, k_tile: Any) -> tuple[float, int]:
        """(columns that the matmuls of a K tile have, matmuls of a bank); together: rows of outputs of its M tile."""
        geometry = self.geometry
        taps, rows_met = self._rows[together]
        groups = tap_groups(geometry, k_tile)
        if k_tile.stores_zeros:
            passes = div_ceil(taps * groups, 2)
            pixels = geometry.planes.out * self._apart([k_tile]) * geometry.columns.out
            return pixels * (taps * groups / 2 if k_tile[3] == HALVES else passes), passes
        columns_met = groups * geometry.columns.out if k_tile[2] > 1 else self._columns_met
        columns = met_outputs(geometry.planes) * rows_met * columns_met
        if k_tile[3] != ALONE:
            columns *= self._apart([k_tile]) / geometry.rows.out
        return columns, taps * groups

    def _apart(self, k_tiles: Sequence[Any]) -> int:
        """Rows of sums from one image to the next."""
        return int(sums_pitch(self.geometry, k_tiles, images_together(self.geometry, k_tiles), self.geometry.rows.out))

    def _banks(self, m_tiles: Sequence[Any]) -> int:
        """Banks of the sums of an M tile."""
        k_tiles, pixels = m_tiles[0].k_tiles, self.geometry.rows.out * self.geometry.columns.out
        if pixels <= BANK_COLUMNS and any(k_tile[3] != ALONE for k_tile in k_tiles):
            return int(div_ceil(self.geometry.planes.out, images_together(self.geometry, k_tiles)))
        return int(div_ceil(self.outputs, BANK_COLUMNS))

    def sums_ns(self, m_tiles: Sequence[Any], by_channels: bool) -> float:
        """ns of the array of the busier of two cores for all matmuls."""
        all_ns = self.array_ns(m_tiles)
        if by_channels:
            part_ns = self.array_ns(m_tiles[: share(len(m_tiles), PARTS, 0)[1]])
            return max(part_ns, all_ns - part_ns)
        return all_ns / min(self._banks(m_tiles), PARTS)

    def core_ns(self, m_tiles: Sequence[Any], by_channels: bool) -> float:
        """ns of the busier of two cores that share output channels, or images and rows, from the first filters on."""
        return max(
            self.sums_ns(m_tiles, by_channels),
            self.dma_ns(m_tiles, by_channels),
            self.gpsimd_ns(m_tiles, by_channels),
            self.prologue_ns(m_tiles, by_channels),
        )

    def prologue_ns(self, m_tiles: Sequence[Any], by_channels: bool, groups: int = 1) -> float:
        """ns of Scalar of a core for all x, of each group of M tiles anew, and each copy of folded channels."""
        geometry, k_tiles = self.geometry, div_ceil(self.geometry.C, PARTITIONS)
        if geometry.groups == 1:
            k_tiles = sum(k_tile.depth for k_tile in m_tiles[0].k_tiles)
        images = geometry.planes.size / geometry.image_planes
        elements = k_tiles * self.planes * geometry.rows.size * geometry.columns.size
        all_ns = groups * prologue_ns(self.target, self.prologue, elements, k_tiles, images)
        return all_ns / PARTS if groups > 1 or not by_channels else all_ns

    def statistics_ns(self, m_tiles: Sequence[Any]) -> float:
        """ns of Vector of a core for the bn_stats of all outputs."""
        outputs = sum(self.outputs / m_tile.rows for m_tile in m_tiles)
        return float(outputs / PARTS * self.target.vector_ns)

    def gpsimd_ns(self, m_tiles: Sequence[Any], by_channels: bool) -> float:
        """ns of GpSimd of a core: diagonals of depthwise filters, or words of x of fp8 that it puts between zeros."""
        geometry, target, k_tile = self.geometry, self.target, m_tiles[0].k_tiles[-1]
        if is_depthwise_m_tile(geometry, m_tiles[0]):
            count = div_ceil(len(m_tiles), PARTS) if by_channels else len(m_tiles)
            return float(count * (target.gpsimd_fixed_ns + self.taps * m_tiles[0].kn * target.gpsimd_select_ns))
        if k_tile.pairing != STAGED:
            return 0.0
        copies, num_rows = k_tile.depth - 1, geometry.planes.size * geometry.rows.size / (1 if by_channels else PARTS)
        words = geometry.columns.size // word_of(geometry) + 2 + copies * (copies + 1) * geometry.columns.dilation
        return float(num_rows * words * target.gpsimd_ns)

    def row_by_row(self, k_tile: Any) -> bool:
        """Whether rows of x of a K tile come one by one, as zeros lie between them."""
        columns = self.geometry.columns
        rest = columns.size - (columns.out - 1) * columns.stride - (columns.taps - 1) * columns.dilation - 1
        dense = k_tile[2] == 1 and columns.before == 0 and 0 <= rest < columns.stride
        return k_tile[3] != STAGED and (k_tile[2] > 1 or k_tile.stores_zeros) and not dense

    def transposes_ns(self, m_tiles: Sequence[Any], by_channels: bool) -> float:
        """ns of the array to transpose a core's filters: all, or the first M tile's where DMA may do the others."""
        geometry = self.geometry
        count = div_ceil(len(m_tiles), PARTS) if by_channels else len(m_tiles)
        if can_move(geometry):
            idle_ns = max(0.0, self._dma_idle_ns(m_tiles, by_channels))
            count = max(1, count - int(idle_ns / self.move_ns(m_tiles[0])))
        return self.transposing_ns(m_tiles[:count])[0]

    def transposing_ns(self, m_tiles: Sequence[Any]) -> tuple[float, float]:
        """(ns of the array to transpose the filters of M tiles, those of them in which it works)."""
        geometry = self.geometry
        if geometry.packed > 0 or geometry.flipped or not m_tiles or is_depthwise_m_tile(geometry, m_tiles[0]):
            return 0.0, 0.0
        groups = sum(k_tile.slots * tap_groups(geometry, k_tile) for m_tile in m_tiles for k_tile in m_tile.k_tiles)
        count, target = filter_rows(geometry) * groups, self.target
        all_ns = count * self.transpose_ns
        busy_ns = all_ns * min(1.0, m_tiles[0].kn / target.matmul_columns_min)
        if m_tiles[0].pack > 1:
            # Vector spreads filters of several groups by pieces of a bank, and every other piece waits for the array
            taps, slow_ns = self.piece_taps(m_tiles[0]), self.transpose_ns / target.half_rate
            vector_ns = target.vector_16bit_ns if geometry.itemsize == 2 else target.vector_ns
            each_ns = m_tiles[0].k_tiles[0].cn * vector_ns
            spread_ns, hops_ns = target.vector_fixed_ns + each_ns, target.vector_done_ns + target.hop_tensor_ns
            hops_ns += each_ns + slow_ns + target.matmul_done_half_ns + target.hop_ns
            read_ns = target.vector_fixed_psum_ns + taps * m_tiles[0].kn * target.vector_16bit_ns
            piece_ns = (hops_ns + read_ns + (2 * taps - 1) * spread_ns) / 2
            all_ns += count / taps * max(0.0, piece_ns - taps * slow_ns) * target.half_rate
        return all_ns, busy_ns

    def waits_for_dma(self, m_tiles: Sequence[Any], by_channels: bool) -> bool:
        """Whether the array has less to do than DMA, and waits for it all the time, or for what becomes pairs of it."""
        array_ns = self.sums_ns(m_tiles, by_channels) / kinds_of(self.geometry) + self.transposes_ns(
            m_tiles, by_channels
        )
        return bool(self.dma_ns(m_tiles, by_channels) > array_ns)

    def dma_ns(self, m_tiles: Sequence[Any], by_channels: bool, groups: int = 1) -> float:
        """ns of the DMA engines, or HBM, of one of two cores for x, filters and results, by the runs they come in.

        groups: of M tiles, for each of which x is loaded.
        """
        geometry, target = self.geometry, self.target
        rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
        height, width = rows.size // geometry.upsample, columns.size // geometry.upsample
        x_image = target.image_ns(height, width, geometry.x_strides[2], geometry.x_strides[3], item)
        x_rows = height * target.row_ns(width, geometry.x_strides[3], item)
        x_ns = self.planes * x_image * div_ceil(geometry.C, PARTITIONS)
        if is_transposed(geometry):
            x_ns = self.transposed_ns(self.planes * height * width * geometry.C / PARTITIONS)
        last = m_tiles[0].k_tiles[-1]
        if self.row_by_row(last):
            x_ns += self.planes * (last.slots * x_rows - x_image)
        y_ns = w_ns = 0.0
        planes = planes_at_once(geometry) * geometry.planes.out
        for m_tile in m_tiles:
            if stores_channels(geometry):
                y_ns += self.runs_out_ns(planes_at_once(geometry) * self.outputs, m_tile.kn)
            else:
                y_ns += planes * self.plane_out_ns(m_tile, rows.out, columns.out)
            w_ns += sum(k_tile.slots for k_tile in m_tile.k_tiles) * self.filters_ns(m_tile)
        channels = geometry.C + (last[1] if last[3] == HALVES else 0)
        x_bytes = self.planes * channels * height * width * item
        y_bytes = planes_at_once(geometry) * self.outputs * geometry.K * item
        w_bytes = geometry.K * (geometry.C // geometry.groups) * self.hbm_taps * item
        times = div_ceil(groups, PARTS) if by_channels else groups
        x_ns, x_bytes = times * x_ns, times * x_bytes
        if by_channels:
            engines_ns, num_bytes = x_ns + (w_ns + y_ns) / PARTS, x_bytes + (w_bytes + y_bytes) / PARTS
        else:
            engines_ns, num_bytes = w_ns + (x_ns + y_ns) / PARTS, w_bytes + (x_bytes + y_bytes) / PARTS
        return float(max(target.rows_an_engine * engines_ns, num_bytes * target.hbm_byte_ns))

    def rows_ns(self, out_tile: Any, k_tile: Any, height: int) -> float:
        """ns of DMA for so many rows of x of an output tile, of a K tile."""
        geometry, target = self.geometry, self.target
        _, _, by_h, by_w = geometry.x_strides[:4]
        if is_transposed(geometry):
            return target.rows_an_engine * self.transposed_ns(
                out_tile.dn * height * out_tile.wn * k_tile.cn / PARTITIONS
            )
        if self.row_by_row(k_tile):
            width = min(geometry.columns.size, folded_width(geometry, k_tile, out_tile.qn))
            rows_ns = height * target.row_ns(width, by_w, geometry.itemsize)
        else:
            rows_ns = target.image_ns(height, out_tile.wn, by_h, by_w, geometry.itemsize)
        return float(min(k_tile.cn * k_tile.depth, target.rows_an_engine) * out_tile.dn * rows_ns)

    def plane_out_ns(self, m_tile: Any, pn: int, qn: int) -> float:
        """ns of one DMA engine for so many rows and columns of results of an M tile, of one output channel."""
        (by_row, by_column), item = self.geometry.y_strides[2:4], self.geometry.itemsize
        if m_tile.rows > 1:
            return float(div_ceil(pn, m_tile.rows) * self.target.row_ns(qn, by_column, item))
        return float(self.target.image_ns(pn, qn, by_row, by_column, item))

    def filters_ns(self, m_tile: Any) -> float:
        """ns of one DMA engine for the filters of a K tile of an M tile, of one output channel, of a transposed
        convolution of one input channel."""
        geometry = self.geometry
        if by_input(geometry):
            return float(self.target.run_ns(m_tile.kn * self.taps * geometry.itemsize))
        channels = m_tile.k_tiles[0][1] // m_tile.pack
        taps = self.hbm_taps
        run = channels * taps if geometry.w_strides[3] == 1 and geometry.w_strides[1] == taps else 1
        return float(channels * taps / run * self.target.run_ns(run * geometry.itemsize))

    def filters_on(self, m_tile: Any) -> int:
        """Partitions of one DMA engine that the filters of a K tile of an M tile are on."""
        parts = m_tile.k_tiles[0][1] if by_input(self.geometry) else m_tile.kn
        return int(min(parts, self.target.rows_an_engine))

    def move_ns(self, m_tile: Any) -> float:
        """ns of DMA to transpose the filters of an M tile within SBUF."""
        target = self.target
        num_bytes = len(m_tile.k_tiles) * self.taps * m_tile.kn * PARTITIONS * self.geometry.itemsize
        return float(num_bytes * target.byte_ns / (target.dma_engines * target.transpose_rate_sbuf))

    def moved_m_tiles(self, m_tiles: Sequence[Any], out_tile: Any, by_channels: bool) -> int:
        """M tiles of each half whose filters DMA transposes, if they are not a core's first: as many as DMA has time
        for, where the matmuls of an M tile for an output tile take longer than that."""
        one_ns = self.move_ns(m_tiles[0])
        m_tile_ns = self.array_ns(m_tiles[:1]) * (out_tile.zn * out_tile.pn * out_tile.qn) / self.outputs
        if not can_move(self.geometry) or m_tile_ns < MOVE_NS + one_ns:
            return 0
        count = div_ceil(len(m_tiles), PARTS) if by_channels else len(m_tiles)
        return max(0, min(count, int(self._dma_idle_ns(m_tiles, by_channels) / one_ns)))

    def warm_count(self, m_tile: Any, most: int) -> int:
        """Matmuls of 128 columns at half rate from a core's start until the first filters of an M tile are there."""
        target = self.target
        idle_ns = self.filters_there_ns(m_tile) - ZEROS_NS
        return min(most, int(idle_ns * target.half_rate / (PARTITIONS * target.tensor_column_ns)))

    def filters_there_ns(self, m_tile: Any) -> float:
        """ns from a core's start until the first block of an M tile's filters is there."""
        geometry, target = self.geometry, self.target
        channels = m_tile.k_tiles[0][1] // m_tile.pack
        _, rn, _, sn = tap_blocks(geometry, channels, RAW_BYTES)[0]
        whole = geometry.w_strides[3] == 1 and geometry.w_strides[1] == self.hbm_taps
        load_ns = target.row_ns(channels * rn * sn, 1 if whole else 2, geometry.itemsize)
        if by_input(geometry):
            load_ns = self.filters_ns(m_tile)
        first_ns = target.static_issue_ns + target.first_packet_ns + target.load_skew_ns
        return float(first_ns + target.rows_an_engine * load_ns + target.dma_done_ns)

    def piece_taps(self, m_tile: Any) -> int:
        """Taps, or groups of folded ones, whose filters are transposed together: of a row, in one bank."""
        item = self.geometry.itemsize
        bank = max(1, BANK_BYTES // (whole_words(m_tile.kn, item) * item))
        return int(min(bank, tap_groups(self.geometry, m_tile.k_tiles[0])))

    def stationaries_there_ns(self, m_tile: Any) -> float:
        """ns from a core's start until the first filters of an M tile are stationaries."""
        geometry, target, there_ns = self.geometry, self.target, self.filters_there_ns(m_tile)
        if geometry.packed > 0 or geometry.flipped or is_depthwise_m_tile(geometry, m_tile):
            return there_ns
        taps = self.piece_taps(m_tile)
        passed_ns = taps * self.transpose_ns / target.half_rate + target.matmul_done_half_ns + target.hop_ns
        read_ns = taps * m_tile.kn * target.vector_16bit_ns + target.vector_fixed_psum_ns + target.vector_done_ns
        return float(there_ns + passed_ns + read_ns + target.hop_tensor_ns)

    def transposed_ns(self, elements: float) -> float:
        """ns of one DMA engine for its partitions' share of what DMA transposes; elements: of each partition."""
        target = self.target
        engines = target.dma_engines * target.transpose_rate * target.rows_an_engine
        return float(elements * self.geometry.hbm_itemsize * target.byte_ns * PARTITIONS / engines)

    def runs_out_ns(self, pixels: int, kn: int) -> float:
        """ns of one DMA engine for transposed results of an M tile, over the partitions it serves, for its share of
        pixels."""
        return pixels * self.target.run_ns(kn * self.geometry.itemsize) / PARTITIONS

    def _transposed_out_ns(self, m_tiles: Sequence[Any]) -> float:
        """ns of the array to transpose all results."""
        if not stores_channels(self.geometry):
            return 0.0
        return float(len(m_tiles) * div_ceil(self.outputs, PARTITIONS) * self.transpose_ns)

    def _dma_idle_ns(self, m_tiles: Sequence[Any], by_channels: bool) -> float:
        """ns that DMA has left besides x, filters and results, while the array is at work."""
        return DMA_SHARE * self.array_ns(m_tiles) / PARTS - self.dma_ns(m_tiles, by_channels)
