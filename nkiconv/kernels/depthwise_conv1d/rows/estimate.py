"""What `mixed` and `vector` take on a core, roughly, from shapes and a LoopPlan."""

from ...._nki import nl
from ..._prices import GPSIMD_SELECT_NS, HBM_BYTE_NS, ROWS_AN_ENGINE, STATIC_ISSUE_NS, row_ns
from ..._tiles import PARTS, div_ceil
from .recipes import engine_times, most_tensor_taps

#: ns from the first load's issue to its rows, and from the last sums to the end of the last store, both without what
#: they move.
ROWS_ENDS_NS = 2600.0
#: ns of a tile beside its columns, and of a DMA beside its runs.
ROWS_TILE_NS = 60.0
DMA_NS = 10.0
#: Columns that are loaded first and stored last, before and after the others' work.
END_COLUMNS = 256
#: ns that the array, at half rate in its first window or two, loses at most (throttle.window_ns).
COLD_NS = 2500.0


def rows_ns(geometry, extras, plan):
    """ns of a core: the first load, tiles of up to 128 rows, each the slowest of engines and DMAs, the last store."""
    pmax, rows = nl.tile_size.pmax, plan.rows
    images = div_ceil(geometry.N, PARTS) if rows.shard == "batch" else geometry.N
    columns = div_ceil(geometry.Q, PARTS) if rows.shard == "columns" else geometry.Q
    channel_tiles = div_ceil(rows.T, PARTS) if rows.shard == "channels" else rows.T
    stretches = div_ceil(columns, rows.columns)
    groups = min(rows.G, images * stretches)
    tiles = channel_tiles * div_ceil(images * stretches, rows.G)
    width = min(rows.columns, columns)
    busy = busy_ns(geometry, extras, plan, min(plan.piece, width))
    partitions = min(pmax, groups * div_ceil(geometry.C, rows.T))
    loads, stores = 1, 1
    if stretches > 1:
        even = columns % rows.columns == 0
        at_once = div_ceil(groups, stretches)
        ends = (1 if geometry.pad_left > 0 else 0) + (0 if even and geometry.pad_right <= 0 else 1)
        loads = at_once * min(stretches, 1 + ends)
        stores = at_once * min(stretches, 1 if even else 2)
    run = (width - 1) * geometry.stride + (geometry.S - 1) * geometry.dilation + 1
    elements = div_ceil(run, geometry.lhs_dilation)
    load_ns = row_ns(elements, geometry.x_w, geometry.itemsize)
    if not rows.runs:
        loads = loads * geometry.S
        load_ns = geometry.S * row_ns(width, geometry.x_w * geometry.stride, geometry.itemsize)
    served = min(ROWS_AN_ENGINE, partitions)
    load_ns = served * load_ns + loads * DMA_NS
    store_ns = served * row_ns(width, geometry.y_q, extras.epilogue.y_itemsize) + stores * DMA_NS
    moved_ns = partitions * (elements * geometry.itemsize + width * extras.epilogue.y_itemsize) * HBM_BYTE_NS
    work_ns = width * busy[1] + ROWS_TILE_NS
    dma_ns = max(max(moved_ns, load_ns + store_ns), max(loads, stores) * STATIC_ISSUE_NS)
    diagonals_ns = most_tensor_taps(plan.recipes) * pmax * GPSIMD_SELECT_NS
    end = min(1.0, END_COLUMNS / width)
    first_ns = max(loads * STATIC_ISSUE_NS + end * load_ns, diagonals_ns)
    last_ns = stores * STATIC_ISSUE_NS + end * store_ns
    array_ns = tiles * width * busy[0]
    overlapped = tiles - end
    tiles_ns = max(end * work_ns + overlapped * max(work_ns, dma_ns), array_ns + min(COLD_NS, array_ns))
    return ROWS_ENDS_NS + first_ns + tiles_ns + last_ns


def busy_ns(geometry, extras, plan, piece):
    """ns a column of Tensor, which streams at least 128 columns a matmul, and of the busiest engine."""
    streamed = max(1.0, nl.tile_size.pmax / piece)
    tensor, vector, scalar, gpsimd = 0.0, 0.0, 0.0, 0.0
    count = len(plan.recipes)
    for index in range(count):
        times = engine_times(plan.recipes[index], geometry, extras.epilogue, piece)
        tensor += streamed * times[0] / count
        vector += times[1] / count
        scalar += (times[2] + 0.5 * times[4]) / count
        gpsimd += times[3] / count
    return tensor, max(max(tensor, vector), max(scalar, gpsimd))
