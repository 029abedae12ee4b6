"""What `dot` takes on a core, roughly, from shapes alone: the array's columns of all units, or what reads them out."""

from ...._nki import nl
from ..._prices import HBM_BYTE_NS, MATMUL_NS, TENSOR_COLUMN_NS, VECTOR_NS
from ..._tiles import PARTS, div_ceil
from .kernel import plan_of

#: ns from the first load to the first sums and from the last sums to the end of the last store, with masks and with the
#: way through HBM.
MASKED_ENDS_NS = 5000.0
WIDE_ENDS_NS = 11000.0
#: Share of the masks and sums that Vector is left with, a column of lags and channels.
MASKED_VECTOR = 0.75
#: Channels below which transposes are so narrow that the array stays at half rate.
FEW_CHANNELS = 64


def dot_ns(geometry):
    """ns of a core for all its units."""
    plan = plan_of(geometry, None)
    return wide_ns(geometry, plan) if plan.wide else masked_ns(geometry)


def wide_ns(geometry, plan):
    """A unit is up to 128 channels, a chunk of slots and a block of lags: transposes, products, sums over slots."""
    pmax = nl.tile_size.pmax
    rows = plan.parts if plan.parts > 1 else geometry.C
    half = div_ceil(rows, PARTS)
    tiles = 1 if plan.parts > 1 else geometry.N * div_ceil(half, pmax)
    groups = div_ceil(min(half, pmax), plan.channels)
    lag_blocks = div_ceil(div_ceil(geometry.Q, plan.spread), plan.lags) * plan.column_phases
    if plan.parts > 1 or rows == 1:
        groups, lag_blocks = div_ceil(rows, plan.channels), div_ceil(lag_blocks, PARTS)
    slots = plan.slots * plan.tap_phases
    turn_ns = (pmax * TENSOR_COLUMN_NS + MATMUL_NS) * (2 if geometry.itemsize == 4 else 1)
    new = 0 if plan.keep else slots
    products_ns = plan.channels * (plan.lags + plan.taps - 1) * TENSOR_COLUMN_NS * (4 if geometry.itemsize == 4 else 1)
    unit_ns = turn_ns * (new + slots + plan.lags * plan.tap_phases) + groups * slots / plan.taps * (
        products_ns + MATMUL_NS
    )
    unit_ns += 2 * groups * plan.lags * TENSOR_COLUMN_NS
    if rows <= FEW_CHANNELS:
        unit_ns = 2 * unit_ns
    kept_ns = turn_ns * slots * plan.chunks * div_ceil(half, pmax) if plan.keep else 0.0
    return WIDE_ENDS_NS + kept_ns + tiles * lag_blocks * plan.chunks * unit_ns


def masked_ns(geometry):
    """A unit is up to 128 channels of one image: transposes and products of slots, or masks and sums on Vector."""
    pmax = nl.tile_size.pmax
    slots = div_ceil((geometry.S - 1) * geometry.dilation + 1, pmax)
    lags = 7 + geometry.Q * max(1, geometry.stride // geometry.dilation)
    turn_ns = pmax * TENSOR_COLUMN_NS + MATMUL_NS
    slow = 4 if geometry.itemsize == 4 else 1
    matmul_ns = 16 * max(8, lags) * TENSOR_COLUMN_NS + MATMUL_NS
    tensor_ns = slow * (slots * turn_ns + 8 * div_ceil(slots, 8) * matmul_ns)
    vector_ns = MASKED_VECTOR * 2 * 8 * 16 * lags * VECTOR_NS
    channel_tiles = div_ceil(geometry.C, pmax)
    tiles = div_ceil(geometry.N * channel_tiles, PARTS)
    moved_ns = pmax * (geometry.W + geometry.S) * geometry.itemsize * HBM_BYTE_NS
    filters_ns = slow * div_ceil(channel_tiles, PARTS) * slots * turn_ns
    return MASKED_ENDS_NS + tiles * max(max(tensor_ns, vector_ns), moved_ns) + filters_ns
