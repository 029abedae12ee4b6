"""`phases` on the host: which settings it takes best."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ....kernels.conv.phases.plan import num_phases, phases_refusal, plan_phases
from ....kernels.conv.relayout import plain_of
from ....schedules.phases import BESIDE, SHARDS, TOGETHER_MAX, WARM_UP, Y_BYTES, PhasesSettings
from ....schedules.tiles import QUADRANT
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Shape, config_of
from .common import Settled
from .phases_price import PhasesPrice

#: Bytes a partition of x and of results of a band that are tried.
BANDS = (Y_BYTES, Y_BYTES // 2, Y_BYTES // 4)
#: Channels that segments may have.
SEGMENTED = (QUADRANT, 2 * QUADRANT, PARTITIONS)
#: Phases of a kernel's plan above which one is made, of 3 to 12.
MANY_PHASES = 300


class Phases(Settled):
    """Transposed convolutions, phase by phase."""

    algorithm, settings, refusal = "phases", PhasesSettings, staticmethod(phases_refusal)

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        found: list[tuple[float, PhasesSettings, bool]] = []
        for one in _settings(geometry, given):
            plan, reason = plan_phases(geometry, shape.extras, one.pairs, shape.cores)
            if not reason:
                price = PhasesPrice(shape.target, geometry, shape.extras, plan)
                found.append((price.total_ns(), one, price.is_worth_warming()))
        if not found:
            return PhasesSettings.read(config_of(**given), geometry)
        _, best, warmed = min(found, key=lambda one: one[0])
        return best if warmed else dataclasses.replace(best, warmup=given.get("warmup", 0))

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return PhasesPrice(shape.target, geometry, shape.extras, plan).total_ns()

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = plain_of(self.algorithm, shape.geometry, shape.extras)
        if phases_refusal(geometry, shape.extras, None):
            return [None]
        ways = [one for one in _ways(geometry) if wide or one["beside"] in ("none", "columns")]
        return [None, *(config_of(**one, shard=shard) for one in ways for shard in SHARDS)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(PhasesSettings.near(self.settle(shape, config)))

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.items) * sum(len(batch) for batch in plan.outputs)


def _settings(geometry: Any, given: dict[str, Any]) -> Iterator[PhasesSettings]:
    """Settings to compare that have the given ones; of many phases, whose plans are long, the kernel's own."""
    if num_phases(geometry) > MANY_PHASES:
        yield PhasesSettings.read(config_of(**given), geometry)
        return
    chunks = -(-geometry.C // PARTITIONS)
    plain = {"together": TOGETHER_MAX if chunks > 1 else 1, "warmup": WARM_UP}
    for way in _ways(geometry):
        for shard in SHARDS if geometry.K > 1 else ("outputs",):
            for y_bytes in BANDS:
                channels = min(PARTITIONS // way["segments"], geometry.K)
                if shard == "channels":
                    channels = min(channels, -(-geometry.K // 2))
                found = {**plain, "shard": shard, "channels": channels, "y_bytes": y_bytes, **way, **given}
                yield PhasesSettings.read(config_of(**found), geometry)


def _ways(geometry: Any) -> Iterator[dict[str, Any]]:
    """Phases and segments beside each other that may share the array; axes that have only one phase add nothing."""
    yield {"beside": "none", "segments": 1, "along": "columns"}
    axes = {"planes": geometry.planes, "rows": geometry.rows, "columns": geometry.columns}
    if geometry.planes.images > 1 or geometry.planes.taps == 1:  # zeros would be added of other images
        del axes["planes"]
    longest = max(axes, key=lambda name: axes[name].out)
    for beside in BESIDE:
        if beside != "none" and getattr(geometry, beside).lhs_dilation == 1:
            continue
        for segments in (1, 2, 4):
            if (segments == 1 or geometry.C in SEGMENTED) and (beside != "none" or segments > 1):
                yield {"beside": beside, "segments": segments, "along": longest}


ALGORITHM = Phases()
