"""Depthwise conv1d with the taps on the partitions: the published implicit GEMM with several
channels a matmul.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

Row (c, s) of a loaded tile is x[c] from the element that tap s meets at the tile's first column, so a matmul whose
contraction runs over the rows is the convolution; nothing is materialised beyond the tile. nki-library's kernel of this
design contracts one channel at a time against one filter column and uses 1 of the array's 128 columns. Here

- a tile stacks `channels_per_group` = 128 // S channels on the partitions (one channel, 128 taps at a time, from
  S = 65 on), and its stationary is block-diagonal: the filter of each channel in that channel's own column;
- all groups of a channel tile accumulate into one PSUM tile of up to 128 channels, each group adding zeros to the
  others' rows, so that one read-out and one store serve 128 channels.

Engine plan: DMA loads each [rows, up to 2048 columns] tile straight from HBM by an overlapping access pattern; Tensor
does one matmul for each 512 columns of it; Vector and Scalar take turns in reading PSUM out; DMA stores [channels,
2048]. Filters are loaded, transposed on the array and spread to block-diagonals once a channel tile. Tiles that touch
padding or lhs-dilation zeros come from a padded row in SBUF: memset, one DMA of the valid elements, one overlapping
DMA from the row to the tile. With a stride whole runs are loaded and the moving operand steps. Bound by DMA: x is read
S times (once from HBM for a staged tile).

Zeros are multiplied: a NaN or Inf in x reaches every channel of its channel tile at the columns it meets. With
strict_nonfinite each channel has its own matmuls (one column of the array), and NaN and Inf stay where the definition
puts them.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._epilogue import finish, load_bias
from ..._masks import keep_between
from ..._settings import config_refusal
from ..._tiles import div_ceil
from ..call import load_residual, y_tile
from ..free_channels import ChannelBlock, row_runs
from ..geometry import instructions_refusal
from .tiling import (
    FILTER_BYTES_MAX,
    TAP_TILES_PER_LOAD,
    choose_tiling,
    count_partition_instructions,
    filter_bytes,
    span_of,
)


def taps_on_partition_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = config_refusal(config, (), "taps_on_partition")
    if reason != "":
        return reason
    tiling = choose_tiling(geometry, extras.strict_nonfinite)
    if tiling.channels_per_group == 1:
        num_bytes = filter_bytes(geometry, tiling.c_tile, tiling.num_s_tiles)
        if num_bytes > FILTER_BYTES_MAX:
            return (
                f"S={geometry.S}: one channel's filter must fit {FILTER_BYTES_MAX} bytes a partition of SBUF "
                f"({tiling.num_s_tiles} tiles of {tiling.s_tile} taps, {geometry.itemsize} bytes each); split the "
                f"filter and add the results"
            )
    count = count_partition_instructions(geometry, extras, tiling, cores)
    return instructions_refusal(geometry, "taps_on_partition", count)


def taps_on_partition(operands, geometry, extras, config):
    """Write operands.y. config: nothing can be set."""
    tiling = choose_tiling(geometry, extras.strict_nonfinite)
    num_c_tiles = div_ceil(geometry.C, tiling.c_tile)
    tiles_per_core = div_ceil(num_c_tiles, nl.num_programs())
    first_tile = min(num_c_tiles, nl.program_id(0) * tiles_per_core)
    end_tile = min(num_c_tiles, first_tile + tiles_per_core)
    filter_buffers = []
    for _ in range(min(2, end_tile - first_tile)):
        filter_buffers.append(zeroed_filters(operands.w, tiling))

    for c_index in range(first_tile, end_tile):
        c0 = c_index * tiling.c_tile
        cn = min(tiling.c_tile, geometry.C - c0)
        filters = filter_buffers[(c_index - first_tile) % 2]
        spread_blocks(filters, operands.w, geometry, tiling, c0, cn)
        bias_sbuf = load_bias(operands.bias, c0, cn)
        for n in range(geometry.N):
            for q0 in range(0, geometry.Q, tiling.q_load):
                qn = min(tiling.q_load, geometry.Q - q0)
                convolve_tile(operands, filters, bias_sbuf, geometry, extras, tiling, n, c0, cn, q0, qn)


def zeroed_filters(w_hbm, tiling):
    """SBUF for the stationaries of one channel tile, zero outside the blocks that are written later."""
    size = tiling.num_s_tiles * tiling.groups_per_c_tile * tiling.c_tile
    filters_sbuf = nl.ndarray((nl.tile_size.pmax, size), dtype=w_hbm.dtype, buffer=nl.sbuf)
    nisa.memset(dst=filters_sbuf, value=0.0)
    return filters_sbuf


def spread_blocks(filters, w_hbm, geometry, tiling, c0, cn):
    """Filters of channels c0 .. c0+cn-1 into the block diagonals.

    Row (g, s) of block (tap tile, group) holds w[c0 + group * G + g, s] in the column of that channel. Groups of
    several channels have one tap tile.
    """
    G, free_size = tiling.channels_per_group, filters.shape[1]
    groups, load_most = div_ceil(cn, G), TAP_TILES_PER_LOAD * tiling.s_tile
    for load0 in range(0, geometry.S, load_most):
        loadn = min(load_most, geometry.S - load0)
        w_sbuf = nl.ndarray((groups, G * loadn), dtype=w_hbm.dtype, buffer=nl.sbuf)
        if cn % G != 0:
            nisa.memset(dst=w_sbuf, value=0.0)
        for run in row_runs(ChannelBlock(c0=c0, count=cn, length=G), 0, G):
            row, rows, channels = run
            pattern = [[G * geometry.w_c, rows], [geometry.w_c, channels], [geometry.w_s, loadn]]
            offset = (c0 + row * G) * geometry.w_c + load0 * geometry.w_s
            copy(w_sbuf[row : row + rows, 0 : channels * loadn], w_hbm.ap(pattern=pattern, offset=offset))
        for s0 in range(0, loadn, tiling.s_tile):
            rows = G * min(tiling.s_tile, loadn - s0)
            w_psum = nl.ndarray((rows, groups), dtype=w_hbm.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=w_psum, data=w_sbuf[0:groups, s0 : s0 + rows], engine=nisa.engine.tensor)
            if G > 1:
                spread_corners(filters, w_psum, tiling)
            else:
                block0 = (load0 + s0) // tiling.s_tile * tiling.groups_per_c_tile
                diagonal = [[free_size, rows], [tiling.c_tile + 1, cn]]
                nisa.tensor_copy(dst=filters.ap(pattern=diagonal, offset=block0 * tiling.c_tile), src=w_psum)


def spread_corners(filters, w_psum, tiling):
    """The G x G corners of blocks cut out of transposed filters [(g, s), group]: S g <= row < S g + S."""
    G, S = tiling.channels_per_group, tiling.s_tile
    rows, groups = w_psum.shape[0], w_psum.shape[1]
    rows_sbuf = nl.ndarray((rows, groups, 1), dtype=w_psum.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rows_sbuf, src=w_psum)
    corners = filters.ap(pattern=[[filters.shape[1], rows], [tiling.c_tile + G, groups], [1, G]], offset=0)
    keep_between(corners, [[0, groups], [-S, G]], S, rows_sbuf.broadcast(2, G))


def convolve_tile(operands, filters, bias_sbuf, geometry, extras, tiling, n, c0, cn, q0, qn):
    """Channels c0 .. c0+cn-1 and columns q0 .. q0+qn-1 of image n: loads, matmuls, read-out, store."""
    accs = []
    for _ in range(div_ceil(qn, tiling.q_tile)):
        accs.append(nl.ndarray((tiling.c_tile, tiling.q_tile), dtype=nl.float32, buffer=nl.psum))
    num_matmuls = 0
    for group in range(div_ceil(cn, tiling.channels_per_group)):
        g0 = group * tiling.channels_per_group
        gn = min(tiling.channels_per_group, cn - g0)
        for s_index in range(tiling.num_s_tiles):
            s0 = s_index * tiling.s_tile
            sn = min(tiling.s_tile, geometry.S - s0)
            span = span_of(geometry, extras, s0, sn, q0, qn)
            if span.skipped:
                continue
            x_sbuf = load_tile(operands, geometry, span, n, c0 + g0, gn, sn, qn)
            column = (s_index * tiling.groups_per_c_tile + group) * tiling.c_tile
            w_sbuf = filters[0 : gn * sn, column : column + tiling.c_tile]
            multiply(accs, w_sbuf, x_sbuf, geometry.stride, qn, num_matmuls > 0)
            num_matmuls += 1
    if num_matmuls == 0:
        zeros_sbuf = nl.ndarray((cn, tiling.q_tile), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=zeros_sbuf, value=0.0)
        for index in range(len(accs)):
            accs[index] = zeros_sbuf
    residual_sbuf = load_residual(operands, geometry, n, c0, cn, q0, qn)
    y_sbuf = nl.ndarray((cn, qn), dtype=operands.y.dtype, buffer=nl.sbuf)
    read_out(y_sbuf, accs, bias_sbuf, residual_sbuf, extras, tiling, cn, qn)
    copy(y_tile(operands.y, geometry, n, c0, cn, q0, qn), y_sbuf)


def load_tile(operands, geometry, span, n, c0, gn, sn, qn):
    """Tile [(gn channels, sn taps), run]: row (c, s) starts at the element that tap s meets at the first column.

    The run holds qn columns, a stride apart.
    """
    run = (qn - 1) * geometry.stride + 1
    x_sbuf = nl.ndarray((gn * sn, run), dtype=operands.x.dtype, buffer=nl.sbuf)
    if span.whole:
        pattern = [[geometry.x_c, gn], [geometry.dilation * geometry.x_w, sn], [geometry.x_w, run]]
        offset = n * geometry.x_n + c0 * geometry.x_c + span.first * geometry.x_w
        src = operands.x.ap(pattern=pattern, offset=offset)
    else:
        row_sbuf = stage_row(operands, geometry, span, n, c0, gn)
        src = row_sbuf.ap(pattern=[[span.size, gn], [geometry.dilation, sn], [1, run]], offset=0)
    # issued beside the static ones, so that neither waits for the other
    nisa.dma_copy(dst=x_sbuf, src=src)
    return x_sbuf


def stage_row(operands, geometry, span, n, c0, gn):
    """A Span of gn channels, in SBUF: one DMA of what is x, one of what is the initial state, and zeros."""
    row_sbuf = nl.ndarray((gn, span.size), dtype=operands.x.dtype, buffer=nl.sbuf)
    if span.count + span.from_state < span.size:
        nisa.memset(dst=row_sbuf, value=0.0)
    if span.from_state > 0:
        pattern = [[geometry.pad_left, gn], [1, span.from_state]]
        offset = (n * geometry.C + c0) * geometry.pad_left + geometry.pad_left + span.first
        copy(row_sbuf[0:gn, 0 : span.from_state], operands.state.ap(pattern=pattern, offset=offset))
    if span.count > 0:
        pattern = [[span.size, gn], [geometry.lhs_dilation, span.count]]
        dst = row_sbuf.ap(pattern=pattern, offset=span.element * geometry.lhs_dilation - span.first)
        pattern = [[geometry.x_c, gn], [geometry.x_w, span.count]]
        offset = n * geometry.x_n + c0 * geometry.x_c + span.element * geometry.x_w
        copy(dst, operands.x.ap(pattern=pattern, offset=offset))
    return row_sbuf


def multiply(accs, w_sbuf, x_sbuf, stride, qn, accumulate):
    """One loaded tile against its stationary, 512 columns at a time, into the accumulators."""
    for index in range(len(accs)):
        into = accs[index]
        q0 = index * into.shape[1]
        columns = min(into.shape[1], qn - q0)
        begin = q0 * stride
        nisa.nc_matmul(
            dst=into[0 : into.shape[0], 0:columns],
            stationary=w_sbuf,
            moving=x_sbuf[0 : x_sbuf.shape[0], begin : begin + (columns - 1) * stride + 1 : stride],
            accumulate=accumulate,
        )


def read_out(y_sbuf, accs, bias_sbuf, residual_sbuf, extras, tiling, cn, qn):
    """The accumulators through the epilogue into y_sbuf, Vector and Scalar in turn where either can."""
    for index in range(len(accs)):
        q0 = index * tiling.q_tile
        columns = min(tiling.q_tile, qn - q0)
        finish(
            y_sbuf[0:cn, q0 : q0 + columns],
            accs[index][0:cn, 0:columns],
            bias_sbuf,
            None if residual_sbuf == None else residual_sbuf[0:cn, q0 : q0 + columns],
            extras.epilogue,
            nisa.engine.vector if index % 2 == 0 else nisa.engine.scalar,
        )
