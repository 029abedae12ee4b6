"""A back-to-back gated convolution in one kernel: tiles of 128 channels, spans of their tokens, pieces of a bank."""

from __future__ import annotations

from dataclasses import dataclass

from .long_kernels import too_many
from .tiles import BANK_COLUMNS, P_MAX, PARTS, Part, cut_at, div_ceil, fits_sbuf

#: Tokens of a span, which is one load and one store, in runs of 4 KB of bf16; spans in SBUF at once.
SPAN, SPANS = 2048, 3
#: Whether Vector adds the last tap of x2, x1, v and the mixer to Tensor's sums; else Scalar and GpSimd do, which leaves
#: the sums in SBUF, as Vector multiplies no two operands in PSUM.
ON_VECTOR = (False, True, False, True)
#: Most taps of a channel with which diagonals take less time than two launches, one of them `banded`.
TAPS_MAX = 20
#: Least full pieces with which one kernel takes less time than two, and their least share of all pieces.
FULL_PIECES, FULL_SHARE = 16, 0.75
#: Least tokens with which GpSimd, which makes diagonals, takes less time than the Tensor Engine.
TOKENS_MIN = 2 * BANK_COLUMNS


@dataclass(frozen=True)
class Span:
    """Tokens first .. first + count - 1 of image n, of channels c0 .. c0 + rows - 1."""

    n: int
    c0: int
    rows: int
    first: int
    count: int


@dataclass(frozen=True)
class B2bGeometry:
    """y [N, D, T] of x [N, 3 * D, T]: `short` taps of the projections, `taps` of the mixer."""

    N: int
    D: int
    T: int
    short: int
    taps: int
    itemsize: int

    @property
    def filters(self) -> list[Part]:
        """(first tap, how many) of x2, x1, v and the mixer, among all of a channel."""
        return [*((chunk * self.short, self.short) for chunk in range(3)), (3 * self.short, self.taps)]

    @property
    def all_taps(self) -> int:
        """Taps of a channel."""
        return 3 * self.short + self.taps

    @property
    def tiles(self) -> int:
        """Channel tiles of all images."""
        return self.N * div_ceil(self.D, P_MAX)

    @property
    def bytes(self) -> int:
        """Bytes a partition of SBUF that are live at once."""
        rows = SPANS * (3 * (SPAN + self.short) + 2 * SPAN + self.taps) * self.itemsize
        return rows + 2 * self.all_taps * (P_MAX * self.itemsize + 4) + 16 * 4 * BANK_COLUMNS

    def spans(self, tiles: Part) -> list[Span]:
        """Spans of tiles (first, how many), image by image."""
        channels, found = cut_at(self.D, P_MAX), []
        for index in range(tiles[0], tiles[0] + tiles[1]):
            n, tile = divmod(index, len(channels))
            # sums begin after a short load, and end with a short store
            begin, end = (BANK_COLUMNS * (index == one) for one in (tiles[0], tiles[0] + tiles[1] - 1))
            found += [Span(n, *channels[tile], *part) for part in _cut(self.T, begin, end)]
        return found


def _cut(count: int, begin: int, end: int) -> list[Part]:
    """(first, how many) of spans: one of `begin` tokens and one of `end` at the ends, if not 0 and if both fit."""
    if count < begin + end:
        return cut_at(count, BANK_COLUMNS)
    middle = [(begin + first, size) for first, size in cut_at(count - begin - end, SPAN)]
    return [part for part in ((0, begin), *middle, (count - end, end)) if part[1]]


def unsupported_reason(geometry: B2bGeometry) -> str:
    """Why the problem has no schedule; "" if it has one."""
    taps = f"proj of {geometry.short} taps, mixer of {geometry.taps}"
    if min(geometry.short, geometry.taps) < 2:
        return f"{taps}: must have 2 or more; put zeros in front of one"
    if not fits_sbuf(geometry.bytes):
        return f"{taps}: their diagonals must fit SBUF; use two launches"
    matmuls = geometry.tiles * div_ceil(geometry.T, BANK_COLUMNS) * geometry.all_taps
    return too_many(f"{taps}, D={geometry.D}, T={geometry.T}: b2b", matmuls / PARTS)


def pays(geometry: B2bGeometry) -> bool:
    """Whether one kernel takes less time than two: with 16 bits, few taps, and tokens enough for the diagonals of a
    tile, if most pieces of both cores are full."""
    full = geometry.N * geometry.D * geometry.T / (P_MAX * BANK_COLUMNS)
    pieces = PARTS * div_ceil(geometry.tiles, PARTS) * div_ceil(geometry.T, BANK_COLUMNS)
    few = geometry.all_taps <= TAPS_MAX and geometry.itemsize == 2 and geometry.T >= TOKENS_MIN
    return few and full >= max(FULL_PIECES, FULL_SHARE * pieces) and unsupported_reason(geometry) == ""
