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
from shapes import band_rows, check, div_ceil, out_size

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
    filters, cores = load_filters(w), nl.num_programs()
    # bands of output rows, so that x fits SBUF twice; the cores take alternate bands
    rows = band_rows(N, P, stride[0], R, len(filters) * (W + 2 * padding[1]), x)
    ahead = load_band(x, nl.program_id(0), (P, rows), R, stride, padding)
    for index in range(nl.program_id(0), N * div_ceil(P, rows), cores):
        n, p0, pn, x_tiles = ahead
        ahead = load_band(x, index + cores, (P, rows), R, stride, padding)  # loads while this band is multiplied
        products = products_of_taps(x_tiles, filters, S)
        for k0 in range(0, K, 128):
            convolve_band(y[n, k0 : min(K, k0 + 128), p0 : p0 + pn, 0:Q], products, k0, stride)
    return y


def load_band(x, index, rows, R, stride, padding):
    """(n, first output row, output rows, x as tiles [c, h, w]) of a band; None after the last. rows: (P, of a band)."""
    (N, C, _, W), bands, x_tiles = x.shape, div_ceil(rows[0], rows[1]), []
    if index >= N * bands:
        return None
    p0 = index % bands * rows[1]
    pn = min(rows[1], rows[0] - p0)
    h0, height = p0 * stride[0] - padding[0], (pn - 1) * stride[0] + R
    for c0 in range(0, C, 128):
        x_tiles.append(load_window(x, index // bands, c0, (h0, height), (-padding[1], W + 2 * padding[1])))
    return index // bands, p0, pn, x_tiles


def products_of_taps(x_tiles, filters, S):
    """(x [c, h, w], w [c, K], row and column of x that output (0, 0) reads) of each matmul of an output tile."""
    products = []
    for i in range(len(x_tiles)):
        cn, taps, K = filters[i].shape
        for tap in range(taps):
            products.append((x_tiles[i], filters[i][0:cn, tap, 0:K], tap // S, tap % S))
    return products


def convolve_band(y_band, products, k0, stride):
    """y [k, p, q] of a tile of k and a band of rows."""
    (kn, P, Q), qt = y_band.shape, min(y_band.shape[2], BANK)
    pt, across = min(P, BANK // qt), div_ceil(Q, qt)
    for tile in range(div_ceil(P, pt) * across):
        p, q = tile // across * pt, tile % across * qt
        pn, qn = min(pt, P - p), min(qt, Q - q)
        acc_psum = nl.ndarray((kn, pn, qn), dtype=nl.float32, buffer=nl.psum)
        accumulate(acc_psum, products, k0, (p, q), stride)
        y_sbuf = nl.ndarray((kn, pn, qn), dtype=y_band.dtype, buffer=nl.sbuf)
        evacuate(y_sbuf, acc_psum, tile)
        nisa.dma_copy(dst=y_band[0:kn, p : p + pn, q : q + qn], src=y_sbuf)


def accumulate(acc_psum, products, k0, output, stride):
    """Sum all products of a tile [k, p, q] of outputs, from output (p, q) on, in one PSUM bank."""
    kn, pn, qn = acc_psum.shape
    for one in products:
        x_sbuf, w_sbuf, row, column = one
        h, w = output[0] * stride[0] + row, output[1] * stride[1] + column
        h_end, w_end = h + (pn - 1) * stride[0] + 1, w + (qn - 1) * stride[1] + 1
        moving = x_sbuf[0 : x_sbuf.shape[0], h : h_end : stride[0], w : w_end : stride[1]]
        nisa.nc_matmul(dst=acc_psum, stationary=w_sbuf[0 : w_sbuf.shape[0], k0 : k0 + kn], moving=moving)


def evacuate(y_sbuf, acc_psum, index):
    """Copy accumulators to SBUF in y's dtype; Vector and Scalar alternate."""
    nisa.tensor_copy(dst=y_sbuf, src=acc_psum, engine=nisa.engine.vector if index % 2 == 0 else nisa.engine.scalar)


def load_filters(w):
    """w [K, C, R, S] as one tile [c, tap, K] in SBUF per 128 input channels."""
    K, C, R, S = w.shape
    taps, filters = R * S, []
    for c0 in range(0, C, 128):
        filters.append(nl.ndarray((min(128, C - c0), taps, K), dtype=w.dtype, buffer=nl.sbuf))
    for k0 in range(0, K, 128):
        kn = min(128, K - k0)
        rows = nl.ndarray((kn, C, taps), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=w[k0 : k0 + kn, 0:C, 0:R, 0:S].reshape((kn, C, taps)))
        for i in range(len(filters)):
            cn = filters[i].shape[0]
            for t in range(0, taps, TAPS_PER_COPY):
                tn = min(TAPS_PER_COPY, taps - t)
                w_psum = nl.ndarray((cn, tn, 128), dtype=w.dtype, buffer=nl.psum)
                for tap in range(tn):
                    nisa.nc_transpose(dst=w_psum[0:cn, tap, 0:kn], data=rows[0:kn, i * 128 : i * 128 + cn, t + tap])
                evacuate(filters[i][0:cn, t : t + tn, k0 : k0 + kn], w_psum[0:cn, 0:tn, 0:kn], i + t // TAPS_PER_COPY)
    return filters


def load_window(x, n, c0, rows, columns):
    """x[n, c0 : c0 + 128] [c, h, w] in SBUF, zero outside x; rows, columns: (first, number), may start below 0."""
    (_, C, H, W), (h0, height), (w0, width) = x.shape, rows, columns
    cn = min(128, C - c0)
    x_sbuf = nl.ndarray((cn, height, width), dtype=x.dtype, buffer=nl.sbuf)
    top, bottom = min(height, max(0, -h0)), max(0, min(height, H - h0))
    left, right = min(width, max(0, -w0)), max(0, min(width, W - w0))
    zero_border(x_sbuf, (top, bottom), (left, right))
    if top < bottom and left < right:
        src = x[n, c0 : c0 + cn, h0 + top : h0 + bottom, w0 + left : w0 + right]
        nisa.dma_copy(dst=x_sbuf[0:cn, top:bottom, left:right], src=src)
    return x_sbuf


def zero_border(tile, rows, columns):
    """Zero a tile [partitions, height, width] outside these (first, end) rows and columns."""
    parts, height, width = tile.shape
    for edge in ((0, rows[0]), (rows[1], height)):
        if edge[0] < edge[1]:
            nisa.memset(dst=tile[0:parts, edge[0] : edge[1], 0:width], value=0.0)
    for edge in ((0, columns[0]), (columns[1], width)):
        if edge[0] < edge[1]:
            nisa.memset(dst=tile[0:parts, 0:height, edge[0] : edge[1]], value=0.0)
