"""`deep` on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....kernels.conv2d.deep.plan import DEEP_FILTER_BYTES, DEEP_SHARDS, pieces_of
from ....kernels.conv2d.deep.price import deep_ns
from ...request import Config
from ..algorithm import Shape, config_of
from .common import WARM_UPS, Conv2dAlgorithm


class Deep(Conv2dAlgorithm):
    """Few outputs whose contraction, or whose channels, the cores share."""

    algorithm = "deep"
    from_one = ("taps", "filter_bytes")

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(deep_ns(geometry, plan))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [None, *(config_of(shard=one) for one in DEEP_SHARDS)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        filter_bytes = dict(config or ()).get("filter_bytes", DEEP_FILTER_BYTES)
        return self.changed(
            config,
            shard=(one for one in DEEP_SHARDS if one != plan.shard),
            taps=(plan.T - 1, plan.T + 1),
            filter_bytes=(filter_bytes // 4, filter_bytes // 2, filter_bytes * 2),
            buffers=(2, 4, 6),
            warmup=(one for one in WARM_UPS if one != plan.warmup),
        )

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        job = plan.jobs[-1]
        return {
            "tiles": self.tiles(shape, plan),
            "k_tile": max(block[1] for block in job.blocks),
            "k_tiles": len(job.blocks),
            "c_tile": plan.depth,
            "c_tiles": len(job.chunks),
            "c_tiles_together": plan.together,
            "columns_of_taps": plan.T,
            "banks": len(plan.banks),
            "shares_contraction": int(plan.shard == "contraction"),
            "warmup": plan.warmup,
        }

    def tiles(self, shape: Shape, plan: Any) -> int:
        pieces: Callable[[Any, Any], list[Any]] = pieces_of
        return sum(len(pieces(plan, job)) for job in plan.jobs)


ALGORITHM = Deep()
