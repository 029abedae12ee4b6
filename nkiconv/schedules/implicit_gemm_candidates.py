"""Candidate settings of `implicit_gemm` in order of their bound, for bare kernels and for the host's search; and the
schedule of a config, with its open settings filled in by the least bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .geometry import Geometry, num_taps
from .implicit_gemm import ALONE, FOLDS, ORDERS, PRODUCTS, SHARDS, X_BYTES, ImplicitGemmSettings, can_move, can_together
from .implicit_gemm_bound import Bound
from .implicit_gemm_products import banks_of
from .implicit_gemm_schedule import Schedule, build
from .implicit_gemm_unsupported import (
    config_unsupported,
    fold_unsupported,
    loop_unsupported,
    products_unsupported,
    room_unsupported,
)
from .options import Options
from .prices import warm_up_of
from .settings import Config, values_of
from .tiles import PARTS

#: Most banks of sums of M tiles whose sums are made together: the next ones' sums begin in other banks, and filters are
#: transposed in one.
TOGETHER_BANKS = 5
#: ns of the bound above which equal output tiles run in a device loop: some 8,000 instructions of a core, and a video
#: decoder's graph has dozens of such kernels.
LOOP_FROM_NS = 2.5e6
#: Candidate bytes a partition of x: for pairs of planes, beside sums of frames; divisors beside the sums of a norm.
PAIRS_X_BYTES, NORM_PARTS = (49_152, 40_960, 32_768, 24_576, 16_384, 8192), (1, 2, 4, 8)


def plan(geometry: Geometry, options: Options, config: Config) -> tuple[Schedule | None, str]:
    """(the schedule, "") or (None, unsupported reason)."""
    reason = config_unsupported(geometry, options, config)
    if reason != "":
        return None, reason
    settings = ImplicitGemmSettings.whole(config)
    if settings is None:
        least = next(candidates(Target.of(Rates()), geometry, options, config), None)
        settings = least[1] if least else next(tried(geometry, options, config))
    schedule = build(geometry, options, settings)
    reason = room_unsupported(schedule)
    return (schedule, "") if reason == "" else (None, reason)


def candidates(
    target: Target, geometry: Geometry, options: Options, config: Config, most_ns: float = math.inf
) -> Iterator[tuple[float, ImplicitGemmSettings]]:
    """(bound, complete settings) that run and contain the given ones, by ascending bound of plain settings, none
    above most_ns."""
    if config_unsupported(geometry, options, config) != "":
        return
    given, bound, found = dict(config or ()), Bound(target, geometry, options), list[tuple[float, Schedule]]()
    for one in tried(geometry, options, config):
        schedule = build(geometry, options, one)
        known = any((other.batches, other.items) == (schedule.batches, schedule.items) for _, other in found)
        if not known and room_unsupported(schedule) == "":
            found.append((bound.ns(schedule), schedule))
    for ns, schedule in sorted(found, key=lambda each: each[0]):
        if ns > most_ns:
            return
        settings = completed(bound, schedule, given)
        if replace(settings, warmup=schedule.settings.warmup) == schedule.settings:  # the same room and bound
            yield ns, settings
        elif room_unsupported(whole := build(geometry, options, settings)) == "":
            yield bound.ns(whole), settings


def tried(geometry: Geometry, options: Options, config: Config) -> Iterator[ImplicitGemmSettings]:
    """Combinations of product, fold, x_bytes and shard that the problem supports; the other settings are plain."""
    given, norm = dict(config or ()), options.epilogue.norm is not None
    shards = SHARDS[1:] if norm else SHARDS
    sizes = [X_BYTES] if geometry.direct is None else [*PAIRS_X_BYTES]
    sizes = [X_BYTES // part for part in NORM_PARTS] if norm else sizes
    plain = {"warmup": 0, "moved": 0, "order": ORDERS[0], "loop": 0, **given}
    for product, fold in itertools.product(values_of(given, "product", PRODUCTS), values_of(given, "fold", FOLDS)):
        reason = products_unsupported(geometry, options, product) or fold_unsupported(geometry, options, fold, product)
        if reason == "" and plain["loop"] > 0:
            reason = loop_unsupported(geometry, options, plain["loop"], product)
        pairs = itertools.product(values_of(given, "x_bytes", sizes), values_of(given, "shard", shards))
        for x_bytes, shard in pairs if reason == "" else ():
            yield ImplicitGemmSettings(
                **{**plain, "product": product, "fold": fold, "x_bytes": x_bytes, "shard": shard}
            )


def completed(bound: Bound, schedule: Schedule, given: dict[str, Any]) -> ImplicitGemmSettings:
    """A schedule's settings with the open ones (warmup, moved, order, loop) filled in."""
    geometry, options, target, m_tile = bound.geometry, bound.options, bound.target, schedule.batches[0][0]
    busy, tile = bound.core(schedule), schedule.items[0].out_tile
    alone = m_tile.k_tiles[0].pairing == ALONE
    warmup = warm_up_of(target, bound.filters_there_ns(m_tile), busy.tensor, least=alone)
    # as many M tiles as DMA has time for, if the sums of an M tile for an output tile take longer than its moves
    moved, move_ns = 0, bound.move_ns(m_tile)
    # a load, an engine's copy, a DMA transpose
    first_move_ns = 2 * target.first_load_ns + target.vector_done_ns + target.hop_dma_ns + target.hwdge_issue_ns
    pixels = tile.zn * tile.pn * tile.qn
    sums_ns = bound.m_tile(m_tile, pixels, len(banks_of(tile, False)), False).tensor
    if can_move(geometry) and sums_ns >= first_move_ns + move_ns:
        filters_ns = sum(bound.transposing_ns(one) for batch in schedule.batches for one in batch)
        halves = PARTS if len(schedule.batches) > 1 else 1
        idle_ns = busy.tensor - filters_ns / halves - busy.dma
        moved = max(0, min(sum(map(len, schedule.batches)) // halves, int(idle_ns / move_ns)))
    # of several taps, DMA brings filters more than x: sums one by one need them later
    waits = num_taps(geometry) == 1 and busy.dma > busy.tensor
    together = waits and all(
        len(batch) > 1 and can_together(geometry, batch) and schedule.banks_together(index) <= TOGETHER_BANKS
        for index, batch in enumerate(schedule.batches)
    )
    open_ones = {"warmup": warmup, "moved": moved, "order": ORDERS[together], "loop": 0}
    chosen = replace(schedule.settings, **{**open_ones, **given})
    if "loop" not in given and loop_unsupported(geometry, options, 1, chosen.product) == "":
        looped = replace(chosen, loop=1)  # of one pair of output tiles
        if geometry.times * bound.ns(schedule) > LOOP_FROM_NS and build(geometry, options, looped).is_looped:
            chosen = looped
    return chosen
