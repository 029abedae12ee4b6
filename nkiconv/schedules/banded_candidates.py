"""Settings of `banded` for kernels without any and for searches: sizes and shards of the least bound, that is the wait
for the first products, the busiest engine, and the evacuation and store of the last results.

The bound assumes that matmuls on zeros, whose number `planner.clock` finds, bring the Tensor Engine to its full rate if
its work keeps it there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..simulator.hardware import PARTITIONS
from ..simulator.timing.target import Target
from .banded import (
    BANDED_TILE_BYTES,
    BandedSchedule,
    BandedSettings,
    BandedTile,
    block_counts,
    build,
    fits,
    in_pieces,
    out_pieces,
    plan_tile,
    row_spans,
    spans_of,
    sum_spans,
    tile_columns,
)
from .depthwise import Options, RowGeometry, arrival_ns, gate_ns, inputs_of, part_most, shards_of
from .prices import Busy, Prices, array_end_ns, rows_ns
from .row_copies import copied
from .settings import Config, declarations, descended
from .tiles import BANK_COLUMNS, PARTS, div_ceil

#: Bytes of a run, one chunk of one row, at which a DMA has its full rate; the least bytes of a run in tiles of fewer
#: groups, with which a core has TILES tiles whose stages overlap.
RUN_BYTES, RUN_BYTES_MIN, TILES = 1024, 256, 4
#: Least columns of a matmul. Fewer take as long (pe.min_interval_rows), but leave the array idle, and it falls to half
#: rate below 3/8 of its capacity (throttle.threshold): 64 of 128 keep it at full rate, 96 also bring it back there,
#: which pays if a core's bands take longer than STREAMED_NS.
STREAMED, STREAMED_LONG, STREAMED_NS = 64, 96, 15000.0
#: Matmuls of 512 columns of zeros while the array waits for the first rows: it runs at half rate until it has been busy
#: for 3/8 of its full capacity in a window of 3.4 us (trn2.toml, throttle.*), and 6 of them are 1.3 us of it. REWARM
#: more, at full rate, fill the evacuation of the first blocks. They do not pay if a core's bands take less than
#: WARM_UP_NS.
WARM_UP, REWARM, WARM_UP_NS = 6, 4, 2500.0
#: Band buffers, most groups of a buffer, and ns of work that all of them together should hold: the latency of a DMA
#: from the last use of a buffer to its next (dma.static_first_packet_ns, dma.receipt_ns and the transfer).
BUFFERS, BUFFER_GROUPS, BUFFERED_NS = 4, 8, 2500.0
#: Bytes a partition of all band buffers together; twice as many if the bands of one group are large.
BAND_BYTES = 65536
#: Starts (sizes and a shard) whose other settings are tried, and the largest ratio of their bound to the least; the
#: settings that keep a start's values, as the bound does not rank them.
REFINED, NEAR = 3, 1.3
KEPT = frozenset(("block", "shard", "buffers", "buffer_groups", "streamed", "warmup", "rewarm", "x_stationary"))
#: Tiles of a core with x stationary, twice as many with a factor of x, which is one more stage; all tiles are of one
#: size, as each overlaps the stages of others.
ROW_TILES = 8


def complete(geometry: RowGeometry, options: Options, config: Config, target: Target) -> BandedSettings:
    """All settings of a supported config, its open ones filled in by the least bound."""
    if config is not None and len(config) == len(declarations(BandedSettings)):
        return BandedSettings.read(config)
    return candidates(geometry, options, config, target)[0][0]


@functools.lru_cache(maxsize=256)
def candidates(
    geometry: RowGeometry, options: Options, config: Config, target: Target
) -> tuple[tuple[BandedSettings, float], ...]:
    """(settings, ns) that a config allows, the least ns first: all sizes and shards, and the best of them with their
    other settings changed one at a time as long as ns fall."""
    found = starts(geometry, options, config, target)
    near = {one: ns for one, ns in found if ns <= NEAR * found[0][1]}
    for one in [one for one in list(near)[:REFINED] if near[one] < float("inf")]:
        near |= descended(
            one,
            lambda other: ns_of(geometry, options, other, target),
            lambda other: near_of(geometry, options, other),
            KEPT | dict(config or ()).keys(),
        )
    return tuple(sorted(near.items(), key=lambda each: each[1]))


@functools.lru_cache(maxsize=256)
def starts(
    geometry: RowGeometry, options: Options, config: Config, target: Target
) -> tuple[tuple[BandedSettings, float], ...]:
    """(settings, ns) of all sizes and shards that a config allows, the least ns first; with the smallest tiles and
    buffers if no others fit SBUF."""
    given = dict(config or ())
    ways = [False, True] if geometry.dilation == 1 else [False]
    found = [
        filled(geometry, target, given, size, shard, x_stationary)
        for size in ([given["block"]] if "block" in given else blocks_of(geometry.stride))
        for shard in ([given["shard"]] if "shard" in given else shards_for(geometry, size))
        for x_stationary in ([given["x_stationary"]] if "x_stationary" in given else ways)
    ]
    for some in (found, [replace(one, **{**SMALLEST, **given}) for one in found]):
        priced = [(one, ns_of(geometry, options, one, target)) for one in some]
        if any(ns < float("inf") for _, ns in priced):
            break
    return tuple(sorted(priced, key=lambda each: each[1]))


def ns_of(geometry: RowGeometry, options: Options, settings: BandedSettings, target: Target) -> float:
    """ns of settings, about; infinity if they do not fit."""
    blocks = build(geometry, options, settings)
    if settings.images * settings.groups > PARTITIONS or not fits(geometry, options, blocks):
        return float("inf")
    return bound_ns(geometry, options, blocks, target)


def near_of(geometry: RowGeometry, options: Options, now: BandedSettings) -> list[tuple[tuple[str, Any], ...]]:
    """Configs that differ from these settings in one setting, or in how the channels of a DMA are groups'."""
    blocks, sizes = build(geometry, options, now), sorted({*blocks_of(geometry.stride), now.block})
    place, groups = sizes.index(now.block), part_most(blocks.num_groups, now.shard == "channels")
    even = (div_ceil(groups, tiles) for tiles in range(1, 5))
    sized = {name: getattr(blocks, name) for name in ("groups", "buffer_groups", "images")}
    by_shape: dict[str, Any] = {
        "groups": [
            one
            for one in (blocks.groups // 2, 2 * blocks.groups, *even)
            if one <= min(PARTITIONS // blocks.images, groups)
        ],
        "block": sizes[max(0, place - 1) : place + 2],
        "shard": shards_of(geometry),
        **({} if geometry.N > 1 else {"images": []}),
    }
    shares = (
        (blocks.joined, 2 * blocks.buffer_groups),
        (2 * blocks.joined, div_ceil(blocks.buffer_groups, 2)),
        (blocks.joined // 2, 2 * blocks.buffer_groups),
    )
    found: list[tuple[tuple[str, Any], ...]]
    found = [replace(now, joined=joined, buffer_groups=some).pairs for joined, some in shares if joined > 0]
    found += BandedSettings.near(now.pairs, {**dict(now.pairs), **sized}, **by_shape)
    # fewer triggers, where the array's wait for larger buffers would leave it at half rate
    if now.streamed < STREAMED_LONG:
        found.append(replace(now, buffer_groups=2 * blocks.buffer_groups, streamed=STREAMED_LONG).pairs)
    return found


#: Settings of the smallest tiles and buffers.
SMALLEST = {"groups": 1, "images": 1, "buffer_groups": 1, "buffers": 1}


def first(geometry: RowGeometry, options: Options, target: Target) -> list[BandedSettings]:
    """The settings that a search begins with: the start of the least bound."""
    return [starts(geometry, options, None, target)[0][0]]


def blocks_of(stride: int) -> list[int]:
    """Block sizes: powers of two up to 128, rounded down to multiples of the stride, and the stride at least."""
    sizes = [max(1, 2**power // stride) * stride for power in range(1, 8)]
    return list(dict.fromkeys(size for size in sizes if size <= PARTITIONS)) or [stride]


def shards_for(geometry: RowGeometry, block: int) -> list[str]:
    """Axes that the cores can share, channels first, whose filters are loaded once; columns if no other axis can."""
    _, _, num_groups, num_columns = block_counts(geometry, block)
    found = ["channels"] if num_groups >= PARTS else []
    found += ["batch"] if geometry.N >= PARTS else []
    return [*found, "columns"] if not found or num_columns >= PARTS else found


def filled(
    geometry: RowGeometry, target: Target, given: Mapping[str, Any], block: int, shard: str, x_stationary: bool
) -> BandedSettings:
    """All settings of a block size, a shard and a stationary operand: the given ones, and the others by rules."""
    item = geometry.itemsize
    per_group, num_taps, num_groups, num_columns = block_counts(geometry, block)
    images = max(1, min(geometry.N, BANK_COLUMNS // num_columns, PARTITIONS // given.get("groups", 1)))
    images = min(given.get("images", images), geometry.N)
    group_ns = num_taps * max(target.matmul_columns_min, num_columns * images)
    group_ns *= Prices(target, geometry).column_ns
    images = min(images, part_most(geometry.N, shard == "batch"))

    columns = tile_columns(geometry, shard, images, num_taps, num_columns)
    rows, row_bytes, core_groups = PARTITIONS // images, columns * block * item, div_ceil(num_groups, PARTS)
    groups = max(div_ceil(core_groups, TILES), rows // max(1, row_bytes // RUN_BYTES_MIN))
    tile_groups = BANDED_TILE_BYTES // (images * (columns + num_taps) * item)
    groups = max(1, min(groups, rows // max(1, row_bytes // RUN_BYTES), tile_groups, rows))
    if x_stationary:
        groups = min(groups, max(1, core_groups // (inputs_of(geometry) * ROW_TILES)))
    groups = min(given.get("groups", groups), core_groups if shard == "channels" else num_groups)

    bands_ns = core_groups * div_ceil(geometry.N, images) * group_ns
    warmup = WARM_UP if bands_ns > WARM_UP_NS else 0
    band_bytes = per_group * num_taps * block * item
    # as many groups as a DMA's latency lasts, and its triggers
    lasting = max(BUFFERED_NS / BUFFERS, per_group * target.static_issue_ns) / group_ns
    buffer_groups = max(1, min(BUFFER_GROUPS, int(lasting) + 1, BAND_BYTES // (band_bytes * BUFFERS), groups))

    found = BandedSettings(
        block=block,
        shard=shard,
        groups=groups,
        images=images,
        buffer_groups=buffer_groups,
        buffers=max(1, min(BUFFERS + 1, 2 * BAND_BYTES // band_bytes)),
        joined=1,
        streamed=STREAMED_LONG if bands_ns > STREAMED_NS else STREAMED,
        warmup=warmup,
        rewarm=min(warmup, REWARM),
        x_stationary=x_stationary,
    )
    return replace(found, **given)


class _Work(NamedTuple):
    """A tile's Busy; ns until its sums are evacuated; of its stages: x transposed and evacuated, y too, load, store."""

    busy: Busy
    stall: float
    rows_in: float
    read_in: float
    rows_out: float
    read_out: float
    load: float
    store: float


def bound_ns(geometry: RowGeometry, options: Options, blocks: BandedSchedule, target: Target) -> float:
    """ns of a core, about, with the matmuls on zeros that pay."""
    geometry, copies_ns = copied(geometry, options, target)
    tiles = _tiles(geometry, blocks)
    if not tiles:
        return 0.0
    works, busy = [_work(geometry, options, blocks, tile, target) for tile, _ in tiles], Busy()
    for work, (_, times) in zip(works, tiles, strict=True):
        busy.add(work.busy, times)
        busy.tensor += work.stall * times * (len(tiles) > 1)
    first, last, settings, item = works[0], works[-1], blocks.settings, geometry.itemsize
    groups, count = sum(tile.gn * times for tile, times in tiles), sum(times for _, times in tiles)
    there_ns = target.first_packet_ns + target.dma_end_ns + target.dma_done_ns
    stage_ns = target.matmul_done_ns + 2 * target.hop_ns + target.vector_done_ns
    # zeros of band buffers, two of three by Vector; and the filters
    zeros_ns = blocks.per_group * blocks.num_taps * blocks.block * item / 4 * target.vector_memset_ns * 2 / 3
    zeros_ns *= blocks.per_group > blocks.joined
    all_zeros_ns = zeros_ns * min(settings.buffers * blocks.buffer_groups, groups)
    a_row = blocks.buffer_groups * blocks.joined
    z_rows = div_ceil(part_most(geometry.C, settings.shard == "channels"), a_row)
    filters_ns = a_row * min(target.rows_an_engine, z_rows) * target.row_ns(geometry.S, geometry.w_s, item)
    x_ns = max(there_ns + target.static_issue_ns + first.load, min(all_zeros_ns, 2 * zeros_ns * blocks.buffer_groups))
    # a buffer's bands: triggers, latency, bytes
    triggers_ns = div_ceil(min(blocks.per_group, geometry.C), blocks.joined) * target.static_issue_ns
    loaded_ns = there_ns + triggers_ns + _bands_ns(target, geometry, blocks) * blocks.buffer_groups
    bands_ns = max(there_ns + target.static_issue_ns + filters_ns, zeros_ns * blocks.buffer_groups) + loaded_ns
    start_ns = max(x_ns + first.rows_in + first.read_in + stage_ns, bands_ns)
    end_ns = last.rows_out + last.read_out + target.hop_ns + target.matmul_done_ns + target.hop_dma_ns
    end_ns += 0.0 if settings.x_stationary else stage_ns
    end_ns += target.static_issue_ns + target.first_packet_ns + last.store + target.dma_end_ns
    both_ns = busy.vector + all_zeros_ns
    read_ns = max(all_zeros_ns, both_ns * busy.scalar / (both_ns + busy.scalar)) - first.read_in - last.read_out
    # other limits: latency of bands, latency of rows
    cycle_ns = (loaded_ns + target.hop_dma_ns) * groups / (settings.buffers * blocks.buffer_groups)
    others = (
        max(read_ns, busy.scalar if options.epilogue.activation else 0.0),
        busy.issued - triggers_ns,
        cycle_ns,
        busy.dma + div_ceil(z_rows, PARTITIONS) * filters_ns - (start_ns - there_ns),
        (there_ns + first.load + target.hop_dma_ns) * (count - 2),
    )
    work_ns = busy.tensor - first.rows_in - last.rows_out
    share = busy.streamed / max(SURE * max(work_ns, *others), target.window_ns)
    work_ns = array_end_ns(target, start_ns, work_ns, share) - start_ns
    busy_ns: float = sum(max(0.0, one) ** POWER for one in (work_ns, *others)) ** (1 / POWER)
    return copies_ns + start_ns + busy_ns + end_ns


#: Most tiles of a part that a bound reads; of more tiles these many stand for all.
LOOKED_AT = 6
#: Ratio of the Tensor Engine's work to the throttle's threshold that keeps it at full rate.
SURE = 1.2
#: Power of the norm of the engines' times: the smaller, the less engines overlap that are about equally busy.
POWER = 4


def _bands_ns(target: Target, geometry: RowGeometry, blocks: BandedSchedule) -> float:
    """A DMA engine's ns for a group's bands, of which one DMA loads `joined` side by side."""
    size = blocks.num_taps * blocks.block * geometry.itemsize
    return target.rows_an_engine * target.run_ns(blocks.joined * size)


def _tiles(geometry: RowGeometry, blocks: BandedSchedule) -> list[tuple[BandedTile, float]]:
    """(tile, tiles that it stands for) of the larger part: the first, some of those between, the last."""
    spans = spans_of(blocks, geometry, PARTS - 1)
    beside, total = len(spans[2]), math.prod(map(len, spans))
    between = range(1, total - 1) if total <= LOOKED_AT else (1, total // 3, total // 2, total - 2)
    found = []
    for at in sorted({0, *between, total - 1}) if total else ():
        place = spans[0][at // (len(spans[1]) * beside)], spans[1][at // beside % len(spans[1])], spans[2][at % beside]
        times = (total - 2) / len(between) if at in between else 1.0
        found.append((replace(plan_tile(blocks, *place), ends=at == total - 1), times))
    return found


def _work(geometry: RowGeometry, options: Options, blocks: BandedSchedule, tile: BandedTile, target: Target) -> _Work:
    item, epilogue, settings = geometry.itemsize, options.epilogue, blocks.settings
    prices, out_ns, least = Prices(target, geometry), target.tensor_column_ns, target.matmul_columns_min
    in_ns, copy_ns = out_ns * (target.transpose_passes_fp32 if item == 4 else 1.0), target.copy_ns(item)
    if epilogue.y_itemsize == 4 or epilogue.residual:
        out_ns = target.onezero_passes_fp32 * target.tensor_column_fp32_ns / target.matmul_passes_fp32
    channels = min(blocks.per_group, geometry.C)
    rows, width = tile.chunks_in * tile.rows, blocks.per_group * blocks.out_block
    valid_range = max(1, min(blocks.num_taps, tile.data0 + tile.datan) - max(0, tile.data0 - tile.jn + 1))
    rows_in = tile.blocks_in * prices.transpose_ns(rows)
    x, pieces_in, pieces_out = tile.blocks_in * rows, in_pieces(geometry, tile), out_pieces(blocks, tile)
    if settings.x_stationary:
        banks, moved, slots = len(row_spans(blocks, tile)), [width] * tile.step_out, 1
        valid_range, rows_out, pieces_out = blocks.num_taps, 0.0, 0
        sums, y = tile.gn * tile.step_out * width, 0
        out_rows, run_out = tile.chunks_out * tile.nn, tile.step_out * blocks.out_block
        y_runs = channels * tile.gn
    else:
        spans = sum_spans(tile)
        banks = len(spans)
        moved = [tile.repeats * tile.nn * tile.jn] if banks == 1 else [jn for _, _, _, jn in spans]
        slots = BANK_COLUMNS // moved[0] if banks == 1 else 1
        rows_out = tile.blocks_out * (max(least, width) * out_ns + target.matmul_ns)
        sums, y = tile.gn * tile.nn * tile.jn, tile.blocks_out * width
        out_rows, run_out, y_runs = tile.chunks_out * tile.rows, tile.blocks_out * blocks.out_block, channels
    products = tile.gn * valid_range * sum(map(prices.matmul_ns, moved))
    streamed = tile.gn * valid_range * sum(moved) * prices.column_ns + tile.blocks_in * rows * in_ns
    streamed += tile.blocks_out * width * out_ns if y else 0.0
    if epilogue.bias:  # products with ones
        products += max(sums, tile.gn * banks * least) * target.tensor_column_ns + tile.gn * banks * target.matmul_ns
    reads = pieces_in + pieces_out + banks * div_ceil(tile.gn, slots)
    stall = target.matmul_done_ns + 2 * target.hop_ns + target.vector_done_ns + target.vector_fixed_psum_ns
    stall += min(slots, tile.gn) * sum(moved) / tile.repeats * target.vector_ns / 2 - rows_in
    stall = max(0.0, stall - products * min(2, tile.gn - 1) / tile.gn)
    run_in = max(1, min(tile.blocks_in * blocks.block, geometry.W))
    run_out = max(1, min(run_out, geometry.Q))
    row_ns, num_bytes = channels * target.row_ns(run_in, geometry.x_w, item), rows * channels * run_in * item
    load = inputs_of(geometry) * rows_ns(target, rows, row_ns, num_bytes) if tile.datan else 0.0
    y_ns = y_runs * target.row_ns(run_out, geometry.y_q, epilogue.y_itemsize)
    store = rows_ns(target, out_rows, y_ns, out_rows * y_runs * run_out * epilogue.y_itemsize)
    triggers = div_ceil(channels, blocks.joined) * div_ceil(tile.gn, blocks.buffer_groups) + 2
    busy = Busy(
        tensor=rows_in + products + rows_out,
        streamed=streamed,
        vector=x * (copy_ns + gate_ns(geometry, target))
        + (sums + y) * target.vector_ns
        + reads * target.vector_fixed_psum_ns,
        scalar=(x + sums + y) * target.scalar_ns + x * arrival_ns(geometry, target) + reads * target.scalar_fixed_ns,
        dma=load + store + tile.gn * _bands_ns(target, geometry, blocks),
        issued=triggers * target.static_issue_ns,
    )
    read_in = x * copy_ns * (1.0 if pieces_in == 1 else 0.6) + target.vector_fixed_psum_ns
    read_out = y * target.vector_ns * (1.0 if pieces_out == 1 else 0.6) + target.vector_fixed_psum_ns
    return _Work(busy, 0.0 if settings.x_stationary else stall, rows_in, read_in, rows_out, read_out, load, store)
