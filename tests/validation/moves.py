"""Kernels of our own that make the moves of published ones: the same tiles, runs and instructions in the same order.

Each takes specs of its arguments and sizes; the default modes of DMA are left to the compiler, as in the originals.
"""

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import jit
from nkiconv.simulator import language as nl

P = nl.tile_size.pmax
#: Columns of fp32 of a bank of PSUM, which one matmul fills at most.
BANK = nl.tile_size.psum_fmax


def _mine(total):
    """Begin and size of this core's half (or whole) of so many."""
    share = total // nl.num_programs()
    return nl.program_id(0) * share, share


@jit
def copy(x, block):
    """x [N, N] through SBUF in tiles of 128 runs of `block` elements; each core has a contiguous half."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    begin, share = _mine(x.shape[0] * x.shape[1])
    for first in range(begin, begin + share, P * block):
        columns = min(block, (begin + share - first) // P)
        tile = nl.ndarray((P, columns), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x.ap(pattern=[[columns, P], [1, columns]], offset=first))
        nisa.dma_copy(dst=out.ap(pattern=[[columns, P], [1, columns]], offset=first), src=tile)
    return out


@jit
def relu(x, block):
    """max(x, 0) of [128, F] in tiles of `block` columns; each core has half of the columns."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    begin, share = _mine(x.shape[1])
    for first in range(begin, begin + share, block):
        end = min(first + block, begin + share)
        tile, result = (nl.ndarray((P, end - first), x.dtype, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(dst=tile, src=x[:, first:end])
        nisa.tensor_scalar(dst=result, data=tile, op0=nl.maximum, operand0=0.0)
        nisa.dma_copy(dst=out[:, first:end], src=result)
    return out


@jit
def add(x, y, block):
    """x + y of [128, F] in tiles of `block` columns; each core has half of the columns."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    begin, share = _mine(x.shape[1])
    for first in range(begin, begin + share, block):
        end = min(first + block, begin + share)
        a, b, result = (nl.ndarray((P, end - first), x.dtype, buffer=nl.sbuf) for _ in range(3))
        nisa.dma_copy(dst=a, src=x[:, first:end])
        nisa.dma_copy(dst=b, src=y[:, first:end])
        nisa.tensor_tensor(dst=result, data1=a, data2=b, op=nl.add)
        nisa.dma_copy(dst=out[:, first:end], src=result)
    return out


@jit
def mix_tokens(x, streams, post, comb, block):
    """out[t, j] = post[t, j] x[t] + sum_i comb[t, i, j] streams[t, i]: tokens on partitions, `block` columns at a time.

    x: [T, H], streams: [T, S, H], post: [T, S], comb: [T, S, S]; T <= 128, each core has half of H.
    """
    T, S, H = streams.shape
    out = nl.ndarray(streams.shape, streams.dtype, buffer=nl.shared_hbm)
    begin, share = _mine(H)
    post_sbuf = nl.ndarray((T, S), post.dtype, buffer=nl.sbuf)
    comb_sbuf = nl.ndarray((T, S, S), comb.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=post_sbuf, src=post)
    nisa.dma_copy(dst=comb_sbuf, src=comb)
    for first in range(begin, begin + share, block):
        end = min(first + block, begin + share)
        x_sbuf = nl.ndarray((T, end - first), x.dtype, buffer=nl.sbuf)
        in_sbuf, sums_sbuf = (nl.ndarray((T, S, end - first), x.dtype, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(dst=x_sbuf, src=x[:, first:end])
        nisa.dma_copy(dst=in_sbuf, src=streams[:, :, first:end])
        for j in range(S):
            nisa.tensor_scalar(dst=sums_sbuf[:, j], data=x_sbuf, op0=nl.multiply, operand0=post_sbuf[:, j : j + 1])
            for i in range(S):
                nisa.scalar_tensor_tensor(
                    dst=sums_sbuf[:, j], data=in_sbuf[:, i], op0=nl.multiply, operand0=comb_sbuf[:, i, j : j + 1],
                    op1=nl.add, operand1=sums_sbuf[:, j],
                )  # fmt: skip
        nisa.dma_copy(dst=out[:, :, first:end], src=sums_sbuf)
    return out


@jit
def mix_hidden(x, streams, post, comb):
    """The same with a core's half of H on the partitions, in runs of H / 256 elements, for all T tokens at once."""
    T, S, H = streams.shape
    out = nl.ndarray(streams.shape, streams.dtype, buffer=nl.shared_hbm)
    begin, share = _mine(H)
    run = share // P
    x_sbuf = nl.ndarray((P, T, run), x.dtype, buffer=nl.sbuf)
    in_sbuf, sums_sbuf, term_sbuf = (nl.ndarray((P, T, S, run), x.dtype, buffer=nl.sbuf) for _ in range(3))
    post_sbuf = nl.ndarray((P, T, S), post.dtype, buffer=nl.sbuf)
    comb_sbuf = nl.ndarray((P, T, S, S), comb.dtype, buffer=nl.sbuf)
    rows = [[run, P], [S * H, T], [H, S], [1, run]]
    nisa.dma_copy(dst=post_sbuf, src=post.ap(pattern=[[0, P], [S, T], [1, S]], offset=0))
    nisa.dma_copy(dst=comb_sbuf, src=comb.ap(pattern=[[0, P], [S * S, T], [S, S], [1, S]], offset=0))
    nisa.dma_copy(dst=x_sbuf, src=x.ap(pattern=[[run, P], [H, T], [1, run]], offset=begin))
    nisa.dma_copy(dst=in_sbuf, src=streams.ap(pattern=rows, offset=begin))
    of_x = x_sbuf.expand_dim(2).broadcast(2, S)
    nisa.tensor_tensor(dst=sums_sbuf, data1=of_x, data2=post_sbuf.expand_dim(3).broadcast(3, run), op=nl.multiply)
    for i in range(S):
        stream, factor = in_sbuf[:, :, i].expand_dim(2).broadcast(2, S), comb_sbuf[:, :, i].expand_dim(3)
        nisa.tensor_tensor(dst=term_sbuf, data1=stream, data2=factor.broadcast(3, run), op=nl.multiply)
        nisa.tensor_tensor(dst=sums_sbuf, data1=sums_sbuf, data2=term_sbuf, op=nl.add)
    nisa.dma_copy(dst=out.ap(pattern=rows, offset=begin), src=sums_sbuf)
    return out


@jit
def matmul_blocks(lhs, rhs, m, n, k):
    """lhs [K, M] transposed, times rhs [K, N], in blocks of at most m x n x k tiles of 128 x 512 x 128.

    Sums stand in fp32 tiles of a block's columns, onto which Vector adds a bank for each block of K; the last DMA
    rounds. Every DMA of a load fills a part of a block's tile.
    """
    K, M, N = lhs.shape[0], lhs.shape[1], rhs.shape[1]
    m, n, k = _divisor(M // P, m), _divisor(N // BANK, n), _divisor(K // P, k)
    out = nl.ndarray((M, N), lhs.dtype, buffer=nl.shared_hbm)
    for n0 in range(0, N, n * BANK):
        sums = [nl.ndarray((P, n, BANK), nl.float32, buffer=nl.sbuf) for _ in range(M // P)]
        for each in sums:
            nisa.memset(dst=each, value=0.0)
        for k0 in range(0, K, k * P):
            right = nl.ndarray((P, k, n * BANK), rhs.dtype, buffer=nl.sbuf)
            for i in range(k):
                nisa.dma_copy(dst=right[:, i], src=rhs[k0 + i * P : k0 + (i + 1) * P, n0 : n0 + n * BANK])
            for m0 in range(0, M // P, m):
                left = nl.ndarray((P, k, m * P), lhs.dtype, buffer=nl.sbuf)
                for i in range(k):
                    rows = slice(k0 + i * P, k0 + (i + 1) * P)
                    nisa.dma_copy(dst=left[:, i], src=lhs[rows, m0 * P : (m0 + m) * P])
                for column in range(n):
                    for row in range(m):
                        bank = nl.ndarray((P, BANK), nl.float32, buffer=nl.psum)
                        for i in range(k):
                            nisa.nc_matmul(
                                dst=bank,
                                stationary=left[:, i, row * P : (row + 1) * P],
                                moving=right[:, i, column * BANK : (column + 1) * BANK],
                            )
                        part = sums[m0 + row][:, column]
                        nisa.tensor_tensor(dst=part, data1=part, data2=bank, op=nl.add)
        for row in range(M // P):
            rows = slice(row * P, (row + 1) * P)
            nisa.dma_copy(dst=out[rows, n0 : n0 + n * BANK], src=sums[row].reshape((P, n * BANK)))
    return out


@jit
def matmul_tiles(lhs, rhs):
    """lhs [K, M] transposed, times rhs [K, N]: both tiles of each matmul are loaded for it, each into its own tile."""
    K, M, N = lhs.shape[0], lhs.shape[1], rhs.shape[1]
    out = nl.ndarray((M, N), lhs.dtype, buffer=nl.shared_hbm)
    for m0 in range(0, M, P):
        for n0 in range(0, N, BANK):
            bank = nl.ndarray((P, BANK), nl.float32, buffer=nl.psum)
            for k0 in range(0, K, P):
                left = nl.ndarray((P, P), lhs.dtype, buffer=nl.sbuf)
                right = nl.ndarray((P, BANK), rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=lhs[k0 : k0 + P, m0 : m0 + P])
                nisa.dma_copy(dst=right, src=rhs[k0 : k0 + P, n0 : n0 + BANK])
                nisa.nc_matmul(dst=bank, stationary=left, moving=right)
            result = nl.ndarray((P, BANK), out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=bank)
            nisa.dma_copy(dst=out[m0 : m0 + P, n0 : n0 + BANK], src=result)
    return out


@jit
def copy_rows(x):
    """x [N, F] through SBUF, 128 rows at a time."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for first in range(0, x.shape[0], P):
        tile = nl.ndarray((P, x.shape[1]), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[first : first + P])
        nisa.dma_copy(dst=out[first : first + P], src=tile)
    return out


def _divisor(count, most):
    """The largest divisor of `count` up to `most`."""
    return max(i for i in range(1, min(count, most) + 1) if count % i == 0)
