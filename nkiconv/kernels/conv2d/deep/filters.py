"""Filters of deep: pieces [(chunk, k), c, r, s] as loaded, turned into stationaries [c, chunk, (tap, k)]."""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..._tiles import whole_words
from .tiling import most_taps, products_of, ring_size, turned_taps


def fill_ring(ring, operands, geometry, deep):
    """Buffers [c, chunk, taps, slot] that pieces take in turn, once; columns that are nobody's are zero."""
    shape = (deep.depth, deep.together, most_taps(deep), deep.slot)
    while len(ring) < ring_size(geometry, deep):
        tile_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
        if deep.gaps:
            words = tile_sbuf.reshape((shape[0], shape[1] * shape[2] * shape[3]))
            if operands.w_dtype != nl.float32:
                words = words.view(nl.float32)
            nisa.memset(dst=words, value=0.0, engine=nisa.engine.gpsimd if len(ring) == 1 else nisa.engine.vector)
        ring.append(tile_sbuf)


def load_piece(operands, geometry, deep, job, piece):
    """[(chunk, k), c, r, s] in SBUF of a plain filter; every chunk is loaded as if it had as many channels as the
    last one of all, which has the most."""
    k0, kn = job.blocks[piece.block]
    r0, rn, s0, sn = piece.taps
    raw_sbuf = nl.ndarray((piece.count * kn, deep.depth, rn, sn), dtype=operands.w_dtype, buffer=nl.sbuf)
    pattern = [[geometry.w_k, kn], [geometry.w_c, deep.depth], [geometry.w_r, rn], [geometry.w_s, sn]]
    for index in range(piece.count):
        c0 = job.chunks[piece.first + index][0]
        offset = k0 * geometry.w_k + c0 * geometry.w_c + r0 * geometry.w_r + s0 * geometry.w_s
        copy(
            raw_sbuf[index * kn : (index + 1) * kn, 0 : deep.depth, 0:rn, 0:sn],
            operands.w.ap(pattern=pattern, offset=offset),
        )
    return raw_sbuf


def load_packed(operands, geometry, deep, job, piece, stationary_sbuf):
    """A piece of a packed filter straight into its stationary: each row of taps from each of the filter's own blocks of
    output channels that it has part of."""
    k0, kn = job.blocks[piece.block]
    c0, cn = job.chunks[piece.first]
    taps, each = geometry.rows.taps * geometry.columns.taps, geometry.packed
    turned = turned_taps(products_of(geometry, deep.T, piece.taps))
    first = 0
    while first < len(turned):
        tap = tap_at(geometry, turned[first])
        count = 1
        while first + count < len(turned) and tap_at(geometry, turned[first + count]) == tap + count:
            count += 1
        for block in range(k0 // each, (k0 + kn - 1) // each + 1):
            low, high = max(k0, block * each), min(k0 + kn, (block + 1) * each)
            copy(
                stationary_sbuf[0:cn, 0, first : first + count, low - k0 : high - k0],
                operands.w.ap(
                    pattern=[[taps * each, cn], [each, count], [1, high - low]],
                    offset=((block * geometry.C + c0) * taps + tap) * each + low - block * each,
                ),
            )
        first += count


def tap_at(geometry, place):
    """Where a tap (r, s) stands among all."""
    return place[0] * geometry.columns.taps + place[1]


def turn_step(raw_sbuf, geometry, deep, job, piece, step, stationary_sbuf, ledger):
    """Taps of a step of a piece into its stationary: transposes to one bank of PSUM, then one read-out."""
    kn = job.blocks[piece.block][1]
    rows, num = piece.count * kn, step.taps
    turned = turned_taps(products_of(geometry, deep.T, piece.taps))
    turned_psum = nl.ndarray(
        (deep.depth, num, whole_words(rows, geometry.itemsize)), dtype=raw_sbuf.dtype, buffer=nl.psum
    )
    for index in range(num):
        r, s = turned[step.tap + index]
        nisa.nc_transpose(
            dst=turned_psum[0 : deep.depth, index, 0:rows],
            data=raw_sbuf[0:rows, 0 : deep.depth, r - piece.taps[0], s - piece.taps[2]],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(
        dst=stationary_sbuf[0 : deep.depth, 0 : piece.count, step.tap : step.tap + num, 0:kn],
        src=turned_psum[0 : deep.depth, 0:num, 0:rows].reshape_dim(2, (piece.count, kn)).permute((0, 2, 1, 3)),
        engine=pick(ledger, num * rows, is_16bit(raw_sbuf.dtype)),
    )
