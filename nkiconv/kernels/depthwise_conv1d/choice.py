"""The kernel's own choice of an algorithm, from shapes alone: what the planner finds by timing, as a rule.

Each algorithm's time on one of two cores is estimated from what bounds it, and the least of those that run wins; the
winner runs with its default settings. The estimates need not be right, only in the right order: tests hold the choice
against the planner's.
"""

from ..._nki import nl
from .._engines import VECTOR_NS
from .._tiles import div_ceil
from .banded import banded_refusal
from .blocks import COLUMN_NS, HBM_BYTE_NS, MATMUL_NS, PARTS, best_block, estimate_ns, rows_dma_ns
from .dot import dot_refusal
from .recipes import engine_times
from .row_plan import loop_refusal, read_plan
from .update import update_refusal

#: ns from the first load to the first sums and from the last sums to the end of the last store, by algorithm.
ROWS_ENDS_NS = 3500.0
BANDED_ENDS_NS = 6500.0
DOT_ENDS_NS = 7000.0
UPDATE_ENDS_NS = 4000.0
#: ns of a tile of rows beside its columns: loads, diagonals and stores of their own.
ROWS_TILE_NS = 350.0
#: What banded's stages lose to each other.
BANDED_LOSS = 1.15
#: Share of dot's masks and sums that Vector is left with, a column of lags and channels.
DOT_VECTOR = 0.75
#: Elements of a row up to which `update` packs several channels into a transpose, and ns of a band of longer rows.
UPDATE_ROW = 12
UPDATE_BAND_NS = 700.0
#: Taps up to which rows are tried at all: beyond, `banded` needs far fewer matmuls.
ROWS_TAPS_MAX = 64


def choose(geometry, extras):
    """(algorithm, config) for a convolution that names none; config None is the algorithm's defaults."""
    cores = nl.num_programs()
    best, best_ns = "", 0.0
    if not extras.strict_nonfinite and geometry.S <= ROWS_TAPS_MAX:
        if loop_refusal(geometry, extras, None, cores, True, "mixed") == "":
            best, best_ns = "mixed", rows_ns(geometry, extras, True)
    if geometry.S <= ROWS_TAPS_MAX or extras.strict_nonfinite:
        if loop_refusal(geometry, extras, None, cores, False, "vector") == "":
            vector_ns = rows_ns(geometry, extras, False)
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
    if update_refusal(geometry, extras, None, cores) == "":
        update_time_ns = update_ns(geometry)
        if best == "" or update_time_ns < best_ns:
            best, best_ns = "update", update_time_ns
    return "taps_on_partition" if best == "" else best, None


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
    groups = div_ceil(geometry.C, PARTS * nl.tile_size.pmax) * nl.tile_size.pmax
    return ROWS_ENDS_NS + max(tiles * tile_ns, rows_dma_ns(geometry, groups, 1))


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


def update_ns(geometry):
    """Rows of many images in transposes of 128 x 128, a transpose and a matmul each; bands of long rows."""
    pmax = nl.tile_size.pmax
    turns = geometry.N * geometry.C * geometry.W / (PARTS * pmax * pmax)
    filled = min(1.0, 4.0 * geometry.N / pmax)
    slow = 4 if geometry.itemsize == 4 else 1
    total = UPDATE_ENDS_NS + slow * 2 * turns / filled * (pmax * COLUMN_NS + MATMUL_NS)
    if geometry.W > UPDATE_ROW:
        channels = max(1, pmax // geometry.W)
        total += div_ceil(div_ceil(geometry.C, PARTS), channels) * UPDATE_BAND_NS
    return total
