"""The first test to run, a few seconds in all: one kernel a way of working, against NumPy."""

import numpy as np

import nkiconv
from nkiconv._nki import nisa, nki, nl, simulate


@nki.jit
def matmul(a_t, b):
    """a_t.T @ b in tiles; a_t [K, M], b [K, N], in HBM."""
    contraction, rows = a_t.shape
    columns = b.shape[1]
    out = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    for m0 in range(0, rows, 128):
        mn = min(128, rows - m0)
        for n0 in range(0, columns, 512):
            nn = min(512, columns - n0)
            acc_psum = nl.ndarray((mn, nn), dtype=nl.float32, buffer=nl.psum)
            for k0 in range(0, contraction, 128):
                kn = min(128, contraction - k0)
                a_sbuf = nl.ndarray((kn, mn), dtype=a_t.dtype, buffer=nl.sbuf)
                b_sbuf = nl.ndarray((kn, nn), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=a_sbuf, src=a_t[k0 : k0 + kn, m0 : m0 + mn])
                nisa.dma_copy(dst=b_sbuf, src=b[k0 : k0 + kn, n0 : n0 + nn])
                nisa.nc_matmul(dst=acc_psum, stationary=a_sbuf, moving=b_sbuf, accumulate=k0 > 0)
            out_sbuf = nl.ndarray((mn, nn), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out_sbuf, src=acc_psum)
            nisa.dma_copy(dst=out[m0 : m0 + mn, n0 : n0 + nn], src=out_sbuf)
    return out


def test_matmul():
    rng = np.random.default_rng(0)
    a_t, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((200, 150), (200, 600)))
    np.testing.assert_array_equal(simulate(matmul)(a_t, b), a_t.T @ b)


def test_depthwise_conv1d():
    rng = np.random.default_rng(1)
    x, w = rng.integers(-2, 3, (2, 5, 40)).astype(np.float32), rng.integers(-2, 3, (5, 7)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (6, 0)))
    expected = [[np.correlate(padded[n, c], w[c], "valid") for c in range(5)] for n in range(2)]
    for lnc in (1, 2):
        np.testing.assert_array_equal(nkiconv.depthwise_conv1d(x, w, padding="causal", lnc=lnc), expected)
