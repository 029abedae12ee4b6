"""Settings of a kernel that is called without some, or all."""

from ...._nki import nl
from ....schedules.cuts import window_of
from ....schedules.settings import setting
from ....schedules.tiles import PARTS, div_ceil
from ....schedules.toeplitz_blocks import ToeplitzBlocksSettings
from ..transposes import is_transposed
from .windows import outputs_alike, pixels_among

#: Outputs of a row and of a column of a block, about, and channels of a K tile.
BLOCK_COLUMNS, BLOCK_ROWS, BLOCK_CHANNELS = 14, 7, 32


def blocks_settings(geometry, config):
    """All settings: what a config leaves open is blocks of some 14 columns and as many rows as the partitions hold, and
    as many of them together as the array takes."""
    most, rows, columns = nl.tile_size.pmax, geometry.rows, geometry.columns
    each, unit, apart = outputs_alike(columns), outputs_alike(rows) * rows.stride, rows.lhs_dilation
    few = div_ceil(div_ceil(columns.out, div_ceil(columns.out, BLOCK_COLUMNS)), each) * each
    while few > each and pixels_among(columns, window_of(columns, few)) * unit > most * apart:
        few = div_ceil(few, 2 * each) * each
    few = setting(config, "columns", few)
    width = max(1, pixels_among(columns, window_of(columns, few)))
    height = max(1, most * apart // (width * unit)) * unit
    height = setting(config, "rows", min(height, max(unit, BLOCK_ROWS * apart // unit * unit)))
    below = setting(config, "below", min(most, div_ceil(rows.out * rows.stride, height)))
    images = setting(config, "images", min(geometry.planes.out, max(1, most // below)))
    windows = div_ceil(columns.out, few) if is_transposed(geometry) else 1
    return ToeplitzBlocksSettings.read(
        config,
        rows=height,
        columns=few,
        beside=min(windows, max(1, most // (below * images))),
        below=below,
        images=images,
        channels=min(BLOCK_CHANNELS, div_ceil(geometry.C, PARTS)),
    )
