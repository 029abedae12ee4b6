"""`skewed`, gradients of depthwise filters by skewed diagonals of products: settings, the tiles of a gradient, and a
bound of its time: a core's channels, matmul by matmul, each as long as Tensor Engine or DMA.

Rows are cut into units, positions of a unit into passes, taps into chunks, channels into batches, the same on any
number of cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .blocks import Run, joined
from .channels import ChannelBlock, channel_block
from .cuts import places_inside
from .depthwise import RowGeometry
from .long_kernels import too_long
from .settings import Config, Settings, count, double, half, once_a_config, setting
from .tiles import BANK_COLUMNS, P_MAX, PARTS, QUADRANT, SBUF_BYTES, cut_into, div_ceil, fits_sbuf

#: Numbers of channels that can share a matmul.
BESIDE = (1, 2, 4, 8, 16)
GROUPS_MAX = 128


@dataclass(frozen=True)
class SkewedSettings(Settings):
    """All settings."""

    algorithm = "skewed"
    tried = ("groups",)

    beside: int = count("channels that share a matmul: 1, 2, 4, 8 or 16", 1, 16)
    shifts: int = count(
        "with one channel: parts of its taps that share a matmul, at most; 1 with stride or dilation", 1, 32
    )
    groups: int = count("matmuls of channels of a batch, at most", 1, GROUPS_MAX, near=(half, double))


#: Ratio of a group's time to that of its busiest engine.
TOGETHER = 1.15
#: Bytes of an element of products and sums.
SUM_BYTES = 4
#: Without a config: bytes per partition of tiles of x and gy, batches of a core, numbers of parts of taps.
TILES_BYTES, CORE_BATCHES, SHIFTS = 163_840, 8, (4, 6, 8, 12, 16)
#: Batches with x and gy in SBUF at once; matmuls of 128 columns on zeros before the first others.
BUFFERS, WARM_UP = 3, 28
#: Quadrants of partitions: a PSUM bank has the sums of one group on each.
STACKS = 4
#: Most columns of a PSUM bank for the positions of a pass: half, as the taps share the bank.
POSITIONS_COLUMNS = BANK_COLUMNS // 2


@dataclass(frozen=True)
class SkewedSchedule:
    """Numbers of one problem. Partition (r * units + u) * images + i of tile t has unit u of image t * images + i of
    the r-th of the channels that share a matmul.

    Parts of taps of one channel are on the same partitions: unit u of x is multiplied with unit u - r * apart of gy.

    Attributes:
        beside: channels of a matmul, or parts of one channel's taps; apart: units of gy between parts, 0 with
            channels.
        images: images of a tile; tiles: tiles of images; first: first unit of a row; units: units of a row; span: taps
            of a part.
        unit: positions of gy of a unit; positions: positions of a pass; passes: passes of a unit.
        folds: parts of a pass's positions, whose products are added before they are aligned; part: positions of a part.
        taps: taps of a chunk; chunks: chunks of a span; step: elements of x between columns of a matmul; spread:
            columns from a tap to the next; columns: columns of a matmul; part_columns: columns of a part.
        window: elements of x of a unit; padded: elements of gy of a unit, with zeros at their end; both even.
        batches: batches of channels; groups: groups of the largest, in `stacks` parts with sums on separate quadrants.
    """

    beside: int
    apart: int
    images: int
    tiles: int
    first: int
    units: int
    span: int
    unit: int
    positions: int
    passes: int
    folds: int
    part: int
    taps: int
    chunks: int
    step: int
    spread: int
    columns: int
    part_columns: int
    window: int
    padded: int
    batches: tuple[ChannelBlock, ...] = ()
    groups: int = 0
    stacks: int = 1
    buffers: int = 0

    @property
    def channels(self) -> int:
        """Channels of a matmul."""
        return self.beside if self.apart == 0 else 1

    @property
    def rows_of_sums(self) -> int:
        """Rows of gradients on the partitions: `stacks` times the channels of a matmul, or its parts of taps."""
        return self.stacks * self.beside

    @property
    def quarters(self) -> int:
        """Parts of a part's positions that evacuations of its sums align."""
        return min(self.stacks, self.part) if self.folds > 1 else 1

    @property
    def quarter(self) -> int:
        """Positions of such a part."""
        return self.part // self.quarters

    @property
    def quarter_columns(self) -> int:
        """Columns of such a part."""
        far = (self.taps - 1) * self.spread
        return far + (self.part_columns - 1 - far) // max(1, self.part - 1) * (self.quarter - 1) + 1


@once_a_config
def build(geometry: RowGeometry, config: Config) -> tuple[SkewedSchedule | None, str]:
    """(schedule, "") or (None, why not), built once a config."""
    reason = config_unsupported(geometry, config)
    if not reason and geometry.lhs_dilation > 1:
        reason = f"lhs_dilation={geometry.lhs_dilation}: skewed takes 1; use mixed or vector"
    if reason:
        return None, reason
    plan = _scheduled(geometry, completed(geometry, config))
    if not _fits(geometry, plan):
        needed = needed_bytes(geometry, plan)
        return None, (
            f"N={geometry.N}, W={geometry.W}, S={geometry.S}: skewed needs {needed} bytes per partition of SBUF for x, "
            f"gy and their products, there are {SBUF_BYTES}; use dot or banded"
        )
    ns = geometry.times * skewed_ns(geometry, plan, Target.of(Rates()))
    reason = too_long(f"C={geometry.C}, W={geometry.W}: skewed", ns)
    return (None, reason) if reason else (plan, "")


def config_unsupported(geometry: RowGeometry, config: Config) -> str:
    """The error of a config's names or values; "" if it is valid."""
    if reason := SkewedSettings.unsupported_reason(config):
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


def completed(geometry: RowGeometry, config: Config) -> SkewedSettings:
    """All settings of a supported config: the candidate of the least bound that fits, or of the least bound."""
    found = [one for _, one in candidates(Target.of(Rates()), geometry, config)]
    return next((one for one in found if _fits(geometry, _scheduled(geometry, one))), found[0])


def candidates(target: Target, geometry: RowGeometry, config: Config) -> list[tuple[float, SkewedSettings]]:
    """(ns, settings) that agree with a config, the least bound first; empty if the config is refused."""
    ways = [(one, 1) for one in BESIDE if one <= geometry.C]
    if geometry.stride == 1 and geometry.dilation == 1:
        ways += [(1, one) for one in SHIFTS if one < geometry.S]
    beside, shifts = setting(config, "beside", 0), setting(config, "shifts", 0)
    if beside or shifts:
        kept = [way for way in ways if beside in (0, way[0]) and shifts in (0, way[1])]
        ways = kept or [(max(1, beside), max(1, shifts))]
    if config_unsupported(geometry, config):
        return []
    tried = [_with_groups(geometry, config, *way) for way in ways]
    found = [(skewed_ns(geometry, _scheduled(geometry, one), target), one) for one in tried]
    return sorted(found, key=lambda each: each[0])


def _with_groups(geometry: RowGeometry, config: Config, beside: int, shifts: int) -> SkewedSettings:
    """All settings, with as many groups as SBUF holds and as leave a core CORE_BATCHES batches."""
    plan = cut_rows(geometry, beside, shifts)
    each, stacks = group_bytes(geometry, plan, BUFFERS), STACKS if plan.folds > 1 else 1
    wanted = div_ceil(div_ceil(geometry.C, PARTS * CORE_BATCHES * beside), stacks) * stacks
    groups = min(TILES_BYTES // each, GROUPS_MAX, wanted)
    if groups > stacks:
        groups = groups // stacks * stacks
    return SkewedSettings.read(config, beside=beside, shifts=shifts, groups=max(1, groups))


def _fits(geometry: RowGeometry, plan: SkewedSchedule) -> bool:
    return fits_sbuf(needed_bytes(geometry, plan) * geometry.times)


def _scheduled(geometry: RowGeometry, settings: SkewedSettings) -> SkewedSchedule:
    """The schedule of settings."""
    plan = cut_rows(geometry, settings.beside, settings.shifts)
    stacks = STACKS if plan.folds > 1 and settings.groups >= STACKS else 1
    parts = PARTS * div_ceil(geometry.C, PARTS * plan.channels * settings.groups)
    some = cut_into(geometry.C, min(parts, geometry.C))
    batches = tuple(channel_block(first, number, plan.channels * stacks) for first, number in some)
    groups = max(stacks * block.length for block in batches)
    return replace(plan, batches=batches, groups=groups, stacks=stacks, buffers=min(BUFFERS, len(batches)))


def _cut_shifts(geometry: RowGeometry, shifts: int) -> tuple[int, int, int, int]:
    """(units, positions of a unit, units between parts of taps, first unit) of the smallest units that fit the
    partitions with so many parts."""
    unit = div_ceil(geometry.Q, P_MAX)
    while True:
        apart = div_ceil(geometry.S, shifts * unit)
        parts = div_ceil(geometry.S, apart * unit)
        # windows of units before `first` and from `end` on have no elements of x
        window, left = (apart + 1) * unit, geometry.pad_left
        first = max(0, (left - window) // unit + 1) if left > window else 0
        end = min(div_ceil(geometry.Q, unit) + apart * (parts - 1), div_ceil(geometry.W + left, unit))
        if end - first <= P_MAX:
            return max(1, end - first), unit, apart, first
        unit += 1


def cut_rows(geometry: RowGeometry, beside: int, shifts: int) -> SkewedSchedule:
    """The schedule, without batches, if so many channels or parts of taps share a matmul."""
    stride, dilation, images, apart, first, span = geometry.stride, geometry.dilation, 1, 0, 0, geometry.S
    if shifts > 1:
        units, unit, apart, first = _cut_shifts(geometry, shifts)
        span = apart * unit
        beside = div_ceil(geometry.S, span)
    else:
        most = P_MAX // beside
        images = div_ceil(geometry.N, div_ceil(geometry.N, most))
        unit = div_ceil(geometry.Q, min(most // images, geometry.Q))
        units = div_ceil(geometry.Q, unit)
    step = math.gcd(stride, dilation)
    positions = min(unit, P_MAX // beside, POSITIONS_COLUMNS * step // stride + 1)
    folds, passes, part = 1, div_ceil(unit, positions), QUADRANT // beside
    positions = div_ceil(unit, passes)
    if beside * part == QUADRANT and positions > part:
        # engines address partitions by quadrants
        folds = div_ceil(positions, part)
        positions = folds * part
        passes = div_ceil(unit, positions)
    taps = (BANK_COLUMNS - 1 - (positions - 1) * stride // step) * step // dilation + 1
    chunks = div_ceil(span, taps)
    taps = div_ceil(span, chunks)
    window = (passes * positions - 1) * stride + (chunks * taps - 1) * dilation + 1
    padded = passes * positions
    part, far = positions // folds, (taps - 1) * dilation
    columns, part_columns = (((count - 1) * stride + far) // step + 1 for count in (positions, part))
    of_rows = beside, apart, images, div_ceil(geometry.N, images), first, units, span, unit, positions, passes
    window, padded = window + window % 2, padded + padded % 2
    return SkewedSchedule(
        *of_rows, folds, part, taps, chunks, step, dilation // step, columns, part_columns, window, padded
    )


def x_windows(plan: SkewedSchedule, geometry: RowGeometry) -> tuple[int, int, int]:
    """(elements between windows of x, first element of the first one, elements of one)."""
    apart = plan.unit * geometry.stride
    return apart, plan.first * apart - geometry.pad_left, plan.window


def unit_runs(units: int, apart: int, first: int, window: int, size: int) -> tuple[Run, ...]:
    """Runs of windows that begin `apart` elements apart, the first one at element `first` of `size`."""
    found = [places_inside(first + unit * apart, 1, window, size) for unit in range(units)]
    return joined(Run(unit, 1, apart, 1, *inside) for unit, inside in enumerate(found))


def group_bytes(geometry: RowGeometry, plan: SkewedSchedule, buffers: int) -> int:
    """Bytes a partition of a group's x and gy, and of its products, aligned products, sums and accumulators of two
    batches."""
    units = buffers * plan.tiles * (plan.window + plan.beside * plan.padded) * geometry.itemsize
    return units + 8 * plan.chunks * (plan.columns + plan.part_columns + 2 * plan.taps)


def needed_bytes(geometry: RowGeometry, plan: SkewedSchedule) -> int:
    """Bytes a partition of SBUF, at most."""
    return plan.groups * group_bytes(geometry, plan, plan.buffers)


def skewed_ns(geometry: RowGeometry, plan: SkewedSchedule, target: Target) -> float:
    """A core's ns: groups one after the other, each as long as its matmuls, of products and of their fp32 sums,
    or as its loads, runs of units of x and gy; a round trip of DMA."""
    item, gy = geometry.itemsize, plan.beside // plan.channels
    passes, column_ns = 1.0, target.tensor_column_ns
    sums_ns = target.tensor_column_fp32_ns / target.matmul_passes_fp32
    if item == SUM_BYTES:
        passes, column_ns = target.matmul_passes_fp32, sums_ns
    streamed = max(plan.columns, target.matmul_columns_min)
    array_ns = plan.tiles * plan.passes * passes * (streamed * column_ns + target.matmul_ns)
    folded = plan.part_columns if plan.folds > 1 else 0
    array_ns += target.onezero_passes_fp32 * sums_ns * (folded + plan.quarter * plan.taps / plan.stacks)
    lines = plan.tiles * plan.channels * plan.units * plan.images
    load_ns = lines * (gy * target.run_ns(plan.unit * item) + target.run_ns(plan.window * item)) / target.dma_engines
    each_ns = TOGETHER * max(plan.chunks * array_ns, load_ns)
    return float(target.round_trip_ns + plan.groups * div_ceil(len(plan.batches), PARTS) * each_ns)
