"""The filter gradient of few channels a group: sums of all pairs of a block of gy and the window of x around it.

    dw[k, c, r, s] = sum over positions (p, q) of a block of  out[(p, q, k), (c, p * stride + r * dilation, ...)],
    out[(p, q, k), (c, h, w)] = sum over units and blocks of  gy[unit, p, q, k] * x[unit, c, h, w]

One matmul takes a block of all units at once: gy of its positions is the stationary [units, (p, q, k)], the window of x
the moving operand [units, (c, h, w)], both views of what lies in SBUF; all blocks are added in one bank of PSUM. The
sums that are wanted lie on skewed diagonals: a gather (`fold`) leaves [(p, q, k), taps] of many groups, and one matmul
with zeros and ones adds up their positions.

A unit is a part of a plane of gy, of several blocks, on a partition; of few, 2 or 4 tiles of the array's rows work
side by side on as many groups (setting `side`). Groups that leave columns of the array empty share products
(`beside`), or banks (`below`). Windows are clipped where x ends.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import window_of
from ....schedules.geometry import Geometry, instructions_refusal, num_taps
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut_at, div_ceil, fits_sbuf
from ..plan import spread_refusal, weight_refusal
from ..units import Run, planes_of, runs_of, tiles_of_units
from .defaults import READ_MOST, diagonals_config_refusal, diagonals_settings

#: Channels of each of several groups, and of a dense filter, up to which a bare kernel takes diagonals.
FEW_CHANNELS, FEW_DENSE = 16, 8
#: Tiles of sums as read out, of a tile of rows, that are filled in turn.
READS = 2
#: Sets of groups from which they are the partitions of what is stored, if no fewer than taps, each a matmul then.
MANY_SETS = 32


@dataclass
class DiagonalsPlan(nl.NKIObject):
    """Passes that the cores share, groups (first, how many) for each tile of rows, or with split tiles of units that
    they share.

    k, c: output and input channels of the groups that share a product, a set; own: input channels of one group;
    window: (rows, columns) of x of a block; shared: rows of a unit's window that are those of the unit above it; h, w:
    (first, how many) of the rows and columns of a unit's window that are inside x for any unit; seen: the same of a
    block's window; columns: of sums of a set; each: of them that are gathered; per_bank: jobs of a bank; per_gather:
    of a gather; turned: whether sets are the partitions of what is stored.
    """

    geometry: Geometry
    settings: object
    bias: bool
    k: int
    c: int
    own: int
    window: tuple
    shared: int
    h: tuple
    w: tuple
    seen: tuple
    columns: int
    each: int
    per_bank: int
    per_gather: int
    turned: bool
    tiles: list
    strips: list
    passes: list
    split: bool


def make_diagonals_plan(geometry, config, bias):
    """The DiagonalsPlan of DiagonalsSettings. bias: whether its gradient is wanted too."""
    rows_axis, columns_axis = geometry.rows, geometry.columns
    rows = runs_of(rows_axis, config.rows * config.down, (0, rows_axis.taps))
    columns = runs_of(columns_axis, config.columns * config.across, (0, columns_axis.taps))
    strips, tiles = strips_of_units(geometry, (rows, columns), config)
    window = window_of(rows_axis, config.rows), window_of(columns_axis, config.columns)
    own = geometry.C // geometry.groups
    c = own * config.beside
    h, w = seen_of(rows), seen_of(columns)
    seen = seen_of_blocks(config.rows * rows_axis.stride, config.down, window[0], h)
    seen = seen, seen_of_blocks(config.columns * columns_axis.stride, config.across, window[1], w)
    total, sets = c * seen[0][1] * seen[1][1], div_ceil(config.groups, config.below)
    jobs = sets * geometry.planes.taps
    each, per_bank = (own * rows_axis.taps * columns_axis.taps, min(max(1, BANK_COLUMNS // total), jobs))
    return DiagonalsPlan(
        geometry=geometry,
        settings=config,
        bias=bias,
        k=geometry.K // geometry.groups * config.beside,
        c=c,
        own=own,
        window=window,
        shared=max(0, h[1] - config.rows * config.down * rows_axis.stride),
        h=h,
        w=w,
        seen=seen,
        columns=total,
        each=each,
        per_bank=per_bank,
        per_gather=min(div_ceil(jobs, per_bank), max(1, READ_MOST // (c * window[0] * window[1] * per_bank)))
        * per_bank,
        turned=sets >= max(MANY_SETS, each)
        and geometry.K // geometry.groups * config.beside * config.below * each <= BANK_COLUMNS,
        tiles=tiles,
        strips=strips,
        passes=passes_of(geometry.groups // config.beside, config),
        split=config.split == 1 and len(tiles) >= PARTS,
    )


def strips_of_units(geometry, runs, config):
    """(strips, tiles of units), down one strip after the other: of each tile (number of its strip, or its own, whether
    its units are below those of the tile before). runs: of rows and of columns."""
    planes, most, (rows, columns) = planes_of(geometry.planes), nl.tile_size.pmax // config.side, runs
    if config.strips == 0:
        tiles, strips = tiles_of_units(planes, rows, columns, most), []
        for index in range(len(tiles)):
            strips.append((index, False))
        return strips, tiles
    blocks, strips, tiles = [], [], []
    for row in rows:
        for index in range(row.count):
            first = row.first + index
            one = Run(first=first, count=1, apart=row.apart, extent=row.extent, low=row.low, high=row.high)
            blocks.append(tiles_of_units(planes, [one], columns, most))
    for strip in range(len(blocks[0])):
        for index in range(len(blocks)):
            strips.append((strip, index > 0))
            tiles.append(blocks[index][strip])
    return strips, tiles


def seen_of(runs):
    """(first, how many) elements of the windows of units that are inside x for any of them; one at least."""
    low, high = runs[0].low, runs[0].high
    for run in runs:
        if run.high > run.low:
            low, high = (min(low, run.low), max(high, run.high)) if high > low else (run.low, run.high)
    return low, max(1, high - low)


def seen_of_blocks(step, count, window, there):
    """(first, how many) elements of the windows of so many blocks of a unit, `step` apart, that are there for any."""
    low, high = window, 0
    for index in range(count):
        first = max(index * step, there[0])
        end = min(index * step + window, there[0] + there[1])
        if first < end:
            low, high = min(low, first - index * step), max(high, end - index * step)
    return (low, high - low) if low < high else (0, 1)


def passes_of(groups, config):
    """Groups of each pass."""
    found = []
    for some in cut_at(groups, config.side * config.groups):
        parts = []
        for part in cut_at(some[1], div_ceil(some[1], config.side)):
            parts.append((some[0] + part[0], part[1]))
        found.append(parts)
    return found


def plan_diagonals(geometry, config, bias, cores):
    """(DiagonalsPlan, "") on `cores` cores, or (None, why not)."""
    reason = weight_refusal(geometry)
    if reason == "":
        reason = diagonals_refusal(geometry)
    if reason == "":
        reason = diagonals_config_refusal(geometry, config)
    if reason != "":
        return None, reason
    settings = diagonals_settings(geometry, config)
    plan = make_diagonals_plan(geometry, settings, bias)
    parts = nl.tile_size.pmax // settings.below
    if plan.columns > BANK_COLUMNS or positions_of(plan) > parts:
        return None, (
            f"config rows={settings.rows} columns={settings.columns} beside={settings.beside} below={settings.below}: "
            f"{positions_of(plan)} rows and {plan.columns} columns of sums, of {parts} and {BANK_COLUMNS}; use fewer"
        )
    needed = diagonals_bytes(plan)
    if not fits_sbuf(needed):
        return None, (
            f"config rows={settings.rows} down={settings.down} columns={settings.columns} across={settings.across} "
            f"groups={settings.groups}: diagonals need {needed} bytes per partition of SBUF for their units, there are "
            f'{nl.tile_size.total_available_sbuf_size}; use smaller ones, or algorithm="blocks"'
        )
    reason = instructions_refusal(geometry, "a filter gradient by diagonals", diagonals_instructions(plan, cores))
    return (plan, "") if reason == "" else (None, reason)


def takes_diagonals(geometry, bias):
    """Whether a bare kernel takes diagonals: where groups have few channels."""
    few = FEW_DENSE if geometry.groups == 1 else FEW_CHANNELS * geometry.groups
    return max(geometry.K, geometry.C) <= few and plan_diagonals(geometry, None, bias, 1)[1] == ""


def diagonals_refusal(geometry):
    """Why diagonals do not take a geometry, whatever the settings; "" if they do."""
    k, c, most = geometry.K // geometry.groups, geometry.C // geometry.groups, nl.tile_size.pmax
    if k > most:
        return f'K={geometry.K}, groups={geometry.groups}: diagonals take {most} of a group; use algorithm="blocks"'
    needed = c * geometry.rows.taps * geometry.columns.taps
    if needed > BANK_COLUMNS:
        return (
            f"filters of {num_taps(geometry)} taps, {c} input channels a group: diagonals need {needed} columns of "
            f'sums, a bank has {BANK_COLUMNS}; use algorithm="blocks"'
        )
    return spread_refusal(geometry, "diagonals", 'algorithm="blocks"')


def unit_bytes(geometry, plan):
    """Bytes a partition of what there is of x and gy of a unit, of a pass."""
    settings = plan.settings
    x_size = geometry.planes.taps * plan.h[1] * plan.w[1] * plan.c
    y_size = settings.rows * settings.down * settings.columns * settings.across * plan.k
    return (x_size + y_size) * settings.groups * geometry.itemsize


def diagonals_bytes(plan):
    """Bytes a partition, at most."""
    settings, geometry = plan.settings, plan.geometry
    jobs = div_ceil(settings.groups, settings.below) * geometry.planes.taps
    units = settings.buffers * unit_bytes(geometry, plan)
    # as read out; as gathered, of two passes, and to be added; what is stored
    sums = (
        READS * plan.per_gather * plan.c * plan.window[0] * plan.window[1]
        + plan.per_gather * plan.each
        + 2 * jobs * plan.each
    )
    # indices, as fp32 too; which positions and channels are a partition's; zeros
    constants = 2 * plan.per_gather * plan.each + 5 * nl.tile_size.pmax
    # of biases, of two passes, and to be added
    constants += 3 * settings.groups * plan.k if plan.bias else 0
    return units + 4 * (settings.side * sums + constants + 4 * BANK_COLUMNS)


def diagonals_instructions(plan, cores):
    """Instructions of the busiest core, at most."""
    settings, boxes = plan.settings, 0
    for tile in plan.tiles:
        boxes += len(tile)
    parts, T, jobs = settings.side, plan.geometry.planes.taps, settings.groups * plan.geometry.planes.taps
    blocks = settings.down * settings.across
    # zeros first, where not all sums are a product's
    products = len(plan.tiles) * (blocks + 1) * jobs * parts
    reads = len(plan.tiles) * jobs * parts * 4
    # rows of blocks of the first and the last step may come one by one
    loads = (boxes * parts * (settings.down if settings.groups == 1 else 1) + 4 * len(plan.tiles)) * (T + 1)
    stores = 8 * jobs + (plan.each * T * div_ceil(settings.groups, nl.tile_size.pmax) if plan.turned else 0)
    total = products + reads + loads + stores * parts + 8 * len(plan.tiles)
    passes = len(plan.passes) if plan.split else div_ceil(len(plan.passes), cores)
    return (div_ceil(total, cores) + stores * parts if plan.split else total) * passes + settings.warmup + 128


def positions_of(plan):
    """Rows of the array's results of a set of groups."""
    return plan.settings.rows * plan.settings.columns * plan.k


def rows_of_sums(plan):
    """Partitions of sums: of one set of groups, or of those below each other."""
    return positions_of(plan) if plan.settings.below == 1 else nl.tile_size.pmax


def jobs_of(plan, part):
    """Jobs of a tile of rows: of sets below each other, and a plane of taps."""
    return div_ceil(part[1], plan.settings.below) * plan.geometry.planes.taps
