"""Step 4, activation-stationary: pixels in the stationary columns, filters move, and y comes out as NHWC.

`weight_stationary` fills columns with output channels: K = 320 takes three tiles, of 128, 128 and 64 columns. Its y
[k, (p, q)] has channels on partitions, so NHWC needs a transpose. Exchange the operands: 128 pixels of x are the
stationary, and the K filters of a tap, up to 512 at once, are the moving columns.

    | stationary               | K | M          | N | evacuation                  |
    | x, the window of one tap | c | 128 pixels | k | copy: y [(p, q), k] is NHWC |

    w_sbuf[c, tap, k] = w                                       # [R, S, C, K]: no transpose
    x_sbuf[c, h, w] = 128 pixels at a time, transposed by the Tensor Engine
    for each tile of 128 pixels (p, q), each tile of 512 k:
        for each tile of c, each tap (r, s):
            acc_psum[(p, q), k] += x_sbuf[c, p * stride + r, q * stride + s].T @ w_sbuf[c, tap, k]
        y[n, (p, q), k] = acc_psum

Price: each matmul needs at least 128 moving columns to hide the load of its stationary, so K < 128 wastes time. And x
in NHWC arrives with pixels on partitions and must be transposed.
"""

import nki
import nki.isa as nisa
import nki.language as nl
from shapes import bands_of_core, check, out_size, prefetched, tiles
from weight_stationary import BANK, evacuate, products_of_taps, window, zero_border


@nki.jit
def conv2d(x, w, stride=(1, 1), padding=(0, 0), groups=1):
    """As `weight_stationary.conv2d`, of x [N, H, W, C] and w [R, S, C, K]; returns y [N, P, Q, K]."""
    (N, H, W, C), (R, S, w_channels, K) = x.shape, w.shape
    check(x, w, (C, w_channels), stride, padding, groups)
    P, Q = out_size(H, R, stride[0], padding[0]), out_size(W, S, stride[1], padding[1])
    y = nl.ndarray((N, P, Q, K), dtype=x.dtype, buffer=nl.shared_hbm)
    filters = load_filters(w)
    bands = bands_of_core(N, P, stride[0], R, len(filters) * (W + 2 * padding[1]), x)
    for (n, p0, pn), x_tiles in prefetched(bands, lambda band: load_band(x, band, R, stride, padding)):
        pixels = y[n, p0 : p0 + pn, :, :].reshape((pn * Q, K))
        convolve_band(pixels, products_of_taps(x_tiles, filters, S), Q, stride)
    return y


def convolve_band(y_band, products, Q, stride):
    """y [(p, q), k] of a band of rows."""
    (pixels, K), columns = y_band.shape, min(Q, 128)
    outputs = [(p, pn, q, qn) for p, pn in tiles(pixels // Q, 128 // columns) for q, qn in tiles(Q, columns)]
    for index, (p, pn, q, qn) in enumerate(outputs):
        for k0, kn in tiles(K, BANK):
            acc_psum = nl.ndarray((pn * qn, kn), dtype=nl.float32, buffer=nl.psum)
            for x_sbuf, w_sbuf, row, column in products:
                stationary = window(x_sbuf, (p * stride[0] + row, q * stride[1] + column), (pn, qn), stride)
                nisa.nc_matmul(dst=acc_psum, stationary=stationary, moving=w_sbuf[:, k0 : k0 + kn])
            y_sbuf = nl.ndarray((pn * qn, kn), dtype=y_band.dtype, buffer=nl.sbuf)
            evacuate(y_sbuf, acc_psum, index + k0 // BANK)
            nisa.dma_copy(dst=y_band[p * Q + q : p * Q + q + pn * qn, k0 : k0 + kn], src=y_sbuf)


def load_filters(w):
    """w [R, S, C, K] as one tile [c, tap, K] in SBUF per 128 input channels."""
    (R, S, C, K), filters = w.shape, []
    for c0, cn in tiles(C, 128):
        w_sbuf = nl.ndarray((cn, R * S, K), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=w_sbuf, src=w.reshape((R * S, C, K))[:, c0 : c0 + cn, :].permute((1, 0, 2)))
        filters.append(w_sbuf)
    return filters


def load_band(x, band, R, stride, padding):
    """As `weight_stationary.load_band`, of x [N, H, W, C]: 128 pixels at a time load and are transposed."""
    (n, p0, pn), (_, H, W, C) = band, x.shape
    h0, height = p0 * stride[0] - padding[0], (pn - 1) * stride[0] + R
    top, bottom = min(height, max(0, -h0)), max(0, min(height, H - h0))
    shapes = [(cn, height, W + 2 * padding[1]) for _, cn in tiles(C, 128)]
    x_tiles = [nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf) for shape in shapes]
    for x_sbuf in x_tiles:
        zero_border(x_sbuf, (top, max(top, bottom)), (padding[1], padding[1] + W))
    columns = min(W, 128)
    for row, hn in tiles(bottom - top, 128 // columns):
        for w, wn in tiles(W, columns):
            pixels = nl.ndarray((hn * wn, C), dtype=x.dtype, buffer=nl.sbuf)
            h, left = top + row, padding[1] + w
            src = x[n, h0 + h : h0 + h + hn, w : w + wn, :]
            nisa.dma_copy(dst=pixels, src=src.reshape((hn * wn, C)))
            for i, (c0, cn) in enumerate(tiles(C, 128)):
                x_psum = nl.ndarray((cn, hn, wn), dtype=x.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=x_psum, data=pixels[:, c0 : c0 + cn])
                evacuate(x_tiles[i][:, h : h + hn, left : left + wn], x_psum, i + row // hn)
    return x_tiles
