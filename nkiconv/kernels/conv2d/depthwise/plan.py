"""Depthwise conv2d by bands: sizes from shapes, and whether it takes less than diagonals do.

A channels of H rows lie on the partitions, X[(a, h), n, w] = x[n, a, h, w]; for a column of taps s one matmul with

    F[s][(a, h), (a, p)] = w[a, r, s]   where   h = p * stride + r * dilation - top,   zero elsewhere

does all R taps of it for A channels and all rows: S matmuls of N Q columns for A channels, where diagonals take R S of
P Q columns for 128. Padding above and below is zeros of F. What it pays is short runs: a DMA element is one row of x.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import DMA_ENGINES, MATMUL_NS, STATIC_ISSUE_NS, TENSOR_COLUMN_FP32_NS, TENSOR_COLUMN_NS, run_ns
from ..._tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, PARTS, div_ceil

#: Bytes a partition of the bands of one round of groups, and of x of one group.
BAND_BYTES = 40_960
X_BYTES = 24_576
#: How much less than the diagonals' the time must be, by prices.
WORTHWHILE = 0.85


@dataclass
class Bands(nl.NKIObject):
    """Sizes of one problem."""

    #: channels of a group, and groups of all channels
    A: int
    groups: int
    #: groups whose bands are made together
    together: int
    #: rows of the reversed and padded filter, of which each partition has a window, and rows of that window
    height: int
    window: int
    #: columns of x with what is padded
    width: int


def fitting_bands(geometry, pool, has_residual, cores):
    """The best Bands if memory and instructions suffice for it, else None."""
    found = best_bands(geometry, pool)
    if found == None or sbuf_bytes(geometry, found, has_residual) > nl.tile_size.total_available_sbuf_size:
        return None
    return found if count_instructions(geometry, found, cores) <= INSTRUCTIONS_MAX else None


def best_bands(geometry, pool):
    """The Bands of a problem, or None where diagonals take less or this one does not do it."""
    rows, columns = geometry.rows, geometry.columns
    most = nl.tile_size.pmax
    alone = geometry.groups == geometry.C and geometry.K == geometry.C and geometry.packed == 0
    if not alone or rows.lhs_dilation > 1 or columns.lhs_dilation > 1 or pool != (1, 1):
        return None
    if max(rows.size, rows.out) > most or geometry.C < PARTS:
        return None
    # each core has a group
    A = min(div_ceil(geometry.C, PARTS), most // max(rows.size, rows.out))
    groups = div_ceil(geometry.C, A)
    window = (rows.out - 1) * rows.stride + 1
    width = (columns.out - 1) * columns.stride + (columns.taps - 1) * columns.dilation + 1
    each = A * window * columns.taps * geometry.itemsize
    if each > BAND_BYTES or geometry.N * width * geometry.itemsize > X_BYTES or columns.out > BANK_COLUMNS:
        return None
    share_groups = div_ceil(groups, PARTS)
    rounds = div_ceil(share_groups, BAND_BYTES // each)
    found = Bands(
        A=A,
        groups=groups,
        together=div_ceil(share_groups, rounds),
        height=rows.size - 1 + window,
        window=window,
        width=width,
    )
    return found if bands_ns(geometry, found) < WORTHWHILE * diagonals_ns(geometry) else None


def bands_ns(geometry, bands):
    """ns of both cores: the slowest of the array, DMA engines and triggers."""
    rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
    share_groups = div_ceil(bands.groups, PARTS)
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    images = max(1, BANK_COLUMNS // columns.out)
    moved = columns.out * min(images, geometry.N)
    each = max(nl.tile_size.pmax, moved) * column_ns + MATMUL_NS
    array_ns = share_groups * div_ceil(geometry.N, images) * columns.taps * each
    channels = bands.A * share_groups
    runs_ns = channels * geometry.N * (rows.size * run_ns(columns.size * item) + rows.out * run_ns(columns.out * 4))
    runs_ns += channels * rows.size * run_ns(bands.window * columns.taps * item)
    rounds = div_ceil(share_groups, bands.together)
    triggers_ns = (rounds * bands.A * rows.size + share_groups) * STATIC_ISSUE_NS
    return max(max(array_ns, runs_ns / DMA_ENGINES), triggers_ns)


def diagonals_ns(geometry):
    """ns of both cores where 128 channels lie on the partitions and each tap is a diagonal matrix."""
    taps = geometry.rows.taps * geometry.columns.taps
    columns = geometry.N * geometry.rows.out * geometry.columns.out * div_ceil(geometry.C, nl.tile_size.pmax)
    return columns * taps * (TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS) / PARTS


def sbuf_bytes(geometry, bands, has_residual):
    """Bytes a partition, at most."""
    item = geometry.itemsize
    made = 2 * bands.together * bands.A * bands.window * geometry.columns.taps * item
    x_bytes = 3 * geometry.N * bands.width * item
    y_bytes = 4 * geometry.N * geometry.columns.out
    filters = (bands.height + geometry.rows.taps) * geometry.columns.taps * item
    return made + x_bytes + (4 if has_residual else 2) * y_bytes + 4 * filters + 4096


def count_instructions(geometry, bands, cores):
    """Instructions of a core, at most."""
    share_groups = div_ceil(bands.groups, cores)
    banks = div_ceil(geometry.N, max(1, BANK_COLUMNS // geometry.columns.out))
    rounds = div_ceil(share_groups, bands.together) + PARTS
    made = rounds * (bands.A * geometry.rows.size + bands.together)
    filters = div_ceil(geometry.C, nl.tile_size.pmax) * (geometry.rows.taps + 4)
    return 64 + share_groups * (banks * (geometry.columns.taps + 4) + 12) + made + filters
