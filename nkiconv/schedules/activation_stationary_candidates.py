"""Candidate settings of `activation_stationary` in order of their bound, where the host's search begins, and the
schedule of a config with its open settings filled in by the least bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .activation_stationary import NAME, settings_of, together_unsupported, unsupported_reason
from .activation_stationary_bound import Bound
from .cuts import window_of
from .depthwise_blocks import BlockSchedule, DepthwiseSettings, block_bytes, blocks_of, window_width
from .geometry import Geometry, is_transposed, num_phases
from .long_kernels import UNROLLED_NS, too_many_tiles
from .options import Options
from .patches import PatchSettings, is_patches, make_patches, points_of
from .pixel_tiles import SHARDS, PixelSchedule, PixelSettings, make_pixels, seen_rows
from .prices import Prices, met_outputs
from .settings import Config, values_of
from .tiles import BANK_COLUMNS, P_MAX, PARTS, SBUF_BYTES, div_ceil, fits_sbuf
from .volume_rows import COPIES, TILE_BANKS, RowSchedule, RowSettings, make_rows, num_written, stored_together
from .windows import WindowSettings, make_windows

#: The most pixels of a partition tried, except of patches, and bytes of their results; numbers of folded rows tried.
SIDE_MAX, RESULT_BYTES, FOLDS = 32, 32_768, (1, 2, 4, 8)
#: Cuts of planes of y that are tried: with the largest that fit, filters are read the fewest times.
DEPTHS = 2
#: ns of the bound above which equal steps run as a device loop, whose stores wait for each other; rotations of the
#: circular buffer tried for its body.
LOOP_FROM_NS, LOOPS = 5e5, (2, 1)
#: Tried for depthwise problems: windows of a row of y, heights of blocks, channels of a K tile; sizes of blocks whose
#: other settings are tried together.
WINDOWS, HEIGHTS, CHANNELS, SIZES = 10, 4, (8, 16, 32, 64, 128), 6

#: The schedules of this algorithm.
Schedule = PixelSchedule | RowSchedule | BlockSchedule


def plan(geometry: Geometry, options: Options, config: Config) -> tuple[Schedule | None, str]:
    """(the schedule of a problem, "") or (None, the reason against it)."""
    reason = unsupported_reason(geometry, options, config)
    if reason != "":
        return None, reason
    settings = settings_of(geometry, options).whole(config)
    if settings is None:
        least = next(candidates(Target.of(Rates()), geometry, options, config), None)
        kind, rows = settings_of(geometry, options), geometry.rows.stride * num_phases(geometry.rows)
        smallest: dict[type, dict[str, Any]] = {
            PixelSettings: {"shard": "images"},
            DepthwiseSettings: {"rows": rows, "columns": num_phases(geometry.columns)},
        }
        settings = least[1] if least else kind.read(config, **smallest.get(kind, {}))
    return planned(geometry, options, settings)


def planned(geometry: Geometry, options: Options, settings: Any) -> tuple[Schedule | None, str]:
    """(the schedule of complete settings, "") or (None, the reason against it)."""
    made: Schedule | None = None
    if isinstance(settings, DepthwiseSettings):
        made, reason = blocks_of(geometry, settings)
        if made is None:
            return None, reason
        # before items are listed: if no candidate runs, the smallest blocks may be millions
        if reason := too_many_tiles(f"C={geometry.C}, H={geometry.rows.size}: {NAME}", geometry.times * made.num_items):
            return None, reason
        made = made if fits_sbuf(block_bytes(geometry, made, options)) else None
    elif isinstance(settings, RowSettings):
        made = make_rows(geometry, options, settings)
    elif isinstance(settings, PatchSettings):
        if (W := geometry.columns.size) % settings.side > 0:
            return None, f"config side={settings.side}: must divide W={W}; use 1"
        made = make_patches(geometry, options, settings)
    elif isinstance(settings, WindowSettings):
        made = make_windows(geometry, options, settings)
    else:
        if reason := together_unsupported(geometry, options, settings):
            return None, reason
        made = make_pixels(geometry, options, settings)
    norm = options.epilogue.norm
    if isinstance(made, PixelSchedule) and norm is not None and len(made.batches) > 1:
        return None, (
            f"y_norm={norm.kind}, config shard={settings.shard}: filters of all K={geometry.K} output channels "
            f"must be in SBUF together; use shard=images, or normalize y"
        )
    return made, "" if made is not None else settings.memory_unsupported(geometry)


def least_ns(target: Target, geometry: Geometry, fold: int) -> float:
    """ns of the Tensor Engine for products with y as NHWC, on all rows and columns of the array."""
    products = geometry.C * geometry.K * math.prod(map(met_outputs, geometry.axes)) / PARTS
    idle = max(1.0, target.matmul_columns_min / (geometry.K * fold))
    return products * idle * Prices(target, geometry).column_ns / P_MAX**2


def candidates(
    target: Target, geometry: Geometry, options: Options, config: Config, most_ns: float = math.inf
) -> Iterator[tuple[float, Any]]:
    """(bound, complete settings) that hold the given ones and run, the least bound first; those above `most_ns` may be
    left out."""
    kind, given = settings_of(geometry, options), dict(config or ())

    def least(tried: Iterable[Any], made: Callable[[Any], Schedule | None]) -> list[tuple[float, Any]]:
        plans = ((one, made(one)) for one in tried)
        found = [(Bound(target, geometry, options, plan).ns(), one) for one, plan in plans if plan is not None]
        return sorted(found, key=lambda each: each[0])

    def whole(one: Any) -> Schedule | None:
        return planned(geometry, options, one)[0]

    def blocks(one: DepthwiseSettings) -> BlockSchedule | None:
        return blocks_of(geometry, one)[0]

    def fits(one: DepthwiseSettings) -> bool:
        return fits_sbuf(block_bytes(geometry, BlockSchedule(geometry, one), options))

    if unsupported_reason(geometry, options, config) != "":
        return
    if kind is DepthwiseSettings:
        sizes = least(sizes_of(geometry, given), blocks)
        for first in range(0, len(sizes), SIZES):
            every = [[*shares_of(geometry, given, size)] for _, size in sizes[first : first + SIZES]]
            # if the smallest settings of a size do not fit, no others do
            every = [ones for ones in every if fits(min(ones, key=lambda one: one.channels))]
            yield from ((ns, one) for ns, one in least(itertools.chain(*every), blocks) if fits(one))
    elif kind is RowSettings:
        fitting = filter(None, (least(same, whole) for same in rows_tried(geometry, given)))
        deepest = itertools.chain(*itertools.islice(fitting, DEPTHS))
        for ns, one in sorted(deepest, key=lambda each: each[0]):
            yield ns, replace(one, loop=given.get("loop", _loop(target, geometry, options, one)))
    elif kind is PixelSettings:
        folds = [fold for fold in values_of(given, "fold", FOLDS) if least_ns(target, geometry, fold) <= most_ns]
        yield from least(pixels_tried(geometry, options, given, folds), whole)
    else:
        tried = [{"shard": shard} for shard in values_of(given, "shard", SHARDS)]
        if kind is PatchSettings:
            sides = values_of(given, "side", sides_of(geometry))
            tried = [{**one, "side": side} for one in tried for side in sides]
        yield from least((kind.read(config, **one) for one in tried), whole)


def pixels_tried(
    geometry: Geometry, options: Options, given: dict[str, Any], folds: Sequence[int]
) -> Iterator[PixelSettings]:
    """Settings of y as NHWC with each side, shard and fold, and shifts."""
    sides = values_of(given, "side", sides_of(geometry))
    for side, shard, fold in itertools.product(sides, values_of(given, "shard", SHARDS), folds):
        for rest in values_of(given, "rest", [0] if "fold" in given else rests_of(geometry, options, fold)):
            own = replace(geometry, C=max(1, geometry.C - rest))
            for shifts in values_of(given, "shifts", shifts_of(own, fold)):
                open_values = {"shard": shard, "side": side, "fold": fold, "shifts": shifts, "rest": rest}
                tried = PixelSettings.read(tuple(given.items()), **open_values)
                if together_unsupported(geometry, options, tried) and "shifts" not in given:
                    tried = replace(tried, shifts=1)
                if fold == 1 or shard == "images":
                    yield tried


def rests_of(geometry: Geometry, options: Options, fold: int) -> list[int]:
    """Numbers of channels with copies of their own that are tried: 0, those beyond a multiple of 128, and those beyond
    the most with room for the rows of x of `fold` rows of y."""
    C, room = geometry.C, P_MAX // (fold * geometry.rows.stride)
    few = [one for one in {C % P_MAX, C - room} if 0 < one <= P_MAX // 2]
    tried = [PixelSettings.read(None, shard="images", side=1, fold=fold, shifts=1, rest=one) for one in few]
    return [0, *(one.rest for one in tried if not together_unsupported(geometry, options, one))]


def shifts_of(geometry: Geometry, fold: int) -> list[int]:
    """For each number of products of a column of taps the most shifts that the partitions have room for."""
    rows, S = geometry.rows, geometry.columns.taps
    step, seen = fold * rows.stride, seen_rows(rows, fold) + 1
    most = {max(1, min(S, P_MAX // (one * geometry.C))) for one in (1, step, *range(seen, step - 1, -step))}
    return sorted({div_ceil(S, div_ceil(S, one)) for one in most})


def sides_of(geometry: Geometry) -> list[int]:
    """Numbers of neighbours on a partition that are tried: divisors of Q, of patches where two tiles of results fit."""
    tiles = is_patches(geometry)
    geometry = points_of(geometry) if tiles else geometry
    Q, each = geometry.columns.out, geometry.K * geometry.hbm_itemsize
    most = SBUF_BYTES // 2 // each if tiles else min(SIDE_MAX, RESULT_BYTES // each)
    return [1, *(side for side in range(2, min(most, Q) + 1) if Q % side == 0)]


def rows_tried(geometry: Geometry, given: dict[str, Any]) -> Iterator[list[RowSettings]]:
    """For each even cut of planes of y, the largest first, settings with each number of copies of the remaining
    channels; no loop yet."""
    volume = geometry.planes.out // geometry.planes.images
    most = TILE_BANKS * max(1, BANK_COLUMNS // geometry.K)
    depths = sorted({depth for n in range(1, volume + 1) if (depth := div_ceil(volume, n)) <= most}, reverse=True)
    for depth in values_of(given, "depth", depths):
        every = values_of(given, "copies", (1, COPIES))
        yield [RowSettings.read(tuple(given.items()), depth=depth, copies=copies) for copies in every]


def _loop(target: Target, geometry: Geometry, options: Options, settings: RowSettings) -> int:
    """Rotations of the circular buffer in the body of a device loop: the most of LOOPS whose steps are equal; 0, no
    loop, for a short kernel. Where matmuls of a step do not hide its stores and loads of a residual, which wait for
    each other in a loop, kernels of up to UNROLLED_NS are short."""
    plan, *looped = (make_rows(geometry, options, replace(settings, loop=loop)) for loop in (0, *LOOPS))
    assert plan is not None  # it has a bound
    bound = Bound(target, geometry, options, plan)
    step_ns = bound.step_ns(plan.items[0])
    store_ns = target.last_store_ns + target.dma_done_ns
    transfers = len(stored_together(plan.items[0].zn, geometry.K)) * (num_written(options) + options.residual)
    hidden = transfers * store_ns <= step_ns
    if geometry.times * bound.ns() <= (LOOP_FROM_NS if hidden else UNROLLED_NS):
        return 0
    return next((one.loop for one in looped if one is not None and one.steps is not None), 0)


def sizes_of(geometry: Geometry, given: dict[str, Any]) -> Iterator[DepthwiseSettings]:
    """Settings with each size of blocks and number of blocks a matmul; the others are provisional."""
    N, P, Q = geometry.planes.out, geometry.rows.out, geometry.columns.out
    rows, each = geometry.rows, num_phases(geometry.columns)
    unit, some = num_phases(rows) * rows.stride, min(CHANNELS[1], div_ceil(geometry.C, PARTS))
    widths = {div_ceil(Q, count * each) * each for count in range(1, WINDOWS + 1)}
    disjoint = not is_transposed(geometry)
    for columns in values_of(given, "columns", sorted(widths)):
        most = P_MAX // max(1, window_width(geometry.columns, columns, disjoint)) * rows.lhs_dilation
        most += rows.stride - window_of(rows, 1) if disjoint else 0
        # the fewest rows for each number of blocks below each other
        heights = {div_ceil(P * rows.stride, one): one for one in range(max(0, most) // unit * unit, 0, -unit)}
        for height in values_of(given, "rows", [heights[count] for count in sorted(heights)[:HEIGHTS]]):
            blocks = div_ceil(P * rows.stride, height)
            for below in values_of(given, "below", sorted({div_ceil(blocks, count) for count in (1, 2, 4, 8)})):
                together = max(1, P_MAX // below)
                for images in values_of(given, "images", {div_ceil(N, div_ceil(N, together)), min(N, together)}):
                    beside, windows = 1, div_ceil(Q, columns)
                    if is_transposed(geometry):
                        beside = max(1, min(windows, P_MAX // (below * images)))
                        beside = div_ceil(windows, div_ceil(windows, beside))
                    sizes = {"rows": height, "columns": columns, "beside": beside, "below": below}
                    yield DepthwiseSettings(**{**sizes, "images": images, "channels": some, **given})


def shares_of(geometry: Geometry, given: dict[str, Any], size: DepthwiseSettings) -> Iterator[DepthwiseSettings]:
    """Settings of a size of blocks with channels of a K tile, equal for both cores."""
    mine, pixels = div_ceil(geometry.C, PARTS), is_transposed(geometry)
    whole = {mine, div_ceil(mine, 2), *(one for one in CHANNELS if one < mine)} | ({geometry.C} if pixels else set())
    for channels in values_of(given, "channels", {one for one in whole if pixels or one <= P_MAX}):
        yield replace(size, channels=channels)
