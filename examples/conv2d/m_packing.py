"""Step 2, M packing with shift-and-add (kn2row): taps and output rows share the stationary columns, for few outputs.

With K = 3, `weight_stationary` fills 3 of the Tensor Engine's 128 columns, and evacuates 3 partitions at a time. Here a
stationary has S slots of 32 columns, one for each column of taps, and a slot holds U output rows of all K channels:

    | stationary       | K | M              | N | evacuation                |
    | w placed among 0 | c | slot s, (k, u) | w | add S slots, each shifted |

    w_sbuf[c, h, 32 * s + k * U + u] = w[k, c, h - u * stride, s], 0 where there is no such tap
    for each block of U output rows, each tile of columns:
        for each row h of x that the block reads:               # (U - 1) * stride + R matmuls for U rows
            acc_psum[(s, k, u), w] += w_sbuf[:, h].T @ x_sbuf[:, h, w]
        y[n, k, u, q] = sum over s of acc_psum[(s, k, u), q * stride + s]

A row of outputs takes 1 + (R - 1) / U matmuls instead of R * S. Price: Vector adds the S slots, after PSUM.
"""

import nki
import nki.isa as nisa
import nki.language as nl
from shapes import bands_of_core, check, div_ceil, out_size, prefetched, tiles
from weight_stationary import BANK, accumulate, load_band, load_filters

#: Columns of a slot: Vector and Scalar read PSUM from partitions 0, 32, 64 and 96 on.
SLOT = 32


@nki.jit
def conv2d(x, w, stride=(1, 1), padding=(0, 0), groups=1):
    """As `weight_stationary.conv2d`, for K <= 32 and S <= 4."""
    (N, C, H, W), (K, w_channels, R, S) = x.shape, w.shape
    check(x, w, (C, w_channels), stride, padding, groups)
    P, Q = out_size(H, R, stride[0], padding[0]), out_size(W, S, stride[1], padding[1])
    assert K <= SLOT, f"K = {K}; a slot takes at most {SLOT} output channels"
    assert S <= 4, f"S = {S}; there are 4 slots for columns of taps"
    y = nl.ndarray((N, K, P, Q), dtype=x.dtype, buffer=nl.shared_hbm)
    U = min(P, SLOT // K)
    filters = [place_filters(w_sbuf, (K, R, S), U, stride[0]) for w_sbuf in load_filters(w)]
    bands = bands_of_core(N, P, stride[0], R, len(filters) * (W + 2 * padding[1]), x)
    for (n, p0, pn), x_tiles in prefetched(bands, lambda band: load_band(x, band, R, stride, padding)):
        for p, un in tiles(pn, U):
            convolve_rows(y[n, :, p0 + p : p0 + p + un, 0:Q], x_tiles, filters, p * stride[0], U, S, stride[1])
    return y


def convolve_rows(y_rows, x_tiles, filters, h0, U, S, stride):
    """y [k, u, q] of up to U output rows, whose first reads row h0 of the band on. stride: of columns."""
    K, un, Q = y_rows.shape
    # a band may end before the rows of x that a block has filters for: no stored output reads those
    products = [
        (x_sbuf, w_sbuf[:, h, :], h0 + h, 0)
        for x_sbuf, w_sbuf in zip(x_tiles, filters, strict=True)
        for h in range(min(w_sbuf.shape[1], x_sbuf.shape[1] - h0))
    ]
    y_sbuf = nl.ndarray((K * U, Q), dtype=y_rows.dtype, buffer=nl.sbuf)
    most = (BANK - S) // stride + 1  # outputs of a bank
    for q, qn in tiles(Q, div_ceil(Q, div_ceil(Q, most))):
        acc_psum = nl.ndarray((filters[0].shape[2], 1, (qn - 1) * stride + S), dtype=nl.float32, buffer=nl.psum)
        accumulate(acc_psum, products, 0, (0, q * stride), (1, 1))
        shift_and_add(y_sbuf[:, q : q + qn], acc_psum, S, stride)
    for k in range(K):
        nisa.dma_copy(dst=y_rows[k, :, :], src=y_sbuf[k * U : k * U + un, :])


def shift_and_add(y_sbuf, acc_psum, S, stride):
    """y [(k, u), q] as the sum of the slots of acc [(s, k, u), 1, w], slot s shifted by s columns."""
    outputs, qn = y_sbuf.shape
    total = None
    for s in range(S):
        slot = acc_psum[SLOT * s : SLOT * s + outputs, 0, s : s + (qn - 1) * stride + 1 : stride]
        partial = nl.ndarray((outputs, qn), dtype=nl.float32, buffer=nl.sbuf) if s + 1 < S else y_sbuf
        if s == 0:
            nisa.tensor_copy(dst=partial, src=slot, engine=nisa.engine.scalar)
        else:
            nisa.tensor_tensor(dst=partial, data1=slot, data2=total, op=nl.add)
        total = partial


def place_filters(w_sbuf, taps, U, stride):
    """w [c, tap, k] as [c, h, (s, k, u)]: output row u has its R taps from h = u * stride on, zeros elsewhere."""
    K, R, S = taps
    placed = nl.ndarray((w_sbuf.shape[0], (U - 1) * stride + R, SLOT * (S - 1) + K * U), w_sbuf.dtype, buffer=nl.sbuf)
    nisa.memset(dst=placed, value=0.0)
    for s in range(S):
        for u in range(U):
            columns = slice(SLOT * s + u, SLOT * s + u + (K - 1) * U + 1, U)
            dst = placed[:, u * stride : u * stride + R, columns]
            nisa.tensor_copy(dst=dst, src=w_sbuf[:, s : s + (R - 1) * S + 1 : S, :])
    return placed
