"""What `mixed` and `vector` do, decided before the first instruction: pieces, memory, instructions.

Compile-time code.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.mixed import MixedSettings
from ....schedules.tiles import BANK_COLUMNS, PSUM_BANKS, cut, div_ceil
from ..geometry import instructions_refusal
from ..parts import part_most
from .chains import MixedPiece, last_step, phases_of, reads_out
from .defaults import is_on_array, mixed_config_refusal, mixed_settings
from .states import state_block
from .tiles import RowPlan, channels_of, load_bytes, part_images, plan_rows, tile_count

#: SBUF that a plan may fill: what nki-library uses of a partition (trn2.toml, memory.sbuf_usable_per_partition), less
#: room for filters, biases and small tiles.
MIXED_SBUF_BYTES = 196608
#: Bytes a partition of the filters that one DMA loads.
FILTER_BLOCK_BYTES = 16384
#: Tiles loaded ahead of the sums, if they fit.
PREFETCH = 4
#: Tiles of a part from which GpSimd would be late with their zeros; of fewer what counts is that Vector starts early.
MANY_TILES = 4


@dataclass
class MixedPlan(nl.NKIObject):
    """Everything that is decided before the first instruction."""

    config: MixedSettings
    rows: RowPlan
    #: columns of a piece
    piece: int
    #: channel tiles whose states are loaded together and then copied to their columns; 0: each goes straight there
    states: int
    #: tiles loaded ahead of the sums: as many as fit
    prefetch: int = PREFETCH
    #: whether Vector fills columns outside of rows, or GpSimd, which makes diagonals and sums of chains too
    vector_fills: bool = False
    #: of all recipes: most taps on Tensor, phases, steps of a phase, and pieces whose sums are in PSUM at once
    taps: int = 0
    phases: int = 0
    phase_steps: int = 0
    in_psum: int = 1


def mixed_plan(geometry, extras, config):
    """The plan of a MixedSettings."""
    rows = plan_rows(geometry, config.shard, config.columns, is_on_array(config))
    plan = MixedPlan(
        config=config,
        rows=rows,
        piece=min(config.piece, max(1, rows.columns)),
        states=state_block(geometry, extras, rows),
    )
    for recipe in config.start + config.recipes + config.end:
        phases = phases_of(recipe, extras.epilogue)
        plan.taps = max(plan.taps, recipe[0])
        plan.phases = max(plan.phases, len(phases))
        for phase in phases:
            plan.phase_steps = max(plan.phase_steps, phase[1] - phase[0])
        if recipe[0] > 0:
            plan.in_psum = max(plan.in_psum, 3 if recipe[1] == 0 and recipe[3] > 0 else 2)
    # GpSimd makes diagonals; Vector that has taps beside none of them is the busier one
    if rows.columns > 0 and (plan.taps > 0 or geometry.S == 1):
        plan.vector_fills = tile_count(geometry, rows) >= MANY_TILES
    while plan.prefetch > 0 and mixed_sbuf_bytes(geometry, extras, plan, plan.prefetch) > MIXED_SBUF_BYTES:
        plan.prefetch -= 1
    return plan


def filter_block(geometry):
    """Channel tiles whose filters are loaded together."""
    return max(1, FILTER_BLOCK_BYTES // (geometry.S * geometry.itemsize))


def widest_piece(plan):
    """Columns of the widest piece."""
    widest = plan.piece
    for width in plan.config.first + plan.config.last:
        widest = max(widest, min(width, plan.rows.columns))
    return widest


def diagonal_bytes(geometry, plan):
    """Bytes a partition of one tile's stationaries."""
    return plan.taps * plan.rows.G * channels_of(geometry.C, plan.rows.T, 0) * geometry.itemsize


def mixed_sbuf_bytes(geometry, extras, plan, prefetch):
    """Bytes a partition that are live at once, about."""
    rows, item = plan.rows, geometry.itemsize
    tile = load_bytes(geometry, rows)
    if extras.epilogue.residual != "":
        tile += 4 * rows.columns
    filters = 2 * min(rows.T, filter_block(geometry)) * geometry.S * 4
    # two fp32 tiles for each piece in flight, and pieces of y on their way out
    pieces = widest_piece(plan) * (8 * plan.phases + 4 * extras.epilogue.y_itemsize)
    # two blocks of states
    states = 2 * plan.states * part_images(geometry, rows.shard) * geometry.pad_left * item
    # tiles of the pieces in flight and those loaded ahead; no more than a part has
    tiles = 1
    if rows.columns > 0:
        in_flight = 1 + div_ceil(plan.phases - 1, div_ceil(rows.columns, plan.piece))
        tiles = min(in_flight + prefetch, tile_count(geometry, rows))
    return tiles * tile + 2 * diagonal_bytes(geometry, plan) + filters + states + pieces


def rows_refusal(geometry, extras, config, cores, on_tensor):
    """Why `mixed` or `vector` does not run a convolution with these settings; "" if it does."""
    reason = mixed_config_refusal(geometry, config, on_tensor)
    if reason != "":
        return reason
    plan = mixed_plan(geometry, extras, mixed_settings(geometry, config, on_tensor))
    return plan_refusal(geometry, extras, plan, cores, "mixed" if on_tensor else "vector")


def plan_refusal(geometry, extras, plan, cores, name):
    """Why a plan does not run: memory or instructions; "" if it does."""
    needed = mixed_sbuf_bytes(geometry, extras, plan, 0)
    if plan.rows.columns == 0 or needed > MIXED_SBUF_BYTES:
        return (
            f"S={geometry.S}, dilation={geometry.dilation}, stride={geometry.stride}: {name} needs {needed} bytes "
            f"per partition of SBUF for the filters of one channel tile ({diagonal_bytes(geometry, plan)} for each set "
            f"of diagonals) and the elements they read, and has {MIXED_SBUF_BYTES}; use banded or dot, "
            f"or split the filter and add the results"
        )
    # a piece's sums are there from Tensor's taps to the step that reads them
    banks = plan.in_psum * div_ceil(widest_piece(plan), BANK_COLUMNS)
    if banks > PSUM_BANKS:
        return (
            f"config piece={plan.piece}, first={plan.config.first}, last={plan.config.last}: the pieces in flight need "
            f"{banks} banks of PSUM, and there are {PSUM_BANKS}; use pieces of up to {BANK_COLUMNS} columns, or "
            f"give chain A a tap on Vector in every recipe"
        )
    return instructions_refusal(geometry, name, count_mixed_instructions(geometry, plan, cores))


def count_mixed_instructions(geometry, plan, cores):
    """Most instructions that a core can need."""
    rows = plan.rows
    tiles = tile_count(geometry, rows)
    pieces = tiles * div_ceil(rows.columns, plan.piece) + len(plan.config.first) + len(plan.config.last)
    # a tap is one instruction on any engine, or one for each bank; sums, epilogue, stores of every group
    each = geometry.S * div_ceil(plan.piece, BANK_COLUMNS) + 4 + rows.G
    loads = 6 + 3 * rows.G + len(plan.config.first)
    if not rows.runs:
        loads = geometry.S * (1 + 2 * rows.G)
    channel_tiles = part_most(rows.T, rows.shard == "channels")
    filters = 8 * div_ceil(channel_tiles, filter_block(geometry)) + 8 + plan.config.warmup
    halves = 2 if cores == 1 else 1
    return halves * (pieces * each + tiles * (loads + 2) + filters)


def widths_of(qn, plan, is_first, is_last):
    """Widths of the pieces of a tile: narrow ones at the ends of a part, equal ones between."""
    last = plan.config.last
    begin, end, middle = (), (), ()
    left = qn
    for first in plan.config.first if is_first else ():
        if left > 0:
            begin = begin + (min(first, left),)
            left -= min(first, left)
    if is_last:
        for index in range(len(last)):
            if left > 0:
                width = min(last[len(last) - 1 - index], left)
                end = (width,) + end
                left -= width
    for part in cut(left, plan.piece):
        middle = middle + (part[1],)
    return begin, middle, end


def mixed_cuts(qn, begin):
    """Columns after which a new load begins: after each of the first pieces."""
    cuts = ()
    end = 0
    for width in begin:
        end += width
        cuts = cuts + (end,)
    if end < qn:
        cuts = cuts + (qn,)
    return cuts


def cut_pieces(plan, epilogue, tiles):
    """The pieces of all tiles of a part, in order."""
    config = plan.config
    spans = []
    for i in range(len(tiles)):
        begin, middle, end = widths_of(tiles[i].qn, plan, i == 0, i == len(tiles) - 1)
        q0 = 0
        for width in begin + middle + end:
            spans.append((i, q0, width))
            q0 += width
    # where every recipe leaves PSUM to be copied out, Vector and Scalar take turns; else Scalar does it
    in_turn = True
    for recipe in config.recipes:
        in_turn = in_turn and reads_out(recipe)
    pieces = []
    for place in range(len(spans)):
        i, q0, qn = spans[place]
        recipe = config.recipes[max(0, place - len(config.start)) % len(config.recipes)]
        if place < len(config.start):
            recipe = config.start[place]
        elif place >= len(spans) - len(config.end):
            recipe = config.end[place - len(spans) + len(config.end)]
        pieces.append(
            MixedPiece(
                tile=i,
                q0=q0,
                qn=qn,
                recipe=recipe,
                phases=phases_of(recipe, epilogue),
                last=last_step(recipe, epilogue),
                vector_reads=in_turn and place % 2 == 0,
                # nothing follows the last sums that Vector could be late for
                vector_joins=place == len(spans) - 1,
            )
        )
    return pieces
