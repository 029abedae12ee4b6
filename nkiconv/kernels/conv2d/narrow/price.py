"""What narrow takes by prices: its start, then the slowest of the array, the read-outs and the DMAs, and its end."""

from ...._nki import nl
from ..._prices import (
    DMA_DONE_NS,
    DMA_END_NS,
    DMA_ENGINES,
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
    MATMUL_DONE_NS,
    MATMUL_FP32_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    SCALAR_DONE_NS,
    SCALAR_FIXED_NS,
    SCALAR_NS,
    STORE_SKEW_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_DONE_NS,
    VECTOR_FIXED_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    WINDOW_NS,
    run_ns,
)
from ..._tiles import PARTS, div_ceil

#: ns from the start until the first matmul on zeros.
WARM_UP_START_NS = 500.0
#: Matmuls of 128 columns on zeros: until the filters come, and all of them, while those that were turned are laid out.
WARM_UP_FIRST = 9
WARM_UP = 28
#: The part of what another engine hides that shows all the same.
SHOWN = 0.04


def narrow_ns(geometry, narrow):
    """ns of both cores for a Narrow."""
    array_ns, read_ns, chain_ns, mine = core_ns(geometry, narrow)
    moved = moved_ns(geometry, narrow)
    each_ns = max(array_ns, read_ns)
    # what waits for the last load: its rows' lines, or all of several banks
    last = max(narrow.height / (narrow.blocks * narrow.step), min(1.0, narrow.height / len(narrow.lines)))
    end_ns = MATMUL_DONE_NS + HOP_NS + chain_ns + HOP_DMA_NS + FIRST_PACKET_NS + STORE_SKEW_NS + DMA_END_NS
    computed_ns = start_ns(geometry, narrow) + mine * each_ns
    loaded_ns = FIRST_PACKET_NS + LOAD_SKEW_NS + moved + DMA_DONE_NS + last * each_ns
    hidden_ns = mine * (array_ns + read_ns) + moved - max(mine * each_ns, moved)
    return max(computed_ns, loaded_ns) + end_ns + SHOWN * hidden_ns


def core_ns(geometry, narrow):
    """(ns of the array, of the read-outs' busiest engine for a step, from its last sums to y; steps of a core)."""
    blocks = num_blocks(geometry, narrow)
    steps = div_ceil(geometry.N, narrow.images) * div_ceil(blocks, narrow.blocks)
    mine = div_ceil(steps, PARTS)
    # blocks of a bank on average: work of one step is cut for two cores
    banks = max(1.0, geometry.N * blocks / (mine * PARTS))
    array_ns, read_ns, chain_ns = 0.0, 0.0, 0.0
    for index in range(len(narrow.tiles)):
        array_ns += bank_ns(geometry, narrow, banks * narrow.tiles[index][3])
        busy_ns, chain_ns = read_outs_ns(narrow, banks * narrow.tiles[index][1])
        read_ns += busy_ns
    return array_ns, read_ns, chain_ns, mine


def reads_bound(geometry, narrow):
    """Whether the read-outs take longer than the array and the DMAs."""
    array_ns, read_ns, _, mine = core_ns(geometry, narrow)
    return narrow.T > 1 and mine * read_ns > max(mine * array_ns, moved_ns(geometry, narrow))


def bank_ns(geometry, narrow, moved):
    """ns of the array for a bank of sums of `moved` columns."""
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    fixed_ns = MATMUL_NS if geometry.fast else 2 * MATMUL_FP32_NS
    passes = div_ceil(narrow.blocks * narrow.step, narrow.height) if narrow.blocks > 1 else 1
    each = max(passes * MATMUL_COLUMNS_MIN, moved) * column_ns + passes * fixed_ns
    # lines of which one block's row lies in another load than the others'
    cuts = max(0, narrow.window - narrow.step) if narrow.blocks > 1 else 0
    again = cuts * (max(0.0, MATMUL_COLUMNS_MIN - moved / narrow.blocks) * column_ns + fixed_ns)
    return (len(narrow.lines) * each + again) * narrow.groups * len(narrow.chunks)


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
        busy_ns = adds_ns - min(1.0, part) * vector_ns
    chain_ns = scalar_ns + SCALAR_DONE_NS + narrow.T * VECTOR_DONE_NS + adds_ns
    return busy_ns, chain_ns


def moved_ns(geometry, narrow):
    """ns of the DMA engines and HBM of a core for x and y."""
    rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
    x_size = geometry.N * geometry.C * rows.size * narrow.wn
    y_size = geometry.N * geometry.K * rows.out * columns.out
    x_run, y_run = 1, 1
    if geometry.x_w == 1:
        dense = narrow.pad == 0 and geometry.x_h == narrow.wn
        x_run = narrow.wn * (narrow.height if dense else 1)
    if geometry.y_q == 1:
        y_run = columns.out
    engines = min(DMA_ENGINES, div_ceil(min(geometry.C, nl.tile_size.pmax), ROWS_AN_ENGINE))
    x_ns = x_size / x_run * run_ns(x_run * item) / engines
    y_ns = y_size / y_run * run_ns(y_run * geometry.itemsize) / DMA_ENGINES
    return max(x_ns + y_ns, (x_size + y_size) * item * HBM_BYTE_NS) / PARTS


def start_ns(geometry, narrow):
    """ns until the first sums begin: filters have come, are turned and laid out."""
    taps, chunks = geometry.rows.taps * geometry.columns.taps, len(narrow.chunks)
    together = min(chunks, nl.tile_size.pmax // geometry.K)
    turned = div_ceil(chunks, together)
    run = run_ns(min(geometry.C, nl.tile_size.pmax) * taps * geometry.itemsize)
    w_ns = turned * min(ROWS_AN_ENGINE, together * geometry.K) * run
    there_ns = FIRST_PACKET_NS + LOAD_SKEW_NS + DMA_END_NS + DMA_DONE_NS + w_ns
    zero_ns = MATMUL_COLUMNS_MIN * TENSOR_COLUMN_NS / HALF_RATE
    turn_ns = turned * taps * zero_ns
    elements = turned * taps * together * geometry.K
    read_ns = MATMUL_DONE_NS + VECTOR_DONE_NS + 2 * HOP_NS + elements * VECTOR_NS_16BIT
    # two engines share what is laid out
    copies = chunks * narrow.U * narrow.groups
    read_ns += copies * (VECTOR_FIXED_NS + taps * geometry.K / narrow.groups * VECTOR_NS_16BIT) / 2 + VECTOR_DONE_NS
    warm_ns = max(0, narrow.warmup - WARM_UP_FIRST) * zero_ns
    begin_ns = max(there_ns, WARM_UP_START_NS + min(narrow.warmup, WARM_UP_FIRST) * zero_ns)
    return begin_ns + turn_ns + max(read_ns, warm_ns) + HOP_TENSOR_NS


def warm_count(geometry, narrow):
    """Matmuls on zeros that pay: those before the filters come, and more where the array has work for a window."""
    steps = div_ceil(div_ceil(geometry.N, narrow.images) * div_ceil(num_blocks(geometry, narrow), narrow.blocks), PARTS)
    work_ns = 0.0
    for index in range(len(narrow.tiles)):
        work_ns += steps * bank_ns(geometry, narrow, narrow.images * narrow.blocks * narrow.tiles[index][3])
    return WARM_UP if work_ns >= WINDOW_NS else WARM_UP_FIRST


def num_blocks(geometry, narrow):
    """Blocks of an image."""
    return div_ceil(geometry.rows.out, narrow.U)
