"""`activation_stationary` on the host: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ....schedules.activation_stationary import settings_of, unsupported_reason
from ....schedules.activation_stationary_candidates import BUFFERS, candidates, sides_of
from ....schedules.depthwise_blocks import DepthwiseSettings
from ....schedules.device_loops import MOST_INSTRUCTIONS
from ....schedules.patches import PatchSettings
from ....schedules.pixel_tiles import SHARDS, PixelSettings, outputs_apart
from ....schedules.relayout import plain_of
from ....schedules.volume_rows import COPIES, RowSchedule, row_instructions
from ...request import Config
from ..algorithm import Shape, config_of
from .common import Conv2dAlgorithm

#: Candidates that a search starts from, and a wide one.
STARTS = 2, 8


class ActivationStationary(Conv2dAlgorithm):
    """Pixels as stationaries, filters as moving operands."""

    algorithm = "activation_stationary"
    order = ("fold", "copies")

    def candidates(self, shape: Shape, geometry: Any, config: Config) -> Iterator[Config]:
        return candidates(shape.target, geometry, shape.options, shape.cores, config)

    def is_short(self, shape: Shape, config: Config) -> bool:
        plan, geometry = self.plan(shape, config), shape.geometry
        if not isinstance(plan, RowSchedule):
            return True
        count = row_instructions(geometry, plan, shape.options, shape.cores)
        return count * int(geometry.times) <= MOST_INSTRUCTIONS

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = plain_of(self.algorithm, shape.geometry)
        if unsupported_reason(geometry, shape.options, None):
            return [None]
        kinds: dict[Any, tuple[str, Any]] = {PixelSettings: ("shard", SHARDS), DepthwiseSettings: ("buffers", BUFFERS)}
        kinds[PatchSettings] = "warmup", (0, 28)
        name, values = kinds.get(settings_of(geometry), ("copies", (1, COPIES)))
        each = (self.candidates(shape, geometry, config_of(**{name: one})) for one in values)
        return [one for found in each for one in itertools.islice(found, STARTS[wide])] or [None]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now, values = dict(self.complete(shape, config) or ()), {}
        geometry = plain_of(self.algorithm, shape.geometry)
        if not now:
            return []  # no sizes fit that are tried
        if "side" in now:
            sides = sides_of(geometry)
            near = [one for one in sides if one < now["side"]][-1:] + [one for one in sides if one > now["side"]][:1]
            values["side"] = near
        if "rows" in now:
            apart = geometry.rows.stride * outputs_apart(geometry.rows)
            values["rows"] = [now["rows"] - apart, now["rows"] + apart]
        return list(settings_of(geometry).near(config, now, **values))


ALGORITHM = ActivationStationary()
