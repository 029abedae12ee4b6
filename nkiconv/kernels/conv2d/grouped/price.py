"""What grouped conv2d takes by prices: the array, the read-outs or the DMAs, and what nothing hides at both ends."""

from ...._nki import nl
from ..._prices import (
    DMA_DONE_NS,
    DMA_ENGINES,
    FIRST_PACKET_NS,
    HALF_RATE,
    HBM_BYTE_NS,
    LOAD_SKEW_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_DONE_NS,
    MATMUL_NS,
    ROW_TILE_COLUMNS,
    ROWS_AN_ENGINE,
    SCALAR_FIXED_NS,
    SCALAR_NS,
    STORE_SKEW_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_DONE_NS,
    VECTOR_FIXED_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    run_ns,
)
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, share
from .units import banks_of, y_pages


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
    array_ns, engines_ns, moved_ns, end_ns = 0.0, 0.0, 0.0, 0.0
    start_ns, build_ns, turned_ns = build_of(geometry, grouped)
    for index in range(mine[0], mine[0] + mine[1]):
        unit = grouped.units[index]
        if index == mine[0] or grouped.units[index - 1].chunk != unit.chunk:
            engines_ns += build_ns
            array_ns += turned_ns
        banks = banks_of(geometry, grouped, unit)
        for bank in range(len(banks)):
            columns = unit.nn * banks[bank][1] * banks[bank][3]
            array_ns += sums_ns(geometry, grouped, columns)
            read_ns = read_out_ns(geometry, grouped, unit, columns, banks[bank][1])
            engines_ns += read_ns
            end_ns = read_ns
        moved_ns += dma_ns(geometry, grouped, unit)
    first, last = grouped.units[mine[0]], grouped.units[mine[0] + mine[1] - 1]
    start_ns = max(start_ns, dma_ns(geometry, grouped, first) / 2)
    end_ns += MATMUL_DONE_NS + FIRST_PACKET_NS + STORE_SKEW_NS + last_store_ns(geometry, grouped, last)
    come_ns = FIRST_PACKET_NS + LOAD_SKEW_NS + DMA_DONE_NS
    return come_ns + start_ns + max(max(array_ns, engines_ns), moved_ns) + end_ns


def column_ns_of(geometry):
    """ns of a column of the array at its full rate."""
    return TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS


def build_of(geometry, grouped):
    """(ns until a chunk's stationaries are made, of both engines' time, of the array's) from its filters."""
    taps, places = geometry.rows.taps * geometry.columns.taps, grouped.Uh * grouped.Uw
    copied = VECTOR_FIXED_NS + taps * grouped.Kt * copy_ns(geometry)
    product_ns = VECTOR_NS_16BIT if geometry.itemsize == 2 else VECTOR_NS
    if geometry.groups == geometry.C:
        vector_ns = VECTOR_FIXED_NS + taps * grouped.Kt * product_ns + places * copied
        return vector_ns + 2 * VECTOR_DONE_NS, vector_ns / 2, 0.0
    pages = y_pages(grouped)
    spread_ns = VECTOR_FIXED_NS + taps * nl.tile_size.pmax * product_ns
    turned_ns = pages * taps * (MATMUL_COLUMNS_MIN * column_ns_of(geometry) + MATMUL_NS)
    placed_ns = SCALAR_FIXED_NS + taps * grouped.Kt * SCALAR_NS + (places - 1) * copied
    engines_ns = pages * (spread_ns + placed_ns)
    return engines_ns + turned_ns / HALF_RATE + MATMUL_DONE_NS + 2 * VECTOR_DONE_NS, engines_ns / 2, turned_ns


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


def dma_ns(geometry, grouped, unit):
    """ns of a core's DMA engines for a unit's x and results."""
    chunk = grouped.chunks[unit.chunk]
    share_of = chunk[1] * grouped.G / geometry.groups * len(unit.parts) * unit.nn
    x_bytes = unit.hn * unit.wn * geometry.itemsize
    p = min(unit.mn * grouped.Uh, geometry.rows.out)
    y_bytes = p * geometry.columns.out * geometry.itemsize
    runs_ns = geometry.C * run_ns(x_bytes) + geometry.K * run_ns(y_bytes)
    hbm_ns = (geometry.C * x_bytes + geometry.K * y_bytes) * HBM_BYTE_NS
    return share_of * max(runs_ns / DMA_ENGINES, hbm_ns)


def last_store_ns(geometry, grouped, unit):
    """ns of one tile's last store."""
    rows = min(unit.mn * grouped.Uh, geometry.rows.out)
    blocks = div_ceil(unit.nn * unit.mn * geometry.columns.out, grouped.Uw * BANK_COLUMNS)
    return ROWS_AN_ENGINE * unit.nn * run_ns(rows // max(1, blocks) * geometry.columns.out * geometry.itemsize)
