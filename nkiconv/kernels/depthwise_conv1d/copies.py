"""Copies in HBM of rows whose channels are neighbours: `schedules.row_copies` says of what."""

from dataclasses import replace

from ..._nki import nl
from ...schedules.row_copies import copies_of, rows_of
from ...schedules.tiles import size_of
from ..conv.relayout import copy_transposed, meet, rows_copy


def with_copies(operands, geometry, options):
    """(operands with copies of x and of the residual, and rows for y, where they are copied; the RowGeometry that an
    algorithm sees; the RowCopies)."""
    copies = copies_of(geometry, options)
    if copies.x:
        operands = replace(operands, x=rows_copy([operands.x], copies.x))
    if copies.residual:
        operands = replace(operands, residual=rows_copy([operands.residual], copies.residual))
    if copies.y:
        rows_hbm = nl.ndarray((size_of(operands.y.shape),), dtype=operands.y.dtype, buffer=nl.shared_hbm)
        operands = replace(operands, y=rows_hbm)
    return operands, rows_of(geometry, copies), copies


def copy_back(y_hbm, rows_hbm, parts):
    """y from the rows that an algorithm wrote, if it did."""
    if parts:
        meet(rows_hbm)
    for part in parts:
        copy_transposed(y_hbm, rows_hbm, part)
