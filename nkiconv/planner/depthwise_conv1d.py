"""The depthwise conv1d algorithms as the planner sees them: settings worth trying, work tiles, symbols."""

from __future__ import annotations

from collections.abc import Mapping

from ..kernels.depthwise_conv1d.call import Extras
from ..kernels.depthwise_conv1d.geometry import Geometry
from ..kernels.depthwise_conv1d.taps_on_partition import choose_tiling
from ..simulator.hardware import PARTITIONS
from .request import Config


def defaults(_geometry: Geometry, _extras: Extras, _wide: bool) -> list[Config]:
    """No settings: the kernel's own."""
    return [None]


def whole_tiles(_geometry: Geometry, _extras: Extras, _config: Config) -> int:
    """A channel a partition."""
    return PARTITIONS


def no_symbols(_geometry: Geometry, _extras: Extras, _config: Config) -> Mapping[str, int]:
    """No tiles to tell of."""
    return {}


def one_channel_unit(_geometry: Geometry, _extras: Extras, _config: Config) -> int:
    """A channel after the other."""
    return 1


def taps_on_partition_unit(geometry: Geometry, extras: Extras, config: Config) -> int:
    """The channel tile."""
    return taps_on_partition_symbols(geometry, extras, config)["c_tile"]


def taps_on_partition_symbols(geometry: Geometry, extras: Extras, _config: Config) -> Mapping[str, int]:
    """Tile sizes in elements."""
    tiling = choose_tiling(geometry, extras.strict_nonfinite)  # type: ignore[no-untyped-call]  # kernels are untyped
    fields = ("s_tile", "num_s_tiles", "channels_per_group", "c_tile", "q_tile", "q_load")
    return {field: getattr(tiling, field) for field in fields}
