"""`banded`: depthwise rows as products with banded matrices. Settings, and the sizes of the work that they come to.

Positions count from the first padded element. Block J holds positions J * B .. J * B + B - 1 of a row; output block j,
B / stride columns, needs blocks j .. j + num_taps - 1. `banded_tiles` cuts the work in tiles.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ..simulator.hardware import PARTITIONS
from .depthwise import Extras, RowGeometry, part_most
from .settings import (
    SHARDS,
    Config,
    Settings,
    choice,
    count,
    declarations,
    double,
    flag,
    half,
    less,
    more,
    setting,
    warm_up,
)
from .tiles import BANK_COLUMNS, PARTS, div_ceil, fits_sbuf

#: Bytes of a run below which a row is not cut further: shorter ones take as long.
RUN_BYTES_LEAST = 64
#: Bytes a partition of one tile's rows, of its blocks and of its results, each.
BANDED_TILE_BYTES = 16384
#: Positions of a block at least; bytes of a group's bands up to which blocks need not be longer.
BLOCK_MIN, GROUP_BYTES = 16, 32768
#: Bytes of a run, one chunk of one row, from which a DMA is fast; groups up to which one tile is better than more.
RUN_BYTES, GROUPS = 128, 8
#: Band buffers, and columns of the array's work that each lasts at least.
BAND_BUFFERS, BUFFER_COLUMNS = 5, 1500
#: Columns of the array's work on one core from which it is to be at full rate at once.
WARM_COLUMNS = 1000
#: Columns of a group's work up to which a DMA for each channel of it is too many, for each channel.
SCRATCH_COLUMNS = 160


def _other(now: bool) -> bool:
    return not now


def _two_more(now: int) -> int:
    return now + 2


@dataclass(frozen=True)
class BandedSettings(Settings):
    """All settings; a search finds neighbours of block, edge, shard and images by the shape."""

    algorithm = "banded"
    tried = (
        *("scratch", "rewarm", "edge", "buffers", "warmup", "block", "groups", "buffer_groups", "shard", "images"),
        "streamed",
    )

    block: int = count(
        "positions of a channel on neighbouring partitions, a multiple of the stride",
        1,
        PARTITIONS,
        near=(half, double),
    )
    shard: str = choice("axis that the two cores share", SHARDS, near=SHARDS)
    groups: int = count("groups of a tile, at most; times images at most 128", 1, PARTITIONS, near=(half, double))
    images: int = count("images of a tile, at most", 1, PARTITIONS, near=(half, double))
    buffer_groups: int = count("groups of a band buffer, at most", 1, PARTITIONS, near=(double, half))
    buffers: int = count("band buffers in rotation", 1, PARTITIONS, near=(more, _two_more, less))
    scratch: bool = flag(
        "whether bands are read from a copy of the padded filters in HBM, not one by one from SBUF",
        default="by shape",
        near=(_other,),
    )
    edge: int = count("groups of the first and the last tile; 0: as the others", 0, PARTITIONS, default=0, near=(0, 2))
    streamed: int = count("columns of a matmul, at least", 1, PARTITIONS, default=96, near=(half, double))
    warmup: int = warm_up("by shape", most=PARTITIONS, near=(0, 12))
    rewarm: int = count("matmuls on zeros before the first bands", 0, PARTITIONS, near=(0, 12))
    bands_first: bool = flag("whether groups of the first tile go before their share of the second tile's rows")


def banded_config_refusal(geometry: Any, config: Config) -> str:
    """What is wrong with a config for this geometry; "" if nothing is."""
    reason = BandedSettings.refusal(config)
    if reason != "":
        return reason
    block = setting(config, "block", geometry.stride)
    if block > PARTITIONS or block % geometry.stride != 0:
        return (
            f"block={block}, stride={geometry.stride}: a block is 1 to {PARTITIONS} positions and a multiple of the "
            f"stride; use another block, mixed or taps_on_partition"
        )
    images, groups = setting(config, "images", 1), setting(config, "groups", 1)
    if images * groups > PARTITIONS:
        return f"config images={images}, groups={groups}: their product must not exceed {PARTITIONS}; use smaller tiles"
    return ""


@dataclass(frozen=True)
class BandedSchedule:
    """Sizes of one problem; the same on every core."""

    settings: BandedSettings
    #: positions of a channel that lie on partitions side by side, and output columns of such a block
    block: int
    out_block: int
    #: channels that share the partitions, and channels of the last group
    per_group: int
    last_group: int
    #: blocks that one output block needs
    num_taps: int
    num_groups: int
    #: output blocks of a row
    num_columns: int
    #: first block that holds data, and the first behind
    first_data: int
    end_data: int
    #: groups of a band buffer at most
    buffer_groups: int
    #: tiles: groups, images, output blocks of each at most
    groups: int
    images: int
    columns: int
    #: columns of a chunk of a row at least
    chunk_columns: int
    #: columns of a row's last block, in and out
    rest_in: int
    rest_out: int


def block_counts(geometry: RowGeometry, block: int) -> tuple[int, int, int, int]:
    """(channels of a group, blocks that an output block needs, groups, output blocks of a row)."""
    num_taps = div_ceil(geometry.S + block - geometry.stride, block)
    per_group = PARTITIONS // block
    return per_group, num_taps, div_ceil(geometry.C, per_group), div_ceil(geometry.Q, out_columns(geometry, block))


def out_columns(geometry: RowGeometry, block: int) -> int:
    """Output columns of a block."""
    return max(1, block // geometry.stride)


def tile_columns(geometry: RowGeometry, shard: str, images: int, num_taps: int, num_columns: int) -> int:
    """Output blocks of a tile at most."""
    columns = part_most(num_columns, shard == "columns")
    return min(columns, max(num_taps, BANDED_TILE_BYTES // (images * geometry.itemsize) - num_taps))


@functools.lru_cache(maxsize=4096)
def build(geometry: RowGeometry, settings: BandedSettings, state: bool) -> BandedSchedule:
    """The schedule of all settings; with a `state` the data begin in front of x."""
    block, shard = settings.block, settings.shard
    per_group, num_taps, num_groups, num_columns = block_counts(geometry, block)
    out_block = out_columns(geometry, block)
    images = min(settings.images, part_most(geometry.N, shard == "batch"))
    groups = min(min(settings.groups, PARTITIONS // images), part_most(num_groups, shard == "channels"))
    return BandedSchedule(
        settings=settings,
        block=block,
        out_block=out_block,
        per_group=per_group,
        last_group=geometry.C - (num_groups - 1) * per_group,
        num_taps=num_taps,
        num_groups=num_groups,
        num_columns=num_columns,
        first_data=0 if state else max(0, geometry.pad_left) // block,
        end_data=div_ceil(max(0, geometry.W + geometry.pad_left), block),
        buffer_groups=min(groups, settings.buffer_groups),
        groups=groups,
        images=images,
        columns=tile_columns(geometry, shard, images, num_taps, num_columns),
        chunk_columns=RUN_BYTES_LEAST // geometry.itemsize,
        rest_in=max(0, geometry.W + geometry.pad_left - 1) % block + 1,
        rest_out=(geometry.Q - 1) % out_block + 1,
    )


def banded_sbuf_bytes(geometry: RowGeometry, extras: Extras, blocks: BandedSchedule) -> int:
    """Bytes a partition, at most: two tiles of rows, blocks, sums and results; bands; filters of two tiles."""
    item, A = geometry.itemsize, blocks.per_group
    rows = blocks.groups * blocks.images
    chunks = max(1, PARTITIONS // rows)
    x_width = blocks.columns + blocks.num_taps + chunks
    y_width = blocks.columns + chunks
    rows_in = A * blocks.block * (div_ceil(x_width, chunks) + 2) * item
    rows_out = A * (blocks.out_block * div_ceil(y_width, chunks) + blocks.chunk_columns) * extras.epilogue.y_itemsize
    if extras.epilogue.residual != "":
        rows_out = rows_out * 3
    taps = blocks.num_taps * blocks.block
    filters = div_ceil(blocks.groups * A, PARTITIONS) * (taps + blocks.block) * item
    bands = blocks.settings.buffers * blocks.buffer_groups * A * taps * item
    constants = 2 * PARTITIONS * 4 + BANK_COLUMNS * item
    if geometry.flipped:  # filters as they come, and what turns them
        constants += 2 * (geometry.S + 2 * PARTITIONS) * item
    # sums are of 4 bytes at most
    return constants + bands + 2 * (rows_in + rows_out + filters + rows * (x_width * item + y_width * 4))


def fits(geometry: RowGeometry, extras: Extras, blocks: BandedSchedule) -> bool:
    """Whether SBUF holds it."""
    return fits_sbuf(banded_sbuf_bytes(geometry, extras, blocks))


def banded_settings(geometry: RowGeometry, extras: Extras, config: Config) -> BandedSettings:
    """All settings of a config: what it leaves open is as the rule has it, smaller until it fits SBUF."""
    if config is not None and len(config) == len(declarations(BandedSettings)):
        return BandedSettings.read(config)
    block = setting(config, "block", 0)
    if block == 0:
        block = default_block(geometry)
    buffers, groups, images = BAND_BUFFERS, PARTITIONS, PARTITIONS
    found = by_rule(geometry, None, block, buffers, groups, images)
    while not fits(geometry, extras, build(geometry, found, extras.state)) and buffers + groups + images > 3:
        groups, images = found.groups, found.images
        if buffers > 2:
            buffers -= 1
        elif groups > 1:
            groups = groups // 2
        elif images > 1:
            images = images // 2
        else:
            buffers = 1
        found = by_rule(geometry, None, block, buffers, groups, images)
    return by_rule(geometry, config, block, buffers, groups, images)


def default_block(geometry: RowGeometry) -> int:
    """Positions of a block: more for long rows, few channels and many taps."""
    most, S = PARTITIONS, geometry.S
    block = geometry.stride * max(1, BLOCK_MIN // geometry.stride)
    taps = min(3100, 200 + 4 * S)
    while 2 * block <= most and (
        block * (block * block * geometry.C // taps) < geometry.N * geometry.W
        or most // block * (S + block) * geometry.itemsize > GROUP_BYTES
    ):
        block = 2 * block
    return block


def by_rule(
    geometry: RowGeometry, config: Config, block: int, buffers: int, groups_most: int, images_most: int
) -> BandedSettings:
    """All settings of a config with a block; what it leaves open has so many buffers, groups and images at most."""
    per_group, num_taps, num_groups, num_columns = block_counts(geometry, block)
    shard, core_groups, images = "channels", div_ceil(num_groups, PARTS), geometry.N
    if num_groups < PARTS:
        shard = "batch" if geometry.N >= PARTS else "columns"
        images = div_ceil(geometry.N, PARTS) if shard == "batch" else geometry.N
    images = max(1, min(min(images, images_most), BANK_COLUMNS // num_columns))
    rows = PARTITIONS // images
    runs = max(1, num_columns * block * geometry.itemsize // RUN_BYTES)
    groups = min(min(max(rows // runs, GROUPS), groups_most), min(core_groups, rows))
    group_columns = num_taps * max(PARTITIONS, images * num_columns) * (4 if geometry.itemsize == 4 else 1)
    warm = core_groups * div_ceil(geometry.N, images) * group_columns > WARM_COLUMNS
    return BandedSettings.read(
        config,
        block=block,
        shard=shard,
        groups=groups,
        images=images,
        buffer_groups=min(groups, 1 + BUFFER_COLUMNS // group_columns),
        buffers=buffers,
        scratch=group_columns < SCRATCH_COLUMNS * per_group,
        warmup=6 if warm else 0,
        rewarm=4 if warm else 0,
    )
