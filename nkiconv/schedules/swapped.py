"""Settings of `swapped`: activation-stationary."""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator.hardware import PARTITIONS, SBUF_USABLE_BYTES_PER_PARTITION
from .settings import BY_SHAPE, WARM_UPS, Config, Settings, choice, count, double, half, setting, warm_up

SHARDS = ("channels", "images")
_ROOM = SBUF_USABLE_BYTES_PER_PARTITION


@dataclass(frozen=True)
class SwappedSettings(Settings):
    """All settings."""

    algorithm = "swapped"
    tried = ("shard", "side", "fold", "x_bytes", "filter_bytes", "warmup")

    shard: str = choice(
        "what the two cores share: channels of y, or images and their rows; with fold > 1 these",
        SHARDS,
        near=("images", "channels"),
    )
    side: int = count("neighbouring pixels of a partition", 1, 4096, near=BY_SHAPE)
    fold: int = count(
        "rows of y in the columns of the Tensor Engine, with as many times stride rows of x on its rows",
        1,
        PARTITIONS,
        near=(1, 2, 3, 4, 6, 8),
    )
    x_bytes: int = count(
        "x of an output tile, two of which are loaded at once", 64, _ROOM, default=32_768, near=(half, double),
        unit="bytes per partition",
    )  # fmt: skip
    filter_bytes: int = count(
        "filters of a weight-resident group",
        64,
        _ROOM,
        default=118_784,
        near=(half, double),
        unit="bytes per partition",
    )
    warmup: int = warm_up(28, near=WARM_UPS)


def read_swapped(config: Config, shard: str, side: int, fold: int) -> SwappedSettings:
    """All settings of a config; what that leaves open is as given here, but for what does not go together."""
    fold = setting(config, "fold", 1 if setting(config, "shard", "images") == "channels" else fold)
    return SwappedSettings.read(config, shard="images" if fold > 1 else shard, side=side, fold=fold)
