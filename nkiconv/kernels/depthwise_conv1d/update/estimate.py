"""What `update` takes on a core, roughly, from shapes alone, by who multiplies: the stages as the kernel has them."""

from ...._nki import nl
from ..._clock import skew
from ..._prices import (
    HBM_BYTE_NS,
    LOAD_SKEW_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    SCALAR_NS,
    STATIC_ISSUE_NS,
    STORE_SKEW_NS,
    TENSOR_COLUMN_NS,
    VECTOR_FIXED_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    row_ns,
)
from ..._tiles import PARTS, div_ceil
from .plan import plan_update, taps_met
from .vector import parts_of

#: ns from the first load to the first sums and from the last sums to the end of the last store, without what the
#: stages themselves take for the first and the last chunk, on few partitions; more where the array is at half rate with
#: fp32.
TENSOR_ENDS_NS = 2550.0
FP32_NS = 500.0
VECTOR_ENDS_NS = 2150.0
#: Instructions of Vector that a part takes beside products and sums, with what it waits for.
PART_INSTRUCTIONS = 4


def update_tensor_ns(geometry, extras, settings):
    """On the array: the slowest engine's work of all chunks, filters before them, the ends. settings: (leave, ahead).

    0.0 where not even one channel fits.
    """
    plan = plan_update(geometry, extras.state, settings[0], settings[1])
    if plan.channels == 0:
        return 0.0
    kinds = 2 if plan.state > 0 else 1
    columns, item = geometry.Q, geometry.itemsize
    rows = plan.pieces * plan.pitch
    every = div_ceil(div_ceil(div_ceil(geometry.C, PARTS), plan.pieces), plan.channels)
    groups = min(plan.groups, every)
    chunks = div_ceil(every, groups)
    channels = plan.pieces * plan.channels * groups
    slow = 4 if item == 4 else 1
    turn_ns = nl.tile_size.pmax * TENSOR_COLUMN_NS * (2 if item == 4 else 1) + MATMUL_NS
    streamed = max(nl.tile_size.pmax, plan.pieces * plan.channels * columns)
    tensor_ns = groups * kinds * (turn_ns + slow * (streamed * TENSOR_COLUMN_NS + MATMUL_NS))
    rate = VECTOR_NS if item == 4 else VECTOR_NS_16BIT
    bands_ns = kinds * columns * (VECTOR_FIXED_NS + channels * rate)
    read_ns = plan.pieces * VECTOR_FIXED_NS + channels * columns * (VECTOR_NS + SCALAR_NS) / 2
    moved_ns = kinds * (VECTOR_FIXED_NS + groups * rows * item * SCALAR_NS / 4)
    both_ns = (bands_ns / plan.image_tiles + read_ns + moved_ns) / 2
    busy_ns = max(both_ns, max(bands_ns / plan.image_tiles, moved_ns))
    width = plan.channels * groups
    runs_ns = row_ns(width * geometry.W, geometry.x_w, item) + row_ns(width * columns, geometry.y_q, item)
    bytes_moved = rows * width * (geometry.W + columns) * item
    dma_ns = max(ROWS_AN_ENGINE * runs_ns, bytes_moved * HBM_BYTE_NS)
    issue_ns = 2 * kinds * plan.pieces * STATIC_ISSUE_NS
    chunk_ns = max(max(tensor_ns, busy_ns), max(dma_ns, issue_ns))
    loaded = min(plan.filters, every)
    placed = 0
    for q in range(columns):
        met = taps_met(geometry, geometry.W, geometry.pad_left, q)[1]
        placed += 1 if 0 < met and met < geometry.W else 0
    placed_ns = placed * 2 * (VECTOR_FIXED_NS + plan.channels * geometry.W * VECTOR_NS_16BIT)
    made_ns = kinds * (placed_ns + columns * (VECTOR_FIXED_NS + loaded * plan.pieces * rate))
    taps_dma_ns = min(ROWS_AN_ENGINE, plan.pieces * loaded) * row_ns(plan.channels * geometry.S, geometry.w_s, item)
    filters_ns = max(made_ns, taps_dma_ns)
    loads = div_ceil(every, plan.filters)
    first_ns = made_ns + taps_dma_ns + bands_ns + dma_ns
    ends_ns = TENSOR_ENDS_NS + skew(rows, LOAD_SKEW_NS + STORE_SKEW_NS) + (FP32_NS if item == 4 else 0.0)
    return ends_ns + first_ns + (loads - 1) * filters_ns + plan.image_tiles * chunks * chunk_ns


def update_vector_ns(geometry, extras):
    """On Vector: for each column a product and a sum over the taps that meet the row, of all images of a part at once.

    0.0 where not even one image fits.
    """
    state = geometry.pad_left if extras.state else 0
    parts = parts_of(geometry, extras, state)
    if len(parts) == 0:
        return 0.0
    products = 0
    instructions = 0
    for q in range(geometry.Q):
        met = taps_met(geometry, geometry.W, geometry.pad_left, q)[1]
        before = taps_met(geometry, state, 0, q)[1] if state > 0 else 0
        products += 2 * (geometry.S if extras.strict_nonfinite else met + before)
        instructions += 2 + min(1, before)
    length = parts[0].block.length
    images = div_ceil(geometry.N, PARTS) if geometry.C == 1 else geometry.N
    rounds = div_ceil(len(parts), PARTS)
    vector_ns = (instructions + PART_INSTRUCTIONS) * rounds * VECTOR_FIXED_NS + products * images * length * VECTOR_NS
    item = geometry.itemsize
    runs_ns = row_ns(length * geometry.W, geometry.x_w, item) + row_ns(length * geometry.Q, geometry.y_q, item)
    channels = min(nl.tile_size.pmax, div_ceil(parts[0].block.count, length))
    rows = min(ROWS_AN_ENGINE, channels)
    moved_ns = images * rows * runs_ns
    filter_ns = rows * row_ns(length * geometry.S, geometry.w_s, item)
    steady_ns = vector_ns if rounds == 1 else max(vector_ns, moved_ns)
    ends_ns = VECTOR_ENDS_NS + skew(channels, LOAD_SKEW_NS + STORE_SKEW_NS)
    return ends_ns + filter_ns + moved_ns / rounds + steady_ns
