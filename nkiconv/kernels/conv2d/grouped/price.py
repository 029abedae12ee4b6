"""What grouped conv2d takes by prices: the array, the read-outs or the DMAs, and what nothing hides at both ends."""

from dataclasses import dataclass

from ...._nki import nl
from ..._clock import new_clock, stream
from ..._prices import (
    DMA_DONE_NS,
    DMA_END_NS,
    DMA_ENGINES,
    FIRST_PACKET_NS,
    GPSIMD_FIXED_NS,
    GPSIMD_NS,
    HBM_BYTE_NS,
    HOP_DMA_NS,
    HOP_NS,
    HOP_TENSOR_NS,
    LOAD_SKEW_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_DONE_NS,
    MATMUL_NS,
    ROW_TILE_COLUMNS,
    ROWS_AN_ENGINE,
    SCALAR_DONE_NS,
    SCALAR_FIXED_NS,
    SCALAR_NS,
    STORE_SKEW_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_DONE_NS,
    VECTOR_FIXED_MEMSET_NS,
    VECTOR_FIXED_NS,
    VECTOR_MEMSET_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    run_ns,
)
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, share
from ..rate import sums_end
from .units import banks_of, y_pages

#: ns until Vector clears the first stationaries, until the first matmul on zeros.
CLEAR_START_NS = 180.0
GROUPED_WARM_UP_START_NS = 260.0
#: ns until GpSimd has made masks and identities.
RULERS_NS = 1350.0


def grouped_ns(geometry, grouped):
    """ns of the busier core."""
    found = 0.0
    for core in range(PARTS):
        mine = share(len(grouped.units), PARTS, core)
        if mine[1] > 0:
            found = max(found, core_ns(geometry, grouped, mine))
    return found


def core_ns(geometry, grouped, mine):
    """ns of a core's units: (the first, how many)."""
    array_ns, work_ns, engines_ns, zeros_ns, x_ns, y_ns = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    build = build_of(geometry, grouped)
    last = (0.0, 0.0, 0.0)
    for index in range(mine[0], mine[0] + mine[1]):
        unit, before = grouped.units[index], grouped.units[max(0, index - 1)]
        if index > mine[0] and before.chunk != unit.chunk:
            engines_ns += (build.spread_ns + build.placed_ns) / 2
            zeros_ns += build.zeros_ns
            array_ns += build.turned_ns
            work_ns += build.turned_ns * grouped.Kt / nl.tile_size.pmax
        banks = banks_of(geometry, grouped, unit)
        unit_ns, read_ns = 0.0, 0.0
        for bank in range(len(banks)):
            columns = unit.nn * banks[bank][1] * banks[bank][3]
            unit_ns += sums_ns(geometry, grouped, columns)
            work_ns += len(grouped.window) * columns * column_ns_of(geometry)
            read_ns = read_out_ns(geometry, grouped, unit, columns, banks[bank][1])
            engines_ns += read_ns
        array_ns += unit_ns
        moved = dma_ns(geometry, grouped, unit)
        x_ns, y_ns = x_ns + moved[0], y_ns + moved[1]
        last = unit_ns, read_ns, len(banks)
    first = grouped.units[mine[0]]
    clock, start_ns = started(geometry, grouped, first_load_ns(geometry, grouped, first), array_ns / mine[1])
    sums = sums_end(clock, start_ns, array_ns, work_ns)
    # sums of the last bank are read out, rows moved and stored
    chain_ns = MATMUL_DONE_NS + HOP_NS + last[1] + SCALAR_DONE_NS + HOP_DMA_NS
    if grouped.Uh > 1:
        chain_ns += HOP_NS + VECTOR_DONE_NS
    end_ns = FIRST_PACKET_NS + STORE_SKEW_NS + DMA_END_NS
    end_ns += last_store_ns(geometry, grouped, grouped.units[mine[0] + mine[1] - 1])
    computed_ns = max(sums, start_ns + max(engines_ns, zeros_ns))
    # stores begin with the first unit's results; those before the last load make it later
    loaded_ns = FIRST_PACKET_NS + LOAD_SKEW_NS + x_ns
    stores_ns = start_ns + max(array_ns, engines_ns) / mine[1] + chain_ns + FIRST_PACKET_NS
    stored_ns = max(loaded_ns, stores_ns) + y_ns + DMA_END_NS
    loaded_ns += max(0.0, min(y_ns * (mine[1] - 1) / mine[1], loaded_ns - stores_ns)) + DMA_DONE_NS
    if mine[1] > 1:
        computed_ns = max(computed_ns, loaded_ns + last[0])
    return max(computed_ns + chain_ns + end_ns, stored_ns)


def started(geometry, grouped, x_ns, unit_ns):
    """(the array's clock, ns until the first sums begin): stationaries are cleared, filters have come and are put in
    place, and so has the first x, x_ns of a DMA engine. unit_ns: of the array for a unit, which needs them bit by bit.
    """
    build = build_of(geometry, grouped)
    words = grouped.height * grouped.width * grouped.Uw * grouped.Uh * grouped.Kt * geometry.itemsize / 4
    cleared_ns = CLEAR_START_NS + VECTOR_FIXED_MEMSET_NS + words * VECTOR_MEMSET_NS
    taps, per_c = geometry.rows.taps * geometry.columns.taps, geometry.C // geometry.groups
    w_ns = ROWS_AN_ENGINE * run_ns(per_c * taps * geometry.itemsize)
    come_ns = FIRST_PACKET_NS + LOAD_SKEW_NS + DMA_END_NS + DMA_DONE_NS
    there_ns = max(cleared_ns, come_ns + w_ns + (0.0 if fills(geometry, grouped) else x_ns))
    clock = new_clock()
    time = stream(clock, GROUPED_WARM_UP_START_NS, grouped.warmup * MATMUL_COLUMNS_MIN * TENSOR_COLUMN_NS)
    zeros_ns = RULERS_NS
    if build.zeros_ns > 0.0:
        if len(grouped.chunks) > 1:
            zeros_ns += GPSIMD_FIXED_NS + words * GPSIMD_NS
        there_ns = max(there_ns, zeros_ns + build.zeros_ns / build.blocks)
    spread_ns = there_ns + max(build.spread_ns, build.zeros_ns * (1 - 1 / build.blocks)) + VECTOR_DONE_NS
    if build.turned_ns > 0.0:
        begin = max(time, there_ns + build.spread_ns / build.blocks + VECTOR_DONE_NS)
        time = sums_end(clock, begin, build.turned_ns, build.turned_ns * grouped.Kt / nl.tile_size.pmax)
        spread_ns = max(time, spread_ns + build.turned_ns / build.blocks) + MATMUL_DONE_NS
    placed_ns = max(build.placed_ns / build.blocks, build.placed_ns - unit_ns) + VECTOR_DONE_NS
    return clock, max(max(time, spread_ns + placed_ns + HOP_TENSOR_NS), come_ns + w_ns + x_ns)


def fills(geometry, grouped):
    """Whether the first chunk's filters leave no gaps, whose zeros would let x come first."""
    chunk = grouped.chunks[0]
    if geometry.groups == geometry.C:
        return chunk[2] == 1 and chunk[1] * grouped.T <= geometry.C and grouped.G == grouped.T
    per_k = geometry.K // geometry.groups
    return chunk[2] == 1 and chunk[1] * grouped.Kt <= geometry.K and grouped.G * per_k == grouped.Kt


def column_ns_of(geometry):
    """ns of a column of the array at its full rate."""
    return TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS


@dataclass
class Build(nl.NKIObject):
    """ns of what makes a chunk's stationaries: GpSimd clears, Vector fills what lies between its groups, the array
    turns that, taps are put in place, block by block of taps."""

    zeros_ns: float
    spread_ns: float
    turned_ns: float
    placed_ns: float
    blocks: int


def build_of(geometry, grouped):
    """The Build of a chunk."""
    taps, places = geometry.rows.taps * geometry.columns.taps, grouped.Uh * grouped.Uw
    blocks = div_ceil(taps, BANK_COLUMNS // grouped.Kt)
    product_ns = VECTOR_NS_16BIT if geometry.itemsize == 2 else VECTOR_NS
    if geometry.groups == geometry.C:
        elements = taps * grouped.G * (geometry.K // geometry.groups)
        spread_ns = blocks * VECTOR_FIXED_NS + elements * product_ns
        placed_ns = places * (blocks * VECTOR_FIXED_NS + elements * copy_ns(geometry))
        return Build(zeros_ns=0.0, spread_ns=spread_ns, turned_ns=0.0, placed_ns=placed_ns, blocks=blocks)
    pages = y_pages(grouped)
    read_ns = blocks * SCALAR_FIXED_NS + taps * grouped.Kt * SCALAR_NS
    copied_ns = (places - 1) * (blocks * VECTOR_FIXED_NS + taps * grouped.Kt * copy_ns(geometry))
    gaps = grouped.G * (geometry.C // geometry.groups) < grouped.T
    zeros_ns = pages * (blocks * GPSIMD_FIXED_NS + taps * nl.tile_size.pmax * GPSIMD_NS)
    return Build(
        zeros_ns=zeros_ns if gaps else 0.0,
        spread_ns=pages * (blocks * VECTOR_FIXED_NS + taps * nl.tile_size.pmax * product_ns),
        turned_ns=pages * taps * (MATMUL_COLUMNS_MIN * column_ns_of(geometry) + MATMUL_NS),
        placed_ns=pages * max(read_ns, copied_ns),
        blocks=pages * blocks,
    )


def sums_ns(geometry, grouped, columns):
    """ns of the array for a bank of so many columns of each tile."""
    column_ns = column_ns_of(geometry)
    # tiles without channels are busy too
    each_ns = max(columns * column_ns, grouped.tiles * (ROW_TILE_COLUMNS * column_ns + MATMUL_NS))
    return len(grouped.window) * each_ns


def copy_ns(geometry):
    """ns of an element that Vector copies inside SBUF."""
    return VECTOR_NS_16BIT / 2 if geometry.itemsize == 2 else VECTOR_NS_16BIT


def read_out_ns(geometry, grouped, unit, columns, blocks):
    """ns of Vector and Scalar, both at work, for the read-outs of a bank of all tiles and the rows that are moved."""
    tiles = grouped.chunks[unit.chunk][1] * len(unit.parts)
    # what Scalar would take alone, beside which Vector does its share and the moves
    read_ns = tiles * grouped.Uw * (SCALAR_FIXED_NS + columns * SCALAR_NS)
    moved = unit.nn * blocks * geometry.columns.out
    moves_ns = tiles * (grouped.Uh - 1) * (VECTOR_FIXED_NS + moved * copy_ns(geometry))
    speed = SCALAR_NS / VECTOR_NS
    return max(read_ns + moves_ns * speed, moves_ns * (1.0 + speed)) / (1.0 + speed)


def chunk_share(geometry, grouped):
    """The part of a tile's rows of the array, and of their DMA engines, that have channels."""
    return div_ceil(grouped.G * (geometry.C // geometry.groups), ROWS_AN_ENGINE) * ROWS_AN_ENGINE / grouped.T


def dma_ns(geometry, grouped, unit):
    """ns of a core's busiest DMA engine, or HBM, for (a unit's x, its results)."""
    chunk = grouped.chunks[unit.chunk]
    share_of = chunk[1] * grouped.G / geometry.groups * len(unit.parts) * unit.nn
    x_bytes = unit.hn * unit.wn * geometry.itemsize
    p = min(unit.mn * grouped.Uh, geometry.rows.out)
    y_bytes = p * geometry.columns.out * geometry.itemsize
    tiles = chunk[1] * len(unit.parts)
    # tiles of different pages lie on the same partitions
    places = min(tiles, nl.tile_size.pmax // grouped.Kt)
    y_engines = places * div_ceil(grouped.G * (geometry.K // geometry.groups), ROWS_AN_ENGINE)
    x_engines = DMA_ENGINES * chunk_share(geometry, grouped) * tiles / grouped.tiles
    runs = 1 if geometry.x_h == unit.wn else max(1, unit.hn)
    x_ns = geometry.C * max(runs * run_ns(x_bytes / runs) / x_engines, x_bytes * HBM_BYTE_NS)
    return share_of * x_ns, share_of * geometry.K * max(run_ns(y_bytes) / y_engines, y_bytes * HBM_BYTE_NS)


def first_load_ns(geometry, grouped, unit):
    """ns of a DMA engine for the rows of x of a unit's first bank."""
    blocks = banks_of(geometry, grouped, unit)[0][1]
    rows = min(unit.hn, (blocks - 1) * grouped.Uh * geometry.rows.stride + grouped.height)
    return dma_ns(geometry, grouped, unit)[0] * rows / max(1, unit.hn)


def last_store_ns(geometry, grouped, unit):
    """ns of one tile's last store."""
    rows = min(unit.mn * grouped.Uh, geometry.rows.out)
    blocks = div_ceil(unit.nn * unit.mn * geometry.columns.out, grouped.Uw * BANK_COLUMNS)
    return ROWS_AN_ENGINE * unit.nn * run_ns(rows // max(1, blocks) * geometry.columns.out * geometry.itemsize)
