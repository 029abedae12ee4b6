"""precision="winograd": volumes with three planes of taps by F(2, 3) along the planes, two planes of outputs at once.

Of frames d0 .. d3 and planes of taps g0, g1, g2

    m0 = g0 (d0 - d2)     m1 = (g0 + g1 + g2) (d1 + d2)     m2 = (g0 - g1 + g2) (d2 - d1)     m3 = g2 (d3 - d1)
    y0 = m0 + (m1 + m2) / 2                                 y1 = m3 + (m1 - m2) / 2

where products are convolutions of images: four instead of six. Factors are rounded to fp16. The loop's Geometry is that
of the transformed planes: each pair of planes of y reads four of them, by four planes of taps, with separate sums.
"""

from __future__ import annotations

from dataclasses import replace

from .cuts import Bank, OutTile
from .geometry import Axis, Geometry
from .options import Options
from .tiles import div_ceil, parts_of_images

#: Planes of taps, planes of y at once, and planes that are multiplied for these.
TAPS_OF_PLANES, PAIR, PRODUCTS_OF_PAIR = 3, 2, 4


def pairs_unsupported(geometry: Geometry, axes: int) -> str:
    """Why a convolution on two or three axes cannot be computed by pairs of planes; "" if it can."""
    planes, reason = geometry.planes, ""
    steps = (planes.stride, planes.dilation, planes.lhs_dilation)
    if geometry.flipped:
        reason = "transposed convolutions are not taken"
    elif axes == 2:
        reason = "images have no planes of taps"
    elif planes.taps != TAPS_OF_PLANES:
        reason = f"T={planes.taps}: must be {TAPS_OF_PLANES}"
    elif steps != (1, 1, 1):
        reason = f"stride, rhs_dilation, lhs_dilation of planes={steps}: must be 1"
    elif geometry.groups != 1:
        reason = f"feature_group_count={geometry.groups}: must be 1"
    return reason if reason == "" else f"precision=winograd: {reason}; use None"


def beside_pairs_unsupported(geometry: Geometry, options: Options) -> str:
    """Why pairs of planes do not go with other arguments; "" if they do."""
    if geometry.packed > 0:
        return "precision=winograd: adds planes of taps of plain filters, and filter_ref is packed; pass it plain"
    if options.strict_nonfinite:
        return "precision=winograd: multiplies frames of zeros, which strict_nonfinite=True forbids; use None"
    return ""


def with_pairs(geometry: Geometry) -> Geometry:
    """The Geometry with pairs of planes of y as planes of outputs; unchanged for other precisions."""
    planes = geometry.planes
    if geometry.precision != "winograd" or geometry.direct is not None:
        return geometry
    pairs = div_ceil(planes.out // planes.images, PAIR) * planes.images
    multiplied = Axis(
        size=PRODUCTS_OF_PAIR * pairs, taps=PRODUCTS_OF_PAIR, out=pairs, stride=PRODUCTS_OF_PAIR, images=planes.images
    )
    return replace(geometry, planes=multiplied, direct=geometry)


def row_pieces(geometry: Geometry, c0: int, cn: int) -> list[tuple[int, int, int, int]]:
    """(channel from c0, row of taps, channel of x, count) of channels c0 .. c0+cn-1."""
    if geometry.direct is None or geometry.depth is None:
        return [(0, 0, c0, cn)]
    C = geometry.direct.C
    return [(at, row, (c0 + at) % C, count) for row, at, count in parts_of_images(c0, cn, C)]


def planes_at_once(geometry: Geometry) -> int:
    """Planes of y in one plane of outputs."""
    return 1 if geometry.direct is None else PAIR


def frames_of_x(geometry: Geometry, out_tile: OutTile) -> tuple[int, int, int]:
    """(first plane of x, count, zeros before it) of the 2 zn + 2 frames that an output tile's pairs read."""
    planes = geometry.direct_planes
    volume, pair, _ = place_of_pair(geometry, out_tile.z0)
    size, first = planes.size // planes.images, PAIR * pair - planes.before
    low, high = max(0, first), min(size, first + frames_seen(out_tile.zn))
    if high <= low:
        return 0, 0, 0
    return volume * size + low, high - low, low - first


def frames_seen(pairs: int) -> int:
    """Frames that so many neighbouring pairs read."""
    return PAIR * pairs + TAPS_OF_PLANES - 1


def place_of_pair(geometry: Geometry, z: int) -> tuple[int, int, int]:
    """(volume, pair in it, planes of y of a volume) of a plane of outputs."""
    planes = geometry.direct_planes
    each = geometry.planes.out // planes.images
    return z // each, z % each, planes.out // planes.images


def out_tile_of_y(geometry: Geometry, out_tile: OutTile) -> OutTile:
    """An output tile with its planes of y; an odd last plane is alone."""
    if geometry.direct is None:
        return out_tile
    volume, pair, of_volume = place_of_pair(geometry, out_tile.z0)
    first = PAIR * pair
    return replace(out_tile, z0=volume * of_volume + first, zn=min(PAIR * out_tile.zn, of_volume - first))


def bank_of_y(geometry: Geometry, out_tile: OutTile, bank: Bank) -> Bank:
    """A bank of outputs in planes of y, from the first of its output tile."""
    if geometry.direct is None:
        return bank
    first = PAIR * bank.z0
    return replace(bank, z0=first, zn=min(PAIR * bank.zn, out_tile_of_y(geometry, out_tile).zn - first))
