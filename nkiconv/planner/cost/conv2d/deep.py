"""`deep` on the host: which share and how many columns of taps take least; a plan's time, by `deep_walk`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ....kernels.conv2d.deep.config import DEEP_SHARDS, deep_config_refusal, deep_settings, read_deep
from ....kernels.conv2d.deep.plan import deep_refusal
from ....kernels.conv2d.deep.tiling import QUADRANT, deep_fits, is_copied, make_deep, pieces_of
from ....kernels.conv2d.relayout import plain_of
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Shape, config_of, pairs_of
from .common import WARM_UPS, Conv2dAlgorithm
from .deep_walk import Walk, warm_count


class Deep(Conv2dAlgorithm):
    """Few outputs whose contraction, or whose channels, the cores share."""

    algorithm = "deep"
    from_one = ("taps", "filter_bytes")

    def settle(self, shape: Shape, config: Config) -> Config:
        key = "deep, least", config
        if key not in shape.memo:
            shape.memo[key] = self._least(shape, config)
        found: Config = shape.memo[key]
        return found

    def _least(self, shape: Shape, config: Config) -> Config:
        """All settings, those left open so that the plan takes least; itself where none runs."""
        extras, precision = shape.extras, shape.geometry.precision
        if precision == "fp16x3" or deep_config_refusal(config) or deep_refusal(shape.geometry, extras):
            return config
        geometry, given = plain_of("deep", shape.geometry, extras), dict(config or ())
        shards = [given["shard"]] if "shard" in given else DEEP_SHARDS
        taps = [given["taps"]] if "taps" in given else range(1, PARTITIONS // QUADRANT + 1)
        tried = [read_deep(config, deep_settings(one, T, 0)) for one in shards for T in taps]
        if len(tried) == 1 and "warmup" in given:
            return pairs_of(tried[0])
        least_ns, best = 0.0, None
        for settings in tried:
            plan = make_deep(geometry, settings)
            fits = deep_fits(geometry, extras, plan)
            if not fits or (extras.strict_nonfinite and is_copied(plan.window)):
                continue
            if "warmup" not in given:
                plan.warmup = warm_count(shape.target, geometry, plan)
            ns = Walk(shape.target, geometry, plan).end()
            if best is None or ns < least_ns:
                least_ns, best = ns, dataclasses.replace(settings, warmup=plan.warmup)
        return pairs_of(best) if best else config

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return Walk(shape.target, geometry, plan).end()

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [None, *(config_of(shard=one) for one in DEEP_SHARDS)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(self.settle(shape, config) or ())
        taps, filter_bytes = now["taps"], now["filter_bytes"]
        return self.changed(
            config,
            shard=(one for one in DEEP_SHARDS if one != now["shard"]),
            taps=(taps - 1, taps + 1),
            filter_bytes=(filter_bytes // 4, filter_bytes // 2, filter_bytes * 2),
            buffers=(2, 4, 6),
            warmup=(one for one in WARM_UPS if one != now["warmup"]),
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
