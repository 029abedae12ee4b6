"""Schedules of few output channels: M packing with shift-and-add."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from .block_axes import BlockAxis, ShiftedPart, block_axis, part_of, plain_axis
from .block_schedule import Lanes, Place, Resident, RowTile, Schedule, Shift, Sweep, home_first
from .cuts import axis_elements, cut_planes, parts_for_cores
from .geometry import Axis, Geometry, images_axis, is_transposed, num_phases, num_taps, sees_itself, span
from .options import PROLOGUE_ARGUMENTS, Options, packed_statistics_bytes, taken_unsupported
from .planes import is_by_plane, k_tiles_of_windows, window_channels, with_windows
from .settings import (
    WARM_UP_MAX,
    WARM_UPS,
    Config,
    Settings,
    count,
    declarations,
    double,
    half,
    less,
    more,
    setting,
    values_of,
    warm_up,
)
from .tiles import BANK_COLUMNS, P_MAX, PARTS, QUADRANT, SBUF_BYTES, cut_into, div_ceil, slot_for

NAME = "weight_stationary"
#: Output tiles of a core, if there are enough rows.
ITEMS = 4
#: The most output tiles of all cores: more would take too many instructions.
ITEMS_MOST = 500_000
#: Bytes a partition of x of an output tile; rows of an accumulator are loaded in any case. Half or double bought 1.0006
#: over 128 golden plans (modelled).
X_BYTES = 16_384
#: The most planes of y packed along the columns of a stationary.
DEPTH_MOST = 8
#: Columns that stream while a sum is evacuated, while filters are copied to a place, and between two DMAs.
LEAVES, PLACED, ISSUED = 2.5, 120, 140
#: The fewest columns that a matmul takes time for.
COLUMNS_MIN = 128
#: Output tiles whose x is in SBUF at once, the fewest and the most; bytes a partition for more than the fewest.
X_BUFFERS, X_ROOM = (2, 4), SBUF_BYTES // 2
_QUADRANTS = P_MAX // QUADRANT


@dataclass(frozen=True)
class PackedSettings(Settings):
    """All settings for few output channels; outputs and taps are given together."""

    algorithm = "weight_stationary of few outputs"
    tried = ("outputs", "taps", "warmup", "late_warmup", "depth", "lanes")
    keeps = "rows of x that y sees and all filters of few output channels"

    outputs: int = count("rows of y packed along the columns", 1, P_MAX, near=(less, more))
    depth: int = count(
        "planes of y packed beside rows of y; the planes of x that they read are channels",
        1,
        P_MAX,
        default=1,
        near=(less, more),
    )
    taps: int = count("columns of taps packed along the columns", 1, _QUADRANTS, near=(less, more))
    lanes: int = count(
        "images packed along the partitions, each on a row tile", 1, _QUADRANTS, default=1, near=(half, double)
    )
    warmup: int = warm_up(28, near=WARM_UPS)
    late_warmup: int = count(
        "matmuls on zeros, of `warmup`, that follow the first stationaries", 0, WARM_UP_MAX, default=0, near=(0, 19)
    )


def build_packed(geometry: Geometry, config: PackedSettings) -> Schedule | None:
    """The Schedule of settings; None if planes, rows and taps cannot share the Tensor Engine, no window overlaps x, or
    a part of a row has no bank."""
    U, T, L, V = config.outputs, config.taps, config.lanes, config.depth
    depth = geometry.planes
    geometry = with_windows(geometry, V)
    columns, slot = geometry.columns, slot_for(U * geometry.K)
    w0, wn = span(columns, 0, columns.out)
    if not is_legal(geometry, U, T) or window_channels(geometry) > P_MAX or wn == 0:
        return None
    rows, planes = block_axis(geometry.rows, U, True), block_axis(geometry.planes, 1)
    elements = rows.elements(0)
    if not elements:
        return None
    groups = div_ceil(columns.taps, T)
    shift = T * columns.dilation // columns.lhs_dilation if groups > 1 else 0
    pad = (groups - 1) * shift
    before = columns.before + (w0 - pad) * columns.lhs_dilation
    sums = Axis(wn + pad, T, columns.out, columns.stride, columns.dilation, columns.lhs_dilation, before)
    tiles = tiles_of(sums)
    if not tiles:
        return None
    k_tiles = k_tiles_of_windows(geometry)
    row_tile = slot_for(geometry.C) if L > 1 else P_MAX
    part = ShiftedPart(
        axis=plain_axis(columns.size, columns.out), image=0, b0=0, bn=sums.size, q0=0, qn=columns.out, x0=w0, xn=wn,
        y0=0, yn=columns.out, shift=shift, pad=pad, tiles=tiles,
    )  # fmt: skip
    items = _items(geometry, (planes, rows, part), config, len(k_tiles))
    if not items:
        return None
    lanes = tuple(RowTile(lane * row_tile, lane, 0, geometry.C, 0, U * geometry.K) for lane in range(L))
    sweeps = []
    for v in range(planes.sweeps):
        found = [
            Place((e, row, g), (t * rows.window + row - rows.low) * groups + g, ())
            for t, e in planes.taps[v] for row in elements for g in range(groups)
        ]  # fmt: skip
        sweeps.append(Sweep(((v, 0, 0),), home_first(geometry, (planes, rows), (v, 0), found), 0))
    return Schedule(
        axes=(planes, rows, part.axis),
        sweeps=tuple(sweeps),
        residents=(Resident((lanes,), items),),
        k_tiles=tuple((*one, 0, 1) for one in k_tiles),
        rows=row_tile,
        slot=slot,
        packs=True,
        buffers=max(X_BUFFERS[0], min(X_BUFFERS[1], X_ROOM // max(1, _x_bytes(geometry, items, len(k_tiles))))),
        warmup=config.warmup,
        late_warmup=min(config.late_warmup, config.warmup),
        shift=Shift(T, V, U, groups, sums, tiles, depth, L),
    )


def _items(
    geometry: Geometry, axes: tuple[BlockAxis, BlockAxis, ShiftedPart], config: PackedSettings, k_tiles: int
) -> tuple[Lanes, ...]:
    """Output tiles of as many accumulators as fit beside x, equally many for each core; () if there are too many."""
    planes, rows, part = axes
    widest, L = max(count for _, _, _, count in part.tiles), config.lanes
    blocks = min(rows.blocks, max(1, BANK_COLUMNS // widest))
    own = geometry.planes if L == 1 else images_axis(div_ceil(planes.out, L))  # of a row tile
    volume, images = own.out // own.images, 1
    if blocks == rows.blocks and len(part.tiles) == 1:
        room = X_ROOM // (X_BUFFERS[0] * rows.size * part.xn * geometry.itemsize * k_tiles)
        images = min(volume, max(1, min(room, BANK_COLUMNS // (blocks * widest))))
    row_bytes = axis_elements(own, images) * part.xn * geometry.itemsize * k_tiles
    most = max(0, X_BYTES // row_bytes - rows.window) // rows.apart + 1
    share = div_ceil(rows.blocks * div_ceil(own.out, images), blocks * PARTS * ITEMS)
    n_planes, n_blocks = parts_for_cores(own, images, rows.blocks, max(1, min(most // blocks, share)) * blocks)
    if n_planes * n_blocks > ITEMS_MOST:
        return ()
    total, found = planes.images * planes.blocks, []
    every, volumes = (total, planes.images) if L == 1 else (own.out, 1)
    of_rows = [part_of(rows, 0, *one, whole=True) for one in cut_into(rows.blocks, n_blocks)]
    for z0, zn in cut_planes(every, volumes, min(n_planes, every)):
        first = range(z0, min(total, z0 + L * own.out), own.out)
        of_planes = [part_of(planes, z // planes.blocks, z % planes.blocks, min(zn, total - z)) for z in first]
        found += [tuple((z, p, part) for z in of_planes) for p in of_rows]
    return tuple(found)


def tiles_of(sums: Axis) -> tuple[tuple[int, int, int, int], ...]:
    """Parts of a row whose columns of sums fit a bank: (first output, count, first column, count); empty if a window is
    wider than a bank, or lies outside x."""
    if (sums.taps - 1) * sums.dilation // sums.lhs_dilation >= BANK_COLUMNS:
        return ()
    for parts in range(min(sums.out, div_ceil(sums.size, BANK_COLUMNS)), sums.out + 1):
        found = [(q0, qn, *span(sums, q0, qn)) for q0, qn in cut_into(sums.out, parts)]
        if any(count == 0 for _, _, _, count in found):
            return ()
        if all(count <= BANK_COLUMNS for _, _, _, count in found):
            return tuple(found)
    return ()


#: Settings of problems with few output channels only.
NAMES = tuple(name for name in declarations(PackedSettings) if name != "warmup")


def packed_reason(geometry: Geometry, options: Options, config: Config) -> str:
    """Why few output channels are not packed, from settings and sizes alone; "" if they are."""
    if geometry.K > P_MAX:
        return f"K={geometry.K}: {NAME} takes at most {P_MAX} output channels of one group; use implicit_gemm"
    if reason := PackedSettings.unsupported_reason(config):
        return reason
    depth, lanes, planes = setting(config, "depth", 1), setting(config, "lanes", 1), geometry.planes
    if num_phases(planes) > P_MAX:
        return f"lhs_dilation={planes.lhs_dilation} of planes: {NAME} takes at most {P_MAX}; use implicit_gemm"
    U, T = setting(config, "outputs", 0), setting(config, "taps", 0)
    if (U, T) != (0, 0) and 0 in (U, T):
        return f"config={config}: outputs and taps are given together or not at all"
    if U > 0 and not is_legal(with_windows(geometry, depth), U, T):
        return (
            f"config outputs={U} taps={T}, K={geometry.K}, S={geometry.columns.taps}: at most {geometry.columns.taps} "
            f"taps, each with depth={depth} * outputs * K rounded up to {QUADRANT}, {2 * QUADRANT} or {P_MAX} of "
            f"{P_MAX} partitions, and outputs * stride and (with more taps to come) taps * rhs_dilation multiples of "
            f"lhs_dilation; use others"
        )
    most = P_MAX if planes.taps > 1 else planes.out // planes.images
    if depth > 1 and (geometry.packed > 0 or geometry.flipped or planes.lhs_dilation > 1 or depth > most):
        return (
            f"config depth={depth}: {NAME} needs a plain filter, not one of a transposed convolution, "
            f"lhs_dilation 1 of planes, which is {planes.lhs_dilation}, and at most {most} planes of y; use 1"
        )
    if depth > 1 and is_transposed(geometry):
        return f"config depth={depth}, neighbouring channels of x: {NAME} loads planes as channels by rows; use 1"
    if depth > 1 and options.prologue.asked:
        return f"config depth={depth}, {PROLOGUE_ARGUMENTS}: planes of x that are channels have no prologue; use 1"
    if depth > 1 and options.statistics:
        return f"config depth={depth}, return_stats='channel': planes of y share the columns; use 1"
    if lanes > 1 and (depth > 1 or not takes_lanes(geometry, lanes)):
        return (
            f"config lanes={lanes}, N={planes.out}, C={geometry.C}: {NAME} puts at most N images on row tiles, each of "
            f"at most {P_MAX // lanes} channels, in quadrants, and of one plane; use 1"
        )
    return taken_unsupported(geometry, options, NAME, True, "rows outside a window")


def is_legal(geometry: Geometry, U: int, T: int) -> bool:
    """Whether U rows of y and T columns of taps can share the Tensor Engine."""
    rows, columns = geometry.rows, geometry.columns
    fits = U * geometry.K <= P_MAX and T <= columns.taps and T * slot_for(U * geometry.K) <= P_MAX
    whole = U * rows.stride % rows.lhs_dilation == 0
    return fits and whole and (T == columns.taps or T * columns.dilation % columns.lhs_dilation == 0)


def takes_lanes(geometry: Geometry, lanes: int) -> bool:
    """Whether so many images fit separate row tiles."""
    plain = sees_itself(geometry.planes) and geometry.depth is None and geometry.frames is None
    fits = lanes * slot_for(geometry.C) <= P_MAX and lanes <= geometry.planes.out
    return plain and fits and geometry.planes.images == 1


def packed_sizes(geometry: Geometry, given: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """(planes, rows of y, columns of taps, images) that can share the Tensor Engine, by ascending work: columns that it
    streams, and sums that are evacuated."""
    planes, most = geometry.planes, 1
    if planes.taps > 1 and planes.lhs_dilation == 1 and geometry.packed == 0 and not geometry.flipped:
        most = min(P_MAX // geometry.K, planes.out // planes.images, DEPTH_MOST)
    found = []
    for V in values_of(given, "depth", range(1, most + 1)):
        seen = with_windows(geometry, V)
        if window_channels(seen) > P_MAX:
            continue
        k_tiles, slots = len(k_tiles_of_windows(seen)), min(seen.columns.taps, _QUADRANTS)
        lanes = [L for L in values_of(given, "lanes", (1, 2, 4)) if L == 1 or (V == 1 and takes_lanes(seen, L))]
        for U in values_of(given, "outputs", range(1, min(P_MAX // seen.K, seen.rows.out + 1) + 1)):
            legal = [T for T in values_of(given, "taps", range(1, slots + 1)) if is_legal(seen, U, T)]
            if not legal:
                continue
            blocks, axis = div_ceil(seen.rows.out, U) * seen.planes.out, block_axis(seen.rows, U, True)
            rows = len(axis.elements(0)) * seen.planes.taps
            each = max(COLUMNS_MIN, blocks * seen.columns.size / PARTS)
            for T, L in itertools.product(legal, lanes):
                groups = div_ceil(seen.columns.taps, T)
                columns = axis.window * seen.planes.taps * groups * T * slot_for(U * seen.K)
                if filter_bytes(seen, k_tiles, L, columns) > SBUF_BYTES:
                    continue
                passed = PARTS * each * rows * groups * k_tiles / L
                left = blocks * max(0.6, T / seen.columns.lhs_dilation) * seen.columns.out * LEAVES
                placed = U * k_tiles * (groups * seen.planes.taps * PLACED + num_taps(seen) * seen.K / 2)
                loaded = k_tiles * V * ISSUED if V > 1 else 0
                found.append((max(passed, left) + 0.1 * min(passed, left) + placed + loaded, (V, U, T, L)))
    return [sizes for _, sizes in sorted(found)]


def statistics_bytes(geometry: Geometry, options: Options) -> int:
    """Upper bound of bytes a partition of statistics of y."""
    rows = min(P_MAX // geometry.K, geometry.rows.out)
    images = max(1, BANK_COLUMNS // (div_ceil(geometry.rows.out, rows) * geometry.columns.out))
    return packed_statistics_bytes(options, rows, min(geometry.planes.out, _QUADRANTS * images))


def block_statistics_bytes(geometry: Geometry, options: Options, channels: int) -> int:
    """The same for groups and transposed convolutions, in M tiles of so many channels: statistics of a bank's images
    and, for each row tile or M tile, of images that continue in the next bank."""
    outputs = tiles = _QUADRANTS
    if geometry.groups == 1:
        outputs = num_phases(geometry.rows) * num_phases(geometry.columns)
        tiles = div_ceil(geometry.K, channels)
    images = BANK_COLUMNS // max(1, geometry.rows.out * geometry.columns.out // outputs)
    return packed_statistics_bytes(options, _QUADRANTS, min(geometry.planes.out, images) + 2 * tiles)


def packed_bytes(geometry: Geometry, schedule: Schedule, residual: bool) -> int:
    """Upper bound of bytes per partition: x of output tiles, filters as loaded, transposed and placed, results."""
    shift = schedule.shift
    assert shift is not None
    geometry = with_windows(geometry, shift.Z)
    k_tiles, (resident,) = len(schedule.k_tiles), schedule.residents
    x_bytes = schedule.buffers * _x_bytes(geometry, resident.items, k_tiles)
    places = geometry.planes.taps * schedule.axes[1].window * shift.groups
    filters = filter_bytes(geometry, k_tiles, shift.lanes, places * shift.T * schedule.slot)
    most = max(lane[0].bn * lane[1].bn for lanes in resident.items for lane in lanes)
    results = 4 * most * ((4 if residual else 2) * geometry.columns.out) + 6 * 4 * BANK_COLUMNS
    return x_bytes + filters + shift.lanes * results + 4096


def _x_bytes(geometry: Geometry, items: tuple[Lanes, ...], k_tiles: int) -> int:
    """Bytes per partition of x of the largest output tile."""
    most = max(lane[0].xn * lane[1].xn * lane[2].xn for lanes in items for lane in lanes)
    return k_tiles * most * geometry.itemsize


def filter_bytes(geometry: Geometry, k_tiles: int, lanes: int, placed: int) -> int:
    """Bytes per partition of filters: as loaded, transposed, and as stationaries of so many columns of a K tile."""
    by_input, taps = geometry.packed > 0 or geometry.flipped, num_taps(geometry)
    loads = k_tiles if by_input or is_by_plane(geometry) else div_ceil(k_tiles, P_MAX // geometry.K)
    loaded = loads * taps * (geometry.K if by_input else min(lanes * geometry.C, P_MAX))
    return (loaded + k_tiles * (taps * geometry.K + placed)) * geometry.itemsize
