"""What `mixed` and `vector` take on a core, roughly, from shapes alone."""

from ...._nki import nl
from ..._prices import DMA_ENGINES, GPSIMD_SELECT_NS, HBM_BYTE_NS, STATIC_ISSUE_NS, run_ns
from ..._tiles import PARTS, div_ceil
from .plan import most_tensor_taps, read_plan
from .recipes import engine_times

#: ns from the first load to the first sums and from the last sums to the end of the last store.
ROWS_ENDS_NS = 3500.0
#: ns of a tile of rows beside its columns: loads, diagonals and stores of their own.
ROWS_TILE_NS = 120.0
#: DMAs of a tile of stacked rows; more of them are neighbours in HBM and go as one.
ROWS_DMAS = 8


def rows_ns(geometry, extras, on_tensor):
    """Tiles of 128 rows: the slowest of four engines, the array with at least 128 columns a matmul, and DMA."""
    plan = read_plan(geometry, extras, None, on_tensor)
    rows = plan.rows
    images = div_ceil(geometry.N, PARTS) if rows.shard == "batch" else geometry.N
    columns = div_ceil(geometry.Q, PARTS) if rows.shard == "columns" else geometry.Q
    channel_tiles = div_ceil(rows.T, PARTS) if rows.shard == "channels" else rows.T
    tiles = channel_tiles * div_ceil(images * div_ceil(columns, rows.columns), rows.G)
    width = min(rows.columns, columns)
    piece = min(plan.piece, width)
    streamed = max(1.0, nl.tile_size.pmax / piece)
    tensor, vector, scalar, gpsimd = 0.0, 0.0, 0.0, 0.0
    count = len(plan.recipes)
    for index in range(count):
        times = engine_times(plan.recipes[index], geometry, extras.epilogue, piece)
        tensor += streamed * times[0] / count
        vector += times[1] / count
        scalar += times[2] / count
        gpsimd += times[3] / count
        scalar += 0.5 * times[4] / count
    busiest = max(max(tensor, vector), max(scalar, gpsimd))
    bytes_moved = nl.tile_size.pmax * (geometry.stride * geometry.itemsize + extras.epilogue.y_itemsize)
    tile_ns = max(width * busiest + ROWS_TILE_NS, width * bytes_moved * HBM_BYTE_NS)
    issue_ns = tiles * min(rows.G, ROWS_DMAS) * STATIC_ISSUE_NS
    diagonals_ns = most_tensor_taps(plan.recipes) * nl.tile_size.pmax * GPSIMD_SELECT_NS
    return ROWS_ENDS_NS + diagonals_ns + max(max(tiles * tile_ns, issue_ns), short_runs_ns(geometry))


def short_runs_ns(geometry):
    """ns of the DMA engines for a run of each row of x and of y, where the floors of short runs bound it."""
    rows = div_ceil(geometry.N * geometry.C, PARTS)
    return (
        rows
        * (row_run_ns(geometry.W, geometry.x_w, geometry) + row_run_ns(geometry.Q, geometry.y_q, geometry))
        / DMA_ENGINES
    )


def row_run_ns(count, step, geometry):
    """ns of one DMA engine for a row of `count` elements `step` apart."""
    if step > 1:
        return count * run_ns(geometry.itemsize)
    return run_ns(count * geometry.itemsize)
