"""What the loop over rows does, decided before the first instruction: pieces, memory, instructions.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, PSUM_BANKS, div_ceil
from .chains import Piece, has_product, phases_of, reads_out
from .config import read_rows, rows_config_refusal, rows_defaults
from .dma import channels_most
from .states import state_block, state_bytes
from .tiles import RowPlan, half_columns, half_images, load_bytes, plan_rows

#: SBUF that a plan may fill: what nki-library uses of a partition (trn2.toml, memory.sbuf_usable_per_partition), less
#: room for filters, biases and small tiles.
ROWS_SBUF_BYTES = 196608
#: Bytes a partition of the filters that one DMA loads.
ROWS_FILTER_BYTES = 16384


@dataclass
class LoopPlan(nl.NKIObject):
    """Everything that is decided before the first instruction."""

    rows: RowPlan
    recipes: tuple
    piece: int
    prefetch: int
    #: widths of the first pieces of a half, and of the last ones
    first: tuple
    last: tuple
    #: recipes of the first pieces of a half, before the cycle begins
    start: tuple
    #: recipes of the last pieces of a half
    end: tuple
    #: matmuls of 512 columns on zeros while the first loads are on their way
    warmup: int
    #: engine that adds chains, but for the last piece: "gpsimd" or "vector"
    join: str


def read_plan(geometry, extras, config):
    """The LoopPlan of a RowsConfig: tiles, pieces and prefetch as far as they fit."""
    rows = plan_rows(geometry, config.shard, config.columns)
    rows.states = state_block(geometry, extras, rows)
    rows.filler = config.filler
    plan = LoopPlan(
        rows=rows,
        recipes=config.recipes,
        piece=min(config.piece, max(1, rows.columns)),
        prefetch=config.prefetch,
        first=config.first,
        last=config.last,
        start=config.start,
        end=config.end,
        warmup=config.warmup,
        join=config.join,
    )
    while plan.prefetch > 0 and sbuf_bytes(geometry, extras, plan, plan.prefetch) > ROWS_SBUF_BYTES:
        plan.prefetch -= 1
    return plan


def channel_tiles(rows):
    """Most channel tiles of a half."""
    return div_ceil(rows.T, 2) if rows.shard == "channels" else rows.T


def stacks(geometry, rows):
    """Most tiles of a half for each channel tile."""
    stretches = half_images(geometry, rows.shard) * div_ceil(half_columns(geometry, rows.shard), rows.columns)
    return div_ceil(stretches, rows.G)


def all_recipes(plan):
    """Every recipe that a piece may have."""
    return plan.start + plan.recipes + plan.end


def most_tensor_taps(recipes):
    """Most taps on Tensor of any recipe."""
    most = 0
    for index in range(len(recipes)):
        most = max(most, recipes[index][0])
    return most


def most_phases(recipes, epilogue):
    """Most phases of any recipe: pieces in flight."""
    most = 0
    for index in range(len(recipes)):
        most = max(most, len(phases_of(recipes[index], epilogue)))
    return most


def widest_piece(plan):
    """Columns of the widest piece."""
    widest = plan.piece
    widths = plan.first + plan.last
    for index in range(len(widths)):
        widest = max(widest, min(widths[index], plan.rows.columns))
    return widest


def psum_banks(plan):
    """Banks of PSUM that are live at once: a piece's from Tensor's taps to the step that reads them."""
    pieces = 1
    recipes = all_recipes(plan)
    for index in range(len(recipes)):
        recipe = recipes[index]
        if recipe[0] > 0:
            pieces = max(pieces, 3 if recipe[1] == 0 and recipe[3] > 0 else 2)
    return pieces * div_ceil(widest_piece(plan), BANK_COLUMNS)


def diagonal_bytes(geometry, plan):
    """Bytes a partition of one tile's stationaries."""
    rows = plan.rows.G * channels_most(geometry.C, plan.rows.T, 0)
    return most_tensor_taps(all_recipes(plan)) * rows * geometry.itemsize


def sbuf_bytes(geometry, extras, plan, prefetch):
    """Bytes a partition that are live at once, about."""
    tile = load_bytes(geometry, plan.rows)
    if extras.epilogue.residual != "":
        tile += 4 * plan.rows.columns
    filters = 2 * min(plan.rows.T, filter_block(geometry)) * geometry.S * (geometry.itemsize + 4)
    # two fp32 tiles for each piece in flight, and pieces of y on their way out
    in_flight = most_phases(all_recipes(plan), extras.epilogue)
    pieces = widest_piece(plan) * (8 * in_flight + 4 * extras.epilogue.y_itemsize)
    states = state_bytes(geometry, plan.rows)
    tiles = tiles_at_once(geometry, extras, plan, prefetch)
    return tiles * tile + 2 * diagonal_bytes(geometry, plan) + filters + states + pieces


def tiles_at_once(geometry, extras, plan, prefetch):
    """Tiles that are live at once, those of the pieces in flight and those loaded ahead; no more than a half has."""
    rows = plan.rows
    if rows.columns == 0:
        return 1
    pieces_behind = most_phases(all_recipes(plan), extras.epilogue) - 1
    in_flight = 1 + div_ceil(pieces_behind, div_ceil(rows.columns, plan.piece))
    return min(in_flight + prefetch, channel_tiles(rows) * stacks(geometry, rows))


def filter_block(geometry):
    """Channel tiles whose filters are loaded together."""
    return max(1, ROWS_FILTER_BYTES // (geometry.S * geometry.itemsize))


def rows_refusal(geometry, extras, config, cores, on_tensor):
    """Why the loop does not run a convolution with these settings; "" if it does."""
    reason = rows_config_refusal(geometry, config, on_tensor)
    if reason != "":
        return reason
    plan = read_plan(geometry, extras, read_rows(config, rows_defaults(geometry, on_tensor)))
    return plan_refusal(geometry, extras, plan, cores, "mixed" if on_tensor else "vector")


def plan_refusal(geometry, extras, plan, cores, name):
    """Why the loop does not run a plan: memory or instructions; "" if it does."""
    if plan.rows.columns == 0 or sbuf_bytes(geometry, extras, plan, 0) > ROWS_SBUF_BYTES:
        return (
            f"S={geometry.S}, dilation={geometry.dilation}, stride={geometry.stride}: {name} needs "
            f"{sbuf_bytes(geometry, extras, plan, 0)} bytes a partition of SBUF for the filters of one channel tile "
            f"({diagonal_bytes(geometry, plan)} for each set of diagonals) and the elements they meet, "
            f"{ROWS_SBUF_BYTES} are there; use banded or taps_on_partition"
        )
    if psum_banks(plan) > PSUM_BANKS:
        return (
            f"config piece={plan.piece}, first={plan.first}, last={plan.last}: the pieces in flight need "
            f"{psum_banks(plan)} banks of PSUM, {PSUM_BANKS} are there; use pieces of up to {BANK_COLUMNS} columns, or "
            f"give chain A a tap on Vector in every recipe"
        )
    count = count_instructions(geometry, plan, cores)
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.N}, C={geometry.C}, W={geometry.W}, S={geometry.S}: {name} needs up to {count} instructions "
            f"on a core, the compiler takes {INSTRUCTIONS_MAX}; split N or C over several calls"
        )
    return ""


def count_instructions(geometry, plan, cores):
    """Most instructions that a core can need."""
    rows = plan.rows
    tiles = channel_tiles(rows) * stacks(geometry, rows)
    pieces = tiles * div_ceil(rows.columns, plan.piece) + len(plan.first) + len(plan.last)
    # a tap is one instruction on any engine, or one for each bank; sums, epilogue, stores of every group
    each = geometry.S * div_ceil(plan.piece, BANK_COLUMNS) + 4 + rows.G
    loads = 6 + 3 * rows.G + len(plan.first)
    if not rows.runs:
        loads = geometry.S * (1 + 2 * rows.G)
    filters = 8 * div_ceil(channel_tiles(rows), filter_block(geometry)) + 8 + plan.warmup
    halves = 2 if cores == 1 else 1
    return halves * (pieces * each + tiles * (loads + 2) + filters)


def widths_of(qn, plan, is_first, is_last):
    """Widths of the pieces of a tile: narrow ones at the ends of a half, equal ones between."""
    begin = ()
    left = qn
    if is_first:
        for index in range(len(plan.first)):
            width = min(plan.first[index], left)
            if width > 0:
                begin = begin + (width,)
                left -= width
    end = ()
    if is_last:
        for index in range(len(plan.last)):
            width = min(plan.last[len(plan.last) - 1 - index], left)
            if width > 0:
                end = (width,) + end
                left -= width
    middle = ()
    count = div_ceil(left, plan.piece)
    for index in range(count):
        middle = middle + ((left * (index + 1)) // count - (left * index) // count,)
    return begin, middle, end


def cuts_of(qn, begin):
    """Columns after which a new load begins: after each of the first pieces."""
    cuts = ()
    end = 0
    for index in range(len(begin)):
        end += begin[index]
        cuts = cuts + (end,)
    if end < qn:
        cuts = cuts + (qn,)
    return cuts


def cut_pieces(plan, tiles):
    """The pieces of all tiles of a half, in order."""
    spans = []
    for i in range(len(tiles)):
        widths = widths_of(tiles[i].qn, plan, i == 0, i == len(tiles) - 1)
        order = widths[0] + widths[1] + widths[2]
        q0 = 0
        for index in range(len(order)):
            spans.append((i, q0, order[index]))
            q0 += order[index]
    in_turn = all_read_out(plan.recipes)
    pieces = []
    for place in range(len(spans)):
        span = spans[place]
        recipe = plan.recipes[max(0, place - len(plan.start)) % len(plan.recipes)]
        if place < len(plan.start):
            recipe = plan.start[place]
        elif place >= len(spans) - len(plan.end):
            recipe = plan.end[place - len(spans) + len(plan.end)]
        on_vector = in_turn and place % 2 == 0
        # nothing follows the last sums that Vector could be late for
        joins = plan.join == "vector" or place == len(spans) - 1
        pieces.append(
            Piece(
                tile=span[0],
                q0=span[1],
                qn=span[2],
                recipe=recipe,
                vector_reads=on_vector,
                vector_joins=joins,
            )
        )
    return pieces


def all_read_out(recipes):
    """Whether every recipe leaves PSUM to be copied out, so that Vector and Scalar take turns; else Scalar does it."""
    for index in range(len(recipes)):
        if not reads_out(recipes[index]):
            return False
    return True


def any_product(recipes):
    """Whether Scalar multiplies in any recipe."""
    for index in range(len(recipes)):
        if has_product(recipes[index]):
            return True
    return False
