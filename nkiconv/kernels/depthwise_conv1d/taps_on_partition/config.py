"""Settings of `taps_on_partition`: what each says and may be, and what a kernel takes that is called without.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal

#: Most columns of a loaded tile: four banks of PSUM accumulate, the other four are being read out meanwhile.
TAPS_COLUMNS_MOST = 2048


@dataclass(frozen=True)
class TapsOnPartitionConfig(nl.NKIObject):
    """Every setting."""

    #: channels of a tile of results at most, 1 to 128; fewer where their filters do not fit
    channels: int
    #: columns of a loaded tile at most, 1 to 2048; fewer where they do not fit
    columns: int


def read_taps_on_partition(config):
    """The TapsOnPartitionConfig of (name, value) pairs; what they leave open is as large as can be."""
    return TapsOnPartitionConfig(
        channels=setting(config, "channels", nl.tile_size.pmax), columns=setting(config, "columns", TAPS_COLUMNS_MOST)
    )


def taps_on_partition_config_refusal(config):
    """What is wrong with the names and values of a config; "" if nothing is."""
    table = (("channels", (1, nl.tile_size.pmax)), ("columns", (1, TAPS_COLUMNS_MOST)))
    return settings_refusal(config, table, "taps_on_partition")
