"""Settings of phases."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._warm import WARM_UP_MAX

PHASES_SHARDS = ("channels", "outputs")
#: Phases that share the columns of a stationary: none, those along columns, along rows and columns, or all.
BESIDE = ("none", "columns", "rows", "planes")
#: Axes along which segments lie.
ALONG = ("planes", "rows", "columns")
#: Bytes a partition of x of one band, and of its results; of filters that are there together.
PHASES_X_BYTES = 32_768
PHASES_Y_BYTES = 16_384
PHASES_FILTER_BYTES = 90_112
PHASES_WARM_UP = 20
#: Most banks of sums that are made together, so that two are left for what follows; most bands whose x is on its way.
TOGETHER_MAX = 7
AHEAD_MAX = 8


@dataclass(frozen=True)
class PhasesConfig(nl.NKIObject):
    """All settings."""

    #: what the two cores share: "channels" of the output, or "outputs"
    shard: str
    #: output channels of a job, 1 to 128
    channels: int
    #: phases beside each other in the columns of a stationary, one of BESIDE
    beside: str
    #: segments of x beside each other on the partitions, and the axis along which they are neighbours
    segments: int
    along: str
    #: bytes a partition of x of one band, and of its results, from 256
    x_bytes: int
    y_bytes: int
    #: bytes a partition of filters that are there together, from 256
    filter_bytes: int
    #: banks of sums that are made together for a core's first results, chunk by chunk of x, 1 to TOGETHER_MAX
    together: int
    #: bands whose x is on its way while one is worked on, 1 to AHEAD_MAX
    ahead: int
    #: matmuls of 128 columns on zeros before the first filters, 0 to WARM_UP_MAX
    warmup: int


def phases_config_refusal(config):
    """What is wrong with names and values, "" if nothing is."""
    room, P_MAX = nl.tile_size.total_available_sbuf_size, nl.tile_size.pmax
    table = (("shard", PHASES_SHARDS), ("channels", (1, P_MAX)), ("beside", BESIDE), ("segments", (1, 4)))
    table = table + (("along", ALONG), ("x_bytes", (256, room)), ("y_bytes", (256, room)))
    table = table + (("filter_bytes", (256, room)), ("together", (1, TOGETHER_MAX)), ("ahead", (1, AHEAD_MAX)))
    return settings_refusal(config, table + (("warmup", (0, WARM_UP_MAX)),), "phases")


def phases_config(geometry, config):
    """All settings: those of a config, and for the others those of a kernel that is called without."""
    P_MAX = nl.tile_size.pmax
    return PhasesConfig(
        shard=setting(config, "shard", "channels" if geometry.K >= 2 * P_MAX else "outputs"),
        channels=setting(config, "channels", P_MAX),
        beside=setting(config, "beside", "none"),
        segments=setting(config, "segments", 1),
        along=setting(config, "along", "columns"),
        x_bytes=setting(config, "x_bytes", PHASES_X_BYTES),
        y_bytes=setting(config, "y_bytes", PHASES_Y_BYTES),
        filter_bytes=setting(config, "filter_bytes", PHASES_FILTER_BYTES),
        together=setting(config, "together", 4),
        ahead=setting(config, "ahead", 1),
        warmup=setting(config, "warmup", PHASES_WARM_UP),
    )
