"""Settings of `skewed`: gradients of depthwise filters by skewed diagonals of products."""

from __future__ import annotations

from dataclasses import dataclass

from .settings import Settings, count, double, half

#: Channels that may share a matmul.
BESIDE = (1, 2, 4, 8, 16)
GROUPS_MAX = 128


@dataclass(frozen=True)
class SkewedSettings(Settings):
    """All settings."""

    algorithm = "skewed"
    tried = ("groups",)

    beside: int = count("channels that share a matmul: 1, 2, 4, 8 or 16", 1, 16)
    shifts: int = count(
        "or, of one channel, parts of its taps, at most; several without stride and dilation only", 1, 32
    )
    groups: int = count("matmuls of channels of a batch, at most", 1, GROUPS_MAX, near=(half, double))
