"""DMAs of tiles with channels on the free dim: [rows, channels of a row, columns]."""

from ..._nki import nisa
from ...schedules.channels import full_rows, row_runs


def move_free(tile_sbuf, rows, block, r0, n=0, is_store=False):
    """[rows, channels from r0 on, columns] of an image from HBM to SBUF, with zeros for channels that do not exist; or
    the existing channels back."""
    (lines, width, columns), (_, c_step, step) = tile_sbuf.shape, rows.steps
    if not is_store and full_rows(block)[0] < lines:
        nisa.memset(dst=tile_sbuf, value=0.0)
    for row, count, channels in row_runs(block, r0, width):
        part_sbuf = tile_sbuf[row : row + count, 0:channels, 0:columns]
        pattern = [[block.length * c_step, count], [c_step, channels], [step, columns]]
        move = rows.store if is_store else rows.load
        move(part_sbuf, pattern, n, block.c0 + row * block.length + r0, 0)
