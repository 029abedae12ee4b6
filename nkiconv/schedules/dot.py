"""Settings of `dot`, and which of its two ways a problem takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..simulator.hardware import PARTITIONS
from .settings import Config, Settings, count, double, flag, half, setting, warm_up

#: Slots of a stationary that a config can ask for, and lags of a block with `wide`: a bank holds 128 slots of x of 4
#: channels, 31 of which are beyond the lags.
BLOCKS, LAGS_MOST = (1, 2, 4, 8, 16), 97
#: Most columns with masks; and lags beyond which `wide` is faster, more for few slots, as its blocks of lags are
#: large, and where a core has less than a tile and waits for HBM.
COLUMNS_MIN = 64
WIDE_FROM, WIDE_FROM_SLOTS = 10, 32
WIDE_FROM_FEW, WIDE_FROM_FEW_SLOTS = 12, 320
#: Matmuls on zeros, and with masks rows from which they pay.
WARM_UP, MANY_ROWS = 24, 1024
#: Work is shared out in two parts, on one core too.
_PARTS = 2


@dataclass(frozen=True)
class DotSettings(Settings):
    """All settings."""

    algorithm = "dot"
    tried = ("block", "slots", "warmup")

    wide: bool = flag(
        "whether lags are put in step by a way through HBM, not by masks", default=lambda geometry: is_wide(geometry)
    )
    slots: int = count("slots of a chunk of taps, at most; fewer where they do not fit", 1, 128, near=(half, double))
    lags: int = count("lags of a block with wide, at most; fewer if they do not fit", 1, LAGS_MOST, default=LAGS_MOST)
    block: int = count("slots of a stationary with masks: 1, 2, 4, 8 or 16", 1, 16, default=8, near=(2, 4, 8, 16))
    warmup: int = warm_up("by shape", near=(0, WARM_UP))


def dot_settings(geometry: Any, config: Config) -> DotSettings:
    """All settings of a config."""
    wide = setting(config, "wide", is_wide(geometry))
    warm = WARM_UP if wide or geometry.N * geometry.C >= MANY_ROWS else 0
    return DotSettings.read(config, geometry, slots=64 if wide else 32, warmup=warm)


def dot_config_refusal(config: Config) -> str:
    """What is wrong with a config; "" if nothing is."""
    reason = DotSettings.refusal(config)
    if reason != "":
        return reason
    block = setting(config, "block", 1)
    return "" if block in BLOCKS else f"config block={block}: must be 1, 2, 4, 8 or 16 slots of a stationary"


def is_wide(geometry: Any) -> bool:
    """Whether there are so many lags that `wide` is faster, or more columns than there may be without it."""
    common = math.gcd(geometry.stride, geometry.dilation)
    slots = -(-geometry.S // (geometry.stride // common * PARTITIONS))
    lags = -(-geometry.Q // (geometry.dilation // common))
    fewest = WIDE_FROM + WIDE_FROM_SLOTS // slots
    if geometry.N * geometry.C < _PARTS * PARTITIONS:
        fewest = WIDE_FROM_FEW + WIDE_FROM_FEW_SLOTS // slots
    return bool(geometry.Q > COLUMNS_MIN or lags > fewest)
