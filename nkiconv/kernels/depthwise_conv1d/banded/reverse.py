"""Filters whose taps are in reverse order, as the gradient by x reads them, for algorithms that read them in order.

`mixed` and `vector` number taps in memory order, `banded` reverses them on their way; the others get a copy in HBM,
which each core makes for itself.
"""

from dataclasses import replace

from ..._nki import nisa, nl
from ...schedules.depthwise import FEW_TAPS, flips
from ...schedules.tiles import BANK_COLUMNS, cut, cut_at, whole_words
from .._dma import copy
from .._masks import select_ones


def copy_forwards(algorithm, operands, geometry, exact):
    """(operands, geometry), where an algorithm needs it those of a copy [C, S] with taps in order; exact: see
    `taps_mirror`."""
    if not flips(algorithm, geometry):
        return operands, geometry
    S, dtype = geometry.S, operands.w.dtype
    mirror_sbuf = taps_mirror(S, dtype, exact)
    forwards_hbm = nl.ndarray((geometry.C, S), dtype=dtype, buffer=nl.private_hbm)
    for part in cut(geometry.C, nl.tile_size.pmax):
        c0, cn = part
        raw_sbuf = nl.ndarray((cn, S), dtype=dtype, buffer=nl.sbuf)
        copy(raw_sbuf, operands.w.ap(pattern=[[geometry.w_c, cn], [geometry.w_s, S]], offset=c0 * geometry.w_c))
        found_sbuf = nl.ndarray((cn, S), dtype=dtype, buffer=nl.sbuf)
        turn_taps(found_sbuf, raw_sbuf, mirror_sbuf)
        copy(forwards_hbm[c0 : c0 + cn, 0:S], found_sbuf)
    return replace(operands, w=forwards_hbm), replace(geometry, w_c=S, w_s=1, flipped=False)


def taps_mirror(taps, dtype, exact):
    """[128, 128] in SBUF, 1 where row + column = 127, by which the array turns many taps; None for few, or exact, so
    that NaN and Inf do not reach other taps of their channel."""
    if exact or taps <= FEW_TAPS:
        return None
    return select_ones(nl.tile_size.pmax, [[1, nl.tile_size.pmax]], 1 - nl.tile_size.pmax, dtype)


def turn_taps(dst_sbuf, src_sbuf, mirror_sbuf):
    """[channels, taps] in reverse order: tap by tap, or with a mirror 128 at a time, which the array transposes and
    multiplies by it."""
    rows, taps = src_sbuf.shape
    if mirror_sbuf == None:
        for tap in range(taps):
            engine = nisa.engine.vector if tap % 2 == 0 else nisa.engine.scalar
            src = src_sbuf[0:rows, taps - 1 - tap : taps - tap]
            nisa.tensor_copy(dst=dst_sbuf[0:rows, tap : tap + 1], src=src, engine=engine)
        return
    P_MAX, together = nl.tile_size.pmax, BANK_COLUMNS // nl.tile_size.pmax
    whole = taps // P_MAX
    groups = []
    for some in cut_at(whole, together):
        groups.append((some[0] * P_MAX, some[1], P_MAX))
    if taps > whole * P_MAX:
        groups.append((whole * P_MAX, 1, taps - whole * P_MAX))
    for group in groups:
        turn_group(dst_sbuf, src_sbuf, mirror_sbuf, group)


def turn_group(dst_sbuf, src_sbuf, mirror_sbuf, group):
    """(first tap, blocks, taps of each) of a bank, by Scalar: Vector zeros what loads of x wait for."""
    first, blocks, count = group
    rows, taps = src_sbuf.shape
    P_MAX, size = nl.tile_size.pmax, blocks * count
    even = whole_words(rows, 2)
    turned_psum = nl.ndarray((count, blocks, even), dtype=src_sbuf.dtype, buffer=nl.psum)
    for block in range(blocks):
        src = src_sbuf[0:rows, first + block * count : first + (block + 1) * count]
        nisa.nc_transpose(dst=turned_psum[0:count, block, 0:rows], data=src, engine=nisa.engine.tensor)
    turned_sbuf = nl.ndarray((count, blocks, rows), dtype=src_sbuf.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=turned_sbuf, src=turned_psum[0:count, 0:blocks, 0:rows], engine=nisa.engine.scalar)
    mirrored_psum = nl.ndarray((rows, size), dtype=nl.float32, buffer=nl.psum)
    for block in range(blocks):
        nisa.nc_matmul(
            dst=mirrored_psum[0:rows, size - (block + 1) * count : size - block * count],
            stationary=turned_sbuf[0:count, block, 0:rows],
            moving=mirror_sbuf[0:count, P_MAX - count : P_MAX],
            accumulate=False,
        )
    dst = dst_sbuf[0:rows, taps - first - size : taps - first]
    nisa.tensor_copy(dst=dst, src=mirrored_psum, engine=nisa.engine.scalar)
