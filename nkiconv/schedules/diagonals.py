"""Settings of `diagonals`, filter gradients by diagonals of products of a block of gy and its window of x."""

from __future__ import annotations

from dataclasses import dataclass

from .blocks_units import units_in
from .cuts import window_of
from .geometry import Geometry, num_taps
from .settings import Config, Settings, count, double, half, less, more, setting, warm_up
from .tiles import BANK_COLUMNS, P_MAX, PARTS, QUADRANT, div_ceil

#: Tiles of units that are loaded at once where nobody says.
BUFFERS = 3
_BANK = BANK_COLUMNS


def _half_up(now: int) -> int:
    return (now + 1) // 2


@dataclass(frozen=True)
class DiagonalsSettings(Settings):
    """All settings."""

    algorithm = "diagonals"
    tried = ("buffers", "groups", "down", "across", "warmup")

    rows: int = count("rows of gy of a block", 1, P_MAX)
    columns: int = count("columns of gy of a block", 1, P_MAX)
    down: int = count("blocks of a unit along rows", 1, _BANK, near=(_half_up, double))
    across: int = count("blocks of a unit along columns", 1, _BANK, near=(_half_up, double))
    beside: int = count("groups of the convolution whose channels share a product; divides them", 1, _BANK)
    side: int = count("row tiles, each with groups of its own: 1, 2 or 4", 1, 4)
    groups: int = count(
        "sets of groups that share products, of a row tile in a pass", 1, _BANK, near=(half, less, more, double)
    )
    below: int = count("groups whose sums take a part of the partitions each: 1, 2 or 4", 1, 4, default=1)
    buffers: int = count("tiles of units that are loaded at once", 1, 16, default=BUFFERS, near=(less, more))
    strips: int = count(
        "1: tiles follow each other down strips of planes and copy the rows of x that they share; 0: each loads its "
        "windows",
        0,
        1,
    )
    split: int = count("1: the cores share tiles of units, whose sums they add; 0: groups", 0, 1, default=0)
    warmup: int = warm_up(0, near=(0, 20, 40, 80))


#: Of the plain rule, at most: groups packed in columns and, where channels are apart, of a tile of rows; else channels.
GROUPS, RUN = 8, 256
#: Bytes a partition of SBUF for the units that are there together, and sums of taps.
ROOM_BYTES = 200_000
#: Columns of sums of a row tile that are gathered from at once, unless one bank has more.
READ_MOST = 1024


def config_unsupported(geometry: Geometry, config: Config) -> str:
    """What is wrong with names and values, "" if nothing is."""
    reason = DiagonalsSettings.unsupported_reason(config)
    if reason:
        return reason
    for name in ("side", "below"):
        if setting(config, name, 1) == 3:
            return f"config {name}=3: the array is cut into 1, 2 or 4 tiles; use one of these"
    rows, columns, beside = setting(config, "rows", 1), setting(config, "columns", 1), setting(config, "beside", 1)
    k, parts = geometry.K // geometry.groups * beside, P_MAX // setting(config, "below", 1)
    if geometry.groups % beside > 0:
        return f"config beside={beside}: must divide groups={geometry.groups}, which share products"
    if rows * columns * k > parts:
        return f"config rows={rows} columns={columns}: times {k} channels must be at most {parts}; use fewer"
    return ""


def completed(geometry: Geometry, config: Config) -> DiagonalsSettings:
    """All settings; where a config leaves them open, units of whole planes where these fit and are enough, in blocks of
    as many positions as fit; where channels are neighbours units of all of a core's groups."""
    given, last, P, Q = dict(config or ()), geometry.x_strides[0] == 1, geometry.rows.out, geometry.columns.out
    beside = given.get("beside", _groups_beside(geometry, config))
    block, sets = _block_of(geometry, config, beside), geometry.groups // beside
    mine = min(beside * div_ceil(sets, PARTS), div_ceil(RUN, geometry.C // geometry.groups)) if last else beside
    down = given.get("down", 1 if last else div_ceil(P, block[0]))
    across = given.get("across", div_ceil(Q, block[1]))
    while "down" not in given and down > 1 and not _fits_units(geometry, block, (down, across), mine):
        down = div_ceil(down, 2)
    while "across" not in given and across > 1 and not _fits_units(geometry, block, (down, across), mine):
        across = div_ceil(across, 2)
    units = units_in(geometry, block[0] * down, block[1] * across)
    side = given.get("side", 4 if units <= QUADRANT else (2 if units <= 2 * QUADRANT else 1))
    groups, size = div_ceil(sets, PARTS * side), P_MAX // side
    groups = groups if last else min(max(1, GROUPS // beside), groups)
    while groups > 1 and not _fits_steps(geometry, block, (down, across), groups * beside, side):
        groups = div_ceil(groups, 2)
    strips = 1 if last and P > 1 and units * block[0] * down >= P * size else 0
    sizes = {"rows": block[0], "columns": block[1], "down": down, "across": across, "beside": beside, "side": side}
    return DiagonalsSettings.read(config, **sizes, groups=groups, strips=strips)


def window_columns(geometry: Geometry, rows: int, columns: int) -> int:
    """Columns of sums of a group and a block, at most: several blocks may see all of a window together."""
    size = geometry.C // geometry.groups
    for axis, extent in ((geometry.rows, rows), (geometry.columns, columns)):
        window = window_of(axis, extent)
        size = size * (window if extent < axis.out else min(window, axis.size))
    return size


def _fits_units(geometry: Geometry, block: tuple[int, int], blocks: tuple[int, int], groups: int) -> bool:
    """Whether units are enough for a tile of QUADRANT rows, and as small as `_fits_steps` has it."""
    units = units_in(geometry, block[0] * blocks[0], block[1] * blocks[1])
    return units >= QUADRANT and _fits_steps(geometry, block, blocks, groups)


def _fits_steps(
    geometry: Geometry, block: tuple[int, int], blocks: tuple[int, int], groups: int, side: int = 1
) -> bool:
    """Whether BUFFERS units of so many blocks (down, across) and groups, and sums of two passes, are in ROOM_BYTES."""
    rows, columns = block[0] * blocks[0], block[1] * blocks[1]
    x_size = geometry.planes.taps * window_columns(geometry, rows, columns)
    size = x_size + rows * columns * (geometry.K // geometry.groups)
    taps = num_taps(geometry) * (geometry.C // geometry.groups)
    units = (BUFFERS * size * geometry.itemsize + 8 * side * taps) * groups
    return units + 8 * side * READ_MOST <= ROOM_BYTES


def _groups_beside(geometry: Geometry, config: Config) -> int:
    """As many groups as share products that take more than half of the partitions: up to GROUPS where channels are
    neighbours, half as many of rows and small planes, else one."""
    parts, P, Q = P_MAX // setting(config, "below", 1), geometry.rows.out, geometry.columns.out
    beside = GROUPS if geometry.x_strides[0] == 1 else (GROUPS // 2 if P == 1 or P * Q <= 2 * parts else 1)
    while beside > 1:
        rows, columns = _block_of(geometry, config, beside)
        size, sums = rows * columns * beside * (geometry.K // geometry.groups), window_columns(geometry, rows, columns)
        if geometry.groups % beside == 0 and size <= parts < 2 * size and beside * sums <= BANK_COLUMNS:
            return beside
        beside = beside // 2
    return 1


def _block_of(geometry: Geometry, config: Config, beside: int) -> tuple[int, int]:
    """(rows, columns) of a block of most positions whose channels and sums fit; of channels apart it ends with rows."""
    found, most, parts = (1, 1), 0, P_MAX // setting(config, "below", 1)
    k, P, Q = geometry.K // geometry.groups * beside, geometry.rows.out, geometry.columns.out
    high, wide = setting(config, "rows", 0), setting(config, "columns", 0)
    rest = Q if geometry.x_strides[0] == 1 else 0
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
