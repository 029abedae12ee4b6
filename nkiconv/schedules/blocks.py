"""Settings of `blocks`: filter gradients with a block of gy on each partition."""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator.hardware import PSUM_BANK_FP32_ELEMS
from .settings import BY_SHAPE, Settings, count, double, half, less, more, warm_up

#: Tiles of blocks that are loaded at once, at most.
BUFFERS_MAX = 64
_BANK = PSUM_BANK_FP32_ELEMS


def _other(now: int) -> int:
    return 1 - now


@dataclass(frozen=True)
class BlocksSettings(Settings):
    """All settings."""

    algorithm = "blocks"
    tried = ("buffers", "rows", "columns", "outputs", "inputs", "warmup", "split")

    rows: int = count("rows of gy of a block; a partition holds one", 1, _BANK, near=BY_SHAPE)
    columns: int = count("columns of gy of a block", 1, _BANK, near=BY_SHAPE)
    channels: int = count("input channels of an accumulator", 1, _BANK)
    outputs: int = count("accumulators of a pass along output channels, 128 each", 1, _BANK, near=(half, double))
    inputs: int = count("accumulators of a pass along input channels", 1, _BANK, near=(less, more, double))
    beside: int = count(
        "columns of gy packed along an accumulator's rows, where the last output channels leave room: 1, 2 or 4", 1, 4
    )
    side: int = count("row tiles, each with its part of a pass's input channels: 1, 2 or 4", 1, 4, default=1)
    buffers: int = count("tiles of blocks that are loaded at once", 1, BUFFERS_MAX, near=(less, more, double))
    pixels: int = count(
        "of NCHW: 1: DMA transposes lines; 2: the Tensor Engine transposes x and gy; 0: they stay in memory order",
        0,
        2,
        default=0,
    )
    split: int = count("1: the cores share blocks, whose sums they add; 0: accumulators", 0, 1, near=(_other,))
    warmup: int = warm_up(0, near=(0, 28, 44, 60, 80))
