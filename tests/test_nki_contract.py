"""NKI kernels in plain documented NKI, each against NumPy: what any implementation of NKI must compute.

They import NKI through `nkiconv._nki`, so `NKICONV_NKI=aws make test` runs them on AWS's simulator: a difference there
is a bug of ours (or of theirs).
"""

import ml_dtypes
import numpy as np
import pytest
from tolerances import assert_near

from nkiconv._nki import nisa, nki, nl, simulate

BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(0)
P, F = 128, 64
A = RNG.standard_normal((P, F), dtype=np.float32)
B = RNG.standard_normal((P, F), dtype=np.float32)
COLUMN = RNG.standard_normal((P, 1), dtype=np.float32)
INTS = RNG.integers(-100, 100, (P, F)).astype(np.int32)


def loaded(hbm):
    tile = nl.ndarray(hbm.shape, dtype=hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=hbm)
    return tile


def stored(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def tile_like(tile):
    return nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)


@nki.jit
def copy_and_cast(a):
    half = nl.ndarray(a.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=half, src=a)
    return stored(half)


@nki.jit
def engine_copy(a):
    src = loaded(a)
    dst = nl.ndarray(a.shape, dtype=nl.float16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=dst, src=src)
    return stored(dst)


@nki.jit
def fill(a):
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=3.5)
    nisa.dma_copy(dst=tile[0:P, 0:4], src=a[0:P, 0:4])
    return stored(tile)


@nki.jit
def add(a, b):
    x, y = loaded(a), loaded(b)
    nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
    return stored(x)


@nki.jit
def scale_and_shift(a, column):
    x, s = loaded(a), loaded(column)
    nisa.tensor_scalar(dst=x, data=x, op0=nl.multiply, operand0=s, op1=nl.subtract, operand1=0.5, reverse1=True)
    return stored(x)


@nki.jit
def multiply_add(a, b, column):
    x, y, s = loaded(a), loaded(b), loaded(column)
    z = tile_like(x)
    nisa.scalar_tensor_tensor(dst=z, data=x, op0=nl.multiply, operand0=s, op1=nl.add, operand1=y)
    return stored(z)


@nki.jit
def row_sums(a):
    x = loaded(a)
    total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=x, axis=1)
    return stored(total)


@nki.jit
def inner_maxima(a):
    x = loaded(a).reshape((P, 8, F // 8))
    best = nl.ndarray((P, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=best, op=nl.maximum, data=x, axis=2)
    return stored(best)


@nki.jit
def recurrence(a, b):
    x, y = loaded(a), loaded(b)
    z = tile_like(x)
    nisa.tensor_tensor_scan(dst=z, data0=x, data1=y, initial=0.0, op0=nl.multiply, op1=nl.add)
    return stored(z)


@nki.jit
def squared_with_bias(a, column):
    x, s = loaded(a), loaded(column)
    nisa.activation(dst=x, op=nl.square, data=x, bias=s, scale=2.0)
    return stored(x)


@nki.jit
def inverses(a):
    x = loaded(a)
    nisa.reciprocal(dst=x, data=x)
    return stored(x)


@nki.jit
def positions(a):
    tile = nl.ndarray(a.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=tile, pattern=[[100, 8], [1, F // 8]], offset=7, channel_multiplier=1000)
    return stored(tile)


@nki.jit
def lower_triangle(a):
    x = loaded(a)
    z = tile_like(x)
    nisa.affine_select(
        dst=z, pattern=[[-1, F]], channel_multiplier=1, on_true_tile=x, on_false_value=0.0, cmp_op=nl.greater_equal,
    )  # fmt: skip
    return stored(z)


@nki.jit
def statistics(a):
    x = loaded(a)
    parts = nl.ndarray((P, 6), dtype=nl.float32, buffer=nl.sbuf)
    result = nl.ndarray((P, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_stats(dst=parts, data=x)
    nisa.bn_aggr(dst=result, data=parts)
    return stored(result)


@nki.jit
def rotated_quadrants(a):
    x = loaded(a)
    z = tile_like(x)
    mask = []
    for i in range(32):
        mask.append((i + 5) % 32)
    nisa.nc_stream_shuffle(dst=z, src=x, shuffle_mask=mask)
    return stored(z)


@nki.jit
def product(a, b):
    x, y = loaded(a), loaded(b)
    acc = nl.ndarray((F, F), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=x, moving=y)
    out = nl.ndarray((F, F), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=acc)
    return stored(out)


@nki.jit
def product_in_halves(a, b):
    x, y = loaded(a), loaded(b)
    acc = nl.ndarray((F, F), dtype=nl.float32, buffer=nl.psum)
    for i in range(2):
        rows = slice(i * 64, i * 64 + 64)
        nisa.nc_matmul(dst=acc, stationary=x[rows, 0:F], moving=y[rows, 0:F], accumulate=i > 0)
    out = nl.ndarray((F, F), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=acc)
    return stored(out)


@nki.jit
def overlapping_windows(a, w):
    """Moving windows one element apart, straight from an overlapping HBM pattern: a convolution of 5 taps."""
    taps = loaded(w)
    rows = nl.ndarray((5, 60), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=a.ap(pattern=[[1, 5], [1, 60]], offset=0))
    acc = nl.ndarray((1, 60), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=taps, moving=rows)
    out = nl.ndarray((1, 60), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=acc)
    return stored(out)


@nki.jit
def transposed(a):
    x = loaded(a)
    flipped = nl.ndarray((F, P), dtype=a.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=flipped, data=x, engine=nisa.engine.tensor)
    out = nl.ndarray((F, P), dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=flipped)
    return stored(out)


@nki.jit
def strided_views(a):
    """Every other column of the permuted view, gathered by an engine copy."""
    x = loaded(a).reshape((P, 8, 8)).permute((0, 2, 1))
    z = nl.ndarray((P, 8, 4), dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=z, src=x[0:P, 0:8, 1:8:2])
    return stored(z)


@nki.jit
def integer_bits(a):
    x = loaded(a)
    nisa.tensor_scalar(dst=x, data=x, op0=nl.bitwise_and, operand0=12)
    return stored(x)


@nki.jit
def added_by_dma(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_compute(dst=out, srcs=[a, b], reduce_op=nl.add)
    return out


def scan(a, b):
    out = np.zeros_like(a)
    state = np.zeros(P)
    for i in range(F):
        state = a[:, i] * state + b[:, i]
        out[:, i] = state
    return out


def shuffled(a):
    rows = [q * 32 + (i + 5) % 32 for q in range(4) for i in range(32)]
    return a[rows]


WITH_FILL = np.full((P, F), 3.5, np.float32)
WITH_FILL[:, :4] = A[:, :4]
IOTA = 7 + 1000 * np.arange(P)[:, None] + (100 * np.arange(8)[:, None] + np.arange(8)).reshape(-1)
ROW = np.arange(64, dtype=np.float32).reshape(1, 64)
TAPS = np.array([[1], [2], [3], [4], [5]], np.float32)

A64, B64, AH, BH = A.astype(np.float64), B.astype(np.float64), A.astype(BF16), B.astype(BF16)

# kernel, arguments, expected, fp32 operations behind a result and the largest sum of magnitudes (0, 0: bit for bit)
CONTRACTS = [
    (copy_and_cast, (A,), AH, 0, 0),
    (engine_copy, (A,), A.astype(np.float16), 0, 0),
    (fill, (A,), WITH_FILL, 0, 0),
    (add, (A, B), A + B, 0, 0),
    (scale_and_shift, (A, COLUMN), np.float32(0.5) - A * COLUMN, 0, 0),
    (multiply_add, (A, B, COLUMN), A * COLUMN + B, 0, 0),
    (row_sums, (A,), A64.sum(1, keepdims=True), F, np.abs(A).sum(1).max()),
    (inner_maxima, (A,), A.reshape(P, 8, 8).max(2), 0, 0),
    (recurrence, (A / 2, B), scan(A64 / 2, B64), 2 * F, scan(np.abs(A64) / 2, np.abs(B64)).max()),
    (squared_with_bias, (A, COLUMN), np.square(2 * A64 + COLUMN), 3, np.square(2 * np.abs(A) + np.abs(COLUMN)).max()),
    (inverses, (A,), 1 / A64, 1, (1 / np.abs(A)).max()),
    (positions, (A,), IOTA.astype(np.int32), 0, 0),
    (lower_triangle, (A,), np.tril(A), 0, 0),
    (statistics, (A,), np.stack([A64.mean(1), A64.var(1)], axis=1), 4 * F, np.square(A).max()),
    (rotated_quadrants, (A,), shuffled(A), 0, 0),
    (product, (A, B), A64.T @ B64, P, (np.abs(A).T @ np.abs(B)).max()),
    (product_in_halves, (AH, BH), AH.astype(np.float64).T @ BH.astype(np.float64), P, (np.abs(A).T @ np.abs(B)).max()),
    (overlapping_windows, (ROW, TAPS), np.correlate(ROW[0], TAPS[:, 0], "valid")[None], 0, 0),
    (transposed, (AH,), AH.T, 0, 0),
    (strided_views, (A,), A.reshape(P, 8, 8).transpose(0, 2, 1)[:, :, 1::2], 0, 0),
    (integer_bits, (INTS,), INTS & 12, 0, 0),
    (added_by_dma, (A, B), A + B, 0, 0),
]


@pytest.mark.parametrize(
    ("kernel", "args", "expected", "operations", "magnitude"), CONTRACTS, ids=[c[0].__name__ for c in CONTRACTS]
)
def test_contract(kernel, args, expected, operations, magnitude):
    actual = simulate(kernel)(*args)
    if operations:
        assert_near(actual, expected, operations, magnitude)
    else:
        np.testing.assert_array_equal(actual, expected, strict=True)


@nki.jit
def halves(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    rows = P // nl.num_programs()
    first = rows * nl.program_id(0)
    tile = nl.ndarray((rows, F), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a[first : first + rows, 0:F])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out[first : first + rows, 0:F], src=tile)
    return out


@pytest.mark.parametrize("lnc", [1, 2])
def test_cores_share_the_output(lnc):
    np.testing.assert_array_equal(simulate(halves[lnc])(A), A + 1)
