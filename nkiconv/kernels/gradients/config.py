"""Settings of the filter gradient, and what a bare kernel takes where they are left open."""

from dataclasses import dataclass

from ..._nki import nl
from .._settings import setting, settings_refusal
from .._tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, div_ceil
from .._warm import WARM_UP_MAX
from ..conv.cuts import window_of

WARM_UP = 28
#: Bytes a partition of SBUF for the blocks of x and gy that are there together.
BLOCK_BYTES = 131_072
#: Blocks along an axis that the rule tries.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)


@dataclass(frozen=True)
class WeightConfig(nl.NKIObject):
    """All settings."""

    #: rows and columns of gy of a block, from 1; a partition holds one
    rows: int
    columns: int
    #: input channels of a bank of sums, from 1
    channels: int
    #: banks of sums that pass over x and gy together, from 1 to all
    banks: int
    #: tiles of blocks that are there together, from 1
    buffers: int
    #: 1: the cores share blocks, whose sums they add, or 0: banks of sums
    split: int
    #: matmuls of 128 columns on zeros before the first others, from 0 to WARM_UP_MAX
    warmup: int


def weight_config_refusal(config):
    """What is wrong with names and values, "" if nothing is."""
    table = (("rows", (1, BANK_COLUMNS)), ("columns", (1, BANK_COLUMNS)), ("channels", (1, BANK_COLUMNS)))
    table = table + (("banks", (1, PSUM_BANKS)), ("buffers", (1, PSUM_BANKS)), ("split", (0, 1)))
    return settings_refusal(config, table + (("warmup", (0, WARM_UP_MAX)),), "weight_gradient")


def weight_settings(geometry, config):
    """All settings; what a config leaves open: banks as full as can be, and blocks that take fewest products of 128
    positions and fit, of these those with least around them."""
    taps = geometry.rows.taps * geometry.columns.taps
    each = min(geometry.C // geometry.groups, max(1, BANK_COLUMNS // taps))
    parts = div_ceil(geometry.C // geometry.groups, each)
    channels = setting(config, "channels", div_ceil(geometry.C // geometry.groups, parts))
    jobs = num_jobs(geometry, channels)
    banks = setting(config, "banks", min(PSUM_BANKS, max(1, div_ceil(jobs, PARTS))))
    buffers = setting(config, "buffers", 2)
    rows, columns = block_of(geometry, channels, banks, buffers, config)
    return WeightConfig(
        rows=rows,
        columns=columns,
        channels=channels,
        banks=banks,
        buffers=buffers,
        split=setting(config, "split", 1 if jobs < PARTS else 0),
        warmup=setting(config, "warmup", WARM_UP),
    )


def num_jobs(geometry, channels):
    """Banks of sums of all output channels, input channels and taps."""
    per_group = div_ceil(geometry.K // geometry.groups, nl.tile_size.pmax)
    taps = geometry.rows.taps * geometry.columns.taps
    by_taps = 1 if taps <= BANK_COLUMNS else geometry.rows.taps * div_ceil(geometry.columns.taps, BANK_COLUMNS)
    chunks = div_ceil(geometry.C // geometry.groups, channels)
    return geometry.groups * per_group * chunks * geometry.planes.taps * by_taps


def block_of(geometry, channels, banks, buffers, config):
    """(rows, columns) of gy of a block."""
    P, Q, found, least = geometry.rows.out, geometry.columns.out, (1, 1), 0
    rows_given, columns_given = setting(config, "rows", 0), setting(config, "columns", 0)
    for rows in EXTENTS if rows_given == 0 else (rows_given,):
        for columns in EXTENTS + (Q,) if columns_given == 0 else (columns_given,):
            if rows > P or columns > Q or (geometry.x_strides[0] != 1 and columns < Q and columns_given == 0):
                continue
            blocks = geometry.planes.out * div_ceil(P, rows) * div_ceil(Q, columns)
            products = div_ceil(blocks, nl.tile_size.pmax) * rows * columns
            around = window_of(geometry.rows, rows) * window_of(geometry.columns, columns)
            size = block_bytes(geometry, rows, columns, channels, banks)
            score = (products, around)
            if buffers * size <= BLOCK_BYTES and (least == 0 or score < least):
                found, least = (rows, columns), score
    return found


def block_bytes(geometry, rows, columns, channels, banks):
    """Bytes a partition of a block of x and of gy, of the channels of so many banks at most."""
    x_size = window_of(geometry.rows, rows) * window_of(geometry.columns, columns) * geometry.planes.taps
    chunks = min(geometry.C, channels * banks)
    outputs = min(geometry.K, nl.tile_size.pmax * banks)
    return (x_size * chunks + rows * columns * outputs) * geometry.itemsize
