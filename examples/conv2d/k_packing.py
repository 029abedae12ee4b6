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
from shapes import bands_of_core, check, div_ceil, out_size, prefetched, tiles
from weight_stationary import convolve_band, evacuate, zero_border


@nki.jit
def conv2d(x, w, stride=(1, 1), padding=(0, 0), groups=1, shifts=1):
    """As `weight_stationary.conv2d`, for R * C * shifts <= 128. shifts: columns of taps on the partitions, 1 to S."""
    (N, C, H, W), (K, w_channels, R, S) = x.shape, w.shape
    check(x, w, (C, w_channels), stride, padding, groups)
    P, Q = out_size(H, R, stride[0], padding[0]), out_size(W, S, stride[1], padding[1])
    assert 1 <= shifts <= S, f"shifts={shifts}; must be 1 to S = {S}"
    assert R * C * shifts <= 128, f"R * C * shifts = {R * C * shifts} exceeds 128 partitions; pack fewer taps"
    y = nl.ndarray((N, K, P, Q), dtype=x.dtype, buffer=nl.shared_hbm)
    w_tiles = pack_filters(w, shifts)
    bands = bands_of_core(N, P, 1, 1, W + 2 * padding[1], x)
    for (n, p0, pn), x_sbuf in prefetched(bands, lambda band: load_shifted(x, band, (R, shifts), stride[0], padding)):
        products = [(x_sbuf[0 : w_sbuf.shape[0], :, :], w_sbuf, 0, g * shifts) for g, w_sbuf in enumerate(w_tiles)]
        for k0, kn in tiles(K, 128):
            convolve_band(y[n, k0 : k0 + kn, p0 : p0 + pn, 0:Q], products, k0, (1, stride[1]))
    return y


def pack_filters(w, shifts):
    """w [K, C, R, S] as one tile [(d, r, c), K] in SBUF per `shifts` columns of taps."""
    K, C, R, S = w.shape
    groups = [(s * R * C, sn * R * C) for s, sn in tiles(S, shifts)]
    w_tiles = [nl.ndarray((parts, K), dtype=w.dtype, buffer=nl.sbuf) for _, parts in groups]
    for k0, kn in tiles(K, 128):
        rows = nl.ndarray((kn, C, R, S), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=w[k0 : k0 + kn, :, :, :])
        ordered = nl.ndarray((kn, S, R, C), dtype=w.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=ordered, src=rows.permute((0, 3, 2, 1)))
        taps = ordered.reshape((kn, S * R * C))
        for g, (first, parts) in enumerate(groups):
            w_psum = nl.ndarray((parts, 128), dtype=w.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=w_psum[:, 0:kn], data=taps[:, first : first + parts])
            evacuate(w_tiles[g][:, k0 : k0 + kn], w_psum[:, 0:kn], g)
    return w_tiles


def load_shifted(x, band, taps, stride, padding):
    """x of a band as [(d, r, c), p, j]: row p * stride + r, column j + d. taps: (R, shifts); stride: of rows."""
    (n, p0, pn), (_, C, H, W), (R, shifts) = band, x.shape, taps
    width = W + 2 * padding[1]
    x_sbuf = nl.ndarray((shifts * R * C, pn, width), dtype=x.dtype, buffer=nl.sbuf)
    valid = [valid_range(H, stride, p0 * stride - padding[0] + r, pn) for r in range(R)]
    # zeros where some tap reads padding; the DMAs then overwrite what others read there
    top, right = valid[0][0], width - padding[1] - shifts + 1
    zero_border(x_sbuf, (top, max(top, valid[-1][1])), (padding[1], max(padding[1], right)))
    for d in range(shifts):
        left, right = max(0, padding[1] - d), W + padding[1] - d
        for r, (first, end) in enumerate(valid):
            if first < end and left < right:
                h, part = (p0 + first) * stride + r - padding[0], (d * R + r) * C
                src = x[n, :, h : h + (end - first - 1) * stride + 1 : stride, left + d - padding[1] : W]
                nisa.dma_copy(dst=x_sbuf[part : part + C, first:end, left:right], src=src)
    return x_sbuf


def valid_range(size, stride, first, count):
    """(first, end) of those of `count` positions first, first + stride, ... that lie in 0 to size."""
    return min(count, max(0, div_ceil(-first, stride))), max(0, min(count, div_ceil(size - first, stride)))
