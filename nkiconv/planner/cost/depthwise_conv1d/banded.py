"""`banded` on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....kernels.depthwise_conv1d.banded.choose import REFINED, choose_blocks, first_blocks, refine_all
from ....kernels.depthwise_conv1d.banded.choose import best_settings as best_blocks
from ....kernels.depthwise_conv1d.banded.choose import settings_of as settings_of_blocks
from ....kernels.depthwise_conv1d.banded.kernel import shape_refusal, size_refusal
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, with_settings
from .common import block_sizes, changed_one, row_elements_us, shards_of, share_met
from .recipes import column_prices


class Banded(Algorithm):
    """Band matrices over blocks of positions."""

    #: how many times the kernel's own block, up and down, a quick search starts from
    FACTORS = 2

    def guesses(self, shape: Shape) -> list[Guess]:
        if not runs_banded(shape):
            return []
        found = first_blocks(shape.geometry, shape.extras, None, REFINED)
        ns, blocks = found[0]
        return [] if size_refusal(shape.geometry, shape.extras, blocks, shape.cores) else [Guess(None, ns, found)]

    def refined(self, shape: Shape, guess: Guess) -> Guess:
        config, ns = refine_all(shape.geometry, shape.extras, guess.start)
        blocks = choose_blocks(shape.geometry, shape.extras, config)
        return guess if size_refusal(shape.geometry, shape.extras, blocks, shape.cores) else Guess(config, ns)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = shape.geometry
        if geometry.stride > PARTITIONS:
            return [None]  # there is no block: the kernel says so
        own = self._own(shape)
        block = dict(own or ())["block"]
        sizes = block_sizes(geometry.stride, block)
        more = wide or bool(shape.rates.overrides)  # the kernel's own sizes are for trn2.toml's constants
        if not more:
            sizes = [size for size in sizes if block <= size * self.FACTORS and size <= block * self.FACTORS]
        of_sizes = [self._blocks(shape, config_of(block=size)) for size in sizes]
        found = [own, *[settings_of_blocks(one) for one in of_sizes]]
        if more:  # small tiles at the ends have short runs, which other constants may punish
            found += [with_settings(one, edge=0) for one in found if dict(one or ())["edge"] > 0]
        return list(dict.fromkeys(found))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        blocks = self._blocks(shape, config)
        sizes = block_sizes(shape.geometry.stride, int(blocks.block))
        place = sizes.index(int(blocks.block))
        return changed_one(
            config,
            scratch=(not blocks.scratch,),
            rewarm=(0, 12),
            edge=[one for one in (0, 2, blocks.groups // 4, blocks.groups // 2) if one != blocks.edge],
            buffers=(blocks.buffers + 1, blocks.buffers + 2, blocks.buffers - 1),
            warmup=(0, 12),
            block=[one for one in sizes[max(0, place - 1) : place + 2] if one != blocks.block],
            groups=(blocks.groups // 2, blocks.groups * 2),
            buffer_groups=(blocks.buffer_groups * 2, blocks.buffer_groups // 2),
            shard=[one for one in shards_of(shape.geometry) if one != blocks.shard],
            images=(blocks.images // 2, blocks.images * 2) if shape.geometry.N > 1 else (),
            streamed=(blocks.streamed // 2, blocks.streamed * 2),
        )

    def unit(self, shape: Shape, config: Config) -> int:
        blocks = self._blocks(shape, config)
        return int(blocks.per_group * blocks.groups)

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry, blocks = shape.geometry, self._blocks(shape, config)
        prices = column_prices(geometry, shape.extras, shape.cores, shape.rates)
        images, cycle_ns = max(1, min(geometry.N, blocks.images)), shape.rates.cycle_ns("pe")
        least_columns = shape.rates("pe.min_interval_rows") * cycle_ns / prices.tensor
        columns = max(blocks.num_columns, least_columns / images)
        columns *= geometry.N * blocks.num_groups * blocks.num_taps
        turned = 0.95 * geometry.N * geometry.C * (geometry.W + geometry.Q) / PARTITIONS  # columns of transposes
        turn_cycles = shape.rates("pe.cyc_per_row_fp32_pass" if geometry.itemsize == 4 else "pe.cyc_per_row_16bit")
        busy_ns = columns * share_met(geometry) * prices.tensor + turned * turn_cycles * cycle_ns
        on_array_us = busy_ns / shape.cores / 1e3
        return max(float(on_array_us), row_elements_us(shape))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._blocks(shape, config))

    def settled(self, shape: Shape, config: Config) -> Any:
        return self._blocks(shape, config)

    def _own(self, shape: Shape) -> Config:
        """The kernel's own settings, all of them."""
        return best_blocks(shape.geometry, shape.extras)[0]  # type: ignore[no-any-return]

    def _blocks(self, shape: Shape, config: Config) -> Any:
        return choose_blocks(shape.geometry, shape.extras, config)


def runs_banded(shape: Shape) -> bool:
    """Whether banded runs this, if it is not too large."""
    return str(shape_refusal(shape.geometry, shape.extras, None)) == ""


ALGORITHM = Banded()
