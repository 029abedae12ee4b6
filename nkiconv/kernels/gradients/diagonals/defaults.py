"""Settings of a kernel that is called without some, or all, and what is wrong with some together."""

from ...._nki import nl
from ....schedules.cuts import window_of
from ....schedules.diagonals import BUFFERS, DiagonalsSettings
from ....schedules.geometry import num_taps
from ....schedules.settings import setting
from ....schedules.tiles import BANK_COLUMNS, PARTS, QUADRANT, div_ceil
from ..defaults import units_in
from ..loads import is_channels_last

#: Of the plain rule, at most: groups beside each other and, where channels are apart, of a tile of rows; else channels.
GROUPS, RUN = 8, 256
#: Bytes a partition of SBUF for the units that are there together, and sums of taps.
ROOM_BYTES = 200_000
#: Columns of sums of a tile of rows that are gathered from at once, unless one bank has more.
READ_MOST = 1024


def diagonals_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    reason = DiagonalsSettings.refusal(config)
    if reason != "":
        return reason
    for name in ("side", "below"):
        if setting(config, name, 1) == 3:
            return f"config {name}=3: the array is cut into 1, 2 or 4 tiles; use one of these"
    rows, columns, beside = setting(config, "rows", 1), setting(config, "columns", 1), setting(config, "beside", 1)
    k, parts = geometry.K // geometry.groups * beside, nl.tile_size.pmax // setting(config, "below", 1)
    if geometry.groups % beside > 0:
        return f"config beside={beside}: must divide groups={geometry.groups}, which share products"
    if rows * columns * k > parts:
        return f"config rows={rows} columns={columns}: times {k} channels must be at most {parts}; use fewer"
    return ""


def diagonals_settings(geometry, config):
    """All settings; where a config leaves them open, units of whole planes where these fit and are enough, in blocks of
    as many positions as fit; where channels are side by side units of all of a core's groups."""
    last, P, Q = is_channels_last(geometry.x_strides), geometry.rows.out, geometry.columns.out
    beside = setting(config, "beside", groups_beside(geometry, config))
    block, sets = block_of(geometry, config, beside), geometry.groups // beside
    mine = min(beside * div_ceil(sets, PARTS), div_ceil(RUN, geometry.C // geometry.groups)) if last else beside
    down = setting(config, "down", 1 if last else div_ceil(P, block[0]))
    across = setting(config, "across", div_ceil(Q, block[1]))
    while setting(config, "down", 0) == 0 and down > 1 and not fits_units(geometry, block, (down, across), mine):
        down = div_ceil(down, 2)
    while setting(config, "across", 0) == 0 and across > 1 and not fits_units(geometry, block, (down, across), mine):
        across = div_ceil(across, 2)
    units = units_in(geometry, block[0] * down, block[1] * across)
    side = setting(config, "side", 4 if units <= QUADRANT else (2 if units <= 2 * QUADRANT else 1))
    groups, size = div_ceil(sets, PARTS * side), nl.tile_size.pmax // side
    groups = groups if last else min(max(1, GROUPS // beside), groups)
    while groups > 1 and not fits_steps(geometry, block, (down, across), groups * beside, side):
        groups = div_ceil(groups, 2)
    strips = 1 if last and P > 1 and units * block[0] * down >= P * size else 0
    sizes = {"rows": block[0], "columns": block[1], "down": down, "across": across, "beside": beside, "side": side}
    return DiagonalsSettings.read(config, **sizes, groups=groups, strips=strips)


def fits_units(geometry, block, blocks, groups):
    """Whether units are enough for a tile of QUADRANT rows, and as small as `fits_steps` has it."""
    units = units_in(geometry, block[0] * blocks[0], block[1] * blocks[1])
    return units >= QUADRANT and fits_steps(geometry, block, blocks, groups)


def fits_steps(geometry, block, blocks, groups, side=1):
    """Whether BUFFERS units of so many blocks (down, across) and groups, and sums of two passes, are in ROOM_BYTES."""
    size = unit_elements(geometry, block[0] * blocks[0], block[1] * blocks[1])
    taps = num_taps(geometry) * (geometry.C // geometry.groups)
    units = (BUFFERS * (size[0] + size[1]) * geometry.itemsize + 8 * side * taps) * groups
    return units + 8 * side * READ_MOST <= ROOM_BYTES


def unit_elements(geometry, rows, columns):
    """Elements of x, at all planes of taps, and of gy of a unit of so many rows and columns, of a group."""
    x_size = geometry.planes.taps * window_columns(geometry, rows, columns)
    return x_size, rows * columns * (geometry.K // geometry.groups)


def groups_beside(geometry, config):
    """As many groups as share products that take more than half of the partitions: up to GROUPS where channels are side
    by side, half as many of rows and small planes, else one."""
    parts, P, Q = nl.tile_size.pmax // setting(config, "below", 1), geometry.rows.out, geometry.columns.out
    beside = GROUPS if is_channels_last(geometry.x_strides) else (GROUPS // 2 if P == 1 or P * Q <= 2 * parts else 1)
    while beside > 1:
        rows, columns = block_of(geometry, config, beside)
        size, sums = rows * columns * beside * (geometry.K // geometry.groups), window_columns(geometry, rows, columns)
        if geometry.groups % beside == 0 and size <= parts and parts < 2 * size and beside * sums <= BANK_COLUMNS:
            return beside
        beside = beside // 2
    return 1


def block_of(geometry, config, beside):
    """(rows, columns) of a block of most positions whose channels and sums fit; of channels apart it ends with rows."""
    found, most, parts = (1, 1), 0, nl.tile_size.pmax // setting(config, "below", 1)
    k, P, Q = geometry.K // geometry.groups * beside, geometry.rows.out, geometry.columns.out
    high, wide = setting(config, "rows", 0), setting(config, "columns", 0)
    rest = Q if is_channels_last(geometry.x_strides) else 0
    for rows in range(max(1, high), (high if high > 0 else min(P, parts)) + 1):
        columns = wide if wide > 0 else min(Q, parts // (rows * k))
        while columns > max(1, wide) and (
            Q % columns > rest or beside * window_columns(geometry, rows, columns) > BANK_COLUMNS
        ):
            columns = columns - 1
        size = P * Q // (div_ceil(P, rows) * div_ceil(Q, columns)) if columns > 0 and rows * columns * k <= parts else 0
        if size > most and beside * window_columns(geometry, rows, columns) <= BANK_COLUMNS:
            found, most = (rows, columns), size
    return setting(config, "rows", found[0]), setting(config, "columns", found[1])


def window_columns(geometry, rows, columns):
    """Columns of sums of a group and a block, at most: several blocks may see all of a window together."""
    size = geometry.C // geometry.groups
    for some in ((geometry.rows, rows), (geometry.columns, columns)):
        axis, extent = some
        window = window_of(axis, extent)
        size = size * (window if extent < axis.out else min(window, axis.size))
    return size
