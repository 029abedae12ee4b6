"""The filter gradient: sums over positions of gy times the window of x that a tap meets there.

    dw[k, c, t, r, s] = sum over z, p, q of gy[k, z, p, q] * x[c, z', p', q'],  p' = p * stride + r * dilation - before

Positions are contracted, so they must lie on the partitions; there a shift by a tap would take a copy of x. A partition
is therefore a block of gy with the window of x around it (`units`): what is at one place of all blocks is a stationary
[blocks, k], and the window of that place, whose taps and channels are the moving operand, a view along the free axes:

    dw[k, (r, s, c)] += sum over blocks of  gy[block, p, q, k] * x[block, p + r, q + s, c]    for each (p, q) of a block

Few output channels, or the last of many, leave rows of the array empty: neighbouring columns of gy share them then, the
window is as much wider, and sums are added as they are read out (setting `beside`). No im2col tensor exists. Nothing is
transposed where channels lie side by side; where they do not, the array turns blocks (`turned`), or runs are short.
"""

from dataclasses import dataclass

from ..._nki import nl
from ...schedules.geometry import Geometry, instructions_refusal
from ...schedules.tiles import (
    BANK_BYTES,
    BANK_COLUMNS,
    PARTS,
    PSUM_BANKS,
    cut,
    cut_at,
    div_ceil,
    fits_sbuf,
    share,
    some_of,
)
from .defaults import BLOCK_BYTES, outputs_beside, sum_banks, units_in, weight_config_refusal, weight_settings
from .lines import TURNED, lines_of, takes_lines, turns_pixels, units_of_tile
from .turned import RAWS, gang_of, grid_of, turned_bytes, turned_instructions, turned_of, turned_tiles
from .units import chains_of, extent_of, first_seen, planes_of, runs_of, taps_seen, tiles_of_units

#: Boxes of a tile up to which its rows come one by one, so that the array follows the loads closely.
ROWS_BOXES = 24
#: Channels up to which a bare kernel loads planes as they lie.
FEW_TURNED = 16
#: Bytes a partition for sums on their way out: of four banks, also what they are added to and together.
SUMS_BYTES = 4 * 3 * BANK_BYTES


@dataclass
class Job(nl.NKIObject):
    """A bank of sums: (first, how many) output and input channels, rows and columns of taps of plane t; -1 where x is
    ones, so that sums are the bias's. beside: columns of gy that share a matmul, each with its own output channels in a
    bank's rows; part: number of the array's tile of rows."""

    k: tuple
    c: tuple
    t: int
    r: tuple
    s: tuple
    beside: int
    part: int


@dataclass
class Pass(nl.NKIObject):
    """Rounds of Jobs that pass over x and gy together, of which all tiles stay where there are several rounds; and what
    of x and gy they need: (first, how many) of channels, of x of each of the array's tiles of rows, of rows and columns
    of taps, and of a window's rows and columns; planes of taps; Boxes of each tile of units; how many tiles have the
    first half of the units; whether one of two cores begins with it; clips: see `first_of_clipped`."""

    rounds: list
    k: tuple
    c: list
    r: tuple
    s: tuple
    h: tuple
    w: tuple
    planes: list
    tiles: list
    half: int
    opens: bool = False
    clips: object = None


@dataclass
class WeightPlan(nl.NKIObject):
    """Passes of all jobs, shared by the cores, or with split tiles of each.

    further: columns of taps that the window of a column of gy is further than that of the column before.
    """

    settings: object
    further: int
    passes: list
    #: buffers of x: one more where it is less than gy and fits: its loads wait for no products of the tile before
    windows: int
    #: the Geometry that blocks are of, whose channels may have been put side by side, and that of x and gy
    geometry: Geometry
    source: Geometry
    #: whether DMA transposes lines of x and gy
    lines: bool
    #: whether x and gy are turned on the array, and how many planes' blocks are below each other in a unit then
    turns: bool
    gang: int = 1
    #: pieces of x, and of gy, that are on their way together
    raws: int = RAWS
    #: banks of PSUM for that: those that no sums need
    banks: int = PSUM_BANKS
    split: bool = False


def make_weight_plan(geometry, config, bias, source, lines, together):
    """The WeightPlan of BlocksSettings. bias: whether its gradient is wanted; source: as x and gy lie; together: most
    banks of a pass, of one chunk of channels."""
    passes, planes, most = [], planes_of(geometry.planes), 1
    turns = not lines and (source.x_strides, source.y_strides) != (geometry.x_strides, geometry.y_strides)
    banks, units = sum_banks(turns), units_of_tile(geometry, lines) // config.side
    count, known = div_ceil(units_in(geometry, config.rows, config.columns), PARTS), {}
    for jobs in batches_of(geometry, config, bias, min(banks, together)):
        k, r, s, seen = (jobs[0].k[0], 0), (geometry.rows.taps, 0), (geometry.columns.taps, 0), []
        c = []
        for _ in range(config.side):
            c.append((geometry.C, 0))
        for job in jobs:
            k = hull(k, job.k)
            if job.t >= 0:
                r, s = hull(r, job.r), hull(s, job.s)
                c[job.part] = hull(c[job.part], job.c)
                if job.t not in seen:
                    seen.append(job.t)
        if len(seen) == 0:
            r, s = (0, 1), (0, 1)
        if (r, s) not in known:
            rows, columns = runs_of(geometry.rows, config.rows, r), runs_of(geometry.columns, config.columns, s)
            known[r, s] = rows, columns, tiles_of_units(planes, rows, columns, units, count if config.split == 1 else 0)
        rows, columns, tiles = known[r, s]
        rounds = []
        for part in cut(div_ceil(len(jobs), config.side), banks // config.side):
            rounds.append(some_of(jobs, (part[0] * config.side, part[1] * config.side)))
        half = div_ceil(count, units)
        most = max(most, max(c[0][1], k[1]))
        h, w = (0, extent_of(geometry.rows, config.rows, r)), (0, extent_of(geometry.columns, config.columns, s))
        clips = first_of_clipped(geometry, config, (rows, columns), (r[1], s[1]))
        if clips != None:
            h, w = (rows[0].low, rows[0].high - rows[0].low), (columns[0].low, columns[0].high - columns[0].low)
        one = Pass(rounds=rounds, k=k, c=c, r=r, s=s, h=h, w=w, planes=seen, tiles=tiles, half=half, clips=clips)
        passes.append(one)
    plan = WeightPlan(
        settings=config,
        further=geometry.columns.stride // geometry.columns.dilation,
        passes=passes,
        windows=config.buffers,
        geometry=geometry,
        source=source,
        lines=lines,
        turns=turns,
    )
    if turns:
        sizes = tile_bytes(geometry, plan)
        room = BLOCK_BYTES // (config.buffers * (sizes[0] + sizes[1]))
        plan.gang = max(1, min(gang_of(geometry, grid_of(geometry, config.rows, config.columns)[0], most), room))
        for one in passes:
            one.tiles = turned_tiles(geometry, planes, config, plan.gang, (one.r, one.s))
            one.half = div_ceil(len(one.tiles), PARTS)
            for jobs in one.rounds:
                plan.banks = min(plan.banks, PSUM_BANKS - len(jobs))
    first = passes[0]
    plan.split = config.split == 1 and len(first.tiles) >= PARTS
    for core in range(1 if plan.split else PARTS):
        one = passes[share(len(passes), PARTS, core)[0]]
        one.opens = True
    while turns and plan.raws > 1 and not fits_sbuf(weight_bytes(geometry, plan)):
        plan.raws = plan.raws - 1
    sizes = tile_bytes(geometry, plan)
    if not turns and sizes[0] < sizes[1] and fits_sbuf(weight_bytes(geometry, plan) + sizes[0]):
        plan.windows = config.buffers + 1
    return plan


def first_of_clipped(geometry, config, runs, taps):
    """(row, column) of gy whose products write all sums, where zeros around whole planes are left out; else None. runs,
    taps: of rows and of columns."""
    found = ()
    for index in range(2):
        axis, there = (geometry.rows, geometry.columns)[index], (runs[index][0].low, runs[index][0].high)
        first = first_seen(axis, taps[index], (max(1, config.rows - 1), config.columns)[index], there)
        seen = taps_seen(first * axis.stride, taps[index], axis.dilation, there)
        if len(runs[index]) == 1 and axis.lhs_dilation == 1 and seen == (0, taps[index]):
            found = found + (first,)
    return found if config.side > 1 and config.beside == 1 and len(found) == 2 else None


def hull(part, other):
    """(first, how many) of a part and of another one; a part may have nothing."""
    low = min(part[0], other[0])
    return other if part[1] == 0 else (low, max(part[0] + part[1], other[0] + other[1]) - low)


def batches_of(geometry, config, bias, banks):
    """Lists of the Jobs of a pass each, of biases alone if these are more than the banks of PSUM that others leave."""
    groups, found = geometry.groups, []
    ks, cs = outputs_beside(geometry, config.beside), cut(geometry.C // groups, config.channels)
    for group in range(groups):
        for c in cut_at(len(cs), config.inputs):
            for some in cut_at(len(ks), config.outputs):
                jobs, biases, parts = [], [], cut(c[1], div_ceil(c[1], config.side))
                for one in some_of(ks, some):
                    # tiles of the array's rows take turns
                    for index in range(parts[-1][1]):
                        for part in range(len(parts)):
                            if index < parts[part][1]:
                                other = cs[c[0] + parts[part][0] + index]
                                append_jobs(jobs, geometry, group, one, other, part)
                    if bias and c[0] == 0:
                        k, beside = one
                        k = k[0] + group * (geometry.K // groups), k[1]
                        biases.append(Job(k=k, c=(0, 1), t=-1, r=(0, 1), s=(0, 1), beside=beside, part=0))
                if len(jobs) <= banks and len(jobs) + len(biases) > banks:
                    found.append(biases)
                else:
                    jobs = jobs + biases
                before = len(found[-1]) if len(found) > 0 else banks
                if len(ks) == 1 and len(cs) == 1 and before + len(jobs) <= banks:
                    found[-1] = found[-1] + jobs
                elif config.outputs * config.inputs > 1:
                    found.append(jobs)
                else:
                    for part in cut(len(jobs), banks):
                        found.append(some_of(jobs, part))
    return found


def append_jobs(jobs, geometry, group, outputs, c, part):
    """Append the Jobs of channels of a group, outputs with how many columns of gy are beside each other, on a part."""
    R, S, (k, beside) = geometry.rows.taps, geometry.columns.taps, outputs
    k = k[0] + group * (geometry.K // geometry.groups), k[1]
    c = c[0] + group * (geometry.C // geometry.groups), c[1]
    for t in range(geometry.planes.taps):
        for r in [(0, R)] if R * S <= BANK_COLUMNS else cut(R, 1):
            for s in cut(S, BANK_COLUMNS):
                jobs.append(Job(k=k, c=c, t=t, r=r, s=s, beside=beside, part=part))


def plan_weight(geometry, config, bias, cores):
    """(WeightPlan, "") on `cores` cores, or (None, why not). geometry: of x and gy as they lie; a bare kernel has them
    turned on the array where that fits."""
    found, turned = (None, ""), (("pixels", TURNED),)
    if config == None and geometry.groups == 1 and geometry.C > FEW_TURNED and turns_pixels(geometry, turned):
        found = plan_settings(geometry, turned, bias, cores)
    return found if found[0] != None else plan_settings(geometry, config, bias, cores)


def plan_settings(geometry, config, bias, cores):
    """The same with a config, or what is left open."""
    reason = weight_config_refusal(geometry, config)
    if reason == "":
        reason = weight_refusal(geometry)
    if reason == "" and turns_pixels(geometry, config):
        reason = spread_refusal(geometry, "pixels=2", "pixels=0")
    if reason != "":
        return None, reason
    source, lines = geometry, takes_lines(geometry, config)
    if lines:
        geometry, source = lines_of(geometry)
    elif turns_pixels(geometry, config):
        geometry = turned_of(geometry)
    settings = weight_settings(geometry, config, lines)
    together, plan = sum_banks(False), None
    while plan == None or (together > settings.side and not fits_sbuf(weight_bytes(geometry, plan))):
        together = together if plan == None else together // 2
        plan = make_weight_plan(geometry, settings, bias, source, lines, together)
    for one in plan.passes:
        needed = one.half if plan.split else len(one.tiles)
        if len(one.rounds) > 1 and needed * geometry.times > settings.buffers:
            return None, (
                f"config buffers={settings.buffers}: {len(one.rounds)} rounds of {sum_banks(plan.turns)} banks need "
                f"all {needed} tiles of blocks at once; use as many, or fewer outputs and inputs"
            )
    needed = weight_bytes(geometry, plan)
    if not fits_sbuf(needed):
        return None, (
            f"C={geometry.C}, K={geometry.K}, config rows={settings.rows} columns={settings.columns}: a filter "
            f"gradient needs {needed} bytes per partition of SBUF for its blocks, there are "
            f"{nl.tile_size.total_available_sbuf_size}; use smaller blocks, fewer banks or fewer channels"
        )
    reason = instructions_refusal(geometry, "a filter gradient", weight_instructions(geometry, plan, cores))
    return (plan, "") if reason == "" else (None, reason)


def spread_refusal(geometry, what, instead):
    """Why something does not take a geometry with lhs_dilation; "" if there is none."""
    apart = (geometry.planes.lhs_dilation, geometry.rows.lhs_dilation, geometry.columns.lhs_dilation)
    return "" if apart == (1, 1, 1) else f"lhs_dilation={apart}: {what} takes 1; use {instead}"


def weight_refusal(geometry):
    """Why there is no filter gradient of a geometry, whatever the settings; "" if there is."""
    if geometry.hbm_itemsize == 1:
        return "img_ref.dtype=float8: a filter gradient takes 16 and 32 bits; cast x and gy"
    if geometry.precision == "fp16x3" or geometry.precision == "winograd":
        return f"precision={geometry.precision}: a filter gradient takes None, bf16 and tf32; use one of them"
    return ""


def buffer_sizes(plan):
    """What a tile of units needs at most: (rows, columns, channels) of x, output channels, planes of taps."""
    rows, columns, c, k, planes = 1, 1, 1, 1, []
    for one in plan.passes:
        rows, columns, k = max(rows, one.h[1]), max(columns, one.w[1]), max(k, one.k[1])
        for part in one.c:
            c = max(c, part[1])
        for t in one.planes:
            if t not in planes:
                planes.append(t)
    return (rows, columns, c), k, planes


def tile_bytes(geometry, plan):
    """Bytes a partition of x and of gy of a tile of units, but for its gang."""
    x, k, planes = buffer_sizes(plan)
    x_size, y_size = len(planes) * x[0] * x[1] * x[2], plan.settings.rows * plan.settings.columns * k
    return x_size * geometry.itemsize, y_size * geometry.itemsize


def weight_bytes(geometry, plan):
    """Bytes a partition, at most."""
    turning, sizes, held = turned_bytes(plan.source, plan) if plan.turns else 0, tile_bytes(geometry, plan), 0
    for one in plan.passes:
        banks = len(one.rounds[0])
        chains = banks if len(chains_of(plan, one, len(one.tiles))) > 1 else 0
        # of chains before; of a half of the units, and of the other one
        held = max(held, (chains + (PARTS * banks if plan.split else 0)) * BANK_BYTES)
    return plan.gang * (plan.windows * sizes[0] + plan.settings.buffers * sizes[1]) + turning + SUMS_BYTES + held


def weight_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most."""
    each, most = [], 0
    for one in plan.passes:
        total, boxes = 0, 0
        for tile in one.tiles:
            # rows come one by one, lines of all rows of a block
            boxes += len(tile) * (plan.settings.rows if len(tile) <= ROWS_BOXES else 1)
            for box in tile:
                boxes += box.counts[0] * box.counts[1] if plan.lines else 0
        loads = (len(one.planes) + 1) * (boxes * plan.settings.side + 5 * len(one.tiles))
        if plan.turns:
            loads = turned_instructions(plan.source, plan, one)
        for jobs in one.rounds:
            chains = len(chains_of(plan, one, len(one.tiles))) + PARTS
            for job in jobs:
                positions = plan.settings.rows * div_ceil(plan.settings.columns, job.beside)
                total += len(one.tiles) * positions * plan.gang + 4 + chains
        total += loads
        each.append(div_ceil(total * one.half, len(one.tiles)) + 64 if plan.split and cores == PARTS else total)
    parts = 1 if plan.split else cores
    for core in range(parts):
        mine = 0
        for total in some_of(each, share(len(each), parts, core)):
            mine += total
        most = max(most, mine)
    return most + plan.settings.warmup + 64
