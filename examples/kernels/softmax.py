"""Softmax of rows, twice: y = exp(x - max(x)) / sum(exp(x - max(x))).

`softmax` has an instruction for each step. `softmax_fused` lets Scalar subtract, take the exponential and sum in one
pass, and divides by a product with the reciprocal.

    nkiconv profile examples/kernels/softmax.py:softmax --input 1024x2048:bf16 --lnc 1 \\
        --against examples/kernels/softmax.py:softmax_fused
"""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x):
    """x [N, D] in HBM, N a multiple of 128; returns y [N, D] of x's dtype."""
    N, D = x.shape
    P = nl.tile_size.pmax
    y = nl.ndarray((N, D), dtype=x.dtype, buffer=nl.shared_hbm)
    for tile in range(N // P):
        x_sbuf, largest = load_rows(x, tile)
        shifted = nl.ndarray((P, D), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=shifted, data=x_sbuf, op0=nl.subtract, operand0=largest)
        powers = nl.ndarray((P, D), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=powers, op=nl.exp, data=shifted)
        total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=powers, axis=1)
        store_quotient(powers, total, y, tile)
    return y


@nki.jit
def softmax_fused(x):
    """The same: Scalar does three of the steps in one pass over a row."""
    N, D = x.shape
    P = nl.tile_size.pmax
    y = nl.ndarray((N, D), dtype=x.dtype, buffer=nl.shared_hbm)
    for tile in range(N // P):
        x_sbuf, largest = load_rows(x, tile)
        negative = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=negative, data=largest, op0=nl.multiply, operand0=-1.0)
        powers = nl.ndarray((P, D), dtype=nl.bfloat16, buffer=nl.sbuf)
        total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=powers, op=nl.exp, data=x_sbuf, bias=negative, reduce_op=nl.add, reduce_res=total)
        store_quotient(powers, total, y, tile)
    return y


def load_rows(x, tile):
    """128 rows of x in SBUF, and the largest of each."""
    P, D = nl.tile_size.pmax, x.shape[1]
    x_sbuf = nl.ndarray((P, D), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sbuf, src=x[tile * P : (tile + 1) * P, 0:D])
    largest = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=largest, op=nl.maximum, data=x_sbuf, axis=1)
    return x_sbuf, largest


def store_quotient(powers, total, y, tile):
    """Rows of powers over their totals, to HBM."""
    P, D = powers.shape
    inverse = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    y_sbuf = nl.ndarray((P, D), dtype=y.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=y_sbuf, data=powers, op0=nl.multiply, operand0=inverse)
    nisa.dma_copy(dst=y[tile * P : (tile + 1) * P, 0:D], src=y_sbuf)
