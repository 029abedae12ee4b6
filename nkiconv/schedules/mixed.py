"""`mixed`, and `vector`, which is `mixed` without the Tensor Engine: settings, schedule, unsupported problems.

`recipes` divides the taps among the engines, `rows` tiles the rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..simulator.hardware import AXIS_SIZE_MAX
from ..simulator.timing.target import Target
from .depthwise import Options, RowGeometry, gate_bytes, gate_of
from .options import Epilogue
from .recipes import (
    FIRST_WIDTHS,
    Recipe,
    first_recipes,
    last_step,
    phases_of,
    ranked_recipes,
    reads_out,
)
from .rows import LOAD_BYTES_MAX, RowPlan, RowTile, channels_of, load_bytes, part_total, plan_rows, tile_count
from .settings import BY_SHAPE, SHARDS, Config, Settings, choice, count, double, half, unchecked, warm_up
from .tiles import BANK_COLUMNS, PSUM_BANKS, cut, div_ceil

#: Matmuls of 512 columns, at half rate, that keep the Tensor Engine busy until the first diagonals are made.
WARM_UP = 5
#: Columns of pieces.
Widths = tuple[int, ...]

#: Most and least columns of a piece: four banks of PSUM, so that two pieces are in flight; less than a bank, so that a
#: tile a little longer than a bank has no short last piece, which overlaps nothing.
PIECE_MAX, PIECE_MIN = 2048, 448
#: Least pieces of a core's work with which pieces may be larger than a bank.
PIECES = 24
#: Bytes a partition of SBUF for a plan: those that nki-library uses (trn2.toml, memory.sbuf_usable_per_partition), less
#: room for filters, biases and small tiles.
MIXED_SBUF_BYTES = 196_608
#: Bytes a partition of the filters that one DMA loads.
FILTER_BLOCK_BYTES = 16_384
#: Tiles loaded ahead of the sums, if they fit. Beside 4, 8 take 0.998 times as long over 51 golden plans (0.90 for 224
#: channels of 913); none of them is faster with more than 12.
PREFETCH = 12
#: Pieces of x multiplied by a gate ahead of the sums.
GATED_AHEAD = 1


@dataclass(frozen=True)
class MixedSettings(Settings):
    """All settings. A recipe is (tensor, vector_a, head, vector_b): the taps of a piece that each takes."""

    algorithm = "mixed"
    tried = ("recipes", "start", "warmup", "shard", "columns")

    shard: str = choice("axis that the two parts of the work share", SHARDS, near=BY_SHAPE)
    recipes: tuple[Any, ...] = unchecked("recipes that a part's pieces rotate through, one or more", near=BY_SHAPE)
    columns: int = count("columns of a tile; fewer if such a tile does not fit", 1, LOAD_BYTES_MAX, near=(half, double))
    start: tuple[Any, ...] = unchecked("recipes of the first pieces of a part", near=BY_SHAPE)
    warmup: int = warm_up(BY_SHAPE, most=64, near=(4, 6, 0), columns=512)


@dataclass(frozen=True)
class MixedPiece:
    """Columns q0 .. q0+qn-1 of a tile, and their recipe."""

    tile: int
    q0: int
    qn: int
    recipe: Recipe
    #: (first step, end) of each phase; the step that writes y
    phases: tuple[tuple[int, int], ...]
    last: int
    #: whether Vector, and not Scalar, evacuates PSUM if no tap on Vector does
    vector_reads: bool


@dataclass(frozen=True)
class MixedSchedule:
    """All settings of a problem as they fit, and the sizes that follow from them.

    piece: columns of a piece, at most. taps: the most of a recipe on Tensor; phases: the most of a piece.
    prefetch: tiles loaded ahead of the sums, as many as fit.
    """

    settings: MixedSettings
    rows: RowPlan
    piece: int
    taps: int
    phases: int
    prefetch: int = PREFETCH


def complete(geometry: RowGeometry, options: Options, config: Config, target: Target, on_tensor: bool) -> MixedSettings:
    """All settings of a supported config; open recipes are those that balance the engines best, open columns those of
    the longest tile that fits, halved until SBUF holds the pieces in flight and a tile ahead too."""
    given = dict(config or ())
    alone = are_on_array((given["recipes"],)) if "recipes" in given else on_tensor
    rows = plan_rows(geometry, given.get("shard"), given.get("columns", 0), alone)
    columns = max(1, rows.columns)
    piece = min(piece_columns(geometry), columns)
    recipes = given.get("recipes") or next(ranked_recipes(geometry, options.epilogue, target, piece, on_tensor))
    on_array = are_on_array((recipes,))
    found = MixedSettings.read(
        config,
        shard=rows.shard,
        recipes=recipes,
        columns=columns,
        start=first_recipes(geometry) if on_array else (),
        warmup=WARM_UP if on_array else 0,
    )
    while "columns" not in given and found.columns > BANK_COLUMNS:
        if mixed_sbuf_bytes(geometry, options, build(geometry, options, found), 1) <= MIXED_SBUF_BYTES:
            break
        found = replace(found, columns=found.columns // 2)
    return found


def are_on_array(lists: Iterable[Any]) -> bool:
    """Whether any recipe in these lists has taps on Tensor."""
    some = (recipe for recipes in lists if isinstance(recipes, tuple) for recipe in recipes)
    return any(isinstance(recipe, tuple) and len(recipe) > 0 and recipe[0] != 0 for recipe in some)


def config_unsupported(geometry: RowGeometry, options: Options, config: Config, on_tensor: bool) -> str:
    """The error of a config's names or values, or why the algorithm never runs the problem; "" if neither."""
    if on_tensor and options.strict_nonfinite:
        return "strict_nonfinite=True: mixed multiplies channels by the zeros of a diagonal matrix; use vector"
    if reason := MixedSettings.unsupported_reason(config, "mixed" if on_tensor else "vector"):
        return reason
    given = dict(config or ())
    for name in ("recipes", "start"):
        if reason := recipes_unsupported(name, given[name], geometry.S, on_tensor) if name in given else "":
            return reason
    return ""


def recipes_unsupported(name: str, recipes: Any, S: int, on_tensor: bool) -> str:
    """The error of a config's recipes; "" if they are valid."""
    if not isinstance(recipes, tuple) or (len(recipes) == 0 and name == "recipes"):
        return f"config {name}={recipes}: must be a tuple of (tensor, vector_a, head, vector_b)"
    for index, recipe in enumerate(recipes):
        right = isinstance(recipe, tuple) and all(type(taps) is int and 0 <= taps <= S for taps in recipe)
        right = right and len(recipe) == 4 and recipe[2] in ((1,) if recipe[3] else (0, 1))
        if not right or sum(recipe) + (recipe[0] == 0) != S:
            return (
                f"config {name}={recipes}: recipe {index} must be (tensor, vector_a, head, vector_b) with head 0 or "
                f"1, vector_b = 0 without a head, and S={S} taps in all (one more on Scalar if tensor is 0)"
            )
        if not on_tensor and recipe[0] > 0:
            return f"config {name}={recipes}: recipe {index} has taps on Tensor; use algorithm mixed"
    return ""


@functools.lru_cache(maxsize=4096)
def build(geometry: RowGeometry, options: Options, settings: MixedSettings) -> MixedSchedule:
    """The schedule of all settings, with as many tiles loaded ahead as SBUF holds."""
    recipes = settings.start + settings.recipes
    # a tile's stretches are of one image if any piece has taps on Tensor
    rows = plan_rows(geometry, settings.shard, settings.columns, are_on_array((recipes,)))
    # a piece's sums stay in PSUM from Tensor's taps to the step that reads them
    in_psum = max((3 if recipe[1] == 0 and recipe[3] > 0 else 2 for recipe in recipes if recipe[0] > 0), default=1)
    found = MixedSchedule(
        settings=replace(settings, columns=rows.columns),
        rows=rows,
        piece=min(piece_columns(geometry), PSUM_BANKS // in_psum * BANK_COLUMNS, max(1, rows.columns)),
        taps=max(recipe[0] for recipe in recipes),
        phases=max(len(phases_of(recipe, options.epilogue)) for recipe in recipes),
    )
    ahead = (n for n in range(PREFETCH, 0, -1) if mixed_sbuf_bytes(geometry, options, found, n) <= MIXED_SBUF_BYTES)
    return replace(found, prefetch=next(ahead, 0))


def piece_columns(geometry: RowGeometry) -> int:
    """Most columns of a piece: most of a bank of PSUM, or more if so many pieces make the ends negligible, and no
    product with a gate precedes the sums."""
    return PIECE_MIN if gate_of(geometry) else max(PIECE_MIN, min(PIECE_MAX, part_total(geometry) // PIECES))


def filter_block(geometry: RowGeometry) -> int:
    """Channel tiles whose filters are loaded together."""
    return max(1, FILTER_BLOCK_BYTES // (geometry.S * geometry.itemsize))


def widest_piece(plan: MixedSchedule) -> int:
    """Columns of the widest piece."""
    return max(plan.piece, min(plan.rows.columns, max(first_widths(plan), default=0)))


def first_widths(plan: MixedSchedule) -> Widths:
    """Columns of the first pieces of a part; () if pieces are larger than a bank."""
    return FIRST_WIDTHS if plan.piece <= BANK_COLUMNS else ()


def diagonal_bytes(geometry: RowGeometry, plan: MixedSchedule) -> int:
    """Bytes a partition of one tile's stationaries."""
    return plan.taps * plan.rows.G * channels_of(geometry.C, plan.rows.T, 0) * geometry.itemsize


def mixed_sbuf_bytes(geometry: RowGeometry, options: Options, plan: MixedSchedule, prefetch: int) -> int:
    """Bytes a partition of SBUF that are live at once, about."""
    rows = plan.rows
    tile = load_bytes(geometry, rows)
    tile += gate_bytes(geometry, tile)
    if options.epilogue.residual != "":
        tile += 4 * rows.columns
    filters = 2 * min(rows.T, filter_block(geometry)) * geometry.S * 4
    # two fp32 tiles for each piece in flight, and two stores of y
    pieces = 8 * plan.phases * widest_piece(plan)
    pieces += 4 * options.epilogue.y_itemsize * widest_piece(plan)
    # tiles of the pieces in flight and tiles loaded ahead; at most the tiles of a part
    tiles = 1
    if rows.columns > 0:
        in_flight = 1 + div_ceil(plan.phases - 1, div_ceil(rows.columns, plan.piece))
        tiles = min(in_flight + prefetch, tile_count(geometry, rows))
    return tiles * tile + 2 * diagonal_bytes(geometry, plan) + filters + pieces


def plan_unsupported(geometry: RowGeometry, options: Options, plan: MixedSchedule, on_tensor: bool) -> str:
    """Why memory does not take a schedule; "" if it does."""
    name = "mixed" if on_tensor else "vector"
    needed = mixed_sbuf_bytes(geometry, options, plan, 0)
    if plan.rows.columns == 0:
        return (
            f"S={geometry.S}, dilation={geometry.dilation}: taps that span {(geometry.S - 1) * geometry.dilation + 1} "
            f"elements, {name} loads at most {AXIS_SIZE_MAX} of a row; split the filter and add the results"
        )
    if needed > MIXED_SBUF_BYTES:
        return (
            f"S={geometry.S}, dilation={geometry.dilation}, stride={geometry.stride}: {name} needs {needed} bytes "
            f"per partition of SBUF for the filters of one channel tile ({diagonal_bytes(geometry, plan)} for each set "
            f"of diagonals) and the elements they read, and has {MIXED_SBUF_BYTES}; use banded or dot, "
            f"or split the filter and add the results"
        )
    return ""


def mixed_cuts(qn: int, plan: MixedSchedule, is_first: bool) -> Widths:
    """End columns of a tile's loads: one for each narrow piece at a part's beginning, one for the others."""
    ends = itertools.accumulate(first_widths(plan) if is_first else ())
    return (*(end for end in ends if end < qn), qn)


def cut_pieces(plan: MixedSchedule, epilogue: Epilogue, tiles: Sequence[RowTile]) -> list[MixedPiece]:
    """The pieces of all tiles of a part, in order."""
    settings, spans = plan.settings, list[tuple[int, int, int]]()
    for i, tile in enumerate(tiles):
        # narrow ones at a part's beginning, then equal ones
        *narrow, (begin, end) = itertools.pairwise((0, *mixed_cuts(tile.qn, plan, i == 0)))
        spans += [(i, first, last - first) for first, last in narrow]
        spans += [(i, begin + first, width) for first, width in cut(end - begin, plan.piece)]
    # Vector and Scalar rotate if every recipe has its PSUM evacuated by a copy; else Scalar copies
    in_turn, pieces = all(map(reads_out, settings.recipes)), []
    for place, (i, q0, qn) in enumerate(spans):
        after = place - len(settings.start)
        recipe = settings.start[place] if after < 0 else settings.recipes[after % len(settings.recipes)]
        phases, last = phases_of(recipe, epilogue), last_step(recipe, epilogue)
        pieces.append(MixedPiece(i, q0, qn, recipe, phases, last, vector_reads=in_turn and place % 2 == 0))
    return pieces
