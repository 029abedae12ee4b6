"""`mixed` and `vector` on the host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from ....schedules.depthwise import shards_of
from ....schedules.mixed import MixedSettings, build, cut_pieces
from ....schedules.mixed_bound import LOOKED_AT, MANY_TAPS
from ....schedules.recipes import PIECE, candidates, edge_recipes, ranked_recipes
from ....schedules.rows import part_total, tile_list
from ....schedules.settings import SHARDS, descended
from ....schedules.tiles import PARTS
from ... import clock
from ...request import Config
from ..algorithm import Guess, Shape, config_of, with_settings
from .common import OfSchedule, timed

#: Pieces of a core's work up to which each of the first and last ones matters.
SHORT = 12
#: Lists of recipes that are tried besides others, and that a search starts from.
RECIPES, START = 8, 2


class Mixed(OfSchedule):
    """`mixed` and `vector`: channels on partitions, taps shared out by recipes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.on_tensor = name == "mixed"

    def refined(self, shape: Shape, guess: Guess) -> list[Guess]:
        tried = self._tried(shape, MixedSettings.read(guess.config))
        return timed(tried.items(), lambda one: self._same(shape, one))

    def _same(self, shape: Shape, settings: MixedSettings) -> Any:
        """What settings come to: rows, and the first and last pieces."""
        plan = build(shape.geometry, shape.options, settings)
        tiles = tile_list(shape.geometry, plan.rows, PARTS - 1, LOOKED_AT)
        return plan.rows, tuple(
            (one.tile, one.qn, one.recipe) for one in cut_pieces(plan, shape.options.epilogue, tiles)
        )

    def _tried(self, shape: Shape, start: MixedSettings) -> dict[MixedSettings, float]:
        return descended(
            start,
            lambda one: self.ns_of(shape, one),
            lambda one: self._near(shape, one),
            clock.SETTINGS,
        )

    def _near(self, shape: Shape, settings: MixedSettings) -> list[Config]:
        """Settings that differ in one thing."""
        geometry, plan = shape.geometry, build(shape.geometry, shape.options, settings)
        piece = plan.settings.piece
        is_short, few = part_total(geometry) <= SHORT * piece, geometry.S <= MANY_TAPS
        ranked = ranked_recipes(geometry, shape.options.epilogue, shape.target, piece, self.on_tensor)
        parts = {"batch": geometry.N, "columns": geometry.Q, "channels": geometry.C}
        edges = edge_recipes(geometry.S) if self.on_tensor and is_short and few else ()
        on_tensor = [((geometry.S, 0, 0, 0),)] if self.on_tensor else []
        choices: dict[str, Sequence[Any]] = {
            "shard": [shard for shard in SHARDS if parts[shard] >= PARTS],
            "recipes": [*islice(ranked, RECIPES), *on_tensor] if few else (),
            "piece": (512, 448, 384) if is_short else (2048, 1024, 512),
            "start": [(), *[(one,) for one in edges], *[(*settings.start, one) for one in edges if settings.start]],
            "end": [(), *[(one,) for one in edges]],
            "warmup": (4, 6, 0) if self.on_tensor else (),
        }
        return list(MixedSettings.near(settings.pairs, dict(plan.settings.pairs), **choices))

    def settings_of(self, shape: Shape, config: Config) -> Any:
        """All settings: those of a config and others by a rule; without any, those of the least bound."""
        if config:
            return super().settings_of(shape, config)

        def best() -> MixedSettings:
            tried = self._tried(shape, super(Mixed, self).settings_of(shape, None))
            return min(tried, key=lambda one: tried[one])

        return shape.once((f"mixed, {self.on_tensor}", None), best)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = shape.geometry
        if geometry.S > MANY_TAPS:
            return [config_of(shard=self.completed(shape, config_of(piece=PIECE)).rows.shard)]
        own = self.settings_of(shape, None).pairs
        most, piece = 3 * START if wide else START, self.completed(shape, own).settings.piece
        lists = islice(ranked_recipes(geometry, shape.options.epilogue, shape.target, piece, self.on_tensor), most)
        shards = shards_of(geometry, first=dict(own or ())["shard"])[1:]
        found = [own, *[with_settings(own, recipes=one) for one in lists]]
        return list(dict.fromkeys([*found, *[with_settings(own, shard=shard) for shard in shards]]))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        settings, few = self.settings_of(shape, config), shape.geometry.S <= MANY_TAPS
        edges = [(one,) for one in candidates(shape.geometry.S, self.on_tensor)] if few else []
        more = MixedSettings.near(settings.pairs, None, recipes=edges, start=edges, end=edges)
        return list(dict.fromkeys([*self._near(shape, settings), *more]))


ALGORITHM = Mixed("mixed")
