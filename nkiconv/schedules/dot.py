"""`dot`: dot products of whole rows. Settings, schedule, what it does not run.

Its cuts are phases of taps and columns, chunks of taps, blocks of lags, tiles and batches. Many lags (`wide`) come in
blocks that are batches of their own. None of it depends on the number of cores.

With g = gcd(stride, dilation), R = stride / g and D = dilation / g, tap s = R s' + r and column q = D q' + m meet at
position stride * (D (s' + q') + m) + dilation * r of the padded row. For each of the R tap phases and D column phases
that is a convolution without stride or dilation, so a lag q' is a shift of s'. Position s' = base + n p + t lies at
partition p, slot t; lag q' of slot t is slot t + q'.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .channels import ChannelBlock, channel_block, channel_halves
from .depthwise import (
    Options,
    RowGeometry,
    gate_bytes,
    gate_instructions,
    inputs_of,
    instructions_unsupported,
    prologue_unsupported,
)
from .settings import Config, Settings, count, double, flag, half, setting, warm_up
from .tiles import BANK_COLUMNS, P_MAX, PARTS, SBUF_BYTES, cut_at, div_ceil

#: Slots of a stationary that a config can ask for, and lags of a block with `wide`: a bank holds 128 slots of x of 4
#: channels, 31 of which are beyond the lags.
BLOCKS, LAGS_MOST = (1, 2, 4, 8, 16), 97
#: Most columns with masks; and lags beyond which `wide` is faster, more for few slots, as its blocks of lags are
#: large, and where a core has less than a tile and waits for HBM.
COLUMNS_MIN, WIDE_FROM, WIDE_FROM_SLOTS, WIDE_FROM_FEW, WIDE_FROM_FEW_SLOTS = 64, 10, 32, 12, 320
#: Matmuls on zeros that a search tries, and with masks rows from which they pay.
WARM_UP, MANY_ROWS = 24, 1024
#: Bytes a partition of SBUF for rows as loaded, transposed slots and kept filters; sums and products take the rest.
DOT_SBUF_BYTES = 180_000
#: Bytes a partition of transposed filters that are kept for all images of a batch.
KEPT_BYTES = 65_536
#: Channel tiles, or images, that leave together.
LEAVE_TOGETHER = 4
#: With wide, slots and channels of a stationary: channels start at partitions 0, 32, 64 and 96, as engines address
#: them; and bytes per partition that products on their way through HBM take, and results.
WIDE_TAPS, WIDE_BYTES = 32, 44_000
#: Columns for each tap from which `banded` is at least as fast, for the taps that it always takes.
COLUMNS_PER_TAP, BANDED_TAPS = 0.5, 8192
#: ns from the first load to the first sums and from the last sums to the end of the last store, with masks and with the
#: way through HBM.
MASKED_ENDS_NS, WIDE_ENDS_NS = 5000.0, 11000.0
#: Share of the masks and sums that Vector is left with, a column of lags and channels.
MASKED_VECTOR = 0.75
#: How much more work than it takes a unit should have for the array to be at full rate in all windows.
SURE = 1.3
#: Most blocks of slots in a chunk of `wide`, and from one number of lags that is tried to the next.
WIDE_BLOCKS, WIDE_STEP = 2, 8


@dataclass(frozen=True)
class DotSettings(Settings):
    """All settings."""

    algorithm = "dot"
    tried = ("block", "slots", "warmup")

    wide: bool = flag(
        "whether lags are put in step by a way through HBM, not by masks", default=lambda geometry: is_wide(geometry)
    )
    slots: int = count("slots of a chunk of taps, at most; fewer where they do not fit", 1, 128, near=(half, double))
    lags: int = count("lags of a block with wide, at most; fewer if they do not fit", 1, LAGS_MOST, default=LAGS_MOST)
    block: int = count("slots of a stationary with masks: 1, 2, 4, 8 or 16", 1, 16, default=8, near=(2, 4, 8, 16))
    warmup: int = warm_up("by shape", near=(0, WARM_UP))


def dot_settings(geometry: RowGeometry, config: Config, target: Target | None = None) -> DotSettings:
    """All settings of a config: as many slots as fit, of `wide` slots and lags with the fewest columns.

    target: other prices than those of trn2.toml.
    """
    given, wide = dict(config or ()), setting(config, "wide", is_wide(geometry))
    is_warm = wide or geometry.N * geometry.C >= MANY_ROWS
    warmup = warm_up_of(target or Target.of(Rates())) if is_warm else 0
    best = DotSettings.read(config, geometry, slots=64 if wide else 32, warmup=warmup)
    if not wide:
        plan = build(geometry, best)
        return replace(best, slots=given.get("slots", plan.slots)) if plan.slots else best
    slots = [given.get("slots", WIDE_TAPS * blocks) for blocks in range(1, WIDE_BLOCKS + 1)]
    lags = [given.get("lags", lags) for lags in range(1, LAGS_MOST + 1, WIDE_STEP)]
    plans = [build(geometry, replace(best, slots=some, lags=few)) for some, few in product(slots, lags)]
    fitting = sorted((one for one in plans if one.slots), key=wide_columns)
    return replace(best, **{"slots": fitting[0].slots, "lags": fitting[0].lags, **given}) if fitting else best


def dot_config_unsupported(config: Config) -> str:
    """What is wrong with a config; "" if nothing is."""
    reason = DotSettings.unsupported_reason(config)
    if reason or setting(config, "block", 1) in BLOCKS:
        return reason
    return f"config block={setting(config, 'block', 1)}: must be 1, 2, 4, 8 or 16 slots of a stationary"


def is_wide(geometry: RowGeometry) -> bool:
    """Whether there are so many lags that `wide` is faster, or more columns than there may be without it."""
    common, is_few = math.gcd(geometry.stride, geometry.dilation), geometry.N * geometry.C < PARTS * P_MAX
    slots = div_ceil(geometry.S, geometry.stride // common * P_MAX)
    lags = div_ceil(geometry.Q, geometry.dilation // common)
    fewest = WIDE_FROM_FEW + WIDE_FROM_FEW_SLOTS // slots if is_few else WIDE_FROM + WIDE_FROM_SLOTS // slots
    return bool(geometry.Q > COLUMNS_MIN or lags > fewest)


@dataclass(frozen=True)
class DotSchedule:
    """Numbers of one problem; the same on every core."""

    tap_phases: int  # R
    spread: int  # D
    column_phases: int  # min(D, Q)
    taps: int  # slots of a stationary
    channels: int  # of a stationary
    buffers: int  # rows in flight
    wide: bool  # whether a batch has one block of lags, and wide.py takes it from products to results
    slots: int = 0  # of a chunk, 0 if not even the fewest fit SBUF
    depth: int = 0  # partitions that taps are spread over: a chunk has depth * slots taps of each phase
    chunks: int = 1
    lags: int = 1  # of a block
    lag_blocks: int = 1  # lags * lag_blocks >= ceil(Q / D)
    x_length: int = 0  # positions of x in one chunk, as loaded
    w_length: int = 0  # taps of w in one chunk, as loaded
    tiles: int = 1  # channel tiles of a batch
    images: int = 1  # of a batch
    keep: bool = False  # whether transposed filters stay in SBUF from image to image


@dataclass(frozen=True)
class DotBatch:
    """Tiles k0 .. k0+kn-1 of a channel block and images n0 .. n0+nn-1; kn or nn is 1. They leave in one store each.

    l0: first lag; a wide plan's batch has plan.lags from there on, any other all lags. width: channels that a row of
    results has in one image.
    """

    block: ChannelBlock
    k0: int
    kn: int
    n0: int
    nn: int
    l0: int
    width: int


@dataclass(frozen=True)
class DotUnit:
    """A chunk of taps of tile k of a batch, of image n: `groups` groups of `channels` channels, from r0 of each row."""

    batch: DotBatch
    n: int
    k: int
    chunk: int
    r0: int
    groups: int


def unsupported(geometry: RowGeometry, options: Options, config: Config, cores: int) -> str:
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = dot_config_unsupported(config) or prologue_unsupported(geometry, "dot")
    if reason != "":
        return reason
    if options.strict_nonfinite:
        return "strict_nonfinite=True: dot sums channels together under a mask; use vector"
    if geometry.lhs_dilation > 1:
        return f"lhs_dilation={geometry.lhs_dilation}: dot takes 1; use mixed or vector"
    columns_max = max(COLUMNS_MIN, int(geometry.S * COLUMNS_PER_TAP))
    if geometry.dilation == 1 and geometry.S <= BANDED_TAPS and geometry.Q > columns_max:
        return (
            f"Q={geometry.Q}: dot computes at most {columns_max} columns a row for S={geometry.S}; use banded or vector"
        )
    settings = dot_settings(geometry, config)
    if not settings.wide and geometry.Q > COLUMNS_MIN:
        return f"config wide=False, Q={geometry.Q}: at most {COLUMNS_MIN} columns; leave it out"
    plan = build(geometry, settings)
    if plan.slots == 0:
        return (
            f"stride={geometry.stride}, dilation={geometry.dilation}: rows of 128 taps and their columns must fit "
            f"SBUF, {SBUF_BYTES} bytes per partition; use vector"
        )
    return instructions_unsupported(geometry, "dot", count_dot_instructions(geometry, plan, settings.warmup, cores))


def count_dot_instructions(geometry: RowGeometry, plan: DotSchedule, warmup: int, cores: int) -> int:
    """Instructions of the busiest core, at most: loads, transposes and read-outs, matmuls, tails."""
    slots = plan.tap_phases * (plan.slots + plan.column_phases * x_slots(plan))
    blocks = plan.lag_blocks * plan.column_phases
    matmuls = plan.taps * blocks * plan.tap_phases * div_ceil(plan.slots, plan.taps)
    # of a unit beside these: read-outs of products, ways through HBM, or masks and sums; loads and zeros
    tails = plan.column_phases * plan.taps * (15 + 2 * plan.channels) if plan.wide else blocks * (4 * plan.taps + 3)
    unit = 2 * slots + matmuls + tails + 16 + 4 * gate_instructions(geometry, plan.x_length)
    results = 15 + 4 * div_ceil(plan.tiles * plan.taps * padded_columns(plan), 512)
    batch = plan.images * (plan.tiles * plan.chunks * unit + results)
    return div_ceil(count_batches(geometry, plan), cores) * batch + 32 + warmup


def padded_columns(plan: DotSchedule) -> int:
    """Columns that are computed, Q or a few more: of block b, lag l and phase m is (b * lags + l) * phases + m."""
    return plan.lag_blocks * plan.lags * plan.column_phases


def x_slots(plan: DotSchedule) -> int:
    """Slots of x of one tap and column phase."""
    return plan.slots + plan.lag_blocks * plan.lags - 1


def window_of(plan: DotSchedule) -> int:
    """Slots of x that a block of slots of w meets."""
    return plan.taps + plan.lags - 1


@functools.lru_cache(maxsize=4096)
def build(geometry: RowGeometry, settings: DotSettings) -> DotSchedule:
    """The schedule of all settings."""
    common = math.gcd(geometry.stride, geometry.dilation)
    spread = geometry.dilation // common
    found = DotSchedule(
        tap_phases=geometry.stride // common,
        spread=spread,
        column_phases=min(spread, geometry.Q),
        taps=WIDE_TAPS,
        channels=P_MAX // WIDE_TAPS,
        buffers=2 if settings.wide else 4,
        wide=settings.wide,
        depth=P_MAX,
    )
    sized = _sized_wide if settings.wide else _sized_masked
    found = sized(found, geometry, settings, div_ceil(geometry.S, found.tap_phases), div_ceil(geometry.Q, spread))
    x_length, w_length = lengths_of(geometry, found, max(1, found.slots), found.lag_blocks * found.lags)
    return replace(found, x_length=x_length, w_length=w_length)


def lengths_of(geometry: RowGeometry, plan: DotSchedule, slots: int, lags: int) -> tuple[int, int]:
    """(positions of x, taps of w) that the slots of a chunk reach."""
    reach = geometry.stride * plan.spread * (plan.depth * slots + lags - 2)
    reach += geometry.stride * (plan.column_phases - 1) + geometry.dilation * (plan.tap_phases - 1)
    return reach + 1, plan.tap_phases * plan.depth * slots


def held_bytes(geometry: RowGeometry, plan: DotSchedule, slots: int, lags: int, rows: int, filters: int) -> int:
    """Bytes a partition of rows as loaded, transposed slots of x and as many transposed filters."""
    lengths = lengths_of(geometry, plan, slots, lags)
    of_slot = plan.tap_phases * rows * geometry.itemsize
    copies = 2 if plan.wide else 3
    moved = (slots + lags) * plan.column_phases * of_slot
    of_x = lengths[0] * geometry.itemsize
    of_x += gate_bytes(geometry, of_x)
    loaded = plan.buffers * (of_x + lengths[1] * geometry.itemsize)
    return loaded + copies * moved + filters * slots * of_slot


def _sized_masked(
    plan: DotSchedule, geometry: RowGeometry, settings: DotSettings, phase_taps: int, phase_lags: int
) -> DotSchedule:
    """Slots with masks, as many a chunk as asked for that fit; lags, all of them; tiles and images that leave."""
    most = div_ceil(phase_taps, P_MAX)
    plan = _with_block(plan, min(settings.block, most), phase_lags)
    lags = plan.lag_blocks * plan.lags
    slots = min(most, settings.slots)
    # either three filters are under way, or, with several images, others are kept
    for filters, room in ((3, DOT_SBUF_BYTES), (0, DOT_SBUF_BYTES - KEPT_BYTES))[: 1 + (geometry.N > 1)]:
        fixed = held_bytes(geometry, plan, 0, lags, P_MAX, filters)
        slots = min(slots, (room - fixed) // (held_bytes(geometry, plan, 1, lags, P_MAX, filters) - fixed))
    if slots > 0:
        chunks = div_ceil(most, slots)
        slots = div_ceil(most, chunks)
        keep = chunks * slots * P_MAX * plan.tap_phases * geometry.itemsize <= KEPT_BYTES
        plan = replace(plan, slots=slots, chunks=chunks, keep=keep)
        plan = _with_block(plan, min(plan.taps, slots), phase_lags)
    tiles = max(1, min(LEAVE_TOGETHER, BANK_COLUMNS // (plan.taps * padded_columns(plan)))) if geometry.N == 1 else 1
    return replace(plan, tiles=tiles, images=min(LEAVE_TOGETHER, div_ceil(geometry.N, 2)))


def _with_block(plan: DotSchedule, most: int, phase_lags: int) -> DotSchedule:
    """Taps and channels of a stationary, a power of two up to `most` taps, and the blocks of lags that a bank holds."""
    taps = 1 << max(0, most.bit_length() - 1)
    channels = P_MAX // taps
    lag_blocks = div_ceil(phase_lags, BANK_COLUMNS // channels + 1 - taps)
    return replace(plan, taps=taps, channels=channels, lag_blocks=lag_blocks, lags=div_ceil(phase_lags, lag_blocks))


def _sized_wide(
    plan: DotSchedule, geometry: RowGeometry, settings: DotSettings, phase_taps: int, phase_lags: int
) -> DotSchedule:
    """Slots of `wide`, in blocks, and as many lags as asked for that fit; if not even one does, fewer slots."""
    blocks = div_ceil(div_ceil(phase_taps, P_MAX), plan.taps)
    half_channels = geometry.C if one_block(geometry) else div_ceil(geometry.C, 2)
    rows = plan.channels * min(plan.taps, div_ceil(half_channels, plan.channels))
    # of one row at least two blocks of lags, for two cores
    least = 2 if geometry.N * geometry.C == 1 else 1
    for asked in range(min(blocks, div_ceil(settings.slots, plan.taps)), 0, -1):
        chunks = div_ceil(blocks, asked)
        slots = plan.taps * div_ceil(blocks, chunks)
        plan = replace(plan, chunks=chunks, depth=min(P_MAX, div_ceil(phase_taps, slots)))
        summed = plan.column_phases * div_ceil(rows, plan.channels) * 4 if chunks > 1 else 0
        room = SBUF_BYTES - WIDE_BYTES - held_bytes(geometry, plan, slots, 0, rows, 2)
        each = held_bytes(geometry, plan, 0, 1, rows, 2) - held_bytes(geometry, plan, 0, 0, rows, 2) + summed
        most = min(settings.lags, room // each)
        if most > 0:
            lags = div_ceil(phase_lags, max(least, div_ceil(phase_lags, most)))
            filters = slots * rows * plan.tap_phases * geometry.itemsize
            fits = 2 * filters * (chunks - 1) <= room - lags * each
            return replace(plan, slots=slots, lags=lags, keep=chunks * filters <= KEPT_BYTES and fits)
    return plan


def one_block(geometry: RowGeometry) -> bool:
    """Whether the channels are one block, and images are shared out instead."""
    return geometry.C == 1 or (geometry.N > 1 and geometry.C <= P_MAX)


def channel_blocks(geometry: RowGeometry, plan: DotSchedule) -> list[ChannelBlock]:
    """The channels in two halves, or in one block."""
    if one_block(geometry):
        return [channel_block(0, geometry.C, plan.channels)]
    return channel_halves(geometry.C, plan.channels)


def batches(geometry: RowGeometry, plan: DotSchedule) -> list[DotBatch]:
    """All batches, in order; cores take contiguous shares."""
    lags = div_ceil(geometry.Q, plan.spread)
    cuts = cut_at(geometry.N, plan.images), cut_at(lags, plan.lags if plan.wide else lags)
    return [
        DotBatch(block, k0, kn, n0, nn, l0, min(kn * plan.taps, block.length - k0 * plan.taps))
        for block in channel_blocks(geometry, plan)
        for k0, kn in cut_at(div_ceil(block.length, plan.taps), plan.tiles)
        for (n0, nn), (l0, _) in product(*cuts)
    ]


def count_batches(geometry: RowGeometry, plan: DotSchedule) -> int:
    """How many `batches` finds."""
    tiles = [div_ceil(div_ceil(block.length, plan.taps), plan.tiles) for block in channel_blocks(geometry, plan)]
    lag_blocks = div_ceil(div_ceil(geometry.Q, plan.spread), plan.lags) if plan.wide else 1
    return sum(tiles) * div_ceil(geometry.N, plan.images) * lag_blocks


def dot_units(plan: DotSchedule, some: Sequence[DotBatch]) -> list[DotUnit]:
    """The units of some batches, in order."""
    return [
        DotUnit(batch, n, k, chunk, k * plan.taps, min(plan.taps, batch.block.length - k * plan.taps))
        for batch in some
        for n in range(batch.n0, batch.n0 + batch.nn)
        for k in range(batch.k0, batch.k0 + batch.kn)
        for chunk in range(plan.chunks)
    ]


def needs_filter(plan: DotSchedule, units: Sequence[DotUnit], index: int) -> bool:
    """Whether a unit loads and transposes its filter: not if the image or lags before it did, and filters are kept."""
    unit = units[index]
    first = unit.n == 0 and unit.batch.l0 == 0
    return first or index < plan.chunks or not plan.keep


def steps_of(plan: DotSchedule, unit: DotUnit) -> list[tuple[int, int, int, int]]:
    """(g0, gn, phase, lag_block) of a unit's steps, in order: groups g0 .. g0+gn-1 and one block of lags of one column
    phase, whose products share a PSUM bank."""
    groups = cut_at(unit.groups, BANK_COLUMNS // (window_of(plan) * plan.channels))
    steps = product(groups, range(plan.column_phases), range(plan.lag_blocks))
    return [(g0, gn, phase, lag_block) for (g0, gn), phase, lag_block in steps]


def guess(geometry: RowGeometry, options: Options, cores: int, target: Target) -> list[tuple[DotSettings, float]]:
    """Settings, and ns, about; none where it does not run."""
    if unsupported(geometry, options, None, cores):
        return []
    settings = dot_settings(geometry, None, target)
    plan = build(geometry, settings)
    return [(settings, (wide_ns if plan.wide else masked_ns)(geometry, target, plan))]


def warm_up_of(target: Target) -> int:
    """Matmuls of 128 columns from which the array is at full rate: as much work as one window takes for that."""
    return math.ceil(target.window_work * target.window_ns / (P_MAX * target.tensor_column_ns))


def wide_columns(plan: DotSchedule) -> float:
    """Columns of the array a lag and channel: transposes, products, sums."""
    columns = plan.slots + plan.lags + plan.slots // plan.taps * (plan.lags + plan.taps) + plan.lags / 2
    return float(plan.chunks * (columns + (0 if plan.keep else plan.slots)) / plan.lags)


def wide_ns(geometry: RowGeometry, target: Target, plan: DotSchedule) -> float:
    """ns of a core with the way through HBM: the array's transposes, products and sums over slots of all units."""
    column_ns, fp32 = target.tensor_column_ns, geometry.itemsize == 4
    first = batches(geometry, plan)[0]
    groups = first.width
    transposes = plan.lags * plan.tap_phases + plan.slots * plan.tap_phases * (1 if plan.keep else 2)
    products = groups * div_ceil(plan.slots, plan.taps) * plan.tap_phases
    columns_ns = plan.channels * (plan.lags + plan.taps - 1) * (target.tensor_column_fp32_ns if fp32 else column_ns)
    sums_ns = 2 * groups * plan.lags * column_ns
    passes = target.transpose_passes_fp32 if fp32 else 1
    transpose_ns = (P_MAX * column_ns + target.matmul_ns) * passes
    unit_ns = transposes * transpose_ns + products * (columns_ns + target.matmul_ns) + sums_ns
    # a transpose streams as many columns as there are channels, and keeps the array waiting for the rest of its time
    streamed_ns = transposes * min(first.block.count, P_MAX) * passes * column_ns + products * columns_ns + sums_ns
    if streamed_ns < SURE * target.window_work * unit_ns:
        unit_ns = 2 * unit_ns
    units = div_ceil(count_batches(geometry, plan), PARTS) * plan.chunks * plan.column_phases
    kept_ns = transpose_ns * plan.slots * plan.tap_phases * plan.chunks if plan.keep else 0.0
    return float(WIDE_ENDS_NS + kept_ns + units * unit_ns)


def masked_ns(geometry: RowGeometry, target: Target, plan: DotSchedule) -> float:
    """ns of a core with masks: transposes and products of slots, or masks and sums on Vector, or HBM."""
    column_ns = target.tensor_column_ns
    slots = div_ceil((geometry.S - 1) * geometry.dilation + 1, P_MAX)
    lags = 7 + geometry.Q * max(1, geometry.stride // geometry.dilation)
    transpose_ns = P_MAX * column_ns + target.matmul_ns
    matmul_ns = 16 * max(8, lags) * column_ns + target.matmul_ns
    slow = target.tensor_column_fp32_ns / column_ns if geometry.itemsize == 4 else 1.0
    tensor_ns = slow * (slots * transpose_ns + 8 * div_ceil(slots, 8) * matmul_ns)
    vector_ns = MASKED_VECTOR * 2 * 8 * 16 * lags * target.vector_ns
    channel_tiles = div_ceil(geometry.C, P_MAX)
    tiles = div_ceil(geometry.N * channel_tiles, PARTS)
    moved_ns = P_MAX * (inputs_of(geometry) * geometry.W + geometry.S) * geometry.itemsize * target.hbm_byte_ns
    filters_ns = slow * div_ceil(channel_tiles, PARTS) * slots * transpose_ns
    return float(MASKED_ENDS_NS + tiles * max(tensor_ns, vector_ns, moved_ns) + filters_ns)
