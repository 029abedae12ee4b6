"""`taps_on_partition` on the host: a tile of columns loads its tiles of taps one after the other, then is read out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....kernels._tiles import PARTS, div_ceil
from ....kernels.depthwise_conv1d.taps_on_partition.kernel import taps_on_partition_refusal
from ....kernels.depthwise_conv1d.taps_on_partition.tiling import choose_tiling, load_instructions, span_of
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape
from .banded import ALGORITHM as BANDED
from .banded import runs_banded
from .common import rows_loaded_us

#: ns to begin and end; of a channel tile's filters; of a padded row's way to the read-out beside what its length takes:
#: the zeros of the next one are made after it.
ENDS_NS = 2500.0
FILTERS_NS = 1200.0
STAGED_NS = 3800.0
#: Taps for which `banded`, which is faster wherever it runs, may have no room.
MANY_TAPS = 16_384


class TapsOnPartition(Algorithm):
    """x is read once for each tap."""

    def guesses(self, shape: Shape) -> list[Guess]:
        if taps_on_partition_refusal(shape.geometry, shape.extras, None, shape.cores):
            return []
        if runs_banded(shape) and (shape.geometry.S < MANY_TAPS or BANDED.guesses(shape)):
            return []
        return [Guess(None, kernel_ns(shape, tiling_of(shape)))]

    def unit(self, shape: Shape, config: Config) -> int:
        return self.symbols(shape, config)["c_tile"]

    def least_us(self, shape: Shape, config: Config) -> float:
        return rows_loaded_us(shape)

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        tiling = tiling_of(shape)
        fields = ("s_tile", "num_s_tiles", "channels_per_group", "c_tile", "q_tile", "q_load")
        return {field: getattr(tiling, field) for field in fields}

    def settled(self, shape: Shape, config: Config) -> Any:
        return tiling_of(shape)


def tiling_of(shape: Shape) -> Any:
    """The kernel's tiling."""
    return choose_tiling(shape.geometry, shape.extras.strict_nonfinite)


def kernel_ns(shape: Shape, tiling: Any) -> float:
    """ns of a core."""
    geometry = shape.geometry
    tiles = div_ceil(div_ceil(geometry.C, tiling.c_tile), PARTS)
    groups = div_ceil(min(geometry.C, tiles * tiling.c_tile), tiling.channels_per_group)
    image_ns = 0.0
    for q0 in range(0, geometry.Q, tiling.q_load):
        loads_ns, staged_ns = columns_ns(shape, tiling, q0, min(tiling.q_load, geometry.Q - q0))
        image_ns += groups * loads_ns + tiles * (shape.target.static_issue_ns + staged_ns)
    return float(ENDS_NS + tiles * FILTERS_NS + geometry.N * image_ns)


def columns_ns(shape: Shape, tiling: Any, q0: int, qn: int) -> tuple[float, float]:
    """(ns of a group's loads or matmuls for these columns, ns more of a channel tile where rows are padded)."""
    geometry, extras, target = shape.geometry, shape.extras, shape.target
    column_ns = target.tensor_column_fp32_ns if geometry.itemsize == 4 else target.tensor_column_ns
    matmuls = div_ceil(qn, tiling.q_tile)
    tensor_ns = max(matmuls * target.matmul_columns_min, qn) * column_ns + matmuls * target.matmul_ns
    row_ns = target.row_ns((qn - 1) * geometry.stride + 1, 1, geometry.itemsize)
    loads_ns, padded = 0.0, 0
    for s0 in range(0, geometry.S, tiling.s_tile):
        sn = min(tiling.s_tile, geometry.S - s0)
        span = span_of(geometry, extras, s0, sn, q0, qn)
        if span.skipped:
            continue
        rows = min(PARTITIONS, tiling.channels_per_group * sn)
        dmas = load_instructions(span)
        if dmas > 1:
            padded = span.size
            dmas -= 1
        loads_ns += max(dmas * target.hwdge_again_ns, tensor_ns, min(rows, target.rows_an_engine) * row_ns)
    if not padded:
        return loads_ns, 0.0
    zeros_ns = padded * target.vector_memset_ns + target.run_ns(padded * geometry.itemsize)
    return loads_ns, STAGED_NS + zeros_ns + qn * target.vector_ns


ALGORITHM = TapsOnPartition()
