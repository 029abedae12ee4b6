"""The kernel's own choice of an algorithm, from shapes alone: what the planner finds by timing, as a rule.

Each algorithm's time on one of two cores is estimated from what bounds it, and the least of those that run wins; the
winner runs with its default settings. The estimates need not be right, only in the right order: tests hold the choice
against the planner's.
"""

from ..._nki import nl
from .._engines import VECTOR_NS
from .._tiles import div_ceil
from .banded import banded_refusal
from .blocks import (
    COLUMN_NS,
    DMA_ENGINES,
    HBM_BYTE_NS,
    MATMUL_NS,
    PARTS,
    STATIC_ISSUE_NS,
    best_block,
    estimate_ns,
    run_ns,
)
from .dot import dot_refusal
from .recipes import engine_times
from .row_plan import loop_refusal, most_tensor_taps, read_plan
from .update import update_refusal

#: ns from the first load to the first sums and from the last sums to the end of the last store, by algorithm.
ROWS_ENDS_NS = 3500.0
BANDED_ENDS_NS = 5500.0
DOT_ENDS_NS = 7000.0
UPDATE_ENDS_NS = 4000.0
#: ns of a tile of rows beside its columns: loads, diagonals and stores of their own.
ROWS_TILE_NS = 120.0
#: DMAs of a tile of stacked rows; more of them are neighbours in HBM and go as one.
ROWS_DMAS = 8
#: ns an element of GpSimd's select, which makes the diagonals (gpsimd.affine_select_ns_per_elem).
DIAGONAL_NS = 0.846
#: What mixed's and vector's chains lose waiting for each other, and banded's stages.
MIXED_LOSS = 1.2
VECTOR_LOSS = 1.3
BANDED_LOSS = 1.15
#: Share of dot's masks and sums that Vector is left with, a column of lags and channels.
DOT_VECTOR = 0.75
#: ns a column of a band of `update`, a column of all of them at the start, and a column's two instructions on Vector.
UPDATE_BAND_NS = 80.0
UPDATE_COLUMN_NS = 700.0
VECTOR_COLUMN_NS = 300.0
#: Where Vector has more to do than this, its reductions wait for its products.
COLUMNS_FEW_NS = 4000.0
MANY_IMAGES_LOSS = 2.0
#: Partitions that one DMA engine serves (dma.rows_per_engine).
RUNS_AN_ENGINE = 8
#: Taps up to which rows are tried at all: beyond, `banded` needs far fewer matmuls.
ROWS_TAPS_MAX = 64


def choose(geometry, extras, cores):
    """(algorithm, config) for a convolution that names none; config None is the algorithm's defaults.

    cores: that share the work; they decide only whether an algorithm takes too many instructions.
    """
    best, best_ns, config = "", 0.0, None
    if not extras.strict_nonfinite and geometry.S <= ROWS_TAPS_MAX:
        if loop_refusal(geometry, extras, None, cores, True, "mixed") == "":
            best, best_ns = "mixed", MIXED_LOSS * rows_ns(geometry, extras, True)
    if geometry.S <= ROWS_TAPS_MAX or extras.strict_nonfinite:
        if loop_refusal(geometry, extras, None, cores, False, "vector") == "":
            vector_ns = VECTOR_LOSS * rows_ns(geometry, extras, False)
            if best == "" or vector_ns < best_ns:
                best, best_ns = "vector", vector_ns
    if banded_refusal(geometry, extras, None, cores) == "":
        banded_ns = BANDED_ENDS_NS + BANDED_LOSS * estimate_ns(geometry, best_block(geometry))
        if best == "" or banded_ns < best_ns:
            best, best_ns = "banded", banded_ns
    if dot_refusal(geometry, extras, None, cores) == "":
        dot_time_ns = dot_ns(geometry)
        if best == "" or dot_time_ns < best_ns:
            best, best_ns = "dot", dot_time_ns
    for engine in ("tensor", "vector"):
        update_config = (("engine", engine),)
        if update_refusal(geometry, extras, update_config, cores) == "":
            update_ns = update_tensor_ns(geometry) if engine == "tensor" else update_vector_ns(geometry)
            if best == "" or update_ns < best_ns:
                best, best_ns, config = "update", update_ns, update_config
    return "taps_on_partition" if best == "" else best, config


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
    diagonals_ns = most_tensor_taps(plan.recipes) * nl.tile_size.pmax * DIAGONAL_NS
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


def dot_ns(geometry):
    """A tile of 128 channels of one image: transposes and matmuls of 8 x 16 columns, or masks on Vector."""
    pmax = nl.tile_size.pmax
    slots = div_ceil((geometry.S - 1) * geometry.dilation + 1, pmax)
    lags = 7 + geometry.Q * max(1, geometry.stride // geometry.dilation)
    turn_ns = pmax * COLUMN_NS + MATMUL_NS
    slow = 4 if geometry.itemsize == 4 else 1
    matmul_ns = 16 * max(8, lags) * COLUMN_NS + MATMUL_NS
    tensor_ns = slow * (slots * turn_ns + 8 * div_ceil(slots, 8) * matmul_ns)
    vector_ns = DOT_VECTOR * 2 * 8 * 16 * lags * VECTOR_NS
    channel_tiles = div_ceil(geometry.C, pmax)
    tiles = div_ceil(geometry.N * channel_tiles, PARTS)
    moved_ns = pmax * (geometry.W + geometry.S) * geometry.itemsize * HBM_BYTE_NS
    filters_ns = slow * div_ceil(channel_tiles, PARTS) * slots * turn_ns
    return DOT_ENDS_NS + tiles * max(max(tensor_ns, vector_ns), moved_ns) + filters_ns


def update_tensor_ns(geometry):
    """Blocks of 128 (channel, position): Vector makes a band of Q columns for each, Tensor turns and multiplies it."""
    pmax = nl.tile_size.pmax
    blocks = div_ceil(div_ceil(geometry.C, max(1, pmax // geometry.W)), PARTS)
    slow = 1.5 if geometry.itemsize == 4 else 1.0
    turns_ns = 2 * div_ceil(geometry.N, pmax) * (pmax * COLUMN_NS + MATMUL_NS) * slow
    band_ns = UPDATE_BAND_NS * geometry.Q * slow
    return UPDATE_ENDS_NS + geometry.Q * UPDATE_COLUMN_NS + blocks * max(band_ns, turns_ns)


def update_vector_ns(geometry):
    """For each column a product and a sum over the taps that meet the row, of all images and channel tiles at once."""
    stacked = div_ceil(geometry.C, PARTS * nl.tile_size.pmax)
    met = min(geometry.S, geometry.W)
    runs = run_ns(stacked * geometry.W * geometry.itemsize) + run_ns(stacked * geometry.Q * geometry.itemsize)
    loads_ns = geometry.N * RUNS_AN_ENGINE * runs
    vector_ns = geometry.Q * (VECTOR_COLUMN_NS + 2 * VECTOR_NS * geometry.N * stacked * met)
    return UPDATE_ENDS_NS + max(vector_ns, MANY_IMAGES_LOSS * (vector_ns - COLUMNS_FEW_NS)) + loads_ns
