"""`update` on the host: the stages as the kernel has them, by who multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....schedules.tiles import PARTS, div_ceil
from ....schedules.update import (
    UpdateSettings,
    build,
    group_limits,
    parts_of,
    taps_met,
    unsupported,
    update_settings,
)
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, pairs_of
from ..clock import skew

#: ns from the first load to the first sums and from the last sums to the end of the last store, without what the
#: stages themselves take for the first and the last chunk, on few partitions; more where the array is at half rate with
#: fp32.
TENSOR_ENDS_NS = 2550.0
FP32_NS = 500.0
VECTOR_ENDS_NS = 2150.0
#: Instructions of Vector that a part takes beside products and sums, with what it waits for; that a chunk takes beside
#: one a column for its bands.
PART_INSTRUCTIONS = 4
CHUNK_INSTRUCTIONS = 3


class Update(Algorithm):
    """Images on partitions, for many short rows; or Vector alone, for few."""

    def settle(self, shape: Shape, config: Config) -> Config:
        if UpdateSettings.refusal(config):
            return config
        channels, groups = fill_bank(shape)
        given = {"channels": channels, "groups": groups, **dict(config or ())}
        settings = read_settings(shape, config_of(**given))
        if "engine" not in given:
            settings = replace(settings, engine=fastest(shape, settings))
        return pairs_of(settings)

    def guesses(self, shape: Shape) -> list[Guess]:
        found = []
        for engine, ns_of in (("tensor", tensor_ns), ("vector", vector_ns)):
            config = self.settle(shape, config_of(engine=engine))
            if not unsupported(shape.geometry, shape.extras, config, shape.cores):
                found.append(Guess(config, ns_of(shape, self._settings(shape, config))))
        return found

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [self.settle(shape, config_of(engine=engine)) for engine in ("tensor", "vector")]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        config = self.settle(shape, config)
        if dict(config or ())["engine"] == "vector":
            return []
        return list(UpdateSettings.near(config))

    def unit(self, shape: Shape, config: Config) -> int:
        settings = self._settings(shape, config)
        if settings.engine == "vector":
            return PARTITIONS
        plan = plan_of(shape, settings)
        return max(1, int(plan.pieces * plan.channels * plan.groups))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(plan_of(shape, self._settings(shape, config)))

    def settled(self, shape: Shape, config: Config) -> Any:
        settings = self._settings(shape, config)
        if settings.engine == "vector":
            return settings.engine
        return plan_of(shape, settings), settings.vector_reads, settings.warmup

    def _settings(self, shape: Shape, config: Config) -> Any:
        """All settings."""
        return read_settings(shape, self.settle(shape, config))


def read_settings(shape: Shape, config: Config) -> Any:
    """The kernel's settings of a config."""
    return update_settings(shape.geometry, shape.extras, config)


def plan_of(shape: Shape, settings: Any) -> Any:
    """The kernel's plan."""
    return build(shape.geometry, shape.extras.state, settings)


def fill_bank(shape: Shape) -> tuple[int, int]:
    """(channels of a group, groups) of the chunk whose channels take least: one and one where not even that fits."""
    target, columns = shape.target, shape.geometry.Q
    most, most_groups, room = group_limits(shape.geometry, shape.extras.state)
    chunk_ns = (columns + CHUNK_INSTRUCTIONS) * target.vector_fixed_ns
    group_ns = 2 * (PARTITIONS * target.tensor_column_ns + target.matmul_ns)  # a transpose and a matmul
    found = [(min(most, room // groups), groups) for groups in range(1, most_groups + 1)]
    ways = [one for one in found if one[0]] or [(1, 1)]
    return min(ways, key=lambda one: (chunk_ns + one[1] * group_ns) / (one[0] * one[1]))


def fastest(shape: Shape, settings: Any) -> str:
    """Who multiplies: Vector where channels must stay apart, or where it is done first."""
    on_array_ns, on_vector_ns = tensor_ns(shape, settings), vector_ns(shape, settings)
    if shape.extras.strict_nonfinite or on_array_ns == 0.0 or 0.0 < on_vector_ns < on_array_ns:
        return "vector"
    return "tensor"


def tensor_ns(shape: Shape, settings: Any) -> float:
    """ns on the array: the slowest engine's work of all chunks, filters before them, the ends; 0 where nothing fits."""
    geometry, target, plan = shape.geometry, shape.target, plan_of(shape, settings)
    if plan.channels == 0:
        return 0.0
    kinds = 2 if plan.state > 0 else 1
    fp32 = geometry.itemsize == 4
    element_ns = target.vector_ns if fp32 else target.vector_16bit_ns
    every = div_ceil(div_ceil(div_ceil(geometry.C, PARTS), plan.pieces), plan.channels)
    chunks = div_ceil(every, min(plan.groups, every))
    channels = plan.pieces * plan.channels * min(plan.groups, every)
    bands_ns = kinds * geometry.Q * (target.vector_fixed_ns + channels * element_ns)
    dma_ns, chunk_ns = chunk_of(shape, plan, min(plan.groups, every), bands_ns)

    loaded = min(plan.filters, every)
    met = [taps_met(geometry, geometry.W, geometry.pad_left, q)[1] for q in range(geometry.Q)]
    placed = sum(0 < taps < geometry.W for taps in met)
    placed_ns = placed * 2 * (target.vector_fixed_ns + plan.channels * geometry.W * target.vector_16bit_ns)
    made_ns = kinds * (placed_ns + geometry.Q * (target.vector_fixed_ns + loaded * plan.pieces * element_ns))
    row_ns = target.row_ns(plan.channels * geometry.S, geometry.w_s, geometry.itemsize)
    taps_ns = min(target.rows_an_engine, plan.pieces * loaded) * row_ns
    first_ns = made_ns + taps_ns + bands_ns + dma_ns
    filters_ns = (div_ceil(every, plan.filters) - 1) * max(made_ns, taps_ns)
    ends_ns = TENSOR_ENDS_NS + (FP32_NS if fp32 else 0.0) + skews_ns(target, plan.pieces * plan.pitch)
    return float(ends_ns + first_ns + filters_ns + plan.image_tiles * chunks * chunk_ns)


def chunk_of(shape: Shape, plan: Any, groups: int, bands_ns: float) -> tuple[float, float]:
    """(ns of a chunk's DMAs, ns of a chunk) of so many groups: of the engine that takes longest."""
    geometry, target = shape.geometry, shape.target
    kinds = 2 if plan.state > 0 else 1
    columns, item, fp32 = geometry.Q, geometry.itemsize, geometry.itemsize == 4
    rows, width = plan.pieces * plan.pitch, plan.channels * groups
    passes = target.transpose_passes_fp32 if fp32 else 1
    slow = target.tensor_column_fp32_ns / target.tensor_column_ns if fp32 else 1
    transpose_ns = PARTITIONS * target.tensor_column_ns * passes + target.matmul_ns
    streamed = max(PARTITIONS, plan.pieces * plan.channels * columns)
    matmul_ns = slow * (streamed * target.tensor_column_ns + target.matmul_ns)
    tensor = groups * kinds * (transpose_ns + matmul_ns)
    read_elements = plan.pieces * width * columns
    read_ns = plan.pieces * target.vector_fixed_ns + read_elements * (target.vector_ns + target.scalar_ns) / 2
    moved_ns = kinds * (target.vector_fixed_ns + groups * rows * item * target.scalar_ns / 4)
    made_ns = bands_ns / plan.image_tiles
    busy_ns = max((made_ns + read_ns + moved_ns) / 2, made_ns, moved_ns)
    runs_ns = target.row_ns(width * geometry.W, geometry.x_w, item) + target.row_ns(width * columns, geometry.y_q, item)
    bytes_moved = rows * width * (geometry.W + columns) * item
    dma_ns = max(target.rows_an_engine * runs_ns, bytes_moved * target.hbm_byte_ns)
    issue_ns = 2 * kinds * plan.pieces * target.static_issue_ns
    return dma_ns, max(tensor, busy_ns, dma_ns, issue_ns)


def vector_ns(shape: Shape, settings: Any) -> float:
    """ns on Vector: for each column a product and a sum over the taps that meet the row, of all images of a part.

    0 where not even one image fits.
    """
    geometry, target, strict = shape.geometry, shape.target, shape.extras.strict_nonfinite
    state = geometry.pad_left if shape.extras.state else 0
    parts = parts_of(geometry, shape.extras)
    if not parts:
        return 0.0
    met = [taps_met(geometry, geometry.W, geometry.pad_left, q)[1] for q in range(geometry.Q)]
    before = [taps_met(geometry, state, 0, q)[1] if state else 0 for q in range(geometry.Q)]
    products = 2 * (geometry.S * geometry.Q if strict else sum(met) + sum(before))
    instructions = 2 * geometry.Q + sum(taps > 0 for taps in before)
    length, item = parts[0].block.length, geometry.itemsize
    images = div_ceil(geometry.N, PARTS) if geometry.C == 1 else geometry.N
    rounds = div_ceil(len(parts), PARTS)
    fixed_ns = (instructions + PART_INSTRUCTIONS) * rounds * target.vector_fixed_ns
    work_ns = fixed_ns + products * images * length * target.vector_ns
    runs_ns = target.row_ns(length * geometry.W, geometry.x_w, item)
    runs_ns += target.row_ns(length * geometry.Q, geometry.y_q, item)
    channels = min(PARTITIONS, div_ceil(parts[0].block.count, length))
    rows = min(target.rows_an_engine, channels)
    moved_ns = images * rows * runs_ns
    filter_ns = rows * target.row_ns(length * geometry.S, geometry.w_s, item)
    steady_ns = work_ns if rounds == 1 else max(work_ns, moved_ns)
    ends_ns = VECTOR_ENDS_NS + skews_ns(target, channels)
    return float(ends_ns + filter_ns + moved_ns / rounds + steady_ns)


def skews_ns(target: Target, rows: int) -> float:
    """ns that the last DMA engine of so many partitions begins later than the first, of a load and of a store."""
    return skew(target, rows, target.load_skew_ns + target.store_skew_ns)


ALGORITHM = Update()
