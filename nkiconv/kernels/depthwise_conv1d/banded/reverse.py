"""Filters whose taps `banded` reverses on their way, as for the gradient by x: `mixed` and `vector` number the taps in
memory order, the others read them in order alone.
"""

from ...._nki import nisa, nl
from ....schedules.depthwise import FEW_TAPS
from ....schedules.tiles import BANK_COLUMNS, cut_at, whole_words
from ..._masks import select_ones


def taps_mirror(taps, dtype):
    """[128, 128] in SBUF, 1 where row + column = 127, by which the array reverses many taps; None for few."""
    if taps <= FEW_TAPS:
        return None
    return select_ones(nl.tile_size.pmax, [[1, nl.tile_size.pmax]], 1 - nl.tile_size.pmax, dtype)


def reverse_taps(dst_sbuf, src_sbuf, mirror_sbuf):
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
        reverse_group(dst_sbuf, src_sbuf, mirror_sbuf, group)


def reverse_group(dst_sbuf, src_sbuf, mirror_sbuf, group):
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
