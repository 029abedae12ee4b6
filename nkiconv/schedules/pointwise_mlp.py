"""Two 1x1 convolutions with an activation between: tiles of pixels whose hidden channels stay in SBUF."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

from .long_kernels import too_many
from .tiles import BANK_COLUMNS, P_MAX, PARTS, Part, cut, cut_at, fits_sbuf, share, some_of

#: Most PSUM banks of one activation.
BANKS = 2
#: Groups of pixels with x in SBUF at once; with hidden channels, residual and results in SBUF at once.
X_TILES, TILES = 3, 2
#: Pixels for each hidden channel with which a norm's weight and bias are applied to x: on Vector, which is busy then.
X_SCALED = 8
#: Bytes of filters from which cores share the hidden channels of one bank: with 2.4 MB their exchange takes as long.
SHARED_BYTES = 3 * 2**20


@dataclass(frozen=True)
class MlpGeometry:
    """y [N, K, pixels] of x [N, C, pixels] and M hidden channels."""

    N: int
    C: int
    M: int
    K: int
    pixels: int
    itemsize: int
    #: bytes of an element of the residual; 0: there is none
    residual_bytes: int
    #: norm of x's channels, of `pixel_norms.NORMS`; None: there is none
    norm: str | None = None

    @property
    def c_tiles(self) -> list[Part]:
        """Input channels by partitions."""
        return cut_at(self.C, P_MAX)

    @property
    def m_tiles(self) -> list[Part]:
        """Hidden channels by partitions."""
        return cut_at(self.M, P_MAX)

    @property
    def k_tiles(self) -> list[Part]:
        """Output channels by partitions."""
        return cut_at(self.K, P_MAX)

    @property
    def square_tiles(self) -> list[Part]:
        """Squares of x, summed over the tiles of channels, and eps, by partitions."""
        return cut_at(min(self.C, P_MAX) + 1, P_MAX)

    @property
    def square_part(self) -> float:
        """The factor of squares that makes their sum about their mean: a power of two, exact in every dtype."""
        return 2.0 ** -round(math.log2(self.C))

    @property
    def halves(self) -> list[Part]:
        """(first tile, how many) of hidden channels whose products are added up apart: one for each core if there is
        one bank of pixels, or all."""
        tiles, filters = len(self.m_tiles), self.M * (self.C + self.K) * self.itemsize
        sums = 3 * 4 * self.N * self.pixels * len(self.k_tiles)
        shared = len(self.banks) == 1 and tiles > 1 and filters >= SHARED_BYTES and fits_sbuf(self.bytes(1) + sums)
        return [share(tiles, PARTS, half) for half in range(PARTS)] if shared else [(0, tiles)]

    @property
    def scales_x(self) -> bool:
        """Whether the norm's weight and bias are applied to x, as filters have not many fewer elements."""
        return self.N * self.pixels <= X_SCALED * self.M

    @property
    def banks(self) -> list[tuple[Part, Part]]:
        """(images, pixels of each) of each bank of sums."""
        if self.pixels >= BANK_COLUMNS:
            parts = cut(self.pixels, BANK_COLUMNS)
            return [((n, 1), part) for n in range(self.N) for part in parts]
        return [(images, (0, self.pixels)) for images in cut(self.N, BANK_COLUMNS // self.pixels)]

    def groups(self, banks: list[tuple[Part, Part]]) -> list[list[tuple[Part, Part]]]:
        """The banks of each activation: neighbours with equally many columns."""
        runs = [list(some) for _, some in groupby(banks, key=lambda one: (one[0][1], one[1][1]))]
        return [some_of(some, part) for some in runs for part in cut_at(len(some), self.together)]

    @property
    def together(self) -> int:
        """Banks of a group, as many as fit; 0 if none fits."""
        return next((count for count in range(BANKS, 0, -1) if fits_sbuf(self.bytes(count))), 0)

    def bytes(self, together: int) -> int:
        """Bytes a partition of groups of so many banks, at most."""
        c, m, k = (len(tiles) for tiles in (self.c_tiles, self.m_tiles, self.k_tiles))
        filters = c * self.M + m * self.K
        pixels = together * max(images * count for (_, images), (_, count) in self.banks)
        each = self.itemsize * (X_TILES * c + TILES * m + TILES * k) + self.residual_bytes * TILES * k
        numbers = m + k + P_MAX  # biases, and the runs that they are loaded in
        if self.norm is not None:
            # matrices, normalised x, its fp32 source and squares, the bias and sums with filters
            filters += P_MAX + c
            centered = c if self.norm == "layer" else 0
            each += self.itemsize * TILES * c + 4 * TILES * centered + 4
            numbers += P_MAX + 2 * c + m + TILES * len(self.square_tiles) * together * BANK_COLUMNS
        # filters, and evacuations in two steps
        return self.itemsize * filters + pixels * each + 4 * numbers + 4 * BANK_COLUMNS


def unsupported_reason(geometry: MlpGeometry) -> str:
    """Why the problem has no schedule; "" if it has one."""
    extents = f"C={geometry.C}, hidden={geometry.M}, K={geometry.K}"
    if geometry.together == 0:
        return f"{extents}: filters and hidden channels of {BANK_COLUMNS} pixels must fit SBUF; use two conv2d"
    matmuls = len(geometry.banks) * len(geometry.m_tiles) * (len(geometry.c_tiles) + len(geometry.k_tiles))
    return too_many(f"{extents}, pixels={geometry.N * geometry.pixels}: pointwise_mlp", matmuls / PARTS)
