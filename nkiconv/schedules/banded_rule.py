"""Settings of `banded` by a rule, for kernels without any and for searches: sizes and shards by their bound."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..simulator.hardware import PARTITIONS
from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .banded import (
    BANDED_TILE_BYTES,
    BandedSettings,
    block_counts,
    build,
    fits,
    shape_unsupported,
    tile_columns,
)
from .banded_bound import bound_ns
from .banded_tiles import size_unsupported
from .depthwise import Options, RowGeometry, part_most, shards_of
from .settings import Config, declarations, descended
from .tiles import BANK_COLUMNS, PARTS, div_ceil

#: Bytes of a run, one chunk of one row, from which a DMA is as fast as it gets; from which it is fast enough to let a
#: tile have fewer groups than that needs, so that a core has TILES of them, whose stages overlap.
RUN_BYTES, RUN_BYTES_MIN, TILES = 1024, 256, 4
#: Columns of a matmul at least. Fewer take as long (pe.min_interval_rows), but leave the array idle, and it falls to
#: half rate below 3/8 of what it could do (throttle.threshold): 64 of 128 keep it at full rate, 96 also bring it back
#: there, which counts where a core's bands take longer than STREAMED_NS.
STREAMED, STREAMED_LONG, STREAMED_NS = 64, 96, 15000.0
#: Matmuls of 512 columns of zeros while the array waits for the first rows: it runs at half rate until it has been busy
#: for 3/8 of its full capacity in a window of 3.4 us (trn2.toml, throttle.*), and 6 of them are 1.3 us of it. Then, at
#: full rate, some while the first blocks are read out. A core whose bands take less than WARM_UP_NS is done before that
#: pays.
WARM_UP, REWARM, WARM_UP_NS = 6, 4, 2500.0
#: Groups of the first and the last tile.
EDGE = 4
#: Band buffers in turn, groups of a buffer at most, and ns that all of them together should last: a DMA's way from the
#: last use of a buffer to its next (dma.static_first_packet_ns, dma.receipt_ns and the transfer).
BUFFERS, BUFFER_GROUPS, BUFFERED_NS = 4, 8, 2500.0
#: Bytes a partition of all band buffers together, twice as many where the bands of one group are large.
BAND_BYTES = 65536
#: A group's bands are loaded by one DMA a channel, cheaper for the DMA engines than a copy in HBM, until issuing them
#: takes a good part of what the array needs for the group.
SCRATCH_BELOW = 1.5
#: Sizes and shards whose other settings are tried, and how far from the best of them the others may be; settings that
#: are what a start has: of the others a bound tells which take less.
REFINED, NEAR = 3, 1.3
KEPT = frozenset(("block", "shard", "buffers", "buffer_groups", "streamed", "warmup", "rewarm"))


def banded_settings(
    geometry: RowGeometry, options: Options, config: Config, target: Target | None = None
) -> BandedSettings:
    """All settings of a config without a refusal: what it leaves open is as the least bound has it.

    target: other prices than those of trn2.toml.
    """
    if config is not None and len(config) == len(declarations(BandedSettings)):
        return BandedSettings.read(config)
    return candidates(geometry, options, config, target or Target.of(Rates()))[0][0]


@functools.lru_cache(maxsize=256)
def candidates(
    geometry: RowGeometry, options: Options, config: Config, target: Target
) -> tuple[tuple[BandedSettings, float], ...]:
    """Settings, and ns, that a config leaves open: sizes and shards, and the best of them with one setting after the
    other changed for what takes less; the least first."""
    found = starts(geometry, options, config, target)
    near = {one: ns for one, ns in found if ns <= NEAR * found[0][1]}
    for one in [one for one in list(near)[:REFINED] if near[one] < float("inf")]:
        near |= descended(
            one,
            lambda other: ns_of(geometry, options, other, target),
            lambda other: near_of(geometry, other),
            KEPT | dict(config or ()).keys(),
        )
    return tuple(sorted(near.items(), key=lambda each: each[1]))


@functools.lru_cache(maxsize=256)
def starts(
    geometry: RowGeometry, options: Options, config: Config, target: Target
) -> tuple[tuple[BandedSettings, float], ...]:
    """Settings, and ns, of the sizes and shards that a config leaves open, the least first; where none fits SBUF, with
    the smallest tiles and buffers."""
    given = dict(config or ())
    found = [
        filled(geometry, target, given, size, shard)
        for size in ([given["block"]] if "block" in given else blocks_of(geometry.stride))
        for shard in ([given["shard"]] if "shard" in given else shards_for(geometry, size))
    ]
    for some in (found, [replace(one, **{**SMALLEST, **given}) for one in found]):
        priced = [(one, ns_of(geometry, options, one, target)) for one in some]
        if any(ns < float("inf") for _, ns in priced):
            break
    return tuple(sorted(priced, key=lambda each: each[1]))


def ns_of(geometry: RowGeometry, options: Options, settings: BandedSettings, target: Target) -> float:
    """ns of settings, about; infinity where they do not fit."""
    blocks = build(geometry, settings, options.state)
    if settings.images * settings.groups > PARTITIONS or not fits(geometry, options, blocks):
        return float("inf")
    return bound_ns(geometry, options, blocks, target)


def near_of(geometry: RowGeometry, now: BandedSettings) -> list[tuple[tuple[str, Any], ...]]:
    """Settings that differ in one thing."""
    blocks, sizes = build(geometry, now, False), sorted({*blocks_of(geometry.stride), now.block})
    place, groups = sizes.index(now.block), part_most(blocks.num_groups, now.shard == "channels")
    even = (div_ceil(groups, tiles) for tiles in range(1, 5))
    sized = {name: getattr(blocks, name) for name in ("groups", "buffer_groups", "images")}
    by_shape: dict[str, Any] = {
        "edge": (0, 2, 4, blocks.groups // 4, blocks.groups // 2),
        "groups": [
            one
            for one in (blocks.groups // 2, 2 * blocks.groups, *even)
            if one <= min(PARTITIONS // blocks.images, groups)
        ],
        "block": sizes[max(0, place - 1) : place + 2],
        "shard": shards_of(geometry),
        **({} if geometry.N > 1 else {"images": []}),
    }
    return BandedSettings.near(now.pairs, {**dict(now.pairs), **sized}, **by_shape)


#: Of what does not fit otherwise.
SMALLEST = {"groups": 1, "images": 1, "buffer_groups": 1, "buffers": 1, "edge": 0}


def guess(geometry: RowGeometry, options: Options, cores: int, target: Target) -> list[tuple[BandedSettings, float]]:
    """The first settings, and ns, about; none where it does not run."""
    if shape_unsupported(geometry, options, None):
        return []
    settings, ns = starts(geometry, options, None, target)[0]
    is_refused = size_unsupported(geometry, options, build(geometry, settings, options.state), cores)
    return [] if is_refused else [(settings, ns)]


def unsupported(geometry: RowGeometry, options: Options, config: Config, cores: int) -> str:
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = shape_unsupported(geometry, options, config)
    if reason != "":
        return reason
    blocks = build(geometry, banded_settings(geometry, options, config), options.state)
    return size_unsupported(geometry, options, blocks, cores)


def blocks_of(stride: int) -> list[int]:
    """Powers of two, and near them multiples of the stride; the stride itself where that is larger than all."""
    sizes = [max(1, 2**power // stride) * stride for power in range(1, 8)]
    return list(dict.fromkeys(size for size in sizes if size <= PARTITIONS)) or [stride]


def shards_for(geometry: RowGeometry, block: int) -> list[str]:
    """Axes that can be shared out, channels first, whose filters are loaded once; columns where there is no other."""
    _, _, num_groups, num_columns = block_counts(geometry, block)
    found = ["channels"] if num_groups >= PARTS else []
    found += ["batch"] if geometry.N >= PARTS else []
    return [*found, "columns"] if not found or num_columns >= PARTS else found


def filled(geometry: RowGeometry, target: Target, given: Mapping[str, Any], block: int, shard: str) -> BandedSettings:
    """All settings of a block and a shard: those given, and what goes with them."""
    item = geometry.itemsize
    per_group, num_taps, num_groups, num_columns = block_counts(geometry, block)
    images = max(1, min(geometry.N, BANK_COLUMNS // num_columns, PARTITIONS // given.get("groups", 1)))
    images = min(given.get("images", images), geometry.N)
    group_ns = num_taps * max(target.matmul_columns_min, num_columns * images)
    group_ns *= target.tensor_column_fp32_ns if item == 4 else target.tensor_column_ns
    images = min(images, part_most(geometry.N, shard == "batch"))

    columns = tile_columns(geometry, shard, images, num_taps, num_columns)
    rows, row_bytes, core_groups = PARTITIONS // images, columns * block * item, div_ceil(num_groups, PARTS)
    groups = max(div_ceil(core_groups, TILES), rows // max(1, row_bytes // RUN_BYTES_MIN))
    tile_groups = BANDED_TILE_BYTES // (images * (columns + num_taps) * item)
    groups = max(1, min(groups, rows // max(1, row_bytes // RUN_BYTES), tile_groups, rows))
    groups = min(given.get("groups", groups), core_groups if shard == "channels" else num_groups)

    bands_ns = core_groups * div_ceil(geometry.N, images) * group_ns
    warmup = WARM_UP if bands_ns > WARM_UP_NS else 0
    scratch = given.get("scratch", group_ns < SCRATCH_BELOW * per_group * target.static_issue_ns)
    band_bytes = per_group * num_taps * block * item
    buffers = BUFFERS + (bands_ns > STREAMED_NS or not scratch)
    lasting = min(BUFFER_GROUPS, int(BUFFERED_NS / (BUFFERS * group_ns)) + 1)
    found = BandedSettings(
        block=block,
        shard=shard,
        groups=groups,
        images=images,
        buffer_groups=min(groups, max(1, min(lasting, BAND_BYTES // (band_bytes * BUFFERS)))),
        buffers=max(1, min(buffers, 2 * BAND_BYTES // band_bytes)),
        scratch=scratch,
        edge=EDGE if div_ceil(core_groups, groups) > 2 else 0,
        streamed=STREAMED_LONG if bands_ns > STREAMED_NS else STREAMED,
        warmup=warmup,
        rewarm=min(warmup, REWARM),
    )
    return replace(found, **given)
