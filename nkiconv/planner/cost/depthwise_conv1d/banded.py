"""`banded` on the host: settings by their bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....schedules.banded import BandedSchedule, BandedSettings, build, shape_unsupported
from ....schedules.banded_rule import banded_settings, blocks_of, candidates, guess, near_of, starts
from ....schedules.tiles import BANK_COLUMNS
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, pairs_of, with_settings
from .common import row_elements_us, share_met, timed

#: Sizes and shards that a search starts from as the rule has them.
STARTS = 4


class Banded(Algorithm):
    """Band matrices over blocks of positions."""

    #: how many times the best block, up and down, a quick search starts from
    FACTORS = 2

    def guesses(self, shape: Shape) -> list[Guess]:
        found = guess(shape.geometry, shape.options, shape.cores, shape.target)
        return [Guess(pairs_of(settings), ns) for settings, ns in found]

    def refined(self, shape: Shape, guess: Guess) -> list[Guess]:
        found = candidates(shape.geometry, shape.options, None, shape.target)
        return [Guess(pairs_of(one), ns) for one, ns in timed(found, lambda one: self._same(shape, one))]

    def complete(self, shape: Shape, config: Config) -> Config:
        if shape_unsupported(shape.geometry, shape.options, config):
            return config
        return pairs_of(banded_settings(shape.geometry, shape.options, config, shape.target))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        if not runs_banded(shape):
            return [None]  # the kernel says why
        own = self.complete(shape, None)
        block = dict(own or ())["block"]
        sizes = sorted({*blocks_of(shape.geometry.stride), block})
        if not wide:
            sizes = [size for size in sizes if block <= size * self.FACTORS and size <= block * self.FACTORS]
        found = [own, *[self.complete(shape, config_of(block=size)) for size in sizes]]
        found += [pairs_of(one) for one, _ in starts(shape.geometry, shape.options, None, shape.target)[:STARTS]]
        if wide:  # small tiles at the ends have short runs, which constants may punish
            found += [with_settings(one, edge=0) for one in found if dict(one or ())["edge"] > 0]
        return list(dict.fromkeys(found))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(near_of(shape.geometry, self.completed(shape, config).settings))

    def _same(self, shape: Shape, settings: BandedSettings) -> Any:
        """What settings come to."""
        blocks = self._plan(shape, settings)
        names = (*vars(blocks), "scratch", "buffers", "streamed")
        return tuple(getattr(blocks, name, getattr(settings, name, None)) for name in names if name != "settings")

    def unit(self, shape: Shape, config: Config) -> int:
        blocks = self.completed(shape, config)
        return int(blocks.per_group * blocks.groups)

    def least_us(self, shape: Shape, config: Config) -> float:
        return max(least_ns(shape, self.completed(shape, config)) / 1e3, row_elements_us(shape))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        blocks = self.completed(shape, config)
        return {**ints(blocks), **ints(blocks.settings)}

    def completed(self, shape: Shape, config: Config) -> Any:
        return self._plan(shape, BandedSettings(**dict(self.complete(shape, config) or ())))

    def _plan(self, shape: Shape, settings: BandedSettings) -> BandedSchedule:
        found: BandedSchedule = build(shape.geometry, settings, shape.options.state)
        return found


def runs_banded(shape: Shape) -> bool:
    """Whether banded runs this, if it is not too large."""
    return str(shape_unsupported(shape.geometry, shape.options, None)) == ""


def least_ns(shape: Shape, blocks: BandedSchedule) -> float:
    """ns of the array that no timeline can beat: the bands' columns and the transposes, at full rate."""
    geometry, target = shape.geometry, shape.target
    fp32 = geometry.itemsize == 4
    column_ns = target.tensor_column_ns + target.matmul_ns / BANK_COLUMNS
    if fp32:
        column_ns = target.tensor_column_fp32_ns + target.matmul_passes_fp32 * target.matmul_fp32_ns / BANK_COLUMNS
    images = max(1, min(geometry.N, blocks.images))
    least_columns = target.matmul_columns_min * target.tensor_column_ns / column_ns
    columns = max(blocks.num_columns, least_columns / images) * geometry.N * blocks.num_groups * blocks.num_taps
    transposed = 0.95 * geometry.N * geometry.C * (geometry.W + geometry.Q) / PARTITIONS
    transposed_ns = transposed * target.tensor_column_ns * (target.transpose_passes_fp32 if fp32 else 1)
    return float(columns * share_met(geometry) * column_ns + transposed_ns) / shape.cores


ALGORITHM = Banded()
