"""How long `banded` takes, about: the wait for the first products, the busiest engine, the last results' way out.

Matmuls on zeros are taken to bring the array to its full rate, as `planner.warm_up` finds as many, where its work keeps
it there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..simulator.hardware import PARTITIONS
from ..simulator.timing.target import Target
from .banded import BandedSchedule
from .banded_tiles import BandedTile, banded_cuts, in_pieces, is_ragged, out_pieces, plan_tile, sum_spans
from .depthwise import Options, RowGeometry, part_most
from .engines import Engines
from .tiles import BANK_COLUMNS, PARTS, div_ceil

#: Tiles of a part that are looked at: all, or those of a few places, which stand for the others.
LOOKED_AT = 6
#: Partitions below which the first rows are there before the filters of 128 channels.
ROWS_FIRST = 104
#: Share of a window's time in which matmuls on zeros bring the array to its full rate, and how much more work than its
#: threshold keeps it there.
WARM_SHARE, SURE = 0.45, 1.2
#: How little engines overlap of which several are nearly as busy as the busiest: a norm's power.
POWER = 4


class _Work(NamedTuple):
    """ns of one tile, by what they are spent on."""

    rows_in: float  # transposes of x
    products: float
    rows_out: float  # transposes of sums
    streamed: float  # columns of all these, without what the array waits for between them
    stall: float  # for sums to leave PSUM, before they are transposed
    read_in: float  # the last transposes of x, and of sums, out of PSUM
    read_out: float
    vector: float  # all read-outs, if Vector or Scalar did them
    scalar: float
    load: float
    store: float
    bands: float
    triggers: float


def bound_ns(geometry: RowGeometry, options: Options, blocks: BandedSchedule, target: Target) -> float:
    """ns of a core, about, with the matmuls on zeros that pay."""
    tiles = _tiles(geometry, blocks)
    if not tiles:
        return 0.0
    works = [_work(geometry, options, blocks, tile, target) for tile, _ in tiles]
    total = _Work(
        *(sum(values[i] * times for values, (_, times) in zip(works, tiles, strict=True)) for i in range(len(works[0])))
    )
    first, last, settings, item = works[0], works[-1], blocks.settings, geometry.itemsize
    groups, count = sum(tile.gn * times for tile, times in tiles), sum(times for _, times in tiles)
    size, channels = blocks.num_taps * blocks.block, min(blocks.per_group, geometry.C)
    there_ns = target.first_packet_ns + target.dma_end_ns + target.dma_done_ns
    stage_ns = target.matmul_done_ns + 2 * target.hop_ns + target.vector_done_ns
    run_ns = target.rows_an_engine * target.run_ns(size * item)
    triggers_ns = channels * (1 if settings.scratch else blocks.buffer_groups) * target.static_issue_ns
    # zeros of band buffers, of which Vector does two of three, and the filters
    zeros_ns = blocks.per_group * size * item / 4 * target.vector_memset_ns * 2 / 3 if blocks.per_group > 1 else 0.0
    all_zeros_ns = zeros_ns * min(settings.buffers * blocks.buffer_groups, groups)
    filters_ns = target.rows_an_engine * target.row_ns(geometry.S, geometry.w_s, item)
    rows_first = tiles[0][0].chunks_in * tiles[0][0].rows < ROWS_FIRST
    rows_ns = there_ns + target.static_issue_ns + first.load + (0.0 if rows_first else filters_ns)
    taps_ns = there_ns + target.static_issue_ns + filters_ns + (first.load if rows_first else 0.0)
    x_ns = (
        max(rows_ns, min(all_zeros_ns, 2 * zeros_ns * blocks.buffer_groups)) + first.rows_in + first.read_in + stage_ns
    )
    bands_ns = max(taps_ns, zeros_ns * blocks.buffer_groups) + there_ns + channels * target.static_issue_ns + run_ns
    # rows of the second tile are transposed from the first group on
    second_ns = rows_ns + works[1].load + run_ns if len(works) > 1 else 0.0
    start_ns = max(x_ns, bands_ns, second_ns)
    end_ns = last.rows_out + last.read_out + stage_ns + target.hop_ns + target.matmul_done_ns + target.hop_dma_ns
    end_ns += target.static_issue_ns + target.first_packet_ns + last.store + target.dma_end_ns
    # what keeps the array waiting: read-outs, triggers, the way of bands and of rows to their buffers, all DMA
    vector_ns = total.vector + all_zeros_ns
    read_ns = max(all_zeros_ns, vector_ns * total.scalar / (vector_ns + total.scalar))
    if options.epilogue.activation:
        read_ns = max(read_ns, total.scalar)
    loads = div_ceil(part_most(geometry.C, settings.shard == "channels"), PARTITIONS)
    moved_ns = total.load + total.store + total.bands + loads * filters_ns
    if settings.scratch:
        moved_ns += loads * target.rows_an_engine * target.run_ns((size + blocks.block) * item)
    cycle_ns = there_ns + target.hop_dma_ns + run_ns * blocks.buffer_groups + triggers_ns
    others = (
        read_ns - first.read_in - last.read_out,
        total.triggers - min(first.triggers, triggers_ns),
        cycle_ns * groups / (settings.buffers * blocks.buffer_groups),
        moved_ns - (start_ns - there_ns),
        (there_ns + total.load / count + target.hop_dma_ns) * (count - 2),
    )
    others_ns = max(others)
    tensor_ns = total.rows_in + total.products + total.rows_out
    work_ns = tensor_ns + total.stall * (len(tiles) > 1) - first.rows_in - last.rows_out
    recovers = total.streamed >= target.window_work / target.half_rate * tensor_ns
    if not recovers and total.streamed < SURE * target.window_work * max(work_ns, others_ns):
        work_ns, start_ns, end_ns = work_ns / target.half_rate, start_ns + first.rows_in, end_ns + last.rows_out
    else:
        full_at = target.window_ns * (1 if start_ns > WARM_SHARE * target.window_ns else 2)
        slow_ns = max(0.0, min(full_at - start_ns, work_ns / target.half_rate))
        work_ns += slow_ns * (1 - target.half_rate)
    busy_ns: float = sum(max(0.0, one) ** POWER for one in (work_ns, *others)) ** (1 / POWER)
    return start_ns + busy_ns + end_ns


def _tiles(geometry: RowGeometry, blocks: BandedSchedule) -> list[tuple[BandedTile, float]]:
    """Tiles of the part that is never the smaller one, and how many each stands for."""
    cuts = banded_cuts(blocks, geometry, PARTS - 1)
    columns, a_cut = len(cuts.columns), len(cuts.images) * len(cuts.columns)
    total = len(cuts.groups) * a_cut
    places = list(range(total))
    if total > LOOKED_AT:
        places = [0, 1, total // 3, total // 2, total - 2, total - 1]
    tiles = [plan_tile(blocks, cuts, place // a_cut, place % a_cut // columns, place % columns) for place in places]
    tiles[-1:] = [replace(tile, ends=True) for tile in tiles[-1:]]
    if total <= LOOKED_AT:
        return [(tile, 1.0) for tile in tiles]
    groups = sum(gn for _, gn in cuts.groups) * a_cut - tiles[0].gn - tiles[-1].gn
    between = [(tile, groups / (LOOKED_AT - 2) / tile.gn) for tile in tiles[1:-1]]
    return [(tiles[0], 1.0), *between, (tiles[-1], 1.0)]


def _work(geometry: RowGeometry, options: Options, blocks: BandedSchedule, tile: BandedTile, target: Target) -> _Work:
    fp32, item, epilogue, settings = geometry.itemsize == 4, geometry.itemsize, options.epilogue, blocks.settings
    column_ns, fixed_ns, in_ns = target.tensor_column_ns, target.matmul_ns, target.tensor_column_ns
    out_ns, copy_ns, least = target.tensor_column_ns, target.vector_16bit_ns, target.matmul_columns_min
    if fp32:
        column_ns, fixed_ns = target.tensor_column_fp32_ns, target.matmul_passes_fp32 * target.matmul_fp32_ns
        in_ns, copy_ns = in_ns * target.transpose_passes_fp32, target.vector_ns
    if epilogue.y_itemsize == 4 or epilogue.residual:
        out_ns = target.onezero_passes_fp32 * target.tensor_column_fp32_ns / target.matmul_passes_fp32
    size, channels = blocks.num_taps * blocks.block, min(blocks.per_group, geometry.C)
    rows, width = tile.chunks_in * tile.rows, blocks.per_group * blocks.out_block
    valid_range = max(1, min(blocks.num_taps, tile.data0 + tile.datan) - max(0, tile.data0 - tile.jn + 1))
    spans = sum_spans(tile)
    moved = [tile.repeats * tile.nn * tile.jn] if len(spans) == 1 else [jn for _, _, _, jn in spans]
    slots = BANK_COLUMNS // moved[0] if len(spans) == 1 else 1
    rows_in = tile.blocks_in * (max(least, rows) * in_ns + target.matmul_ns)
    products = tile.gn * valid_range * sum(max(least, columns) * column_ns + fixed_ns for columns in moved)
    rows_out = tile.blocks_out * (max(least, width) * out_ns + target.matmul_ns)
    streamed = (
        tile.gn * valid_range * sum(moved) * column_ns
        + tile.blocks_in * rows * in_ns
        + tile.blocks_out * width * out_ns
    )
    pieces_in, pieces_out = in_pieces(geometry, tile), out_pieces(blocks, tile)
    reads = pieces_in + pieces_out + len(spans) * (tile.gn if epilogue.bias else div_ceil(tile.gn, slots))
    x, sums, y = tile.blocks_in * rows, tile.gn * tile.nn * tile.jn, tile.blocks_out * width
    stall = target.matmul_done_ns + 2 * target.hop_ns + target.vector_done_ns + target.vector_fixed_psum_ns
    stall += min(slots, tile.gn) * sum(moved) / tile.repeats * target.vector_ns / 2
    run_in = max(1, min(tile.blocks_in * blocks.block, geometry.W))
    run_out = max(1, min(tile.blocks_out * blocks.out_block, geometry.Q))
    out_rows, engines, bands = tile.chunks_out * tile.rows, Engines(target), tile.gn * target.rows_an_engine
    row_ns, num_bytes = channels * target.row_ns(run_in, geometry.x_w, item), rows * channels * run_in * item
    y_ns = channels * target.row_ns(run_out, geometry.y_q, epilogue.y_itemsize)
    bands_ns, triggers = bands * target.run_ns(size * item), channels * tile.gn
    if settings.scratch:
        bands_bytes = tile.gn * blocks.per_group * blocks.block * size * item
        bands_ns = max(bands_ns, target.hbm_ns(bands_bytes, size * item))
        triggers = channels * div_ceil(tile.gn, blocks.buffer_groups)
    triggers += 2 * tile.chunks_in if is_ragged(blocks, tile) else 1 + 2 * (tile.chunks_in > 1)
    return _Work(
        rows_in=rows_in,
        products=products,
        rows_out=rows_out,
        streamed=streamed,
        stall=max(0.0, stall - rows_in - products * min(2, tile.gn - 1) / tile.gn),
        read_in=x * copy_ns * (1.0 if pieces_in == 1 else 0.6) + target.vector_fixed_psum_ns,
        read_out=y * target.vector_ns * (1.0 if pieces_out == 1 else 0.6) + target.vector_fixed_psum_ns,
        vector=x * copy_ns + (sums + y) * target.vector_ns + reads * target.vector_fixed_psum_ns,
        scalar=(x + sums + y) * target.scalar_ns + reads * target.scalar_fixed_ns,
        load=engines.busy_ns(rows, row_ns, num_bytes) if tile.datan else 0.0,
        store=engines.busy_ns(out_rows, y_ns, out_rows * channels * run_out * epilogue.y_itemsize),
        bands=bands_ns,
        triggers=triggers * target.static_issue_ns,
    )
