"""Settings of diagonals, and what a bare kernel takes where they are left open."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._tiles import BANK_COLUMNS, PARTS, QUADRANT, div_ceil
from ..._warm import WARM_UP_MAX
from ...conv.cuts import window_of
from ..config import COLUMN_BYTES, EXTENTS, choices

#: Steps that are there together, at most, and those that the rule takes; units of a partition, at most.
STEPS_MAX, STEPS, TOGETHER_MAX = 16, 3, 64
#: Groups, and units of a partition, that the rule tries.
GROUPS, TOGETHER = (1, 2, 4, 8, 12, 16, 32, 64), (1, 2, 4)
#: Matmuls on zeros before the first others.
WARM_UP_STEPS = 40
#: Bytes a partition of SBUF for the units that are there together, and sums of taps.
ROOM_BYTES = 200_000
#: Columns of sums of a tile of rows that are gathered from at once, unless one bank has more.
READ_MOST = 1024
#: Columns that pass between two matmuls on different tiles of rows; columns of the array that a read-out takes beside
#: its own, a gathered element, and the end of a pass for each tile of rows.
ROW_TILE_COLUMNS, READ_COLUMNS, GATHER_COLUMNS, END_COLUMNS = 64, 64, 16, 512
#: Bytes of a run in HBM that it takes as long to begin, and as long as which it takes at least (trn2.toml, dma).
RUN_START_BYTES, RUN_LEAST_BYTES = 128, 286


@dataclass(frozen=True)
class DiagonalsConfig(nl.NKIObject):
    """All settings."""

    #: rows and columns of gy of a block, from 1
    rows: int
    columns: int
    #: blocks of a unit in rows and in columns, from 1
    down: int
    across: int
    #: tiles of the array's rows side by side, each with groups of its own: 1, 2 or 4
    side: int
    #: groups of the convolution of a tile of rows in a pass, from 1
    groups: int
    #: tiles of units that are there together, whose sums are read out together, from 1
    together: int
    #: of these, how many are there at once, one of them at work, from 1
    buffers: int
    #: 1: x and gy are copied first, so that the pixels of a plane lie side by side, or 0: they are taken as they lie
    planes: int
    #: 1: the cores share tiles of units, whose sums they add, or 0: groups
    split: int
    #: matmuls of 128 columns on zeros before the first others, from 0 to WARM_UP_MAX
    warmup: int


def diagonals_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    most, parts = BANK_COLUMNS, nl.tile_size.pmax
    table = (("rows", (1, parts)), ("columns", (1, parts)), ("down", (1, most)), ("across", (1, most)))
    table = table + (("side", (1, 4)), ("groups", (1, most)), ("together", (1, TOGETHER_MAX)))
    table = table + (("buffers", (1, STEPS_MAX)), ("planes", (0, 1)), ("split", (0, 1)), ("warmup", (0, WARM_UP_MAX)))
    reason = settings_refusal(config, table, "diagonals")
    if reason == "" and setting(config, "side", 1) == 3:
        return "config side=3: the array's rows are 1, 2 or 4 tiles; use one of these"
    rows, columns, k = setting(config, "rows", 1), setting(config, "columns", 1), geometry.K // geometry.groups
    if reason == "" and rows * columns * k > parts:
        return f"config rows={rows} columns={columns}: times {k} channels must be at most {parts}; use fewer"
    return reason


def diagonals_settings(geometry, config, bias, planes):
    """All settings, of copies or not (planes); what a config leaves open is what takes least, of some of each, by
    `diagonals_score`."""
    found, least, P, Q = None, 0, geometry.rows.out, geometry.columns.out
    last = geometry.x_strides[0] == 1 and geometry.C > 1
    tiles = div_ceil(geometry.planes.out * P * Q, QUADRANT)
    for side in choices(config, "side", (1, 2, 4)):
        most = div_ceil(geometry.groups, side)
        several = choices(config, "groups", up_to(most, (div_ceil(most, PARTS),) + GROUPS))
        for block in blocks_of(geometry, config, side, bias):
            down, across = div_ceil(P, block[0]), div_ceil(Q, block[1])
            for i in choices(config, "down", parts_of(down)):
                for j in choices(config, "across", parts_of(across) if last else (across,)):
                    for groups in several:
                        for together in choices(config, "together", up_to(tiles, TOGETHER)):
                            one = settings_of_diagonals(config, side, block, (i, j), (groups, together, planes))
                            score = diagonals_score(geometry, one, bias)
                            if found == None or score < least:
                                found, least = one, score
    return found


def parts_of(count):
    """How many blocks of so many a unit may have."""
    return up_to(count, (count, div_ceil(count, 2), div_ceil(count, 4), 4, 3, 2, 1))


def up_to(most, values):
    """Values of at most that much, each once."""
    found = ()
    for value in values:
        if value <= most and value not in found:
            found = found + (value,)
    return found


def settings_of_diagonals(config, side, block, blocks, more):
    """All settings; as given here where a config has none. more: (groups, together, planes)."""
    return DiagonalsConfig(
        rows=block[0],
        columns=block[1],
        down=blocks[0],
        across=blocks[1],
        side=side,
        groups=more[0],
        together=more[1],
        planes=more[2],
        buffers=setting(config, "buffers", STEPS),
        split=setting(config, "split", 0),
        warmup=setting(config, "warmup", WARM_UP_STEPS),
    )


def blocks_of(geometry, config, side, bias):
    """(rows, columns) of blocks: for each number of rows those columns that take least of the array."""
    found, P, Q, k = [], geometry.rows.out, geometry.columns.out, geometry.K // geometry.groups
    for rows in choices(config, "rows", EXTENTS):
        best, least = 0, 0
        for columns in choices(config, "columns", EXTENTS + (Q,)):
            sums = window_columns(geometry, rows, columns, bias)
            fits = rows * columns * k <= nl.tile_size.pmax and sums <= BANK_COLUMNS and rows <= P and columns <= Q
            if fits or (setting(config, "rows", 0) > 0 and setting(config, "columns", 0) > 0):
                work = div_ceil(P, rows) * div_ceil(Q, columns) * max(sums, side * ROW_TILE_COLUMNS)
                if best == 0 or work < least:
                    best, least = columns, work
        if best > 0:
            found.append((rows, best))
    return found if len(found) > 0 else [(setting(config, "rows", 1), setting(config, "columns", 1))]


def window_columns(geometry, rows, columns, bias):
    """Columns of sums of a group and a block, at most."""
    height = min(window_of(geometry.rows, rows), geometry.rows.size)
    width = min(window_of(geometry.columns, columns), geometry.columns.size)
    return geometry.C // geometry.groups * height * width + (1 if bias else 0)


def diagonals_score(geometry, one, bias):
    """What the busier core takes, in columns of the array: matmuls, what moves, or sums that are read out; and of the
    first and the last step what hides nothing. Far more where there is no room."""
    k, c, T, groups = (
        geometry.K // geometry.groups,
        geometry.C // geometry.groups,
        geometry.planes.taps,
        geometry.groups,
    )
    rows, columns = one.rows * one.down, one.columns * one.across
    units = geometry.planes.out * div_ceil(geometry.rows.out, rows) * div_ceil(geometry.columns.out, columns)
    tiles = div_ceil(units, nl.tile_size.pmax // one.side)
    steps = div_ceil(tiles, one.together)
    passes = div_ceil(div_ceil(groups, one.side * one.groups), 1 if one.split == 1 else PARTS)
    if one.split == 1:
        steps = div_ceil(steps, PARTS)
    height = min(window_of(geometry.rows, rows), geometry.rows.size)
    width = min(window_of(geometry.columns, columns), geometry.columns.size)
    x_size, y_size = T * height * width * c, rows * columns * k
    sums = window_columns(geometry, one.rows, one.columns, bias)
    taps = c * geometry.rows.taps * geometry.columns.taps
    products = one.groups * T * one.together * one.down * one.across
    array = products * max(sums, one.side * ROW_TILE_COLUMNS) + one.side * END_COLUMNS
    runs = run_penalty(geometry.x_strides, height * width, width, (one.groups * c, geometry.C), geometry.hbm_itemsize)
    moving = x_size * runs * geometry.hbm_itemsize
    runs = run_penalty(geometry.y_strides, rows * columns, columns, (one.groups * k, geometry.K), geometry.hbm_itemsize)
    moving = (moving + y_size * runs * geometry.hbm_itemsize) // 8 * one.groups * one.together // COLUMN_BYTES
    reads = one.side * (one.groups * T * max(sums + READ_COLUMNS, taps * GATHER_COLUMNS) + END_COLUMNS)
    needed = (x_size + y_size) * one.groups * one.together * geometry.itemsize * min(one.buffers, steps * passes)
    over = max(0, needed + 8 * one.side * (one.groups * T * taps + 2 * READ_MOST) - ROOM_BYTES)
    step = max(array, max(moving, reads))
    return step * steps * passes + array + moving + reads + over * 1024


def run_penalty(strides, plane, width, channels, item):
    """Eight times how much longer elements take to come in runs as short as theirs."""
    run = plane * item
    if strides[0] == 1:
        run = channels[0] * item if channels[0] < channels[1] else width * channels[1] * item
    return max(8, 6 * max(run + RUN_START_BYTES, RUN_LEAST_BYTES) // run)
