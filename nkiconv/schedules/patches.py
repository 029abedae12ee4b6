"""Transposed convolutions with the filter's size as stride, in NCHW: each element of x becomes its own patch of y.

    y[k, n * T + t, i * R + r, j * S + s] = sum over c of x[c, n, i, j] * w[c, k, t, r, s]

This is a product with one tap to K * T * R * S channels. x is the stationary operand: rows (n, i) of x at column j are
columns of the Tensor Engine; filters are the moving operand, as torch stores them. A row's patches are collected on its
partition, so that R neighbouring rows of y are stored as one run for each output channel. Rows of taps count those of
all planes. If x has few rows, parts of rows share the columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from .geometry import Axis, Geometry, filter_rows, is_evenly_apart, num_taps, sees_itself, writes_rows
from .options import Options, keeps_sums, no_prologue
from .settings import WARM_UPS, Settings, warm_up
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, PARTS, Part, cut, cut_into, fits_sbuf

#: Buffers of x and of results.
BUFFERS = 2


@dataclass(frozen=True)
class PatchSettings(Settings):
    """Settings of patches."""

    algorithm = "activation_stationary of patches"
    removed = (("across", "leave it out"),)
    tried = ("warmup",)

    warmup: int = warm_up(28, near=WARM_UPS)


@dataclass(frozen=True)
class PatchTile:
    """(first, count) of planes and rows of x of an output tile, and of rows of taps of all planes."""

    n: Part
    i: Part
    r: Part


@dataclass(frozen=True)
class PatchSchedule:
    """Output tiles; across: parts of a row of x on separate partitions; side: columns of a part."""

    settings: PatchSettings
    items: tuple[PatchTile, ...]
    k_tiles: tuple[Part, ...]
    across: int
    side: int

    def banks(self, geometry: Geometry, item: PatchTile) -> list[tuple[Part, Part]]:
        """(output channels, rows of taps) of each bank of accumulators."""
        columns = geometry.columns.taps
        rows = cut(item.r[1], max(1, BANK_COLUMNS // columns))
        channels = cut(geometry.K, max(1, BANK_COLUMNS // (rows[-1][1] * columns)))
        return [(k, (item.r[0] + first, n)) for k in channels for first, n in rows]


def is_patches(geometry: Geometry) -> bool:
    """Whether y, in NCHW, is tiled by patches, one for each element of x."""
    own = geometry.flipped and geometry.groups == 1 and geometry.frames is None
    own = own and (_tiles(geometry.planes) or (sees_itself(geometry.planes) and is_evenly_apart(geometry)))
    tiled = _tiles(geometry.rows) and _tiles(geometry.columns) and num_taps(geometry) > 1
    return own and tiled and geometry.y_strides[3] == 1 and (geometry.K == 1 or writes_rows(geometry))


def _tiles(axis: Axis) -> bool:
    taps = axis.taps
    whole = axis.before == taps - 1 and axis.out == axis.size * taps
    return whole and (axis.lhs_dilation, axis.stride) == (taps, 1) and (axis.dilation == 1 or taps == 1)


def patches_unsupported(geometry: Geometry, options: Options) -> str:
    """Why a problem cannot be computed as patches; "" if it can."""
    if geometry.hbm_itemsize == 1 or geometry.columns.taps > BANK_COLUMNS:
        return (
            f"img_ref.dtype, S={geometry.columns.taps}: patches are of 16 or 32 bits and at most {BANK_COLUMNS} columns"
            f"; use weight_stationary"
        )
    if options.residual or options.epilogue.norm is not None or keeps_sums(options.epilogue):
        return "residual, y_norm: patches take none; use weight_stationary"
    return no_prologue(options, "patches take none; use weight_stationary")


def make_patches(geometry: Geometry, options: Options, settings: PatchSettings) -> PatchSchedule | None:
    """The PatchSchedule of settings, with as many parts of rows as fill the partitions; None if SBUF has no room."""
    N, P, Q = geometry.planes.size, geometry.rows.size, geometry.columns.size
    across = max(one for one in range(1, P_MAX // min(P_MAX, N * P) + 1) if Q % one == 0)
    rows = min(P, P_MAX // across)
    planes = min(N, P_MAX // (across * P)) if rows == P else 1
    volumes = cut_into(N, 1 if is_evenly_apart(geometry) else geometry.planes.images)
    tiles = [((first + n, count), i) for first, d in volumes for n, count in cut(d, planes) for i in cut(P, rows)]
    # the cores share rows of taps unless both have equally many output tiles
    taps = [(0, filter_rows(geometry))] if len(tiles) % PARTS == 0 else cut_into(filter_rows(geometry), PARTS)
    items = tuple(PatchTile(*one, r) for r in taps if r[1] > 0 for one in tiles)
    found = PatchSchedule(settings, items, tuple(cut(geometry.C, P_MAX)), across, Q // across)
    return found if fits_sbuf(patch_bytes(geometry, found, options)) else None


def patch_bytes(geometry: Geometry, plan: PatchSchedule, options: Options) -> int:
    """An upper bound of bytes a partition: filters, x and results of two output tiles, biases, zeros."""
    item, k_tiles = geometry.itemsize, len(plan.k_tiles)
    P, Q, R, S = geometry.rows.size, geometry.columns.size, filter_rows(geometry), geometry.columns.taps
    most = max(one.n[1] * one.i[1] for one in plan.items)
    filters = k_tiles * geometry.K * R * S * item
    results = geometry.K * R * plan.side * S * options.epilogue.y_itemsize
    x_bytes = k_tiles * most * Q * item * (2 if P > most else 1)
    return filters + BUFFERS * (x_bytes + results) + 2 * BANK_BYTES + 4 * geometry.K + 2 * P_MAX
