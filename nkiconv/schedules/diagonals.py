"""Settings of `diagonals`: filter gradients by diagonals of products of a block of gy and its window of x."""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator.hardware import PARTITIONS, PSUM_BANK_FP32_ELEMS
from .settings import Settings, count, double, half, less, more, warm_up

#: Tiles of units that are loaded at once where nobody says.
BUFFERS = 3
_BANK = PSUM_BANK_FP32_ELEMS


def _half_up(now: int) -> int:
    return (now + 1) // 2


@dataclass(frozen=True)
class DiagonalsSettings(Settings):
    """All settings."""

    algorithm = "diagonals"
    tried = ("buffers", "groups", "down", "across", "warmup")

    rows: int = count("rows of gy of a block", 1, PARTITIONS)
    columns: int = count("columns of gy of a block", 1, PARTITIONS)
    down: int = count("blocks of a unit along rows", 1, _BANK, near=(_half_up, double))
    across: int = count("blocks of a unit along columns", 1, _BANK, near=(_half_up, double))
    beside: int = count("groups of the convolution whose channels share a product; divides them", 1, _BANK)
    side: int = count("row tiles, each with groups of its own: 1, 2 or 4", 1, 4)
    groups: int = count(
        "sets of groups that share products, of a row tile in a pass", 1, _BANK, near=(half, less, more, double)
    )
    below: int = count("groups whose sums take a part of the partitions each: 1, 2 or 4", 1, 4, default=1)
    buffers: int = count("tiles of units that are loaded at once", 1, 16, default=BUFFERS, near=(less, more))
    strips: int = count(
        "1: tiles follow each other down strips of planes and copy the rows of x that they share; 0: each loads its "
        "windows",
        0,
        1,
    )
    split: int = count("1: the cores share tiles of units, whose sums they add; 0: groups", 0, 1, default=0)
    warmup: int = warm_up(0, near=(0, 20, 40, 80))
