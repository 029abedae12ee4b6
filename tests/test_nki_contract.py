"""Instructions of plain documented NKI, each against NumPy: what any implementation of NKI must compute.

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
A, B = (RNG.standard_normal((P, F), dtype=np.float32) for _ in range(2))
COLUMN = RNG.standard_normal((P, 1), dtype=np.float32)
INTS = RNG.integers(-100, 100, (P, F)).astype(np.int32)
A64, B64, AH, BH = A.astype(np.float64), B.astype(np.float64), A.astype(BF16), B.astype(BF16)
ROW, TAPS = np.arange(64, dtype=np.float32).reshape(1, 64), np.arange(1, 6, dtype=np.float32)[:, None]
IOTA = 7 + 1000 * np.arange(P)[:, None] + (100 * np.arange(8)[:, None] + np.arange(8)).reshape(-1)
SHUFFLED = [q * 32 + (i + 5) % 32 for q in range(4) for i in range(32)]


def loaded(hbm):
    tile = nl.ndarray(hbm.shape, dtype=hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=hbm)
    return tile


def in_halves(z, x, y):
    for i in range(2):
        rows = slice(i * 64, i * 64 + 64)
        nisa.nc_matmul(dst=z, stationary=x[rows, 0:F], moving=y[rows, 0:F], accumulate=i > 0)


def statistics(z, x, y):
    parts = nl.ndarray((P, 6), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_stats(dst=parts, data=x)
    nisa.bn_aggr(dst=z, data=parts)


def windows(z, x, y):
    """Moving windows one element apart, straight from an overlapping HBM pattern: a convolution of 5 taps."""
    rows = nl.ndarray((5, 60), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x.ap(pattern=[[1, 5], [1, 60]], offset=0))
    nisa.nc_matmul(dst=z, stationary=loaded(y), moving=rows)


def scan(a, b):
    state, found = np.zeros(P), []
    for i in range(F):
        state = a[:, i] * state + b[:, i]
        found.append(state)
    return np.stack(found, 1)


def largest(a, b):
    return (np.abs(a).T @ np.abs(b)).max()


# name, what writes the tile z of SBUF or PSUM from x and y, x, y, what z must be,
# fp32 operations behind a result and the largest sum of magnitudes (0, 0: bit for bit)
CONTRACTS = [
    ("cast by DMA", lambda z, x, y: nisa.dma_copy(dst=z, src=x), A, B, AH, 0, 0),
    ("cast", lambda z, x, y: nisa.tensor_copy(dst=z, src=x), A, B, A.astype(np.float16), 0, 0),
    ("fill", lambda z, x, y: nisa.memset(dst=z, value=3.5), A, B, np.full((P, F), 3.5, np.float32), 0, 0),
    ("add", lambda z, x, y: nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add), A, B, A + B, 0, 0),
    ("scale and shift", lambda z, x, y: nisa.tensor_scalar(
        dst=z, data=x, op0=nl.multiply, operand0=y, op1=nl.subtract, operand1=0.5, reverse1=True,
    ), A, COLUMN, np.float32(0.5) - A * COLUMN, 0, 0),
    ("multiply and add", lambda z, x, y: nisa.scalar_tensor_tensor(
        dst=z, data=x, op0=nl.multiply, operand0=y, op1=nl.add, operand1=x,
    ), A, COLUMN, A * COLUMN + A, 0, 0),
    ("row sums", lambda z, x, y: nisa.tensor_reduce(dst=z, op=nl.add, data=x, axis=1),
     A, B, A64.sum(1, keepdims=True), F, np.abs(A).sum(1).max()),
    ("inner maxima", lambda z, x, y: nisa.tensor_reduce(dst=z, op=nl.maximum, data=x.reshape((P, 8, 8)), axis=2),
     A, B, A.reshape(P, 8, 8).max(2), 0, 0),
    ("recurrence", lambda z, x, y: nisa.tensor_tensor_scan(
        dst=z, data0=x, data1=y, initial=0.0, op0=nl.multiply, op1=nl.add,
    ), A / 2, B, scan(A64 / 2, B64), 2 * F, scan(np.abs(A64) / 2, np.abs(B64)).max()),
    ("squared with bias", lambda z, x, y: nisa.activation(dst=z, op=nl.square, data=x, bias=y, scale=2.0),
     A, COLUMN, np.square(2 * A64 + COLUMN), 3, np.square(2 * np.abs(A) + np.abs(COLUMN)).max()),
    ("inverses", lambda z, x, y: nisa.reciprocal(dst=z, data=x), A, B, 1 / A64, 1, (1 / np.abs(A)).max()),
    ("positions", lambda z, x, y: nisa.iota(dst=z, pattern=[[100, 8], [1, 8]], offset=7, channel_multiplier=1000),
     A, B, IOTA.astype(np.int32), 0, 0),
    ("lower triangle", lambda z, x, y: nisa.affine_select(
        dst=z, pattern=[[-1, F]], channel_multiplier=1, on_true_tile=x, on_false_value=0.0, cmp_op=nl.greater_equal,
    ), A, B, np.tril(A), 0, 0),
    ("statistics", statistics, A, B, np.stack([A64.mean(1), A64.var(1)], axis=1), 4 * F, np.square(A).max()),
    ("shuffled quadrants", lambda z, x, y: nisa.nc_stream_shuffle(
        dst=z, src=x, shuffle_mask=[(i + 5) % 32 for i in range(32)],
    ), A, B, A[SHUFFLED], 0, 0),
    ("product", lambda z, x, y: nisa.nc_matmul(dst=z, stationary=x, moving=y), A, B, A64.T @ B64, P, largest(A, B)),
    ("product in halves", in_halves, AH, BH, AH.astype(np.float64).T @ BH.astype(np.float64), P, largest(A, B)),
    ("overlapping windows", windows, ROW, TAPS, np.correlate(ROW[0], TAPS[:, 0], "valid")[None], 0, 0),
    ("transposed", lambda z, x, y: nisa.nc_transpose(dst=z, data=x, engine=nisa.engine.tensor), AH, BH, AH.T, 0, 0),
    ("strided views", lambda z, x, y: nisa.tensor_copy(
        dst=z, src=x.reshape((P, 8, 8)).permute((0, 2, 1))[0:P, 0:8, 1:8:2],
    ), A, B, A.reshape(P, 8, 8).transpose(0, 2, 1)[:, :, 1::2], 0, 0),
    ("bits", lambda z, x, y: nisa.tensor_scalar(dst=z, data=x, op0=nl.bitwise_and, operand0=12),
     INTS, INTS, INTS & 12, 0, 0),
    ("added by DMA", lambda z, x, y: nisa.dma_compute(dst=z, srcs=[x, y], reduce_op=nl.add), A, B, A + B, 0, 0),
]  # fmt: skip
OF_HBM = ("cast by DMA", "overlapping windows", "added by DMA")
IN_PSUM = ("product", "product in halves", "overlapping windows", "transposed")


@pytest.mark.parametrize(
    ("name", "issue", "x", "y", "expected", "operations", "magnitude"), CONTRACTS, ids=[c[0] for c in CONTRACTS]
)
def test_contract(name, issue, x, y, expected, operations, magnitude):
    dtypes = {"float64": nl.float32, "float32": nl.float32, "float16": nl.float16, "bfloat16": nl.bfloat16}
    dtype = dtypes.get(str(expected.dtype), nl.int32)

    @nki.jit
    def kernel(a, b):
        tiles = (a, b) if name in OF_HBM else (loaded(a), loaded(b))
        out = nl.ndarray(expected.shape, dtype=dtype, buffer=nl.shared_hbm)
        if name == "added by DMA":
            issue(out, *tiles)
            return out
        z = tile = nl.ndarray(expected.shape, dtype=dtype, buffer=nl.psum if name in IN_PSUM else nl.sbuf)
        issue(z, *tiles)
        if name in IN_PSUM:
            tile = nl.ndarray(expected.shape, dtype=dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=z)
        nisa.dma_copy(dst=out, src=tile)
        return out

    actual = simulate(kernel)(x, y)
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
