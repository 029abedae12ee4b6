"""RMSNorm of rows, twice: y = x / sqrt(mean(x^2) + eps) * w.

`rms_norm` squares and sums on Vector, which does everything else as well. `rms_norm_fused` has Scalar square and sum in
one instruction while Vector is at work on the tile before.

    nkiconv profile examples/kernels/rms_norm.py:rms_norm --input 1024x2048:bf16 --input 1x2048:bf16 --lnc 1 \\
        --against examples/kernels/rms_norm.py:rms_norm_fused
"""

import nki
import nki.isa as nisa
import nki.language as nl


def load_weights(w):
    """w [1, D] in HBM on all partitions, fp32."""
    P, D = nl.tile_size.pmax, w.shape[1]
    w_sbuf = nl.ndarray((P, D), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=w_sbuf, src=w.ap(pattern=[[0, P], [1, D]], offset=0))
    return w_sbuf


@nki.jit
def rms_norm(x, w, eps=1e-6):
    """x [N, D], w [1, D] in HBM, N a multiple of 128; returns y [N, D] of x's dtype."""
    N, D = x.shape
    P = nl.tile_size.pmax
    y = nl.ndarray((N, D), dtype=x.dtype, buffer=nl.shared_hbm)
    w_sbuf = load_weights(w)
    for tile in range(N // P):
        rows = x[tile * P : (tile + 1) * P, 0:D]
        x_sbuf = nl.ndarray((P, D), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sbuf, src=rows)
        squares = nl.ndarray((P, D), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=squares, data1=x_sbuf, data2=x_sbuf, op=nl.multiply)
        total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)
        finish(x_sbuf, total, w_sbuf, y, tile, eps)
    return y


@nki.jit
def rms_norm_fused(x, w, eps=1e-6):
    """The same: Scalar squares a row and sums it in one pass."""
    N, D = x.shape
    P = nl.tile_size.pmax
    y = nl.ndarray((N, D), dtype=x.dtype, buffer=nl.shared_hbm)
    w_sbuf = load_weights(w)
    for tile in range(N // P):
        rows = x[tile * P : (tile + 1) * P, 0:D]
        x_sbuf = nl.ndarray((P, D), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sbuf, src=rows)
        squares = nl.ndarray((P, D), dtype=nl.bfloat16, buffer=nl.sbuf)
        total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=squares, op=nl.square, data=x_sbuf, reduce_op=nl.add, reduce_res=total)
        finish(x_sbuf, total, w_sbuf, y, tile, eps)
    return y


def finish(x_sbuf, total, w_sbuf, y, tile, eps):
    """Rows times their 1 / sqrt(mean + eps), times w, to HBM."""
    P, D = x_sbuf.shape
    scale = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scale, data=total, op0=nl.multiply, operand0=1.0 / D, op1=nl.add, operand1=eps)
    nisa.activation(dst=scale, op=nl.rsqrt, data=scale)
    y_sbuf = nl.ndarray((P, D), dtype=y.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=y_sbuf, data=x_sbuf, op0=nl.multiply, operand0=scale, op1=nl.multiply, operand1=w_sbuf
    )
    nisa.dma_copy(dst=y[tile * P : (tile + 1) * P, 0:D], src=y_sbuf)
