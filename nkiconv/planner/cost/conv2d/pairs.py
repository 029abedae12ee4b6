"""`pairs` on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....kernels._tiles import BANK_COLUMNS, PARTS
from ....kernels.conv2d.pairs.chunks import chunks_of, num_passes, num_steps
from ....kernels.conv2d.pairs.config import (
    PAIRS_FILTER_BYTES,
    PAIRS_SETTINGS,
    PAIRS_X_BYTES,
    pairs_config_refusal,
    read_pairs,
    usual_pairs,
)
from ....kernels.conv2d.pairs.extents import is_dense
from ....kernels.conv2d.pairs.plan import pairs_refusal
from ....kernels.conv2d.pairs.work import (
    can_halve,
    can_stage,
    image_pitch,
    jobs_of,
    most_together,
    parts_of_image,
)
from ....kernels.conv2d.relayout import plain_of
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Shape, config_of, pairs_of
from .common import CHANNELS, Conv2dAlgorithm

#: ns until the first matmul, and from the last one to the last byte of y.
START_NS = 3200.0
END_NS = 2000.0
#: Share of the array's time that DMAs may take before they are what counts.
DMA_SHARE = 0.8
#: The same for rows of x that are put in place on chip if their own DMAs would take more: the first sums wait for them.
STAGED_SHARE = 0.28


@dataclass(frozen=True)
class Work:
    """What one of two cores has to do."""

    geometry: Any
    target: Target
    #: matmuls of a bank of sums, jobs, images of a bank
    passes: int
    jobs: int
    together: int

    def array_ns(self, halves: bool) -> float:
        """For the matmuls, at the array's full rate."""
        rows, columns, target = self.geometry.rows, self.geometry.columns, self.target
        parts = parts_of_image(self.geometry)
        if self.together > 1:
            each_ns = bank_ns(target, min(BANK_COLUMNS, self.together * rows.out * columns.out))
        else:
            each_ns = bank_ns(target, parts[0][1] * min(columns.out, BANK_COLUMNS))
            each_ns *= len(parts) * -(-columns.out // BANK_COLUMNS)
        total = self.passes * each_ns
        if halves:
            # half of the last pass, and the distance between the two that share the array
            total += target.row_tile_columns * target.tensor_column_ns * len(parts) / 2 - each_ns / 2
        return float(-(-self.geometry.N // self.together) * total * self.jobs / PARTS)

    def loads_ns(self, halves: bool, staged: bool) -> float:
        """For all of x; `halves`: twice."""
        geometry, run_ns = self.geometry, self.target.run_ns
        height, width = geometry.rows.size, geometry.columns.size
        count = geometry.N * geometry.C * (1 + halves)
        if staged or (is_dense(geometry.columns) and geometry.x_w == 1 and geometry.x_h == width):
            busy_ns = run_ns(height * width * geometry.itemsize)
        elif geometry.x_w == 1:
            busy_ns = height * run_ns(width * geometry.itemsize)
        else:
            busy_ns = height * width * run_ns(geometry.itemsize)
        hbm_ns = height * width * geometry.itemsize * self.target.hbm_byte_ns
        return float(count * max(busy_ns / self.target.dma_engines, hbm_ns))

    def stores_ns(self) -> float:
        """For half of y, of 16 bits."""
        geometry, P, Q = self.geometry, self.geometry.rows.out, self.geometry.columns.out
        run = Q if geometry.y_q == 1 else 1
        if geometry.y_q == 1 and geometry.y_p == Q:
            run *= max(1, min(P, BANK_COLUMNS // Q))
        each_ns = max(self.target.run_ns(2 * run) / run / self.target.dma_engines, 2 * self.target.hbm_byte_ns)
        return float(geometry.N * geometry.K * P * Q * each_ns / PARTS)

    def shard(self) -> str:
        """Channels of the output, so that each core transposes half of the filters, unless x comes too slowly then."""
        dma_ns = min(self.loads_ns(False, False), self.loads_ns(False, can_stage(self.geometry))) + self.stores_ns()
        even = self.jobs % PARTS == 0
        return "channels" if even and dma_ns <= DMA_SHARE * self.array_ns(False) else "images"

    def halves_pay(self, sharers: int) -> bool:
        """Whether the longer one of array and DMA takes less, though x comes twice; sharers: cores that share x."""
        dma_ns = [(self.loads_ns(one, False) / sharers + self.stores_ns()) / DMA_SHARE for one in (False, True)]
        return max(self.array_ns(True), dma_ns[True]) < max(self.array_ns(False), dma_ns[False])

    def staging_pays(self, sharers: int) -> bool:
        """Whether rows of x are so short that DMAs of them would keep the array waiting."""
        slow_ns, fast_ns = (self.loads_ns(False, one) / sharers for one in (False, can_stage(self.geometry)))
        return 2 * fast_ns < slow_ns and slow_ns + self.stores_ns() > STAGED_SHARE * self.array_ns(False)


def bank_ns(target: Target, columns: int) -> float:
    """ns of a matmul of so many columns."""
    return max(columns, target.matmul_columns_min) * target.tensor_column_ns + target.matmul_ns


def images_together(geometry: Any, target: Target) -> int:
    """Images of one bank of sums, where a matmul for each would be too short; some are left for either core."""
    P, Q = geometry.rows.out, geometry.columns.out
    pitch = image_pitch(geometry) // geometry.rows.stride

    def all_ns(count: int) -> float:
        whole, rest = divmod(geometry.N, count)
        if count == 1:
            return float(geometry.N * bank_ns(target, P * Q))
        found = whole * bank_ns(target, ((count - 1) * pitch + P) * Q)
        return float(found + (bank_ns(target, ((rest - 1) * pitch + P) * Q) if rest else 0.0))

    return min(range(1, min(most_together(geometry), -(-geometry.N // PARTS)) + 1), key=all_ns)


class Pairs(Conv2dAlgorithm):
    """Two steps of fp8 a matmul."""

    algorithm = "pairs"
    from_one = ("x_bytes", "filter_bytes", "channels", "buffers", "images", "last_columns")

    def settle(self, shape: Shape, config: Config) -> Config:
        refused = pairs_config_refusal(config) or pairs_refusal(shape.geometry, shape.extras)
        given = {} if refused else dict(config or ())
        if refused or tuple(given) == PAIRS_SETTINGS:
            return config
        geometry = plain_of(self.algorithm, shape.geometry, shape.extras)
        usual = dataclasses.replace(
            usual_pairs(geometry, PAIRS_X_BYTES),
            images=images_together(geometry, shape.target),
            last_columns=shape.target.matmul_columns_min,
        )
        found = read_pairs(config, usual)
        return pairs_of(dataclasses.replace(found, **{**self._priced(shape.target, geometry, found, given), **given}))

    def _priced(self, target: Target, geometry: Any, found: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """What two cores share, and whether halves and staging pay, under settings that are found."""
        chunks = chunks_of(geometry, found.fold == 1)
        jobs = len(jobs_of(geometry, chunks, found))
        together = min(found.images, most_together(geometry))
        work = Work(geometry, target, num_passes(geometry, chunks), jobs, together)
        shard = given.get("shard") or work.shard()
        sharers = 1 if jobs > 1 and shard == "channels" else PARTS
        halves = can_halve(geometry, chunks) and work.halves_pay(sharers)
        staged = can_stage(geometry) and work.staging_pays(sharers)
        return {"shard": shard, "halves": int(halves), "staged": int(staged)}

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        """Of the busier of two cores: for the matmuls and the filters that it transposes, or for DMAs if those are
        longer."""
        jobs = sum(len(batch) for batch in plan.batches)
        work = Work(geometry, shape.target, num_passes(geometry, plan.chunks), jobs, plan.together)
        sharers = PARTS if len(plan.batches) == 1 else 1
        array_ns = work.array_ns(plan.halves)
        if geometry.packed == 0:
            turns = jobs * sharers / PARTS * num_steps(geometry, plan.chunks)
            array_ns += turns * bank_ns(shape.target, PARTITIONS)
        dma_ns = work.loads_ns(plan.halves, plan.staged) / sharers + work.stores_ns()
        return START_NS + max(array_ns, dma_ns) + END_NS

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
