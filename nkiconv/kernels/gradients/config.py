"""Settings of the filter gradient, and what a bare kernel takes where they are left open."""

from dataclasses import dataclass

from ..._nki import nl
from .._settings import setting, settings_refusal
from .._tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, QUADRANT, div_ceil
from .._warm import WARM_UP_MAX
from ..conv.cuts import window_of
from ..conv.geometry import num_taps

#: Matmuls on zeros before the first others: so many, and one for each so many bytes a partition of the first tile.
WARM_UP, WARM_UP_BYTES = 28, 600
#: Tiles that are there together, at most, and those that the rule takes where banks do not need them all.
BUFFERS_MAX, BUFFERS = 64, 6
#: Bytes a partition of SBUF for the blocks of x and gy that are there together.
BLOCK_BYTES = 147_456
#: Rows and columns of a block that the rule tries.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28, 32)
#: Bytes a partition that come, or go, while a column passes the array; and how much longer sums take that the cores
#: add, which nothing hides.
COLUMN_BYTES, EXPOSED = 1, 6
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
    #: columns of gy beside each other in a bank's rows, 1, 2 or 4
    beside: int
    #: tiles of blocks that are there together, from 1
    buffers: int
    #: 1: x and gy are copied first, so that channels lie side by side, or 0: they are taken as they lie
    pixels: int
    #: 1: the cores share blocks, whose sums they add, or 0: banks of sums
    split: int
    #: matmuls of 128 columns on zeros before the first others, from 0 to WARM_UP_MAX
    warmup: int


def weight_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    most = BANK_COLUMNS
    table = (("rows", (1, most)), ("columns", (1, most)), ("channels", (1, most)), ("outputs", (1, most)))
    table = table + (
        ("inputs", (1, most)),
        ("beside", (1, 4)),
        ("buffers", (1, BUFFERS_MAX)),
        ("split", (0, 1)),
        ("pixels", (0, 1)),
    )
    reason = settings_refusal(config, table + (("warmup", (0, WARM_UP_MAX)),), "blocks")
    beside, channels = setting(config, "beside", 1), setting(config, "channels", 1)
    if reason == "" and beside > most_beside(geometry):
        return (
            f"config beside={beside}, K={geometry.K}, stride={geometry.columns.stride}: at most "
            f"{most_beside(geometry)}, where a group has {QUADRANT} or {2 * QUADRANT} output channels, rhs_dilation "
            f"divides the stride and a bank holds the wider window; use less"
        )
    if reason == "" and setting(config, "columns", beside) < beside:
        return f"config columns={setting(config, 'columns', 0)}: must be at least beside={beside}; use more"
    if reason == "" and channels > max_channels(geometry, beside):
        return (
            f"config channels={channels}: a bank of {BANK_COLUMNS} columns holds all taps of "
            f"{max_channels(geometry, beside)} input channels; use at most as many"
        )
    return reason


def most_beside(geometry):
    """Columns of gy that can share a matmul, at most."""
    K, columns = geometry.K // geometry.groups, geometry.columns
    fits = (K == QUADRANT or K == 2 * QUADRANT) and columns.stride % columns.dilation == 0
    if not fits or geometry.rows.taps * (columns.taps + 3 * columns.stride) > BANK_COLUMNS:
        return 1
    return min(nl.tile_size.pmax // K, columns.out)


def max_channels(geometry, beside):
    """Input channels of a bank of sums, at most."""
    return max(1, min(geometry.C // geometry.groups, BANK_COLUMNS // taps_beside(geometry, beside)))


def taps_beside(geometry, beside):
    """Taps of a plane in the window of so many columns of gy beside each other."""
    columns = geometry.columns
    return geometry.rows.taps * (columns.taps + (beside - 1) * (columns.stride // columns.dilation))


def weight_settings(geometry, config):
    """(all settings, what they take, see `block_score`); what a config leaves open: the columns of gy beside each other
    with which banks take fewest columns of the array, banks as full as can be, and passes and blocks that fit and take
    least."""
    C, beside = geometry.C // geometry.groups, most_beside(geometry)
    if taps_beside(geometry, beside) >= beside * taps_beside(geometry, 1):
        beside = 1
    beside = setting(config, "beside", beside)
    channels = setting(config, "channels", div_ceil(C, div_ceil(C, max_channels(geometry, beside))))
    found, least, parts = None, 0, div_ceil(C, channels)
    whole = div_ceil(geometry.K // geometry.groups, nl.tile_size.pmax)
    for outputs in choices(config, "outputs", (1, 2, 4, 8, div_ceil(whole, 2), whole)):
        for inputs in choices(config, "inputs", (1, 2, 3, 4, 5, 6, 7, 8, div_ceil(parts, 2), parts)):
            for split in choices(config, "split", (0, 1)):
                one = best_block(geometry, config, channels, (outputs, inputs, split, beside))
                if one != None and (found == None or one[1] < least):
                    found, least = one
    if found == None:
        found = settings_of(geometry, config, channels, (1, 1, 0, beside), (1, beside), 2)
    return found, least


def choices(config, name, values):
    """Values to try of a setting: the given one, or these."""
    given = setting(config, name, -1)
    return values if given < 0 else (given,)


def settings_of(geometry, config, channels, sizes, block, buffers):
    """All settings; as given here where a config has none. sizes: (outputs, inputs, split, beside)."""
    outputs, inputs, split, beside = sizes
    # rows come one by one
    first_bytes = block_bytes(geometry, block[0], block[1], channels, sizes) // block[0]
    warmup = min(WARM_UP_MAX, WARM_UP + first_bytes // WARM_UP_BYTES)
    return WeightConfig(
        rows=setting(config, "rows", block[0]),
        columns=setting(config, "columns", block[1]),
        channels=channels,
        outputs=setting(config, "outputs", outputs),
        inputs=setting(config, "inputs", inputs),
        beside=beside,
        buffers=setting(config, "buffers", buffers),
        pixels=setting(config, "pixels", 0),
        split=setting(config, "split", split),
        warmup=setting(config, "warmup", warmup),
    )


def banks_of_taps(geometry):
    """Banks of sums of some output and input channels."""
    R, S = geometry.rows.taps, geometry.columns.taps
    return geometry.planes.taps * (1 if R * S <= BANK_COLUMNS else R * div_ceil(S, BANK_COLUMNS))


def best_block(geometry, config, channels, sizes):
    """(settings, what they take) with the best block of these sizes, or None."""
    P, Q, found, least = geometry.rows.out, geometry.columns.out, None, 0
    for rows in choices(config, "rows", EXTENTS):
        for columns in choices(config, "columns", EXTENTS + (Q,)):
            if (
                rows > P
                or columns > Q
                or columns < sizes[3]
                or (geometry.x_strides[0] != 1 and columns < Q and setting(config, "columns", 0) == 0)
            ):
                continue
            buffers = buffers_of(geometry, rows, columns, channels, sizes, config)
            if buffers * block_bytes(geometry, rows, columns, channels, sizes) <= BLOCK_BYTES and buffers > 0:
                score = block_score(geometry, rows, columns, channels, sizes, buffers)
                if found == None or score < least:
                    found, least = settings_of(geometry, config, channels, sizes, (rows, columns), buffers), score
    return None if found == None else (found, least)


def buffers_of(geometry, rows, columns, channels, sizes, config):
    """Tiles of blocks that must be there together: two, or all where banks take several rounds; 0: too many."""
    parts = num_tiles(geometry, rows, columns)
    mine = div_ceil(parts, PARTS) if sizes[2] == 1 else parts
    if jobs_of_pass(geometry, channels, sizes) > PSUM_BANKS and sizes[0] * sizes[1] > 1:
        given = setting(config, "buffers", mine)
        return mine if mine <= min(given, BUFFERS_MAX) else 0
    room = BLOCK_BYTES // block_bytes(geometry, rows, columns, channels, sizes)
    return min(setting(config, "buffers", max(2, min(BUFFERS, room))), mine)


def num_tiles(geometry, rows, columns):
    """Tiles of blocks of so many rows and columns."""
    blocks = geometry.planes.out * div_ceil(geometry.rows.out, rows) * div_ceil(geometry.columns.out, columns)
    return div_ceil(blocks, nl.tile_size.pmax)


def jobs_of_pass(geometry, channels, sizes):
    """Banks of sums of a pass, at most."""
    K, C = geometry.K // geometry.groups, geometry.C // geometry.groups
    outputs, inputs = min(sizes[0], div_ceil(K, nl.tile_size.pmax)), min(sizes[1], div_ceil(C, channels))
    return outputs * inputs * banks_of_taps(geometry)


def block_score(geometry, rows, columns, channels, sizes, buffers):
    """What the busier core takes, in columns of the array: matmuls, or what moves, and what neither hides."""
    outputs, inputs, split, beside = sizes
    K, C = geometry.K // geometry.groups, geometry.C // geometry.groups
    passes = (
        geometry.groups * div_ceil(div_ceil(K, nl.tile_size.pmax), outputs) * div_ceil(div_ceil(C, channels), inputs)
    )
    parts, jobs = num_tiles(geometry, rows, columns), jobs_of_pass(geometry, channels, sizes)
    mine = passes * div_ceil(parts, PARTS) if split == 1 else div_ceil(passes, PARTS) * parts
    moved = moved_bytes(geometry, rows, columns, channels, sizes)
    bank_columns = min(BANK_COLUMNS, taps_beside(geometry, beside) * channels)
    array = mine * rows * div_ceil(columns, beside) * jobs * bank_columns
    moving = (moved[0] + moved[1]) * mine // COLUMN_BYTES
    sums = 4 * K * geometry.C * num_taps(geometry) // nl.tile_size.pmax // COLUMN_BYTES * (EXPOSED if split == 1 else 1)
    room = 2 * buffers * block_bytes(geometry, rows, columns, channels, sizes) <= BLOCK_BYTES
    if passes > PARTS and buffers == 1 and not room:
        # blocks of a pass wait for those of the pass before to be done with
        return array + moving + sums
    return max(array, moving) + min(array, moving) // 8 + sums


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
