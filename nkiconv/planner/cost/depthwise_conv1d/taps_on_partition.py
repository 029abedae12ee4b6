"""`taps_on_partition` on the host."""

from __future__ import annotations

from collections.abc import Mapping

from ....kernels.depthwise_conv1d.taps_on_partition import (
    choose_tiling,
    taps_on_partition_ns,
    taps_on_partition_refusal,
)
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape
from .banded import runs_banded
from .common import rows_loaded_us


class TapsOnPartition(Algorithm):
    """x is read once for each tap."""

    def guesses(self, shape: Shape) -> list[Guess]:
        if runs_banded(shape) or taps_on_partition_refusal(shape.geometry, shape.extras, None, shape.cores):
            return []
        return [Guess(None, float(taps_on_partition_ns(shape.geometry, shape.extras)))]

    def unit(self, shape: Shape, config: Config) -> int:
        return self.symbols(shape, config)["c_tile"]

    def least_us(self, shape: Shape, config: Config) -> float:
        return rows_loaded_us(shape)

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        tiling = choose_tiling(shape.geometry, shape.extras.strict_nonfinite)
        fields = ("s_tile", "num_s_tiles", "channels_per_group", "c_tile", "q_tile", "q_load")
        return {field: getattr(tiling, field) for field in fields}


ALGORITHM = TapsOnPartition()
