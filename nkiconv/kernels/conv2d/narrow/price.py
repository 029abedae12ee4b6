"""What narrow takes by prices: its start, then the slowest of the array, the read-outs and the DMAs, and its end."""

from ...._nki import nl
from ..._clock import new_clock, skew, stream
from ..._prices import (
    DMA_DONE_NS,
    DMA_END_NS,
    FIRST_PACKET_NS,
    GPSIMD_FIXED_NS,
    GPSIMD_NS,
    HALF_RATE,
    HBM_BYTE_NS,
    HOP_DMA_NS,
    HOP_NS,
    HOP_TENSOR_NS,
    LOAD_SKEW_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_DONE_HALF_NS,
    MATMUL_DONE_NS,
    MATMUL_FP32_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    SCALAR_DONE_NS,
    SCALAR_FIXED_NS,
    SCALAR_NS,
    STATIC_ISSUE_NS,
    STORE_SKEW_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    TRANSPOSE_PASSES_FP32,
    VECTOR_DONE_NS,
    VECTOR_FIXED_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_MEMSET_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    WINDOW_NS,
    WINDOW_WORK,
    run_ns,
)
from ..._tiles import BANK_BYTES, PARTS, div_ceil
from ..geometry import span
from ..rate import sums_end

#: ns from when stationaries are cleared until the first matmul on zeros.
NARROW_WARM_UP_START_NS = 190.0
#: Matmuls of 128 columns on zeros: until the filters come, and all of them, while those that were turned are laid out.
WARM_UP_FIRST = 9
NARROW_WARM_UP = 28
#: How much longer than evenly shared additions take, as engines wait for each other.
SHARED = 1.15


def narrow_ns(geometry, narrow):
    """ns of the busier of two cores for a Narrow."""
    array_ns, work_ns, read_ns, chain_ns, mine = core_ns(geometry, narrow)
    x_ns, y_ns, last_ns = moved_ns(geometry, narrow)
    w_ns = filters_ns(geometry, narrow)[0]
    chunks, lines = len(narrow.chunks), len(narrow.lines)
    rows = narrow.images * narrow.height
    first = min(1.0, rows * PARTS / (geometry.N * geometry.rows.size)) * x_ns
    clock, start_ns = started(geometry, narrow, first, array_ns / (lines * len(narrow.tiles)))
    sums_ns = sums_end(clock, start_ns, mine * array_ns, mine * work_ns) - start_ns
    computed_ns = start_ns + max(sums_ns, mine * read_ns)
    # stores begin with the first results; those before the last load make it later
    loaded_ns = FIRST_PACKET_NS + LOAD_SKEW_NS + w_ns + x_ns
    stores_ns = start_ns + max(array_ns, read_ns) + MATMUL_DONE_NS + HOP_NS + chain_ns + HOP_DMA_NS + FIRST_PACKET_NS
    stored_ns = max(loaded_ns, stores_ns) + y_ns + DMA_END_NS
    loaded_ns += max(0.0, min(y_ns - last_ns, loaded_ns - stores_ns)) + DMA_DONE_NS
    # what waits for the last load: its rows' lines, or all of several banks, but for other chunks' first line
    last = max(narrow.height / (narrow.blocks * narrow.step), min(1.0, narrow.height / lines))
    last = min(1.0, last) * (1.0 - (chunks - 1) / (chunks * lines * len(narrow.tiles)))
    tail_ns = last * array_ns
    if (mine - last) * work_ns < WINDOW_WORK * (loaded_ns - start_ns):
        # waiting for loads leaves the array at half rate
        tail_ns = sums_end(new_clock(), 0.0, tail_ns, last * work_ns)
    summed_ns = max(computed_ns, loaded_ns + max(tail_ns, last * read_ns))
    end_ns = MATMUL_DONE_NS + HOP_NS + chain_ns + HOP_DMA_NS + FIRST_PACKET_NS
    end_ns += skew(narrow.U * geometry.K, STORE_SKEW_NS) + last_ns + DMA_END_NS
    return max(summed_ns + end_ns, stored_ns)


def core_ns(geometry, narrow):
    """(ns of the array, those of them that it works, ns of the read-outs' busiest engine for a step; ns from its last
    sums to y; steps of a core)."""
    mine, images, blocks = steps_of_core(geometry, narrow)
    banks = images * blocks
    array_ns, work_ns, read_ns, chain_ns = 0.0, 0.0, 0.0, 0.0
    for index in range(len(narrow.tiles)):
        bank = bank_ns(geometry, narrow, images, blocks, narrow.tiles[index][3])
        array_ns += bank[0]
        work_ns += bank[1]
        busy_ns, chain_ns = read_outs_ns(narrow, banks * narrow.tiles[index][1])
        read_ns += busy_ns
    return array_ns, work_ns, read_ns, chain_ns, mine


def step_parts(geometry, narrow):
    """Parts that images and blocks are cut into for the steps: at least as many as there are cores."""
    blocks = num_blocks(geometry, narrow)
    image_parts, block_parts = div_ceil(geometry.N, narrow.images), div_ceil(blocks, narrow.blocks)
    if image_parts * block_parts % PARTS == 1 and image_parts < geometry.N:
        image_parts += 1
    elif image_parts * block_parts % PARTS == 1 and block_parts < blocks:
        block_parts += 1
    return image_parts, block_parts


def steps_of_core(geometry, narrow):
    """(steps of a core, images and blocks of a step on average)."""
    image_parts, block_parts = step_parts(geometry, narrow)
    mine = div_ceil(image_parts * block_parts, PARTS)
    return mine, geometry.N / image_parts, num_blocks(geometry, narrow) / block_parts


def reads_bound(geometry, narrow):
    """Whether the read-outs take longer than the array and the DMAs."""
    array_ns, _, read_ns, _, mine = core_ns(geometry, narrow)
    x_ns, y_ns, _ = moved_ns(geometry, narrow)
    return narrow.T > 1 and mine * read_ns > max(mine * array_ns, x_ns + y_ns)


def bank_ns(geometry, narrow, images, blocks, columns):
    """(ns of the array at full rate, those of them that it works) for a bank of sums: `columns` of each block."""
    moved = images * blocks * columns
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    fixed_ns = MATMUL_NS if geometry.fast else 2 * MATMUL_FP32_NS
    unit = narrow.blocks * narrow.step
    passes, again = 1, 0.0
    if narrow.blocks > 1 and narrow.height < geometry.rows.size:
        passes = min(blocks, div_ceil(unit, narrow.height))
        # lines of which some blocks' rows lie in another load than the others'
        for index in range(len(narrow.lines)):
            behind = narrow.lines[index].row // narrow.step
            if behind > 0:
                again += max(0.0, MATMUL_COLUMNS_MIN - behind * images * columns) * column_ns + fixed_ns
        again = again * min(1.0, unit / narrow.height)
    each = max(passes * MATMUL_COLUMNS_MIN, moved) * column_ns + passes * fixed_ns
    times = narrow.groups * len(narrow.chunks)
    lines = lines_met(geometry, narrow)
    return (lines * each + again) * times, lines * moved * column_ns * times


def lines_met(geometry, narrow):
    """Lines that are a row of x for some block."""
    low, rows = span(geometry.rows, 0, geometry.rows.out)
    count = 0
    for index in range(len(narrow.lines)):
        h = narrow.first + narrow.lines[index].row
        # the first block for which it is none of the rows before x
        j = div_ceil(max(0, low - h), narrow.step)
        if j < num_blocks(geometry, narrow) and h + j * narrow.step < low + rows:
            count += 1
    return count


def read_outs_ns(narrow, elements):
    """(ns of the busiest engine, ns from the sums to y) for the read-outs of a bank."""
    vector_ns = elements * VECTOR_NS + VECTOR_FIXED_PSUM_NS
    scalar_ns = elements * SCALAR_NS + SCALAR_FIXED_NS
    gpsimd_ns = elements * GPSIMD_NS + GPSIMD_FIXED_NS
    adds_ns = (narrow.T - 1) * vector_ns
    busy_ns = max(adds_ns, scalar_ns)
    if narrow.T == 1:
        busy_ns = scalar_ns * vector_ns / (scalar_ns + vector_ns)
    elif narrow.shared:
        # the part of the banks of which Vector leaves one addition to the others
        part = max(0.0, min((adds_ns - scalar_ns) / (vector_ns + scalar_ns), adds_ns / (vector_ns + gpsimd_ns)))
        busy_ns = (adds_ns - min(1.0, part) * vector_ns) * SHARED
    chain_ns = scalar_ns + SCALAR_DONE_NS + narrow.T * VECTOR_DONE_NS + adds_ns
    return busy_ns, chain_ns


def moved_ns(geometry, narrow):
    """ns of the busiest of a core's DMA engines, or HBM, for (x, y, the last store)."""
    rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
    mine, images, blocks = steps_of_core(geometry, narrow)
    share = mine * images * blocks / (geometry.N * num_blocks(geometry, narrow))
    x_run, y_run = 1, 1
    if geometry.x_w == 1:
        dense = narrow.pad == 0 and geometry.x_h == narrow.wn
        x_run = narrow.wn * (min(narrow.height, rows.size) if dense else 1)
    if geometry.y_q == 1:
        # rows of all blocks lie side by side where a block is one row
        dense = narrow.U == 1 and geometry.y_p == columns.out
        y_run = columns.out * (blocks if dense else 1)
    x_size = geometry.N * rows.size * narrow.wn
    channels = narrow.chunks[len(narrow.chunks) - 1][1]
    x_ns = share * len(narrow.chunks) * min(ROWS_AN_ENGINE, channels) * x_size / x_run * run_ns(x_run * item)
    # slots of partitions take turns, and those have engines of their own
    outputs = narrow.U * geometry.K
    runs = images * blocks * columns.out / y_run
    last_ns = min(ROWS_AN_ENGINE, outputs) * runs * run_ns(y_run * item)
    y_ns = mine * last_ns / min(mine, nl.tile_size.pmax // narrow.slot)
    x_ns = max(x_ns, share * geometry.C * x_size * item * HBM_BYTE_NS)
    y_ns = max(y_ns, share * geometry.N * geometry.K * rows.out * columns.out * item * HBM_BYTE_NS)
    if len(narrow.tiles) > 1:
        # each part of the last step's rows is stored when it is there
        last_ns = last_ns / len(narrow.tiles)
    return x_ns, y_ns, last_ns


def filters_ns(geometry, narrow):
    """(ns of a DMA engine for all filters, loads of them that are turned together, chunks of each)."""
    taps, chunks = geometry.rows.taps * geometry.columns.taps, len(narrow.chunks)
    together = min(chunks, nl.tile_size.pmax // geometry.K)
    turned = div_ceil(chunks, together)
    run = run_ns(narrow.chunks[chunks - 1][1] * taps * geometry.itemsize)
    return turned * min(ROWS_AN_ENGINE, together * geometry.K) * run, turned, together


def started(geometry, narrow, first_ns, line_ns):
    """(the array's clock, ns until the first sums begin): filters have come, are turned and laid out, and the first
    rows of x, which take first_ns of a DMA engine, have come. line_ns: of the array for a line."""
    taps, chunks = geometry.rows.taps * geometry.columns.taps, len(narrow.chunks)
    w_ns, turned, together = filters_ns(geometry, narrow)
    width = together * geometry.K
    channels = narrow.chunks[chunks - 1][1]
    come_ns = FIRST_PACKET_NS + skew(width, LOAD_SKEW_NS) + DMA_END_NS + DMA_DONE_NS
    x_come_ns = FIRST_PACKET_NS + skew(channels, LOAD_SKEW_NS) + DMA_END_NS + DMA_DONE_NS + w_ns + first_ns / chunks
    if skew(width, LOAD_SKEW_NS) > skew(channels, LOAD_SKEW_NS) + chunks * STATIC_ISSUE_NS:
        # rows on fewer partitions come first
        come_ns += first_ns
    words = len(narrow.lines) * narrow.groups * narrow.T * narrow.slot * geometry.itemsize / 4
    cleared_ns = div_ceil(chunks, 2) * (VECTOR_FIXED_NS + words * VECTOR_MEMSET_NS)
    zero_ns = MATMUL_COLUMNS_MIN * TENSOR_COLUMN_NS
    turn_ns = turned * taps * zero_ns * (TRANSPOSE_PASSES_FP32 if geometry.itemsize == 4 else 1)
    # few filters keep the array waiting, which is no work
    busy = min(1.0, width / MATMUL_COLUMNS_MIN)
    clock = new_clock()
    zeros = min(narrow.warmup, WARM_UP_FIRST)
    time = stream(clock, NARROW_WARM_UP_START_NS + cleared_ns, zeros * zero_ns)
    # filters are turned as they come, all of one load together
    if turned > 1:
        before_ns = turn_ns * (turned - 1) / turned
        time = sums_end(clock, max(time, come_ns + w_ns / turned), before_ns, busy * before_ns)
    time = sums_end(clock, max(time, come_ns + w_ns), turn_ns / turned, busy * turn_ns / turned)
    turned_ns = time - (1.0 - busy) * zero_ns / HALF_RATE
    warm_ns = stream(clock, time, max(0, narrow.warmup - zeros) * zero_ns)
    # the last bank of what was turned is read out, then two engines share what is laid out, one chunk after the other
    most = max(1, BANK_BYTES // (width * geometry.itemsize))
    elements = (taps - (div_ceil(taps, most) - 1) * most) * width
    time = turned_ns + MATMUL_DONE_HALF_NS + HOP_NS + elements * VECTOR_NS_16BIT + VECTOR_DONE_NS
    each = taps * geometry.K / narrow.groups
    vector_ns, scalar_ns = VECTOR_FIXED_NS + each * VECTOR_NS_16BIT, SCALAR_FIXED_NS + each * SCALAR_NS
    copies_ns = narrow.U * narrow.groups * vector_ns * scalar_ns / (vector_ns + scalar_ns)
    time += max(copies_ns, chunks * copies_ns - line_ns / HALF_RATE) + VECTOR_DONE_NS
    return clock, max(max(time + HOP_TENSOR_NS, warm_ns), x_come_ns)


def warm_count(geometry, narrow):
    """Matmuls on zeros that pay: those before the filters come, and more where the array has work for a window."""
    steps, images, blocks = steps_of_core(geometry, narrow)
    work_ns = 0.0
    for index in range(len(narrow.tiles)):
        work_ns += steps * bank_ns(geometry, narrow, images, blocks, narrow.tiles[index][3])[0]
    return NARROW_WARM_UP if work_ns >= WINDOW_NS else WARM_UP_FIRST


def num_blocks(geometry, narrow):
    """Blocks of an image."""
    return div_ceil(geometry.rows.out, narrow.U)
