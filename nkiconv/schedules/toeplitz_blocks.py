"""Settings of `toeplitz_blocks`: depthwise conv2d as products with Toeplitz matrices of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator.hardware import PARTITIONS, PSUM_BANK_FP32_ELEMS
from .settings import BY_SHAPE, Settings, count, double, half

CHANNELS_MOST = 1024
#: Matmuls of 128 columns on zeros while the first x is loaded.
WARM_UP = 90


@dataclass(frozen=True)
class ToeplitzBlocksSettings(Settings):
    """All settings; beside * below * images is at most 128."""

    algorithm = "toeplitz_blocks"
    tried = ("buffers", "channels", "rows")

    rows: int = count(
        "rows from a block to the next, a multiple of stride and lhs_dilation", 1, PSUM_BANK_FP32_ELEMS, near=BY_SHAPE
    )
    columns: int = count(
        "columns of y of a window; with lhs_dilation a multiple of those that begin alike", 1, PSUM_BANK_FP32_ELEMS
    )
    disjoint: int = count(
        "1, of NCHW: windows share no column of x and a block has all rows that its rows of y see; 0: blocks share no "
        "row of x and a window has all columns",
        0,
        1,
        default=0,
    )
    beside: int = count("blocks of a row that one matmul takes; 1 of NCHW", 1, PARTITIONS)
    below: int = count("blocks of a column that one matmul takes", 1, PARTITIONS)
    images: int = count("images that one matmul takes", 1, PARTITIONS)
    channels: int = count("channels of a K tile; of NCHW at most 128", 1, CHANNELS_MOST, near=(half, double))
    together: int = count("K tiles whose matrices are loaded together", 1, CHANNELS_MOST, default=1)
    buffers: int = count("tiles of blocks in rotation", 2, 16, default=2, near=(2, 3, 4, 5))
