"""`dot`: dot products of whole rows. Settings, schedule, what it does not run.

Its cuts are phases of taps and columns, chunks of taps, blocks of lags, tiles and batches. None of it depends on the
number of cores.

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

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .channels import ChannelBlock, channel_block, channel_halves
from .depthwise import Options, RowGeometry, instructions_unsupported
from .settings import Config, Settings, count, double, half, setting, warm_up
from .tiles import BANK_COLUMNS, P_MAX, PARTS, SBUF_BYTES, div_ceil

#: Slots of a stationary that a config can ask for; most columns of a row, and rows that are on their way.
BLOCKS, COLUMNS_MOST, BUFFERS = (1, 2, 4, 8, 16), 64, 4
#: Matmuls on zeros that a search tries, and rows from which they pay.
WARM_UP, MANY_ROWS = 24, 1024
#: Bytes a partition of SBUF for rows as loaded, transposed slots and kept filters; sums and products take the rest.
DOT_SBUF_BYTES = 180_000
#: Bytes a partition of transposed filters that are kept for all images of a batch.
KEPT_BYTES = 65_536
#: Channel tiles, or images, that leave together.
LEAVE_TOGETHER = 4
#: ns from the first load to the first sums and from the last sums to the end of the last store.
ENDS_NS = 5000.0
#: Share of the masks and sums that Vector is left with, a column of lags and channels.
MASKED_VECTOR = 0.75


@dataclass(frozen=True)
class DotSettings(Settings):
    """All settings."""

    algorithm = "dot"
    tried = ("block", "slots", "warmup")
    removed = tuple((name, "it takes at most 64 columns a row; use banded for more") for name in ("wide", "lags"))

    slots: int = count("slots of a chunk of taps, at most; fewer where they do not fit", 1, 128, near=(half, double))
    block: int = count("slots of a stationary: 1, 2, 4, 8 or 16", 1, 16, default=8, near=(2, 4, 8, 16))
    warmup: int = warm_up("by shape", near=(0, WARM_UP))


def dot_settings(geometry: RowGeometry, config: Config, target: Target | None = None) -> DotSettings:
    """All settings of a config: as many slots as fit. target: other prices than those of trn2.toml."""
    warmup = warm_up_of(target or Target.of(Rates())) if geometry.N * geometry.C >= MANY_ROWS else 0
    found = DotSettings.read(config, geometry, slots=32, warmup=warmup)
    plan = build(geometry, found)
    # without slots nothing fits, which `unsupported` says
    slots = plan.slots * plan.members or found.slots
    return found if "slots" in dict(config or ()) else replace(found, slots=slots)


def dot_config_unsupported(config: Config) -> str:
    """What is wrong with a config; "" if nothing is."""
    reason = DotSettings.unsupported_reason(config)
    if reason != "":
        return reason
    block = setting(config, "block", 1)
    return "" if block in BLOCKS else f"config block={block}: must be 1, 2, 4, 8 or 16 slots of a stationary"


@dataclass(frozen=True)
class DotSchedule:
    """Numbers of one problem; the same on every core."""

    #: tap phases R and D; column phases, min(D, Q)
    tap_phases: int
    spread: int
    column_phases: int
    #: taps (slots) and channels of a stationary
    taps: int
    channels: int
    #: slots (0 if not even the fewest fit SBUF) of 128 taps, of each phase, and chunks
    slots: int = 0
    chunks: int = 1
    #: lags of a block and blocks: lags >= ceil(Q / D)
    lags: int = 1
    lag_blocks: int = 1
    #: positions of x and taps of w in one chunk, as loaded
    x_length: int = 0
    w_length: int = 0
    #: of images that are summed how many a chunk has, and chunks of the taps of each
    members: int = 1
    tap_chunks: int = 1
    #: channel tiles, or images, of one batch
    tiles: int = 1
    images: int = 1
    #: whether transposed filters stay in SBUF from image to image
    keep: bool = False


@dataclass(frozen=True)
class DotBatch:
    """Tiles k0 .. k0+kn-1 of a channel block and images n0 .. n0+nn-1; kn or nn is 1. They leave in one store each.

    width: channels that a row of results has in one image.
    """

    block: ChannelBlock
    k0: int
    kn: int
    n0: int
    nn: int
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
    reason = dot_config_unsupported(config)
    if reason != "":
        return reason
    if options.strict_nonfinite:
        return "strict_nonfinite=True: dot sums channels together under a mask; use vector"
    if geometry.lhs_dilation > 1:
        return f"lhs_dilation={geometry.lhs_dilation}: dot takes 1; use mixed or vector"
    if geometry.Q > COLUMNS_MOST:
        return f"Q={geometry.Q}: dot computes at most {COLUMNS_MOST} columns a row; use banded or vector"
    settings = dot_settings(geometry, config)
    plan = build(geometry, settings)
    if plan.slots == 0:
        return (
            f"stride={geometry.stride}, dilation={geometry.dilation}: rows of 128 taps and their columns must fit "
            f"SBUF, {SBUF_BYTES} bytes per partition; use vector"
        )
    return instructions_unsupported(geometry, "dot", count_dot_instructions(geometry, plan, settings.warmup, cores))


def count_dot_instructions(geometry: RowGeometry, plan: DotSchedule, warmup: int, cores: int) -> int:
    """Instructions of the busiest core, at most: loads, transposes and evacuations, matmuls, tails."""
    phases = plan.members * plan.tap_phases
    slots = phases * (plan.slots + plan.column_phases * x_slots(plan))
    blocks = plan.lag_blocks * plan.column_phases
    matmuls = plan.taps * blocks * phases * div_ceil(plan.slots, plan.taps)
    # of a unit besides these: masks and sums; loads and zeros
    unit = 2 * slots + matmuls + blocks * (4 * plan.taps + 3) + 16 * plan.members
    results = 15 + 4 * div_ceil(plan.tiles * plan.taps * padded_columns(plan), 512)
    batch = plan.images * (plan.tiles * plan.chunks * unit + results)
    return div_ceil(count_batches(geometry, plan), cores) * batch + 32 + warmup


def images_of(geometry: RowGeometry, plan: DotSchedule, unit: DotUnit) -> tuple[int, int]:
    """(first, how many) of the images that a unit sums over."""
    first = unit.chunk // plan.tap_chunks * plan.members
    return first, min(plan.members, geometry.summed - first)


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
    plan = DotSchedule(
        tap_phases=geometry.stride // common,
        spread=spread,
        column_phases=min(spread, geometry.Q),
        taps=1,
        channels=P_MAX,
    )
    plan = _sized(plan, geometry, settings, div_ceil(geometry.S, plan.tap_phases), div_ceil(geometry.Q, spread))
    x_length, w_length = lengths_of(geometry, plan, max(1, plan.slots))
    return replace(plan, x_length=x_length, w_length=w_length)


def lengths_of(geometry: RowGeometry, plan: DotSchedule, slots: int) -> tuple[int, int]:
    """(positions of x, taps of w) that the slots of a chunk reach."""
    reach = geometry.stride * plan.spread * (P_MAX * slots + plan.lag_blocks * plan.lags - 2)
    reach += geometry.stride * (plan.column_phases - 1) + geometry.dilation * (plan.tap_phases - 1)
    return reach + 1, plan.tap_phases * P_MAX * slots


def held_bytes(geometry: RowGeometry, plan: DotSchedule, slots: int, filters: int) -> int:
    """Bytes a partition of rows as loaded, transposed slots of x and as many transposed filters."""
    of_slot = plan.members * plan.tap_phases * P_MAX * geometry.itemsize
    moved = (slots + plan.lag_blocks * plan.lags) * plan.column_phases * of_slot
    loaded = BUFFERS * plan.members * sum(lengths_of(geometry, plan, slots)) * geometry.itemsize
    return loaded + 3 * moved + filters * slots * of_slot


def _sized(
    plan: DotSchedule, geometry: RowGeometry, settings: DotSettings, phase_taps: int, phase_lags: int
) -> DotSchedule:
    """Slots, as many a chunk as asked for that fit; lags, all of them; tiles and images that leave."""
    most = div_ceil(phase_taps, P_MAX)
    plan = _with_block(plan, min(settings.block, most), phase_lags)
    slots = min(most, settings.slots)
    # either three filters are under way, or, with several images, others are kept
    for filters, room in ((3, DOT_SBUF_BYTES), (0, DOT_SBUF_BYTES - KEPT_BYTES))[: 1 + (geometry.N > 1)]:
        fixed = held_bytes(geometry, plan, 0, filters)
        slots = min(slots, (room - fixed) // (held_bytes(geometry, plan, 1, filters) - fixed))
    if slots > 0:
        chunks = div_ceil(most, slots)
        slots = div_ceil(most, chunks)
        plan = _with_block(replace(plan, slots=slots), min(plan.taps, slots), phase_lags)
        members = max(1, min(geometry.summed, settings.slots // slots)) if chunks == 1 else 1
        # the first whose rows fit
        more = (replace(plan, members=count) for count in range(members, 1, -1))
        fitting = (one for one in more if held_bytes(geometry, one, slots, 3) <= DOT_SBUF_BYTES)
        plan = next(fitting, plan)
        plan = replace(
            plan,
            keep=chunks * slots * P_MAX * plan.tap_phases * geometry.itemsize <= KEPT_BYTES,
            tap_chunks=chunks,
            chunks=chunks * div_ceil(geometry.summed, plan.members),
        )
    tiles = max(1, min(LEAVE_TOGETHER, BANK_COLUMNS // (plan.taps * padded_columns(plan)))) if geometry.N == 1 else 1
    return replace(plan, tiles=tiles, images=min(LEAVE_TOGETHER, div_ceil(geometry.N, 2)))


def _with_block(plan: DotSchedule, most: int, phase_lags: int) -> DotSchedule:
    """Taps and channels of a stationary, a power of two up to `most` taps, and the blocks of lags that a bank holds."""
    taps = 1 << max(0, most.bit_length() - 1)
    channels = P_MAX // taps
    lag_blocks = div_ceil(phase_lags, BANK_COLUMNS // channels + 1 - taps)
    return replace(plan, taps=taps, channels=channels, lag_blocks=lag_blocks, lags=div_ceil(phase_lags, lag_blocks))


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
    found = []
    for block in channel_blocks(geometry, plan):
        num_tiles = div_ceil(block.length, plan.taps)
        for k0 in range(0, num_tiles, plan.tiles):
            kn = min(plan.tiles, num_tiles - k0)
            width = min(kn * plan.taps, block.length - k0 * plan.taps)
            for n0 in range(0, geometry.N, plan.images):
                nn = min(plan.images, geometry.N - n0)
                found.append(DotBatch(block=block, k0=k0, kn=kn, n0=n0, nn=nn, width=width))
    return found


def count_batches(geometry: RowGeometry, plan: DotSchedule) -> int:
    """How many `batches` finds."""
    tiles = (div_ceil(block.length, plan.taps) for block in channel_blocks(geometry, plan))
    return sum(div_ceil(some, plan.tiles) for some in tiles) * div_ceil(geometry.N, plan.images)


def dot_units(geometry: RowGeometry, plan: DotSchedule, first: int, count: int) -> list[DotUnit]:
    """The units of batches first .. first+count-1, in order."""
    found = []
    every = batches(geometry, plan)
    for index in range(first, first + count):
        batch = every[index]
        for n in range(batch.n0, batch.n0 + batch.nn):
            for k in range(batch.k0, batch.k0 + batch.kn):
                r0 = k * plan.taps
                groups = min(plan.taps, batch.block.length - r0)
                for chunk in range(plan.chunks):
                    found.append(DotUnit(batch=batch, n=n, k=k, chunk=chunk, r0=r0, groups=groups))
    return found


def needs_filter(plan: DotSchedule, units: Sequence[DotUnit], index: int) -> bool:
    """Whether a unit loads and transposes its filter: not if the image before it did, and filters are kept."""
    return units[index].n == 0 or index < plan.chunks or not plan.keep


def steps_of(plan: DotSchedule, unit: DotUnit) -> list[tuple[int, int, int, int]]:
    """(g0, gn, phase, lag_block) of a unit's steps, in order: groups g0 .. g0+gn-1 and one block of lags of one column
    phase, whose products share a PSUM bank."""
    most = BANK_COLUMNS // (window_of(plan) * plan.channels)
    steps = []
    for g0 in range(0, unit.groups, most):
        for phase in range(plan.column_phases):
            for lag_block in range(plan.lag_blocks):
                steps.append((g0, min(most, unit.groups - g0), phase, lag_block))
    return steps


def guess(geometry: RowGeometry, options: Options, cores: int, target: Target) -> list[tuple[DotSettings, float]]:
    """Settings, and ns, about; none where it does not run."""
    if unsupported(geometry, options, None, cores):
        return []
    settings = dot_settings(geometry, None, target)
    return [(settings, ns_of(geometry, target, build(geometry, settings)))]


def warm_up_of(target: Target) -> int:
    """Matmuls of 128 columns from which the array is at full rate: as much work as one window takes for that."""
    return math.ceil(target.window_work * target.window_ns / (P_MAX * target.tensor_column_ns))


def ns_of(geometry: RowGeometry, target: Target, plan: DotSchedule) -> float:
    """ns of a core: transposes and products of slots, or masks and sums on Vector, or HBM."""
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
    moved_ns = P_MAX * (geometry.W + geometry.S) * geometry.itemsize * target.hbm_byte_ns
    filters_ns = slow * div_ceil(channel_tiles, PARTS) * slots * transpose_ns
    # images that are summed on the array have masks and sums in common
    images, summed = geometry.summed, div_ceil(geometry.summed, plan.members)
    tile_ns = max(images * tensor_ns, summed * vector_ns, images * moved_ns)
    return float(ENDS_NS + tiles * tile_ns + filters_ns)
