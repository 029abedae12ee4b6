"""What `dot` takes on a core, roughly, from shapes alone."""

from ...._nki import nl
from ..._prices import HBM_BYTE_NS, MATMUL_NS, TENSOR_COLUMN_NS, VECTOR_NS
from ..._tiles import PARTS, div_ceil

#: ns from the first load to the first sums and from the last sums to the end of the last store.
DOT_ENDS_NS = 7000.0
#: Share of dot's masks and sums that Vector is left with, a column of lags and channels.
DOT_VECTOR = 0.75


def dot_ns(geometry):
    """A tile of 128 channels of one image: transposes and matmuls of 8 x 16 columns, or masks on Vector."""
    pmax = nl.tile_size.pmax
    slots = div_ceil((geometry.S - 1) * geometry.dilation + 1, pmax)
    lags = 7 + geometry.Q * max(1, geometry.stride // geometry.dilation)
    turn_ns = pmax * TENSOR_COLUMN_NS + MATMUL_NS
    slow = 4 if geometry.itemsize == 4 else 1
    matmul_ns = 16 * max(8, lags) * TENSOR_COLUMN_NS + MATMUL_NS
    tensor_ns = slow * (slots * turn_ns + 8 * div_ceil(slots, 8) * matmul_ns)
    vector_ns = DOT_VECTOR * 2 * 8 * 16 * lags * VECTOR_NS
    channel_tiles = div_ceil(geometry.C, pmax)
    tiles = div_ceil(geometry.N * channel_tiles, PARTS)
    moved_ns = pmax * (geometry.W + geometry.S) * geometry.itemsize * HBM_BYTE_NS
    filters_ns = slow * div_ceil(channel_tiles, PARTS) * slots * turn_ns
    return DOT_ENDS_NS + tiles * max(max(tensor_ns, vector_ns), moved_ns) + filters_ns
