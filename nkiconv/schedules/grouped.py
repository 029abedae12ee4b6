"""Settings of `grouped`: small groups on row tiles of the Tensor Engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..simulator.hardware import PARTITIONS
from .settings import WARM_UPS, Config, Settings, count, setting, warm_up

#: Rows of a row tile that are worth it, and the outputs of a block: with both, what stands in the columns begins where
#: engines may address partitions.
TILE_ROWS = (32, 64)
BLOCKS = ((2, 2), (1, 4), (4, 1), (1, 2), (2, 1))


@dataclass(frozen=True)
class GroupedSettings(Settings):
    """All settings; the first three are given together."""

    algorithm = "grouped"
    tried = ("buffers", "warmup")

    rows: int = count("rows of a row tile: 32 or 64", 1, PARTITIONS)
    height: int = count("rows of outputs of a block", 1, PARTITIONS)
    width: int = count("columns of outputs of a block", 1, PARTITIONS)
    buffers: int = count("tiles of x that loads rotate through", 2, PARTITIONS, default=4, near=(2, 3, 4, 6, 8))
    warmup: int = warm_up(24, near=WARM_UPS)


def grouped_config_refusal(geometry: Any, config: Config) -> str:
    """What is wrong with a config for this geometry; "" if nothing is."""
    reason = GroupedSettings.refusal(config)
    if reason != "":
        return reason
    rows, height, width = (setting(config, name, 0) for name in ("rows", "height", "width"))
    if (rows, height, width) == (0, 0, 0):
        return ""
    given = f"config rows={rows} height={height} width={width}"
    if rows not in TILE_ROWS or (height, width) not in BLOCKS:
        return f"{given}: given together, rows one of {TILE_ROWS}, (height, width) one of {BLOCKS}"
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    if per_c > rows or per_k > PARTITIONS // (height * width):
        return f"{given}: a group takes {per_c} rows and height * width * {per_k} of {PARTITIONS} columns"
    return ""
