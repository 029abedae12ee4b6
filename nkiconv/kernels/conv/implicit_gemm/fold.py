"""Channels that are left over beside whole 128s, folded so that the array's rows and columns are used all the same.

Inputs: x of a chunk of few channels lies `depth` times on the partitions, each copy a column of taps further, so that
one matmul takes the products of `depth` taps; zeros stand where a tap meets none, as all share one window.
Outputs: a job of few output channels makes two rows of y at once, (row, k) in the array's columns: its filters are
there twice, the second copy shifted by the stride, and one matmul meets the rows of x that either row needs.

Neither is for channels that lie side by side in HBM: x is transposed as it comes, results as they leave.
"""

from ...._nki import nl
from ....schedules.geometry import Axis, met
from ....schedules.tiles import div_ceil
from ..transposes import is_transposed
from .last import is_last
from .pairs_fp8 import STAGED, stores_zeros, word_of

#: Rows of outputs of a folded job.
ROWS = 2


def left_over(count):
    """How many of `count` channels are left over beside whole 128s, if two copies fit; else 0."""
    rest = count % nl.tile_size.pmax
    return rest if ROWS * rest <= nl.tile_size.pmax else 0


def is_plain(geometry):
    """Whether each filter meets all channels of x, and they are several."""
    return geometry.groups == 1 and geometry.C > 1


def depth_of(geometry):
    """Copies of the channels that are left over; 1 where they cannot be folded."""
    rest = left_over(geometry.C)
    if rest == 0 or is_transposed(geometry) or not is_plain(geometry) or geometry.columns.lhs_dilation > 1:
        return 1
    return min(nl.tile_size.pmax // rest, geometry.columns.taps)


def rows_of(geometry):
    """Rows of outputs at once where output channels are left over; 1 where they cannot be folded."""
    rows = geometry.rows
    if left_over(geometry.K) == 0 or is_last(geometry) or not is_plain(geometry) or rows.lhs_dilation > 1:
        return 1
    if geometry.packed > 0 and (nl.tile_size.pmax % geometry.packed != 0 or geometry.planes.taps > 1):
        return 1
    if rows.out < ROWS or rows.stride % rows.dilation != 0 or rows.taps + rows.stride // rows.dilation >= 2 * rows.taps:
        return 1
    return ROWS


def job_axis(geometry, job):
    """The rows' Axis of a job: where it makes two rows of outputs at once, of pairs of rows."""
    rows = geometry.rows
    if job.rows == 1:
        return rows
    return Axis(
        size=rows.size,
        taps=rows.taps + rows.stride // rows.dilation,
        out=div_ceil(rows.out, ROWS),
        stride=ROWS * rows.stride,
        dilation=rows.dilation,
        before=rows.before,
    )


def tap_groups(geometry, chunk):
    """Groups of columns of taps that one matmul of a chunk takes at once."""
    return div_ceil(geometry.columns.taps, chunk[2])


def group_depth(geometry, chunk, group):
    """Columns of taps of a group; the last one may have fewer."""
    return min(chunk[2], geometry.columns.taps - group * chunk[2])


def group_met(geometry, chunk, group, q0, qn):
    """Outputs that a group of taps meets, as `geometry.met`; zeros beside x are there too where it is folded."""
    columns = geometry.columns
    if chunk[2] == 1:
        return met(columns, group, q0, qn)
    first = q0 * columns.stride + group * chunk[2] * columns.dilation - columns.before
    return q0, 1, qn, first, columns.stride


def chunk_window(geometry, chunk, band):
    """(first column, columns) of x that a chunk's tile holds for a band; from left of x where zeros lie there."""
    if chunk[2] == 1 and not stores_zeros(chunk):
        return band.w0, band.wn
    columns = geometry.columns
    first, width = band.q0 * columns.stride - columns.before, folded_width(geometry, chunk, band.qn)
    if comes_staged(geometry, chunk, band):
        # whole rows of whole words
        word = word_of(geometry)
        left = div_ceil(columns.before, word) * word
        first, width = -left, div_ceil(left + max(columns.size, first + width), word) * word
    elif stores_zeros(chunk) and first == 0 and band.wn == columns.size:
        width = max(width, band.wn)  # rows that come as one run
    return first, width


def comes_staged(geometry, chunk, band):
    """Whether rows of x of a chunk are put between zeros on chip."""
    return chunk[3] == STAGED and band.qn == geometry.columns.out


def folded_width(geometry, chunk, qn):
    """Columns of x that each copy of a folded chunk holds for `qn` outputs of a row."""
    columns = geometry.columns
    last = (tap_groups(geometry, chunk) - 1) * chunk[2] * columns.dilation
    return (qn - 1) * columns.stride + last + 1
