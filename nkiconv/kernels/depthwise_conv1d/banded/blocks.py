"""Work of `banded` cut into tiles: groups of channels, images and output blocks, from shapes and settings alone.

Positions count from the first padded element. Block J holds positions J * B .. J * B + B - 1 of a row; output block j,
B / stride columns, needs blocks j .. j + num_taps - 1. The list of tiles is the same on any number of cores; a core
takes its part of it.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import STATIC_ISSUE_NS, TENSOR_COLUMN_FP32_NS, TENSOR_COLUMN_NS
from ..._settings import numbers_refusal, setting
from ..._tiles import PARTS, div_ceil

#: Bytes of a run, one chunk of one row, from which a DMA is as fast as it gets.
RUN_BYTES = 1024
#: Bytes of a run below RUN_BYTES, from which a DMA is fast enough to let a tile have fewer groups than that needs, so
#: that a core has TILES of them.
RUN_BYTES_MIN = 256
#: Bytes of a run below which a row is not cut further: shorter ones take as long.
RUN_BYTES_LEAST = 64
#: Tiles of a core, whose stages overlap.
TILES = 4
#: Bytes a partition of one tile's rows, of its blocks and of its results, each.
BANDED_TILE_BYTES = 16384
#: Bytes a partition of all band buffers together, twice as many where the bands of one group are large.
BAND_BYTES = 65536
#: Columns of a matmul at least. Fewer take as long (pe.min_interval_rows), but leave the array idle, and it falls to
#: half rate below 3/8 of what it could do (throttle.threshold): 64 of 128 keep it at full rate, 96 also bring it back
#: there, which counts where a core's bands take longer than STREAMED_NS.
STREAMED = 64
STREAMED_LONG = 96
STREAMED_NS = 15000
#: Matmuls of 512 columns of zeros while the array waits for the first rows: it runs at half rate until it has been busy
#: for 3/8 of its full capacity in a window of 3.4 us (trn2.toml, throttle.*), and 6 of them are 1.3 us of it. Then, at
#: full rate, some while the first blocks are read out. A core whose bands take less than WARM_UP_NS is done before that
#: pays.
BANDED_WARM_UP = 6
REWARM = 4
WARM_UP_NS = 2500
#: Groups of the first and the last tile.
EDGE = 4
#: Band buffers in turn, groups of a buffer at most, and ns that all of them together should last: a DMA's way from the
#: last use of a buffer to its next (dma.static_first_packet_ns, dma.receipt_ns and the transfer).
BAND_BUFFERS = 4
BUFFER_GROUPS = 8
BUFFERED_NS = 2500
#: A group's bands are loaded by one DMA a channel, cheaper for the DMA engines than a copy in HBM, until issuing them
#: takes a good part of what the array needs for the group.
SCRATCH_BELOW = 1.5


@dataclass
class Blocks(nl.NKIObject):
    """Sizes of one problem."""

    #: positions of a channel that lie on partitions side by side, and output columns of such a block
    block: int
    out_block: int
    #: channels that share the partitions
    per_group: int
    #: blocks that one output block needs
    num_taps: int
    num_groups: int
    #: output blocks of a row
    num_columns: int
    #: first block that holds data, and the first behind
    first_data: int
    end_data: int
    #: whether bands are read from a copy of the padded filters in HBM
    scratch: bool
    #: band buffers in turn, and groups of each
    buffers: int
    buffer_groups: int
    #: tiles: groups, images, output blocks of each at most
    groups: int
    images: int
    columns: int
    #: columns of a matmul at least
    streamed: int
    #: matmuls on zeros before the first rows are turned, and before the first bands
    warmup: int
    rewarm: int
    #: columns of a chunk of a row at least
    chunk_columns: int
    #: columns of a row's last block, in and out
    rest_in: int
    rest_out: int
    #: ns of one group's matmuls
    group_ns: float
    #: groups of the first and the last tile, 0: as the others
    edge: int
    shard: str


def blocks_refusal(geometry, config):
    """What is wrong with banded's settings; "" if nothing is."""
    most = nl.tile_size.pmax
    limits = (
        ("block", 1, most),
        ("groups", 1, most),
        ("edge", 0, most),
        ("streamed", 1, most),
        ("images", 1, most),
        ("buffers", 1, most),
        ("buffer_groups", 1, most),
        ("warmup", 0, most),
        ("rewarm", 0, most),
    )
    reason = numbers_refusal(config, limits)
    if reason != "":
        return reason
    if setting(config, "shard", "channels") not in ("channels", "batch", "columns"):
        return f"config shard={setting(config, 'shard', '')}: must be channels, batch or columns"
    if not isinstance(setting(config, "scratch", False), bool):
        return f"config scratch={setting(config, 'scratch', False)}: must be True or False"
    block = setting(config, "block", geometry.stride)
    if block > most or block % geometry.stride != 0:
        return (
            f"block={block}, stride={geometry.stride}: a block is 1 to {most} positions and a multiple of the stride; "
            f"use another block, mixed or taps_on_partition"
        )
    images = setting(config, "images", 1)
    groups = setting(config, "groups", 1)
    if images * groups > most:
        return f"config images={images}, groups={groups}: their product must not exceed {most}; use smaller tiles"
    return ""


def make_blocks(geometry, config, state, block, shard):
    """Sizes of a block and a shard from shapes and settings; with a `state` the data begin in front of x."""
    per_group = nl.tile_size.pmax // block
    out_block = max(1, block // geometry.stride)
    num_taps = div_ceil(geometry.S + block - geometry.stride, block)
    num_groups = div_ceil(geometry.C, per_group)
    num_columns = div_ceil(geometry.Q, out_block)
    before = max(0, geometry.pad_left)

    images = max(1, min(geometry.N, nl.tile_size.gemm_moving_fmax // num_columns))
    images = setting(config, "images", min(images, max(1, nl.tile_size.pmax // setting(config, "groups", 1))))
    images = min(images, geometry.N)
    column_ns = TENSOR_COLUMN_FP32_NS if geometry.itemsize == 4 else TENSOR_COLUMN_NS
    column_ns = column_ns * max(nl.tile_size.pmax, num_columns * images)
    band_bytes = per_group * num_taps * block * geometry.itemsize
    most = max(1, min(lasting_groups(num_taps, column_ns), BAND_BYTES // (band_bytes * BAND_BUFFERS)))
    if shard == "batch":
        images = min(images, div_ceil(geometry.N, PARTS))
    columns = num_columns if shard != "columns" else div_ceil(num_columns, PARTS)
    most_columns = max(num_taps, BANDED_TILE_BYTES // (images * geometry.itemsize) - num_taps)
    columns = min(columns, most_columns)
    row_bytes = columns * block * geometry.itemsize
    rows = nl.tile_size.pmax // images
    groups = max(div_ceil(num_groups, PARTS * TILES), rows // max(1, row_bytes // RUN_BYTES_MIN))
    groups = max(1, min(groups, rows // max(1, row_bytes // RUN_BYTES)))
    groups = min(groups, max(1, BANDED_TILE_BYTES // (images * (columns + num_taps) * geometry.itemsize)))
    groups = setting(config, "groups", min(groups, max(1, nl.tile_size.pmax // images)))
    bands_ns = div_ceil(num_groups, PARTS) * div_ceil(geometry.N, images) * num_taps * column_ns
    tiles = div_ceil(div_ceil(num_groups, PARTS), groups)
    edge = EDGE if tiles > 2 else 0
    warm_up = BANDED_WARM_UP if bands_ns > WARM_UP_NS else 0
    if shard == "channels":
        groups = min(groups, div_ceil(num_groups, PARTS))
    scratch = setting(config, "scratch", num_taps * column_ns < SCRATCH_BELOW * per_group * STATIC_ISSUE_NS)
    band_buffers = BAND_BUFFERS + 1 if bands_ns > STREAMED_NS or not scratch else BAND_BUFFERS
    return Blocks(
        block=block,
        out_block=out_block,
        per_group=per_group,
        num_taps=num_taps,
        num_groups=num_groups,
        num_columns=num_columns,
        first_data=0 if state else before // block,
        end_data=div_ceil(max(0, geometry.W + geometry.pad_left), block),
        scratch=scratch,
        buffers=setting(config, "buffers", max(1, min(band_buffers, 2 * BAND_BYTES // band_bytes))),
        buffer_groups=min(groups, setting(config, "buffer_groups", most)),
        groups=min(groups, num_groups),
        images=images,
        columns=columns,
        streamed=setting(config, "streamed", STREAMED_LONG if bands_ns > STREAMED_NS else STREAMED),
        warmup=setting(config, "warmup", warm_up),
        rewarm=setting(config, "rewarm", min(warm_up, REWARM)),
        chunk_columns=RUN_BYTES_LEAST // geometry.itemsize,
        rest_in=max(0, geometry.W + geometry.pad_left - 1) % block + 1,
        rest_out=(geometry.Q - 1) % out_block + 1,
        group_ns=num_taps * column_ns,
        edge=setting(config, "edge", edge),
        shard=shard,
    )


def lasting_groups(num_taps, column_ns):
    """Groups of a band buffer, so that all buffers last as long as a DMA takes."""
    return max(1, min(BUFFER_GROUPS, int(BUFFERED_NS / (BAND_BUFFERS * num_taps * column_ns)) + 1))


def sbuf_bytes(geometry, extras, blocks):
    """Bytes a partition, at most: two tiles of rows, blocks, sums and results; bands; filters of two tiles."""
    item = geometry.itemsize
    rows = blocks.groups * blocks.images
    chunks = max(1, nl.tile_size.pmax // rows)
    x_width = blocks.columns + blocks.num_taps + chunks
    rows_in = blocks.per_group * blocks.block * (div_ceil(x_width, chunks) + 2) * item
    y_item = extras.epilogue.y_itemsize
    sum_item = 4
    rows_out = blocks.out_block * div_ceil(blocks.columns + chunks, chunks) + blocks.chunk_columns
    rows_out = blocks.per_group * rows_out * y_item
    if extras.epilogue.residual != "":
        rows_out = rows_out * 3
    filters = (
        div_ceil(blocks.groups * blocks.per_group, nl.tile_size.pmax) * (blocks.num_taps + 1) * blocks.block * item
    )
    bands = blocks.buffers * blocks.buffer_groups * blocks.per_group * blocks.num_taps * blocks.block * item
    constants = 2 * nl.tile_size.pmax * 4 + nl.tile_size.gemm_moving_fmax * item
    return (
        constants
        + bands
        + 2 * (rows_in + rows_out + filters + rows * (x_width * item + (blocks.columns + chunks) * sum_item))
    )
