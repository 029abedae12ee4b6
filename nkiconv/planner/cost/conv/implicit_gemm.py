"""`implicit_gemm` on the host."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ....kernels.conv.relayout import plain_of
from ....schedules.device_loops import MOST_INSTRUCTIONS
from ....schedules.implicit_gemm import FOLDS, PRODUCTS, X_BYTES, ImplicitGemmSettings
from ....schedules.implicit_gemm_build import (
    WARM_UP,
    config_unsupported,
    fold_unsupported,
    loop_unsupported,
    plan_implicit_gemm,
    products_unsupported,
    read_settings,
)
from ....schedules.implicit_gemm_channels import ALONE, FILTER_BYTES, MTile, can_together, m_tiles_of
from ....schedules.implicit_gemm_schedule import Schedule, build
from ....schedules.tiles import PARTS
from ...request import Config
from ..algorithm import Shape, config_of, pairs_of
from .common import LONG, Conv2dAlgorithm
from .implicit_gemm_bound import Work, bound_ns

#: How much less folded channels must take.
WORTHWHILE = 0.98
#: Of pairs, whose filters take long to transpose next to their matmuls, what may be longer where cores share channels.
TIE = 1.001
#: Matmuls that warm the array up, at most.
WARM_UP_MOST = 64
#: And while the first filters become pairs.
WARM_UP_PAIRS = 8
#: Instructions of a core, at most, above which output tiles that are alike are worked on in a loop on the device: the
#: bound is two to four times what there are, and a video decoder's graph has dozens of such kernels.
LOOP_FROM = 20_000
#: The least of that, where cores share images; where they share channels it may be all.
BOUND_OVER_COUNT = 2
#: Of pairs of planes, bytes per partition of SBUF for sums of frames of an output tile that are tried, for each of
#: filters.
PAIRS_X_BYTES = (49_152, 40_960, 32_768, 24_576, 16_384, 8192)
#: Banks of sums of M tiles that are made together, at most: the next ones' begin in others, and filters are transposed
#: in one.
TOGETHER_BANKS = 5


def plain(shape: Shape) -> Any:
    """The Geometry that the kernel sees."""
    return shape.once(("implicit_gemm, plain", None), lambda: plain_of("implicit_gemm", shape.geometry, shape.options))


#: Parts of X_BYTES that are tried for the sums of a norm.
NORM_X_PARTS = (1, 2, 4, 8)


class Taps(Conv2dAlgorithm):
    """One matmul a tap."""

    algorithm, unsupported_reason = "implicit_gemm", staticmethod(config_unsupported)
    order = ("fold", "product")

    def settings_of(self, geometry: Any, config: Config) -> type[Any]:
        return ImplicitGemmSettings

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> ImplicitGemmSettings:
        products = [one for one in PRODUCTS if not products_unsupported(geometry, shape.options, one)]
        if len(products) == 1 or "product" in given:
            return self._chosen(shape, {"product": products[0], **given})
        ways = [
            {"product": product, "fold": fold, **given}
            for product, fold in itertools.product(products, FOLDS)
            if not fold_unsupported(geometry, shape.options, given.get("fold", fold), product)
        ]
        return min((self._chosen(shape, one) for one in ways), key=lambda one: self._taken_ns(shape, one))

    def _taken_ns(self, shape: Shape, settings: ImplicitGemmSettings) -> float:
        """ns of all settings; those that are refused take longest."""
        plan, reason = plan_implicit_gemm(plain(shape), shape.options, pairs_of(settings), shape.cores)
        return math.inf if reason else bound_ns(shape.target, plain(shape), plan)

    def _chosen(self, shape: Shape, given: Mapping[str, Any]) -> ImplicitGemmSettings:
        if shape.options.epilogue.norm is not None and "x_bytes" not in given:
            # the most of x beside which SBUF holds the filters of all channels of a pixel
            tried = [_Choice(shape, {"x_bytes": X_BYTES // part, **given}).settings() for part in NORM_X_PARTS]
            return next((found for found, schedule in tried if len(schedule.batches) == 1), tried[0][0])
        if plain(shape).direct is None or "x_bytes" in given:
            return _Choice(shape, given).settings()[0]
        # the longest filters that SBUF holds next to some sums of frames
        best, longest = None, -1
        for x_bytes in PAIRS_X_BYTES:
            found, schedule = _Choice(shape, {"x_bytes": x_bytes, **given}).settings()
            filter_bytes = schedule.filter_bytes if schedule.spare_bytes >= 0 else 0
            if best is None or filter_bytes > longest or filter_bytes == 0:
                best, longest = found, filter_bytes
            if filter_bytes == FILTER_BYTES:
                break
        assert best is not None
        return best

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return bound_ns(shape.target, geometry, plan)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        plan = self.plan(shape, None)
        if plan is None or (not wide and self._instructions(shape, plan) > LONG):
            return [None]
        found: list[Config] = [None, config_of(x_bytes=X_BYTES // 2), config_of(x_bytes=X_BYTES // 4)]
        found += [config_of(shard="channels"), config_of(shard="images")]
        return found + ([config_of(x_bytes=X_BYTES // 8)] if wide else [])

    def _instructions(self, shape: Shape, plan: Any) -> int:
        """Of all cores, at most."""
        return shape.cores * _scaled(plain(shape), plan, shape.cores)

    def is_short(self, shape: Shape, config: Config) -> bool:
        plan = self.plan(shape, config)
        count = _scaled(plain(shape), plan, shape.cores)
        least = 1 if dict(self.complete(shape, config) or ())["shard"] == "channels" else BOUND_OVER_COUNT
        return bool(plan.loop > 0 or count <= least * MOST_INSTRUCTIONS)

    def near(self, shape: Shape, config: Config) -> list[Config]:
        known = {"x_bytes": dict(config or ()).get("x_bytes", X_BYTES), "warmup": self.plan(shape, config).warmup}
        return list(ImplicitGemmSettings.near(config, known))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        m_tiles = [m_tile for batch in plan.batches for m_tile in batch]
        out_tiles = [item.out_tile for item in plan.items]
        return {
            "tiles": len(plan.items),
            "batches": len(plan.batches),
            "jobs": len(m_tiles),
            "k_tile": max(m_tile.kn for m_tile in m_tiles),
            "c_tile": max(k_tile[1] for m_tile in m_tiles for k_tile in m_tile.k_tiles),
            "c_tiles": max(len(m_tile.k_tiles) for m_tile in m_tiles),
            "groups_per_job": max(m_tile.pack for m_tile in m_tiles),
            "n_band": max(out_tile.zn for out_tile in out_tiles),
            "p_band": max(out_tile.pn for out_tile in out_tiles),
            "q_band": max(out_tile.qn for out_tile in out_tiles),
            "warmup": plan.warmup,
            "chunks_outside": int(plan.together),
        }


def _scaled(geometry: Any, plan: Any, cores: int) -> int:
    """Instructions of a core, at most, of all parts that a problem has."""
    return int(plan.instructions(cores)) * int(geometry.times)


class _Choice:
    """The settings that a config leaves open, chosen one after the other."""

    def __init__(self, shape: Shape, given: Mapping[str, Any]) -> None:
        self.geometry, self.options, self.given = plain(shape), shape.options, given
        self.work = Work(shape.target, plain(shape), shape.options.prologue)

    def settings(self) -> tuple[ImplicitGemmSettings, Schedule]:
        """(all settings, a Schedule that takes as much of SBUF)."""
        geometry, options = self.geometry, self.options
        defaults = read_settings(geometry, options, None, self.given["product"])
        fold = self.given.get("fold") or self._fold(defaults)
        by_channels = self._by_channels(self._m_tiles(defaults, fold))
        shard = "channels" if by_channels else "images"
        draft = dataclasses.replace(defaults, **{"shard": shard, "fold": fold, "order": "banks", **self.given})
        schedule = build(geometry, options, draft)
        m_tiles = [m_tile for batch in schedule.batches for m_tile in batch]
        found: dict[str, Any] = {}
        if geometry.packed == 0:
            least = WARM_UP if m_tiles[0].k_tiles[0].pairing == ALONE else 0
            found["warmup"] = max(least, self.work.warm_count(m_tiles[0], WARM_UP_MOST))
        if geometry.precision == "fp16x3":
            found["warmup"] = found.get("warmup", defaults.warmup) + WARM_UP_PAIRS
        found["moved"] = self.work.moved_m_tiles(m_tiles, schedule.items[0].out_tile, by_channels)
        together = self.work.waits_for_dma(m_tiles, by_channels) and self._few_banks(schedule)
        found["order"] = "chunks" if together else "banks"
        chosen = dataclasses.replace(draft, **{**found, **self.given})
        chosen = dataclasses.replace(chosen, loop=self.given.get("loop", self._loop(chosen)))
        return chosen, dataclasses.replace(schedule, settings=dataclasses.replace(draft, order=chosen.order))

    def _loop(self, chosen: ImplicitGemmSettings) -> int:
        """Pairs of output tiles that the body of a loop on the device holds: one where a core takes many instructions
        without and fewer with it."""
        if loop_unsupported(self.geometry, self.options, 1, chosen.product):
            return 0
        unrolled = self._instructions(dataclasses.replace(chosen, loop=0))
        few = unrolled <= LOOP_FROM
        return int(not few and self._instructions(dataclasses.replace(chosen, loop=1)) < unrolled)

    def _instructions(self, chosen: ImplicitGemmSettings) -> int:
        """What a compiler sees of a core, at most."""
        plan = build(self.geometry, self.options, chosen)
        return _scaled(self.geometry, plan, PARTS)

    def _m_tiles(self, defaults: ImplicitGemmSettings, fold: str) -> list[MTile]:
        return m_tiles_of(self.geometry, dataclasses.replace(defaults, fold=fold), self.options.strict_nonfinite)

    def _fold(self, defaults: ImplicitGemmSettings) -> str:
        """What is best folded."""
        found, found_ns = FOLDS[0], math.inf
        for fold in FOLDS:
            if not fold_unsupported(self.geometry, self.options, fold, defaults.product):
                m_tiles = self._m_tiles(defaults, fold)
                ns = self.work.core_ns(m_tiles, self._by_channels(m_tiles))
                if ns < WORTHWHILE * found_ns:
                    found, found_ns = fold, ns
        return str(found)

    def _by_channels(self, m_tiles: Sequence[Any]) -> bool:
        """Whether the cores share output channels, and each takes all of x, or images and rows of them."""
        if "shard" in self.given or len(m_tiles) == 1 or self.options.epilogue.norm is not None:
            return self.given.get("shard") == "channels" and len(m_tiles) > 1
        more = TIE if m_tiles[0].k_tiles[0][3] != ALONE else 1.0
        return self.work.core_ns(m_tiles, True) <= more * self.work.core_ns(m_tiles, False)

    def _few_banks(self, plan: Any) -> bool:
        """Whether the sums of all M tiles of each batch for an output tile can be made together, and need few banks."""
        return all(
            len(batch) > 1 and can_together(self.geometry, batch) and plan.banks_together(index) <= TOGETHER_BANKS
            for index, batch in enumerate(plan.batches)
        )


ALGORITHM = Taps()
