"""Sizes of `banded`'s work, from shapes and settings alone.

Positions count from the first padded element. Block J holds positions J * B .. J * B + B - 1 of a row; output block j,
B / stride columns, needs blocks j .. j + num_taps - 1.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.banded import BandedSettings
from ....schedules.tiles import div_ceil, fits_sbuf
from ..parts import part_most

#: Bytes of a run below which a row is not cut further: shorter ones take as long.
RUN_BYTES_LEAST = 64
#: Bytes a partition of one tile's rows, of its blocks and of its results, each.
BANDED_TILE_BYTES = 16384


@dataclass
class Blocks(nl.NKIObject):
    """Sizes of one problem."""

    config: BandedSettings
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


def block_counts(geometry, block):
    """(channels of a group, blocks that an output block needs, groups, output blocks of a row)."""
    num_taps = div_ceil(geometry.S + block - geometry.stride, block)
    per_group = nl.tile_size.pmax // block
    return per_group, num_taps, div_ceil(geometry.C, per_group), div_ceil(geometry.Q, out_columns(geometry, block))


def out_columns(geometry, block):
    """Output columns of a block."""
    return max(1, block // geometry.stride)


def tile_columns(geometry, shard, images, num_taps, num_columns):
    """Output blocks of a tile at most."""
    columns = part_most(num_columns, shard == "columns")
    return min(columns, max(num_taps, BANDED_TILE_BYTES // (images * geometry.itemsize) - num_taps))


def make_blocks(geometry, config, state):
    """Sizes from shapes and a BandedSettings; with a `state` the data begin in front of x."""
    block, shard = config.block, config.shard
    per_group, num_taps, num_groups, num_columns = block_counts(geometry, block)
    out_block = out_columns(geometry, block)
    images = min(config.images, part_most(geometry.N, shard == "batch"))
    groups = min(min(config.groups, nl.tile_size.pmax // images), part_most(num_groups, shard == "channels"))
    return Blocks(
        config=config,
        block=block,
        out_block=out_block,
        per_group=per_group,
        last_group=geometry.C - (num_groups - 1) * per_group,
        num_taps=num_taps,
        num_groups=num_groups,
        num_columns=num_columns,
        first_data=0 if state else max(0, geometry.pad_left) // block,
        end_data=div_ceil(max(0, geometry.W + geometry.pad_left), block),
        buffer_groups=min(groups, config.buffer_groups),
        groups=groups,
        images=images,
        columns=tile_columns(geometry, shard, images, num_taps, num_columns),
        chunk_columns=RUN_BYTES_LEAST // geometry.itemsize,
        rest_in=max(0, geometry.W + geometry.pad_left - 1) % block + 1,
        rest_out=(geometry.Q - 1) % out_block + 1,
    )


def banded_sbuf_bytes(geometry, extras, blocks):
    """Bytes a partition, at most: two tiles of rows, blocks, sums and results; bands; filters of two tiles."""
    item, A = geometry.itemsize, blocks.per_group
    rows = blocks.groups * blocks.images
    chunks = max(1, nl.tile_size.pmax // rows)
    x_width = blocks.columns + blocks.num_taps + chunks
    y_width = blocks.columns + chunks
    rows_in = A * blocks.block * (div_ceil(x_width, chunks) + 2) * item
    rows_out = A * (blocks.out_block * div_ceil(y_width, chunks) + blocks.chunk_columns) * extras.epilogue.y_itemsize
    if extras.epilogue.residual != "":
        rows_out = rows_out * 3
    taps = blocks.num_taps * blocks.block
    filters = div_ceil(blocks.groups * A, nl.tile_size.pmax) * (taps + blocks.block) * item
    bands = blocks.config.buffers * blocks.buffer_groups * A * taps * item
    constants = 2 * nl.tile_size.pmax * 4 + nl.tile_size.gemm_moving_fmax * item
    if geometry.flipped:  # filters as they come, and what turns them
        constants += 2 * (geometry.S + 2 * nl.tile_size.pmax) * item
    # sums are of 4 bytes at most
    return constants + bands + 2 * (rows_in + rows_out + filters + rows * (x_width * item + y_width * 4))


def fits(geometry, extras, blocks):
    """Whether SBUF holds it."""
    return fits_sbuf(banded_sbuf_bytes(geometry, extras, blocks))
