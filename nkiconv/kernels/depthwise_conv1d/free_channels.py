"""Tiles with channels on the free dim: [rows, channels of a row, columns], and their DMAs.

Row p, channel r of a ChannelBlock is channel c0 + p * length + r of the convolution.
"""

from dataclasses import dataclass

from ..._nki import nisa, nl
from ...schedules.tiles import div_ceil
from .._dma import copy_either_way


@dataclass
class ChannelBlock(nl.NKIObject):
    """A range of channels: row p has channels c0 + p * length + r, r < length, those below c0 + count."""

    c0: int
    count: int
    length: int


def channel_block(c0, count, rows):
    """The ChannelBlock of these channels with as many on a row as `rows` rows take."""
    return ChannelBlock(c0=c0, count=count, length=div_ceil(count, rows))


def channel_halves(C, rows):
    """All channels in two blocks, for two cores, on one core too; one channel is a block of its own."""
    half = div_ceil(C, 2)
    if C == 1:
        return [channel_block(0, 1, rows)]
    return [channel_block(0, half, rows), channel_block(half, C - half, rows)]


def row_start(block, row):
    """First channel of a row: row * length, or earlier so that it ends with the block."""
    return block.c0 + min(row * block.length, block.count - block.length)


def full_rows(block):
    """(rows of a block that have all their channels, channels of the row after them)."""
    return block.count // block.length, block.count % block.length


def row_runs(block, r0, rn):
    """(first row, rows, channels) of what there is of channels r0 .. r0+rn-1 of each row: full rows, and the rest."""
    rows, rest = full_rows(block)
    more = max(0, min(rn, rest - r0))
    runs = []
    if rows > 0:
        runs.append((0, rows, rn))
    if more > 0:
        runs.append((rows, 1, more))
    return runs


def move_free(tile_sbuf, tensor_hbm, block, r0, places, load):
    """[rows, channels r0 onwards, columns] from HBM to SBUF or back: the channels that exist; zeros for others.

    places: HBM elements between channels and between columns, and where the block begins but for its c0.
    """
    c_step, q_step, offset = places
    rn, columns = tile_sbuf.shape[1], tile_sbuf.shape[2]
    if load and full_rows(block)[0] < tile_sbuf.shape[0]:
        nisa.memset(dst=tile_sbuf, value=0.0)
    for run in row_runs(block, r0, rn):
        row, rows, channels = run
        part_sbuf = tile_sbuf[row : row + rows, 0:channels, 0:columns]
        part_hbm = tensor_hbm.ap(
            pattern=[[block.length * c_step, rows], [c_step, channels], [q_step, columns]],
            offset=offset + (block.c0 + row * block.length + r0) * c_step,
        )
        copy_either_way(part_sbuf, part_hbm, not load)
