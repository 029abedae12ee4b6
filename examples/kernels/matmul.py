"""A matrix product in tiles, twice: y = a.T @ b, of a [K, M] and b [K, N].

`matmul` loads the tiles of a and b for each product. `matmul_reused` keeps all of a column of b's tiles in SBUF while
every tile of a passes, and reads PSUM out on Vector and Scalar in turn.

    nkiconv profile examples/kernels/matmul.py:matmul --input 512x512:bf16 --input 512x2048:bf16 --lnc 1 \\
        --against examples/kernels/matmul.py:matmul_reused
"""

import nki
import nki.isa as nisa
import nki.language as nl

#: Columns of b of one product, and what a bank of PSUM holds of fp32.
COLUMNS = 512


@nki.jit
def matmul(a, b):
    """a [K, M] and b [K, N] in HBM, K and M multiples of 128, N of 512; returns y [M, N] of a's dtype."""
    (K, M), N = a.shape, b.shape[1]
    P = nl.tile_size.pmax
    y = nl.ndarray((M, N), dtype=a.dtype, buffer=nl.shared_hbm)
    for m in range(M // P):
        for n in range(N // COLUMNS):
            acc_psum = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for k in range(K // P):
                a_sbuf = load_tile(a, k, m * P, P)
                b_sbuf = load_tile(b, k, n * COLUMNS, COLUMNS)
                nisa.nc_matmul(dst=acc_psum, stationary=a_sbuf, moving=b_sbuf)
            y_sbuf = nl.ndarray((P, COLUMNS), dtype=y.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=y_sbuf, src=acc_psum)
            nisa.dma_copy(dst=y[m * P : (m + 1) * P, n * COLUMNS : (n + 1) * COLUMNS], src=y_sbuf)
    return y


@nki.jit
def matmul_reused(a, b):
    """The same, each element of a and b loaded once."""
    (K, M), N = a.shape, b.shape[1]
    P = nl.tile_size.pmax
    y = nl.ndarray((M, N), dtype=a.dtype, buffer=nl.shared_hbm)
    a_tiles = []
    for k in range(K // P):
        a_sbuf = load_tile(a, k, 0, M)
        a_tiles.append(a_sbuf)
    for n in range(N // COLUMNS):
        b_tiles = []
        for k in range(K // P):
            b_sbuf = load_tile(b, k, n * COLUMNS, COLUMNS)
            b_tiles.append(b_sbuf)
        for m in range(M // P):
            acc_psum = nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for k in range(K // P):
                nisa.nc_matmul(dst=acc_psum, stationary=a_tiles[k][0:P, m * P : (m + 1) * P], moving=b_tiles[k])
            y_sbuf = nl.ndarray((P, COLUMNS), dtype=y.dtype, buffer=nl.sbuf)
            reader = nisa.engine.vector if m % 2 == 0 else nisa.engine.scalar
            nisa.tensor_copy(dst=y_sbuf, src=acc_psum, engine=reader)
            nisa.dma_copy(dst=y[m * P : (m + 1) * P, n * COLUMNS : (n + 1) * COLUMNS], src=y_sbuf)
    return y


def load_tile(source, k, first, columns):
    """128 rows of a matrix from k * 128 on, and so many of its columns, in SBUF."""
    P = nl.tile_size.pmax
    tile = nl.ndarray((P, columns), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[k * P : (k + 1) * P, first : first + columns])
    return tile
