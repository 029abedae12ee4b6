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

import nki
import nki.isa as nisa
import nki.language as nl
from shapes import band_rows, check, div_ceil
from weight_stationary import BANK, accumulate, evacuate, load_window


@nki.jit
def conv_transpose2d(x, w, stride=(2, 2), padding=(0, 0), groups=1):
    """x [N, C, H, W], w [C, K, R, S] of one dtype (bf16, fp16, fp32) in HBM; returns y [N, K, P, Q] of that dtype.

    P = (H - 1) * stride - 2 * padding + R, and Q likewise. Raises AssertionError as `shapes.check`, and for fewer taps
    than the stride or an empty y.
    """
    (N, C, H, W), (w_channels, K, R, S) = x.shape, w.shape
    check(x, w, (C, w_channels), stride, padding, groups)
    assert min(R - stride[0], S - stride[1]) >= 0, f"{R}x{S} taps, stride={stride}: some phase has no taps"
    P, Q = (H - 1) * stride[0] - 2 * padding[0] + R, (W - 1) * stride[1] - 2 * padding[1] + S
    assert min(P, Q) > 0, f"padding={padding}: y would be {P}x{Q}"
    y = nl.ndarray((N, K, P, Q), dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = axis_phases(R, stride[0], padding[0]), axis_phases(S, stride[1], padding[1])
    height, width, filters = div_ceil(P, stride[0]), div_ceil(Q, stride[1]), load_as_stored(w)  # of a phase
    jt = min(width, BANK)
    it = min(BANK // jt, band_rows(N, height, 1, R, len(filters) * (jt + columns[1]), x))
    across = div_ceil(width, jt)
    blocks = div_ceil(height, it) * across
    for index in range(nl.program_id(0), N * blocks, nl.num_programs()):
        n, i0, j0 = index // blocks, index % blocks // across * it, index % across * jt
        size = min(it, height - i0), min(jt, width - j0)
        window = (i0 + rows[0], size[0] + rows[1]), (j0 + columns[0], size[1] + columns[1])
        x_tiles = []
        for c0 in range(0, C, 128):
            x_tiles.append(load_window(x, n, c0, window[0], window[1]))
        p0, q0 = i0 * stride[0], j0 * stride[1]
        p1, q1 = min(P, p0 + size[0] * stride[0]), min(Q, q0 + size[1] * stride[1])
        for k0 in range(0, K, 128):
            y_block = y[n, k0 : min(K, k0 + 128), p0:p1, q0:q1]
            convolve_block(y_block, x_tiles, filters, (rows[2], columns[2]), k0, S, size, stride)
    return y


def convolve_block(y_block, x_tiles, filters, phases, k0, S, size, stride):
    """y [k, p, q] of a block of (i, j) of all phases; phases: `axis_phases` of rows and of columns."""
    (kn, pn, qn), (i_n, j_n) = y_block.shape, size
    y_sbuf = nl.ndarray((kn, i_n * stride[0], j_n * stride[1]), dtype=y_block.dtype, buffer=nl.sbuf)
    for a in range(stride[0]):
        for b in range(stride[1]):
            products = []
            for t in range(len(filters)):
                cn, K = filters[t].shape[0], filters[t].shape[1]
                for row in phases[0][a]:
                    for column in phases[1][b]:
                        products.append((x_tiles[t], filters[t][0:cn, 0:K, row[0] * S + column[0]], row[1], column[1]))
            acc_psum = nl.ndarray((kn, i_n, j_n), dtype=nl.float32, buffer=nl.psum)
            accumulate(acc_psum, products, k0, (0, 0), (1, 1))
            p_end, q_end = a + (i_n - 1) * stride[0] + 1, b + (j_n - 1) * stride[1] + 1
            evacuate(y_sbuf[0:kn, a : p_end : stride[0], b : q_end : stride[1]], acc_psum, a * stride[1] + b)
    nisa.dma_copy(dst=y_block, src=y_sbuf[0:kn, 0:pn, 0:qn])


def axis_phases(taps, stride, padding):
    """Along an axis: first element of x that block 0 reads, elements beyond the block's own, and for each phase its
    (tap, element of the block's window that output 0 reads).

    Output i * stride + a reads x[i + (a + padding) // stride - m] by tap (a + padding) % stride + m * stride.
    """
    first, most, phases = padding // stride, div_ceil(taps, stride) - 1, []
    for a in range(stride):
        found, shift = [], (a + padding) // stride - first
        for tap in range((a + padding) % stride, taps, stride):
            found.append((tap, shift + most - tap // stride))
        phases.append(found)
    return first - most, (stride - 1 + padding) // stride - first + most, phases


def load_as_stored(w):
    """w [C, K, R, S] as one tile [c, K, tap] in SBUF per 128 input channels."""
    (C, K, R, S), filters = w.shape, []
    for c0 in range(0, C, 128):
        cn = min(128, C - c0)
        w_sbuf = nl.ndarray((cn, K, R * S), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=w_sbuf, src=w[c0 : c0 + cn, 0:K, 0:R, 0:S].reshape((cn, K, R * S)))
        filters.append(w_sbuf)
    return filters
