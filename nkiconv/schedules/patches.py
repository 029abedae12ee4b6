"""Transposed convolutions with the filter's size as stride: each element of x becomes its own patch of y.

    y[k, n * T + t, i * R + r, j * S + s] = sum over c of x[c, n, i, j] * w[c, k, t, r, s]

This is a product with one tap to K * T * R * S channels. x is the stationary operand: rows (n, i) of x at column j are
columns of the Tensor Engine; filters are the moving operand, as torch stores them. A row's patches are collected on its
partition, so that R neighbouring rows of y are stored as one run each, in NCHW for each output channel. Rows of taps
count those of all planes. Parts of rows of x may share the columns: if x has few rows, or for more and smaller output
tiles, whose stores overlap the products of the next ones.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .geometry import Axis, Geometry, filter_rows, is_evenly_apart, num_taps, sees_itself, writes_rows
from .options import Options, no_prologue
from .settings import BY_SHAPE, WARM_UPS, Settings, count, warm_up
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, PARTS, Part, cut, cut_into, fits_sbuf

#: Buffers of x and of results; cached answers to whether a problem is computed as patches.
BUFFERS, PLANS_KEPT = 2, 128


@dataclass(frozen=True)
class PatchSettings(Settings):
    """Settings of patches."""

    algorithm = "activation_stationary of patches"
    tried = ("across", "warmup")
    keeps = "filters and rows of patches"
    instead = "weight_stationary"

    across: int = count("parts of a row of x on separate partitions, a divisor of its columns", 1, P_MAX, near=BY_SHAPE)
    warmup: int = warm_up(28, near=WARM_UPS)


@dataclass(frozen=True)
class PatchTile:
    """(first, count) of planes and rows of x of an output tile, and of rows of taps of all planes."""

    n: Part
    i: Part
    r: Part


@dataclass(frozen=True)
class PatchSchedule:
    """Output tiles; side: columns of x of a part of a row."""

    settings: PatchSettings
    items: tuple[PatchTile, ...]
    k_tiles: tuple[Part, ...]
    side: int

    def banks(self, geometry: Geometry, item: PatchTile) -> list[tuple[Part, Part]]:
        """(output channels, rows of taps) of each bank of accumulators."""
        columns = geometry.columns.taps
        rows = cut(item.r[1], max(1, BANK_COLUMNS // columns))
        channels = cut(geometry.K, max(1, BANK_COLUMNS // (rows[-1][1] * columns)))
        return [(k, (item.r[0] + first, n)) for k in channels for first, n in rows]


def is_patches(geometry: Geometry) -> bool:
    """Whether y is tiled by patches, one for each element of x; neighbours in HBM are pixels of a row, or channels."""
    own = geometry.flipped and geometry.groups == 1 and geometry.frames is None
    own = own and (_tiles(geometry.planes) or (sees_itself(geometry.planes) and is_evenly_apart(geometry)))
    tiled = _tiles(geometry.rows) and _tiles(geometry.columns) and num_taps(geometry) > 1
    return own and tiled and geometry.y_strides[3] == (1 if writes_rows(geometry) else geometry.K)


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
    if options.residual or options.epilogue.norm is not None:
        return "residual, y_norm: patches take none; use implicit_gemm"
    return no_prologue(options, "patches take none")


def parts_of_rows(geometry: Geometry) -> list[int]:
    """Values of `across`: from the most that fill the partitions with all rows of x on."""
    rows, Q = geometry.planes.size * geometry.rows.size, geometry.columns.size
    divisors = [one for one in range(1, min(P_MAX, Q) + 1) if Q % one == 0]
    filling = max(one for one in divisors if one <= P_MAX // min(P_MAX, rows))
    return [one for one in divisors if one >= filling]


def make_patches(geometry: Geometry, options: Options, settings: PatchSettings) -> PatchSchedule | None:
    """The PatchSchedule of settings with equal parts of rows; None if SBUF has no room."""
    N, P, Q, across = geometry.planes.size, geometry.rows.size, geometry.columns.size, settings.across
    rows = min(P, P_MAX // across)
    planes = min(N, P_MAX // (across * P)) if rows == P else 1
    volumes = cut_into(N, 1 if is_evenly_apart(geometry) else geometry.planes.images)
    tiles = [((first + n, count), i) for first, d in volumes for n, count in cut(d, planes) for i in cut(P, rows)]
    # the cores share rows of taps unless both have equally many output tiles
    taps = [(0, filter_rows(geometry))] if len(tiles) % PARTS == 0 else cut_into(filter_rows(geometry), PARTS)
    items = tuple(PatchTile(*one, r) for r in taps if r[1] > 0 for one in tiles)
    found = PatchSchedule(settings, items, tuple(cut(geometry.C, P_MAX)), Q // across)
    return found if fits_sbuf(patch_bytes(geometry, found, options)) else None


@functools.lru_cache(maxsize=PLANS_KEPT)
def takes_patches(geometry: Geometry, options: Options) -> bool:
    """Whether a problem is computed as patches. Where neighbours of y in HBM are channels of a pixel, output pixels may
    be the columns instead, one phase after the other: they take every option and less SBUF, and with many channels of x
    and y 0.80 to 1.00 of the time (2x2 to 4x4)."""
    if not is_patches(geometry) or writes_rows(geometry):
        return is_patches(geometry)
    if geometry.C > P_MAX <= geometry.K and geometry.planes.lhs_dilation == 1:
        return False
    tried = (PatchSettings.read(None, across=across) for across in parts_of_rows(geometry))
    return not patches_unsupported(geometry, options) and any(make_patches(geometry, options, one) for one in tried)


def patch_bytes(geometry: Geometry, plan: PatchSchedule, options: Options) -> int:
    """An upper bound of bytes a partition: filters, x and results of two output tiles, biases, zeros."""
    item, k_tiles = geometry.itemsize, len(plan.k_tiles)
    P, Q, R, S = geometry.rows.size, geometry.columns.size, filter_rows(geometry), geometry.columns.taps
    most = max(one.n[1] * one.i[1] for one in plan.items)
    filters = k_tiles * geometry.K * R * S * item
    results = geometry.K * R * plan.side * S * options.epilogue.y_itemsize
    x_bytes = k_tiles * most * Q * item * (2 if P > most else 1)
    return filters + BUFFERS * (x_bytes + results) + 2 * BANK_BYTES + 4 * geometry.K + 2 * P_MAX
