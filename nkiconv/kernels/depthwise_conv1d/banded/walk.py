"""What `banded` takes on a core: its order of work, walked with a clock for each engine.

The part of the work that is never the smaller one is walked. Of a long one only the first tiles, some of full size
behind them and the last one are; the groups of those between go on at the rate of the later ones of full size. The
order is that of `kernel.work_through`; a test holds the result against the timeline.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._clock import end_of, load, matmuls, new_clock, on_gpsimd, on_scalar, on_vector, store
from ..._prices import (
    DMA_DONE_NS,
    DMA_END_NS,
    FIRST_PACKET_NS,
    GPSIMD_DONE_NS,
    GPSIMD_FIXED_NS,
    GPSIMD_NS,
    GPSIMD_SELECT_NS,
    HOP_NS,
    HOP_TENSOR_NS,
    MATMUL_FP32_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    SCALAR_ACT_DONE_NS,
    SCALAR_DONE_NS,
    SCALAR_FIXED_NS,
    SCALAR_FIXED_PSUM_NS,
    SCALAR_NS,
    STATIC_ISSUE_NS,
    STORE_SKEW_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_DONE_NS,
    VECTOR_FIXED_MEMSET_NS,
    VECTOR_FIXED_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_MEMSET_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    row_ns,
    run_ns,
)
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, share
from .tiles import plan_tile
from .work import cuts_of, work_of

#: Groups that are walked at most, and tiles that are at least.
BANDED_WALKED = 128
BANDED_TILES_MIN = 9
#: Tiles that are walked in any case before those by which a long walk goes on.
LEAD = 2
#: Partitions below which the first rows are there before the filters of 128 channels: the last of the 16 DMA engines
#: begins 300 ns after the first, a trigger takes 58.
ROWS_FIRST = 104
#: Banks of PSUM (trn2.toml, memory.psum_banks).
PSUM_BANKS = 8


@dataclass
class Walk(nl.NKIObject):
    """How far a walk is: the clocks, and when things are there, or free again."""

    clock: object
    tiles: list
    #: ns of a column and of a matmul of bands, of transposes in, of the way out
    column_ns: float
    fixed_ns: float
    turn_ns: float
    out_ns: float
    #: ns that each engine has been given of read-outs
    vector_ns: float
    scalar_ns: float
    #: ns at which each bank of PSUM is free, and banks taken so far
    banks: list
    taken: int
    #: ns of the filters of each 128 channels and of their copy in HBM; of the matrix that undoes the mirroring
    filters: list
    mirror: float
    #: for each tile: ns of its rows, of X, the last sums in Y, and when a buffer of rows may be written again
    rows: list
    blocks: list
    sums: list
    turned: list
    #: for each place of the queue: ns of its last bands, ns from one group to the next, and which is the last; when the
    #: matmuls that read them are done
    bands: list
    used: list
    #: ns from the first load's trigger to the end of the last store of each tile
    ends: list


def walk_ns(geometry, extras, blocks):
    """ns of a core for all its tiles; of columns, whose halves meet different paddings, the slower half's."""
    last_ns = walk_part(geometry, extras, blocks, PARTS - 1)
    return max(last_ns, walk_part(geometry, extras, blocks, 0)) if blocks.shard == "columns" else last_ns


def walked_groups(blocks):
    """Groups that a walk goes through, about."""
    return min(blocks.num_groups, max(BANDED_TILES_MIN * blocks.groups, BANDED_WALKED))


def walk_part(geometry, extras, blocks, part):
    """ns of one of the PARTS."""
    cuts = cuts_of(blocks, geometry, part)
    a_cut = cuts.n_parts * cuts.j_parts
    total = len(cuts.groups) * a_cut
    most = max(BANDED_TILES_MIN, div_ceil(BANDED_WALKED, min(blocks.groups, blocks.num_groups)))
    count = min(total, most)
    if count == 0:
        return 0.0
    skipped = skipped_at_edge(cuts, a_cut, total, count)
    tiles = []
    for place in range(count):
        index = place if place < LEAD else place + skipped
        index = index if place < count - 1 else total - 1
        n_j = index % a_cut
        tiles.append(plan_tile(blocks, work_of(cuts, index // a_cut, n_j // cuts.j_parts, n_j % cuts.j_parts)))
    tiles[count - 1].ends = True
    walk = walk_tiles(geometry, extras, blocks, tiles)
    ends = walk.ends
    last_ns = ends[count - 1]
    if count == total:
        return last_ns
    # what belongs to a tile moves beside the two before and the one behind it: the last ones are alone
    late = count - 4
    early = max(1, late // 2)
    # loads that have run ahead make room for stores, for a while
    rate_ns = (ends[late] - ends[early]) / groups_of(tiles, early + 1, late)
    rate_ns = max(rate_ns, walk.clock.moved / groups_of(tiles, 0, count - 1))
    all_groups = 0
    for index in range(len(cuts.groups)):
        all_groups += cuts.groups[index][1] * a_cut
    return last_ns + (all_groups - groups_of(tiles, 0, count - 1)) * rate_ns


def skipped_at_edge(cuts, a_cut, total, count):
    """Tiles behind the first LEAD that are not walked, where those of the first groups are smaller than the others."""
    if len(cuts.groups) < 3 or a_cut <= LEAD or cuts.groups[0][1] >= cuts.groups[1][1]:
        return 0
    return min(a_cut - LEAD, total - count)


def groups_of(tiles, first, last):
    """Groups of the tiles first .. last, counted once for each tile."""
    found = 0
    for index in range(first, last + 1):
        found += tiles[index].work.gn
    return found


def walk_tiles(geometry, extras, blocks, tiles):
    """The Walk through these tiles."""
    fp32 = geometry.itemsize == 4
    wide = extras.epilogue.y_itemsize == 4 or extras.epilogue.residual != ""
    walk = Walk(
        clock=new_clock(),
        tiles=tiles,
        column_ns=TENSOR_COLUMN_FP32_NS if fp32 else TENSOR_COLUMN_NS,
        fixed_ns=2 * MATMUL_FP32_NS if fp32 else MATMUL_NS,
        turn_ns=2 * TENSOR_COLUMN_NS if fp32 else TENSOR_COLUMN_NS,
        out_ns=TENSOR_COLUMN_FP32_NS / 2 if wide else TENSOR_COLUMN_NS,
        vector_ns=0.0,
        scalar_ns=0.0,
        banks=[],
        taken=0,
        filters=[],
        mirror=0.0,
        rows=[],
        blocks=[],
        sums=[],
        turned=[],
        bands=[],
        used=[],
        ends=[],
    )
    for _ in range(PSUM_BANKS):
        walk.banks.append(0.0)
    queue = []
    for index in range(len(tiles)):
        walk.rows.append(0.0)
        walk.blocks.append(0.0)
        walk.sums.append(0.0)
        walk.turned.append(0.0)
        work = tiles[index].work
        for first in range(0, work.gn, blocks.buffer_groups):
            groups = min(blocks.buffer_groups, work.gn - first)
            queue.append(((work.g0 + first - tiles[0].work.g0) * blocks.per_group, groups))
    clock = walk.clock
    # DMA engines serve who comes first: of two loads at the start the one that fewer of them share
    tile = tiles[0]
    if tile.chunks_in * tile.rows < ROWS_FIRST:
        take_rows(walk, geometry, blocks, 0, 0.0)
        take_filters(walk, geometry, blocks, 0)
    else:
        take_filters(walk, geometry, blocks, 0)
        take_rows(walk, geometry, blocks, 0, 0.0)
    zeros_ns = on_vector(clock, 0.0, VECTOR_FIXED_MEMSET_NS, VECTOR_FIXED_MEMSET_NS) + HOP_TENSOR_NS
    matmuls(clock, zeros_ns, blocks.warmup, BANK_COLUMNS, TENSOR_COLUMN_NS, MATMUL_NS)
    early = min(2, blocks.buffers)
    for position in range(early):
        take_bands(walk, geometry, blocks, queue, position)
    if len(tiles) > 1:
        take_rows(walk, geometry, blocks, 1, 0.0)
    turn_in(walk, geometry, blocks, 0, 0, in_pieces(geometry, tiles[0]))
    for position in range(early, blocks.buffers):
        take_bands(walk, geometry, blocks, queue, position)
    ones_ns = nl.tile_size.pmax * (GPSIMD_NS + GPSIMD_SELECT_NS)
    walk.mirror = on_gpsimd(clock, 0.0, 2 * GPSIMD_FIXED_NS + ones_ns, GPSIMD_FIXED_NS + GPSIMD_DONE_NS + ones_ns)
    matmuls(clock, 0.0, blocks.rewarm, BANK_COLUMNS, TENSOR_COLUMN_NS, MATMUL_NS)
    walk_groups(walk, geometry, extras, blocks, queue)
    return walk


def walk_groups(walk, geometry, extras, blocks, queue):
    """All groups of all tiles, as `work_through` has them."""
    tiles = walk.tiles
    position = 0
    for index in range(len(tiles)):
        tile = tiles[index]
        if index + 2 < len(tiles):
            take_rows(walk, geometry, blocks, index + 2, walk.turned[index])
        gn = tile.work.gn
        spread = max(1, gn - 2)
        late = index == 0 and blocks.group_ns > 2500
        for group in range(gn):
            if not late and group < spread and index + 1 < len(tiles):
                part = share(in_pieces(geometry, tiles[index + 1]), spread, group)
                turn_in(walk, geometry, blocks, index + 1, part[0], part[1])
            if group >= gn - spread and index > 0:
                part = share(out_pieces(blocks, tiles[index - 1]), spread, group - (gn - spread))
                turn_out(walk, geometry, extras, blocks, index - 1, part[0], part[1])
            multiply(walk, extras, blocks, index, group, position)
            if group % blocks.buffer_groups == blocks.buffer_groups - 1 or group == gn - 1:
                take_bands(walk, geometry, blocks, queue, position + blocks.buffers)
                position += 1
            if late and group < spread and index + 1 < len(tiles):
                part = share(in_pieces(geometry, tiles[index + 1]), spread, group)
                turn_in(walk, geometry, blocks, index + 1, part[0], part[1])
    last = len(tiles) - 1
    turn_out(walk, geometry, extras, blocks, last, 0, out_pieces(blocks, tiles[last]))


def take_filters(walk, geometry, blocks, last):
    """Filters of 128 channels at a time and their copies in HBM, up to those of the `last` channel, from the first."""
    item = geometry.itemsize
    width = (blocks.num_taps + 1) * blocks.block
    while len(walk.filters) * nl.tile_size.pmax <= last:
        rows = min(nl.tile_size.pmax, geometry.C)
        there_ns = load(walk.clock, 0.0, 1, rows, row_ns(geometry.S, geometry.w_s, item), rows * geometry.S * item)
        zero_ns = 2 * GPSIMD_FIXED_NS + (width - geometry.S) * GPSIMD_NS
        zeroed_ns = on_gpsimd(walk.clock, 0.0, zero_ns, zero_ns - GPSIMD_FIXED_NS + GPSIMD_DONE_NS)
        there_ns = max(there_ns, zeroed_ns + HOP_NS)
        copied_ns = FIRST_PACKET_NS + STORE_SKEW_NS + min(rows, ROWS_AN_ENGINE) * run_ns(width * item)
        walk.filters.append((there_ns, there_ns + copied_ns + DMA_END_NS + DMA_DONE_NS))


def take_bands(walk, geometry, blocks, queue, position):
    """Zeros of a buffer's first bands, and the loads of a place of the queue."""
    if position >= len(queue):
        return
    clock = walk.clock
    A, groups = blocks.per_group, queue[position][1]
    size = blocks.num_taps * blocks.block
    channels = min(geometry.C, groups * A)
    last = min(geometry.C, queue[position][0] + channels) - 1
    take_filters(walk, geometry, blocks, last)
    soon = position < 1 or not blocks.scratch
    filters = walk.filters[last // nl.tile_size.pmax]
    ready_ns = filters[0] if soon else filters[1]
    if position >= blocks.buffers:
        ready_ns = max(ready_ns, walk.used[position - blocks.buffers])
    elif A > 1:
        words = A * (size + size % 2) * geometry.itemsize / 4
        for group in range(blocks.buffer_groups):
            if group % 3 == 2:
                busy_ns = words * GPSIMD_NS
                zeroed_ns = on_gpsimd(clock, 0.0, GPSIMD_FIXED_NS + busy_ns, GPSIMD_DONE_NS + busy_ns)
            else:
                busy_ns = VECTOR_FIXED_MEMSET_NS + words * VECTOR_MEMSET_NS
                zeroed_ns = on_vector(clock, 0.0, busy_ns, busy_ns)
                walk.vector_ns += words * VECTOR_MEMSET_NS
            ready_ns = max(ready_ns, zeroed_ns)
    triggers = channels if soon else min(A, channels)
    num_bytes = 0 if soon else channels * blocks.block * size * geometry.itemsize
    taken = channels / A * run_ns(size * geometry.itemsize)
    there_ns = load(clock, ready_ns, triggers, nl.tile_size.pmax, taken, num_bytes)
    # one trigger after the other: the first groups' are there earlier
    walk.bands.append((there_ns, A * STATIC_ISSUE_NS if soon else 0.0, groups - 1))


def take_rows(walk, geometry, blocks, index, ready_ns):
    """The load of a tile's rows, and zeros beside them."""
    tile = walk.tiles[index]
    if tile.datan == 0:
        return
    clock, A = walk.clock, min(blocks.per_group, geometry.C)
    partitions = tile.chunks_in * tile.rows
    size = tile.blocks_in * blocks.block
    begin = (tile.work.j0 + tile.data0) * blocks.block - geometry.pad_left
    left = max(0, 0 - begin)
    right = max(0, begin + tile.chunks_in * size - geometry.W)
    words = geometry.itemsize / 4
    for missing in (min(size, left), min(size, right)):
        if missing > 0:
            busy_ns = VECTOR_FIXED_MEMSET_NS + A * missing * words * VECTOR_MEMSET_NS
            ready_ns = max(ready_ns, on_vector(clock, ready_ns, busy_ns, busy_ns))
    transfers = 1 + (1 if left > 0 and tile.chunks_in > 1 else 0) + (1 if right > 0 and tile.chunks_in > 1 else 0)
    if ends_short(geometry, blocks, tile):
        transfers = 2 * tile.chunks_in
    run = min(size, max(1, tile.chunks_in * size - left - right))
    taken = A * row_ns(run, geometry.x_w, geometry.itemsize)
    num_bytes = partitions * A * run * geometry.itemsize
    walk.rows[index] = load(clock, ready_ns, transfers, partitions, taken, num_bytes)


def ends_short(geometry, blocks, tile):
    """Whether the last of several groups has fewer channels than the others, which takes DMAs of its own."""
    return tile.work.gn > 1 and (tile.work.g0 + tile.work.gn) * blocks.per_group > geometry.C


def bank(walk):
    """Take the next bank of PSUM: (its place, when it is free)."""
    place = walk.taken % PSUM_BANKS
    walk.taken += 1
    return place, walk.banks[place]


def read_out(walk, ready_ns, elements, fast, on_scalar_only, fixed_ns):
    """A read-out of so many elements a partition by the engine that has had less; returns when it is there."""
    vector_ns = VECTOR_FIXED_NS + elements * (VECTOR_NS_16BIT if fast else VECTOR_NS)
    scalar_ns = VECTOR_FIXED_NS + elements * SCALAR_NS
    if not on_scalar_only and walk.vector_ns + vector_ns <= walk.scalar_ns + scalar_ns:
        walk.vector_ns += vector_ns
        busy_ns = elements * (VECTOR_NS_16BIT if fast else VECTOR_NS)
        return on_vector(walk.clock, ready_ns + HOP_NS, VECTOR_FIXED_PSUM_NS + busy_ns, VECTOR_DONE_NS + busy_ns)
    walk.scalar_ns += scalar_ns
    busy_ns = elements * SCALAR_NS
    done_ns = SCALAR_ACT_DONE_NS if fixed_ns > SCALAR_FIXED_NS else SCALAR_DONE_NS
    return on_scalar(walk.clock, ready_ns + HOP_NS, fixed_ns + busy_ns, done_ns + busy_ns)


def turns_a_bank(geometry, tile):
    """Transposes whose results fit one bank."""
    columns = tile.chunks_in * tile.rows
    return max(1, nl.tile_size.psum_bank_fmax_bytes // ((columns + columns % 2) * geometry.itemsize))


def in_pieces(geometry, tile):
    """Pieces of the stage that makes blocks of rows."""
    return 1 if tile.datan == 0 else div_ceil(tile.blocks_in, turns_a_bank(geometry, tile))


def turn_in(walk, geometry, blocks, index, first, count):
    """Pieces first .. first+count-1 of the stage that makes blocks of rows."""
    tile = walk.tiles[index]
    if tile.datan == 0:
        return
    columns = tile.chunks_in * tile.rows
    at_once = turns_a_bank(geometry, tile)
    fixed_ns = MATMUL_NS
    for piece in range(first, first + count):
        jn = min(at_once, tile.blocks_in - piece * at_once)
        place, free_ns = bank(walk)
        ready_ns = max(walk.rows[index], free_ns)
        there_ns = matmuls(walk.clock, ready_ns, jn, columns, walk.turn_ns, fixed_ns)
        walk.turned[index] = max(walk.turned[index], there_ns)
        there_ns = read_out(walk, there_ns, jn * columns, geometry.itemsize == 2, False, SCALAR_FIXED_NS)
        walk.banks[place] = there_ns + HOP_TENSOR_NS
        walk.blocks[index] = max(walk.blocks[index], there_ns + HOP_TENSOR_NS)


def multiply(walk, extras, blocks, index, group, position):
    """The matmuls of a group, and the read-out of a bank of groups."""
    tile, work = walk.tiles[index], walk.tiles[index].work
    most = nl.tile_size.psum_fmax
    columns = work.nn * work.jn
    bands = walk.bands[position]
    ready_ns = max(walk.blocks[index], bands[0] - bands[1] * (bands[2] - group % blocks.buffer_groups))
    epilogue = extras.epilogue
    on_scalar_only = epilogue.activation != "" and epilogue.residual != "pre_activation"
    fixed_ns = SCALAR_FIXED_PSUM_NS if epilogue.bias or on_scalar_only else SCALAR_FIXED_NS
    met = min(blocks.num_taps - 1, tile.data0 + tile.datan - 1) - max(0, tile.data0 - work.jn + 1) + 1
    met = max(1, met)
    there_ns = 0.0
    if columns <= most:
        slots = most // (tile.repeats * columns)
        slot = group % slots
        if slot == 0:
            ready_ns = max(ready_ns, bank(walk)[1])
        there_ns = matmuls(walk.clock, ready_ns, met, tile.repeats * columns, walk.column_ns, walk.fixed_ns)
        if slot == slots - 1 or group == work.gn - 1:
            reads = slot + 1 if epilogue.bias else 1
            read_ns = there_ns
            for _ in range(reads):
                elements = (slot + 1) * columns / reads
                read_ns = read_out(walk, there_ns, elements, False, on_scalar_only, fixed_ns)
            walk.banks[(walk.taken - 1) % PSUM_BANKS] = read_ns + HOP_TENSOR_NS
            walk.sums[index] = max(walk.sums[index], read_ns)
    else:
        pieces = div_ceil(work.jn, most)
        for n in range(work.nn * pieces):
            place, free_ns = bank(walk)
            each = share(work.jn, pieces, n % pieces)[1]
            there_ns = matmuls(walk.clock, max(ready_ns, free_ns), met, each, walk.column_ns, walk.fixed_ns)
            read_ns = read_out(walk, there_ns, each, False, on_scalar_only, fixed_ns)
            walk.banks[place] = read_ns + HOP_TENSOR_NS
            walk.sums[index] = max(walk.sums[index], read_ns)
    if len(walk.used) <= position:
        walk.used.append(there_ns)
    walk.used[position] = there_ns


def outs_a_bank(blocks, tile):
    """Block columns of rows that fit one bank, or half of them all at the end."""
    most = max(1, nl.tile_size.psum_fmax // (blocks.per_group * blocks.out_block))
    return min(most, div_ceil(tile.blocks_out, 2)) if tile.ends else most


def out_pieces(blocks, tile):
    """Pieces of the stage that makes rows of sums."""
    return div_ceil(tile.blocks_out, outs_a_bank(blocks, tile))


def turn_out(walk, geometry, extras, blocks, index, first, count):
    """Pieces first .. first+count-1 of the stage that makes rows of sums; the last one stores."""
    tile, epilogue = walk.tiles[index], extras.epilogue
    width = blocks.per_group * blocks.out_block
    at_once = outs_a_bank(blocks, tile)
    there_ns = 0.0
    after_residual = epilogue.residual == "pre_activation" and epilogue.activation != ""
    for piece in range(first, first + count):
        jn = min(at_once, tile.blocks_out - piece * at_once)
        place, free_ns = bank(walk)
        ready_ns = max(max(walk.sums[index] + HOP_TENSOR_NS, walk.mirror + HOP_TENSOR_NS), free_ns)
        there_ns = matmuls(walk.clock, ready_ns, jn, width, walk.out_ns, MATMUL_NS)
        there_ns = read_out(walk, there_ns, jn * width, False, after_residual, SCALAR_FIXED_NS)
        walk.banks[place] = there_ns + HOP_TENSOR_NS
    if count > 0 and first + count == out_pieces(blocks, tile):
        partitions = tile.chunks_out * tile.rows
        A = min(blocks.per_group, geometry.C)
        run = min(tile.blocks_out * blocks.out_block, geometry.Q - tile.work.j0 * blocks.out_block)
        short = geometry.Q % (tile.step_out * blocks.out_block) != 0 and tile.chunks_out > 1
        transfers = 2 if short else 1
        if ends_short(geometry, blocks, tile):
            transfers = 2 * tile.chunks_out
        taken = A * row_ns(run, geometry.y_q, epilogue.y_itemsize) / transfers
        num_bytes = partitions * A * run * epilogue.y_itemsize / transfers
        for _ in range(transfers):
            store(walk.clock, there_ns, partitions, taken, num_bytes)
        walk.ends.append(end_of(walk.clock))
