"""`banded`: depthwise rows as products with banded matrices. Settings, and the sizes of the work that they come to.

Positions count from the first padded element. Block J holds positions J * B .. J * B + B - 1 of a row; output block j,
B / stride columns, needs blocks j .. j + num_taps - 1. With a dilation D, sets of D blocks are interleaved: block
J * D + r holds every D-th position from J * B * D + r on, and output block j needs blocks j, j + D and so on.
`banded_tiles` cuts the work in tiles, `banded_rule` chooses settings.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..simulator.hardware import PARTITIONS
from .depthwise import Options, RowGeometry, part_most
from .settings import (
    SHARDS,
    Config,
    Settings,
    choice,
    count,
    double,
    flag,
    half,
    less,
    more,
    setting,
    warm_up,
)
from .tiles import BANK_COLUMNS, div_ceil, fits_sbuf

#: Bytes of a run below which a row is not cut further: shorter ones take as long.
RUN_BYTES_LEAST = 64
#: Bytes a partition of one tile's rows, of its blocks and of its results, each.
BANDED_TILE_BYTES = 16384


def _other(now: bool) -> bool:
    return not now


def _two_more(now: int) -> int:
    return now + 2


@dataclass(frozen=True)
class BandedSettings(Settings):
    """All settings; a search finds neighbours of block, edge, shard and images by the shape."""

    algorithm = "banded"
    tried = (
        *("groups", "images", "buffer_groups", "buffers", "scratch", "edge", "streamed", "warmup", "rewarm", "block"),
        "shard",
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
    #: blocks that one output block needs, and how far apart they are: the dilation, blocks of a set
    num_taps: int
    apart: int
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
    #: columns of a row's last set of blocks, in and out
    rest_in: int
    rest_out: int


def block_counts(geometry: RowGeometry, block: int) -> tuple[int, int, int, int]:
    """(channels of a group, blocks that an output block needs, groups, output blocks of a row)."""
    num_taps = div_ceil(geometry.S + block - geometry.stride, block)
    per_group = PARTITIONS // block
    num_columns = geometry.dilation * div_ceil(geometry.Q, geometry.dilation * out_columns(geometry, block))
    return per_group, num_taps, div_ceil(geometry.C, per_group), num_columns


def out_columns(geometry: RowGeometry, block: int) -> int:
    """Output columns of a block."""
    return max(1, block // geometry.stride)


def tile_columns(geometry: RowGeometry, shard: str, images: int, num_taps: int, num_columns: int) -> int:
    """Output blocks of a tile at most."""
    apart = geometry.dilation
    columns = part_most(num_columns // apart, shard == "columns")
    return apart * min(columns, max(num_taps, BANDED_TILE_BYTES // (images * geometry.itemsize * apart) - num_taps))


@functools.lru_cache(maxsize=4096)
def build(geometry: RowGeometry, settings: BandedSettings, state: bool) -> BandedSchedule:
    """The schedule of all settings; with a `state` the data begin in front of x."""
    block, shard, apart = settings.block, settings.shard, geometry.dilation
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
        apart=apart,
        num_groups=num_groups,
        num_columns=num_columns,
        first_data=0 if state else max(0, geometry.pad_left) // (block * apart) * apart,
        end_data=div_ceil(max(0, geometry.W + geometry.pad_left), block * apart) * apart,
        buffer_groups=min(groups, settings.buffer_groups),
        groups=groups,
        images=images,
        columns=tile_columns(geometry, shard, images, num_taps, num_columns),
        chunk_columns=RUN_BYTES_LEAST // geometry.itemsize,
        rest_in=max(0, geometry.W + geometry.pad_left - 1) % (block * apart) + 1,
        rest_out=(geometry.Q - 1) % (out_block * apart) + 1,
    )


def banded_sbuf_bytes(geometry: RowGeometry, options: Options, blocks: BandedSchedule) -> int:
    """Bytes a partition, at most: two tiles of rows, blocks, sums and results; bands; filters of two tiles."""
    item, A = geometry.itemsize, blocks.per_group
    rows = blocks.groups * blocks.images
    chunks = max(1, PARTITIONS // rows)
    x_width = blocks.columns + (blocks.num_taps + chunks) * blocks.apart
    y_width = blocks.columns + chunks * blocks.apart
    rows_in = A * blocks.block * (div_ceil(x_width, chunks) + 2 * blocks.apart) * item
    rows_out = A * (blocks.out_block * div_ceil(y_width, chunks) + blocks.chunk_columns) * options.epilogue.y_itemsize
    if options.epilogue.residual != "":
        rows_out = rows_out * 3
    taps = blocks.num_taps * blocks.block
    filters = div_ceil(blocks.groups * A, PARTITIONS) * (taps + blocks.block) * item
    bands = blocks.settings.buffers * blocks.buffer_groups * A * taps * item
    constants = 2 * PARTITIONS * 4 + BANK_COLUMNS * item
    if geometry.flipped:  # filters as they come, and what turns them
        constants += 2 * (geometry.S + 2 * PARTITIONS) * item
    # sums are of 4 bytes at most
    return constants + bands + 2 * (rows_in + rows_out + filters + rows * (x_width * item + y_width * 4))


def fits(geometry: RowGeometry, options: Options, blocks: BandedSchedule) -> bool:
    """Whether SBUF holds it."""
    return fits_sbuf(banded_sbuf_bytes(geometry, options, blocks))


def shape_unsupported(geometry: RowGeometry, options: Options, config: Config) -> str:
    """What is wrong with settings, or what banded does not do at any size; "" if nothing is."""
    reason = BandedSettings.unsupported_reason(config)
    if reason != "":
        return reason
    block, images, groups = (
        setting(config, name, least) for name, least in (("block", 0), ("images", 1), ("groups", 1))
    )
    if max(block, geometry.stride) > PARTITIONS or block % geometry.stride != 0:
        return (
            f"block={block or geometry.stride}, stride={geometry.stride}: a block is 1 to {PARTITIONS} positions and a "
            f"multiple of the stride; use another block, mixed or vector"
        )
    if images * groups > PARTITIONS:
        return f"config images={images}, groups={groups}: their product must not exceed {PARTITIONS}; use smaller tiles"
    if geometry.lhs_dilation > 1:
        return f"lhs_dilation={geometry.lhs_dilation}: banded takes 1, blocks of x alone; use mixed or vector"
    if geometry.dilation > 1 and geometry.stride > 1:
        return (
            f"rhs_dilation={geometry.dilation}, stride={geometry.stride}: banded takes one of them above 1; use mixed "
            f"or vector"
        )
    if options.strict_nonfinite:
        return "strict_nonfinite=True: banded multiplies zeros between channels; use vector"
    return ""
