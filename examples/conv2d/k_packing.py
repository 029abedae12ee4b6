"""Step 1, K packing: several taps share the contraction partitions, for few input channels.

With C = 3, `weight_stationary` fills 3 of the Tensor Engine's 128 rows, and each of the R * S taps takes a matmul. Here
the R rows of taps and `shifts` columns of taps go on partitions of their own, next to the channels, so that one matmul
contracts shifts * R * C products per output:

    | stationary             | K                   | M | N   | evacuation |
    | w of shifts * R taps   | shift, r, c         | k | p q | copy       |

    w_sbuf[(d, r, c), group, k] = w[k, c, r, group * shifts + d]
    x_sbuf[(d, r, c), p, j]     = x[n, c, p * stride + r, j + d]     # one DMA for each (d, r)
    for each tile of outputs (p, q), each group of shifts:
        acc_psum[k, p, q] += w_sbuf[:, group, k].T @ x_sbuf[:, p, q * stride + group * shifts]

Price: x is loaded shifts * R / stride times. More shifts mean fewer matmuls and more DMA.
"""

import nki
import nki.isa as nisa
import nki.language as nl
from shapes import band_rows, check, div_ceil, out_size
from weight_stationary import convolve_band, evacuate, zero_border


@nki.jit
def conv2d(x, w, stride=(1, 1), padding=(0, 0), groups=1, shifts=1):
    """As `weight_stationary.conv2d`, for R * C * shifts <= 128. shifts: columns of taps on the partitions, 1 to S."""
    (N, C, H, W), (K, w_channels, R, S) = x.shape, w.shape
    check(x, w, (C, w_channels), stride, padding, groups)
    P, Q = out_size(H, R, stride[0], padding[0]), out_size(W, S, stride[1], padding[1])
    assert shifts == min(max(shifts, 1), S), f"shifts={shifts}; must be 1 to S = {S}"
    assert R * C * shifts <= 128, f"R * C * shifts = {R * C * shifts} exceeds 128 partitions; pack fewer taps"
    y = nl.ndarray((N, K, P, Q), dtype=x.dtype, buffer=nl.shared_hbm)
    w_tiles, width = pack_filters(w, shifts), W + 2 * padding[1]
    rows, cores = band_rows(N, P, 1, 1, width, x), nl.num_programs()
    bands = div_ceil(P, rows)
    ahead = load_shifted(x, nl.program_id(0), (P, rows), (R, shifts), stride[0], padding)
    for index in range(nl.program_id(0), N * bands, cores):
        x_sbuf, n, p0 = ahead, index // bands, index % bands * rows
        ahead = load_shifted(x, index + cores, (P, rows), (R, shifts), stride[0], padding)
        pn = x_sbuf.shape[1]
        products = []
        for g in range(len(w_tiles)):
            parts = w_tiles[g].shape[0]
            products.append((x_sbuf[0:parts, 0:pn, 0:width], w_tiles[g], 0, g * shifts))
        for k0 in range(0, K, 128):
            convolve_band(y[n, k0 : min(K, k0 + 128), p0 : p0 + pn, 0:Q], products, k0, (1, stride[1]))
    return y


def pack_filters(w, shifts):
    """w [K, C, R, S] as one tile [(d, r, c), K] in SBUF per `shifts` columns of taps."""
    K, C, R, S = w.shape
    w_tiles = []
    for s in range(0, S, shifts):
        w_tiles.append(nl.ndarray((min(shifts, S - s) * R * C, K), dtype=w.dtype, buffer=nl.sbuf))
    for k0 in range(0, K, 128):
        kn = min(128, K - k0)
        rows = nl.ndarray((kn, C, R, S), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=w[k0 : k0 + kn, 0:C, 0:R, 0:S])
        ordered = nl.ndarray((kn, S, R, C), dtype=w.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=ordered, src=rows.permute((0, 3, 2, 1)))
        taps = ordered.reshape((kn, S * R * C))
        for g in range(len(w_tiles)):
            first, parts = g * shifts * R * C, w_tiles[g].shape[0]
            w_psum = nl.ndarray((parts, 128), dtype=w.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=w_psum[0:parts, 0:kn], data=taps[0:kn, first : first + parts])
            evacuate(w_tiles[g][0:parts, k0 : k0 + kn], w_psum[0:parts, 0:kn], g)
    return w_tiles


def load_shifted(x, index, rows, taps, stride, padding):
    """x of a band as [(d, r, c), p, j]: row p * stride + r, column j + d; None after the last band.

    rows: output rows (all, of a band); taps: (R, shifts); stride: of rows.
    """
    (N, C, H, W), bands, (R, shifts) = x.shape, div_ceil(rows[0], rows[1]), taps
    if index >= N * bands:
        return None
    n, p0 = index // bands, index % bands * rows[1]
    pn = min(rows[1], rows[0] - p0)
    width = W + 2 * padding[1]
    x_sbuf = nl.ndarray((shifts * R * C, pn, width), dtype=x.dtype, buffer=nl.sbuf)
    # rows and columns that at least one tap does not cover; the DMAs below then overwrite what others cover
    low, high = valid(H, stride, p0 * stride - padding[0], pn), valid(H, stride, p0 * stride - padding[0] + R - 1, pn)
    zero_border(x_sbuf, (low[0], max(low[0], high[1])), (padding[1], max(padding[1], width - padding[1] - shifts + 1)))
    for d in range(shifts):
        left, right = max(0, padding[1] - d), W + padding[1] - d
        for r in range(R):
            h0 = p0 * stride + r - padding[0]
            first, end = valid(H, stride, h0, pn)
            if first < end and left < right:
                h, part = h0 + first * stride, (d * R + r) * C
                src = x[n, 0:C, h : h + (end - first - 1) * stride + 1 : stride, left + d - padding[1] : W]
                nisa.dma_copy(dst=x_sbuf[part : part + C, first:end, left:right], src=src)
    return x_sbuf


def valid(size, stride, first, count):
    """(first, end) of those of `count` positions first, first + stride, ... that lie in 0 to size."""
    return min(count, max(0, div_ceil(-first, stride))), max(0, min(count, div_ceil(size - first, stride)))
