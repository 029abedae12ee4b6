"""Settings of `taps_on_partition`: what each says and may be, and what a kernel takes that is called without.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import FLAG, setting, settings_refusal

#: Most columns of a loaded tile: four banks of PSUM accumulate, the other four are being read out meanwhile.
TAPS_COLUMNS_MOST = 2048
#: Strides up to which strided rows are loaded as whole runs without a config.
RUN_STRIDE_MOST = 64


@dataclass(frozen=True)
class TapsOnPartitionConfig(nl.NKIObject):
    """Every setting."""

    #: channels of a tile of results at most, 1 to 128; fewer where their filters do not fit
    channels: int
    #: columns of a loaded tile at most, 1 to 2048; fewer where they do not fit
    columns: int
    #: whether rows are loaded with the elements that a stride leaves out, which matmuls then step over
    whole_runs: bool


def taps_on_partition_defaults(geometry):
    """Settings without a config."""
    return TapsOnPartitionConfig(
        channels=nl.tile_size.pmax, columns=TAPS_COLUMNS_MOST, whole_runs=geometry.stride <= RUN_STRIDE_MOST
    )


def read_taps_on_partition(config, defaults):
    """The TapsOnPartitionConfig of (name, value) pairs; what they leave open is as in `defaults`."""
    return TapsOnPartitionConfig(
        channels=setting(config, "channels", defaults.channels),
        columns=setting(config, "columns", defaults.columns),
        whole_runs=setting(config, "whole_runs", defaults.whole_runs),
    )


def taps_on_partition_config_refusal(config):
    """What is wrong with the names and values of a config; "" if nothing is."""
    table = (("channels", (1, nl.tile_size.pmax)), ("columns", (1, TAPS_COLUMNS_MOST)), ("whole_runs", FLAG))
    return settings_refusal(config, table, "taps_on_partition")
