"""Settings and Schedule of `diagonals`, filter gradients of few channels a group: sums of all pairs of a block of gy
and the window of x around it.

    dw[k, c, r, s] = sum over positions (p, q) of a block of  out[(p, q, k), (c, p * stride + r * dilation, ...)],
    out[(p, q, k), (c, h, w)] = sum over units and blocks of  gy[unit, p, q, k] * x[unit, c, h, w]

One matmul takes a block of all units at once: gy of its positions is the stationary [units, (p, q, k)], the window of x
the moving operand [units, (c, h, w)], both views of SBUF; all blocks are added in one bank of PSUM. The sums that are
wanted lie on skewed diagonals: a gather leaves [(p, q, k), taps] of many groups, and one matmul with zeros and ones
adds up their positions.

K: units; M: positions of a block and output channels; N: the window of x; evacuation: copies and gathers.
A unit is a part of a plane of gy, of several blocks, on a partition; of few, 2 or 4 row tiles work on as many groups at
once (setting `side`). Groups that leave columns of the Tensor Engine empty share products (`beside`), or banks
(`below`). Windows are clipped where x ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .blocks import Run, Tile, planes_of, runs_of, tiles_of_units, units_in
from .blocks_schedule import gradient_unsupported, spread_unsupported
from .cuts import window_of
from .geometry import Geometry, instructions_unsupported, num_taps
from .settings import Config, Settings, count, double, half, less, more, once_a_config, setting, warm_up
from .tiles import BANK_COLUMNS, P_MAX, PARTS, QUADRANT, SBUF_BYTES, Part, cut_at, div_ceil, fits_sbuf

#: Tiles of units that are loaded at once by default.
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


#: Channels of each of several groups, and of a dense filter, up to which a bare kernel takes diagonals.
FEW_CHANNELS, FEW_DENSE = 16, 8
#: Tiles of sums as evacuated, of a row tile, that are filled in rotation.
READS = 2
#: Sets of groups from which they are the partitions of what is stored, if no fewer than taps, each a matmul then.
MANY_SETS = 32


@dataclass(frozen=True)
class DiagonalsSchedule:
    """Passes that the cores share, or with split tiles of units that they share.

    Attributes:
        bias: whether the bias's gradient is wanted.
        k, c: output and input channels of the groups that share a product, a set; own: input channels of one group.
        window: (rows, columns) of x of a block; shared: rows of a unit's window that are those of the unit above it.
        h, w: (first, how many) of the rows and columns of a unit's window that are inside x for any unit; seen: the
            same of a block's window.
        columns: of sums of a set; each: of them that are gathered; per_bank: accumulators of a bank; per_gather: of a
        gather.
        transposed: whether sets are the partitions of what is stored.
        strips: of each tile (number of its strip, or its own, whether its units are below those of the tile before).
        passes: groups (first, how many) of each row tile.
    """

    geometry: Geometry
    settings: DiagonalsSettings
    bias: bool
    k: int
    c: int
    own: int
    window: tuple[int, int]
    shared: int
    h: Part
    w: Part
    seen: tuple[Part, Part]
    columns: int
    each: int
    per_bank: int
    per_gather: int
    transposed: bool
    tiles: tuple[Tile, ...]
    strips: tuple[tuple[int, bool], ...]
    passes: tuple[tuple[Part, ...], ...]
    split: bool

    @property
    def positions(self) -> int:
        """Rows of products of a set."""
        return self.settings.rows * self.settings.columns * self.k

    @property
    def rows_of_sums(self) -> int:
        """Partitions of sums: of one set, or of those below each other."""
        return self.positions if self.settings.below == 1 else P_MAX

    def accumulators_of(self, part: Part) -> int:
        """Accumulators of a row tile: of sets below each other, and a plane of taps."""
        return div_ceil(part[1], self.settings.below) * self.geometry.planes.taps


@once_a_config
def build(geometry: Geometry, config: Config, bias: bool, cores: int) -> tuple[DiagonalsSchedule | None, str]:
    """(Schedule on `cores` cores, "") or (None, why not), built once. bias: whether its gradient is wanted too."""
    reason = gradient_unsupported(geometry) or diagonals_unsupported(geometry) or config_unsupported(geometry, config)
    if reason:
        return None, reason
    settings = completed(geometry, config)
    plan = _scheduled(geometry, settings, bias)
    parts = P_MAX // settings.below
    if plan.columns > BANK_COLUMNS or plan.positions > parts:
        return None, (
            f"config rows={settings.rows} columns={settings.columns} beside={settings.beside} below={settings.below}: "
            f"{plan.positions} rows and {plan.columns} columns of sums, of {parts} and {BANK_COLUMNS}; use fewer"
        )
    needed = needed_bytes(plan)
    if not fits_sbuf(needed):
        return None, (
            f"config rows={settings.rows} down={settings.down} columns={settings.columns} across={settings.across} "
            f"groups={settings.groups}: diagonals need {needed} bytes per partition of SBUF for their units, there are "
            f'{SBUF_BYTES}; use smaller ones, or algorithm="blocks"'
        )
    reason = instructions_unsupported(geometry, "a filter gradient by diagonals", instructions(plan, cores))
    return (None, reason) if reason else (plan, "")


def takes_diagonals(geometry: Geometry, bias: bool) -> bool:
    """Whether a bare kernel takes diagonals: where groups have few channels."""
    few = FEW_DENSE if geometry.groups == 1 else FEW_CHANNELS * geometry.groups
    return max(geometry.K, geometry.C) <= few and build(geometry, None, bias, 1)[1] == ""


def diagonals_unsupported(geometry: Geometry) -> str:
    """Why diagonals do not take a geometry, whatever the settings; "" if they do."""
    k, c = geometry.K // geometry.groups, geometry.C // geometry.groups
    if k > P_MAX:
        return f'K={geometry.K}, groups={geometry.groups}: diagonals take {P_MAX} of a group; use algorithm="blocks"'
    needed = c * geometry.rows.taps * geometry.columns.taps
    if needed > BANK_COLUMNS:
        return (
            f"filters of {num_taps(geometry)} taps, {c} input channels a group: diagonals need {needed} columns of "
            f'sums, a bank has {BANK_COLUMNS}; use algorithm="blocks"'
        )
    return spread_unsupported(geometry, "diagonals", 'algorithm="blocks"')


def _scheduled(geometry: Geometry, config: DiagonalsSettings, bias: bool) -> DiagonalsSchedule:
    """The Schedule of settings."""
    P, Q = geometry.rows, geometry.columns
    rows = runs_of(P, config.rows * config.down, (0, P.taps))
    columns = runs_of(Q, config.columns * config.across, (0, Q.taps))
    strips, tiles = _strips_of_units(geometry, rows, columns, config)
    window = window_of(P, config.rows), window_of(Q, config.columns)
    own, k = geometry.C // geometry.groups, geometry.K // geometry.groups * config.beside
    c, h, w = own * config.beside, _seen_of(rows), _seen_of(columns)
    seen = (
        _seen_of_blocks(config.rows * P.stride, config.down, window[0], h),
        _seen_of_blocks(config.columns * Q.stride, config.across, window[1], w),
    )
    total, sets = c * seen[0][1] * seen[1][1], div_ceil(config.groups, config.below)
    accumulators, each = sets * geometry.planes.taps, own * P.taps * Q.taps
    per_bank = min(max(1, BANK_COLUMNS // total), accumulators)
    banks = min(div_ceil(accumulators, per_bank), max(1, READ_MOST // (c * window[0] * window[1] * per_bank)))
    return DiagonalsSchedule(
        geometry=geometry,
        settings=config,
        bias=bias,
        k=k,
        c=c,
        own=own,
        window=window,
        shared=max(0, h[1] - config.rows * config.down * P.stride),
        h=h,
        w=w,
        seen=seen,
        columns=total,
        each=each,
        per_bank=per_bank,
        per_gather=banks * per_bank,
        transposed=sets >= max(MANY_SETS, each) and k * config.below * each <= BANK_COLUMNS,
        tiles=tiles,
        strips=strips,
        passes=_passes_of(geometry.groups // config.beside, config),
        split=config.split == 1 and len(tiles) >= PARTS,
    )


def _strips_of_units(
    geometry: Geometry, rows: Sequence[Run], columns: Sequence[Run], config: DiagonalsSettings
) -> tuple[tuple[tuple[int, bool], ...], tuple[Tile, ...]]:
    """(strips, tiles of units), down one strip after the other."""
    planes, most = planes_of(geometry.planes), P_MAX // config.side
    if config.strips == 0:
        tiles = tiles_of_units(planes, rows, columns, most)
        return tuple((index, False) for index in range(len(tiles))), tiles
    lines = [replace(row, first=row.first + index, count=1) for row in rows for index in range(row.count)]
    blocks = [tiles_of_units(planes, [line], columns, most) for line in lines]
    order = [(strip, index) for strip in range(len(blocks[0])) for index in range(len(blocks))]
    return tuple((strip, index > 0) for strip, index in order), tuple(blocks[index][strip] for strip, index in order)


def _seen_of(runs: Sequence[Run]) -> Part:
    """(first, how many) elements of the windows of units that are inside x for any of them; one at least."""
    some = [run for run in runs if run.high > run.low] or runs[:1]
    low = min(run.low for run in some)
    return low, max(1, max(run.high for run in some) - low)


def _seen_of_blocks(step: int, count: int, window: int, there: Part) -> Part:
    """(first, how many) elements of the windows of so many blocks of a unit, `step` apart, that are there for any."""
    low, high = window, 0
    for index in range(count):
        first = max(index * step, there[0])
        end = min(index * step + window, there[0] + there[1])
        if first < end:
            low, high = min(low, first - index * step), max(high, end - index * step)
    return (low, high - low) if low < high else (0, 1)


def _passes_of(groups: int, config: DiagonalsSettings) -> tuple[tuple[Part, ...], ...]:
    """Groups of each row tile of each pass."""
    return tuple(
        tuple((first + at, some) for at, some in cut_at(count, div_ceil(count, config.side)))
        for first, count in cut_at(groups, config.side * config.groups)
    )


def needed_bytes(plan: DiagonalsSchedule) -> int:
    """Bytes a partition, at most."""
    settings, geometry = plan.settings, plan.geometry
    x_size = geometry.planes.taps * plan.h[1] * plan.w[1] * plan.c
    y_size = settings.rows * settings.down * settings.columns * settings.across * plan.k
    units = settings.buffers * (x_size + y_size) * settings.groups * geometry.itemsize
    accumulators = div_ceil(settings.groups, settings.below) * geometry.planes.taps
    # as evacuated; as gathered, of two passes, and to be added; what is stored
    reads = READS * plan.per_gather * plan.c * plan.window[0] * plan.window[1]
    sums = reads + plan.per_gather * plan.each + 2 * accumulators * plan.each
    # indices, as fp32 too; which positions and channels are a partition's; zeros
    constants = 2 * plan.per_gather * plan.each + 5 * P_MAX
    # of biases, of two passes, and to be added
    constants += 3 * settings.groups * plan.k if plan.bias else 0
    return units + 4 * (settings.side * sums + constants + 4 * BANK_COLUMNS)


def instructions(plan: DiagonalsSchedule, cores: int) -> int:
    """Instructions of the busiest core, at most."""
    settings, regions, count = plan.settings, sum(map(len, plan.tiles)), len(plan.tiles)
    parts, T, accumulators = settings.side, plan.geometry.planes.taps, settings.groups * plan.geometry.planes.taps
    # zeros first, where not all sums are a product's
    products = count * (settings.down * settings.across + 1) * accumulators * parts
    reads = count * accumulators * parts * 4
    # rows of blocks of the first and the last step may come one by one
    loads = (regions * parts * (settings.down if settings.groups == 1 else 1) + 4 * count) * (T + 1)
    stores = 8 * accumulators + (plan.each * T * div_ceil(settings.groups, P_MAX) if plan.transposed else 0)
    total = products + reads + loads + stores * parts + 8 * count
    passes = len(plan.passes) if plan.split else div_ceil(len(plan.passes), cores)
    return (div_ceil(total, cores) + stores * parts if plan.split else total) * passes + settings.warmup + 128
