"""Channels on the free dim: row p, channel r of a ChannelBlock is channel c0 + p * length + r of the convolution."""

from __future__ import annotations

from dataclasses import dataclass

from .tiles import div_ceil


@dataclass(frozen=True)
class ChannelBlock:
    """A range of channels: row p has channels c0 + p * length + r, r < length, up to c0 + count."""

    c0: int
    count: int
    length: int


def channel_block(c0: int, count: int, rows: int) -> ChannelBlock:
    """The ChannelBlock of these channels on at most `rows` rows."""
    return ChannelBlock(c0=c0, count=count, length=div_ceil(count, rows))


def channel_halves(C: int, rows: int) -> list[ChannelBlock]:
    """All channels in two blocks, for two cores, and alike on one core; a single channel is one block."""
    half = div_ceil(C, 2)
    if C == 1:
        return [channel_block(0, 1, rows)]
    return [channel_block(0, half, rows), channel_block(half, C - half, rows)]


def row_start(block: ChannelBlock, row: int) -> int:
    """First channel of a row: row * length, or earlier so that it ends with the block."""
    return block.c0 + min(row * block.length, block.count - block.length)


def full_rows(block: ChannelBlock) -> tuple[int, int]:
    """(rows of a block that have all their channels, channels of the row after them)."""
    return block.count // block.length, block.count % block.length


def row_runs(block: ChannelBlock, r0: int, rn: int) -> list[tuple[int, int, int]]:
    """(first row, rows, channels) of channels r0 .. r0+rn-1 of each row: rows with all, and the rest of the next."""
    rows, rest = full_rows(block)
    rows += rest >= r0 + rn
    runs = [(0, rows, rn), (rows, 1, block.count - rows * block.length - r0)]
    return [one for one in runs if one[1] > 0 and one[2] > 0]
