"""What the loop over rows does, decided before the first instruction: settings, pieces, memory, instructions.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import GPSIMD_FIXED_NS, GPSIMD_SELECT_NS, VECTOR_NS
from ..._settings import setting
from ..._tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, div_ceil
from .chains import Piece, has_product, phases_of, reads_out, tap_count
from .dma import channels_most
from .recipes import default_recipes, engine_times, first_recipes, last_recipes, most_tensor_taps
from .states import state_block, state_bytes
from .tiles import SHARDS, RowPlan, half_columns, half_images, load_bytes, plan_rows

#: Settings of `mixed` and `vector`.
ROWS_SETTINGS = ("recipes", "piece", "columns", "shard", "prefetch", "first", "last", "start", "end", "warmup", "join")
#: SBUF that a plan may fill: what nki-library uses of a partition (trn2.toml, memory.sbuf_usable_per_partition), less
#: room for filters, biases and small tiles.
ROWS_SBUF_BYTES = 196608
#: Banks of PSUM (trn2.toml, memory.psum_banks).
PSUM_BANKS = 8
#: Most columns of one piece: four banks of PSUM, so that two pieces are in flight. The least: not all of a bank, which
#: leaves tiles a little longer than one with a last piece that hides nothing.
PIECE_MIN, PIECE_MAX = 448, 2048
#: Pieces of a core's work from which they may be larger than a bank.
PIECES = 32
#: Widths of the first and last pieces of a half: sums begin with the first 256 columns, and y ends with few. Where
#: pieces are larger than a bank the work is too long for the first ones to matter.
FIRST_WIDTHS = (256, 384, 512)
LAST_WIDTHS = (320,)
#: Matmuls of 512 columns that keep the array busy until the first diagonals are there: 5 x 427 ns at half rate.
WARMUP = 5
#: Bytes a partition of the filters that one DMA loads.
ROWS_FILTER_BYTES = 16384
#: Most tiles that may be loaded ahead, and most matmuls to warm up with: more than memory or time is there for.
AHEAD_MAX = 64
#: Tiles loaded ahead of the sums, if they fit.
PREFETCH_MAX = 4
#: How many times Vector's work GpSimd's must be for Vector to fill columns, and tiles of a half from which it may.
FAR_MORE = 1.25
MANY_TILES = 4


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


def is_count(value, least):
    """Whether value is an int of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def are_widths(values):
    """Whether values is a tuple of widths that a piece can have."""
    if not isinstance(values, tuple):
        return False
    for index in range(len(values)):
        if not is_count(values[index], 1) or values[index] > PIECE_MAX:
            return False
    return True


def recipes_refusal(name, recipes, S, on_tensor):
    """What is wrong with a config's recipes."""
    if not isinstance(recipes, tuple) or (len(recipes) == 0 and name == "recipes"):
        return f"config {name}={recipes}: must be a tuple of (tensor, vector_a, head, vector_b)"
    for index in range(len(recipes)):
        recipe = recipes[index]
        right = isinstance(recipe, tuple) and len(recipe) == 4
        if right:
            for part in range(4):
                right = right and is_count(recipe[part], 0)
        if not right or recipe[2] > 1 or (recipe[2] == 0 and recipe[3] > 0) or tap_count(recipe) != S:
            return (
                f"config {name}={recipes}: recipe {index} must be (tensor, vector_a, head, vector_b) with head 0 or "
                f"1, vector_b = 0 without a head, and S={S} taps in all (one more on Scalar if tensor is 0)"
            )
        if not on_tensor and recipe[0] > 0:
            return f"config {name}={recipes}: recipe {index} has taps on Tensor; use algorithm mixed"
    return ""


def values_refusal(geometry, config, on_tensor):
    """What is wrong with the values of a config's settings; "" if nothing is."""
    recipes = setting(config, "recipes", None)
    if recipes != None:
        reason = recipes_refusal("recipes", recipes, geometry.S, on_tensor)
        if reason != "":
            return reason
    for name in ("start", "end"):
        reason = recipes_refusal(name, setting(config, name, ()), geometry.S, on_tensor)
        if reason != "":
            return reason
    piece = setting(config, "piece", PIECE_MAX)
    if not is_count(piece, 1) or piece > PIECE_MAX:
        return f"config piece={piece}: must be 1 to {PIECE_MAX} columns"
    columns = setting(config, "columns", 1)
    if not is_count(columns, 1):
        return f"config columns={columns}: must be a positive int, columns of a tile"
    shard = setting(config, "shard", "columns")
    if shard not in SHARDS:
        return f"config shard={shard}: must be one of {SHARDS}"
    for name in ("prefetch", "warmup"):
        value = setting(config, name, 0)
        if not is_count(value, 0) or value > AHEAD_MAX:
            return f"config {name}={value}: must be 0 to {AHEAD_MAX}"
    if not are_widths(setting(config, "first", ())) or not are_widths(setting(config, "last", ())):
        return f"config={config}: first and last must be tuples of ints, 1 to {PIECE_MAX} columns each"
    join = setting(config, "join", "gpsimd")
    if join not in ("gpsimd", "vector"):
        return f"config join={join}: must be gpsimd or vector"
    return ""


def read_plan(geometry, extras, config, on_tensor):
    """The LoopPlan of a config whose values are right; what it does not say is as a rule says."""
    rows = plan_rows(geometry, setting(config, "shard", None), setting(config, "columns", 0))
    rows.states = state_block(geometry, extras, rows)
    piece = min(setting(config, "piece", default_piece(geometry)), max(1, rows.columns))
    recipes = setting(config, "recipes", None)
    if recipes == None:
        recipes = default_recipes(geometry, extras, piece, on_tensor)
    on_array = most_tensor_taps(recipes) > 0
    first = FIRST_WIDTHS if piece <= BANK_COLUMNS else ()
    is_long = half_total(geometry) > FIRST_WIDTHS[0]
    plan = LoopPlan(
        rows=rows,
        recipes=recipes,
        piece=piece,
        prefetch=0,
        first=setting(config, "first", first),
        last=setting(config, "last", LAST_WIDTHS),
        start=setting(config, "start", first_recipes(geometry, is_long, rows.columns) if on_array else ()),
        end=setting(config, "end", last_recipes(geometry, is_long) if on_array else ()),
        warmup=setting(config, "warmup", WARMUP if on_array else 0),
        join=setting(config, "join", "gpsimd"),
    )
    if rows.columns > 0:
        rows.filler = filler(geometry, extras, plan)
    wanted = setting(config, "prefetch", PREFETCH_MAX)
    while wanted > 0 and sbuf_bytes(geometry, extras, plan, wanted) > ROWS_SBUF_BYTES:
        wanted -= 1
    plan.prefetch = wanted
    return plan


def filler(geometry, extras, plan):
    """Vector for columns outside of rows where GpSimd has more to do for each of many tiles: diagonals, sums of chains.

    Where tiles are few, what counts is that Vector starts early.
    """
    gpsimd, vector = 0.0, 0.0
    for index in range(len(plan.recipes)):
        times = engine_times(plan.recipes[index], geometry, extras.epilogue, plan.piece)
        # Vector has half of the plain copies out of PSUM
        vector += times[1] + 0.5 * times[4] * VECTOR_NS
        gpsimd += times[3]
    columns = plan.rows.columns / len(plan.recipes)
    diagonals_ns = GPSIMD_SELECT_NS * diagonal_bytes(geometry, plan) / geometry.itemsize
    gpsimd_ns = GPSIMD_FIXED_NS + gpsimd * columns + diagonals_ns / stacks(geometry, plan.rows)
    is_long = channel_tiles(plan.rows) * stacks(geometry, plan.rows) >= MANY_TILES
    return "vector" if is_long and gpsimd_ns > FAR_MORE * vector * columns else "gpsimd"


def channel_tiles(rows):
    """Most channel tiles of a half."""
    return div_ceil(rows.T, 2) if rows.shard == "channels" else rows.T


def stacks(geometry, rows):
    """Most tiles of a half for each channel tile."""
    stretches = half_images(geometry, rows.shard) * div_ceil(half_columns(geometry, rows.shard), rows.columns)
    return div_ceil(stretches, rows.G)


def default_piece(geometry):
    """Columns of a piece: most of a bank of PSUM, more where there are so many pieces that the ends do not matter."""
    return max(PIECE_MIN, min(PIECE_MAX, half_total(geometry) // PIECES))


def half_total(geometry):
    """Columns of 128 rows in a half of the work."""
    return (geometry.N * geometry.Q * geometry.C) // (2 * nl.tile_size.pmax)


def all_recipes(plan):
    """Every recipe that a piece may have."""
    return plan.start + plan.recipes + plan.end


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


def loop_refusal(geometry, extras, config, cores, on_tensor, name):
    """Why the loop does not run a convolution with these settings; "" if it does."""
    reason = values_refusal(geometry, config, on_tensor)
    if reason != "":
        return reason
    return plan_refusal(geometry, extras, read_plan(geometry, extras, config, on_tensor), cores, name)


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
