"""What the loop over rows takes on a core: its order of work, walked with a clock for each engine.

Half 1 of the work is walked, which is never the smaller one, but for states. Of a long one only the first tiles are:
further ones go on at the rate of the later half of these. The order is that of `loop`; a test holds the result against
the timeline.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._clock import end_of, load, matmuls, new_clock, on_gpsimd, on_scalar, on_vector, store
from ..._prices import (
    GPSIMD_DONE_NS,
    GPSIMD_FIXED_NS,
    GPSIMD_NS,
    GPSIMD_SELECT_NS,
    HOP_NS,
    HOP_TENSOR_NS,
    MATMUL_FP32_NS,
    MATMUL_NS,
    SCALAR_ACT_DONE_NS,
    SCALAR_DONE_NS,
    SCALAR_FIXED_NS,
    SCALAR_FIXED_OPERAND_NS,
    SCALAR_FIXED_PSUM_NS,
    SCALAR_NS,
    SCALAR_OPERAND_DONE_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_DONE_NS,
    VECTOR_FIXED_MEMSET_NS,
    VECTOR_FIXED_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_FIXED_SUM_NS,
    VECTOR_MEMSET_NS,
    VECTOR_NS,
    VECTOR_OPERAND_DONE_NS,
    VECTOR_SUM_NS,
    row_ns,
)
from ..._tiles import BANK_COLUMNS, div_ceil
from .chains import last_step, phases_of, vector_steps
from .dma import spans, y_spans
from .plan import all_recipes, any_product, cut_pieces, cuts_of, filter_block, most_phases, widths_of
from .recipes import most_tensor_taps
from .states import FILLED_AHEAD, IMAGES, is_staged, meets_state, place_of
from .tiles import run_length, tile_list

#: Pieces that are walked at most, and tiles that are at least: enough for the array to settle for a rate.
ROWS_WALKED = 96
ROWS_TILES_MIN = 6


@dataclass
class Walk(nl.NKIObject):
    """How far a walk is: the clocks, and when what the sums need is there."""

    clock: object
    #: ns of a column of a tap on the array, and of a matmul beside those
    column_ns: float
    fixed_ns: float
    #: for each tile: ((end column, ns), ...) of x; ns of its stationaries, or of its filters
    xs: list
    stationaries: list
    #: ns of the filters of each block of channel tiles
    filters: list
    #: ns of each block of states, and tiles that have theirs
    states: list
    filled: int
    #: ns of the chains (A, B) of each piece
    chains: list
    #: ns from the first load's trigger to the end of the last store of each tile
    ends: list


def walk_ns(geometry, extras, plan):
    """ns of a core that runs a plan which memory holds."""
    each = div_ceil(plan.rows.columns, plan.piece)
    most = max(ROWS_TILES_MIN, div_ceil(ROWS_WALKED, each))
    # the second half of columns meets no state
    half = 0 if extras.state and plan.rows.shard == "columns" and geometry.Q > 1 else 1
    tiles = tile_list(geometry, plan.rows, half, most + 1)
    count = len(tiles)
    if count > most:
        count = count_tiles(geometry, plan.rows)
        tiles = tiles[0 : min(most, len(tiles))]
    walk = walk_tiles(geometry, extras, plan, tiles)
    ends = walk.ends
    last_ns = ends[len(ends) - 1]
    if count == len(tiles):
        return last_ns
    # the last tile of a walk has narrow pieces: it is left out of the rate
    late = len(tiles) - 2
    early = late - max(1, late // 2)
    # loads that have run ahead make room for stores, for a while
    rate_ns = max((ends[late] - ends[early]) / (late - early), walk.clock.moved / len(tiles))
    return last_ns + (count - len(tiles)) * rate_ns


def count_tiles(geometry, rows):
    """Tiles of half 1."""
    images = div_ceil(geometry.N, 2) if rows.shard == "batch" else geometry.N
    columns = div_ceil(geometry.Q, 2) if rows.shard == "columns" else geometry.Q
    channel_tiles = div_ceil(rows.T, 2) if rows.shard == "channels" else rows.T
    return channel_tiles * div_ceil(images * div_ceil(columns, rows.columns), rows.G)


def walk_tiles(geometry, extras, plan, tiles):
    """The Walk through these tiles."""
    pieces = cut_pieces(plan, tiles)
    walk = Walk(
        clock=new_clock(),
        column_ns=TENSOR_COLUMN_FP32_NS if geometry.itemsize == 4 else TENSOR_COLUMN_NS,
        fixed_ns=2 * MATMUL_FP32_NS if geometry.itemsize == 4 else MATMUL_NS,
        xs=[],
        stationaries=[],
        filters=[],
        states=[],
        filled=0,
        chains=[],
        ends=[],
    )
    own = []
    for index in range(len(pieces)):
        own.append(phases_of(pieces[index].recipe, extras.epilogue))
        walk.chains.append((0.0, 0.0))
    phases = most_phases(all_recipes(plan), extras.epilogue)
    for turn in range(len(pieces) + phases - 1):
        if turn < len(pieces):
            i = pieces[turn].tile
            while len(walk.xs) < len(tiles) and len(walk.xs) <= i + plan.prefetch:
                take_tile(walk, geometry, extras, plan, tiles)
            while len(walk.stationaries) < min(len(walk.xs), i + 2):
                take_stationaries(walk, plan, tiles, filter_block(geometry))
            while walk.filled < min(len(walk.xs), i + FILLED_AHEAD + 1):
                fill_state(walk, geometry, plan, tiles)
        step = 0
        more = True
        while more:
            more = False
            for phase in range(phases):
                index = turn - phase
                if index >= 0 and index < len(pieces) and phase < len(own[index]):
                    bounds = own[index][phase]
                    if bounds[0] + step < bounds[1]:
                        more = True
                        take_step(walk, geometry, extras, plan, tiles, pieces[index], index, bounds[0] + step)
            step += 1
    return walk


def take_tile(walk, geometry, extras, plan, tiles):
    """Loads of the next tile, of filters that are due with it, and zeros beside its rows."""
    clock = walk.clock
    i = len(walk.xs)
    tile = tiles[i]
    block = filter_block(geometry)
    first_t = tiles[0].t
    while len(walk.filters) * block + first_t <= tile.t:
        take_filters(walk, geometry, extras, plan, tiles, block)
    state_ns = 0.0
    if is_staged(plan.rows, i):
        load_states(walk, geometry, plan, tiles, i)
    elif extras.state and meets_state(geometry, tile):
        taken = row_ns(geometry.pad_left, 1, geometry.itemsize)
        state_ns = load(clock, 0.0, 1, tile.rows, taken, tile.rows * geometry.pad_left * geometry.itemsize)
    zeros = zero_outside(walk, geometry, extras, plan, tile)
    cuts = cuts_of(tile.qn, widths_of(tile.qn, plan, i == 0, i == len(tiles) - 1)[0])
    found = ()
    begin = 0
    for index in range(len(cuts)):
        columns = cuts[index]
        if plan.rows.runs:
            end = run_length(geometry, columns)
            there_ns = load_run(walk, geometry, tile, begin, end, zeros[1])
            begin = end
        else:
            there_ns = 0.0
            taken = row_ns(tile.qn, geometry.x_w * geometry.stride, geometry.itemsize)
            for _ in range(geometry.S):
                there_ns = load(clock, 0.0, 1, tile.rows, taken, tile.rows * tile.qn * geometry.itemsize)
        found = found + ((columns, max(max(there_ns, zeros[0]), state_ns)),)
    if geometry.lhs_dilation > 1:
        found = open_gaps(walk, geometry, tile, found)
    if extras.epilogue.residual != "":
        taken = row_ns(tile.qn, geometry.y_q, geometry.itemsize)
        load(clock, 0.0, 1, tile.rows, taken, tile.rows * tile.qn * geometry.itemsize)
    walk.xs.append(found)
    if i == 0 and plan.warmup > 0:
        zeros_ns = on_vector(clock, 0.0, VECTOR_FIXED_MEMSET_NS, VECTOR_FIXED_MEMSET_NS)
        matmuls(clock, zeros_ns + HOP_TENSOR_NS, plan.warmup, BANK_COLUMNS, TENSOR_COLUMN_NS, MATMUL_NS)


def load_states(walk, geometry, plan, tiles, i):
    """Loads of the blocks of states up to that of a tile."""
    if meets_state(geometry, tiles[i]):
        taken = IMAGES * row_ns(plan.rows.states * geometry.pad_left, 1, geometry.itemsize)
        num_bytes = tiles[i].rows * IMAGES * plan.rows.states * geometry.pad_left * geometry.itemsize
        while len(walk.states) <= place_of(plan.rows, tiles, i)[0]:
            walk.states.append(load(walk.clock, 0.0, 1, tiles[i].rows, taken, num_bytes))


def fill_state(walk, geometry, plan, tiles):
    """The copy of the next tile's state to its columns, if it comes from a block."""
    i = walk.filled
    walk.filled += 1
    if not is_staged(plan.rows, i) or not meets_state(geometry, tiles[i]):
        return
    ready_ns = walk.states[place_of(plan.rows, tiles, i)[0]]
    busy_ns = geometry.pad_left * GPSIMD_NS
    if plan.rows.filler == "vector":
        there_ns = on_vector(walk.clock, ready_ns, VECTOR_FIXED_NS + busy_ns, VECTOR_DONE_NS + busy_ns)
    else:
        there_ns = on_gpsimd(walk.clock, ready_ns, GPSIMD_FIXED_NS + busy_ns, GPSIMD_DONE_NS + busy_ns)
    found = ()
    for index in range(len(walk.xs[i])):
        found = found + ((walk.xs[i][index][0], max(walk.xs[i][index][1], there_ns + HOP_NS)),)
    walk.xs[i] = found


def take_filters(walk, geometry, extras, plan, tiles, block):
    """Loads of the next block of filters."""
    t0 = len(walk.filters) * block + tiles[0].t
    count = min(block, tiles[len(tiles) - 1].t + 1 - t0) * geometry.S
    taken = row_ns(count, geometry.w_s, geometry.itemsize)
    rows = tiles[0].rows
    loads = 2 if any_product(all_recipes(plan)) and geometry.itemsize == 2 else 1
    there_ns = 0.0
    for _ in range(loads + (1 if extras.epilogue.bias else 0)):
        there_ns = load(walk.clock, 0.0, 1, rows, taken, rows * count * geometry.itemsize)
    walk.filters.append(there_ns)


def take_stationaries(walk, plan, tiles, block):
    """The next tile's diagonals: those of the tile before if the channels are the same."""
    i = len(walk.stationaries)
    tile = tiles[i]
    there_ns = walk.filters[(tile.t - tiles[0].t) // block]
    taps = most_tensor_taps(all_recipes(plan))
    before = tiles[max(0, i - 1)]
    if i > 0 and before.t == tile.t and before.rows >= tile.rows:
        there_ns = walk.stationaries[i - 1]
    elif taps > 0:
        busy_ns = taps * tile.rows * GPSIMD_SELECT_NS
        there_ns = on_gpsimd(walk.clock, there_ns, GPSIMD_FIXED_NS + busy_ns, GPSIMD_DONE_NS + busy_ns)
    walk.stationaries.append(there_ns)


def fill(walk, plan, columns):
    """Zeros in so many columns; returns when they are there."""
    if plan.rows.filler == "vector":
        busy_ns = VECTOR_FIXED_MEMSET_NS + columns * VECTOR_MEMSET_NS
        return on_vector(walk.clock, 0.0, busy_ns, busy_ns)
    busy_ns = columns * GPSIMD_NS
    return on_gpsimd(walk.clock, 0.0, GPSIMD_FIXED_NS + busy_ns, GPSIMD_DONE_NS + busy_ns)


def zero_outside(walk, geometry, extras, plan, tile):
    """Zeros in the columns of a tile that hold no element of x in some group.

    Returns when they are there, and the same again if x of another group has to wait for them, else 0.
    """
    if not plan.rows.runs:
        return 0.0, 0.0
    size = run_length(geometry, tile.qn)
    left = 0
    right = size
    least = size
    most = 0
    for g in range(len(tile.starts)):
        first = tile.starts[g] * geometry.stride - geometry.pad_left
        end = max(0, (geometry.W - 1) * geometry.lhs_dilation + 1 - first)
        if not extras.state:
            left = max(left, min(size, -first))
            least = min(least, max(0, -first))
        right = min(right, end)
        most = max(most, min(size, end))
    there_ns = 0.0
    if left >= right or geometry.lhs_dilation > 1:
        there_ns = fill(walk, plan, size)
    else:
        if left > 0:
            there_ns = fill(walk, plan, left)
        if right < size:
            there_ns = fill(walk, plan, size - right)
    overlaps = least < left or most > right or left >= right
    return there_ns + HOP_NS if there_ns > 0.0 else 0.0, there_ns if overlaps else 0.0


def load_run(walk, geometry, tile, begin, end, ready_ns):
    """Loads of positions begin .. end-1 of a tile's rows, one for each span of groups; when the last is there."""
    offsets, lows, counts = [], [], []
    longest = 0
    for g in range(len(tile.starts)):
        first = tile.starts[g] * geometry.stride - geometry.pad_left
        low = min(end, max(begin, -first))
        high = max(low, min(end, geometry.W * geometry.lhs_dilation - first))
        offsets.append(tile.images[g] * geometry.x_n + (first + low) * geometry.x_w)
        lows.append(low)
        counts.append(high - low)
        longest = max(longest, high - low)
    count = len(spans(offsets, lows, counts))
    elements = div_ceil(longest, geometry.lhs_dilation)
    taken = row_ns(elements, geometry.x_w, geometry.itemsize)
    num_bytes = tile.rows * elements * geometry.itemsize
    there_ns = 0.0
    for _ in range(count):
        there_ns = load(walk.clock, ready_ns, 1, tile.rows, taken / count, num_bytes / count)
    return there_ns


def open_gaps(walk, geometry, tile, found):
    """GpSimd's copy of what was loaded to its dilated places; when x is there."""
    busy_ns = div_ceil(run_length(geometry, tile.qn), geometry.lhs_dilation) * GPSIMD_NS
    loaded_ns = found[len(found) - 1][1]
    there_ns = on_gpsimd(walk.clock, loaded_ns, GPSIMD_FIXED_NS + busy_ns, GPSIMD_DONE_NS + busy_ns)
    return ((tile.qn, there_ns + HOP_NS),)


def x_ns(found, end):
    """When the columns below `end` of a tile are there."""
    index = 0
    while index < len(found) - 1 and found[index][0] < end:
        index += 1
    return found[index][1]


def take_step(walk, geometry, extras, plan, tiles, piece, index, step):
    """One step of a piece, as `chains.run_step` issues it."""
    clock = walk.clock
    recipe, epilogue = piece.recipe, extras.epilogue
    tile = tiles[piece.tile]
    qn = piece.qn
    steps = vector_steps(recipe)
    there_ns = x_ns(walk.xs[piece.tile], piece.q0 + qn)
    a = walk.chains[index][0]
    b = walk.chains[index][1]
    if step == 0:
        if recipe[0] > 0:
            ready_ns = max(there_ns, walk.stationaries[piece.tile] + HOP_TENSOR_NS)
            for begin in range(0, qn, BANK_COLUMNS):
                a = matmuls(clock, ready_ns, recipe[0], min(BANK_COLUMNS, qn - begin), walk.column_ns, walk.fixed_ns)
        else:
            a = product(clock, there_ns, qn)
        if recipe[2] == 1:
            b = product(clock, there_ns, qn)
    elif step <= steps:
        if recipe[0] == 0 and step <= recipe[1]:
            a = extend(clock, a, there_ns, qn)
        if step <= recipe[3]:
            b = extend(clock, b, there_ns, qn)
        if recipe[0] > 0 and step <= recipe[1]:
            a = extend(clock, a, there_ns, qn)
    elif recipe[2] == 1 and step == steps + 1:
        ready_ns = max(a, b) + HOP_NS
        if piece.vector_joins or (recipe[0] > 0 and recipe[1] == 0):
            a = on_vector(clock, ready_ns, VECTOR_FIXED_PSUM_NS + qn * VECTOR_NS, VECTOR_DONE_NS + qn * VECTOR_NS)
        else:
            a = on_gpsimd(clock, ready_ns, GPSIMD_FIXED_NS + qn * GPSIMD_NS, GPSIMD_DONE_NS + qn * GPSIMD_NS)
    else:
        a = complete(clock, a + HOP_NS, piece, epilogue)
    walk.chains[index] = (a, b)
    if step == last_step(recipe, epilogue):
        where = y_spans(tile, geometry, piece.q0, qn)
        count = max(1, len(spans(where[0], where[1], where[2])))
        taken = row_ns(qn, geometry.y_q, epilogue.y_itemsize) / count
        num_bytes = tile.rows * qn * epilogue.y_itemsize / count
        for _ in range(count):
            store(clock, a, tile.rows, taken, num_bytes)
        while len(walk.ends) <= piece.tile:
            walk.ends.append(0.0)
        walk.ends[piece.tile] = end_of(clock)


def product(clock, ready_ns, qn):
    """Scalar's product of a tap."""
    done_ns = SCALAR_ACT_DONE_NS + SCALAR_OPERAND_DONE_NS + qn * SCALAR_NS
    return on_scalar(clock, ready_ns, SCALAR_FIXED_OPERAND_NS + qn * SCALAR_NS, done_ns)


def extend(clock, chain_ns, there_ns, qn):
    """Vector's tap."""
    done_ns = VECTOR_DONE_NS + VECTOR_OPERAND_DONE_NS + qn * VECTOR_SUM_NS
    busy_ns = VECTOR_FIXED_SUM_NS + qn * VECTOR_SUM_NS
    return on_vector(clock, max(chain_ns + HOP_NS, there_ns), busy_ns, done_ns)


def complete(clock, ready_ns, piece, epilogue):
    """The epilogue, or a plain copy."""
    qn = piece.qn
    taken = qn * SCALAR_NS
    if epilogue.residual != "":
        summed_ns = extend(clock, ready_ns - HOP_NS, 0.0, qn)
        if epilogue.activation == "":
            return summed_ns
        return on_scalar(clock, summed_ns + HOP_NS, SCALAR_FIXED_PSUM_NS + taken, SCALAR_ACT_DONE_NS + taken)
    if epilogue.activation != "" or epilogue.bias:
        return on_scalar(clock, ready_ns, SCALAR_FIXED_OPERAND_NS + taken, SCALAR_ACT_DONE_NS + taken)
    if piece.vector_reads:
        return on_vector(clock, ready_ns, VECTOR_FIXED_PSUM_NS + qn * VECTOR_NS, VECTOR_DONE_NS + qn * VECTOR_NS)
    return on_scalar(clock, ready_ns, SCALAR_FIXED_NS + taken, SCALAR_DONE_NS + taken)
