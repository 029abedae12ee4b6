"""DMAs of tiles with channels on the free dim: [rows, channels of a row, columns]."""

from ..._nki import nisa
from ...schedules.channels import full_rows, row_runs
from .._dma import load


def move_free(tile_sbuf, tensor_hbm, block, r0, places, move):
    """[rows, channels r0 onwards, columns] from HBM to SBUF or back: the channels that exist; zeros for others.

    places: HBM elements between channels and between columns, and where the block begins but for its c0. move: `load`
    or `store`.
    """
    c_step, q_step, offset = places
    rn, columns = tile_sbuf.shape[1], tile_sbuf.shape[2]
    if move == load and full_rows(block)[0] < tile_sbuf.shape[0]:
        nisa.memset(dst=tile_sbuf, value=0.0)
    for run in row_runs(block, r0, rn):
        row, rows, channels = run
        part_sbuf = tile_sbuf[row : row + rows, 0:channels, 0:columns]
        pattern = [[block.length * c_step, rows], [c_step, channels], [q_step, columns]]
        move(part_sbuf, tensor_hbm, pattern, offset + (block.c0 + row * block.length + r0) * c_step)
