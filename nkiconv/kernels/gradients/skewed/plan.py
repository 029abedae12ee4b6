"""How `skewed` cuts a gradient: rows into units, positions of a unit into passes, taps into chunks, channels into
batches. None of it depends on the number of cores.
"""

import math
from dataclasses import dataclass

from ...._nki import nl
from ....schedules.channels import channel_block
from ....schedules.depthwise import instructions_refusal
from ....schedules.settings import setting
from ....schedules.skewed import BESIDE, GROUPS_MAX, SkewedSettings
from ....schedules.tiles import BANK_COLUMNS, PARTS, QUADRANT, cut_into, div_ceil, fits_sbuf

#: Without a config: bytes per partition of tiles of x and gy, batches that a core should have.
TILES_BYTES, CORE_BATCHES = 163_840, 8
#: Batches whose x and gy are loaded at once; matmuls of 128 columns on zeros before the first others.
SKEWED_BUFFERS, SKEWED_WARM_UP = 3, 28
#: Quadrants of partitions, to which sums of as many groups go.
STACKS = 4
#: Taps above which they are cut into parts, and parts at most.
SHIFT_TAPS, SHIFTS = 512, 8
#: Columns of the array that a channel may take, for more channels beside each other and longer runs.
CHANNEL_COLUMNS = 192
#: Taps of several units of a bank: positions that share it with them take at most half of it.
POSITIONS_COLUMNS = BANK_COLUMNS // 2


@dataclass
class SkewedPlan(nl.NKIObject):
    """Numbers of one problem. Partition (r * units + u) * images + i of tile t has unit u of image t * images + i of
    the r-th of the channels beside each other.

    Parts of taps of one channel lie on the same partitions, so that unit u of x meets unit u - r * apart of gy.
    """

    #: channels of a matmul, or parts of the taps of one; units of gy between these, 0: they are channels
    beside: int
    apart: int
    #: images of a tile, tiles of images, the first unit of a row and how many
    images: int
    tiles: int
    first: int
    units: int
    #: taps of a part
    span: int
    #: positions of gy of a unit; of a pass, and passes
    unit: int
    positions: int
    passes: int
    #: parts of a pass's positions whose products are added before they are put in step, and positions of one
    folds: int
    part: int
    #: taps of a chunk, and chunks; elements of x between columns of a matmul, and its columns; those of a part
    taps: int
    chunks: int
    step: int
    columns: int
    part_columns: int
    #: elements of x of a unit, and of gy with zeros behind them; even
    window: int
    padded: int
    #: ChannelBlocks, and groups of the largest, of which parts have sums on partitions of their own
    batches: list
    groups: int = 0
    stacks: int = 1
    buffers: int = 0


def skewed_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    reason = SkewedSettings.refusal(config)
    if reason != "":
        return reason
    beside, shifts = setting(config, "beside", 1), setting(config, "shifts", 1)
    if beside not in BESIDE:
        return f"config beside={beside}: must be one of {BESIDE}, channels that share a matmul"
    if shifts > 1 and (beside > 1 or geometry.stride > 1 or geometry.dilation > 1):
        return (
            f"config shifts={shifts}, beside={beside}, stride={geometry.stride}, rhs_dilation={geometry.dilation}: "
            f"parts of taps need 1, 1 and 1; use shifts=1"
        )
    return ""


def skewed_settings(geometry, config):
    """All settings of a config."""
    beside, shifts = 1, 1
    if geometry.stride == 1 and geometry.dilation == 1 and setting(config, "beside", 1) == 1:
        shifts = 1 if geometry.S <= SHIFT_TAPS else SHIFTS
    shifts = setting(config, "shifts", shifts)
    for most in BESIDE if shifts == 1 else ():
        plan = cut_skewed(geometry, most, 1)
        columns = plan.tiles * plan.passes * plan.chunks * max(nl.tile_size.pmax, plan.columns)
        if most <= geometry.C and columns <= CHANNEL_COLUMNS * most:
            beside = most
    beside = setting(config, "beside", beside)
    plan = cut_skewed(geometry, beside, shifts)
    each = SKEWED_BUFFERS * group_bytes(geometry, plan) + result_bytes(plan)
    groups = min(TILES_BYTES // each, GROUPS_MAX)
    wanted = div_ceil(geometry.C, PARTS * CORE_BATCHES * beside)
    if plan.folds > 1:
        wanted = div_ceil(wanted, STACKS) * STACKS
    groups = min(groups, wanted)
    if plan.folds > 1 and groups > STACKS:
        groups = groups // STACKS * STACKS
    return SkewedSettings.read(config, beside=beside, shifts=shifts, groups=max(1, groups))


def cut_units(geometry, beside):
    """(units of a row, positions of one, images of a tile) of so many channels beside each other."""
    most = nl.tile_size.pmax // beside
    images = div_ceil(geometry.N, div_ceil(geometry.N, most))
    unit = div_ceil(geometry.Q, min(most // images, geometry.Q))
    return div_ceil(geometry.Q, unit), unit, images


def cut_shifts(geometry, shifts):
    """(units, positions of one, units between parts of taps, first unit) of so many parts: the smallest that fit."""
    unit = div_ceil(geometry.Q, nl.tile_size.pmax)
    while True:
        apart = div_ceil(geometry.S, shifts * unit)
        parts = div_ceil(geometry.S, apart * unit)
        # of x the windows of units before `first` and from `end` on have nothing
        window, left = (apart + 1) * unit, geometry.pad_left
        first = max(0, (left - window) // unit + 1) if left > window else 0
        end = min(div_ceil(geometry.Q, unit) + apart * (parts - 1), div_ceil(geometry.W + left, unit))
        if end - first <= nl.tile_size.pmax:
            return max(1, end - first), unit, apart, first
        unit += 1


def cut_skewed(geometry, beside, shifts):
    """The SkewedPlan of so many channels beside each other, or parts of taps, without batches."""
    stride, dilation, images, apart, first, span = geometry.stride, geometry.dilation, 1, 0, 0, geometry.S
    if shifts > 1:
        units, unit, apart, first = cut_shifts(geometry, shifts)
        span = apart * unit
        beside = div_ceil(geometry.S, span)
    else:
        units, unit, images = cut_units(geometry, beside)
    step = math.gcd(stride, dilation)
    positions = min(unit, min(nl.tile_size.pmax // beside, POSITIONS_COLUMNS * step // stride + 1))
    folds, passes, part = 1, div_ceil(unit, positions), QUADRANT // beside
    positions = div_ceil(unit, passes)
    if beside * part == QUADRANT and positions > part:
        # as engines address partitions
        folds = div_ceil(positions, part)
        positions = folds * part
        passes = div_ceil(unit, positions)
    taps = (BANK_COLUMNS - 1 - (positions - 1) * stride // step) * step // dilation + 1
    chunks = div_ceil(span, taps)
    taps = div_ceil(span, chunks)
    window = (passes * positions - 1) * stride + (chunks * taps - 1) * dilation + 1
    padded = passes * positions
    return SkewedPlan(
        beside=beside,
        apart=apart,
        images=images,
        tiles=div_ceil(geometry.N, images),
        first=first,
        units=units,
        span=span,
        unit=unit,
        positions=positions,
        passes=passes,
        folds=folds,
        part=positions // folds,
        taps=taps,
        chunks=chunks,
        step=step,
        columns=((positions - 1) * stride + (taps - 1) * dilation) // step + 1,
        part_columns=((positions // folds - 1) * stride + (taps - 1) * dilation) // step + 1,
        window=window + window % 2,
        padded=padded + padded % 2,
        batches=[],
    )


def matmul_channels(plan):
    """Channels of a matmul."""
    return plan.beside if plan.apart == 0 else 1


def skewed_plan_of(geometry, config):
    """The SkewedPlan of (name, value) pairs."""
    settings = skewed_settings(geometry, config)
    plan = cut_skewed(geometry, settings.beside, settings.shifts)
    plan.stacks = STACKS if plan.folds > 1 and settings.groups >= STACKS else 1
    parts = PARTS * div_ceil(geometry.C, PARTS * matmul_channels(plan) * settings.groups)
    for some in cut_into(geometry.C, min(parts, geometry.C)):
        block = channel_block(some[0], some[1], matmul_channels(plan) * plan.stacks)
        plan.batches.append(block)
        plan.groups = max(plan.groups, plan.stacks * block.length)
    plan.buffers = min(SKEWED_BUFFERS, len(plan.batches))
    return plan


def group_bytes(geometry, plan):
    """Bytes a partition of x and gy of a matmul's channels."""
    return plan.tiles * (plan.window + plan.beside * plan.padded) * geometry.itemsize


def result_bytes(plan):
    """Bytes a partition of products, those in step, sums and what they are added to, of two batches."""
    return 8 * plan.chunks * (plan.columns + 3 * plan.taps)


def skewed_refusal(geometry, config, cores):
    """Why this algorithm does not take a gradient on `cores` cores; "" if it does."""
    reason = skewed_config_refusal(geometry, config)
    if reason == "" and geometry.lhs_dilation > 1:
        reason = f"lhs_dilation={geometry.lhs_dilation}: skewed takes 1; use mixed or vector"
    if reason != "":
        return reason
    plan = skewed_plan_of(geometry, config)
    needed = plan.groups * (plan.buffers * group_bytes(geometry, plan) + result_bytes(plan))
    if not fits_sbuf(needed * geometry.times):
        return (
            f"N={geometry.N}, W={geometry.W}, S={geometry.S}: skewed needs {needed} bytes per partition of SBUF for x, "
            f"gy and their products, there are {nl.tile_size.total_available_sbuf_size}; use dot or banded"
        )
    return instructions_refusal(geometry, "skewed", count_skewed_instructions(geometry, plan, cores))


def count_skewed_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most: loads, matmuls and read-outs of products, sums and stores."""
    jobs = plan.groups * plan.chunks
    loads = plan.beside * plan.tiles * plan.units * 3 * plan.images + 4
    matmuls = jobs * (plan.tiles * plan.passes + 4 + plan.beside * plan.folds)
    return div_ceil(len(plan.batches), cores) * (loads + matmuls + 12) + SKEWED_WARM_UP + 32
