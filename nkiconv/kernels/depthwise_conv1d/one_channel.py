"""Depthwise conv1d one channel at a time: the published implicit GEMM in its plainest form, to compare with.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

Row s of a tile is x[c] from the element that tap s meets on, loaded by a DMA of its own; the filter of the channel is
one stationary column of up to 128 taps. A matmul uses one of the array's 128 columns and gives one row of up to 512.

Engine plan: DMA loads S rows for each 512 columns of each channel; Tensor does one matmul for each 128 of them; Scalar
reads the row out; DMA stores it. Bound by the issue of DMAs, S for each channel and 512 columns. Nothing is shared
between channels, so NaN and Inf stay in theirs.
"""

from ..._nki import nisa, nl
from .._epilogue import finish, finish_instructions
from .._settings import config_refusal
from .._tiles import INSTRUCTIONS_MAX, div_ceil, share
from .call import load_bias, load_residual, y_tile
from .positions import columns_met


def one_channel_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = config_refusal(config, (), "one_channel")
    if reason != "":
        return reason
    if extras.state:
        return "initial_state: one_channel takes zeros in front of the rows only; use another algorithm"
    count = count_instructions(geometry, extras, div_ceil(geometry.C, cores))
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.N}, C={geometry.C}, W={geometry.W}, S={geometry.S}: one_channel needs up to {count} "
            f"instructions on a core, the compiler takes {INSTRUCTIONS_MAX}; split N or C over several calls, or use "
            f"another algorithm"
        )
    return ""


def one_channel(operands, geometry, extras, config):
    """Write operands.y. config: None, this algorithm has no settings."""
    channels = share(geometry.C, nl.num_programs(), nl.program_id(0))
    for c in range(channels[0], channels[0] + channels[1]):
        columns = []
        for s0 in range(0, geometry.S, nl.tile_size.pmax):
            columns.append(load_filter(operands.w, geometry, c, s0))
        bias_sbuf = load_bias(operands, c, 1)
        for n in range(geometry.N):
            for q0 in range(0, geometry.Q, nl.tile_size.gemm_moving_fmax):
                qn = min(nl.tile_size.gemm_moving_fmax, geometry.Q - q0)
                convolve_row(operands, columns, bias_sbuf, geometry, extras, n, c, q0, qn)


def count_instructions(geometry, extras, channels):
    """Most instructions that this many channels can take: rows of zeros only need no load."""
    tap_tiles = div_ceil(geometry.S, nl.tile_size.pmax)
    q_tiles = div_ceil(geometry.Q, nl.tile_size.gemm_moving_fmax)
    end = 2 + finish_instructions(extras.epilogue)
    return channels * (tap_tiles + 1 + geometry.N * q_tiles * (geometry.S + 2 * tap_tiles + end))


def load_filter(w_hbm, geometry, c, s0):
    """Taps s0 .. s0+127 of channel c as a stationary column: [taps, 1]."""
    sn = min(nl.tile_size.pmax, geometry.S - s0)
    w_sbuf = nl.ndarray((sn, 1), dtype=w_hbm.dtype, buffer=nl.sbuf)
    offset = c * geometry.w_c + s0 * geometry.w_s
    nisa.dma_copy(dst=w_sbuf, src=w_hbm.ap(pattern=[[geometry.w_s, sn], [1, 1]], offset=offset))
    return w_sbuf


def convolve_row(operands, columns, bias_sbuf, geometry, extras, n, c, q0, qn):
    """Columns q0 .. q0+qn-1 of one channel of one image."""
    acc_psum = nl.ndarray((1, qn), dtype=nl.float32, buffer=nl.psum)
    for index in range(len(columns)):
        w_sbuf = columns[index]
        x_sbuf = load_rows(operands.x, geometry, n, c, index * nl.tile_size.pmax, w_sbuf.shape[0], q0, qn)
        nisa.nc_matmul(dst=acc_psum, stationary=w_sbuf, moving=x_sbuf, accumulate=index > 0)
    residual_sbuf = load_residual(operands, geometry, n, c, 1, q0, qn)
    y_sbuf = nl.ndarray((1, qn), dtype=operands.y.dtype, buffer=nl.sbuf)
    finish(y_sbuf, acc_psum, bias_sbuf, residual_sbuf, extras.epilogue, nisa.engine.scalar)
    nisa.dma_copy(dst=y_tile(operands.y, geometry, n, c, 1, q0, qn), src=y_sbuf)


def load_rows(x_hbm, geometry, n, c, s0, sn, q0, qn):
    """Tile [sn taps, qn columns]: row k holds what tap s0 + k meets, zeros where it meets none of x."""
    x_sbuf = nl.ndarray((sn, qn), dtype=x_hbm.dtype, buffer=nl.sbuf)
    missing = 0
    for k in range(sn):
        missing += qn - columns_met(geometry, s0 + k, q0, qn)[2]
    if missing > 0:
        nisa.memset(dst=x_sbuf, value=0.0)
    for k in range(sn):
        met = columns_met(geometry, s0 + k, q0, qn)
        if met[2] > 0:
            end = met[0] - q0 + (met[2] - 1) * met[1] + 1
            offset = n * geometry.x_n + c * geometry.x_c + met[3] * geometry.x_w
            nisa.dma_copy(
                dst=x_sbuf[k : k + 1, met[0] - q0 : end : met[1]],
                src=x_hbm.ap(pattern=[[geometry.x_c, 1], [met[4] * geometry.x_w, met[2]]], offset=offset),
            )
    return x_sbuf
