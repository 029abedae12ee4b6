"""One convolution on three axes, as every schedule and kernel sees it: planes, rows and columns, channels, strides;
where a tap meets an axis: outputs that see an element of x there, not padding or a gap of a dilated axis.

Frames in front of x are the last planes of the preceding call, in a separate tensor. Axes, output tiles and taps count
them as planes of x, the first ones of each volume. Only loads distinguish them: a load is cut where the frames end, so
no copy of both is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .tiles import div_ceil


@dataclass(frozen=True)
class Frames:
    """The number of frames in front of each volume, and strides in their tensor, as `Geometry.x_strides`."""

    count: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class PlanePiece:
    """Neighbouring planes of a load in one tensor: the first one's index in the load, count, its index in the tensor,
    the tensor's strides, and whether it is the frames' tensor."""

    first: int
    count: int
    plane: int
    strides: tuple[int, ...]
    framed: bool


def are_side_by_side(geometry: Geometry) -> bool:
    """Whether channels of x, and of the frames in front of it, are neighbours in HBM: in NCDHW with one pixel a plane,
    channels of x are, but those of several frames are not; nor are planes of taps that are channels."""
    frames, channels = geometry.frames, geometry.C if geometry.depth is None else geometry.C // geometry.depth.taps
    return geometry.x_strides[0] == 1 and channels > 1 and (frames is None or frames.strides[0] == 1)


def is_transposed(geometry: Geometry) -> bool:
    """Whether DMA transposes x: neighbours in HBM are channels, of more than a byte each."""
    return are_side_by_side(geometry) and geometry.hbm_itemsize > 1


def moves_pairs(geometry: Geometry) -> bool:
    """Whether implicit_gemm loads x of single bytes by DMA transposes of two neighbouring channels as one element: of
    images, with plain filters of one group."""
    rows, columns, planes = geometry.rows, geometry.columns, geometry.planes
    plain = geometry.groups == 1 and geometry.packed == 0 and not geometry.flipped and geometry.frames is None
    images = planes.taps == 1 and sees_own(planes) and rows.lhs_dilation == columns.lhs_dilation == 1
    pixels = geometry.x_strides[3] > 1 or rows.size == columns.size == 1
    in_twos = geometry.hbm_itemsize == 1 and geometry.C % 2 == 0 and geometry.C >= PAIRS_LEAST and pixels
    return in_twos and are_side_by_side(geometry) and plain and images


def parts_of_x(geometry: Geometry, axis: Axis) -> list[PlanePiece]:
    """PlanePieces of a whole volume of an axis of planes: of the frames' tensor, if there is one, and of x's."""
    frames, size = geometry.frames, axis.size // axis.images
    if frames is None:
        return [PlanePiece(0, size, 0, geometry.x_strides, False)]
    held = frames.count
    return [PlanePiece(0, held, 0, frames.strides, True), PlanePiece(held, size - held, 0, geometry.x_strides, False)]


def plane_pieces(geometry: Geometry, d0: int, dn: int) -> list[PlanePiece]:
    """PlanePieces of planes d0 .. d0+dn-1, all of one volume."""
    volume, place = divmod(d0, geometry.planes.size // geometry.planes.images)
    found = []
    for part in parts_of_x(geometry, geometry.planes):
        low, high = max(place, part.first), min(place + dn, part.first + part.count)
        if low < high:
            plane = volume * part.count + low - part.first
            found.append(replace(part, first=low - place, count=high - low, plane=plane))
    return found


def outputs_met(
    size: int, stride: int, lhs_dilation: int, shift: int, q0: int, qn: int
) -> tuple[int, int, int, int, int]:
    """The outputs of q0 .. q0+qn-1 at which a tap meets an element of an axis of `size`, not a zero.

    shift: of the tap against output 0, tap * dilation - padding in front.

    Returns (first output, step between outputs, how many, first element, step between elements); no output: how many is
    0.
    """
    common = math.gcd(stride, lhs_dilation)
    q_step = lhs_dilation // common
    first = q0
    if shift < 0:
        first = max(q0, div_ceil(-shift, stride))
    lacking = -(first * stride + shift) % lhs_dilation
    if lacking > 0:
        if lacking % common > 0:
            return q0, q_step, 0, 0, 1
        first += lacking // common * pow(stride // common, -1, q_step) % q_step
    top = (size - 1) * lhs_dilation
    position = first * stride + shift
    if first >= q0 + qn or position > top:
        return q0, q_step, 0, 0, 1
    last = min(q0 + qn - 1, first + (top - position) // stride)
    count = (last - first) // q_step + 1
    return first, q_step, count, position // lhs_dilation, stride // common


#: Bytes from a row of x that is read to the next from which rows between them are not loaded: a run of 128 bytes takes
#: a DMA engine about as long as 256 bytes of long runs (trn2.toml: dma.small_element_ns, element_overhead_ns,
#: engine_bytes_per_ns), and HBM moves half of them.
APART_BYTES = 256

#: The fewest channels of fp8 that DMA transposes in pairs.
PAIRS_LEAST = 32

#: The valid range of a tap: outputs and elements, as `axis.outputs_met` returns them.
Met = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Axis:
    """Planes, rows or columns: size of x, taps of w, outputs, and their relation.

    images: equal images along the axis, as planes of several volumes; size and out count all of them. No output tile
    has planes of two images, unless images is 1.
    """

    size: int
    taps: int
    out: int
    stride: int = 1
    dilation: int = 1
    lhs_dilation: int = 1
    before: int = 0
    images: int = 1


@dataclass(frozen=True)
class Geometry:
    """One convolution on three axes: y[k, z, p, q] = sum over c, t, r, s of

        w[k, c, t, r, s] * xp[g * C / groups + c, z', p', q'],    g = k // (K / groups),

    p' = p * stride + r * dilation - before on the rows' axis, z' and q' likewise on the planes' and columns' axes. xp
    is x with lhs_dilation - 1 zeros between neighbours, and zeros outside. The images of a 2-d problem are planes with
    one tap, each an output; so are evenly spaced planes of volumes that one tap reads. Rows of taps of several planes
    follow each other. Strides are in elements of the HBM tensors as stored, so permuted layouts need no copy; elements
    that no tap reads are left out in NHWC, and long rows of them in other layouts.
    """

    C: int
    K: int
    groups: int
    planes: Axis
    rows: Axis
    columns: Axis
    #: elements between neighbours in x along channels, planes, rows and columns; in w along k, c, rows and columns of
    #: taps; in y and the residual along k, planes, rows and columns. If planes of several volumes are not evenly
    #: spaced, x and y also have the stride between volumes, and then the planes of one
    x_strides: tuple[int, ...]
    w_strides: tuple[int, ...]
    y_strides: tuple[int, ...]
    #: output channels of a packed filter's block; 0: the filter is plain
    packed: int
    #: bytes of an element of x and w on chip and in HBM, and whether the Tensor Engine multiplies them at the rate of
    #: 16 bits; fp8 twice as fast with double_row (nki.isa)
    itemsize: int
    hbm_itemsize: int
    fast: bool
    #: the precision of products: None, or one of PRECISIONS
    precision: str | None
    #: whether the filter is one of a transposed convolution: taps in reverse order; with several groups [C, K / groups,
    #: ...], with strides along a group's k and along all c
    flipped: bool
    #: Frames that precede the planes of x's tensor, counted in planes.size, or None
    frames: Frames | None
    #: whether planes of taps that are channels are plane by plane on the partitions (see `planes`)
    by_plane: bool = False
    #: the planes' own Axis if C counts each input channel for each plane of taps (see `planes`); with pairs of planes
    #: the rows' Axis if it does for each row of taps; or None
    depth: Axis | None = None
    #: the original Geometry, if the planes' Axis is that of pairs of planes of y, or None
    direct: Geometry | None = None
    #: planes of x, frames included, of an image or a volume
    image_planes: int = 1
    #: neighbouring rows, and columns, that each row and column of x in HBM becomes
    upsample: int = 1
    #: rows of a plane of x in HBM, those that are left out too; 0: none is
    rows_stored: int = 0
    #: the host's problem is so many times this one, and its bound so many times longer
    times: int = 1

    @property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        """Planes, rows and columns."""
        return self.planes, self.rows, self.columns

    @property
    def depth_axis(self) -> Axis:
        """`depth`, which must not be None."""
        assert self.depth is not None
        return self.depth

    @property
    def direct_planes(self) -> Axis:
        """The planes of y, if `planes` are pairs of them."""
        assert self.direct is not None
        return self.direct.planes


def num_phases(axis: Axis) -> int:
    """Outputs from one to the next that sees elements of x at the same taps; others see zeros there."""
    return axis.lhs_dilation // math.gcd(axis.stride, axis.lhs_dilation)


def valid_range(axis: Axis, tap: int, first: int, count: int) -> Met:
    """The valid range of a tap in outputs first .. first+count-1, as `axis.outputs_met` returns it."""
    shift = tap * axis.dilation - axis.before
    if axis.images == 1:
        return outputs_met(axis.size, axis.stride, axis.lhs_dilation, shift, first, count)
    out, size = axis.out // axis.images, axis.size // axis.images
    image = first // out
    found = outputs_met(size, axis.stride, axis.lhs_dilation, shift, first - image * out, count)
    return found[0] + image * out, found[1], found[2], found[3] + image * size, found[4]


def writes_rows(geometry: Geometry) -> bool:
    """Whether neighbours of y in HBM are pixels of a row, not output channels."""
    return geometry.y_strides[0] != 1 and geometry.K > 1


def is_evenly_apart(geometry: Geometry) -> bool:
    """Whether planes of all images or volumes are evenly spaced in x and in y."""
    return len(geometry.x_strides) == len(geometry.y_strides) == 4


def filter_rows(geometry: Geometry) -> int:
    """Rows of taps of a filter, over all planes."""
    return geometry.planes.taps * geometry.rows.taps


def num_taps(geometry: Geometry) -> int:
    """Taps of a filter for an input channel."""
    return filter_rows(geometry) * geometry.columns.taps


def windows_of_outputs(axis: Axis) -> Axis:
    """The Axis of the outputs that read each element of x, at taps in reverse order."""
    before = (axis.taps - 1) * axis.dilation - axis.before
    return replace(
        axis, size=axis.out, out=axis.size, stride=axis.lhs_dilation, lhs_dilation=axis.stride, before=before
    )


def span(axis: Axis, first: int, count: int) -> tuple[int, int]:
    """(first element, count) of x that taps read at outputs first .. first+count-1; (0, 0) if they read none."""
    image, size = first * axis.images // max(1, axis.out), axis.size // axis.images
    if count > 0:
        begin = (first - image * axis.out // axis.images) * axis.stride - axis.before
        end = begin + (count - 1) * axis.stride + (axis.taps - 1) * axis.dilation
        dense = (axis.stride == 1 and count >= axis.dilation) or (axis.dilation == 1 and axis.taps >= axis.stride)
        if dense or (axis.lhs_dilation == 1 and begin >= 0 and end < size):  # no gaps, or no padding
            low = div_ceil(max(0, begin), axis.lhs_dilation)
            high = min(max(-1, end) + axis.lhs_dilation, size * axis.lhs_dilation) // axis.lhs_dilation - 1
            return (0, 0) if end < 0 or high < low else (image * size + low, high - low + 1)
    low, high = axis.size, -1
    for tap in range(axis.taps):
        found = valid_range(axis, tap, first, count)
        if found[2] > 0:
            low = min(low, found[3])
            high = max(high, found[3] + (found[2] - 1) * found[4])
    return (0, 0) if high < low else (low, high - low + 1)


def thinned(axis: Axis) -> tuple[Axis, int]:
    """(Axis, step) without the elements that a single strided tap never reads: every step-th one is kept, if element 0
    is one of them."""
    shift = axis.before if axis.before >= 0 else -axis.before
    if axis.taps > 1 or axis.lhs_dilation > 1 or shift % axis.stride > 0:
        return axis, 1
    size = div_ceil(axis.size, axis.stride)
    return Axis(size=size, taps=1, out=axis.out, before=axis.before // axis.stride), axis.stride


def repeated(axis: Axis, images: int) -> Axis:
    """The Axis of `images` such axes, one after the other."""
    return replace(axis, size=images * axis.size, out=images * axis.out, images=images)


def images_axis(images: int, volumes: int = 1) -> Axis:
    """The planes' Axis of images in so many volumes: each is one output."""
    return Axis(size=images, taps=1, out=images, images=volumes)


def sees_own(axis: Axis) -> bool:
    """Whether each output reads only the element of its own number."""
    in_step = axis.taps == 1 and axis.stride == 1 and axis.lhs_dilation == 1
    return in_step and axis.before == 0 and axis.out <= axis.size


def sees_itself(axis: Axis) -> bool:
    """Whether each output reads only the element of its own number, and there are equally many."""
    return sees_own(axis) and axis.out == axis.size


def images_unsupported(planes: Axis, taker: str, instead: str) -> str:
    """Why an algorithm for images does not take these planes; "" if each of y reads the one of x of its number."""
    if planes.taps > 1:
        return f"T={planes.taps}: {taker} takes one plane of taps; use {instead}"
    if not sees_own(planes):
        return (
            f"D={planes.size}, Z={planes.out}, stride={planes.stride}, padding={planes.before} in front and "
            f"lhs_dilation={planes.lhs_dilation} of planes: {taker} takes planes of y that each see the plane of x of "
            f"their own number; use {instead}"
        )
    return ""
