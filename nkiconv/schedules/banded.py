"""Settings of `banded`: depthwise rows as products with banded matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..simulator.hardware import PARTITIONS
from .settings import SHARDS, Config, Settings, choice, count, double, flag, half, less, more, setting, warm_up


def _other(now: bool) -> bool:
    return not now


def _two_more(now: int) -> int:
    return now + 2


@dataclass(frozen=True)
class BandedSettings(Settings):
    """All settings; a search finds neighbours of block, edge, shard and images by the shape."""

    algorithm = "banded"
    tried = (
        *("scratch", "rewarm", "edge", "buffers", "warmup", "block", "groups", "buffer_groups", "shard", "images"),
        "streamed",
    )

    block: int = count(
        "positions of a channel on neighbouring partitions, a multiple of the stride",
        1,
        PARTITIONS,
        near=(half, double),
    )
    shard: str = choice("axis that the two cores share", SHARDS, near=SHARDS)
    groups: int = count("groups of a tile, at most; times images at most 128", 1, PARTITIONS, near=(half, double))
    images: int = count("images of a tile, at most", 1, PARTITIONS, near=(half, double))
    buffer_groups: int = count("groups of a band buffer, at most", 1, PARTITIONS, near=(double, half))
    buffers: int = count("band buffers in rotation", 1, PARTITIONS, near=(more, _two_more, less))
    scratch: bool = flag(
        "whether bands are read from a copy of the padded filters in HBM, not one by one from SBUF",
        default="by shape",
        near=(_other,),
    )
    edge: int = count("groups of the first and the last tile; 0: as the others", 0, PARTITIONS, default=0, near=(0, 2))
    streamed: int = count("columns of a matmul, at least", 1, PARTITIONS, default=96, near=(half, double))
    warmup: int = warm_up("by shape", most=PARTITIONS, near=(0, 12))
    rewarm: int = count("matmuls on zeros before the first bands", 0, PARTITIONS, near=(0, 12))
    bands_first: bool = flag("whether groups of the first tile go before their share of the second tile's rows")


def banded_config_refusal(geometry: Any, config: Config) -> str:
    """What is wrong with a config for this geometry; "" if nothing is."""
    reason = BandedSettings.refusal(config)
    if reason != "":
        return reason
    block = setting(config, "block", geometry.stride)
    if block > PARTITIONS or block % geometry.stride != 0:
        return (
            f"block={block}, stride={geometry.stride}: a block is 1 to {PARTITIONS} positions and a multiple of the "
            f"stride; use another block, mixed or taps_on_partition"
        )
    images, groups = setting(config, "images", 1), setting(config, "groups", 1)
    if images * groups > PARTITIONS:
        return f"config images={images}, groups={groups}: their product must not exceed {PARTITIONS}; use smaller tiles"
    return ""
