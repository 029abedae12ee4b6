"""The algorithms of depthwise rows: their schedules' bounds, and the settings that a search tries."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from ...schedules import depthwise_algorithms
from ...schedules.banded import BandedSettings
from ...schedules.banded_candidates import candidates, near_of
from ...schedules.depthwise import shards_of
from ...schedules.dot import DotSettings, warm_up_of
from ...schedules.mixed import MixedSettings, build, cut_pieces
from ...schedules.mixed_bound import LOOKED_AT, MANY_TAPS
from ...schedules.recipes import candidates as recipe_candidates
from ...schedules.recipes import ranked_recipes, start_recipes
from ...schedules.rows import part_total, tile_list
from ...schedules.settings import SHARDS, Settings, descended
from ...schedules.tiles import PARTS
from ...schedules.update import ENGINES, UpdateSettings
from .. import clock
from ..request import Config
from .algorithm import Algorithm, Guess, Shape, once, with_settings

Own = TypeVar("Own", bound=Settings)

#: Most settings that are timed.
TIMED = 3
#: Settings of `banded` of the least bound that a search, and a wide one, starts from.
STARTS = 8, 32
#: For `mixed` and `vector`: most pieces of a core's work with which recipes of the first ones are tried; lists
#: of recipes that are tried, and that a search, and a wide one, starts from.
SHORT, RECIPES, RECIPE_STARTS = 12, 8, (2, 6)


class RowsAlgorithm(Algorithm):
    """An algorithm by its name; starts: configs that a search, and a wide one, starts from."""

    def __init__(self, name: str, *starts: list[Config]) -> None:
        self.rows, self.starts, self.on_tensor = depthwise_algorithms.ALGORITHMS[name], starts, name == "mixed"

    def settings_of(self, shape: Shape, config: Config) -> Any:
        """All settings of a supported config."""
        return self.rows.complete(shape.geometry, shape.options, config, shape.target)

    def guesses(self, shape: Shape, most_ns: float = math.inf) -> list[Guess]:
        found = self.rows.guesses(shape.geometry, shape.options, shape.target)
        return [Guess(settings.pairs, ns) for settings, ns in found]

    def complete(self, shape: Shape, config: Config) -> Config:
        if self.rows.config_unsupported(shape.geometry, shape.options, config):
            return config
        found: Config = self.settings_of(shape, config).pairs
        return found

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [self.complete(shape, config) for config in self.starts[wide]]

    def completed(self, shape: Shape, config: Config) -> Any:
        return self.rows.build(shape.geometry, shape.options, self.settings_of(shape, config))


def timed(found: Iterable[tuple[Own, float]], same: Callable[[Own], Any]) -> list[Guess]:
    """The first TIMED settings with different schedules (`same`), the least ns first."""
    distinct: dict[Any, Guess] = {}
    for one, ns in sorted(found, key=lambda each: each[1]):
        if len(distinct) < TIMED and ns < float("inf"):
            distinct.setdefault(same(one), Guess(one.pairs, ns))
    return list(distinct.values())


class Banded(RowsAlgorithm):
    """Band matrices over blocks of positions."""

    def refined(self, shape: Shape, guess: Guess) -> list[Guess]:
        found = candidates(shape.geometry, shape.options, None, shape.target)
        return timed(found, lambda one: self._same(shape, one))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        found = candidates(shape.geometry, shape.options, None, shape.target)[: STARTS[wide]]
        return list(dict.fromkeys([self.complete(shape, None), *(one.pairs for one, _ in found)]))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(near_of(shape.geometry, shape.options, self.settings_of(shape, config)))

    def _same(self, shape: Shape, settings: BandedSettings) -> Any:
        """The part of the schedule of settings by which they differ."""
        blocks = self.rows.build(shape.geometry, shape.options, settings)
        names = (*vars(blocks), "buffers", "streamed")
        return tuple(getattr(blocks, name, getattr(settings, name, None)) for name in names if name != "settings")


class Mixed(RowsAlgorithm):
    """`mixed` and `vector`: channels on partitions, taps shared by engines, by recipes."""

    def guesses(self, shape: Shape, most_ns: float = math.inf) -> list[Guess]:
        found, price = [], self._price(shape)
        for guess in super().guesses(shape):  # each with the shard of the least ns
            start = MixedSettings.read(guess.config)
            others = [replace(start, shard=shard) for shard in self._shards(shape) if shard != start.shard]
            found.append(min([guess, *(Guess(one.pairs, price(one)) for one in others)], key=lambda one: one.ns))
        return found

    def _price(self, shape: Shape) -> Callable[[MixedSettings], float]:
        """The bound of settings, in ns."""
        return functools.partial(self.rows.ns_of, shape.geometry, shape.options, shape.target)

    def _shards(self, shape: Shape) -> list[str]:
        """Axes that two parts can share evenly enough."""
        parts = {"batch": shape.geometry.N, "columns": shape.geometry.Q, "channels": shape.geometry.C}
        return [shard for shard in SHARDS if parts[shard] >= PARTS]

    def refined(self, shape: Shape, guess: Guess) -> list[Guess]:
        tried = self._tried(shape, MixedSettings.read(guess.config))
        return timed(tried.items(), lambda one: self._same(shape, one))

    def _same(self, shape: Shape, settings: MixedSettings) -> Any:
        """The part of the schedule of settings by which they differ: rows, and the pieces of the first tiles."""
        plan = build(shape.geometry, shape.options, settings)
        tiles = tile_list(shape.geometry, plan.rows, PARTS - 1, LOOKED_AT)
        pieces = cut_pieces(plan, shape.options.epilogue, tiles)
        return plan.rows, tuple((one.tile, one.qn, one.recipe) for one in pieces)

    def _tried(self, shape: Shape, start: MixedSettings) -> dict[MixedSettings, float]:
        return descended(start, self._price(shape), functools.partial(self._near, shape), clock.SETTINGS)

    def _near(self, shape: Shape, settings: MixedSettings) -> list[Config]:
        """Configs that differ from these settings in one setting."""
        geometry, plan = shape.geometry, build(shape.geometry, shape.options, settings)
        is_short, few = part_total(geometry) <= SHORT * plan.piece, geometry.S <= MANY_TAPS
        edges = start_recipes(geometry.S) if self.on_tensor and is_short and few else ()
        on_tensor = [((geometry.S, 0, 0, 0),)] if self.on_tensor else []
        choices: dict[str, Sequence[Any]] = {
            "shard": self._shards(shape),
            "recipes": [*self._ranked(shape, plan.piece), *on_tensor] if few else (),
            "start": [(), *[(one,) for one in edges], *[(*settings.start, one) for one in edges if settings.start]],
            "warmup": (4, 6, 0) if self.on_tensor else (),
        }
        return list(MixedSettings.near(settings.pairs, dict(plan.settings.pairs), **choices))

    @once
    def _ranked(self, shape: Shape, piece: int) -> list[Any]:
        """The best lists of recipes, the best first."""
        found = ranked_recipes(shape.geometry, shape.options.epilogue, shape.target, piece, self.on_tensor)
        return [*islice(found, RECIPES)]

    def settings_of(self, shape: Shape, config: Config) -> Any:
        """All settings: a config's and others by a rule; for an empty config those of the least bound."""
        return super().settings_of(shape, config) if config else self._best(shape)

    @once
    def _best(self, shape: Shape) -> MixedSettings:
        """The settings of the least bound."""
        tried = self._tried(shape, super().settings_of(shape, None))
        return min(tried, key=lambda one: tried[one])

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = shape.geometry
        if geometry.S > MANY_TAPS:
            return [with_settings(None, shard=super().settings_of(shape, None).shard)]
        own = self.settings_of(shape, None).pairs
        lists = self._ranked(shape, self.completed(shape, own).piece)[: RECIPE_STARTS[wide]]
        shards = shards_of(geometry, first=dict(own or ())["shard"])[1:]
        found = [own, *[with_settings(own, recipes=one) for one in lists]]
        return list(dict.fromkeys([*found, *[with_settings(own, shard=shard) for shard in shards]]))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        settings, few = self.settings_of(shape, config), shape.geometry.S <= MANY_TAPS
        edges = [(one,) for one in recipe_candidates(shape.geometry.S, self.on_tensor)] if few else []
        more = MixedSettings.near(settings.pairs, None, recipes=edges, start=edges)
        return list(dict.fromkeys([*self._near(shape, settings), *more]))


class Dot(RowsAlgorithm):
    """Dot products of whole rows."""

    def near(self, shape: Shape, config: Config) -> list[Config]:
        known, warmups = {"slots": self.completed(shape, config).slots}, (0, warm_up_of(shape.target))
        return list(DotSettings.near(self.settings_of(shape, config).pairs, known, warmup=warmups))


class Update(RowsAlgorithm):
    """Images on partitions, for many short rows; or Vector alone, for few."""

    def near(self, shape: Shape, config: Config) -> list[Config]:
        settings = self.settings_of(shape, config)
        return [] if settings.engine == "vector" else list(UpdateSettings.near(settings.pairs))


ALGORITHMS: dict[str, Algorithm] = {
    "banded": Banded("banded"),
    "mixed": Mixed("mixed"),
    "vector": Mixed("vector"),
    "dot": Dot("dot", *([with_settings(None, block=size) for size in sizes] for sizes in ((8, 16), (8, 16, 4, 2)))),
    "update": Update("update", *[[with_settings(None, engine=engine) for engine in ENGINES]] * 2),
}
