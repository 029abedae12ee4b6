"""Depthwise conv1d by band matrices: blocks of B positions of 128 / B channels are on the partitions.

    y[a, B j + o] = sum over k < num_taps of  sum over i < B of  w[a, k B + i - o] * x[a, B (j + k) + i]

For a group of A = 128 / B channels, X[(a, i), J] = x[a, B J + i] is 128 rows, tap block k one block-diagonal stationary
of A band matrices [B, B], and Y = sum over k of band_k^T X[:, k : k + columns] accumulates in PSUM. A matmul thus
computes B taps for B outputs of A channels; A channels take num_taps = ceil((S + B - 1) / B) matmuls, that is
(S + B) * 0.417 * max(1, columns / 128) ns of the Tensor Engine a channel and 128 columns. Small B make long rows of
columns for few channels, large B short ones for many; below 128 columns a matmul takes no less time, so the best B is
near W / 128. With a stride the block has B / stride outputs and the bands slope accordingly. With a dilation D, D
blocks are interleaved, block J D + r has positions J B D + r + i D, and tap block k is multiplied with
X[:, k D : k D + columns].

Three stages, one tile apart; their pieces alternate on the Tensor Engine so that it never waits for an evacuation:

- in: rows are loaded as [(chunk, group, image), a, columns], in runs of a KiB if rows are that long; the Tensor Engine
  transposes each block column, several to a PSUM bank, and they are copied to X;
- bands (`bands`): a DMA for each channel of a buffer's groups, some buffers ahead; matmuls, the first one of ones and
  the bias in three parts of bf16; evacuation of sums to Y, with activation;
- out: matmuls of Y's columns with the matrix that undoes the blocks' mirroring, which also transposes them back to
  rows, in fp32 at twice the rate, as the matrix has only ones and zeros; then the store, of the load's shape.

With `x_stationary` the operands are exchanged: X[:, J] of blocks J a chunk apart is the stationary operand,
[(a, i), (chunk, image)], and the bands [(a, i), (a, o)] are the moving one, so that sums are evacuated as rows, a chunk
of an image on each partition. There is no Y, no mirror and no third stage; a store has shorter runs, of N Q / 128
columns.

Engine plan: Sync issues loads, Tensor transposes and multiplies, Vector and Scalar share evacuations by a ledger,
GpSimd zeroes and issues stores. Bound by the Tensor Engine for long filters. Zeros are multiplied: a NaN or Inf reaches
the other channels of its group, in the blocks of columns whose sums include it. Y has y's dtype, so y is
rounded once; it is fp32 if a residual is added later, and for fp16, as an overflow to Inf must not be multiplied by
the mirror matrix's zeros.
"""

from dataclasses import dataclass, field, replace

from ...._nki import nl
from ....schedules.banded import BandedSchedule, tiles_of_part
from ....schedules.depthwise import RowGeometry
from ....schedules.options import Epilogue
from ....schedules.tiles import whole_words
from ..._engines import Ledger, new_ledger
from ..._epilogue import BIAS_PARTS, bias_in_parts
from ..._masks import constant, select_ones
from ..._prologue import finish_gates
from ..._warm import WARM_BLOCKS, warm_up, warm_zeros
from ..geometry import parts_of_core
from ..tensors import RowTensors
from .bands import (
    band_queue,
    ensure_filters,
    load_bias,
    prefetch_bands,
)
from .stages import (
    load_banded_rows,
    multiply_group,
    multiply_rows,
    start_results,
    start_rows,
    transpose_in,
    transpose_out,
)

#: Circular buffer of rows of tiles: one is transposed while the next is loaded; with a factor of x, a third one between
#: these is multiplied.
ROWS_RING, GATED_RING = 2, 3
#: Groups at a tile's end without transposes of the next tile's rows, and at its start without transposes of the
#: previous tile's sums, so that evacuations end before their results are needed.
LAG = 2
#: Band buffers that are filled before the first rows are transposed; zeros of more would delay Vector's evacuations.
AT_START = 2


@dataclass
class HeldTile:
    """The on-chip tensors of a tile in the stages, each None until it is allocated. gates: pending products of rows_in
    with its gate, or its prologue; acc: the current accumulator, `started` if it holds zeros that products add to."""

    rows_in: object = None
    gates: list = field(default_factory=list)
    residual: object = None
    x_blocks: object = None
    y_blocks: object = None
    rows_out: object = None
    acc: object = None
    started: bool = False


@dataclass
class RowsBuffer:
    """A buffer of rows in SBUF, and the shape of the tile whose columns without data are cleared in it."""

    sbuf: object
    shape: tuple = ()


@dataclass
class BandedRun:
    """The state of a core's work that its stages share.

    held: HeldTile of each tile; g0, c_end: the first group, and the end of the last's channels; queue: contents of band
    buffers in order of use, [first group, groups]; middle, end: the epilogues of evacuations to Y, and to rows;
    sum_dtype: Y's. buffers: of bands; zeroed: groups of each with zeros off their diagonals; slot: the present group's
    in its buffer; z, z_index: zero-padded filters, [row, group, channel, pitch], and which tile of these they are;
    rings: of rows of x, and of its factor. mirror: the matrix that undoes the mirroring; bias, ones: the bias in parts,
    and what adds it to all columns.
    """

    tensors: RowTensors
    geometry: RowGeometry
    blocks: BandedSchedule
    tiles: list
    held: list
    g0: int
    c_end: int
    middle: Epilogue
    end: Epilogue
    sum_dtype: object
    ledger: Ledger
    buffers: list = field(default_factory=list)
    zeroed: list = field(default_factory=list)
    z: object = None
    z_index: int = -1
    rings: list = field(default_factory=list)
    warm: list = field(default_factory=list)
    queue: list = field(default_factory=list)
    slot: int = 0
    mirror: object = None
    bias: object = None
    ones: object = None


def start_banded(tensors, geometry, epilogue, blocks):
    """The BandedRun of this core. The end epilogue adds a residual and applies an activation that follows it, or with x
    stationary has all but the bias; the middle one has the rest."""
    sum_dtype, plain = tensors.y.dtype, {"activation": "", "by_sigmoid": False}
    if epilogue.residual != "" or sum_dtype == nl.float16:
        sum_dtype = nl.float32
    waits = epilogue.residual == "pre_activation" or blocks.settings.x_stationary
    middle = replace(epilogue, bias=False, residual="", **(plain if waits else {}))
    end = replace(epilogue, bias=False, **({} if waits else plain))
    tiles = [tile for part in parts_of_core() for tile in tiles_of_part(blocks, geometry, part)]
    tiles[-1:] = [replace(tile, ends=True) for tile in tiles[-1:]]
    last = max((tile.g0 + tile.gn for tile in tiles), default=0)
    span = tiles[0].g0 if tiles else 0, min(geometry.C, last * blocks.per_group)
    held = [HeldTile() for _ in tiles]
    return BandedRun(tensors, geometry, blocks, tiles, held, *span, middle, end, sum_dtype, new_ledger())


def start_buffers(run):
    """Buffers in rotation: of rows of x and of its factor, and of bands [(a, i), group, a', v], each zeroed before its
    first bands."""
    blocks, tiles, tensors = run.blocks, run.tiles, run.tensors
    partitions = max(1, *(tile.chunks_in * tile.rows for tile in tiles))
    columns = max(2, *(whole_words(tile.blocks_in * blocks.block, 2) for tile in tiles))
    shape, count = (partitions, blocks.per_group, columns), ROWS_RING if tensors.gate is None else GATED_RING
    for source in tensors.sources:
        some = [nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf) for _ in tiles[:count]]
        run.rings.append([RowsBuffer(one) for one in some])
    size, A = whole_words(blocks.num_taps * blocks.block, 2), blocks.per_group
    shape = (A * blocks.block, blocks.buffer_groups, A, size)
    run.buffers = [nl.ndarray(shape, dtype=tensors.w.dtype, buffer=nl.sbuf) for _ in range(blocks.settings.buffers)]
    run.zeroed = [0 for _ in run.buffers]


def start_work(run):
    """The start-up before the first sums: filters, rows of the first tiles, bands of all buffers, blocks of the first
    tile, and matmuls on zeros while the Tensor Engine would wait."""
    blocks, tiles, config = run.blocks, run.tiles, run.blocks.settings
    A, Bo = blocks.per_group, blocks.out_block
    start_buffers(run)
    run.queue = band_queue(run)
    bias_sbuf = load_bias(run)
    ensure_filters(run, run.g0)
    load_banded_rows(run, 0)
    zeros_sbuf = warm_zeros()
    run.warm = warm_up(zeros_sbuf, config.warmup, WARM_BLOCKS)
    for ahead in range(min(AT_START, config.buffers)):
        prefetch_bands(run, ahead)
    # after the zeros of the first filters and bands, which also wait for GpSimd
    run.bias = bias_in_parts(bias_sbuf)
    if bias_sbuf is not None:
        run.ones = constant((BIAS_PARTS, 1), nl.bfloat16, 1.0)
    for index in range(1, len(run.rings) + 1):  # before Vector waits for the first products with a gate
        load_banded_rows(run, index)
    transpose_in(run, 0, 1, 0)
    for ahead in range(AT_START, config.buffers):
        prefetch_bands(run, ahead)
    load_banded_rows(run, len(run.rings) + 1)
    if len(tiles) > 1:  # those of the second tile before the third's
        finish_gates(run.held[1].gates, run.ledger if config.x_stationary else None)
    if not config.x_stationary:
        # [(a, o'), (a, o)], 1 for the same channel and o' = out_block - 1 - o, or o' = o if sums have outputs in order
        pattern, start = ([[-1, A * Bo]], 0) if run.geometry.flipped else ([[-Bo, A], [1, Bo]], 1 - Bo)
        run.mirror = select_ones(A * Bo, pattern, start, run.sum_dtype)
    prepare_results(run, 0)
    run.warm = run.warm + warm_up(zeros_sbuf, config.rewarm, WARM_BLOCKS)


def prepare_results(run, index):
    """Y of a tile, or its rows, one tile before its sums: GpSimd and small loads may be late."""
    if index < len(run.tiles):
        if run.blocks.settings.x_stationary:
            start_rows(run, index)
        else:
            run.held[index].y_blocks = start_results(run, run.tiles[index])


def banded(tensors, geometry, options, blocks):
    """Write y: the sums of one tile alternate with transposes of the next tile's rows and of the previous tile's
    sums."""
    run = start_banded(tensors, geometry, options.epilogue, blocks)
    if not run.tiles:
        return
    start_work(run)
    position, by_rows = 0, blocks.settings.x_stationary
    multiply = multiply_rows if by_rows else multiply_group
    for index, tile in enumerate(run.tiles):
        if index > 0:  # `start_work` has loaded the first ones
            load_banded_rows(run, index + len(run.rings) + 1)
        coming = run.held[index + 2].gates if index + 2 < len(run.tiles) else []
        gates, spread = len(coming), max(1, tile.gn - LAG)
        prepare_results(run, index + 1)
        for group in range(tile.gn):
            left = 0 if by_rows else gates * (tile.gn - 1 - group) // tile.gn
            bands_sbuf = run.buffers[position % len(run.buffers)]
            finish_gates(coming, run.ledger, left)
            if group < spread:
                transpose_in(run, index + 1, spread, group)
            if group >= tile.gn - spread and not by_rows:
                transpose_out(run, index - 1, spread, group - (tile.gn - spread))
            multiply(run, index, group, bands_sbuf)
            run.slot += 1
            if run.slot == run.queue[position][1]:
                prefetch_bands(run, position + len(run.buffers))
                position, run.slot = position + 1, 0
    if not by_rows:
        transpose_out(run, len(run.tiles) - 1, 1, 0)
