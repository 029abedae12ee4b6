"""What `update` takes on a core, roughly, from shapes alone, by who multiplies."""

from ...._nki import nl
from ..._prices import MATMUL_NS, TENSOR_COLUMN_NS, VECTOR_NS, run_ns
from ..._tiles import PARTS, div_ceil

#: ns from the first load to the first sums and from the last sums to the end of the last store.
UPDATE_ENDS_NS = 4000.0
#: ns a column of a band of `update`, a column of all of them at the start, and a column's two instructions on Vector.
UPDATE_BAND_NS = 80.0
UPDATE_COLUMN_NS = 700.0
VECTOR_COLUMN_NS = 300.0
#: Where Vector has more to do than this, its reductions wait for its products.
COLUMNS_FEW_NS = 4000.0
MANY_IMAGES_LOSS = 2.0
#: Partitions that one DMA engine serves (dma.rows_per_engine).
RUNS_AN_ENGINE = 8


def update_tensor_ns(geometry):
    """Blocks of 128 (channel, position): Vector makes a band of Q columns for each, Tensor turns and multiplies it."""
    pmax = nl.tile_size.pmax
    blocks = div_ceil(div_ceil(geometry.C, max(1, pmax // geometry.W)), PARTS)
    slow = 1.5 if geometry.itemsize == 4 else 1.0
    turns_ns = 2 * div_ceil(geometry.N, pmax) * (pmax * TENSOR_COLUMN_NS + MATMUL_NS) * slow
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
