"""Settings of `narrow`: M packing with shift-and-add."""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator.hardware import (
    PARTITIONS,
    PSUM_BANK_FP32_ELEMS,
    QUADRANT_PARTITIONS,
    SBUF_USABLE_BYTES_PER_PARTITION,
)
from .settings import WARM_UPS, Settings, count, double, half, less, more, warm_up

X_BYTES = 4_096
BUFFERS_MAX = 64
#: Of all matmuls on zeros, those before the filters come; the others follow while filters are placed.
WARM_UP_FIRST = 9
#: All of them, for the Tensor Engine to be at its full rate then.
WARM_UP = 28
_QUADRANTS = PARTITIONS // QUADRANT_PARTITIONS


@dataclass(frozen=True)
class NarrowSettings(Settings):
    """All settings; outputs and taps are given together."""

    algorithm = "narrow"
    tried = ("x_bytes", "buffers", "blocks", "images", "shared", "warmup", "depth", "lanes")

    outputs: int = count("rows of y packed along the columns", 1, PARTITIONS)
    depth: int = count(
        "planes of y packed beside those; the planes of x that several see are channels",
        1,
        PARTITIONS,
        default=1,
        near=(less, more),
    )
    taps: int = count("columns of taps packed along the columns", 1, _QUADRANTS)
    lanes: int = count(
        "images packed along the partitions, each on a row tile", 1, _QUADRANTS, default=1, near=(half, double)
    )
    blocks: int = count(
        "blocks of rows of an accumulator, at most",
        1,
        PSUM_BANK_FP32_ELEMS,
        default=PSUM_BANK_FP32_ELEMS,
        near=(half, less),
    )
    images: int = count(
        "images of an accumulator, at most", 1, PSUM_BANK_FP32_ELEMS, default=PSUM_BANK_FP32_ELEMS, near=(half, double)
    )
    x_bytes: int = count(
        "one load of x; one row is loaded in any case",
        256,
        SBUF_USABLE_BYTES_PER_PARTITION,
        default=X_BYTES,
        near=(half, double),
        unit="bytes a partition",
    )
    buffers: int = count(
        "tiles of x that loads rotate through; at least what an accumulator needs", 2, BUFFERS_MAX, near=(half, double)
    )
    shared: int = count("1: Scalar and GpSimd take additions from Vector", 0, 1, default=0, near=(0, 1))
    warmup: int = warm_up("by shape", near=WARM_UPS)
