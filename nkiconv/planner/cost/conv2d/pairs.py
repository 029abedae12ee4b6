"""`pairs` on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....kernels.conv2d.pairs.plan import PAIRS_FILTER_BYTES, PAIRS_X_BYTES, pairs_ns
from ...request import Config
from ..algorithm import Shape, config_of
from .common import CHANNELS, Conv2dAlgorithm


class Pairs(Conv2dAlgorithm):
    """Two steps of fp8 a matmul."""

    algorithm = "pairs"
    from_one = ("x_bytes", "filter_bytes", "channels", "buffers")

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(pairs_ns(geometry, plan))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        found: list[Config] = [None, config_of(shard="channels"), config_of(shard="images")]
        found += [config_of(x_bytes=PAIRS_X_BYTES // 2), config_of(halves=0), config_of(halves=1)]
        more = [config_of(staged=0), config_of(staged=1), config_of(fold=0), config_of(fold=1)]
        return found + (more if wide else [])

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now, plan = dict(config or ()), self.plan(shape, config)
        x_bytes = now.get("x_bytes", PAIRS_X_BYTES)
        filter_bytes = now.get("filter_bytes", PAIRS_FILTER_BYTES)
        return self.changed(
            config,
            x_bytes=(x_bytes // 2, x_bytes * 2),
            staged=(1 - plan.staged,),
            halves=(1 - plan.halves,),
            fold=(0, 1),
            shard=("images", "channels"),
            channels=CHANNELS,
            filter_bytes=(filter_bytes // 2, filter_bytes * 2),
            buffers=(2, 3, 4),
            warmup=(one for one in (0, 12, 16, 20, 28) if one != plan.warmup),
            banks=(1, 2, 8),
        )

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        jobs = [job for batch in plan.batches for job in batch]
        bands = [item.band for item in plan.items]
        return {
            "tiles": len(plan.items),
            "batches": len(plan.batches),
            "jobs": len(jobs),
            "k_tile": max(job.kn for job in jobs),
            "c_tile": plan.chunks[0].cn,
            "c_tiles": len(plan.chunks),
            "copies": plan.chunks[-1].depth,
            "images_per_bank": plan.together,
            "n_band": max(band.nn for band in bands),
            "p_band": max(band.pn for band in bands),
            "q_band": max(band.qn for band in bands),
            "buffers": plan.buffers,
            "halves": int(plan.halves),
            "staged": int(plan.staged),
            "banks_per_store": plan.banks,
            "warmup": plan.warmup,
        }


ALGORITHM = Pairs()
