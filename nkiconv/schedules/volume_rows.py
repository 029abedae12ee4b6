"""Tiling of the rows of y of volumes: output tiles, tiles of 128 positions, banks of sums, steps of a device loop.

A step of an output tile is one row of each of its segments: as many rows as fill 128 positions with `width` columns
each. Its sums have `depth` planes of y in the columns of the Tensor Engine. x is a circular buffer of rows, each of all
planes and segments: a step loads the next rows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd

from .channel_pieces import Product, places_of, products_of
from .cuts import Outputs, axis_elements, cut_planes, most_of, window_of
from .geometry import Axis, Geometry, span, valid_range
from .implicit_gemm import LOOP_MAX
from .moving_filters import FilterSchedule, raw_bytes, way_of
from .options import Options, keeps_sums, norm_bytes
from .regions import Register, register_of
from .settings import WARM_UPS, Settings, count, less, more, warm_up
from .tiles import BANK_COLUMNS, P_MAX, PARTS, Part, cut, cut_into, div_ceil, fits_sbuf

#: Numbers of parts of y's columns, tried in order until x fits; the most banks of a tile's sums in candidates.
PARTS_TRIED = (1, 2, 3, 4, 6, 8, 12, 16)
TILE_BANKS = 2

#: The number of cuts of planes whose Moves are cached: schedules with other columns share them.
MOVES_KEPT = 1024
#: Copies of the remaining channels: the default, and the most.
COPIES, COPIES_MAX = 4, 16


@dataclass(frozen=True)
class RowSettings(Settings):
    """Settings of volumes with y as NCDHW."""

    algorithm = "activation_stationary"
    tried = ("depth", "copies", "warmup")
    keeps = "rows of x of all planes that are seen together, and all filters,"

    depth: int = count("of y as NCDHW: planes of y in the columns of the Tensor Engine", 1, P_MAX, near=(less, more))
    copies: int = count(
        "copies of the channels beyond whole K tiles of 128", 1, COPIES_MAX, default=COPIES, near=(1, 2, 3, 4)
    )
    warmup: int = warm_up(28, near=WARM_UPS)
    loop: int = count(
        "rotations of the circular buffer of x in the body of a loop on the device, 0: all steps are unrolled",
        0,
        LOOP_MAX,
        default=0,
    )


@dataclass(frozen=True)
class Move:
    """A matmul of a tile: a plane of x, counted from the output tile's first, for planes z .. z+count-1 of a bank at
    taps from the `tau`-th from the last on; adds: it accumulates. plane -1: zeros."""

    plane: int
    bank: int
    z: int
    count: int
    tau: int
    adds: bool


@dataclass(frozen=True)
class Steps:
    """The device loop of each output tile: `count` iterations of a body of `each` steps, from step `first` on."""

    first: int
    each: int
    count: int
    register: Register


@dataclass(frozen=True)
class RowSchedule(FilterSchedule):
    """The schedule of volumes with y as NCDHW. products: of each K tile; each: planes of a bank of sums; blocks: of 128
    columns of sums, which are transposed; ring: rows of the circular buffer of x."""

    by_rows = True

    products: list[list[Product]]
    segments: int
    width: int
    items: list[Outputs]
    each: int
    blocks: int
    ring: int
    loop: int
    steps: Steps | None

    @property
    def is_looped(self) -> bool:
        """Whether a device loop runs some steps: the compiler sees its body once."""
        return self.steps is not None


def make_rows(geometry: Geometry, options: Options, settings: RowSettings) -> RowSchedule | None:
    """The RowSchedule of settings with y's columns in the fewest parts that fit SBUF, or None."""
    planes, K, P, Q = geometry.planes, geometry.K, geometry.rows.out, geometry.columns.out
    volume, segments = planes.out // planes.images, fewest_tiles(geometry)
    width = min(Q, P_MAX // segments)
    k_tiles, every = products_of(geometry, settings.copies)
    products = [[one for one in every if one.k_tile == k_tile] for k_tile in range(len(k_tiles))]
    groups = cut_planes(planes.out, planes.images, planes.images * div_ceil(volume, min(settings.depth, volume)))
    tiles, zn = div_ceil(Q, width), most_of(groups)
    for parts in PARTS_TRIED:
        cuts = cut_into(tiles, min(tiles, parts))
        columns = [(first * width, min(Q - first * width, count * width)) for first, count in cuts]
        found = RowSchedule(
            k_tiles=k_tiles,
            products=products,
            places=[places_of(geometry, one) for one in products],
            way=way_of(geometry, True),
            segments=segments,
            width=width,
            items=[Outputs(*z, *p, *q) for p, z, q in product(cut_into(P, min(P, PARTS)), groups, columns)],
            each=most_of(cut(zn, max(1, BANK_COLUMNS // K))),
            blocks=div_ceil(zn * K, P_MAX),
            ring=window_of(geometry.rows, 2),
            warmup=settings.warmup,
            packs=False,
            loop=settings.loop,
            steps=None,
        )
        if fits_sbuf(row_bytes(geometry, found, options)):
            return replace(found, steps=steps_alike(geometry, found))
    return None


def fewest_tiles(geometry: Geometry) -> int:
    """The number of segments of a core's rows that needs the fewest tiles of 128 positions a plane."""
    rows, columns = div_ceil(geometry.rows.out, PARTS), geometry.columns.out

    def tiles(segments: int) -> int:
        return div_ceil(rows, segments) * div_ceil(columns, P_MAX // segments)

    return min(range(1, min(rows, P_MAX) + 1), key=tiles)


def segment_rows(plan: RowSchedule, item: Outputs) -> int:
    """Rows of a segment of an output tile; the last segments may have fewer."""
    return div_ceil(item.pn, plan.segments)


@lru_cache(maxsize=MOVES_KEPT)
def moves_of(planes: Axis, each: int, z0: int, zn: int) -> tuple[list[Move], list[Move]]:
    """(Moves of the first product, of each other one) of a tile of planes z0 .. z0+zn-1, `each` to a bank; planes of x
    from the last to the first, so that an output's taps are added in the same order for all cuts of output tiles.
    Outputs that see no plane of x are products of zeros."""
    d0, dn = span(planes, z0, zn)
    seen_by: list[list[tuple[int, int]]] = [[] for _ in range(dn)]
    first, rest, started = [], [], set[int]()
    for z in range(zn):
        found = [(tau, valid_range(planes, planes.taps - 1 - tau, z0 + z, 1)) for tau in range(planes.taps)]
        seen = [(tau, place) for tau, (_, _, count, place, _) in found if count > 0]
        for tau, place in seen:
            seen_by[place - d0].append((z, tau))
        if not seen:
            first += _moves_of_plane(-1, each, [(z, 0)], started)
    for plane in range(dn - 1, -1, -1):
        first += _moves_of_plane(plane, each, seen_by[plane], started)
        started.update(z for z, _ in seen_by[plane])
        rest += _moves_of_plane(plane, each, seen_by[plane], started)
    return first, rest


def _moves_of_plane(plane: int, each: int, seen: Iterable[tuple[int, int]], started: Container[int]) -> list[Move]:
    """A plane's Moves for (plane of y, tap from the last): one Move for neighbours in a bank at ascending taps that all
    accumulate, or all overwrite."""
    found: list[Move] = []
    for z, tau in seen:
        (bank, at), adds = divmod(z, each), z in started
        last = found[-1] if found else None
        if last and (last.bank, last.z + last.count, last.tau + last.count, last.adds) == (bank, at, tau, adds):
            found[-1] = replace(last, count=last.count + 1)
        else:
            found.append(Move(plane=plane, bank=bank, z=at, count=1, tau=tau, adds=adds))
    return found


def stored_together(plane_count: int, K: int) -> list[Part]:
    """(first, count) of the results [(z, k)] of each store of `plane_count` planes: of one plane and one block."""
    found, at, size = [], 0, plane_count * K
    while at < size:
        count = min(K - at % K, P_MAX - at % P_MAX)
        found.append((at, count))
        at += count
    return found


def rows_window(geometry: Geometry, plan: RowSchedule) -> Part:
    """The most (planes, columns with padding) of x that an output tile sees."""
    planes = max(axis_elements(geometry.planes, item.zn) for item in plan.items)
    return planes, max(window_of(geometry.columns, item.qn) for item in plan.items)


def row_bytes(geometry: Geometry, plan: RowSchedule, options: Options) -> int:
    """An upper bound of bytes a partition: rows of x, filters in memory order and transposed, results, a residual of at
    most four bytes an element, twice as it is scaled, and the identity."""
    item, y_item, K = geometry.itemsize, options.epilogue.y_itemsize, geometry.K
    columns, (planes, width) = max(one.qn for one in plan.items), rows_window(geometry, plan)
    x_bytes = plan.ring * len(plan.k_tiles) * planes * plan.segments * (width + 1) * item
    filters = sum(len(one) for one in plan.places) * K * item
    raw = raw_bytes(geometry, plan) + 4 * P_MAX * geometry.planes.taps * item
    written = num_written(options)
    results = 2 * plan.blocks * plan.segments * columns * y_item * written
    if options.residual:
        results += 2 * plan.blocks * plan.segments * columns * 8 + 2 * P_MAX * 4
    banks = div_ceil(max(one.zn for one in plan.items), plan.each)
    sums = banks * BANK_COLUMNS * (3 * y_item * written + (8 if options.epilogue.bias else 0)) + 4 * K
    norm = norm_bytes(options.epilogue, K, plan.each * K)
    return x_bytes + filters + raw + results + sums + 2048 + norm


def num_written(options: Options) -> int:
    """Tensors that are written: y, and perhaps a norm's input."""
    return 2 if keeps_sums(options.epilogue) else 1


def steps_alike(geometry: Geometry, plan: RowSchedule) -> Steps | None:
    """The Steps of all output tiles of a schedule, or None if it has no loop.

    A body has as many steps as bring the circular buffer back to the same tiles. Its steps load only rows inside x, for
    all segments, so that zeros around x are written before the loop. All output tiles have the same bodies, as both
    cores run a loop equally often.
    """
    axis = geometry.rows
    each = plan.loop * plan.ring // gcd(plan.ring, axis.stride)
    if each == 0:
        return None
    # steps from `steady` on load only rows of the last taps, and steps of a body into tiles that such loads filled
    shared = gcd(axis.stride, axis.dilation)
    steady, tap = axis.dilation // shared, max(0, axis.taps - axis.stride // shared)
    low, high = steady + each - 1, axis.out
    for item in plan.items:
        first, end = inner_steps(geometry, plan, item, tap)
        low, high = max(low, first), min(high, end)
    count = max(0, high - low) // each
    apart_x, apart_y = each * axis.stride * geometry.x_strides[2], each * geometry.y_strides[2]
    register = register_of(geometry, (apart_x, apart_y)) if count > 1 else None
    return None if register is None else Steps(first=low, each=each, count=count, register=register)


def inner_steps(geometry: Geometry, plan: RowSchedule, item: Outputs, tap: int) -> tuple[int, int]:
    """(first, end) of an output tile's steps with the same segments whose loads for the step after, rows of taps from
    `tap` on, are all inside x."""
    axis, apart = geometry.rows, segment_rows(plan, item)
    behind = (div_ceil(item.pn, apart) - 1) * apart
    further = [piece.r for k_tile in plan.k_tiles for piece in k_tile]
    nearest, farthest = tap + min(0, *further), axis.taps - 1 + max(0, *further)
    # a step loads rows from top + step * stride to bottom + step * stride
    top = (item.p0 + 1) * axis.stride - axis.before + nearest * axis.dilation
    bottom = (item.p0 + behind + 1) * axis.stride - axis.before + farthest * axis.dilation
    inside = div_ceil(max(0, axis.size - bottom), axis.stride)
    return div_ceil(max(0, -top), axis.stride), min(min(apart - 1, item.pn - behind), inside)
