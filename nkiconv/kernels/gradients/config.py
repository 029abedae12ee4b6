"""Settings of the filter gradient, and what a bare kernel takes where they are left open."""

from dataclasses import dataclass

from ..._nki import nl
from .._settings import setting, settings_refusal
from .._tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, div_ceil
from .._warm import WARM_UP_MAX
from ..conv.cuts import window_of

WARM_UP = 28
#: Bytes a partition of SBUF for the blocks of x and gy that are there together.
BLOCK_BYTES = 147_456
#: Rows and columns of a block that the rule tries.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28, 32)
#: Bytes of a run in HBM below which a DMA takes as long (trn2.toml, dma).
RUN_BYTES = 512


@dataclass(frozen=True)
class WeightConfig(nl.NKIObject):
    """All settings."""

    #: rows and columns of gy of a block, from 1; a partition holds one
    rows: int
    columns: int
    #: input channels of a bank of sums, from 1
    channels: int
    #: of the banks that pass over x and gy together: 128s of output channels, and parts of the input channels, from 1
    outputs: int
    inputs: int
    #: tiles of blocks that are there together, from 1
    buffers: int
    #: 1: the cores share blocks, whose sums they add, or 0: banks of sums
    split: int
    #: matmuls of 128 columns on zeros before the first others, from 0 to WARM_UP_MAX
    warmup: int


def weight_config_refusal(config):
    """What is wrong with names and values, "" if nothing is."""
    most = BANK_COLUMNS
    table = (("rows", (1, most)), ("columns", (1, most)), ("channels", (1, most)), ("outputs", (1, PSUM_BANKS)))
    table = table + (("inputs", (1, PSUM_BANKS)), ("buffers", (1, PSUM_BANKS)), ("split", (0, 1)))
    return settings_refusal(config, table + (("warmup", (0, WARM_UP_MAX)),), "blocks")


def weight_settings(geometry, config):
    """All settings; what a config leaves open: banks as full as can be, and passes and blocks with fewest matmuls of
    the busier core that fit, of these those that move least."""
    C, taps = geometry.C // geometry.groups, geometry.rows.taps * geometry.columns.taps
    each = min(C, max(1, BANK_COLUMNS // taps))
    channels = setting(config, "channels", div_ceil(C, div_ceil(C, each)))
    buffers, found, least = setting(config, "buffers", 2), None, (0, 0)
    for outputs in choices(config, "outputs", (1, 2, 4, 8)):
        for inputs in choices(config, "inputs", (1, 2, 3, 4, 5, 6, 7, 8)):
            for split in choices(config, "split", (0, 1)):
                if outputs * inputs * banks_of_taps(geometry) > PSUM_BANKS and outputs * inputs > 1:
                    continue
                one = best_block(geometry, config, channels, (outputs, inputs, buffers, split))
                if one != None and (found == None or one[1] < least):
                    found, least = one
    if found != None:
        return found
    return settings_of(geometry, config, channels, (1, 1, buffers, 0), (1, 1))


def choices(config, name, values):
    """Values to try of a setting: the given one, or these."""
    given = setting(config, name, -1)
    return values if given < 0 else (given,)


def settings_of(geometry, config, channels, sizes, block):
    """All settings; as given here where a config has none. sizes: (outputs, inputs, buffers, split)."""
    return WeightConfig(
        rows=setting(config, "rows", block[0]),
        columns=setting(config, "columns", block[1]),
        channels=channels,
        outputs=setting(config, "outputs", sizes[0]),
        inputs=setting(config, "inputs", sizes[1]),
        buffers=sizes[2],
        split=setting(config, "split", sizes[3]),
        warmup=setting(config, "warmup", WARM_UP),
    )


def banks_of_taps(geometry):
    """Banks of sums of some output and input channels."""
    R, S = geometry.rows.taps, geometry.columns.taps
    return geometry.planes.taps * (1 if R * S <= BANK_COLUMNS else R * div_ceil(S, BANK_COLUMNS))


def best_block(geometry, config, channels, sizes):
    """(settings, (matmuls of the busier core, bytes that it moves)) with the best block of these sizes, or None."""
    P, Q, found, least = geometry.rows.out, geometry.columns.out, None, (0, 0)
    for rows in choices(config, "rows", EXTENTS):
        for columns in choices(config, "columns", EXTENTS + (Q,)):
            if (
                rows > P
                or columns > Q
                or (geometry.x_strides[0] != 1 and columns < Q and setting(config, "columns", 0) == 0)
            ):
                continue
            if sizes[2] * block_bytes(geometry, rows, columns, channels, sizes) <= BLOCK_BYTES:
                score = block_score(geometry, rows, columns, channels, sizes)
                if found == None or score < least:
                    found, least = settings_of(geometry, config, channels, sizes, (rows, columns)), score
    return None if found == None else (found, least)


def block_score(geometry, rows, columns, channels, sizes):
    """(matmuls of the busier core, bytes that both move)."""
    outputs, inputs, _, split = sizes
    K, C, groups = geometry.K // geometry.groups, geometry.C // geometry.groups, geometry.groups
    tiles = div_ceil(K, nl.tile_size.pmax), div_ceil(C, channels)
    passes = groups * div_ceil(tiles[0], outputs) * div_ceil(tiles[1], inputs)
    jobs = min(outputs, tiles[0]) * min(inputs, tiles[1]) * banks_of_taps(geometry)
    blocks = geometry.planes.out * div_ceil(geometry.rows.out, rows) * div_ceil(geometry.columns.out, columns)
    parts = div_ceil(blocks, nl.tile_size.pmax)
    mine = passes * div_ceil(parts, PARTS) if split == 1 else div_ceil(passes, PARTS) * parts
    x_bytes, y_bytes = moved_bytes(geometry, rows, columns, channels, sizes)
    return mine * rows * columns * jobs, passes * blocks * (x_bytes + y_bytes) * (2 if split == 1 and passes > 1 else 1)


def moved_bytes(geometry, rows, columns, channels, sizes):
    """Bytes of (x, gy) of a block, in runs of RUN_BYTES at least."""
    item, found = geometry.hbm_itemsize, []
    x = (window_of(geometry.rows, rows), window_of(geometry.columns, columns), min(geometry.C, channels * sizes[1]))
    y = (rows, columns, min(geometry.K, nl.tile_size.pmax * sizes[0]))
    for one in ((x, geometry.C, geometry.x_strides), (y, geometry.K, geometry.y_strides)):
        extents, all_channels, strides = one
        h, w, c = extents
        if strides[0] != 1:
            found.append(c * h * max(RUN_BYTES, w * item))
        elif c == all_channels:
            found.append(h * max(RUN_BYTES, w * c * item))
        else:
            found.append(h * w * max(RUN_BYTES, c * item))
    return found[0] * geometry.planes.taps, found[1]


def block_bytes(geometry, rows, columns, channels, sizes):
    """Bytes a partition of a block of x and of gy, of the channels of a pass at most."""
    x_size = window_of(geometry.rows, rows) * window_of(geometry.columns, columns) * geometry.planes.taps
    chunks, outputs = min(geometry.C, channels * sizes[1]), min(geometry.K, nl.tile_size.pmax * sizes[0])
    return (x_size * chunks + rows * columns * outputs) * geometry.itemsize
