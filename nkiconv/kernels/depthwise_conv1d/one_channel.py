"""Depthwise conv1d one channel at a time: the published implicit GEMM in its plainest form, to compare with.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

Row s of a tile is x[c] from the element that tap s meets on, loaded by a DMA of its own; the filter of the channel is
one stationary column of up to 128 taps. A matmul uses one of the array's 128 columns and gives one row of up to 512.

Engine plan: DMA loads S rows for each 512 columns of each channel; Tensor does one matmul for each 128 of them; Scalar
reads the row out; DMA stores it. Bound by the issue of DMAs, S for each channel and 512 columns. Nothing is shared
between channels, so NaN and Inf stay in theirs.
"""

from ..._nki import nisa, nl
from .._tiles import div_ceil, require
from .positions import columns_met

#: Instructions of one core above which the compiler refuses an unrolled kernel (NCC_EBVF030, as users report it).
INSTRUCTIONS_MAX = 5_000_000


def one_channel(x_hbm, w_hbm, y_hbm, geometry):
    """Write y_hbm; shapes and layouts as `geometry` says.

    Args:
        x_hbm, w_hbm, y_hbm: 4-d tensors in HBM; x and w fp32, or bf16/fp16 in any mix; y of x's dtype.
        geometry: checked Geometry.
    """
    cores, core = nl.num_programs(), nl.program_id(0)
    count = count_instructions(geometry, div_ceil(geometry.C, cores))
    require(
        count <= INSTRUCTIONS_MAX,
        f"N={geometry.N}, C={geometry.C}, W={geometry.W}, S={geometry.S}: one_channel needs up to {count} instructions "
        f"on a core, the compiler takes {INSTRUCTIONS_MAX}; split N or C over several calls, or use another algorithm",
    )
    for c in range((geometry.C * core) // cores, (geometry.C * (core + 1)) // cores):
        columns = []
        for s0 in range(0, geometry.S, nl.tile_size.pmax):
            columns.append(load_filter(w_hbm, geometry, c, s0))
        for n in range(geometry.N):
            for q0 in range(0, geometry.Q, nl.tile_size.gemm_moving_fmax):
                qn = min(nl.tile_size.gemm_moving_fmax, geometry.Q - q0)
                convolve_row(x_hbm, y_hbm, columns, geometry, n, c, q0, qn)


def count_instructions(geometry, channels):
    """Most instructions that this many channels can take: rows of zeros only need no load."""
    tap_tiles = div_ceil(geometry.S, nl.tile_size.pmax)
    q_tiles = div_ceil(geometry.Q, nl.tile_size.gemm_moving_fmax)
    return channels * (tap_tiles + geometry.N * q_tiles * (geometry.S + 2 * tap_tiles + 2))


def load_filter(w_hbm, geometry, c, s0):
    """Taps s0 .. s0+127 of channel c as a stationary column: [taps, 1]."""
    sn = min(nl.tile_size.pmax, geometry.S - s0)
    w_sbuf = nl.ndarray((sn, 1), dtype=w_hbm.dtype, buffer=nl.sbuf)
    offset = c * geometry.w_c + s0 * geometry.w_s
    nisa.dma_copy(dst=w_sbuf, src=w_hbm.ap(pattern=[[geometry.w_s, sn], [1, 1]], offset=offset))
    return w_sbuf


def convolve_row(x_hbm, y_hbm, columns, geometry, n, c, q0, qn):
    """Columns q0 .. q0+qn-1 of one channel of one image."""
    acc_psum = nl.ndarray((1, qn), dtype=nl.float32, buffer=nl.psum)
    for index in range(len(columns)):
        w_sbuf = columns[index]
        x_sbuf = load_rows(x_hbm, geometry, n, c, index * nl.tile_size.pmax, w_sbuf.shape[0], q0, qn)
        nisa.nc_matmul(dst=acc_psum, stationary=w_sbuf, moving=x_sbuf, accumulate=index > 0)
    y_sbuf = nl.ndarray((1, qn), dtype=y_hbm.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=y_sbuf, src=acc_psum, engine=nisa.engine.scalar)
    offset = n * geometry.y_n + c * geometry.y_c + q0 * geometry.y_q
    nisa.dma_copy(dst=y_hbm.ap(pattern=[[geometry.y_c, 1], [geometry.y_q, qn]], offset=offset), src=y_sbuf)


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
