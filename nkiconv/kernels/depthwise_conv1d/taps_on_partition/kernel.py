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
DMA from the row to the tile. With a stride whole runs are loaded and the moving operand steps (`whole_runs`), or the
DMA steps. Bound by DMA: x is read S times (once from HBM for a staged tile).

Zeros are multiplied: a NaN or Inf in x reaches every channel of its channel tile at the columns it meets. With
strict_nonfinite each channel has its own matmuls (one column of the array), and NaN and Inf stay where the definition
puts them.
"""

from ...._nki import nisa, nl
from ..._epilogue import finish, is_plain
from ..._tiles import INSTRUCTIONS_MAX, div_ceil
from ..call import load_bias, load_residual, y_tile
from ..positions import first_element, first_position, last_element, last_position
from .config import read_taps_on_partition, taps_on_partition_config_refusal, taps_on_partition_defaults
from .tiling import (
    FILTER_BYTES_MAX,
    TAP_TILES_PER_LOAD,
    choose_tiling,
    count_instructions,
    filter_bytes,
    skips,
    state_elements,
)


def taps_on_partition_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = taps_on_partition_config_refusal(config)
    if reason != "":
        return reason
    settings = read_taps_on_partition(config, taps_on_partition_defaults(geometry))
    tiling = choose_tiling(geometry, extras.strict_nonfinite, settings)
    if tiling.channels_per_group == 1:
        num_bytes = filter_bytes(geometry, tiling.c_tile, tiling.num_s_tiles)
        if num_bytes > FILTER_BYTES_MAX:
            return (
                f"S={geometry.S}: one channel's filter must fit {FILTER_BYTES_MAX} bytes a partition of SBUF "
                f"({tiling.num_s_tiles} tiles of {tiling.s_tile} taps, {geometry.itemsize} bytes each); split the "
                f"filter and add the results"
            )
    tiles_per_core = div_ceil(div_ceil(geometry.C, tiling.c_tile), cores)
    count = count_instructions(geometry, extras, tiling, tiles_per_core)
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.N}, C={geometry.C}, W={geometry.W}, S={geometry.S}: taps_on_partition needs {count} "
            f"instructions on a core, the compiler takes {INSTRUCTIONS_MAX}; split N or C over several calls"
        )
    return ""


def taps_on_partition(operands, geometry, extras, config):
    """Write operands.y. config: (name, value) pairs of a TapsOnPartitionConfig."""
    settings = read_taps_on_partition(config, taps_on_partition_defaults(geometry))
    tiling = choose_tiling(geometry, extras.strict_nonfinite, settings)
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
        if tiling.channels_per_group > 1:
            spread_grouped_filters(filters, operands.w, geometry, tiling, c0, cn)
        else:
            spread_single_filters(filters, operands.w, geometry, tiling, c0, cn)
        bias_sbuf = load_bias(operands, c0, cn)
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


def stationary(filters, tiling, group, s_index, rows):
    """Stationary of one group and tap tile: [rows, c_tile]."""
    first = (s_index * tiling.groups_per_c_tile + group) * tiling.c_tile
    return filters[0:rows, first : first + tiling.c_tile]


def spread_single_filters(filters, w_hbm, geometry, tiling, c0, cn):
    """Filters of channels c0 .. c0+cn-1 into the diagonals: column c of block (s tile, c) is w[c0 + c, s tile]."""
    free_size = filters.shape[1]
    load_taps = TAP_TILES_PER_LOAD * tiling.s_tile
    for load0 in range(0, geometry.S, load_taps):
        loadn = min(load_taps, geometry.S - load0)
        w_sbuf = nl.ndarray((cn, loadn), dtype=w_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(
            dst=w_sbuf,
            src=w_hbm.ap(
                pattern=[[geometry.w_c, cn], [geometry.w_s, loadn]], offset=c0 * geometry.w_c + load0 * geometry.w_s
            ),
        )
        for s0 in range(0, loadn, tiling.s_tile):
            sn = min(tiling.s_tile, loadn - s0)
            s_index = (load0 + s0) // tiling.s_tile
            w_psum = nl.ndarray((sn, cn), dtype=w_hbm.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=w_psum, data=w_sbuf[0:cn, s0 : s0 + sn], engine=nisa.engine.tensor)
            nisa.tensor_copy(
                dst=filters.ap(
                    pattern=[[free_size, sn], [tiling.c_tile + 1, cn]],
                    offset=s_index * tiling.groups_per_c_tile * tiling.c_tile,
                ),
                src=w_psum,
            )


def spread_grouped_filters(filters, w_hbm, geometry, tiling, c0, cn):
    """Filters of several channels a group: row (g, s) of block `group` holds w[c0 + group * G + g, s] in column g's.

    The blocks' G x G corners are cut out of the transposed filters by two selects: S g <= row < S g + S.
    """
    G, S = tiling.channels_per_group, geometry.S
    num_groups, num_full = div_ceil(cn, G), cn // G
    rest = cn - num_full * G
    w_sbuf = nl.ndarray((num_groups, G * S), dtype=w_hbm.dtype, buffer=nl.sbuf)
    if rest > 0:
        nisa.memset(dst=w_sbuf, value=0.0)
    if num_full > 0:
        nisa.dma_copy(
            dst=w_sbuf[0:num_full, 0 : G * S],
            src=w_hbm.ap(
                pattern=[[G * geometry.w_c, num_full], [geometry.w_c, G], [geometry.w_s, S]], offset=c0 * geometry.w_c
            ),
        )
    if rest > 0:
        nisa.dma_copy(
            dst=w_sbuf[num_full : num_full + 1, 0 : rest * S],
            src=w_hbm.ap(pattern=[[geometry.w_c, rest], [geometry.w_s, S]], offset=(c0 + num_full * G) * geometry.w_c),
        )
    w_psum = nl.ndarray((G * S, num_groups), dtype=w_hbm.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=w_psum, data=w_sbuf, engine=nisa.engine.tensor)
    rows_sbuf = nl.ndarray((G * S, num_groups, 1), dtype=w_hbm.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rows_sbuf, src=w_psum)

    corners = filters.ap(pattern=[[filters.shape[1], G * S], [tiling.c_tile + G, num_groups], [1, G]], offset=0)
    pattern = [[0, num_groups], [-S, G]]
    nisa.affine_select(
        dst=corners,
        pattern=pattern,
        channel_multiplier=1,
        on_true_tile=rows_sbuf.broadcast(2, G),
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
        offset=0,
    )
    nisa.affine_select(
        dst=corners,
        pattern=pattern,
        channel_multiplier=1,
        on_true_tile=corners,
        on_false_value=0.0,
        cmp_op=nl.less,
        offset=-S,
    )


def convolve_tile(operands, filters, bias_sbuf, geometry, extras, tiling, n, c0, cn, q0, qn):
    """Channels c0 .. c0+cn-1 and columns q0 .. q0+qn-1 of image n: loads, matmuls, read-out, store."""
    acc_psums = []
    for _ in range(div_ceil(qn, tiling.q_tile)):
        acc_psums.append(nl.ndarray((tiling.c_tile, tiling.q_tile), dtype=nl.float32, buffer=nl.psum))
    num_matmuls = 0
    for group in range(div_ceil(cn, tiling.channels_per_group)):
        g0 = group * tiling.channels_per_group
        gn = min(tiling.channels_per_group, cn - g0)
        for s_index in range(tiling.num_s_tiles):
            s0 = s_index * tiling.s_tile
            sn = min(tiling.s_tile, geometry.S - s0)
            if skips(geometry, extras, s0, sn, q0, qn):
                continue
            x_sbuf = load_tile(operands, geometry, extras, tiling, n, c0 + g0, gn, s0, sn, q0, qn)
            w_sbuf = stationary(filters, tiling, group, s_index, gn * sn)
            multiply(acc_psums, w_sbuf, x_sbuf, tiling, qn, num_matmuls > 0)
            num_matmuls += 1
    residual_sbuf = load_residual(operands, geometry, n, c0, cn, q0, qn)
    y_sbuf = nl.ndarray((cn, qn), dtype=operands.y.dtype, buffer=nl.sbuf)
    if num_matmuls > 0:
        read_out(y_sbuf, acc_psums, bias_sbuf, residual_sbuf, extras, tiling, cn, qn)
    elif is_plain(extras.epilogue):
        nisa.memset(dst=y_sbuf, value=0.0)
    else:
        zeros_sbuf = nl.ndarray((cn, tiling.q_tile), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=zeros_sbuf, value=0.0)
        zeros = []
        for _ in range(len(acc_psums)):
            zeros.append(zeros_sbuf)
        read_out(y_sbuf, zeros, bias_sbuf, residual_sbuf, extras, tiling, cn, qn)
    nisa.dma_copy(dst=y_tile(operands.y, geometry, n, c0, cn, q0, qn), src=y_sbuf)


def load_tile(operands, geometry, extras, tiling, n, c0, gn, s0, sn, q0, qn):
    """Tile [(gn channels, sn taps), run]: row (c, s) starts at the element that tap s meets at column q0.

    The run holds qn columns, `run_step` elements apart.
    """
    step = geometry.stride if tiling.run_step == 1 else 1
    run = (qn - 1) * tiling.run_step + 1
    first, last = first_position(geometry, s0, q0), last_position(geometry, s0, sn, q0, qn)
    x_sbuf = nl.ndarray((gn * sn, run), dtype=operands.x.dtype, buffer=nl.sbuf)
    if geometry.lhs_dilation == 1 and first >= 0 and last < geometry.W:
        src = operands.x.ap(
            pattern=[[geometry.x_c, gn], [geometry.dilation * geometry.x_w, sn], [step * geometry.x_w, run]],
            offset=n * geometry.x_n + c0 * geometry.x_c + first * geometry.x_w,
        )
    else:
        row_sbuf = stage_row(operands, geometry, extras, n, c0, gn, first, last)
        src = row_sbuf.ap(pattern=[[last - first + 1, gn], [geometry.dilation, sn], [step, run]], offset=0)
    nisa.dma_copy(dst=x_sbuf, src=src)
    return x_sbuf


def stage_row(operands, geometry, extras, n, c0, gn, first, last):
    """Positions first .. last of the padded, dilated rows of gn channels, in SBUF: one DMA of what is x, one of what
    is the initial state, and zeros."""
    size = last - first + 1
    row_sbuf = nl.ndarray((gn, size), dtype=operands.x.dtype, buffer=nl.sbuf)
    w_first = first_element(geometry, first)
    count = max(0, last_element(geometry, last) - w_first + 1)
    from_state = state_elements(extras, first, last)
    if count + from_state < size:
        nisa.memset(dst=row_sbuf, value=0.0)
    if from_state > 0:
        nisa.dma_copy(
            dst=row_sbuf[0:gn, 0:from_state],
            src=operands.state.ap(
                pattern=[[geometry.pad_left, gn], [1, from_state]],
                offset=(n * geometry.C + c0) * geometry.pad_left + geometry.pad_left + first,
            ),
        )
    if count > 0:
        nisa.dma_copy(
            dst=row_sbuf.ap(
                pattern=[[size, gn], [geometry.lhs_dilation, count]], offset=w_first * geometry.lhs_dilation - first
            ),
            src=operands.x.ap(
                pattern=[[geometry.x_c, gn], [geometry.x_w, count]],
                offset=n * geometry.x_n + c0 * geometry.x_c + w_first * geometry.x_w,
            ),
        )
    return row_sbuf


def multiply(acc_psums, w_sbuf, x_sbuf, tiling, qn, accumulate):
    """One loaded tile against its stationary, 512 columns at a time, into the accumulators."""
    for index in range(len(acc_psums)):
        q0 = index * tiling.q_tile
        columns = min(tiling.q_tile, qn - q0)
        begin = q0 * tiling.run_step
        end = begin + (columns - 1) * tiling.run_step + 1
        nisa.nc_matmul(
            dst=acc_psums[index][0 : tiling.c_tile, 0:columns],
            stationary=w_sbuf,
            moving=x_sbuf[0 : x_sbuf.shape[0], begin : end : tiling.run_step],
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
