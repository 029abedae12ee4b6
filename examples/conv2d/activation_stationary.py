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
from shapes import band_rows, check, div_ceil, out_size
from weight_stationary import BANK, evacuate, products_of_taps, zero_border


@nki.jit
def conv2d(x, w, stride=(1, 1), padding=(0, 0), groups=1):
    """As `weight_stationary.conv2d`, of x [N, H, W, C] and w [R, S, C, K]; returns y [N, P, Q, K]."""
    (N, H, W, C), (R, S, w_channels, K) = x.shape, w.shape
    check(x, w, (C, w_channels), stride, padding, groups)
    P, Q = out_size(H, R, stride[0], padding[0]), out_size(W, S, stride[1], padding[1])
    y = nl.ndarray((N, P, Q, K), dtype=x.dtype, buffer=nl.shared_hbm)
    filters, cores = load_filters(w), nl.num_programs()
    rows = band_rows(N, P, stride[0], R, len(filters) * (W + 2 * padding[1]), x)
    ahead = load_band(x, nl.program_id(0), (P, rows), R, stride, padding)
    for index in range(nl.program_id(0), N * div_ceil(P, rows), cores):
        n, p0, pn, x_tiles = ahead
        ahead = load_band(x, index + cores, (P, rows), R, stride, padding)  # loads while this band is multiplied
        pixels = y[n, p0 : p0 + pn, 0:Q, 0:K].reshape((pn * Q, K))
        convolve_band(pixels, products_of_taps(x_tiles, filters, S), Q, stride)
    return y


def convolve_band(y_band, products, Q, stride):
    """y [(p, q), k] of a band of rows."""
    (pixels, K), qt = y_band.shape, min(Q, 128)
    pt, index = max(1, 128 // Q), 0
    for p in range(0, pixels // Q, pt):
        for q in range(0, Q, qt):
            pn, qn = min(pt, pixels // Q - p), min(qt, Q - q)
            for k0 in range(0, K, BANK):
                kn = min(BANK, K - k0)
                acc_psum = nl.ndarray((pn * qn, kn), dtype=nl.float32, buffer=nl.psum)
                for one in products:
                    x_sbuf, w_sbuf, row, column = one
                    cn, h, w = x_sbuf.shape[0], p * stride[0] + row, q * stride[1] + column
                    h_end, w_end = h + (pn - 1) * stride[0] + 1, w + (qn - 1) * stride[1] + 1
                    stationary = x_sbuf[0:cn, h : h_end : stride[0], w : w_end : stride[1]]
                    nisa.nc_matmul(dst=acc_psum, stationary=stationary, moving=w_sbuf[0:cn, k0 : k0 + kn])
                y_sbuf = nl.ndarray((pn * qn, kn), dtype=y_band.dtype, buffer=nl.sbuf)
                evacuate(y_sbuf, acc_psum, index)
                first, index = p * Q + q, index + 1
                nisa.dma_copy(dst=y_band[first : first + pn * qn, k0 : k0 + kn], src=y_sbuf)


def load_filters(w):
    """w [R, S, C, K] as one tile [c, tap, K] in SBUF per 128 input channels."""
    (R, S, C, K), filters = w.shape, []
    taps = w.reshape((R * S, C, K))
    for c0 in range(0, C, 128):
        cn = min(128, C - c0)
        w_sbuf = nl.ndarray((cn, R * S, K), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=w_sbuf, src=taps[0 : R * S, c0 : c0 + cn, 0:K].permute((1, 0, 2)))
        filters.append(w_sbuf)
    return filters


def load_band(x, index, rows, R, stride, padding):
    """As `weight_stationary.load_band`, of x [N, H, W, C]."""
    (N, H, W, C), bands, x_tiles = x.shape, div_ceil(rows[0], rows[1]), []
    if index >= N * bands:
        return None
    n, p0 = index // bands, index % bands * rows[1]
    pn = min(rows[1], rows[0] - p0)
    h0, height = p0 * stride[0] - padding[0], (pn - 1) * stride[0] + R
    top, bottom = min(height, max(0, -h0)), max(0, min(height, H - h0))
    for c0 in range(0, C, 128):
        x_sbuf = nl.ndarray((min(128, C - c0), height, W + 2 * padding[1]), dtype=x.dtype, buffer=nl.sbuf)
        zero_border(x_sbuf, (top, max(top, bottom)), (padding[1], padding[1] + W))
        x_tiles.append(x_sbuf)
    ht, wt = max(1, 128 // W), min(W, 128)
    for h in range(top, bottom, ht):
        for w in range(0, W, wt):
            hn, wn = min(ht, bottom - h), min(wt, W - w)
            pixels = nl.ndarray((hn * wn, C), dtype=x.dtype, buffer=nl.sbuf)
            src = x[n, h0 + h : h0 + h + hn, w : w + wn, 0:C]
            nisa.dma_copy(dst=pixels, src=src.reshape((hn * wn, C)))
            for i in range(len(x_tiles)):
                cn, left = x_tiles[i].shape[0], padding[1] + w
                x_psum = nl.ndarray((cn, hn, wn), dtype=x.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=x_psum, data=pixels[0 : hn * wn, i * 128 : i * 128 + cn])
                evacuate(x_tiles[i][0:cn, h : h + hn, left : left + wn], x_psum, i + h // ht)
    return n, p0, pn, x_tiles
