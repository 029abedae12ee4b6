"""Settings of `phases`: transposed convolutions, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator.hardware import PARTITIONS, SBUF_USABLE_BYTES_PER_PARTITION
from .settings import ALL, WARM_UPS, Settings, choice, count, double, double_up_to, half, warm_up

#: Phases that share the columns of a stationary: none, those along columns, along rows and columns, or all.
BESIDE = ("none", "columns", "rows", "planes")
#: Axes along which segments lie.
ALONG = ("planes", "rows", "columns")
SHARDS = ("channels", "outputs")
Y_BYTES = 16_384
#: Banks that accumulate together, at most, so that two are left for what follows.
TOGETHER_MAX = 7
#: Matmuls on zeros that a search tries beside WARM_UPS.
WARM_UP = 30
_ROOM = SBUF_USABLE_BYTES_PER_PARTITION


@dataclass(frozen=True)
class PhasesSettings(Settings):
    """All settings."""

    algorithm = "phases"
    tried = ("y_bytes", "together", "warmup", "shard", "channels")

    shard: str = choice(
        "what the two cores share: channels of y, or outputs",
        SHARDS,
        default=lambda geometry: SHARDS[0] if geometry.K >= 2 * PARTITIONS else SHARDS[1],
        near=ALL,
    )
    channels: int = count(
        "output channels of an M tile", 1, PARTITIONS, default=PARTITIONS, near=(half, double_up_to(PARTITIONS))
    )
    beside: str = choice("phases packed along the columns of a stationary", BESIDE, default="none")
    segments: int = count("segments of x packed along the partitions", 1, 4, default=1)
    along: str = choice("axis along which segments are neighbours", ALONG, default="columns")
    y_bytes: int = count(
        "results of an output tile", 256, _ROOM, default=Y_BYTES, near=(half, double), unit="bytes per partition"
    )
    together: int = count(
        "banks that accumulate together for a core's first results, K tile by K tile",
        1,
        TOGETHER_MAX,
        default=4,
        near=(1, 4, TOGETHER_MAX),
    )
    warmup: int = warm_up(20, near=(*WARM_UPS, WARM_UP))
