"""Copies in HBM for algorithms that do not read x or write y as they are stored, and their bounds.

NHWC, for algorithms that read rows of x and write rows of y: a copy of x transposes c, contiguous in the source, and w,
contiguous in the copy; a copy of y the reverse. DMA transposes them on the way to SBUF, from where they are stored as
runs. With few channels, or elements of one byte, an engine sorts the pixels of whole rows instead, as few partitions
would be slow, and DMA transposes no single bytes.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .cuts import cut_planes, most_of
from .geometry import Geometry, are_side_by_side, is_transposed, moves_pairs, num_taps, parts_of_x, writes_rows
from .options import Options
from .prices import transposed_ns
from .tiles import P_MAX, PARTS, cut, div_ceil
from .windows import has_windows, windows_ns

#: Algorithms that write NHWC without a copy; those that read it without one, except x of single bytes.
OWN = ("implicit_gemm", "activation_stationary")
READS_OWN = (*OWN, "weight_stationary")
#: Most channels, at most as many as columns, with which an engine sorts the pixels of rows.
FEW = 64
#: Most and least bytes a partition of one piece of a copy, and pieces of a copy between these: stores of some overlap
#: loads of others, and a load has a trigger.
PIECE_BYTES, PIECE_BYTES_LEAST, PIECES = 16_384, 2048, 8
#: Least ratio of the time of DMA transposes to that of sorting pixels at which sorting pays: matmuls hide transposes,
#: and wait for the sorted copy. By `python tests/few_channels` 2.5 takes 1.01 times as long as the faster way, 1.14 at
#: worst; so does 2.2. With 7x7 filters, 2.1 takes 1.38 times as long at worst.
HIDDEN = 2.5
#: Cached answers of `sorts_x`.
KEPT = 256


@dataclass(frozen=True)
class Transposed:
    """Elements [a, n, h, b] of two tensors in HBM, their bytes, and their strides in both: a has stride 1 in the
    source, b in the target."""

    shape: tuple[int, ...]
    item: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    #: offsets of the first element
    source_first: int
    target_first: int
    #: whether an engine transposes them
    is_sorted: bool
    #: volumes of the n planes
    volumes: int

    @property
    def in_twos(self) -> bool:
        """Whether DMA transposes two neighbours of a as one element of two bytes, which an engine then separates."""
        return self.item == 1 and not self.is_sorted


def copies_x(algorithm: str, geometry: Geometry) -> bool:
    """Whether an algorithm gets a copy of x."""
    own = algorithm in READS_OWN and geometry.hbm_itemsize > 1
    own = own or (algorithm == "implicit_gemm" and takes_pairs(geometry))
    if algorithm == "weight_stationary":  # planes that are channels are loaded row by row; a cast has no buffer
        own = own and geometry.planes.taps == 1 and geometry.itemsize == geometry.hbm_itemsize
    own = own and not (algorithm == "activation_stationary" and writes_rows(geometry))
    own = own and not (sorts_x(geometry) and not (algorithm == "activation_stationary" and takes_windows(geometry)))
    return not own and are_side_by_side(geometry) and geometry.x_strides[3] > 1


@functools.lru_cache(maxsize=KEPT)
def sorts_x(geometry: Geometry) -> bool:
    """Whether a copy of x whose pixels an engine sorts pays: x of few channels, as DMA transposes blocks of 128
    partitions."""
    if not is_transposed(geometry) or geometry.C > FEW:
        return False
    target, copies = Target.of(Rates()), x_to_rows(geometry)
    return all(one.is_sorted for one in copies) and _sorted_ns(target, geometry) < _transposed_ns(target, geometry)


@functools.lru_cache(maxsize=KEPT)
def takes_pairs(geometry: Geometry) -> bool:
    """Whether implicit_gemm loads fp8 in pairs of channels, as `moves_pairs` has it: matmuls of up to 128 channels of a
    copy take two taps each."""
    if not moves_pairs(geometry):
        return False
    target, outputs = Target.of(Rates()), geometry.planes.out * geometry.rows.out * geometry.columns.out / PARTS
    more = num_taps(geometry) // 2 if geometry.C <= P_MAX else 0
    more_ns = more * outputs * div_ceil(geometry.K, P_MAX) * target.tensor_column_ns
    return more_ns <= target.round_trip_ns + copies_ns(target, x_to_rows(geometry))


@functools.lru_cache(maxsize=KEPT)
def takes_windows(geometry: Geometry) -> bool:
    """Whether activation_stationary computes windows, as they take less than x as rows; `python tests/few_channels`:
    1.003 times as long as the faster way, 1.06 at worst."""
    if not has_windows(geometry):
        return False
    rows_ns, target = _sorted_ns if sorts_x(geometry) else _transposed_ns, Target.of(Rates())
    return windows_ns(target, geometry) < rows_ns(target, geometry)


def _sorted_ns(target: Target, geometry: Geometry) -> float:
    """ns of a sorted copy of x, as long as transposes that matmuls hide would take."""
    return HIDDEN * (target.round_trip_ns + copies_ns(target, x_to_rows(geometry)))


def _transposed_ns(target: Target, geometry: Geometry) -> float:
    """ns of a core's DMA transposes of x."""
    rows, columns = stored_size(geometry)
    pixels = geometry.planes.size * rows * columns / PARTS
    return transposed_ns(target, geometry.C, pixels, columns, geometry.hbm_itemsize)


def copies_y(algorithm: str, geometry: Geometry) -> bool:
    """Whether an algorithm writes a copy of y."""
    own = algorithm in OWN or (algorithm == "weight_stationary" and geometry.groups > 1)
    return not own and geometry.y_strides[0] == 1 and geometry.K > 1 and geometry.y_strides[3] > 1


def plain_of(algorithm: str, geometry: Geometry) -> Geometry:
    """The Geometry of an algorithm, with the strides of the copies."""
    found, rows, columns = geometry, geometry.rows, geometry.columns
    if copies_x(algorithm, geometry):
        x_strides = dense(geometry.C, *stored_size(geometry))
        found = replace(found, x_strides=x_strides, frames=None, rows_stored=0)
    if copies_y(algorithm, geometry):
        found = replace(found, y_strides=dense(geometry.K, rows.out, columns.out))
    return found


def dense(channels: int, height: int, width: int) -> tuple[int, ...]:
    """Strides along channels, planes, rows and columns of contiguous rows, with the channels of a plane adjacent."""
    return (height * width, channels * height * width, width, 1)


def stored_size(geometry: Geometry) -> tuple[int, int]:
    """Rows and columns of x in HBM, before upsampling."""
    return geometry.rows.size // geometry.upsample, geometry.columns.size // geometry.upsample


def x_to_rows(geometry: Geometry) -> list[Transposed]:
    """The parts of the copy of x: its halo frames, then x."""
    C, (H, W), planes = geometry.C, stored_size(geometry), geometry.planes
    found = []
    for part in parts_of_x(geometry, planes):
        shape = (C, planes.images * part.count, H, W)
        found.append(to_rows(shape, geometry.hbm_itemsize, part.strides, planes.images, planes.size, part.first))
    return found


def residual_to_rows(geometry: Geometry) -> Transposed:
    """The copy of the residual, of at most four bytes an element."""
    shape = (geometry.K, geometry.planes.out, geometry.rows.out, geometry.columns.out)
    return to_rows(shape, 4, geometry.y_strides, geometry.planes.images, geometry.planes.out, 0)


def to_rows(
    shape: tuple[int, ...], item: int, strides: tuple[int, ...], volumes: int, planes: int, first: int
) -> Transposed:
    """Channels of NHWC, [c, n, h, w], as rows: planes from `first` on of each volume of a copy that has `planes` planes
    in all its volumes."""
    target = dense(shape[0], shape[2], shape[3])
    by_plane = target[1]
    if shape[1] < planes:
        target = (*target, planes // volumes * by_plane, shape[1] // volumes)
    by_dma = Transposed(
        shape=shape,
        item=item,
        source=strides,
        target=target,
        source_first=0,
        target_first=first * by_plane,
        is_sorted=False,
        volumes=volumes,
    )
    by_engine = replace(by_dma, is_sorted=True)
    return by_engine if sorts([by_engine], [by_dma], shape[0], shape[3]) else by_dma


def sorts(by_engine: list[Transposed], by_dma: list[Transposed], channels: int, pixels: int) -> bool:
    """Whether an engine, and not DMA, transposes a copy: of single bytes or few channels, if that takes less; of single
    bytes that are no pairs."""
    part = by_dma[0]
    if part.item == 1 and any(step % 2 for step in (part.shape[0], part.source_first, *part.source[1:])):
        return True
    if part.item > 1 and channels > min(FEW, pixels):
        return False
    target = Target.of(Rates())
    return copies_ns(target, by_engine) < copies_ns(target, by_dma)


def y_to_pixels(geometry: Geometry, options: Options) -> list[Transposed]:
    """y from its copy."""
    K, P, Q, planes = geometry.K, geometry.rows.out, geometry.columns.out, geometry.planes
    return to_pixels((K, planes.out, P, Q), options.epilogue.y_itemsize, geometry.y_strides, planes.images)


def to_pixels(shape: tuple[int, ...], item: int, strides: tuple[int, ...], volumes: int) -> list[Transposed]:
    """Rows [k, n, p, q] as NHWC with these strides: row by row, or, if its pixels are evenly spaced, as rows of 128
    pixels and one of the rest."""
    K, images, P, Q = shape
    step = strides[3] if Q > 1 else strides[2]
    rows, even = (Q, [(0, P, Q)], strides[2]), P == 1 or Q == 1 or strides[2] == Q * step
    whole = P * Q // P_MAX
    of_128 = (P_MAX, [(0, whole, P_MAX), (whole * P_MAX, 1, P * Q % P_MAX)], P_MAX * step)

    def copied(cut: tuple[int, list[tuple[int, int, int]], int], is_sorted: bool) -> list[Transposed]:
        each, lines, line_step = cut
        return [
            Transposed(
                shape=(columns, images, count, K),
                item=item,
                source=(1, K * P * Q, each, P * Q),
                target=(step, strides[1], line_step, 1, *strides[4:]),
                source_first=first,
                target_first=first * step,
                is_sorted=is_sorted,
                volumes=volumes,
            )
            for first, count, columns in lines
            if count * columns > 0
        ]

    by_dma = copied(of_128 if even else rows, False)
    return by_dma if by_dma and not sorts(copied(rows, True), by_dma, K, Q) else copied(rows, True)


def copies_of(algorithm: str, geometry: Geometry, options: Options) -> list[Transposed]:
    """All copies of x, y and the residual for an algorithm."""
    found = x_to_rows(geometry) if copies_x(algorithm, geometry) else []
    if copies_y(algorithm, geometry):
        found = found + y_to_pixels(geometry, options)
        if options.residual:
            found.append(residual_to_rows(geometry))
    return found


def pieces_of(part: Transposed) -> list[tuple[int, ...]]:
    """(first, how many) of n, a, h, b of the pieces of a Transposed, with rows on the partitions if an engine sorts
    them, else with a; an even number of pieces if rows allow it."""
    A, N, H, B = part.shape
    each = div_ceil(A, P_MAX) * N * H * B * part.item // PIECES
    most, together, volumes = min(PIECE_BYTES, max(PIECE_BYTES_LEAST, each)) // part.item, 1, part.volumes
    if part.is_sorted:  # shorter ones would cut the runs of a row
        most = max(1, PIECE_BYTES // part.item // min(A, B))
        a_parts, b_parts, heights = cut(A, most if A > B else A), cut(B, most if A <= B else B), cut(H, P_MAX)
        if len(a_parts) * len(b_parts) == 1:
            together = P_MAX // H
    else:
        each = 2 if part.in_twos else 1
        a_parts, most = [(each * a, each * n) for a, n in cut(A // each, P_MAX)], most // each
        b_parts = cut(B, most)
        heights = cut(H, max(1, most // most_of(b_parts)))
        if len(b_parts) == 1:
            together = most // (H * B)
    parts = div_ceil(N // volumes, max(1, min(together, div_ceil(N, PARTS))))
    images = cut_planes(N, volumes, volumes * parts)
    if len(images) * len(a_parts) * len(b_parts) * len(heights) % PARTS == 1 and H >= PARTS * len(heights):
        heights = cut(H, div_ceil(H, PARTS * len(heights)))
    elif len(images) * len(a_parts) * len(b_parts) * len(heights) == 1 and not part.is_sorted:
        b_parts = cut(B, div_ceil(B, PARTS))
    every = itertools.product(images, a_parts, heights, b_parts)
    return [(*n, *a, *h, *b) for n, a, h, b in every]


def relayout_ns(target: Target, algorithm: str, geometry: Geometry, options: Options) -> float:
    """ns of both cores for the copies; images of one pixel, which have both layouts, for DMA of single elements."""
    pixels, outputs = geometry.rows.size * geometry.columns.size, geometry.rows.out * geometry.columns.out
    y_itemsize, found = options.epilogue.y_itemsize, 0.0
    if algorithm not in READS_OWN and pixels == 1:
        found += geometry.planes.size * geometry.C * target.run_ns(geometry.hbm_itemsize) / (PARTS * target.dma_engines)
    if algorithm not in OWN and outputs == 1:
        found += geometry.planes.out * geometry.K * target.run_ns(y_itemsize) / (PARTS * target.dma_engines)
    ends_ns = target.round_trip_ns  # of each copy, which another one waits for
    found += ends_ns * (copies_x(algorithm, geometry) + copies_y(algorithm, geometry))
    return found + copies_ns(target, copies_of(algorithm, geometry, options))


def copies_ns(target: Target, parts: list[Transposed]) -> float:
    """ns of both cores for copies."""
    return sum(copy_ns(target, part) for part in parts)


def copy_ns(target: Target, part: Transposed) -> float:
    """ns of both cores for a copy."""
    A, N, H, B = part.shape
    mine, all_engines = N * A * H * B / PARTS, target.dma_engines
    engines = min(all_engines, div_ceil(A, P_MAX // all_engines))
    each = 2 if part.in_twos else 1
    read_ns = transposed_ns(target, A // each, mine / A, B, each * part.item)
    if part.in_twos:
        read_ns = max(read_ns, each * mine / A * div_ceil(A // each, P_MAX) * target.copy_ns(part.item))
    read_ns = max(read_ns, div_ceil(len(pieces_of(part)), PARTS) * target.hwdge_again_ns)
    if part.is_sorted:
        engines, run = all_engines, A * (B if part.source[3] == A else 1)
        read_ns = mine / run * target.run_ns(run * part.item) / engines
        element_ns = target.copy_ns(part.item)
        read_ns = max(read_ns, A * B * div_ceil(N * H, PARTS * P_MAX) * element_ns)
    run = B * (A if part.is_sorted and part.target[0] == B else 1)  # DMA leaves each of a on a separate partition
    written_ns = mine / run * target.run_ns(run * part.item) / engines
    return float(max(read_ns + written_ns, 2 * mine * part.item * target.hbm_byte_ns))
