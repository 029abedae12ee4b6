"""Step 3, interleaving: a transposed convolution in its phases (polyphase, sub-pixel).

    y[n, k, p, q] = sum over c, r, s of w[c, k, r, s] * x[n, c, (p + padding - r) / stride, (q + padding - s) / stride]

over those r and s where the divisions have no remainder. Done by `weight_stationary`, this is a convolution of x with
stride - 1 zeros between its elements, and stride**2 - 1 of stride**2 products are of zeros. But all outputs of a phase,
p % stride = a and q % stride = b, have the same taps, every stride-th, and read x without gaps:

    | stationary | K | M | N                | evacuation                                    |
    | w of a tap | c | k | i j of one phase | interleave: y[i * stride + a, j * stride + b] |

    for each image, block of (i, j), tile of k:
        for each phase (a, b):
            for each tile of c, each tap of the phase:
                acc_psum[k, i, j] += w_sbuf[c, k, tap].T @ x_sbuf[c, i + row, j + column]
            y_sbuf[k, i * stride + a, j * stride + b] = acc_psum
        y = y_sbuf                                              # whole rows, so that DMA writes long runs

w is [C, K, R, S], as in torch.nn.ConvTranspose2d: c is its outer axis, so no transpose is needed.
"""

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
from shapes import bands_of_core, check, div_ceil, prefetched, tiles
from weight_stationary import BANK, accumulate, evacuate, load_window


@nki.jit
def conv_transpose2d(x, w, stride=(2, 2), padding=(0, 0), groups=1):
    """x [N, C, H, W], w [C, K, R, S] of one dtype (bf16, fp16, fp32) in HBM; returns y [N, K, P, Q] of that dtype.

    P = (H - 1) * stride - 2 * padding + R, and Q likewise. Raises AssertionError as `shapes.check`, and for fewer taps
    than the stride or an empty y.
    """
    (N, C, H, W), (w_channels, K, R, S) = x.shape, w.shape
    check(x, w, (C, w_channels), stride, padding, groups)
    assert R >= stride[0], f"R = {R}, stride={stride}: some phase has no taps"
    assert S >= stride[1], f"S = {S}, stride={stride}: some phase has no taps"
    P, Q = (H - 1) * stride[0] - 2 * padding[0] + R, (W - 1) * stride[1] - 2 * padding[1] + S
    assert min(P, Q) > 0, f"padding={padding}: y would be {P}x{Q}"
    y = nl.ndarray((N, K, P, Q), dtype=x.dtype, buffer=nl.shared_hbm)
    axes = axis_phases(R, stride[0], padding[0]), axis_phases(S, stride[1], padding[1])
    filters = load_as_stored(w)
    height, width = div_ceil(P, stride[0]), div_ceil(Q, stride[1])  # of a phase
    bands = bands_of_core(N, height, 1, R, len(filters) * (width + S), x)
    for (n, i0, i_n), x_tiles in prefetched(bands, lambda band: load_phase_band(x, band, axes, width)):
        columns = min(width, BANK)
        for i, it in tiles(i_n, BANK // columns):
            for j, jt in tiles(width, columns):
                p, q = (i0 + i) * stride[0], j * stride[1]
                for k0, kn in tiles(K, 128):
                    y_block = y[n, k0 : k0 + kn, p : min(P, p + it * stride[0]), q : min(Q, q + jt * stride[1])]
                    convolve_block(y_block, x_tiles, filters, axes, k0, S, (i, j), (it, jt), stride)
    return y


def convolve_block(y_block, x_tiles, filters, axes, k0, S, first, size, stride):
    """y [k, p, q] of all phases of a block of `size` (i, j), from `first` of the band on."""
    kn, pn, qn = y_block.shape
    y_sbuf = nl.ndarray((kn, size[0] * stride[0], size[1] * stride[1]), dtype=y_block.dtype, buffer=nl.sbuf)
    for index, (a, b) in enumerate((a, b) for a in range(stride[0]) for b in range(stride[1])):
        products = [
            (x_sbuf, w_sbuf[:, :, r * S + s], row, column)
            for x_sbuf, w_sbuf in zip(x_tiles, filters, strict=True)
            for r, row in axes[0].phases[a]
            for s, column in axes[1].phases[b]
        ]
        acc_psum = nl.ndarray((kn, size[0], size[1]), dtype=nl.float32, buffer=nl.psum)
        accumulate(acc_psum, products, k0, first, (1, 1))
        evacuate(y_sbuf[:, a :: stride[0], b :: stride[1]], acc_psum, index)
    nisa.dma_copy(dst=y_block, src=y_sbuf[:, 0:pn, 0:qn])


class Phases(NamedTuple):
    """An axis: first element of x that block 0 reads, elements beyond a block's own, and of each phase its taps as
    (tap, element of the window that output 0 reads)."""

    first: int
    more: int
    phases: list


def axis_phases(taps, stride, padding):
    """Phases of an axis: tap (a + padding) % stride + m * stride of output i * stride + a reads x[i + (a + padding) //
    stride - m]."""
    low, reach = padding // stride, div_ceil(taps, stride) - 1
    phases = [
        [
            (tap, (a + padding) // stride - low + reach - tap // stride)
            for tap in range((a + padding) % stride, taps, stride)
        ]
        for a in range(stride)
    ]
    return Phases(low - reach, (stride - 1 + padding) // stride - low + reach, phases)


def load_phase_band(x, band, axes, width):
    """What a band of rows i of all phases reads of x, as one tile [c, h, w] in SBUF per 128 channels."""
    n, i0, i_n = band
    rows, columns = (i0 + axes[0].first, i_n + axes[0].more), (axes[1].first, width + axes[1].more)
    return [load_window(x, n, channels, rows, columns) for channels in tiles(x.shape[1], 128)]


def load_as_stored(w):
    """w [C, K, R, S] as one tile [c, K, tap] in SBUF per 128 input channels."""
    (C, K, R, S), filters = w.shape, []
    for c0, cn in tiles(C, 128):
        w_sbuf = nl.ndarray((cn, K, R * S), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=w_sbuf, src=w[c0 : c0 + cn, :, :, :].reshape((cn, K, R * S)))
        filters.append(w_sbuf)
    return filters
