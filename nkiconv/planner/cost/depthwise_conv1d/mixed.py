"""`mixed` and `vector` on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ....schedules.mixed import (
    MixedSchedule,
    MixedSettings,
    build,
    mixed_config_refusal,
    mixed_settings,
    plan_refusal,
)
from ....schedules.recipes import (
    PIECE,
    ColumnPrices,
    Recipe,
    Recipes,
    candidates,
    edge_recipes,
    free_recipe,
    ranked_recipes,
    recipe_lists,
)
from ....schedules.rows import part_total, tile_count
from ....schedules.settings import SHARDS, declarations
from ....schedules.tiles import PARTS, div_ceil
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, pairs_of, with_settings
from .banded import runs_banded
from .common import columns_of, issue_us, row_elements_us, shards_of, share_met
from .mixed_walk import MIXED_WALKED, walk_ns

#: Taps above which recipes are all alike: the engines beside Tensor take a small part of them.
MANY_TAPS = 64
#: Taps up to which rows are tried where `banded` runs too: beyond, that needs far fewer matmuls.
ROWS_TAPS_MAX = 64
#: Pieces of a core's work up to which each of the first and last ones matters.
SHORT = 12

#: Steps of pieces that all tries of a refinement may walk together, and groups of a tile that take as long as one.
STEPS_MAX = 6_000
GROUPS_A_STEP = 2
#: Lists of recipes that it tries, and first and last pieces of short work.
RECIPES = 8
FIRST_TRIES = ((256, 384, 512), (256, 256), (128, 256))
LAST_TRIES = ((192, 192), (256, 128, 128), (128,))
#: How much less a try must take than the best so far, and a whole round for another one.
BETTER, WORTHWHILE = 0.999, 0.99
ROUNDS = 2

#: Lists of recipes that a search starts from, and that it tries beside others; first and last pieces of short work.
START, NEAR = 2, 8
FIRST = ((256, 384, 512), (256, 256), (128, 256), (256, 512), (256, 96, 512), (256,))
LAST = ((192, 192), (192, 192, 192), (256, 128, 128), (256,), (128,))
#: Taps at an end that are not on the array, at most, unless all are.
EDGE_TAPS = 3


class Mixed(Algorithm):
    """`mixed` and `vector`: channels on partitions, taps shared out by recipes."""

    def __init__(self, on_tensor: bool) -> None:
        self.on_tensor = on_tensor

    def settle(self, shape: Shape, config: Config) -> Config:
        if mixed_config_refusal(shape.geometry, config, self.on_tensor):
            return config
        return pairs_of(self._settings(shape, config))

    def guesses(self, shape: Shape) -> list[Guess]:
        geometry, strict = shape.geometry, shape.extras.strict_nonfinite
        few = geometry.S <= ROWS_TAPS_MAX or not runs_banded(shape)
        if not ((few and not strict) if self.on_tensor else (few or strict)):
            return []
        settings, ns = self._first(shape)
        return [Guess(pairs_of(settings), ns, settings)] if ns > 0.0 else []

    def refined(self, shape: Shape, guess: Guess) -> Guess:
        settings, ns = self._refined(shape, guess.start, guess.ns)
        return Guess(pairs_of(settings), ns)

    def _first(self, shape: Shape) -> tuple[MixedSettings, float]:
        """The rule's settings and their ns; 0 where they do not run."""
        settings = self._by_rule(shape, None)
        plan = build(shape.geometry, shape.extras, settings)
        refused = plan_refusal(shape.geometry, shape.extras, plan, shape.cores, "")
        return settings, 0.0 if refused else walk_ns(shape, plan)

    def _refined(self, shape: Shape, best: MixedSettings, best_ns: float) -> tuple[MixedSettings, float]:
        """Settings and ns after changing one setting after the other for what takes less by walks."""
        plan, left = build(shape.geometry, shape.extras, best), STEPS_MAX
        lists = list(islice(self._lists(shape, plan.piece), RECIPES))
        for _ in range(ROUNDS):
            before_ns = best_ns
            for name in declarations(MixedSettings):
                for value in self._tries(shape, name, plan, lists):
                    if left <= 0 or value == getattr(best, name):
                        continue
                    tried = replace(best, **{name: value})
                    other = build(shape.geometry, shape.extras, tried)
                    if plan_refusal(shape.geometry, shape.extras, other, shape.cores, ""):
                        continue
                    left -= steps_of(shape, other)
                    other_ns = walk_ns(shape, other)
                    if other_ns < BETTER * best_ns:
                        best, best_ns, plan = tried, other_ns, other
            if best_ns >= WORTHWHILE * before_ns:
                break
        return best, best_ns

    def _tries(self, shape: Shape, name: str, plan: MixedSchedule, lists: Sequence[Recipes]) -> Sequence[Any]:
        """Other values of a setting of a plan. lists: of recipes."""
        geometry = shape.geometry
        is_short = part_total(geometry) <= SHORT * plan.piece
        if name == "shard":
            parts = {"batch": geometry.N, "columns": geometry.Q, "channels": geometry.C}
            return [shard for shard in SHARDS if parts[shard] >= PARTS]
        if name == "recipes":
            return [*lists, *([((geometry.S, 0, 0, 0),)] if self.on_tensor else [])]
        if name == "columns":
            return max(1, plan.rows.columns // 2), 2 * plan.rows.columns
        if name == "piece":
            return (512, 448, 384) if is_short else (2048, 1024, 512)
        if not is_short:
            return ()
        edges = edge_recipes(geometry.S) if self.on_tensor else ()
        more = [(*plan.settings.start, one) for one in edges] if plan.settings.start else []
        return {
            "start": [(), *[one for index, edge in enumerate(edges) for one in ((edge,), *more[index : index + 1])]],
            "end": [(), *[(one,) for one in edges]],
            "first": FIRST_TRIES,
            "last": LAST_TRIES,
            "warmup": (4, 6, 0) if self.on_tensor else (),
        }.get(name, ())

    def _settings(self, shape: Shape, config: Config) -> MixedSettings:
        """All settings: those of a config and others by a rule; without any, those that walks find best."""
        if config:
            return self._by_rule(shape, config)
        return shape.once((f"mixed, {self.on_tensor}", None), lambda: self._best(shape))

    def _best(self, shape: Shape) -> MixedSettings:
        """Those that walks find best; the rule's where they do not run."""
        settings, ns = self._first(shape)
        return self._refined(shape, settings, ns)[0] if ns > 0.0 else settings

    def _by_rule(self, shape: Shape, config: Config) -> MixedSettings:
        """Given settings, and others by the kernel's rule."""
        return mixed_settings(shape.geometry, shape.extras.epilogue, config, self.on_tensor, shape.target)

    def _lists(self, shape: Shape, piece: int) -> Iterator[Recipes]:
        """Lists of recipes, the one that balances the engines best first."""
        return ranked_recipes(shape.geometry, shape.extras.epilogue, shape.target, piece, self.on_tensor)

    def _distinct(self, shape: Shape, piece: int, most: int) -> list[Recipes]:
        """The same, `most` that differ."""
        return recipe_lists(shape.geometry, shape.extras.epilogue, shape.target, piece, self.on_tensor, most)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = shape.geometry
        if geometry.S > MANY_TAPS:
            return [config_of(shard=self._plan(shape, config_of(piece=PIECE)).rows.shard)]
        own = pairs_of(self._settings(shape, None))
        plan = self._plan(shape, own)
        lists = self._distinct(shape, plan.piece, 3 * START if wide else START)
        shards = shards_of(geometry, first=dict(own or ())["shard"])
        found = [own, *[with_settings(own, recipes=one) for one in lists]]
        return list(dict.fromkeys([*found, *[with_settings(own, shard=shard) for shard in shards[1:]]]))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        geometry, plan = shape.geometry, self._plan(shape, config)
        few_taps = geometry.S <= MANY_TAPS
        is_short = columns_of(shape) <= SHORT * plan.piece
        edges = self._edges(geometry.S) if few_taps else []
        alone = [(), *[(one,) for one in edges]]
        choices: dict[str, Sequence[Any]] = {
            "recipes": self._distinct(shape, plan.piece, NEAR) if few_taps else (),
            "piece": (512, 448, 384) if is_short else (2048, 1024, 512),
            "start": first_changed(plan.settings.start, edges, at_end=True) if is_short else alone,
            "end": first_changed(plan.settings.end, edges, at_end=False) if is_short else alone,
            "last": LAST if is_short else ((), (256,), (512, 256)),
            "first": FIRST if is_short else ((), (256,), (512,), (256, 512)),
            "warmup": (4, 6, 0) if self.on_tensor else (),
            "shard": shards_of(geometry),
        }
        now = {
            **{name: getattr(plan.settings, name) for name in choices},
            "piece": plan.piece,
            "columns": plan.rows.columns,
        }
        found = self._ends(config, geometry.S, edges) if is_short and self.on_tensor else []
        return [one for one in found if one != config] + MixedSettings.near(config, now, **choices)

    def _ends(self, config: Config, S: int, edges: Sequence[Recipe]) -> list[Config]:
        """Other first pieces with another recipe, and other last ones: what fits one width may not fit another."""
        begins, ends = [one for one in edges if one[0] <= S - 2][:3], [one for one in edges if one[0] >= S - 1][:2]
        return [
            *[with_settings(config, first=widths, start=(one,)) for widths in FIRST[:4] for one in begins],
            *[with_settings(config, last=widths, end=(one,)) for widths in LAST[:3] for one in ends],
        ]

    def _edges(self, S: int) -> list[Recipe]:
        """Recipes for pieces at an end of the work, where the engines are not equally late or early."""
        known = candidates(S, self.on_tensor)
        if not self.on_tensor:
            return known
        near_array = [one for one in known if one[0] >= S - EDGE_TAPS and max(one[1:]) <= 1]
        return list(dict.fromkeys([*([free_recipe(S)] if S >= 2 else []), *near_array]))

    def unit(self, shape: Shape, config: Config) -> int:
        return int(-(-shape.geometry.C // self._plan(shape, config).rows.T))

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry = shape.geometry
        prices = ColumnPrices.of(shape.target, geometry.itemsize, PIECE)
        speed = 1 / prices.vector + 1 / prices.scalar + (1 / prices.tensor if self.on_tensor else 0.0)
        columns = columns_of(shape)
        rows = self._plan(shape, config).rows
        tiles = geometry.N * rows.T * -(-geometry.Q // rows.columns) / rows.G / shape.cores
        taps_us = columns * geometry.S * share_met(geometry) / speed / 1e3
        return float(max(taps_us, issue_us(shape, tiles * geometry.S), row_elements_us(shape)))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self._plan(shape, config)
        return {**ints(plan.rows), **ints(plan), "num_recipes": len(plan.settings.recipes)}

    def settled(self, shape: Shape, config: Config) -> Any:
        plan = self._plan(shape, config)
        return replace(plan, settings=replace(plan.settings, columns=plan.rows.columns, piece=plan.piece))

    def _plan(self, shape: Shape, config: Config) -> MixedSchedule:
        found: MixedSchedule = build(shape.geometry, shape.extras, self._settings(shape, config))
        return found


def steps_of(shape: Shape, plan: MixedSchedule) -> int:
    """What a walk of a plan takes: its pieces' steps, and the groups that each load of its tiles goes through."""
    steps = max(3 + recipe[1] + recipe[3] for recipe in plan.settings.recipes)
    tiles = tile_count(shape.geometry, plan.rows)
    pieces = min(MIXED_WALKED, tiles * div_ceil(plan.rows.columns, plan.piece))
    return int(pieces * steps + min(MIXED_WALKED, tiles) * plan.rows.G // GROUPS_A_STEP)


def first_changed(recipes: Recipes, known: Sequence[Recipe], *, at_end: bool) -> list[Recipes]:
    """Recipes with one of `known` more, with one fewer, and with another; at their end, or at their begin."""
    rest = recipes[:-1] if at_end else recipes[1:]
    found = [((*recipes, one) if at_end else (one, *recipes)) for one in known] + [rest]
    found += [((*rest, one) if at_end else (one, *rest)) for one in known] if recipes else []
    return list(dict.fromkeys(found))


ALGORITHM = Mixed(on_tensor=True)
