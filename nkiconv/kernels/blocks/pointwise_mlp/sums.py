"""Sums over channels on partitions, in banks of PSUM, and loads of values per channel, by tiles of channels."""

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, QUADRANT, cut_at
from ..._prologue import load_numbers


def multiply(filters, columns, tiles, moving):
    """filters^T moving, [column, bank, images, pixels], one bank of PSUM for each bank of pixels.

    Args:
        filters: [channel, tile, column]; columns: (first, count) of columns. tiles: (first, count) of the channels of
            each tile. moving: [channel, tile, bank, images, pixels].
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
    """(index of the first, count, its first channel, channels of each) of the whole tiles, and of the last tile if it
    has fewer channels."""
    whole = sum(count == tiles[0][1] for _, count in tiles)
    return [(at, many, *tiles[at]) for at, many in ((0, whole), (whole, len(tiles) - whole)) if many > 0]


def load_columns(hbm, tiles):
    """Load values per channel from HBM as [channel, tile] fp32 in SBUF; None for None."""
    if hbm == None:
        return None
    found_sbuf = nl.ndarray((tiles[0][1], len(tiles)), dtype=nl.float32, buffer=nl.sbuf)
    for tile, many, first, channels in alike(tiles):
        for at, count in cut_at(many, QUADRANT):
            dst = found_sbuf[0:channels, tile + at : tile + at + count]
            load_numbers(dst, 0, hbm, [[channels, count], [0, 1], [1, channels]], first + at * channels)
    return found_sbuf


def column(numbers_sbuf, index, tiles):
    """A tile's values [channel, 1]; None for None."""
    return None if numbers_sbuf == None else numbers_sbuf[0 : tiles[index][1], index : index + 1]
