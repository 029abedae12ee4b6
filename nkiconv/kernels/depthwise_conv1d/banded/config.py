"""Settings of `banded`: what each says, and what is wrong with some."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import FLAG, setting, settings_refusal
from ..parts import SHARDS


@dataclass(frozen=True)
class BandedConfig(nl.NKIObject):
    """All settings; as (name, value) pairs they are what `Plan.config` holds."""

    #: positions of a channel that lie on partitions side by side: 1 .. 128, a multiple of the stride
    block: int
    #: the axis that two cores share: one of SHARDS
    shard: str
    #: groups and images of a tile at most, 128 rows together
    groups: int
    images: int
    #: groups of a band buffer at most, and band buffers in turn: 1 .. 128
    buffer_groups: int
    buffers: int
    #: whether bands are read from a copy of the padded filters in HBM, many channels at once, or one by one from SBUF
    scratch: bool
    #: groups of the first and the last tile: 0 .. 128, 0: as the others
    edge: int
    #: columns of a matmul at least: 1 .. 128
    streamed: int
    #: matmuls on zeros before the first rows are transposed, and before the first bands: 0 .. 128
    warmup: int
    rewarm: int
    #: whether groups of the first tile go before their share of the second tile's rows
    bands_first: bool


def banded_config_refusal(geometry, config):
    """What is wrong with names, values or a product of some settings; "" if nothing is."""
    most = nl.tile_size.pmax
    table = (
        ("block", (1, most)),
        ("shard", SHARDS),
        ("groups", (1, most)),
        ("images", (1, most)),
        ("buffer_groups", (1, most)),
        ("buffers", (1, most)),
        ("scratch", FLAG),
        ("edge", (0, most)),
        ("streamed", (1, most)),
        ("warmup", (0, most)),
        ("rewarm", (0, most)),
        ("bands_first", FLAG),
    )
    reason = settings_refusal(config, table, "banded")
    if reason != "":
        return reason
    block = setting(config, "block", geometry.stride)
    if block > most or block % geometry.stride != 0:
        return (
            f"block={block}, stride={geometry.stride}: a block is 1 to {most} positions and a multiple of the stride; "
            f"use another block, mixed or vector"
        )
    images, groups = setting(config, "images", 1), setting(config, "groups", 1)
    if images * groups > most:
        return f"config images={images}, groups={groups}: their product must not exceed {most}; use smaller tiles"
    return ""
