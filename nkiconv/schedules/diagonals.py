"""Settings and Schedule of `diagonals`, filter gradients of few channels a group: sums of all pairs of a block of gy
and the window of x around it.

    dw[k, c, r, s] = sum over positions (p, q) of a block of  out[(p, q, k), (c, p * stride + r * dilation, ...)],
    out[(p, q, k), (c, h, w)] = sum over units and blocks of  gy[unit, p, q, k] * x[unit, c, h, w]

One matmul takes a block of all units at once: gy of its positions is the stationary [units, (p, q, k)], the window of x
the moving operand [units, (c, h, w)], both views of SBUF; all blocks are added in one bank of PSUM. The needed sums are
on skewed diagonals: a gather takes [(p, q, k), taps] of many groups, and one matmul with zeros and ones adds up their
positions.

K: units; M: positions of a block and output channels; N: the window of x; evacuation: copies and gathers.
A unit is a part of a plane of gy, of several blocks, on a partition; with few units, 2 or 4 row tiles compute as many
groups at once (setting `side`). Groups that leave columns of the Tensor Engine empty share products (`beside`), or
banks (`below`). Windows are clipped at the edges of x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .blocks import Run, Tile, gradient_unsupported, planes_of, runs_of, spread_unsupported, tiles_of_units
from .cuts import hull, window_of
from .geometry import Geometry, num_taps
from .long_kernels import too_many
from .settings import Config, Settings, count, double, half, less, more, once_a_config, setting, warm_up
from .tiles import AXIS_MAX, BANK_COLUMNS, P_MAX, PARTS, SBUF_BYTES, Part, cut_at, div_ceil, fits_sbuf

#: Tiles of units that are loaded at once, or as many as SBUF has room for.
BUFFERS = 4
_BANK = BANK_COLUMNS


def _half_up(now: int) -> int:
    return (now + 1) // 2


@dataclass(frozen=True)
class DiagonalsSettings(Settings):
    """Settings of `diagonals`."""

    algorithm = "diagonals"
    tried = ("groups", "down", "across", "warmup")

    rows: int = count("rows of gy of a block", 1, P_MAX)
    columns: int = count("columns of gy of a block", 1, P_MAX)
    down: int = count("blocks of a unit along rows", 1, _BANK, near=(_half_up, double))
    across: int = count("blocks of a unit along columns", 1, _BANK, near=(_half_up, double))
    beside: int = count("groups of the convolution whose channels share a product, the last perhaps fewer", 1, _BANK)
    side: int = count("row tiles, each with its own groups: 1, 2 or 4", 1, 4)
    groups: int = count(
        "sets of groups that share products, of a row tile in a pass", 1, _BANK, near=(half, less, more, double)
    )
    below: int = count("groups that share the partitions of a bank, each a part: 1, 2 or 4", 1, 4, default=1)
    strips: int = count(
        "1: tiles follow each other down strips of planes and copy the rows of x that they share; 0: each loads all of "
        "its windows",
        0,
        1,
    )
    split: int = count("1: the cores share tiles of units and add their sums; 0: they share groups", 0, 1, default=0)
    warmup: int = warm_up(0, near=(0, 20, 40, 80))


#: Bytes a partition of SBUF for units and sums of taps in candidates.
ROOM_BYTES = 200_000
#: The most columns of a row tile's sums in a gather, unless one bank has more.
READ_MOST = 1024


def config_unsupported(geometry: Geometry, config: Config) -> str:
    """The error of a config's names or values; "" if it is valid."""
    if reason := DiagonalsSettings.unsupported_reason(config):
        return reason
    for name in ("side", "below"):
        if setting(config, name, 1) == 3:
            return f"config {name}=3: the Tensor Engine has 1, 2 or 4 tiles; use one of these"
    rows, columns, beside = (setting(config, name, 1) for name in ("rows", "columns", "beside"))
    k, parts = geometry.K // geometry.groups * beside, P_MAX // setting(config, "below", 1)
    if rows * columns * k > parts:
        return f"config rows={rows} columns={columns}: times {k} channels must be at most {parts}; use fewer"
    return ""


#: Rotating tiles of evacuated sums, of a row tile.
READS = 2
#: The number of sets of groups from which sets are the partitions of stores, if no fewer than taps: a matmul a tap.
MANY_SETS = 32


@dataclass(frozen=True)
class DiagonalsSchedule:
    """Passes of all groups; the cores share passes, or with split the tiles of units.

    Attributes:
        bias: whether to compute the bias's gradient; buffers: tiles of units in SBUF.
        unit: (rows, columns) of gy of a unit; units: the most of a row tile, each on a partition.
        k, c: output and input channels of the groups that share a product, a set; own: input channels of one group.
        window: (rows, columns) of x of a block; shared: rows that a unit's window shares with the unit's above it.
        h, w: (first, count) of the rows and columns of a unit's window that are inside x for any unit; seen: (first,
            count) of rows and of columns of a block's window that are inside x for any block.
        columns: of sums of a set; each: columns of them that are gathered; per_bank: accumulators of a bank;
            per_gather: accumulators of a gather.
        transposed: whether sets are the partitions of stores.
        strips: for each tile (number of its strip, or its own number; whether its units are below the units of the tile
            before).
        passes: sets (first, count) of each row tile; the last set may have fewer groups.
    """

    geometry: Geometry
    settings: DiagonalsSettings
    bias: bool
    unit: tuple[int, int]
    units: int
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
    buffers: int = BUFFERS

    @property
    def positions(self) -> int:
        """Rows of a set's products."""
        return self.settings.rows * self.settings.columns * self.k

    @property
    def rows_of_sums(self) -> int:
        """Partitions of sums: of one set, or of all sets below each other."""
        return self.positions if self.settings.below == 1 else P_MAX

    def channels_of(self, part: Part) -> tuple[Part, Part]:
        """Output, and input, channels (first, count) of a row tile's sets."""
        sizes = (self.k, self.geometry.K), (self.c, self.geometry.C)
        k, c = ((part[0] * each, min(part[1] * each, most - part[0] * each)) for each, most in sizes)
        return k, c

    def accumulators_of(self, part: Part) -> int:
        """The number of a row tile's accumulators, each of sets below each other and a plane of taps."""
        return div_ceil(part[1], self.settings.below) * self.geometry.planes.taps


@once_a_config
def build(geometry: Geometry, config: Config, bias: bool) -> tuple[DiagonalsSchedule | None, str]:
    """(Schedule, "") or (None, the reason against it), built once. bias: whether to compute its gradient too."""
    reason = gradient_unsupported(geometry) or diagonals_unsupported(geometry) or config_unsupported(geometry, config)
    if reason:
        return None, reason
    settings = DiagonalsSettings.read(config)
    plan = _scheduled(geometry, settings, bias)
    parts = P_MAX // settings.below
    if plan.columns > BANK_COLUMNS or plan.positions > parts:
        return None, (
            f"config rows={settings.rows} columns={settings.columns} beside={settings.beside} below={settings.below}: "
            f"{plan.positions} rows and {plan.columns} columns of sums, of {parts} and {BANK_COLUMNS}; use fewer"
        )
    longest = max(*plan.unit, plan.h[1], plan.w[1])
    if longest > AXIS_MAX:
        return None, (
            f"config rows={settings.rows} down={settings.down} columns={settings.columns} across={settings.across}: "
            f"a unit and its window have up to {longest} rows or columns, an instruction takes {AXIS_MAX}; use fewer"
        )
    every = (replace(plan, buffers=count) for count in range(BUFFERS, 0, -1))
    plan = next((one for one in every if fits_sbuf(needed_bytes(one))), plan)
    if not fits_sbuf(needed := needed_bytes(replace(plan, buffers=1))):
        return None, (
            f"config rows={settings.rows} down={settings.down} columns={settings.columns} across={settings.across} "
            f"groups={settings.groups}: diagonals need {needed} bytes per partition of SBUF for their units, there are "
            f'{SBUF_BYTES}; use smaller ones, or algorithm="blocks"'
        )
    units = settings.down * settings.across * settings.side * settings.groups * geometry.planes.taps
    products = len(plan.passes) * len(plan.tiles) * units
    reason = too_many(f"C={geometry.C}, K={geometry.K}: diagonals", geometry.times * products / PARTS)
    return (None, reason) if reason else (plan, "")


def diagonals_unsupported(geometry: Geometry) -> str:
    """Why no settings of diagonals take a geometry; "" if some do."""
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
    P, Q, units = geometry.rows, geometry.columns, P_MAX // config.side
    unit = config.rows * config.down, config.columns * config.across
    rows, columns = runs_of(P, unit[0], (0, P.taps)), runs_of(Q, unit[1], (0, Q.taps))
    strips, tiles = _strips_of_units(planes_of(geometry.planes), rows, columns, units, config.strips == 1)
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
    of_units, of_windows = (unit, units, k, c, own), (window, max(0, h[1] - unit[0] * P.stride), h, w, seen)
    transposed = sets >= max(MANY_SETS, each) and k * config.below * each <= BANK_COLUMNS
    passes = tuple(
        tuple((first + at, some) for at, some in cut_at(count, div_ceil(count, config.side)))
        for first, count in cut_at(div_ceil(geometry.groups, config.beside), config.side * config.groups)
    )
    split = config.split == 1 and len(tiles) >= PARTS
    of_sums = total, each, per_bank, banks * per_bank, transposed
    return DiagonalsSchedule(geometry, config, bias, *of_units, *of_windows, *of_sums, tiles, strips, passes, split)


def _strips_of_units(
    planes: Sequence[Part], rows: Sequence[Run], columns: Sequence[Run], most: int, follow: bool
) -> tuple[tuple[tuple[int, bool], ...], tuple[Tile, ...]]:
    """(strips, tiles of at most `most` units), strip by strip from top to bottom if they follow each other."""
    if not follow:
        tiles = tiles_of_units(planes, rows, columns, most)
        return tuple((index, False) for index in range(len(tiles))), tiles
    lines = [replace(row, first=row.first + index, count=1) for row in rows for index in range(row.count)]
    blocks = [tiles_of_units(planes, [line], columns, most) for line in lines]
    order = [(strip, index) for strip in range(len(blocks[0])) for index in range(len(blocks))]
    return tuple((strip, index > 0) for strip, index in order), tuple(blocks[index][strip] for strip, index in order)


def _seen_of(runs: Sequence[Run]) -> Part:
    """(first, count) of the elements of units' windows that are inside x for any unit; at least one."""
    return hull([(run.low, run.high - run.low) for run in runs if run.high > run.low], (runs[0].low, 1))


def _seen_of_blocks(step: int, count: int, window: int, there: Part) -> Part:
    """(first, count) of the elements of blocks' windows that are in `there` for any of `count` blocks, `step` apart."""
    starts = range(0, count * step, step)
    some = [(max(0, there[0] - at), min(window, sum(there) - at)) for at in starts]
    return hull([(low, high - low) for low, high in some if low < high], (0, 1))


def needed_bytes(plan: DiagonalsSchedule) -> int:
    """An upper bound of bytes a partition."""
    settings, geometry = plan.settings, plan.geometry
    x_size = geometry.planes.taps * plan.h[1] * plan.w[1] * plan.c
    y_size = plan.unit[0] * plan.unit[1] * plan.k
    units = plan.buffers * (x_size + y_size) * settings.groups * geometry.itemsize
    accumulators = div_ceil(settings.groups, settings.below) * geometry.planes.taps
    # evacuated sums; a gather's result, and gathered sums of two passes; stored results
    reads = READS * plan.per_gather * plan.c * plan.window[0] * plan.window[1]
    sums = reads + plan.per_gather * plan.each + 2 * accumulators * plan.each
    # indices, also as fp32; ones of each partition's positions and channels; zeros
    constants = 2 * plan.per_gather * plan.each + 5 * P_MAX
    # sums of biases, of two passes, and their addends
    constants += 3 * settings.groups * plan.k if plan.bias else 0
    return units + 4 * (settings.side * sums + constants + 4 * BANK_COLUMNS)
