"""`implicit_gemm` on the host."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ....kernels.conv.relayout import plain_of
from ....schedules.implicit_gemm import FOLDS, PRODUCTS, X_BYTES, ImplicitGemmSettings
from ....schedules.implicit_gemm_build import (
    SHORTER,
    WARM_UP,
    config_refusal,
    default_settings,
    fold_refusal,
    loop_refusal,
    plan_implicit_gemm,
    products_refusal,
)
from ....schedules.implicit_gemm_channels import ALONE, FILTER_BYTES, can_together, jobs_of
from ....schedules.implicit_gemm_schedule import build
from ....schedules.settings import declarations
from ....schedules.tiles import PARTS, share
from ....simulator.hardware import SBUF_USABLE_BYTES_PER_PARTITION
from ...request import Config
from ..algorithm import MOST_INSTRUCTIONS, Shape, config_of, pairs_of
from .common import LONG, SURE, ByTap
from .implicit_gemm_price import taps_ns
from .implicit_gemm_work import Work

#: How much less folded channels must take.
WORTHWHILE = 0.98
#: Of pairs, whose filters take long to transpose beside their matmuls, what may be longer where cores share channels.
TIE = 1.001
#: Matmuls that warm the array up, at most.
WARM_UP_MOST = 64
#: And while the first filters become pairs.
WARM_UP_PAIRS = 8
#: Instructions of a core, at most, above which bands that are alike are worked on in a loop on the device: the bound is
#: two to four times what there are, and a video decoder's graph has dozens of such kernels.
LOOP_FROM = 20_000
#: The least of that, where cores share images; where they share channels it may be all.
BOUND_OVER_COUNT = 2
#: Of pairs of planes, bytes per partition of SBUF for sums of frames of a band that are tried, for each of filters.
PAIRS_X_BYTES = (49_152, 40_960, 32_768, 24_576, 16_384, 8192)
#: Banks of sums of jobs that are made together, at most: the next ones' begin in others, and filters are transposed in
#: one.
TOGETHER_BANKS = 5


def plain(shape: Shape) -> Any:
    """The Geometry that the kernel sees."""
    return shape.once(("implicit_gemm, plain", None), lambda: plain_of("implicit_gemm", shape.geometry, shape.extras))


class Taps(ByTap):
    """One matmul a tap."""

    algorithm = "implicit_gemm"
    order = ("fold", "product")

    def settle(self, shape: Shape, config: Config) -> Config:
        return shape.once(("taps, settled", config), lambda: self._settled(shape, config))

    def _settled(self, shape: Shape, config: Config) -> Config:
        if config_refusal(plain(shape), shape.extras, config):
            return config
        given = dict(config or ())
        names = declarations(ImplicitGemmSettings)
        if len(given) == len(names):
            return tuple((name, given[name]) for name in names)
        products = [one for one in PRODUCTS if not products_refusal(plain(shape), shape.extras, one)]
        if len(products) == 1 or "product" in given:
            return pairs_of(self._chosen(shape, {"product": products[0], **given}))
        ways = [
            {"product": product, "fold": fold, **given}
            for product, fold in itertools.product(products, FOLDS)
            if not fold_refusal(plain(shape), shape.extras, given.get("fold", fold), product)
        ]
        return pairs_of(min((self._chosen(shape, one) for one in ways), key=lambda one: self._taken_ns(shape, one)))

    def _taken_ns(self, shape: Shape, settings: ImplicitGemmSettings) -> float:
        """ns of all settings; those that are refused take longest."""
        plan, reason = plan_implicit_gemm(plain(shape), shape.extras, pairs_of(settings), shape.cores)
        return math.inf if reason else taps_ns(shape.target, plain(shape), plan)

    def _chosen(self, shape: Shape, given: Mapping[str, Any]) -> ImplicitGemmSettings:
        own = plain(shape).direct is None
        for shorter, x_bytes in itertools.product(SHORTER, (X_BYTES,) if own else PAIRS_X_BYTES):
            tried = {"filter_bytes": FILTER_BYTES // shorter, **({} if own else {"x_bytes": x_bytes}), **given}
            found, room = _Choice(shape, tried).settings()
            if room >= 0 or ("filter_bytes" in given and (own or "x_bytes" in given)):
                break
        return found

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return taps_ns(shape.target, geometry, plan)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        plan = self.plan(shape, None)
        if plan is None or (not wide and self._instructions(shape, plan) > LONG):
            return [None]
        found: list[Config] = [None, config_of(x_bytes=X_BYTES // 2), config_of(x_bytes=X_BYTES // 4)]
        found += [config_of(shard="channels"), config_of(shard="images")]
        return found + ([config_of(x_bytes=X_BYTES // 8), config_of(channels=64)] if wide else [])

    def _instructions(self, shape: Shape, plan: Any) -> int:
        """Of all cores, at most."""
        return shape.cores * _scaled(plain(shape), plan, shape.cores)

    def is_short(self, shape: Shape, config: Config) -> bool:
        plan = self.plan(shape, config)
        count = _scaled(plain(shape), plan, shape.cores)
        least = 1 if dict(self.settle(shape, config) or ())["shard"] == "channels" else BOUND_OVER_COUNT
        return bool(plan.loop > 0 or count <= least * MOST_INSTRUCTIONS)

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = {"x_bytes": X_BYTES, "filter_bytes": FILTER_BYTES, **dict(config or ())}
        known = {"x_bytes": now["x_bytes"], "filter_bytes": now["filter_bytes"]}
        return list(ImplicitGemmSettings.near(config, {**known, "warmup": self.plan(shape, config).warmup}))

    def is_looped(self, shape: Shape, config: Config) -> bool:
        return bool(self.plan(shape, config).loop)

    def least_us(self, shape: Shape, config: Config) -> float:
        jobs = [job for batch in self.plan(shape, config).batches for job in batch]
        return SURE * Work(shape.target, plain(shape)).array_ns(jobs) / shape.cores / 1e3

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        return {**super().symbols(shape, config), "chunks_outside": int(plan.together)}


def _scaled(geometry: Any, plan: Any, cores: int) -> int:
    """Instructions of a core, at most, of all parts that a problem has."""
    return int(plan.instructions(cores)) * int(geometry.times)


class _Choice:
    """The settings that a config leaves open, chosen one after the other."""

    def __init__(self, shape: Shape, given: Mapping[str, Any]) -> None:
        self.geometry, self.extras, self.given = plain(shape), shape.extras, given
        self.work = Work(shape.target, plain(shape))

    def settings(self) -> tuple[ImplicitGemmSettings, int]:
        """(all settings, bytes per partition of SBUF that they leave)."""
        geometry, extras = self.geometry, self.extras
        defaults = default_settings(geometry, extras, self.given["filter_bytes"], self.given["product"])
        fold = self.given.get("fold") or self._fold(defaults)
        jobs = self._jobs(defaults, fold)
        by_channels = self._by_channels(jobs)
        first: dict[str, Any] = {"shard": "channels" if by_channels else "images", "fold": fold}
        first |= {"order": "banks", "wide": 0}
        draft = dataclasses.replace(defaults, **{**first, **self.given})
        plan = build(geometry, extras, draft)
        found: dict[str, Any] = {"wide": self._wide(plan.items)}
        if found["wide"] > 0 and "wide" not in self.given:
            plan = build(geometry, extras, dataclasses.replace(draft, **found))
        if geometry.packed == 0:
            least = WARM_UP if jobs[0].chunks[0][3] == ALONE else 0
            found["warmup"] = max(least, self.work.warm_count(jobs[0], WARM_UP_MOST))
        if geometry.precision == "fp16x3":
            found["warmup"] = found.get("warmup", defaults.warmup) + WARM_UP_PAIRS
        found["moved"] = self.work.moved_jobs(jobs, plan.items[0].band, by_channels)
        waits_for_dma = self.work.waits_for_dma(jobs, by_channels)
        found["order"] = "chunks" if waits_for_dma and self._few_banks(plan) else "banks"
        plan = dataclasses.replace(plan, together=self.given.get("order", found["order"]) == "chunks")
        room = SBUF_USABLE_BYTES_PER_PARTITION - plan.sbuf_bytes(extras)
        found["whole"] = not waits_for_dma and self._waits_for_room(plan, room)
        chosen = dataclasses.replace(draft, **{**found, **self.given})
        return dataclasses.replace(chosen, loop=self.given.get("loop", self._loop(chosen))), room

    def _loop(self, chosen: ImplicitGemmSettings) -> int:
        """Pairs of bands that the body of a loop on the device holds: one where a core takes many instructions without
        and fewer with it."""
        if loop_refusal(self.geometry, self.extras, 1, chosen.product):
            return 0
        unrolled = self._instructions(dataclasses.replace(chosen, loop=0))
        few = unrolled <= LOOP_FROM
        return int(not few and self._instructions(dataclasses.replace(chosen, loop=1)) < unrolled)

    def _instructions(self, chosen: ImplicitGemmSettings) -> int:
        """What a compiler sees of a core, at most."""
        plan = build(self.geometry, self.extras, chosen)
        return _scaled(self.geometry, plan, PARTS)

    def _jobs(self, defaults: ImplicitGemmSettings, fold: str) -> Sequence[Any]:
        channels = self.given.get("channels", defaults.channels)
        settings = dataclasses.replace(defaults, channels=channels, fold=fold)
        return jobs_of(self.geometry, settings, self.extras.strict_nonfinite)

    def _fold(self, defaults: ImplicitGemmSettings) -> str:
        """What is best folded."""
        found, found_ns = FOLDS[0], math.inf
        for fold in FOLDS:
            if not fold_refusal(self.geometry, self.extras, fold, defaults.product):
                jobs = self._jobs(defaults, fold)
                ns = self.work.core_ns(jobs, self._by_channels(jobs))
                if ns < WORTHWHILE * found_ns:
                    found, found_ns = fold, ns
        return str(found)

    def _by_channels(self, jobs: Sequence[Any]) -> bool:
        """Whether the cores share output channels, and each takes all of x, or images and rows of them."""
        if "shard" in self.given or len(jobs) == 1:
            return self.given.get("shard") == "channels" and len(jobs) > 1
        more = TIE if jobs[0].chunks[0][3] != ALONE else 1.0
        return self.work.core_ns(jobs, True) <= more * self.work.core_ns(jobs, False)

    def _wide(self, items: Sequence[Any]) -> int:
        """Columns of x that are not needed and cost less than a run a row does."""
        size, item, target = self.geometry.columns.size, self.geometry.itemsize, self.work.target
        found = 0
        for columns in sorted({one.band.wn for one in items if one.band.wn > 0}, reverse=True):
            if size * item * target.byte_ns >= target.run_ns(columns * item):
                break
            found = size - columns
        return found

    def _few_banks(self, plan: Any) -> bool:
        """Whether the sums of all jobs of each batch for a band can be made together, and need few banks."""
        return all(
            len(batch) > 1 and can_together(self.geometry, batch) and plan.banks_together(index) <= TOGETHER_BANKS
            for index, batch in enumerate(plan.batches)
        )

    def _waits_for_room(self, plan: Any, room: int) -> bool:
        """Whether SBUF has no room for all of a core's rows of x, so that loads of bands wait until others are done
        with. room: bytes that two bands leave.

        Only the first load of a band does: parts of later bands that come after it would be ahead of it in DMA's queue,
        and the array would wait for all of them. Not so where a folded chunk comes with others: its loads wait for
        zeros beside x, and long loads of the others would be ahead of them.
        """
        chunks = plan.batches[0][0].chunks
        if len(chunks) > 1 and chunks[-1][2] > 1:
            return False
        sizes: list[int] = [plan.x_bytes(item) for item in plan.items]
        parts = [share(len(sizes), PARTS, half) for half in range(PARTS)]
        return max(sum(sizes[first : first + count]) for first, count in parts) > room + 2 * max(sizes)


ALGORITHM = Taps()
