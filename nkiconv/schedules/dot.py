"""`dot`: dot products of whole rows. Settings, schedule, unsupported problems.

It cuts the work into phases of taps and columns, chunks of taps, blocks of lags, and tiles, the same on any number of
cores.

With g = gcd(stride, dilation), R = stride / g and D = dilation / g, tap s = R s' + r and column q = D q' + m meet at
position stride * (D (s' + q') + m) + dilation * r of the padded row. Each of the R tap phases and D column phases is
thus a convolution without stride or dilation, and a lag q' is a shift of s'. Position s' = base + n p + t is at
partition p, slot t; lag q' of slot t is slot t + q'.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from itertools import product

from ..simulator.timing.target import Target
from .channels import ChannelBlock, channel_block, channel_halves
from .depthwise import Options, RowGeometry, gate_bytes, input_unsupported
from .prices import Prices
from .row_copies import copied
from .settings import Config, Settings, count, double, half, setting, warm_up
from .tiles import BANK_COLUMNS, P_MAX, PARTS, SBUF_BYTES, cut_at, div_ceil

#: Slots of a stationary operand that a config can ask for.
BLOCKS = (1, 2, 4, 8, 16)
#: Most columns of a row.
COLUMNS_MAX = 64
#: Matmuls on zeros that a search tries, and least rows with which they pay.
WARM_UP, MANY_ROWS = 24, 1024
#: Buffers of rows as loaded.
BUFFERS = 4
#: Bytes a partition of SBUF for rows as loaded and transposed slots; sums and products take the rest.
DOT_SBUF_BYTES = 180_000
#: ns from the first load to the first sums and from the last sums to the end of the last store.
ENDS_NS = 5000.0


@dataclass(frozen=True)
class DotSettings(Settings):
    """All settings."""

    algorithm = "dot"
    tried = ("block", "slots", "warmup")

    slots: int = count(
        "slots of a chunk of taps, at most; fewer if they do not fit", 1, 128, default=32, near=(half, double)
    )
    block: int = count("slots of a stationary: 1, 2, 4, 8 or 16", 1, 16, default=8, near=(2, 4, 8, 16))
    warmup: int = warm_up("by shape", near=(0, WARM_UP))


def complete(geometry: RowGeometry, options: Options, config: Config, target: Target) -> DotSettings:
    """All settings of a config."""
    return DotSettings.read(config, warmup=warm_up_of(target) if geometry.N * geometry.C >= MANY_ROWS else 0)


def config_unsupported(geometry: RowGeometry, options: Options, config: Config) -> str:
    """The error of a config, or why dot never runs the problem; "" if neither."""
    if reason := DotSettings.unsupported_reason(config) or input_unsupported(geometry, "dot"):
        return reason
    if setting(config, "block", 1) not in BLOCKS:
        return f"config block={setting(config, 'block', 1)}: must be 1, 2, 4, 8 or 16 slots of a stationary"
    if options.strict_nonfinite:
        return "strict_nonfinite=True: dot sums channels together under a mask; use vector"
    if geometry.Q > COLUMNS_MAX:
        return f"Q={geometry.Q}: dot computes at most {COLUMNS_MAX} columns a row; use banded or vector"
    return ""


@dataclass(frozen=True)
class DotSchedule:
    """Numbers of one problem; the same on every core."""

    warmup: int  # matmuls on zeros
    tap_phases: int  # R
    spread: int  # D
    column_phases: int  # min(D, Q)
    taps: int = 1  # slots of a stationary
    channels: int = P_MAX  # of a stationary
    slots: int = 0  # of a chunk, 128 * slots taps of each phase; 0 if one slot does not fit SBUF
    chunks: int = 1
    lags: int = 1  # of a block
    #: lags * lag_blocks >= ceil(Q / D); column of block b, lag l and phase m: (b * lags + l) * column_phases + m
    lag_blocks: int = 1
    x_length: int = 0  # positions of x in one chunk, as loaded
    w_length: int = 0  # taps of w in one chunk, as loaded


@dataclass(frozen=True)
class DotUnit:
    """A chunk of taps of a tile: `groups` groups of `channels` channels of a block of image n, from r0 of each row."""

    block: ChannelBlock
    n: int
    r0: int
    groups: int
    chunk: int


def plan_unsupported(geometry: RowGeometry, options: Options, plan: DotSchedule) -> str:
    """Why memory does not take a schedule; "" if it does."""
    if plan.slots == 0:
        return (
            f"stride={geometry.stride}, dilation={geometry.dilation}: rows of 128 taps and their columns must fit "
            f"SBUF, {SBUF_BYTES} bytes per partition; use vector"
        )
    return ""


def x_slots(plan: DotSchedule) -> int:
    """Slots of x of one tap and column phase."""
    return plan.slots + plan.lag_blocks * plan.lags - 1


def window_of(plan: DotSchedule) -> int:
    """Slots of x that are multiplied with a block of slots of w."""
    return plan.taps + plan.lags - 1


@functools.lru_cache(maxsize=4096)
def build(geometry: RowGeometry, options: Options, settings: DotSettings) -> DotSchedule:
    """The schedule of all settings: at most their slots a chunk, as many as fit; all lags."""
    common = math.gcd(geometry.stride, geometry.dilation)
    tap_phases, spread = geometry.stride // common, geometry.dilation // common
    lags, most = div_ceil(geometry.Q, spread), div_ceil(div_ceil(geometry.S, tap_phases), P_MAX)
    plan = DotSchedule(settings.warmup, tap_phases, spread, min(spread, geometry.Q))
    plan = _with_block(plan, min(settings.block, most), lags)
    fixed = held_bytes(geometry, plan, 0)
    slots = min(most, settings.slots, (DOT_SBUF_BYTES - fixed) // (held_bytes(geometry, plan, 1) - fixed))
    if slots > 0:
        chunks = div_ceil(most, slots)
        slots = div_ceil(most, chunks)
        plan = _with_block(replace(plan, slots=slots, chunks=chunks), min(plan.taps, slots), lags)
    x_length, w_length = lengths_of(geometry, plan, max(1, plan.slots))
    return replace(plan, x_length=x_length, w_length=w_length)


def lengths_of(geometry: RowGeometry, plan: DotSchedule, slots: int) -> tuple[int, int]:
    """(positions of x, taps of w) of the slots of a chunk."""
    reach = geometry.stride * plan.spread * (P_MAX * slots + plan.lag_blocks * plan.lags - 2)
    reach += geometry.stride * (plan.column_phases - 1) + geometry.dilation * (plan.tap_phases - 1)
    return reach + 1, plan.tap_phases * P_MAX * slots


def held_bytes(geometry: RowGeometry, plan: DotSchedule, slots: int) -> int:
    """Bytes a partition of rows as loaded, and of transposed slots of x and w of three units."""
    of_x, of_w = (length * geometry.itemsize for length in lengths_of(geometry, plan, slots))
    loaded = BUFFERS * (of_x + gate_bytes(geometry, of_x) + of_w)
    transposed = (slots + plan.lag_blocks * plan.lags) * plan.column_phases + slots
    return loaded + 3 * transposed * plan.tap_phases * P_MAX * geometry.itemsize


def _with_block(plan: DotSchedule, most: int, phase_lags: int) -> DotSchedule:
    """The schedule with a stationary operand of the largest power of two up to `most` taps, and with blocks of lags
    that a PSUM bank holds."""
    taps = 1 << max(0, most.bit_length() - 1)
    channels = P_MAX // taps
    lag_blocks = div_ceil(phase_lags, BANK_COLUMNS // channels + 1 - taps)
    return replace(plan, taps=taps, channels=channels, lag_blocks=lag_blocks, lags=div_ceil(phase_lags, lag_blocks))


def channel_blocks(geometry: RowGeometry, plan: DotSchedule) -> list[ChannelBlock]:
    """The channels in two halves, or in one block if the cores share images instead."""
    if geometry.N > 1 and geometry.C <= P_MAX:
        return [channel_block(0, geometry.C, plan.channels)]
    return channel_halves(geometry.C, plan.channels)


def tiles(geometry: RowGeometry, plan: DotSchedule) -> list[DotUnit]:
    """The first chunks of all tiles, in order; cores take contiguous shares."""
    return [
        DotUnit(block, n, r0, groups, 0)
        for block in channel_blocks(geometry, plan)
        for r0, groups in cut_at(block.length, plan.taps)
        for n in range(geometry.N)
    ]


def steps_of(plan: DotSchedule, unit: DotUnit) -> list[tuple[int, int, int, int]]:
    """(g0, gn, phase, lag_block) of a unit's steps, in order: products of groups g0 .. g0+gn-1 and one block of lags of
    one column phase, which share a PSUM bank."""
    groups = cut_at(unit.groups, BANK_COLUMNS // (window_of(plan) * plan.channels))
    steps = product(groups, range(plan.column_phases), range(plan.lag_blocks))
    return [(g0, gn, phase, lag_block) for (g0, gn), phase, lag_block in steps]


def first(geometry: RowGeometry, options: Options, target: Target) -> list[DotSettings]:
    """The settings that a search begins with."""
    return [complete(geometry, options, None, target)]


def warm_up_of(target: Target) -> int:
    """Matmuls of 128 columns that bring the Tensor Engine to full rate: the work of one throttle window at its
    threshold."""
    return math.ceil(target.window_work * target.window_ns / (P_MAX * target.tensor_column_ns))


def bound_ns(geometry: RowGeometry, options: Options, plan: DotSchedule, target: Target) -> float:
    """ns of a core: its units one after the other, each as long as its busiest engine."""
    geometry, copies_ns = copied(geometry, options, target)
    prices, window, blocks = Prices(target, geometry), window_of(plan), plan.column_phases * plan.lag_blocks
    tiles = sum(div_ceil(block.length, plan.taps) for block in channel_blocks(geometry, plan)) * geometry.N
    units, groups = div_ceil(tiles, PARTS) * plan.chunks, min(plan.taps, geometry.C)
    products, slots = groups * blocks * window, plan.tap_phases * (plan.slots + plan.column_phases * x_slots(plan))
    matmuls = groups * blocks * plan.tap_phases * div_ceil(plan.slots, plan.taps)
    tensor_ns = matmuls * prices.matmul_ns(window * plan.channels) + slots * prices.transpose_ns()
    # Vector masks channels and sums channels and lags
    vector_ns = products * (2 * plan.channels + plan.lags) * target.vector_ns
    return float(copies_ns + ENDS_NS + units * max(tensor_ns, vector_ns))
