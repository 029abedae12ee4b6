"""`banded`: depthwise rows as products with banded matrices. Settings, and the sizes of tiles that follow from them.

Positions count from the first padded element. Block J holds positions J * B .. J * B + B - 1 of a row; output block j,
B / stride columns, needs blocks j .. j + num_taps - 1. With a dilation D, sets of D blocks are interleaved: block
J * D + r holds every D-th position from J * B * D + r on, and output block j needs blocks j, j + D and so on.
`banded_candidates` chooses settings. The list of tiles is the same on any number of cores; a core takes its part of it.
The rows of a tile, one for each group and image, are cut into chunks of blocks, as many as the partitions hold.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from ..simulator.hardware import PARTITIONS, SBUF_USABLE_BYTES_PER_PARTITION
from .depthwise import Options, RowGeometry, gate_bytes, gate_of, part_most, part_span
from .options import PROLOGUE_ARGUMENTS
from .settings import ALL, SHARDS, Config, Settings, choice, count, double, flag, half, less, more, setting, warm_up
from .tiles import BANK_BYTES, BANK_COLUMNS, Part, cut, cut_at, div_ceil, fits_sbuf, whole_words

#: Bytes of the shortest run that a row is cut into: the DMA of a shorter one takes as long.
RUN_BYTES_LEAST = 64
#: Bytes a partition of one tile's rows, of its blocks and of its results, each.
BANDED_TILE_BYTES = 16384
#: Least channels on a partition of a bias that is split into bf16 parts, for DMA elements of 128 bytes; bytes of each:
#: three numbers of fp32, and three parts; bytes of a channel of all parts.
BIAS_LINE, BIAS_BYTES, PARTS_BYTES = 64, 3 * 4 + 3 * 2, 2


@dataclass(frozen=True)
class BandedSettings(Settings):
    """All settings; a search finds neighbours of block, groups, shard and images by the shape."""

    algorithm = "banded"
    tried = (
        *("joined", "groups", "images", "buffer_groups", "buffers", "streamed", "warmup", "rewarm", "block"),
        *("shard", "x_stationary"),
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
    buffers: int = count("band buffers in rotation", 1, PARTITIONS, near=(more, lambda now: now + 2, less))
    # fewer DMAs, which hedges triggers of 670 ns: without it the worst regret of nkl_n1_c256_w512_s64 is 1.78 for 1.39
    # (`nkiconv plan nkl_n1_c256_w512_s64 --no-cache`), at the same time with ours
    joined: int = count(
        "channels whose bands one DMA loads, with the zeros beside them, at most",
        1,
        PARTITIONS,
        default="by shape",
        near=(double, half),
    )
    streamed: int = count("columns of a matmul, at least", 1, PARTITIONS, default=96, near=(half, double))
    warmup: int = warm_up("by shape", most=PARTITIONS, near=(0, 12))
    rewarm: int = count("matmuls on zeros before the first bands", 0, PARTITIONS, near=(0, 12))
    x_stationary: bool = flag(
        "whether x is the stationary operand, whose sums are rows, or the bands, whose sums are blocks",
        default="by shape",
        near=ALL,
    )


@dataclass(frozen=True)
class BandedSchedule:
    """Sizes of one problem; the same on every core."""

    settings: BandedSettings
    #: positions of a channel on neighbouring partitions, and output columns of such a block
    block: int
    out_block: int
    #: channels that share the partitions, and channels of the last group
    per_group: int
    last_group: int
    #: blocks that one output block needs, and blocks from one of them to the next: the dilation, the blocks of a set
    num_taps: int
    apart: int
    num_groups: int
    #: output blocks of a row
    num_columns: int
    #: first block with data, and first block after the data
    first_data: int
    end_data: int
    #: groups of a band buffer at most
    buffer_groups: int
    #: channels of a group whose bands one DMA loads; elements of a padded filter, with zeros for the next of these
    joined: int
    pitch: int
    #: zeros before it
    front: int
    #: most groups, images and output blocks of a tile
    groups: int
    images: int
    columns: int
    #: least columns of a chunk of a row
    chunk_columns: int
    #: columns of a row's last set of output blocks
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
    """Most output blocks of a tile."""
    apart = geometry.dilation
    columns = part_most(num_columns // apart, shard == "columns")
    return apart * min(columns, max(num_taps, BANDED_TILE_BYTES // (images * geometry.itemsize * apart) - num_taps))


@functools.lru_cache(maxsize=4096)
def build(geometry: RowGeometry, options: Options, settings: BandedSettings) -> BandedSchedule:
    """The schedule of all settings; an initial state is data before x."""
    block, shard, apart = settings.block, settings.shard, geometry.dilation
    per_group, num_taps, num_groups, num_columns = block_counts(geometry, block)
    out_block = out_columns(geometry, block)
    joined = max(some for some in range(1, settings.joined + 1) if per_group % some == 0)
    front = num_taps * block - geometry.S if geometry.flipped else block - geometry.stride
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
        first_data=0 if options.state else max(0, geometry.pad_left) // (block * apart) * apart,
        end_data=div_ceil(max(0, geometry.W + geometry.pad_left), block * apart) * apart,
        buffer_groups=min(groups, settings.buffer_groups),
        joined=joined,
        pitch=whole_words((num_taps + 1) * block + front % 2, 2) + (joined - 1) * whole_words(num_taps * block, 2),
        front=front,
        groups=groups,
        images=images,
        columns=tile_columns(geometry, shard, images, num_taps, num_columns),
        chunk_columns=RUN_BYTES_LEAST // geometry.itemsize,
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
    rows_in += gate_bytes(geometry, rows_in)
    if gate_of(geometry):  # three tiles instead of two
        rows_in = rows_in * 3 // 2
    rows_out = A * (blocks.out_block * div_ceil(y_width, chunks) + blocks.chunk_columns) * options.epilogue.y_itemsize
    if blocks.settings.x_stationary:  # a partition has its columns of all groups, and no blocks of sums
        y_width, spread = 0, PARTITIONS // blocks.images
        rows_out = A * blocks.groups * blocks.out_block * (blocks.columns // spread + 1) * options.epilogue.y_itemsize
    if options.epilogue.residual != "":
        rows_out = rows_out * 3
    taps = blocks.num_taps * blocks.block
    filters = blocks.buffer_groups * blocks.joined * blocks.pitch * item
    bands = blocks.settings.buffers * blocks.buffer_groups * A * taps * item
    constants = 2 * PARTITIONS * 4 + BANK_COLUMNS * item
    if options.epilogue.bias:
        lines, length = bias_lines(A * part_most(blocks.num_groups, blocks.settings.shard == "channels"))
        constants += BIAS_BYTES * length + PARTS_BYTES * lines * length
    # sums are of 4 bytes at most
    return constants + bands + 2 * (rows_in + rows_out + filters + rows * (x_width * item + y_width * 4))


def bias_lines(count: int) -> Part:
    """(partitions, channels of each) on which a bias of so many channels is split into parts."""
    lines = min(PARTITIONS, max(1, count // BIAS_LINE))
    return lines, div_ceil(count, lines)


def fits(geometry: RowGeometry, options: Options, blocks: BandedSchedule) -> bool:
    """Whether SBUF holds the schedule's tiles."""
    return fits_sbuf(banded_sbuf_bytes(geometry, options, blocks))


def config_unsupported(geometry: RowGeometry, options: Options, config: Config) -> str:
    """The error of a config, or why banded never runs the problem; "" if neither."""
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
    if geometry.dilation > 1 and setting(config, "x_stationary", False):
        return (
            f"rhs_dilation={geometry.dilation}, config x_stationary=True: blocks of rows are not interleaved; use "
            f"x_stationary=False"
        )
    if geometry.prologue.asked and options.state:
        return f"{PROLOGUE_ARGUMENTS}: banded takes none with an initial state; use mixed or vector"
    if options.strict_nonfinite:
        return "strict_nonfinite=True: banded multiplies zeros between channels; use vector"
    return ""


@dataclass(frozen=True)
class BandedTile:
    """One tile."""

    #: groups g0 .. g0+gn-1, images n0 .. n0+nn-1, output blocks j0 .. j0+jn-1
    g0: int
    gn: int
    n0: int
    nn: int
    j0: int
    jn: int
    #: channels of its last group
    last: int
    #: rows, one for each group and image; chunks of a row on the partitions, and blocks of a chunk, in and out
    rows: int
    chunks_in: int
    blocks_in: int
    chunks_out: int
    blocks_out: int
    #: blocks from one chunk of results to the next: fewer than a chunk's if the last chunk takes the remainder
    step_out: int
    #: first block with data, counted from the tile's first, and number of blocks with data; blocks of a row in X and Y
    data0: int
    datan: int
    x_width: int
    y_width: int
    #: times that a matmul streams its columns: few columns are repeated to keep the Tensor Engine at full rate
    repeats: int
    #: whether it is a core's last tile, whose evacuations and stores overlap no other work
    ends: bool = False


def spans_of(blocks: BandedSchedule, geometry: RowGeometry, part: int) -> tuple[list[Part], list[Part], list[Part]]:
    """Groups, images and output blocks of the tiles of one part; a tile is one of each."""
    shard, apart = blocks.settings.shard, blocks.apart
    g0, count = part_span(blocks.num_groups, shard == "channels", part)
    n0, images = part_span(geometry.N, shard == "batch", part)
    j0, columns = part_span(blocks.num_columns // apart, shard == "columns", part)
    return (
        [(g0 + first, gn) for first, gn in cut(count, blocks.groups)],
        [(n0 + first, nn) for first, nn in cut(images, blocks.images)],
        [((j0 + first) * apart, jn * apart) for first, jn in cut(columns, blocks.columns // apart)],
    )


def tiles_of_part(blocks: BandedSchedule, geometry: RowGeometry, part: int) -> list[BandedTile]:
    """Tiles of one part, in order."""
    return [plan_tile(blocks, *place) for place in itertools.product(*spans_of(blocks, geometry, part))]


def plan_tile(blocks: BandedSchedule, groups: Part, images: Part, columns: Part) -> BandedTile:
    """One tile and its layout: as many chunks of each row as the partitions hold."""
    (g0, gn), (_, nn), (j0, jn) = groups, images, columns
    rows, apart, x_stationary, Bo = gn * nn, blocks.apart, blocks.settings.x_stationary, blocks.out_block
    needed, most = jn + (blocks.num_taps - 1) * apart, max(1, PARTITIONS // rows)
    data0 = min(needed, max(0, blocks.first_data - j0))
    datan = max(0, min(needed, blocks.end_data - j0) - data0)
    blocks_in = chunks_in = 0
    if datan > 0:
        least = div_ceil(blocks.chunk_columns, blocks.block * apart)
        blocks_in = min(datan, apart * max(least, div_ceil(datan // apart, most)))
        chunks_in = div_ceil(datan, blocks_in)
    most = PARTITIONS // nn if x_stationary else most
    least = div_ceil(blocks.chunk_columns, Bo * apart)
    blocks_out = step_out = min(jn, apart * max(least, div_ceil(jn, most * apart)))
    chunks_out = div_ceil(jn, step_out)
    if x_stationary:  # the last chunk has as many blocks as the others
        needed += chunks_out * step_out - jn
    rest = blocks.rest_out if j0 + jn == blocks.num_columns else Bo * apart
    last = (jn - apart) % step_out
    if not x_stationary and chunks_out > 1 and last * Bo + rest < blocks.chunk_columns:
        chunks_out, blocks_out = chunks_out - 1, step_out + last + apart
    return BandedTile(
        *(*groups, *images, *columns),
        last=blocks.last_group if g0 + gn == blocks.num_groups else blocks.per_group,
        rows=rows,
        chunks_in=chunks_in,
        blocks_in=blocks_in,
        chunks_out=chunks_out,
        blocks_out=blocks_out,
        step_out=step_out,
        data0=data0,
        datan=datan,
        x_width=max(needed, data0 + chunks_in * blocks_in),
        y_width=(chunks_out - 1) * step_out + blocks_out,
        repeats=max(1, min(div_ceil(blocks.settings.streamed, nn * jn), PARTITIONS // (nn * jn))),
    )


def transposes_a_bank(geometry: RowGeometry, tile: BandedTile) -> int:
    """Transposes of a tile's block columns whose results fit one PSUM bank."""
    return max(1, BANK_BYTES // (whole_words(tile.chunks_in * tile.rows, 2) * geometry.itemsize))


def in_pieces(geometry: RowGeometry, tile: BandedTile) -> int:
    """Pieces of the stage that transposes rows to blocks: one PSUM bank each."""
    if tile.datan == 0:
        return 1
    return div_ceil(tile.blocks_in, transposes_a_bank(geometry, tile))


def sum_spans(tile: BandedTile) -> list[tuple[int, int, int, int]]:
    """Spans of a group's sums that fit a PSUM bank each: (first image, images, first output block, output blocks)."""
    if tile.nn * tile.jn <= BANK_COLUMNS:
        return [(0, tile.nn, 0, tile.jn)]
    return [(n, 1, *columns) for n in range(tile.nn) for columns in cut(tile.jn, BANK_COLUMNS)]


def row_spans(blocks: BandedSchedule, tile: BandedTile) -> list[Part]:
    """(first, how many) of a chunk's output blocks whose sums as rows, of one group, fit a PSUM bank."""
    return cut_at(tile.step_out, BANK_COLUMNS // (blocks.per_group * blocks.out_block))


def outs_a_bank(blocks: BandedSchedule, tile: BandedTile) -> int:
    """Block columns of rows that fit one PSUM bank; in a core's last tile at most half, for Vector and Scalar each."""
    most, apart = max(1, BANK_COLUMNS // (blocks.per_group * blocks.out_block)), blocks.apart
    most = min(most, div_ceil(tile.blocks_out, 2)) if tile.ends else most
    # an evacuation has three free dims, and so stays within a set of blocks
    return most if apart == 1 else max(some for some in range(1, most + 1) if apart % some == 0)


def out_pieces(blocks: BandedSchedule, tile: BandedTile) -> int:
    """Pieces of the stage that transposes sums to rows: one PSUM bank each."""
    return div_ceil(tile.blocks_out, outs_a_bank(blocks, tile))


def plan_unsupported(geometry: RowGeometry, options: Options, blocks: BandedSchedule) -> str:
    """Why memory does not take the schedule; "" if it does."""
    if not fits(geometry, options, blocks):
        needed = banded_sbuf_bytes(geometry, options, blocks)
        return (
            f"S={geometry.S}, block={blocks.block}: banded needs {needed} bytes per partition of SBUF, there are "
            f"{SBUF_USABLE_BYTES_PER_PARTITION}; use fewer buffers or groups, another block or algorithm"
        )
    return ""
