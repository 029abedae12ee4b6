"""What `dot` takes on a core, roughly, from shapes alone: the array's columns of all units, or what reads them out."""

from ...._nki import nl
from ..._prices import HBM_BYTE_NS, MATMUL_NS, TENSOR_COLUMN_NS, VECTOR_NS, WINDOW_WORK
from ..._tiles import PARTS, div_ceil
from .kernel import plan_of
from .plan import batches, channel_blocks, groups_of

#: ns from the first load to the first sums and from the last sums to the end of the last store, with masks and with the
#: way through HBM.
MASKED_ENDS_NS = 5000.0
WIDE_ENDS_NS = 11000.0
#: Share of the masks and sums that Vector is left with, a column of lags and channels.
MASKED_VECTOR = 0.75
#: How much more work than it takes a unit should have for the array to be at full rate in all windows.
SURE = 1.3


def dot_ns(geometry):
    """ns of a core for all its units."""
    plan = plan_of(geometry, None)
    return wide_ns(geometry, plan) if plan.wide else masked_ns(geometry)


def wide_ns(geometry, plan):
    """A unit is up to 128 channels, a chunk of slots and a block of lags: transposes, products, sums over slots."""
    block = channel_blocks(geometry, plan)[0]
    groups = groups_of(plan, block, 0)
    slow = geometry.itemsize == 4
    turns = plan.lags * plan.tap_phases + plan.slots * plan.tap_phases * (1 if plan.keep else 2)
    products = groups * div_ceil(plan.slots, plan.taps) * plan.tap_phases
    columns = plan.channels * (plan.lags + plan.taps - 1) * (4 if slow else 1)
    sums_ns = 2 * groups * plan.lags * TENSOR_COLUMN_NS
    turn_ns = (nl.tile_size.pmax * TENSOR_COLUMN_NS + MATMUL_NS) * (2 if slow else 1)
    unit_ns = turns * turn_ns + products * (columns * TENSOR_COLUMN_NS + MATMUL_NS) + sums_ns
    # a transpose streams as many columns as there are channels, and keeps the array waiting for the rest of its time
    streamed = turns * min(block.count, nl.tile_size.pmax) * (2 if slow else 1) + products * columns
    if streamed * TENSOR_COLUMN_NS + sums_ns < SURE * WINDOW_WORK * unit_ns:
        unit_ns = 2 * unit_ns
    every = batches(geometry, plan)
    units = div_ceil(len(every), PARTS) * every[0].kn * every[0].nn * plan.chunks * plan.column_phases
    kept_ns = turn_ns * plan.slots * plan.tap_phases * plan.chunks if plan.keep else 0.0
    return WIDE_ENDS_NS + kept_ns + units * unit_ns


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
