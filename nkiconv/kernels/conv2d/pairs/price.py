"""What pairs takes by prices: the array's time, and that of DMAs."""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import (
    DMA_ENGINES,
    HBM_BYTE_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_NS,
    ROW_TILE_COLUMNS,
    TENSOR_COLUMN_NS,
    run_ns,
)
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil
from .extents import is_dense

#: ns until the first matmul, and from the last one to the last byte of y.
PAIRS_START_NS = 3200.0
PAIRS_END_NS = 2000.0


def bank_ns(columns):
    """ns of a matmul of so many columns."""
    return max(columns, MATMUL_COLUMNS_MIN) * TENSOR_COLUMN_NS + MATMUL_NS


@dataclass
class Workload(nl.NKIObject):
    """What the array has to do: matmuls of a bank of sums, jobs, images of a bank, (first, how many) rows of an image's
    banks; and whether the cores share channels of the output."""

    passes: int
    jobs: int
    together: int
    parts: list
    by_channels: bool


def array_ns(geometry, work, halves):
    """ns of a core of two for the matmuls of all, at the array's full rate."""
    P, Q = geometry.rows.out, geometry.columns.out
    num_parts = len(work.parts)
    if work.together > 1:
        each_ns = bank_ns(min(BANK_COLUMNS, work.together * P * Q))
    else:
        each_ns = num_parts * div_ceil(Q, BANK_COLUMNS) * bank_ns(work.parts[0][1] * min(Q, BANK_COLUMNS))
    total = work.passes * each_ns
    if halves:
        # half of the last pass, and the distance between the two that share the array
        total += ROW_TILE_COLUMNS * TENSOR_COLUMN_NS * num_parts / 2 - each_ns / 2
    return div_ceil(geometry.N, work.together) * total * work.jobs / PARTS


def loads_ns(geometry, times, staged):
    """ns of a core's DMA engines for all of x, so many times."""
    rows, columns = geometry.rows, geometry.columns
    count = geometry.N * geometry.C * times
    if staged or (is_dense(columns) and geometry.x_w == 1 and geometry.x_h == columns.size):
        busy = count * run_ns(rows.size * columns.size * geometry.itemsize)
    elif geometry.x_w == 1:
        busy = count * rows.size * run_ns(columns.size * geometry.itemsize)
    else:
        busy = count * rows.size * columns.size * run_ns(geometry.itemsize)
    num_bytes = count * rows.size * columns.size * geometry.itemsize
    return max(busy / DMA_ENGINES, num_bytes * HBM_BYTE_NS)


def stores_ns(geometry):
    """ns of a core's DMA engines for its half of y, of 16 bits."""
    size = geometry.N * geometry.K * geometry.rows.out * geometry.columns.out
    run = geometry.columns.out if geometry.y_q == 1 else 1
    if geometry.y_q == 1 and geometry.y_p == geometry.columns.out:
        run = run * max(1, min(geometry.rows.out, BANK_COLUMNS // geometry.columns.out))
    busy = size / run * run_ns(2 * run)
    return max(busy / DMA_ENGINES, 2 * size * HBM_BYTE_NS) / PARTS
