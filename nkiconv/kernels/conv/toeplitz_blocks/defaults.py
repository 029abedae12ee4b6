"""Settings of depthwise conv2d by blocks, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil
from ..._warm import WARM_UP_MAX
from ..cuts import window_of
from ..transposes import is_transposed
from .windows import outputs_alike, pixels_among

#: Of a kernel without settings: outputs of a row and of a column of a block, about, channels of a chunk, and matmuls on
#: zeros while the first of x is on its way.
BLOCK_COLUMNS, BLOCK_ROWS = 14, 7
BLOCK_CHANNELS, BLOCKS_WARM_UP = 32, 60
#: Channels and buffers at most.
CHANNELS_MOST, BUFFERS_MOST = 1024, 16


@dataclass(frozen=True)
class ToeplitzBlocksConfig(nl.NKIObject):
    """Every setting: see plan.py."""

    #: rows from a block to the one below, a multiple of the stride and of lhs_dilation, 1 to 512
    rows: int
    #: columns of y of a window, 1 to 512; with lhs_dilation as many as begin alike, or several times as many
    columns: int
    #: 1: no column of x is in two windows, whose sums add up in a bank, and a block has all rows that its rows of y
    #: see; of NCHW alone. 0: no row of x is in two blocks, and a window has all columns that its columns of y see
    disjoint: int
    #: blocks beside each other, below each other, and images, that one matmul takes: their product at most 128; of NCHW
    #: there are no blocks beside each other
    beside: int
    below: int
    images: int
    #: channels of a chunk, 1 to 1024; of NCHW at most 128
    channels: int
    #: chunks whose matrices come together, 1 to 1024
    together: int
    #: tiles of blocks, 2 to 16
    buffers: int
    #: matmuls of 128 columns on zeros while the first of x is on its way
    warmup: int


def blocks_config_refusal(config):
    """What is wrong with a config by its names and values; "" if nothing is."""
    most = nl.tile_size.pmax
    table = (
        ("rows", (1, BANK_COLUMNS)),
        ("columns", (1, BANK_COLUMNS)),
        ("disjoint", (0, 1)),
        ("beside", (1, most)),
        ("below", (1, most)),
        ("images", (1, most)),
        ("channels", (1, CHANNELS_MOST)),
        ("together", (1, CHANNELS_MOST)),
        ("buffers", (2, BUFFERS_MOST)),
        ("warmup", (0, WARM_UP_MAX)),
    )
    return settings_refusal(config, table, "toeplitz_blocks")


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
    return ToeplitzBlocksConfig(
        rows=height,
        columns=few,
        disjoint=setting(config, "disjoint", 0),
        beside=setting(config, "beside", min(windows, max(1, most // (below * images)))),
        below=below,
        images=images,
        channels=setting(config, "channels", min(BLOCK_CHANNELS, div_ceil(geometry.C, PARTS))),
        together=setting(config, "together", 1),
        buffers=setting(config, "buffers", 2),
        warmup=setting(config, "warmup", BLOCKS_WARM_UP),
    )
