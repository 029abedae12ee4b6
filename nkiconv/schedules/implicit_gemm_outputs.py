"""`implicit_gemm`: output tiles, banks of sums, parts of loads, and the x that a K tile holds for an output tile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .cuts import Band, Bank, axis_elements, bank_unit, cut_planes, most_of, num_plane_parts, window_of
from .geometry import Geometry, Met, num_taps, span, valid_range
from .implicit_gemm import ImplicitGemmSettings
from .implicit_gemm_channels import ALONE, STAGED, Chunk, Job, sums_pitch, tap_groups, word_of
from .tiles import BANK_COLUMNS, PARTS, Part, cut, cut_at, div_ceil, share

#: Elements a partition of results of one output tile and M tile.
Y_ELEMENTS = 4096
#: Bytes a partition of a load of an output tile's rows, about, if they are not waited for.
PART_BYTES = 4096
#: Bytes of a row of x that cost less than another run does.
RUN_BYTES = 127
#: Columns of a matmul from which on the Tensor Engine is never kept waiting for the next: of a bank that is cut in two.
COLUMNS_MIN = 128
#: Matmuls between the transposes of a K tile's filters and their use, at least: they hide the evacuations.
LEAD_MATMULS = 4


def lead_chunks(geometry: Geometry) -> int:
    """K tiles whose filters are transposed before one is worked on."""
    return div_ceil(LEAD_MATMULS * (2 if geometry.precision == "fp16x3" else 1), num_taps(geometry))


def group_met(geometry: Geometry, chunk: Chunk, group: int, q0: int, qn: int) -> Met:
    """Outputs that a group of taps meets, as `valid_range`; zeros beside x are there too where it is folded."""
    columns = geometry.columns
    if chunk.depth == 1:
        return valid_range(columns, group, q0, qn)
    first = q0 * columns.stride + group * chunk.depth * columns.dilation - columns.before
    return q0, 1, qn, first, columns.stride


def chunk_window(geometry: Geometry, chunk: Chunk, band: Band) -> Part:
    """(first column, columns) of x that a K tile's tile holds for an output tile; from left of x where zeros are
    stored there."""
    if chunk.depth == 1 and not chunk.stores_zeros:
        return band.w0, band.wn
    columns = geometry.columns
    first, width = band.q0 * columns.stride - columns.before, folded_width(geometry, chunk, band.qn)
    if comes_staged(geometry, chunk, band):  # whole rows of whole words
        word = word_of(geometry)
        left = div_ceil(columns.before, word) * word
        return -left, div_ceil(left + max(columns.size, first + width), word) * word
    if chunk.stores_zeros and first == 0 and band.wn == columns.size:
        width = max(width, band.wn)  # rows that come as one run
    return first, width


def comes_staged(geometry: Geometry, chunk: Chunk, band: Band) -> bool:
    """Whether rows of x of a K tile are put between zeros on chip."""
    return chunk.pairing == STAGED and band.qn == geometry.columns.out


def folded_width(geometry: Geometry, chunk: Chunk, qn: int) -> int:
    """Columns of x that each copy of a folded K tile holds for `qn` outputs of a row."""
    columns = geometry.columns
    last = (tap_groups(geometry, chunk) - 1) * chunk.depth * columns.dilation
    return (qn - 1) * columns.stride + last + 1


def x_elements(geometry: Geometry, chunk: Chunk, band: Band) -> int:
    """Elements a partition of a K tile's x for an output tile."""
    if chunk.pairing == ALONE:
        return band.dn * band.hn * chunk_window(geometry, chunk, band)[1]
    place = paired_place(geometry, chunk, band)
    return chunk.slots * place.images * place.pitch * place.columns


@dataclass(frozen=True)
class PairedPlace:
    """x in SBUF of a K tile that pairs: its first element (row, column), zeros counted; images, rows from one to the
    next, and columns."""

    images: int
    row: int
    pitch: int
    column: int
    columns: int


def paired_place(geometry: Geometry, chunk: Chunk, band: Band) -> PairedPlace:
    """The PairedPlace of a K tile's x for an output tile."""
    rows, images = geometry.rows, band.zn
    pitch = extent = window_of(rows, band.pn)
    if band.zn > 1:
        pitch = sums_pitch(geometry, [chunk], band.zn, band.pn) * rows.stride
        images += extent > pitch
    row = band.p0 * rows.stride - rows.before
    return PairedPlace(images, row, pitch, *chunk_window(geometry, chunk, band))


def job_band(band: Band, job: Job) -> Band:
    """An output tile in an M tile's own rows, pairs of rows where it makes two at once."""
    return band if job.rows == 1 else replace(band, p0=band.p0 // job.rows, pn=div_ceil(band.pn, job.rows))


def band_elements(geometry: Geometry, zn: int, pn: int, qn: int) -> int:
    """Most elements that outputs zn x pn x qn need."""
    plane = axis_elements(geometry.rows, pn) * axis_elements(geometry.columns, qn)
    return axis_elements(geometry.planes, zn) * plane


def bands_of(
    geometry: Geometry, chunks: Sequence[Chunk], step: int, halves: int, settings: ImplicitGemmSettings
) -> list[Band]:
    """Output tiles of all images; at least `halves` of them. step: rows of outputs that an M tile makes at once."""
    P, Q, planes = geometry.rows.out, geometry.columns.out, geometry.planes
    most = settings.x_bytes // (sum(chunk.slots for chunk in chunks) * geometry.itemsize)
    pn, qn = step, Q
    while qn > 1 and (band_elements(geometry, 1, pn, qn) > most or pn * qn > Y_ELEMENTS):
        qn = div_ceil(qn, 2)
    # of pairs of planes whose rows of taps are channels as many planes as fit, each with banks of its own: they share
    # frames, and rows of an output tile share none
    apart = 1
    while geometry.direct is not None and geometry.depth is not None and apart < planes.out // planes.images:
        if band_elements(geometry, apart + 1, 1, qn) > most:
            break
        apart += 1
    while pn < P and band_elements(geometry, apart, pn + step, qn) <= most and apart * (pn + step) * qn <= Y_ELEMENTS:
        pn += step
    images = apart
    if pn >= P and qn >= Q and apart == 1:
        images = images_together(geometry, chunks)
        while images > 1 and band_elements(geometry, images, P, Q) > most:
            images -= 1
    num_parts = num_plane_parts(planes, images)
    if halves > 1 and num_parts % 2 == 1 and num_parts < planes.out and (apart == 1 or P == 1):
        num_parts += 1
    in_halves = halves > 1 and (num_parts * div_ceil(Q, qn)) % 2 == 1
    if P <= step:
        parts = div_ceil(min(qn, Q), BANK_COLUMNS)
        parts = div_ceil(parts, PARTS) * PARTS if in_halves else parts
        qn = div_ceil(qn, min(parts, qn))
    parts_of_planes = cut_planes(planes, num_parts)
    unit = bank_unit(most_of(parts_of_planes) if apart == 1 else 1, pn, qn, step)
    rows = [
        (p0, n, *span(geometry.rows, p0, div_ceil(n, step) * step))
        for p0, n in cut_rows(P, pn, unit, step, in_halves, settings.loop > 0)
    ]
    columns = []
    for q0 in range(0, Q, qn):
        w0, wn = span(geometry.columns, q0, min(qn, Q - q0))
        # all columns of x, and so one run, where few of them are not needed
        size, in_line = geometry.columns.size, geometry.x_strides[3] == 1
        in_line = in_line and geometry.x_strides[2] == size and qn >= Q
        wide = in_line and wn > 0 and size - wn <= RUN_BYTES // geometry.itemsize
        columns.append((q0, min(qn, Q - q0), *((0, size) if wide else (w0, wn))))
    depths = [(z0, zn, *span(planes, z0, zn)) for z0, zn in parts_of_planes]
    return [
        Band(z0, zn, p0, n, q0, qn, d0, dn, h0, hn, w0, wn)
        for (z0, zn, d0, dn), (p0, n, h0, hn), (q0, qn, w0, wn) in itertools.product(depths, rows, columns)
    ]


def images_together(geometry: Geometry, chunks: Sequence[Chunk]) -> int:
    """Whole images that one bank of sums holds, one at least; one too where zeros would lie between them, and each
    has enough columns."""
    P, Q = geometry.rows.out, geometry.columns.out
    each = geometry.planes.out // geometry.planes.images
    apart = sums_pitch(geometry, chunks, each, P)
    if apart > P and P * Q >= COLUMNS_MIN:
        return 1
    return max(1, min(each, BANK_COLUMNS // (apart * Q)))


def bank_rows(band: Band) -> int:
    """Rows of outputs that one bank of sums holds."""
    planes = min(band.zn, max(1, BANK_COLUMNS // (band.pn * band.qn)))
    return max(1, min(band.pn, BANK_COLUMNS // (planes * min(band.qn, BANK_COLUMNS))))


def banks_of(band: Band, last: bool) -> list[Bank]:
    """Banks of sums of an output tile; last: the last one is small, as nothing hides what follows it."""
    qt, pt = min(band.qn, BANK_COLUMNS), bank_rows(band)
    zt = min(band.zn, max(1, BANK_COLUMNS // (band.pn * band.qn)))
    parts = itertools.product(cut_at(band.pn, pt), cut_at(band.zn, zt), cut_at(band.qn, qt))
    found = [Bank(z, zn, p, pn, q, qn) for (p, pn), (z, zn), (q, qn) in parts]
    return _split_last(found) if last else found


def _split_last(banks: list[Bank]) -> list[Bank]:
    """Banks of which the last is cut in two, by images, rows or columns, such that both have enough columns."""
    one, least = banks[-1], COLUMNS_MIN
    zn, pn, qn = one.zn, one.pn, one.qn
    images, rows = div_ceil(least, pn * qn), div_ceil(least, qn)
    if (zn - images) * pn * qn >= least:
        z = zn - images
        return [*banks[:-1], replace(one, zn=z), replace(one, z=one.z + z, zn=images)]
    if zn == 1 and (pn - rows) * qn >= least:
        p = pn - rows
        return [*banks[:-1], replace(one, pn=p), replace(one, p=one.p + p, pn=rows)]
    if zn == 1 and pn == 1 and qn >= 2 * least:
        q = qn - least
        return [*banks[:-1], replace(one, qn=q), replace(one, q=one.q + q, qn=least)]
    return banks


def row_parts(geometry: Geometry, band: Band, start: bool, pairs: int) -> list[Part]:
    """(first row, rows) of the loads of an output tile's rows, none where it meets none; start: rows of the first bank
    first, then of another bank, then growing parts, each as much as what came before, up to PART_BYTES: the next rows
    must not wait for more than that. pairs: rows of outputs that the first M tile makes at once, so that a bank needs
    more of x."""
    if band.dn == 0 or band.hn == 0 or band.wn == 0:
        return []
    rows, unit = geometry.rows, bank_rows(band) * pairs
    most = max(1, PART_BYTES // (unit * rows.stride * band.dn * band.wn * geometry.itemsize))
    found: list[Part] = []
    first, outputs, banks = 0, 0, 1 if start else most
    while first < band.hn:
        outputs, end = min(band.pn, outputs + banks * unit), band.hn
        if outputs < band.pn:
            h0, hn = span(rows, band.p0, outputs)
            end = min(band.hn, max(first + 1, h0 + hn - band.h0))
        found.append((first, end - first))
        first, banks = end, banks if len(found) == 1 else min(most, 2 * banks)
    return found


def cut_rows(P: int, most: int, unit: int, step: int, in_halves: bool, alike: bool) -> list[Part]:
    """(first, how many) of output tiles of at most `most` rows, in whole units, as even as can be, or where they are
    `alike` with a smaller last one; in_halves: the two cores' halves first, of as many units each. step: rows that are
    not cut."""
    units = div_ceil(P, unit)
    if in_halves and units % 2 == 1 and P > step:
        unit = div_ceil(div_ceil(P, units + 1), step) * step
        units = div_ceil(P, unit)
    halves, parts = 2 if in_halves and units > 1 else 1, []
    for first, count in (share(units, halves, half) for half in range(halves)):
        inner = cut(count, max(1, most // unit))
        if alike and inner:
            inner = cut_at(count, div_ceil(count, len(inner)))
        for begin, many in inner:
            row = (first + begin) * unit
            parts.append((row, min(P, row + many * unit) - row))
    return parts
