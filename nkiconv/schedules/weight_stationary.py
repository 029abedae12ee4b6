"""`weight_stationary`: settings, unsupported reasons, and its Schedule.

Outputs are in blocks of neighbours on each axis (`block_axes`). Some outputs of a block are packed along the columns
of a stationary, the others are computed in further sweeps, each with its own stationaries:

    PSUM[(u, segment, k), z, m, j] += F[e]^T X[(segment, c), z .., m * apart + e, ..]

    F[e][(segment, c), (u, segment, k)] = w[k, c, tap of output u at element e of a block's window], or zero.

Three kinds of problems use such blocks:

- groups: a row tile of 32 or 64 rows of the Tensor Engine holds the input channels of some groups, and 128 / rows of
  them work in parallel, on other groups (an M tile), or on other images or rows if there are too few groups.
- transposed convolutions: each of lhs_dilation neighbours (a phase) has its own taps and skips the zeros between
  elements. With few output channels phases share the columns, with few input channels several segments of x share the
  partitions, with block-diagonal filters.
- few output channels (`m_packing`): rows of y and columns of taps share the columns; sums are shifted and added.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from . import m_packing
from .block_axes import BlockAxis, block_axis
from .block_schedule import (
    Place,
    Resident,
    RowTile,
    Schedule,
    Sweep,
    count_items,
    home_first,
    item_sizes,
    items_of_groups,
    items_of_phases,
)
from .geometry import Geometry, num_phases, num_taps
from .long_kernels import too_many_tiles
from .m_packing import PackedSettings
from .options import Options, prologue_bytes, taken_unsupported
from .prices import met_outputs
from .settings import (
    ALL,
    WARM_UPS,
    Config,
    Settings,
    choice,
    count,
    declarations,
    double,
    half,
    setting,
    warm_up,
)
from .tiles import (
    BANK_COLUMNS,
    P_MAX,
    PARTS,
    QUADRANT,
    SBUF_BYTES,
    cut,
    cut_at,
    cut_into,
    div_ceil,
    fits_sbuf,
    slot_for,
    some_of,
)

ALGORITHM = "weight_stationary"
#: Rows of a row tile, and outputs of a block: with both, the parts of the columns begin at partitions that engines
#: address.
TILE_ROWS = (32, 64)
BLOCKS = ((2, 2), (1, 4), (4, 1), (1, 2), (2, 1))
#: Phases that share the columns of a stationary: none, those along columns, along rows and columns, or on all axes.
BESIDE = ("none", "columns", "rows", "planes")
SHARDS = ("channels", "outputs")
Y_BYTES = 16_384
#: Banks of a core's first results that accumulate together, one K tile after the other; two are left for the next ones.
BANKS_TOGETHER = 7
#: A number of warm-up matmuls on zeros that a search tries besides WARM_UPS.
WARM_UP = 30
#: Cached schedules; candidates are compared by them.
PLANS_KEPT = 128
#: The most phases of outputs: each has its own filters and evacuations.
PHASES_MAX = 65_536
#: Bytes per partition of the stationaries of an M tile of groups, and of filters of a weight-resident group of
#: transposed convolutions.
GROUPS_FILTER_BYTES, FILTER_BYTES = 40_960, 90_112
#: Buffers of stationaries of groups; output tiles of x in SBUF; the most of groups, where it has room.
FILTER_BUFFERS, X_BUFFERS, GROUPS_X_BUFFERS = 2, 2, 4


@dataclass(frozen=True)
class GroupsSettings(Settings):
    """All settings of problems with groups; the first three are given together."""

    algorithm = "weight_stationary of groups"
    tried = ("warmup",)
    keeps = "filters of groups and their rows"

    rows: int = count("rows of a row tile: 32 or 64", 1, P_MAX)
    height: int = count("rows of outputs of a block", 1, P_MAX)
    width: int = count("columns of outputs of a block", 1, P_MAX)
    warmup: int = warm_up(24, near=WARM_UPS)


@dataclass(frozen=True)
class PhasesSettings(Settings):
    """All settings of transposed convolutions."""

    algorithm = "weight_stationary of transposed problems"
    tried = ("y_bytes", "warmup", "shard")
    keeps = "filters of a block of output channels and x of two output tiles"
    instead = "implicit_gemm, or fewer channels"

    shard: str = choice("what the two cores share: channels of y, or outputs", SHARDS, near=ALL)
    beside: str = choice("phases packed along the columns of a stationary", BESIDE, default="none")
    segments: int = count(
        "segments of x packed along the partitions; 2 or 4 need 32, 64 or 128 channels", 1, 4, default=1
    )
    y_bytes: int = count(
        "results of an output tile", 256, SBUF_BYTES, default=Y_BYTES, near=(half, double), unit="bytes per partition"
    )
    warmup: int = warm_up(20, near=(*WARM_UPS, WARM_UP))

    def m_tile(self, K: int) -> int:
        """The most output channels of an M tile: all that fit, of a core's channels where the cores share them."""
        return min(P_MAX // self.segments, div_ceil(K, PARTS if self.shard == "channels" else 1))


#: Settings of transposed problems only.
PHASES = {name for name in declarations(PhasesSettings) if name != "warmup"}


@functools.lru_cache(maxsize=PLANS_KEPT)
def planned(geometry: Geometry, options: Options, settings: Any) -> tuple[Schedule | None, str]:
    """(Schedule, "") of complete settings, or (None, unsupported reason)."""
    reserved, num_bytes = prologue_bytes(options.prologue, geometry, geometry.planes.size), sbuf_bytes
    if isinstance(settings, PackedSettings):
        reserved += m_packing.statistics_bytes(geometry, options)
        made, num_bytes = m_packing.build_packed(geometry, settings), m_packing.packed_bytes
    elif isinstance(settings, GroupsSettings):
        reserved += m_packing.block_statistics_bytes(geometry, options, P_MAX)
        made = _of_groups(geometry, settings)
    else:
        if reason := _packing_reason(geometry, options, settings):
            return None, reason
        tiles = geometry.times * num_tiles(geometry, settings)
        if reason := too_many_tiles(f"C={geometry.C}, K={geometry.K}: {ALGORITHM}", tiles):
            return None, reason
        reserved += m_packing.block_statistics_bytes(geometry, options, settings.m_tile(geometry.K))
        made = _of_phases(geometry, settings)
    every = [] if made is None else [made]
    if made is not None and made.gathers:
        every = [replace(made, buffers=count) for count in range(GROUPS_X_BUFFERS, X_BUFFERS - 1, -1)]
    fits = (one for one in every if fits_sbuf(num_bytes(geometry, one, options.residual) + reserved))
    made = next(fits, None)
    return made, "" if made else str(settings.memory_unsupported(geometry))


def unsupported_reason(geometry: Geometry, options: Options, config: Config) -> str:
    """Why a config does not run a problem, from settings and sizes alone; "" if nothing speaks against it."""
    if geometry.groups > 1:
        reason = _groups_reason(geometry, config)
        return reason or taken_unsupported(geometry, options, ALGORITHM, True, "other groups' channels")
    if settings_class(geometry, config) is PackedSettings:
        return m_packing.packed_reason(geometry, options, config)
    return PhasesSettings.unsupported_reason(config) or unsupported_phases(geometry)


def unsupported_phases(geometry: Geometry) -> str:
    """Why a problem of one group has no phases; "" if it has."""
    steps = (geometry.planes.lhs_dilation, geometry.rows.lhs_dilation, geometry.columns.lhs_dilation)
    if not geometry.flipped and steps == (1, 1, 1):
        return (
            "feature_group_count=1, lhs_dilation=1: weight_stationary has phases of transposed convolutions, or of "
            "lhs_dilation above 1; use implicit_gemm"
        )
    phases = math.prod(num_phases(axis) for axis in geometry.axes)
    if phases > PHASES_MAX:
        return (
            f"lhs_dilation={steps}: weight_stationary takes at most {PHASES_MAX} phases, not {phases}; use "
            f"implicit_gemm"
        )
    if geometry.frames is not None:
        return "initial_frames: weight_stationary takes none of transposed convolutions; use implicit_gemm"
    if geometry.packed > 0 or (geometry.K > 1 and geometry.w_strides[0] != num_taps(geometry)):
        return (
            "filter_ref: weight_stationary takes filters [C, K, ...], as torch stores them for transposed "
            "convolutions; use implicit_gemm"
        )
    return ""


def _groups_reason(geometry: Geometry, config: Config) -> str:
    if reason := GroupsSettings.unsupported_reason(config):
        return reason
    rows, height, width = (setting(config, name, 0) for name in ("rows", "height", "width"))
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    outputs = [math.prod(block) for block in BLOCKS if _has_phases(geometry, *block)]
    if num_phases(geometry.planes) > 1 or not outputs:
        steps = (geometry.planes.lhs_dilation, geometry.rows.lhs_dilation, geometry.columns.lhs_dilation)
        return f"lhs_dilation={steps}: {ALGORITHM} of groups takes blocks of at most 4 phases; use implicit_gemm"
    if per_c > TILE_ROWS[-1] or per_k > P_MAX // min(outputs):
        most = f"at most {TILE_ROWS[-1]} and {P_MAX // min(outputs)}"
        return f"C / groups={per_c}, K / groups={per_k}: {ALGORITHM} takes {most}; use implicit_gemm"
    if (rows, height, width) == (0, 0, 0):
        return ""
    given = f"config rows={rows} height={height} width={width}"
    if rows not in TILE_ROWS or (height, width) not in BLOCKS:
        return f"{given}: given together, rows one of {TILE_ROWS}, (height, width) one of {BLOCKS}"
    if not _has_phases(geometry, height, width):
        return f"{given}: a block has all phases of lhs_dilation, or several of each; use another"
    if per_c > rows or per_k > P_MAX // (height * width):
        return f"{given}: a group takes {per_c} rows and height * width * {per_k} of {P_MAX} columns"
    return ""


def _has_phases(geometry: Geometry, height: int, width: int) -> bool:
    """Whether blocks have every phase equally often: groups have one stationary for all outputs of a block."""
    return height % num_phases(geometry.rows) == 0 and width % num_phases(geometry.columns) == 0


def _packing_reason(geometry: Geometry, options: Options, settings: PhasesSettings) -> str:
    """Why segments and phases cannot be packed as settings say; "" if they can."""
    segments, phases = settings.segments, math.prod(_beside(geometry, settings.beside))
    kn = settings.m_tile(geometry.K)
    if phases == 1 and segments == 1:
        return ""
    where = f"config beside={settings.beside}, segments={segments}"
    if segments > 1 and options.statistics:
        return f"{where}, return_stats='channel': partitions have several places of a channel; use segments=1"
    if options.strict_nonfinite:
        return f"{where}: multiplies by zero, which strict_nonfinite=True forbids; use 'none' and 1"
    if phases > 1 and options.residual:
        return f"{where}: phases that share columns take no residual; use 'none'"
    if phases * slot_for(segments * kn) > P_MAX:
        return f"{where}: {phases} phases of {segments * kn} columns, by quadrants, must fit 128; use 'none'"
    if segments > 1 and (segments == 3 or geometry.C not in (QUADRANT, 2 * QUADRANT, P_MAX)):
        return f"{where}: segments are 2 or 4, of C={QUADRANT}, {2 * QUADRANT} or {P_MAX}, not {geometry.C}; use 1"
    return ""


def settings_class(geometry: Geometry, config: Config = None) -> type[Settings]:
    """The settings' dataclass of a problem; with one group, phases and M packing differ by the names in the config."""
    if geometry.groups > 1:
        return GroupsSettings
    names = {name for name, _ in config or ()}
    if names & set(m_packing.NAMES) or (unsupported_phases(geometry) and not names & PHASES):
        return PackedSettings
    return PhasesSettings


def _of_groups(geometry: Geometry, settings: GroupsSettings) -> Schedule | None:
    T, Uh, Uw = settings.rows, settings.height, settings.width
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    axes = _axes(geometry, (1, Uh, Uw), True)
    Kt, taps = P_MAX // (Uh * Uw), num_taps(geometry)
    stationaries = geometry.planes.taps * axes[1].window * axes[2].window * P_MAX
    if max(stationaries, per_c * taps) * geometry.itemsize > GROUPS_FILTER_BYTES:
        return None
    G = min(geometry.groups, T // per_c, Kt // per_k)
    residents, items = [], functools.cache(lambda lanes, both: tuple(items_of_groups(geometry, axes, lanes, both)))
    waves = cut_at(div_ceil(geometry.groups, G), P_MAX // T)
    for index, (first, n) in enumerate(waves):
        # a last wave with few row tiles computes several images, or parts of one, at once
        lanes = P_MAX // T // n
        tiles = []
        for place in range(lanes * n):
            g0 = (first + place % n) * G
            gn = min(G, geometry.groups - g0)
            tiles.append(RowTile(place * T, place // n, g0 * per_c, gn * per_c, g0 * per_k, gn * per_k))
        both = len(waves) % PARTS == 1 and index == len(waves) // PARTS  # both cores share the middle wave
        residents.append(Resident((tuple(tiles),), items(lanes, both)))
    return Schedule(
        axes=axes,
        sweeps=_sweeps(geometry, axes, True),
        residents=tuple(residents),
        k_tiles=((0, G * per_c, 0, 1),),
        rows=T,
        slot=Kt,
        packs=True,
        gathers=True,
        buffers=X_BUFFERS,
        warmup=settings.warmup,
    )


def _tiling(geometry: Geometry, settings: PhasesSettings) -> tuple[Any, ...]:
    """(axes, K tiles, whether the cores share channels, segments and blocks of an output tile along each axis)."""
    axes = _axes(geometry, _beside(geometry, settings.beside))
    held = max(1, min(settings.segments, P_MAX // geometry.C))
    parts = cut(geometry.C, P_MAX)
    k_tiles = tuple((*part, first, held) for part in parts for first in range(0, settings.segments, held))
    by_channels = settings.shard == "channels" and geometry.K > 1
    segments = [1, 1, 1]
    segments[_longest(geometry)] = settings.segments
    sizes = item_sizes(geometry, axes, segments, settings.y_bytes, len(k_tiles), 1 if by_channels else PARTS)
    return axes, k_tiles, by_channels, segments, sizes


def num_tiles(geometry: Geometry, settings: PhasesSettings) -> int:
    """Output tiles of a transposed convolution."""
    axes, _, _, segments, sizes = _tiling(geometry, settings)
    return count_items(axes, sizes, segments)


def least_columns(geometry: Geometry, settings: PhasesSettings) -> float:
    """Columns that the Tensor Engine streams at least for all outputs: of each tap, shared by packed phases."""
    tiles = div_ceil(geometry.C, P_MAX) * div_ceil(geometry.K, settings.m_tile(geometry.K))
    met = tiles * math.prod(map(met_outputs, geometry.axes))
    return met / (settings.segments * math.prod(_beside(geometry, settings.beside)))


def _longest(geometry: Geometry) -> int:
    """The axis along which segments are neighbours; planes only of one volume, else sums would include other images."""
    sizes = [axis.out for axis in geometry.axes]
    if geometry.planes.images > 1 or geometry.planes.taps == 1:
        sizes[0] = 0
    return sizes.index(max(sizes))


def _of_phases(geometry: Geometry, settings: PhasesSettings) -> Schedule:
    axes, k_tiles, by_channels, segments, sizes = _tiling(geometry, settings)
    packs = math.prod(axis.beside for axis in axes) > 1 or settings.segments > 1
    blocks = cut(geometry.K, settings.m_tile(geometry.K))
    widest = blocks[-1][1]
    most = max(1, FILTER_BYTES // (len(k_tiles) * widest * num_taps(geometry) * geometry.itemsize))
    items = tuple(items_of_phases(axes, sizes, segments))
    residents = []
    for first, n in cut_into(len(blocks), PARTS if by_channels else 1):
        for part in cut(n, most):
            own = some_of(blocks, (first + part[0], part[1]))
            residents.append(Resident(tuple((RowTile(0, 0, 0, geometry.C, *block),) for block in own), items))
    return Schedule(
        axes=axes,
        sweeps=_sweeps(geometry, axes, packs),
        residents=tuple(residents),
        k_tiles=k_tiles,
        rows=P_MAX,
        slot=slot_for(settings.segments * widest),
        segments=settings.segments,
        packs=packs,
        by_channels=by_channels,
        buffers=X_BUFFERS,
        together=BANKS_TOGETHER if geometry.C > P_MAX else 1,
        warmup=settings.warmup,
    )


def _beside(geometry: Geometry, beside: str) -> tuple[int, int, int]:
    """Phases packed along the columns, for planes, rows and columns."""
    packed = BESIDE.index(beside)  # axes, from the columns on
    z, p, q = (num_phases(axis) if 3 - i <= packed else 1 for i, axis in enumerate(geometry.axes))
    return z, p, q


def _axes(
    geometry: Geometry, beside: tuple[int, int, int], aligned: bool = False
) -> tuple[BlockAxis, BlockAxis, BlockAxis]:
    planes, rows, columns = map(block_axis, geometry.axes, beside, (aligned,) * 3)
    return planes, rows, columns


@functools.lru_cache(maxsize=16)
def _sweeps(geometry: Geometry, axes: tuple[BlockAxis, ...], packs: bool) -> tuple[Sweep, ...]:
    planes, rows, columns = ([{e: tap for tap, e in axis.taps[f]} for f in range(axis.step)] for axis in axes)
    # places of stationaries along each axis; all sweeps of groups share them, plane by plane of taps
    sizes, sweeps, last = [axis.window for axis in axes], [], num_taps(geometry) - 1
    if geometry.groups > 1:
        sizes[0] = geometry.planes.taps
    for v in itertools.product(*(range(axis.sweeps) for axis in axes)):
        own = [axis.outputs(one) for axis, one in zip(axes, v, strict=True)]
        # columns outermost: the rows of a block are neighbours
        outputs = tuple((fz, fp, fq) for fq in own[2] for fz in own[0] for fp in own[1])
        found = []
        for e in itertools.product(*(axis.elements(one) for axis, one in zip(axes, v, strict=True))):
            taps = []
            for fz, fp, fq in outputs:
                t, r, s = planes[fz].get(e[0], -1), rows[fp].get(e[1], -1), columns[fq].get(e[2], -1)
                tap = (t * geometry.rows.taps + r) * geometry.columns.taps + s
                taps.append(-1 if t < 0 or r < 0 or s < 0 else last - tap if geometry.flipped else tap)
            index = taps[0]
            if packs:
                z, p, q = (one - axis.low for axis, one in zip(axes, e, strict=True))
                z = planes[own[0][0]][e[0]] if geometry.groups > 1 else z
                index = (z * sizes[1] + p) * sizes[2] + q
            found.append(Place((e[0], e[1], e[2]), index, tuple(taps)))
        products = home_first(geometry, axes, v, found) if geometry.groups > 1 else tuple(found)
        sweeps.append(Sweep(outputs, products, math.prod(sizes) if packs else last + 1))
    return tuple(sweeps)


def sbuf_bytes(geometry: Geometry, schedule: Schedule, residual: bool) -> int:
    """Upper bound of bytes per partition: x of output tiles, filters as loaded and as stationaries, results."""
    item, taps, z, p, q = geometry.itemsize, num_taps(geometry), *schedule.extents
    lanes = [lane for one in schedule.residents[-2:] for i in one.items for lane in i]
    widest = max(math.prod(part.xn for part in lane) for lane in lanes)
    x_bytes = widest * item * schedule.buffers * len(schedule.k_tiles)
    if schedule.gathers:
        places, per_c = schedule.sweeps[0].size, geometry.C // geometry.groups
        alone = schedule.k_tiles[0][1] == per_c
        each = max(schedule.rows if alone else per_c, geometry.K // geometry.groups) * taps
        filters = FILTER_BUFFERS * places * P_MAX + (1 + schedule.buffers) * each * (schedule.pages + 1)
        if alone:
            filters += 2 * BANK_COLUMNS * schedule.pages
        else:
            filters += 2 * (taps + BANK_COLUMNS // schedule.slot) * P_MAX * schedule.pages
        y_tiles = (2 + (2 if residual else 0)) * schedule.pages * schedule.axes[1].beside
        # transposed results are beside the results of two output tiles
        filters += 2 * BANK_COLUMNS * schedule.pages * schedule.axes[1].beside if geometry.y_strides[0] == 1 else 0
    else:
        most = max(sum(tile[0].kn for tile in one.tiles) for one in schedule.residents)
        made = sum(sweep.size for sweep in schedule.sweeps) * schedule.width(1) if schedule.packs else 0
        filters = len(schedule.k_tiles) * (most * taps + made * max(len(one.tiles) for one in schedule.residents))
        y_tiles = 6 if residual else 2
    return x_bytes + filters * item + y_tiles * 4 * z * p * q + 4096
