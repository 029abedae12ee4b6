"""A 2-d convolution as implicit GEMM, weight-stationary: the kernel to read first.

    y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] * x[n, c, p * stride + r - padding, q * stride + s - padding]

Each tap (r, s) is a matrix product of w[:, :, r, s] [K, C] and the pixels that the tap reads [C, P * Q]. All taps and
tiles of C accumulate in one PSUM bank. No im2col matrix is written: the moving operand is a strided view of x in SBUF.

    | stationary | K (contraction partitions) | M (stationary columns) | N (moving columns) | evacuation |
    | w of a tap | c                          | k                      | p q                | copy       |

    w_sbuf[c, tap, k] = w, transposed by the Tensor Engine
    for each image n and band of output rows:                   # divided over the cores
        x_sbuf[c, h, w] = rows of x with zero padding           # loaded while the band before is multiplied
        for each tile of 128 k, each tile of 512 outputs (p, q):
            for each tile of 128 c, each tap (r, s):
                acc_psum[k, p, q] += w_sbuf[c, tap, k].T @ x_sbuf[c, p * stride + r, q * stride + s]
            y[n, k, p, q] = acc_psum
"""

import nki
import nki.isa as nisa
import nki.language as nl
from shapes import bands_of_core, check, out_size, prefetched, tiles

#: fp32 accumulators of a PSUM bank per partition, and the most moving columns of a matmul.
BANK = 512
#: Filter transposes that share a PSUM tile and a copy to SBUF.
TAPS_PER_COPY = 4


@nki.jit
def conv2d(x, w, stride=(1, 1), padding=(0, 0), groups=1):
    """x [N, C, H, W], w [K, C, R, S] of one dtype (bf16, fp16, fp32) in HBM; returns y [N, K, P, Q] of that dtype.

    stride, padding: of rows and columns; padding on both sides. Raises AssertionError as `shapes.check`.
    """
    (N, C, H, W), (K, w_channels, R, S) = x.shape, w.shape
    check(x, w, (C, w_channels), stride, padding, groups)
    P, Q = out_size(H, R, stride[0], padding[0]), out_size(W, S, stride[1], padding[1])
    y = nl.ndarray((N, K, P, Q), dtype=x.dtype, buffer=nl.shared_hbm)
    filters = load_filters(w)
    bands = bands_of_core(N, P, stride[0], R, len(filters) * (W + 2 * padding[1]), x)
    for (n, p0, pn), x_tiles in prefetched(bands, lambda band: load_band(x, band, R, stride, padding)):
        products = products_of_taps(x_tiles, filters, S)
        for k0, kn in tiles(K, 128):
            convolve_band(y[n, k0 : k0 + kn, p0 : p0 + pn, 0:Q], products, k0, stride)
    return y


def load_band(x, band, R, stride, padding):
    """The rows of x that a band reads, padded, as one tile [c, h, w] in SBUF per 128 channels."""
    (n, p0, pn), (_, C, _, W) = band, x.shape
    rows = p0 * stride[0] - padding[0], (pn - 1) * stride[0] + R
    return [load_window(x, n, channels, rows, (-padding[1], W + 2 * padding[1])) for channels in tiles(C, 128)]


def products_of_taps(x_tiles, filters, S):
    """(x [c, h, w], w [c, K], row and column of x that output (0, 0) reads) of each matmul of an output tile."""
    return [
        (x_sbuf, w_sbuf[:, tap, :], tap // S, tap % S)
        for x_sbuf, w_sbuf in zip(x_tiles, filters, strict=True)
        for tap in range(w_sbuf.shape[1])
    ]


def convolve_band(y_band, products, k0, stride):
    """y [k, p, q] of a tile of k and a band of rows."""
    kn, P, Q = y_band.shape
    columns = min(Q, BANK)
    outputs = [(p, pn, q, qn) for p, pn in tiles(P, BANK // columns) for q, qn in tiles(Q, columns)]
    for index, (p, pn, q, qn) in enumerate(outputs):
        acc_psum = nl.ndarray((kn, pn, qn), dtype=nl.float32, buffer=nl.psum)
        accumulate(acc_psum, products, k0, (p, q), stride)
        y_sbuf = nl.ndarray((kn, pn, qn), dtype=y_band.dtype, buffer=nl.sbuf)
        evacuate(y_sbuf, acc_psum, index)
        nisa.dma_copy(dst=y_band[:, p : p + pn, q : q + qn], src=y_sbuf)


def accumulate(acc_psum, products, k0, output, stride):
    """Sum all products of a tile [k, p, q] of outputs, from output (p, q) on, in one PSUM bank."""
    kn, pn, qn = acc_psum.shape
    for x_sbuf, w_sbuf, row, column in products:
        moving = window(x_sbuf, (output[0] * stride[0] + row, output[1] * stride[1] + column), (pn, qn), stride)
        nisa.nc_matmul(dst=acc_psum, stationary=w_sbuf[:, k0 : k0 + kn], moving=moving)


def window(x_sbuf, first, size, stride):
    """`size` rows and columns of x [c, h, w] from `first` on, `stride` apart: a view."""
    (h, w), (pn, qn) = first, size
    return x_sbuf[:, h : h + (pn - 1) * stride[0] + 1 : stride[0], w : w + (qn - 1) * stride[1] + 1 : stride[1]]


def evacuate(y_sbuf, acc_psum, index):
    """Copy accumulators to SBUF in y's dtype; Vector and Scalar alternate."""
    nisa.tensor_copy(dst=y_sbuf, src=acc_psum, engine=nisa.engine.vector if index % 2 == 0 else nisa.engine.scalar)


def load_filters(w):
    """w [K, C, R, S] as one tile [c, tap, K] in SBUF per 128 input channels."""
    K, C, R, S = w.shape
    taps = R * S
    filters = [nl.ndarray((cn, taps, K), dtype=w.dtype, buffer=nl.sbuf) for _, cn in tiles(C, 128)]
    for k0, kn in tiles(K, 128):
        rows = nl.ndarray((kn, C, taps), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=w[k0 : k0 + kn, :, :, :].reshape((kn, C, taps)))
        for w_sbuf, (c0, cn) in zip(filters, tiles(C, 128), strict=True):
            for index, (t, tn) in enumerate(tiles(taps, TAPS_PER_COPY)):
                w_psum = nl.ndarray((cn, tn, 128), dtype=w.dtype, buffer=nl.psum)
                for tap in range(tn):
                    nisa.nc_transpose(dst=w_psum[:, tap, 0:kn], data=rows[:, c0 : c0 + cn, t + tap])
                evacuate(w_sbuf[:, t : t + tn, k0 : k0 + kn], w_psum[:, :, 0:kn], c0 // 128 + index)
    return filters


def load_window(x, n, channels, rows, columns):
    """x[n] [c, h, w] in SBUF, zero outside x. channels, rows, columns: (first, number); padding is below 0."""
    (_, _, H, W), (c0, cn), (h0, height), (w0, width) = x.shape, channels, rows, columns
    x_sbuf = nl.ndarray((cn, height, width), dtype=x.dtype, buffer=nl.sbuf)
    top, bottom = min(height, max(0, -h0)), max(0, min(height, H - h0))
    left, right = min(width, max(0, -w0)), max(0, min(width, W - w0))
    zero_border(x_sbuf, (top, bottom), (left, right))
    if top < bottom and left < right:
        src = x[n, c0 : c0 + cn, h0 + top : h0 + bottom, w0 + left : w0 + right]
        nisa.dma_copy(dst=x_sbuf[:, top:bottom, left:right], src=src)
    return x_sbuf


def zero_border(tile, rows, columns):
    """Zero a tile [partitions, height, width] outside these (first, end) rows and columns."""
    _, height, width = tile.shape
    for first, end in ((0, rows[0]), (rows[1], height)):
        if first < end:
            nisa.memset(dst=tile[:, first:end, :], value=0.0)
    for first, end in ((0, columns[0]), (columns[1], width)):
        if first < end:
            nisa.memset(dst=tile[:, :, first:end], value=0.0)
