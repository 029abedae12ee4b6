"""DMAs of rows of a ChannelBlock: channels on the free dim, [rows, channels of a row, columns], or on partitions."""

from ..._nki import nisa
from ...schedules.channels import full_rows, row_runs


def move_free(tile_sbuf, rows, block, r0, n=0, is_store=False):
    """[rows, channels from r0 on, columns] of an image from HBM to SBUF, with zeros for channels that do not exist; or
    the existing channels back."""
    if not is_store and full_rows(block)[0] < tile_sbuf.shape[0]:
        nisa.memset(dst=tile_sbuf, value=0.0)
    move_block(tile_sbuf, rows, block, (r0, tile_sbuf.shape[1]), (n, 0), is_store)


def move_block(tile_sbuf, rows, block, some, place, is_store=False):
    """Load or store the existing channels of `some` (first, count) of each row of a block from place (image, element)
    on: [rows, channels, columns], or [(row, channel), columns]."""
    (_, c_step, step), (first, width), columns = rows.steps, some, tile_sbuf.shape[-1]
    for row, count, channels in row_runs(block, first, width):
        pattern = [[block.length * c_step, count], [c_step, channels], [step, columns]]
        if len(tile_sbuf.shape) == 3:
            here = tile_sbuf[row : row + count, 0:channels, 0:columns]
        else:
            here = tile_sbuf[row * width : row * width + count * channels]
        rows.move(here, pattern, place[0], block.c0 + row * block.length + first, place[1], is_store)
