"""Settings of deep."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from .tiling import QUADRANT, deep_fits, make_deep, most_columns

DEEP_SETTINGS = ("shard", "taps", "filter_bytes", "buffers", "warmup")
DEEP_SHARDS = ("contraction", "channels")
BUFFERS_MAX = 16
DEEP_WARM_UP_MAX = 256
#: Of `deep_defaults`: output channels up to which cores share the contraction, if x has so many bytes, or if there are
#: so many products an output channel; matmuls on zeros, and bytes a partition of first filters in the time of one more.
FEW_OUTPUTS, LARGE_BYTES, DEEPEST = 64, 458_752, 4096
WARM_UP_LEAST, WARM_UP_BYTES = 14, 170


@dataclass(frozen=True)
class DeepConfig(nl.NKIObject):
    """How deep works: see plan.py."""

    #: what two cores share: the "contraction", or "channels" of the output
    shard: str
    #: columns of taps beside each other in the array's columns (T), 1 to 4
    taps: int
    #: bytes a partition of a piece's filters, if one row of taps is no more, 256 to all of SBUF
    filter_bytes: int
    #: pieces that are loaded ahead, 2 to 16
    buffers: int
    #: matmuls of 128 columns on zeros before the first filters, 0 to 256
    warmup: int


def deep_config_refusal(config):
    """Why a config is none of deep's by its names and values, or ""."""
    most, whole = nl.tile_size.pmax, nl.tile_size.total_available_sbuf_size
    reason = config_refusal(config, DEEP_SETTINGS, "deep")
    if reason == "":
        reason = numbers_refusal(config, (("taps", 1, most // QUADRANT), ("filter_bytes", 256, whole)))
    if reason == "":
        reason = numbers_refusal(config, (("buffers", 2, BUFFERS_MAX), ("warmup", 0, DEEP_WARM_UP_MAX)))
    if reason == "":
        shard = setting(config, "shard", DEEP_SHARDS[0])
        if shard not in DEEP_SHARDS:
            reason = f"config shard={shard}: accepted are {DEEP_SHARDS}; use one of them"
    return reason


def deep_settings(shard, taps, warmup):
    """The DeepConfig of what shapes decide, and of what is the same for all."""
    return DeepConfig(shard=shard, taps=taps, filter_bytes=16_384, buffers=3, warmup=warmup)


def deep_defaults(geometry, extras):
    """Settings of a kernel that is called without any: few channels share the contraction of large x, or a very deep
    one; as many columns of taps as there is room for, or one; those of them that fit."""
    taps = geometry.rows.taps * geometry.columns.taps
    x_bytes = geometry.N * geometry.C * geometry.rows.size * geometry.columns.size * geometry.itemsize
    shards = ("channels", "contraction")
    if geometry.K <= FEW_OUTPUTS and (x_bytes >= LARGE_BYTES or geometry.C * taps // geometry.K >= DEEPEST):
        shards = ("contraction", "channels")
    piece = min(16_384, min(geometry.C, nl.tile_size.pmax) * taps * geometry.itemsize)
    found = deep_settings(shards[0], 1, WARM_UP_LEAST + piece // WARM_UP_BYTES)
    for index in range(len(shards)):
        most = 1 if extras.strict_nonfinite else most_columns(geometry, shards[index])
        for T in (most, 1):
            tried = deep_settings(shards[index], T, found.warmup)
            if deep_fits(geometry, extras, make_deep(geometry, tried)):
                return tried
    return found


def deep_config(geometry, extras, config):
    """The DeepConfig of a config that is not refused: what that leaves open is as in `deep_defaults`."""
    given = 0 if config == None else len(config)
    if given == len(DEEP_SETTINGS):
        return read_deep(config, deep_settings(DEEP_SHARDS[0], 1, 0))
    return read_deep(config, deep_defaults(geometry, extras))


def read_deep(config, defaults):
    """The DeepConfig of a config; what that leaves open is as in `defaults`, or one column for another share."""
    shard = setting(config, "shard", defaults.shard)
    return DeepConfig(
        shard=shard,
        taps=setting(config, "taps", defaults.taps if shard == defaults.shard else 1),
        filter_bytes=setting(config, "filter_bytes", defaults.filter_bytes),
        buffers=setting(config, "buffers", defaults.buffers),
        warmup=setting(config, "warmup", defaults.warmup),
    )
