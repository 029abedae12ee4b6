"""Transposed convolutions with the filter's size as stride: each element of x becomes its own patch of y.

    y[k, n * T + t, i * R + r, j * S + s] = sum over c of x[c, n, i, j] * w[c, k, t, r, s]

This is a convolution with one tap to K * T * R * S channels, with filters as torch stores them, whose pixels are
computed as others of NHWC. A partition collects the patches of neighbours, so that R neighbouring rows of y are stored
as one run each, in NCHW for each output channel. Rows of taps count those of all planes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace

from .geometry import Axis, Geometry, is_evenly_apart, num_taps, sees_itself, writes_rows
from .options import Options, no_prologue
from .pixel_tiles import SHARDS, PixelSchedule, PixelSettings, make_pixels
from .settings import BY_SHAPE, WARM_UPS, Settings, choice, count, warm_up
from .tiles import BANK_COLUMNS, P_MAX, Part, cut

#: Cached answers to whether a problem is computed as patches.
PLANS_KEPT = 128


@dataclass(frozen=True)
class PatchSettings(Settings):
    """Settings of patches."""

    algorithm = "activation_stationary of patches"
    tried = ("shard", "side", "warmup")
    keeps = "filters and rows of patches"
    instead = "weight_stationary"

    shard: str = choice(
        "the two cores share rows of taps (channels), or of x (images)", SHARDS, near=("images", "channels")
    )
    side: int = count("neighbouring pixels of x of a partition", 1, 4096, near=BY_SHAPE)
    warmup: int = warm_up(28, near=WARM_UPS)


@dataclass(frozen=True)
class PatchSchedule(PixelSchedule):
    """The schedule of the convolution with one tap, of Geometry `points`, whose batches are of rows of taps of all
    output channels; patch: (output channels, columns of taps)."""

    of_patches = True

    points: Geometry
    patch: tuple[int, int]

    def banks_of(self, taps: int) -> list[tuple[Part, Part]]:
        """(output channels, rows of taps) of each bank of accumulators of so many rows of taps."""
        K, S = self.patch
        rows = cut(taps, max(1, BANK_COLUMNS // S))
        return [(k, r) for k in cut(K, max(1, BANK_COLUMNS // (rows[-1][1] * S))) for r in rows]

    def run(self, columns: int) -> int:
        """Elements of a run of y."""
        return self.sizes.side * (self.patch[1] if writes_rows(self.points) else math.prod(self.patch))


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


def points_of(geometry: Geometry) -> Geometry:
    """The convolution with one tap: its output channels are (k, tap)."""
    planes, rows, columns = (Axis(axis.size, 1, axis.size, images=axis.images) for axis in geometry.axes)
    K = geometry.K * num_taps(geometry)
    return replace(geometry, K=K, planes=planes, rows=rows, columns=columns, flipped=False)


def make_patches(geometry: Geometry, options: Options, settings: PatchSettings) -> PatchSchedule | None:
    """The PatchSchedule of settings; None if SBUF has no room."""
    points, own = points_of(geometry), PixelSettings.read(None, fold=1, shifts=1, **vars(settings))
    patch = geometry.K, geometry.columns.taps
    found = make_pixels(points, options, own, math.prod(patch))
    if found is None:
        return None
    same = {one.name: getattr(found, one.name) for one in fields(found)}
    return PatchSchedule(**same, points=points, patch=patch)


@functools.lru_cache(maxsize=PLANS_KEPT)
def takes_patches(geometry: Geometry, options: Options) -> bool:
    """Whether a problem is computed as patches. Where neighbours of y in HBM are channels of a pixel, output pixels may
    be the columns instead, one phase after the other: they take every option and less SBUF, and with many channels of x
    and y 0.80 to 1.00 of the time (2x2 to 4x4)."""
    if not is_patches(geometry) or writes_rows(geometry):
        return is_patches(geometry)
    if geometry.C > P_MAX <= geometry.K and geometry.planes.lhs_dilation == 1:
        return False
    least = PatchSettings.read(None, shard="images", side=1)
    return patches_unsupported(geometry, options) == "" and make_patches(geometry, options, least) is not None
