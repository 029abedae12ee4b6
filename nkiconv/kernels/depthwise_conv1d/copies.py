"""Copies in HBM of rows whose channels are neighbours: `schedules.row_copies` says of what."""

from ..._nki import nl
from ...schedules.row_copies import copies_of, rows_of
from ...schedules.tiles import size_of
from ..conv.relayout import copy_transposed, meet, rows_copy


def with_copies(geometry, options, x, y, residual):
    """(RowGeometry, RowCopies, x, y, residual), tensors in HBM as an algorithm sees them: copies of x and of the
    residual, rows for y."""
    copies = copies_of(geometry, options)
    if copies.x:
        x = rows_copy([x], copies.x)
    if copies.residual:
        residual = rows_copy([residual], copies.residual)
    if copies.y:
        y = nl.ndarray((size_of(y.shape),), dtype=y.dtype, buffer=nl.shared_hbm)
    return rows_of(geometry, copies), copies, x, y, residual


def copy_back(y_hbm, rows_hbm, parts):
    """y from the rows that an algorithm wrote, if it did."""
    if parts:
        meet(rows_hbm)
    for part in parts:
        copy_transposed(y_hbm, rows_hbm, part)
