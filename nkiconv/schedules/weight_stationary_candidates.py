"""Candidate settings of `weight_stationary` and `stacked` in order of their bound, for bare kernels and for the host's
search; and the Schedule of a config, with its open settings filled in by the least bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from . import stacked, weight_stationary
from .block_schedule import Schedule
from .cuts import window_of
from .geometry import Geometry, num_phases
from .m_packing import NAMES, PackedSettings, packed_reason, packed_sizes
from .options import Options
from .prices import Busy, Prices, planes_met, total_ns
from .settings import Config, Settings, declarations, values_of
from .tiles import P_MAX, PARTS, QUADRANT, div_ceil
from .weight_stationary import (
    BESIDE,
    BLOCKS,
    SHARDS,
    TILE_ROWS,
    Y_BYTES,
    GroupsSettings,
    PhasesSettings,
    least_columns,
    num_tiles,
    unsupported_phases,
)
from .weight_stationary_bound import Bound, filters_moved_ns

#: Ratio of the Tensor Engine's time to the least bound above which settings are left out.
NEAR = 1.15
#: Rows of y on a partition that are tried, more than one with at most FEW outputs of a block; the number of candidates
#: that are built; sizes of M packing that are bounded, by least work of the Tensor Engine.
V_TRIED, FEW, BUILT, SIZES = (1, 2, 4), 8, 12, 8
#: Bytes a partition of an output tile's results that are tried.
Y_SIZES = (Y_BYTES, Y_BYTES // 2, Y_BYTES // 4)
#: The number of phases above which only one Schedule is built, of 3 to 12.
MANY_PHASES = 100

Sizes = tuple[int, int, int, int, int, int]
SIZES_OF_BLOCKS = ("rows", "shifts", "outputs", "beside", "apart", "rest")
#: (lower bound in ns, settings)
Tried = Iterator[tuple[float, Any]]


def plan(algorithm: str, geometry: Geometry, options: Options, config: Config) -> tuple[Schedule | None, str]:
    """(an algorithm's Schedule, "") or (None, unsupported reason)."""
    family = FAMILIES[algorithm]
    if reason := family.unsupported_reason(geometry, options, config):
        return None, reason
    kind, given, target = family.settings_class(geometry, config), dict(config or ()), Target.of(Rates())
    found: tuple[Schedule | None, str]
    if whole := kind.whole(config):
        found = family.planned(geometry, options, whole)
    elif least := candidates(algorithm, target, geometry, options, config):
        found = family.planned(geometry, options, least[0][1])
    else:
        every = (one for _, one in TRIED[algorithm](target, geometry, options, given))
        reasons = (
            family.unsupported_reason(geometry, options, one.pairs) or family.planned(geometry, options, one)[1]
            for one in every
        )
        found = None, next(reasons, kind.memory_unsupported(geometry))
    return found


def candidates(
    algorithm: str, target: Target, geometry: Geometry, options: Options, config: Config, most_ns: float = math.inf
) -> list[tuple[float, Any]]:
    """(bound, complete settings) that run and contain the given ones, by ascending bound; those above `most_ns`
    may be left out."""
    family, given = FAMILIES[algorithm], dict(config or ())
    if family.unsupported_reason(geometry, options, config):
        return []
    found: list[tuple[float, Any]] = []
    known, best_ns = list[Schedule](), most_ns
    for bound_ns, one in TRIED[algorithm](target, geometry, options, given):
        if len(known) >= BUILT or bound_ns > best_ns:
            break
        if family.unsupported_reason(geometry, options, one.pairs):
            continue
        if isinstance(one, PhasesSettings):  # before millions of tiles are listed; each has a matmul
            columns = max(least_columns(geometry, one), num_tiles(geometry, one) * target.matmul_columns_min)
            if columns * Prices(target, geometry).column_ns > PARTS * NEAR * best_ns:
                continue
        schedule, reason = family.planned(geometry, options, one)
        if reason or schedule in known:
            continue
        known.append(schedule)
        bound = Bound(target, geometry, options, schedule)
        if bound.array_ns <= NEAR * best_ns:
            found.append((bound.ns(), completed(bound, one, given)))
            best_ns = min(best_ns, found[-1][0])
    return sorted(found, key=lambda each: each[0])


def completed(bound: Bound, settings: Settings, given: dict[str, Any]) -> Any:
    """Settings with warm-up matmuls for the time that the Tensor Engine waits, and the blocks of K packing."""
    values = {"warmup": bound.warm_up, "late_warmup": 0, **given}
    if bound.stack is not None:
        values = {"blocks": bound.stack.blocks, **values}
    names = declarations(type(settings))
    return replace(settings, **{name: value for name, value in values.items() if name in names})


# -------------------------------------------------------------------------------------------------- K packing


def stacked_tried(target: Target, geometry: Geometry, options: Options, given: dict[str, Any]) -> Tried:
    """(bound, settings) of `stacked`, by ascending bound."""
    config = tuple(given.items())
    if geometry.groups > 1:
        yield 0.0, stacked.depthwise_settings(geometry, config)
        return
    B, least, found = given.get("rows", 0), stacked_least(target, geometry, options), []
    fixed = tuple(given.get(name, size) for name, size in zip(SIZES_OF_BLOCKS, (B, 1, 1, 1, B, 0), strict=True))
    # channels with an X of their own: none, or those that leave one more copy of the others room
    rest = geometry.C - P_MAX // (P_MAX // geometry.C + 1)
    rests = values_of(given, "rest", [0] if options.prologue.asked or rest == geometry.C else [0, rest])
    for rest, (U, V) in itertools.product(rests, [fixed[2:4]] if B else outputs_tried(geometry)):
        for sizes in [fixed] if B else sizes_tried(geometry, rest, U, V):
            packed = packed_of(geometry, sizes)
            for way in values_of(given, "filters", stacked.ways_of(geometry, sizes[0], U)):
                found.append((least(sizes, packed, way), sizes, way))
    for ns, sizes, way in sorted(found, key=lambda one: one[0]):
        own = dict(zip(SIZES_OF_BLOCKS, sizes, strict=True))
        yield ns, stacked.StackedSettings.read(config, **own, filters=way)


#: The X of some channels: its partitions, D, G, blocks for all rows of y, and the products of each row of y on a
#: partition.
Packed = tuple[int, int, int, int, int]


def packed_of(geometry: Geometry, sizes: Sizes) -> list[Packed]:
    """Each X of some sizes."""
    (B, D, U, V, G, rest), rows, columns = sizes, geometry.rows, geometry.columns
    every = [(geometry.C - rest, B, D, G)]
    every += [(rest, *stacked.rest_sizes(rows, columns, rest, U, V))] if rest else []
    found = []
    for channels, B, D, G in every:
        products = stacked.products_of(rows, columns, B, D, U, V, G)
        taps = products // div_ceil(columns.taps, D)
        last = ((div_ceil(rows.out, U * V) - 1) * U * V + V - 1) * rows.stride // G + (taps - 1) * B // G
        found.append((B * D * channels, D, G, last + 1, products))
    return found


def stacked_least(target: Target, geometry: Geometry, options: Options) -> Callable[[Sizes, list[Packed], str], float]:
    """A lower bound in ns, as a function of sizes, each X and `filters`: of sums, evacuation, and loads and stores."""
    rows, columns, prices = geometry.rows, geometry.columns, Prices(target, geometry, options)
    met, out, size = planes_met(geometry), geometry.planes.out, geometry.planes.size / PARTS
    transposed_ns = target.matmul_done_ns + target.hop_ns + target.vector_done_ns

    @cache
    def loaded_ns(parts: int, blocks: int, together: bool) -> float:
        """ns of DMA of so many blocks of x on so many partitions; together: in one run."""
        whole = together and geometry.x_strides[2] == columns.size
        run = columns.size * (blocks if whole else 1) if geometry.x_strides[3] == 1 else 1
        return prices.moved_ns(parts * size * blocks * columns.size, run, parts)

    @cache
    def fixed(U: int, V: int, way: str) -> tuple[float, Busy, float, float]:
        """(ns of a tap's sums, the Busy besides products and loads of x, both of all M tiles; ns until the first
        filters are loaded, and transposed and copied)."""
        m_tiles, lines = div_ceil(geometry.K, P_MAX // U), rows.out if U == 1 else V
        kn, mine = geometry.K // m_tiles, div_ceil(out * div_ceil(rows.out, U * V), PARTS) * columns.out
        filters_ns, y = filters_moved_ns(prices, kn, U, way == "straight", U == 1), geometry.K * out * rows.out / PARTS
        stored_ns = prices.moved_ns(y * columns.out, lines * columns.out, itemsize=options.epilogue.y_itemsize)
        busy = Busy(read=m_tiles * prices.read_ns(0, V * mine))
        busy.dma = m_tiles * filters_ns + (1 + options.residual) * stored_ns
        begin_ns = target.first_load_ns + filters_ns
        made_ns = begin_ns + transposed_ns + U * kn * target.copy_ns(geometry.itemsize)
        return m_tiles * V * met * prices.matmul_ns(mine), busy, begin_ns, made_ns

    def whole_ns(sizes: Sizes, packed: list[Packed], way: str) -> float:
        tap_ns, others, begin_ns, made_ns = fixed(*sizes[2:4], way)
        x_ns = sum(loaded_ns(parts, blocks, D == G == 1) for parts, D, G, blocks, _ in packed)
        products_ns = tap_ns * sum(one[4] for one in packed)
        busy = Busy(products_ns, products_ns, others.read, dma=others.dma + x_ns)
        hidden_ns = begin_ns - target.first_packet_ns
        return total_ns(target, begin_ns, hidden_ns, busy, target.last_store_ns, made_ns=made_ns)

    return whole_ns


def sizes_tried(geometry: Geometry, rest: int, U: int, V: int) -> Iterator[Sizes]:
    """Sizes with some outputs that fit the partitions, those with a rest not without."""
    rows, taps, most = geometry.rows, geometry.columns.taps, P_MAX // (geometry.C - rest)
    without = P_MAX // geometry.C if rest else 0
    # fewer columns of taps a group, with the same number of groups, only leave partitions idle
    shifts = [D for D in dict.fromkeys(div_ceil(taps, groups) for groups in range(1, taps + 1)) if D <= most]
    span, window = U * V * rows.stride, window_of(rows, U * V)
    tiling = [B for B in range(min(most, span), 0, -1) if span % B == 0]
    for D in shifts:
        for B in tiling:
            if without < B * D <= most:
                yield B, D, U, V, B, rest
                if D == 1 < B and U <= FEW:
                    yield B, D, U, V, 1, rest
        if without < window * D <= most and window not in tiling:
            yield window, D, U, V, span, rest


def outputs_tried(geometry: Geometry) -> Iterator[tuple[int, int]]:
    """Outputs of a block, up to FEW, multiples of it, and the most for each number of M tiles, with rows of y on a
    partition."""
    most = min(P_MAX, geometry.rows.out + geometry.rows.size)
    m_tiles = [div_ceil(geometry.K, P_MAX // U) for U in range(1, most + 1)]
    for U in range(1, most + 1):
        if U == most or U <= FEW or U % FEW == 0 or m_tiles[U - 1] < m_tiles[U]:
            yield from ((U, V) for V in V_TRIED if V == 1 or (U <= FEW and U * V <= geometry.rows.out))


# -------------------------------------------------------------------------------- groups, phases, M packing


def blocks_tried(target: Target, geometry: Geometry, options: Options, given: dict[str, Any]) -> Tried:
    """Settings of `weight_stationary`; only one for many phases, whose Schedules are long."""
    config, names = tuple(given.items()), set(given) - {"warmup"}
    if geometry.groups > 1:
        for T, (Uh, Uw) in itertools.product(TILE_ROWS, BLOCKS if "rows" not in given else BLOCKS[:1]):
            yield 0.0, GroupsSettings.read(config, rows=T, height=Uh, width=Uw)
        return
    if names <= set(NAMES) and not packed_reason(geometry, options, config):
        alone = {"depth": 1} if options.of_channels else {}
        for V, U, T, L in packed_sizes(geometry, alone | given)[:SIZES]:
            own = {"depth": V, "outputs": U, "taps": T, "lanes": L}
            yield 0.0, PackedSettings.read(config, **own)
    if names & set(NAMES) or unsupported_phases(geometry):
        return
    if math.prod(num_phases(axis) for axis in geometry.axes) > MANY_PHASES:
        yield 0.0, PhasesSettings.read(config, shard=SHARDS[geometry.K < PARTS * P_MAX])
        return
    shards = SHARDS if geometry.K > 1 else ("outputs",)
    for y_bytes, way, shard in itertools.product(Y_SIZES, list(ways(geometry)), shards):
        yield 0.0, PhasesSettings.read(config, **way, shard=shard, y_bytes=y_bytes)


def ways(geometry: Geometry) -> Iterator[dict[str, Any]]:
    """Packings of phases and segments; axes with only one phase add none."""
    for beside, segments in itertools.product(BESIDE, (1, 2, 4)):
        fits = segments == 1 or geometry.C in (QUADRANT, 2 * QUADRANT, P_MAX)
        if fits and (beside == "none" or getattr(geometry, beside).lhs_dilation > 1):
            yield {"beside": beside, "segments": segments}


#: The algorithms by name: modules of their settings and Schedules, and their candidates.
FAMILIES: dict[str, ModuleType] = {"stacked": stacked, "weight_stationary": weight_stationary}
TRIED: dict[str, Callable[..., Tried]] = {"stacked": stacked_tried, "weight_stationary": blocks_tried}
