"""Sums over channels that are on partitions, in banks of PSUM, and numbers of channels, by tiles of them."""

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, QUADRANT, cut_at
from ..._prologue import load_numbers


def multiply(filters, columns, tiles, moving):
    """filters^T moving, [column, bank, images, pixels], each bank in one of PSUM.

    Args:
        filters: [channel, tile, column]; columns: (first, how many) of them. tiles: (first, how many) channels of each
            tile. moving: [channel, tile, bank, images, pixels].
    """
    (first, count), (_, _, banks, nn, pn) = columns, moving.shape
    acc_psum = nl.ndarray((count, banks, BANK_COLUMNS), dtype=nl.float32, buffer=nl.psum)
    pattern = [[banks * BANK_COLUMNS, count], [BANK_COLUMNS, banks], [pn, nn], [1, pn]]
    acc_psum = acc_psum.ap(pattern=pattern, offset=0)
    for index, (_, cn) in enumerate(tiles):
        for bank in range(banks):
            nisa.nc_matmul(
                dst=acc_psum[0:count, bank, 0:nn, 0:pn],
                stationary=filters[0:cn, index, first : first + count],
                moving=moving[0:cn, index, bank, 0:nn, 0:pn],
                accumulate=index > 0,
            )
    return acc_psum


def alike(tiles):
    """Tiles (first, how many) in runs of as many."""
    found = []
    for one in tiles:
        if found and found[-1][-1][1] == one[1]:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def load_columns(hbm, tiles):
    """Numbers of channels in HBM, [channel, tile] fp32 in SBUF; None where there are none."""
    if hbm == None:
        return None
    found_sbuf = nl.ndarray((tiles[0][1], len(tiles)), dtype=nl.float32, buffer=nl.sbuf)
    for run in alike(tiles):
        for at, count in cut_at(len(run), QUADRANT):
            (first, channels), tile = run[at], tiles.index(run[at])
            dst = found_sbuf[0:channels, tile : tile + count]
            load_numbers(dst, 0, hbm, [[channels, count], [0, 1], [1, channels]], first)
    return found_sbuf


def column(numbers_sbuf, index, tiles):
    """[channel, 1] of a tile; None of none."""
    return None if numbers_sbuf == None else numbers_sbuf[0 : tiles[index][1], index : index + 1]
