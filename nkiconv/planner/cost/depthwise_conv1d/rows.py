"""`mixed` and `vector` on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....kernels.depthwise_conv1d.rows import recipes as kernel_rule
from ....kernels.depthwise_conv1d.rows.plan import read_plan
from ....kernels.depthwise_conv1d.rows.search import best_settings, first_plan, refine
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, with_settings
from .banded import runs_banded
from .common import changed_one, columns_of, issue_us, row_elements_us, shards_of, share_met
from .recipes import PIECE, column_prices, recipe_lists

#: Taps above which recipes are all alike: the engines beside Tensor take a small part of them.
MANY_TAPS = 64
#: Taps up to which rows are tried where `banded` runs too: beyond, that needs far fewer matmuls.
ROWS_TAPS_MAX = 64


class Rows(Algorithm):
    """`mixed` and `vector`: channels on partitions, taps shared out by recipes."""

    #: lists of recipes that a search starts from, and that it tries beside others
    START, NEAR = 2, 8
    #: pieces of a core's work up to which each of the first and last ones matters, and widths for those
    SHORT = 12
    FIRST = ((256, 384, 512), (256, 256), (128, 256), (256, 512), (256, 96, 512), (256,))
    LAST = ((192, 192), (192, 192, 192), (256, 128, 128), (256,), (128,))
    #: taps at an end that are not on the array, at most, unless all are
    EDGE_TAPS = 3

    def __init__(self, on_tensor: bool) -> None:
        self.on_tensor = on_tensor

    def guesses(self, shape: Shape) -> list[Guess]:
        geometry, strict = shape.geometry, shape.extras.strict_nonfinite
        few = geometry.S <= ROWS_TAPS_MAX or not runs_banded(shape)
        if not ((few and not strict) if self.on_tensor else (few or strict)):
            return []
        plan, ns = first_plan(geometry, shape.extras, self.on_tensor, shape.cores)
        return [Guess(None, ns, plan)] if ns > 0.0 else []

    def refined(self, shape: Shape, guess: Guess) -> Guess:
        return Guess(*refine(shape.geometry, shape.extras, guess.start, guess.ns, self.on_tensor, shape.cores))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = shape.geometry
        if geometry.S > MANY_TAPS:
            return [config_of(shard=self._plan(shape, config_of(piece=PIECE)).rows.shard)]
        own = self._own(shape)
        more = wide or bool(shape.rates.overrides)  # the kernel's own settings are for trn2.toml's constants
        lists = self._recipes(shape, 3 * self.START if more else self.START, self._plan(shape, own).piece)
        if not lists:  # too few taps for the array to have any
            return []
        shards = shards_of(geometry, first=dict(own or ())["shard"])
        found = [own, *[with_settings(own, recipes=one) for one in lists]]
        return list(dict.fromkeys([*found, *[with_settings(own, shard=shard) for shard in shards[1:]]]))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        geometry, plan = shape.geometry, self._plan(shape, config)
        few_taps = geometry.S <= MANY_TAPS
        is_short = columns_of(shape) <= self.SHORT * plan.piece
        edges = self._edges(shape) if few_taps else []
        choices: dict[str, Sequence[Any]] = {
            "recipes": self._recipes(shape, self.NEAR, plan.piece) if few_taps else (),
            "piece": (512, 448, 384) if is_short else (2048, 1024, 512),
            "start": first_changed(plan.start, edges, at_end=True) if is_short else [(), *[(one,) for one in edges]],
            "end": first_changed(plan.end, edges, at_end=False) if is_short else [(), *[(one,) for one in edges]],
            "last": self.LAST if is_short else ((), (256,), (512, 256)),
            "first": self.FIRST if is_short else ((), (256,), (512,), (256, 512)),
            "warmup": (4, 6, 0) if self.on_tensor else (),
            "join": ("gpsimd", "vector"),
            "shard": shards_of(geometry),
            "columns": (plan.rows.columns // 2, 2 * plan.rows.columns),
            "prefetch": (2, 4, 6),
        }
        now = {**{name: getattr(plan, name, None) for name in choices}, "shard": plan.rows.shard}
        others = {name: [one for one in values if one != now[name]] for name, values in choices.items()}
        found = self._ends(config, geometry.S, edges) if is_short and self.on_tensor else []
        return [one for one in found if one != config] + changed_one(config, **others)

    def _ends(self, config: Config, S: int, edges: Sequence[Any]) -> list[Config]:
        """Other first pieces with another recipe, and other last ones: what fits one width may not fit another."""
        begins, ends = [one for one in edges if one[0] <= S - 2][:3], [one for one in edges if one[0] >= S - 1][:2]
        return [
            *[with_settings(config, first=widths, start=(one,)) for widths in self.FIRST[:4] for one in begins],
            *[with_settings(config, last=widths, end=(one,)) for widths in self.LAST[:3] for one in ends],
        ]

    def _edges(self, shape: Shape) -> list[Any]:
        """Recipes for pieces at an end of the work, where the engines are not equally late or early."""
        S = shape.geometry.S
        known = kernel_rule.candidates(S, self.on_tensor)
        near_array = [one for one in known if one[0] >= S - self.EDGE_TAPS and max(one[1:]) <= 1]
        free = [kernel_rule.free_recipe(S)] if S >= 2 else []
        return list(dict.fromkeys([*free, *near_array])) if self.on_tensor else known

    def unit(self, shape: Shape, config: Config) -> int:
        return int(-(-shape.geometry.C // self._plan(shape, config).rows.T))

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry = shape.geometry
        prices = column_prices(geometry, shape.extras, shape.cores, shape.rates)
        speed = 1 / prices.vector + 1 / prices.scalar + (1 / prices.tensor if self.on_tensor else 0.0)
        columns = columns_of(shape)
        rows = self._plan(shape, config).rows
        tiles = geometry.N * rows.T * -(-geometry.Q // rows.columns) / rows.G / shape.cores
        taps_us = columns * geometry.S * share_met(geometry) / speed / 1e3
        return float(max(taps_us, issue_us(shape, tiles * geometry.S), row_elements_us(shape)))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self._plan(shape, config)
        return {**ints(plan.rows), "piece": plan.piece, "prefetch": plan.prefetch, "num_recipes": len(plan.recipes)}

    def settled(self, shape: Shape, config: Config) -> Any:
        return self._plan(shape, config)

    def _plan(self, shape: Shape, config: Config) -> Any:
        return read_plan(shape.geometry, shape.extras, config or self._own(shape), self.on_tensor)

    def _own(self, shape: Shape) -> Config:
        """The kernel's own settings, all of them."""
        return best_settings(shape.geometry, shape.extras, self.on_tensor, shape.cores)[0]  # type: ignore[no-any-return]

    def _recipes(self, shape: Shape, most: int, piece: int) -> Sequence[Any]:
        prices = shape.geometry, shape.extras, shape.cores, shape.rates
        return recipe_lists(*prices, on_tensor=self.on_tensor, most=most, piece=piece)


def first_changed(recipes: tuple[Any, ...], known: Sequence[Any], *, at_end: bool) -> list[tuple[Any, ...]]:
    """Recipes with one of `known` more, with one fewer, and with another; at their end, or at their begin."""
    rest = recipes[:-1] if at_end else recipes[1:]
    found = [((*recipes, one) if at_end else (one, *recipes)) for one in known] + [rest]
    found += [((*rest, one) if at_end else (one, *rest)) for one in known] if recipes else []
    return list(dict.fromkeys(found))
