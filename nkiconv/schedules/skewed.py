"""Settings of `skewed`: gradients of depthwise filters by skewed diagonals of products."""

from __future__ import annotations

from dataclasses import dataclass

from ._settings import Settings, count, double, half, less, more, warm_up

#: Channels that may share a matmul.
BESIDE = (1, 2, 4, 8, 16)
GROUPS_MAX = 128


@dataclass(frozen=True)
class SkewedSettings(Settings):
    """All settings."""

    algorithm = "skewed"
    tried = ("groups", "buffers", "warmup")

    beside: int = count("channels that share a matmul: 1, 2, 4, 8 or 16", 1, 16)
    shifts: int = count(
        "or, of one channel, parts of its taps, at most; several without stride and dilation only", 1, 32
    )
    groups: int = count("matmuls of channels of a batch, at most", 1, GROUPS_MAX, near=(half, double))
    buffers: int = count("batches whose x and gy are loaded at once", 2, 8, default=3, near=(less, more))
    warmup: int = warm_up(28, near=(0, 28, 56))
