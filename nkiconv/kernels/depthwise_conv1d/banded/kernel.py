"""Depthwise conv1d by band matrices: blocks of B positions of 128 / B channels lie on the partitions.

    y[a, B j + o] = sum over k < num_taps of  sum over i < B of  w[a, k B + i - o] * x[a, B (j + k) + i]

For a group of A = 128 / B channels, X[(a, i), J] = x[a, B J + i] is 128 rows, tap block k one block-diagonal stationary
of A band matrices [B, B], and Y = sum over k of band_k^T X[:, k : k + columns] accumulates in PSUM. A matmul so does
B taps for B outputs of A channels at once; num_taps = ceil((S + B - 1) / B) of them serve A channels, which costs the
array (S + B) * 0.417 * max(1, columns / 128) ns a channel and 128 columns. Small B make long rows of columns for few
channels, large B short ones for many; below 128 columns a matmul gets no cheaper, so the best B is near W / 128. With a
stride the block has B / stride outputs and the bands slope accordingly.

Three stages, one tile apart, whose pieces alternate on the array so that it never waits for a read-out:

- in: rows come from HBM as [(chunk, group, image), a, columns], runs of a KiB where rows are that long; each block
  column is transposed on the array, several to a PSUM bank, and copied to X;
- bands: see `bands`: one DMA a channel, some buffers ahead; matmuls; sums to Y, where bias and activation happen;
- out: Y's columns go through the array once more, times the matrix that undoes the blocks' mirroring, which also
  transposes them back to rows, in fp32 at twice the rate, as the matrix has only ones and zeros; then the store, the
  same shape as the load.

Engine plan: Sync issues loads, Tensor transposes and multiplies, Vector and Scalar share the read-outs by a ledger,
GpSimd zeroes and issues stores. Bound by the array for long filters. Zeros are multiplied: a NaN or Inf reaches the
other channels of its group, in the blocks of columns that its own channel's sums meet it in. Y has y's dtype, so that
y is rounded once; it is fp32 where a residual is yet to be added, and for fp16, where a sum may overflow to an Inf that
must not meet the mirror matrix's zeros.
"""

from ...._nki import nl
from ..._engines import new_ledger
from ..._epilogue import Epilogue
from ..._tiles import PARTS, share
from ..._warm import warm_up, warm_zeros
from .bands import band_buffers, ensure_filters, mirror_matrix, spread_bias, start_filters
from .blocks import make_blocks
from .defaults import settings_of_banded
from .stages import Run, load_rows, multiply_group, prefetch_bands, start_results, transpose_in, transpose_out
from .tiles import even, in_pieces, out_pieces, plan_tile
from .work import work_tiles

#: Blocks of 128 columns of a matmul on zeros.
WARM_BLOCKS = 4
#: Buffers of rows that tiles take in turn: one is being transposed while the next but one comes in.
RING = 2
#: Groups at a tile's end in which nothing of the next is transposed in, and at its start nothing of the one before
#: out, so that read-outs are done when their results are needed.
LAG = 2
#: Band buffers that are filled before the first rows are transposed; zeros of the others must not keep Vector from it.
AT_START = 2


def middle_epilogue(epilogue):
    """What happens to the sums before they are transposed to rows: all of it, or what comes before a residual."""
    after_residual = epilogue.residual == "pre_activation"
    return Epilogue(
        activation="" if after_residual else epilogue.activation,
        bias=epilogue.bias,
        residual="",
        y_itemsize=epilogue.y_itemsize,
    )


def end_epilogue(epilogue):
    """What happens to the rows: a residual, and an activation that comes after it."""
    after_residual = epilogue.residual == "pre_activation"
    return Epilogue(
        activation=epilogue.activation if after_residual else "",
        bias=False,
        residual=epilogue.residual,
        y_itemsize=epilogue.y_itemsize,
    )


def banded(operands, geometry, extras, config):
    """Write operands.y. config: (name, value) pairs of BandedConfig's settings."""
    blocks = make_blocks(geometry, settings_of_banded(geometry, extras, config), extras.state)
    sum_dtype = operands.y.dtype
    if extras.epilogue.residual != "" or sum_dtype == nl.float16:
        sum_dtype = nl.float32
    tiles = []
    parts = share(PARTS, nl.num_programs(), nl.program_id(0))
    for part in range(parts[0], parts[0] + parts[1]):
        works = work_tiles(blocks, geometry, part)
        for index in range(len(works)):
            tiles.append(plan_tile(blocks, works[index]))
    if len(tiles) > 0:
        tiles[len(tiles) - 1].ends = True
        run = Run(
            operands=operands,
            geometry=geometry,
            extras=extras,
            blocks=blocks,
            filters=None,
            mirror=None,
            ledger=new_ledger(),
            middle=middle_epilogue(extras.epilogue),
            end=end_epilogue(extras.epilogue),
            sum_dtype=sum_dtype,
        )
        work_through(run, tiles)


def rows_ring(run, tiles):
    """Buffers of rows for tiles in turn, as large as the largest needs."""
    partitions, columns = 1, 2
    for index in range(len(tiles)):
        partitions = max(partitions, tiles[index].chunks_in * tiles[index].rows)
        columns = max(columns, even(tiles[index].blocks_in * run.blocks.block))
    ring = []
    for _ in range(min(RING, len(tiles))):
        ring.append(
            nl.ndarray((partitions, run.blocks.per_group, columns), dtype=run.operands.x.dtype, buffer=nl.sbuf),
        )
    return ring


def transpose_share_in(run, tiles, index, parts, part):
    """One of equal parts of the pieces that make blocks of a tile's rows, if there is such a tile."""
    if index < len(tiles):
        piece = share(in_pieces(run.geometry, tiles[index]), parts, part)
        transpose_in(run, tiles[index], piece[0], piece[1])


def transpose_share_out(run, tiles, index, parts, part):
    """One of equal parts of the pieces that make rows of a tile's sums, if there is such a tile."""
    if index >= 0:
        piece = share(out_pieces(run.blocks, tiles[index]), parts, part)
        transpose_out(run, tiles[index], piece[0], piece[1])


def work_through(run, tiles):
    """All tiles of a core: bands of one, between rows of the next coming in and rows of the one before going out."""
    queue = []
    for index in range(len(tiles)):
        gn = tiles[index].work.gn
        for first in range(0, gn, run.blocks.buffer_groups):
            queue.append((index, first, min(run.blocks.buffer_groups, gn - first)))
    ring = rows_ring(run, tiles)
    first, last = tiles[0].work, tiles[len(tiles) - 1].work
    c0 = first.g0 * run.blocks.per_group
    cn = min(run.geometry.C, (last.g0 + last.gn) * run.blocks.per_group) - c0
    run.filters = start_filters(run.operands, run.blocks, c0, cn)
    ensure_filters(run.filters, run.operands, run.geometry, run.blocks, c0, 1)
    load_rows(run, tiles[0], ring[0])
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, run.blocks.config.warmup, WARM_BLOCKS)
    buffers = band_buffers(run.blocks, run.operands.w.dtype)
    for ahead in range(min(AT_START, len(buffers))):
        prefetch_bands(run, tiles, queue, buffers, ahead)
    if len(tiles) > 1:
        load_rows(run, tiles[1], ring[1])
    transpose_in(run, tiles[0], 0, in_pieces(run.geometry, tiles[0]))
    for ahead in range(AT_START, len(buffers)):
        prefetch_bands(run, tiles, queue, buffers, ahead)
    run.mirror = mirror_matrix(run.blocks, run.sum_dtype)
    warm_up(zeros_sbuf, run.blocks.config.rewarm, WARM_BLOCKS)

    position = 0
    for index in range(len(tiles)):
        tile = tiles[index]
        if index + 2 < len(tiles):
            load_rows(run, tiles[index + 2], ring[index % RING])
        gn = tile.work.gn
        spread = max(1, gn - LAG)
        tile.bias = spread_bias(run.operands, run.geometry, run.blocks, tile.work.g0, tile.work.gn)
        start_results(run, tile)
        for group in range(gn):
            bands_first = index == 0 and run.blocks.config.bands_first
            if not bands_first and group < spread:
                transpose_share_in(run, tiles, index + 1, spread, group)
            if group >= gn - spread:
                transpose_share_out(run, tiles, index - 1, spread, group - (gn - spread))
            slot = group % run.blocks.buffer_groups
            multiply_group(run, tile, group, buffers[position % len(buffers)], slot)
            if slot == run.blocks.buffer_groups - 1 or group == gn - 1:
                prefetch_bands(run, tiles, queue, buffers, position + len(buffers))
                position += 1
            if bands_first and group < spread:
                transpose_share_in(run, tiles, index + 1, spread, group)
    transpose_out(run, tiles[len(tiles) - 1], 0, out_pieces(run.blocks, tiles[len(tiles) - 1]))
