"""Settings of grouped conv2d."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting, settings_refusal
from ..._warm import WARM_UP_MAX
from .units import make_grouped

#: Rows of a tile of the array that are worth it, and the outputs of a block: with both, what lies in the columns begins
#: where engines may address partitions.
TILE_ROWS = (32, 64)
BLOCKS = ((2, 2), (1, 4), (4, 1), (1, 2), (2, 1))
GROUPED_X_BYTES = 12_288
GROUPED_X_BUFFERS = 4
GROUPED_WARM_UP = 24
#: Outputs of a channel from which on fewer elements of x an output are worth larger stationaries.
MANY_OUTPUTS = 8192


@dataclass(frozen=True)
class GroupedConfig(nl.NKIObject):
    """All settings."""

    #: rows of a tile of the array, one of TILE_ROWS; it and the next two are given together
    rows: int
    #: rows and columns of outputs of a block, one of BLOCKS
    height: int
    width: int
    #: bytes a partition of x of one band, from 256; rows of one block are there whatever this is
    x_bytes: int
    #: buffers of x that are on their way or in use, from 2 to 128
    buffers: int
    #: matmuls of 128 columns on zeros while the first filters are on their way, from 0 to WARM_UP_MAX
    warmup: int


def grouped_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    most, whole = nl.tile_size.pmax, nl.tile_size.total_available_sbuf_size
    table = (("rows", (1, most)), ("height", (1, most)), ("width", (1, most)), ("buffers", (2, most)))
    table = table + (("x_bytes", (256, whole)), ("warmup", (0, WARM_UP_MAX)))
    reason = settings_refusal(config, table, "grouped")
    rows, height, width = setting(config, "rows", 0), setting(config, "height", 0), setting(config, "width", 0)
    if reason != "" or (rows, height, width) == (0, 0, 0):
        return reason
    given = f"config rows={rows} height={height} width={width}"
    if rows not in TILE_ROWS or (height, width) not in BLOCKS:
        return f"{given}: given together, rows one of {TILE_ROWS}, (height, width) one of {BLOCKS}"
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    if per_c > rows or per_k > most // (height * width):
        return f"{given}: a group takes {per_c} rows and height * width * {per_k} of {most} columns"
    return ""


def grouped_settings(geometry, extras, config):
    """All settings: of sizes that a config leaves open, large blocks where there are many outputs, small ones if none
    fits."""
    more = geometry.K > geometry.C
    many = geometry.planes.out * geometry.rows.out * geometry.columns.out >= MANY_OUTPUTS
    wide = geometry.columns.taps > 1
    rows = TILE_ROWS[0] if more or (many and (wide or geometry.C <= TILE_ROWS[0])) else TILE_ROWS[1]
    found = sized_grouped(config, rows, 2, 2 if many and wide and not more else 1)
    fits = setting(config, "rows", 0) > 0 or make_grouped(geometry, found, extras.residual) != None
    for other_rows in TILE_ROWS:
        for block in range(len(BLOCKS) - 1, -1, -1):
            if not fits:
                found = sized_grouped(config, other_rows, BLOCKS[block][0], BLOCKS[block][1])
                fits = make_grouped(geometry, found, extras.residual) != None
    return found


def sized_grouped(config, rows, height, width):
    """All settings, sizes as given here where a config has none."""
    return GroupedConfig(
        rows=setting(config, "rows", rows),
        height=setting(config, "height", height),
        width=setting(config, "width", width),
        x_bytes=setting(config, "x_bytes", GROUPED_X_BYTES),
        buffers=setting(config, "buffers", GROUPED_X_BUFFERS),
        warmup=setting(config, "warmup", GROUPED_WARM_UP),
    )
