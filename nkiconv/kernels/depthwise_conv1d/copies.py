"""Copies in HBM of rows whose channels are neighbours, as `schedules.row_copies` lists them."""

from ..._nki import nl
from ...schedules.row_copies import copies_of, rows_of
from ...schedules.tiles import size_of
from ..conv.relayout import copy_transposed, meet, rows_copy


def with_copies(geometry, options, x, y, residual):
    """(RowGeometry, RowCopies, x, y, residual) for an algorithm: copies in HBM of x and the residual, and rows for y,
    or the tensors themselves."""
    copies = copies_of(geometry, options)
    if copies.x:
        x = rows_copy([x], copies.x)
    if copies.residual:
        residual = rows_copy([residual], copies.residual)
    if copies.y:
        y = nl.ndarray((size_of(y.shape),), dtype=y.dtype, buffer=nl.shared_hbm)
    return rows_of(geometry, copies), copies, x, y, residual


def copy_back(y_hbm, rows_hbm, parts):
    """Write y from an algorithm's rows, if it wrote rows."""
    if parts:
        meet(rows_hbm)
    for part in parts:
        copy_transposed(y_hbm, rows_hbm, part)
