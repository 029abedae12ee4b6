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
from shapes import band_rows, check, div_ceil, out_size
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
    U, cores = min(P, SLOT // K), nl.num_programs()
    filters = place_filters(load_filters(w), (K, R, S), U, stride[0])
    rows = band_rows(N, P, stride[0], R, len(filters) * (W + 2 * padding[1]), x)
    ahead = load_band(x, nl.program_id(0), (P, rows), R, stride, padding)
    for index in range(nl.program_id(0), N * div_ceil(P, rows), cores):
        n, p0, pn, x_tiles = ahead
        ahead = load_band(x, index + cores, (P, rows), R, stride, padding)  # loads while this band is multiplied
        for p in range(0, pn, U):
            convolve_rows(y[n, 0:K, p0 + p : p0 + min(pn, p + U), 0:Q], x_tiles, filters, p, U, S, stride)
    return y


def convolve_rows(y_rows, x_tiles, filters, p, U, S, stride):
    """y [k, u, q] of up to U output rows, from row p of the band on."""
    K, un, Q = y_rows.shape
    # rows of x past the band belong to outputs past its end, which have columns but are not stored
    products = []
    for i in range(len(x_tiles)):
        (cn, height, columns), x_rows = filters[i].shape, x_tiles[i].shape[1]
        for h in range(min(height, x_rows - p * stride[0])):
            products.append((x_tiles[i], filters[i][0:cn, h, 0:columns], p * stride[0] + h, 0))
    y_sbuf = nl.ndarray((K * U, Q), dtype=y_rows.dtype, buffer=nl.sbuf)
    tiles = div_ceil(Q, (BANK - S) // stride[1] + 1)
    qt = div_ceil(Q, tiles)
    for q in range(0, Q, qt):
        qn = min(qt, Q - q)
        width = (qn - 1) * stride[1] + S
        acc_psum = nl.ndarray((filters[0].shape[2], 1, width), dtype=nl.float32, buffer=nl.psum)
        accumulate(acc_psum, products, 0, (0, q * stride[1]), (1, 1))
        shift_and_add(y_sbuf[0 : K * U, q : q + qn], acc_psum, S, stride[1])
    for k in range(K):
        nisa.dma_copy(dst=y_rows[k, 0:un, 0:Q], src=y_sbuf[k * U : k * U + un, 0:Q])


def shift_and_add(y_sbuf, acc_psum, S, stride):
    """y [(k, u), q] as the sum of the slots of acc [(s, k, u), 1, w], slot s shifted by s columns."""
    outputs, qn = y_sbuf.shape
    total = y_sbuf
    for s in range(S):
        slot = acc_psum[SLOT * s : SLOT * s + outputs, 0, s : s + (qn - 1) * stride + 1 : stride]
        partial = nl.ndarray((outputs, qn), dtype=nl.float32, buffer=nl.sbuf) if s + 1 < S else y_sbuf
        if s == 0:
            nisa.tensor_copy(dst=partial, src=slot, engine=nisa.engine.scalar)
        else:
            nisa.tensor_tensor(dst=partial, data1=slot, data2=total, op=nl.add)
        total = partial


def place_filters(filters, taps, U, stride):
    """w [c, tap, k] as tiles [c, h, (s, k, u)]: output row u has its taps from h = u * stride on."""
    K, R, S = taps
    placed = []
    for w_sbuf in filters:
        cn, columns = w_sbuf.shape[0], SLOT * (S - 1) + K * U
        tile = nl.ndarray((cn, (U - 1) * stride + R, columns), dtype=w_sbuf.dtype, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0)
        for s in range(S):
            for u in range(U):
                first = SLOT * s + u
                dst = tile[0:cn, u * stride : u * stride + R, first : first + (K - 1) * U + 1 : U]
                nisa.tensor_copy(dst=dst, src=w_sbuf[0:cn, s : s + (R - 1) * S + 1 : S, 0:K])
        placed.append(tile)
    return placed
