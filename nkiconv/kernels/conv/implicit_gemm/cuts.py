"""How the work of one matmul a tap is cut: bands of outputs, banks of sums, parts of loads, blocks of taps."""

from ....schedules.cuts import Band, Bank, axis_elements, bank_unit, cut_planes, most_of, num_plane_parts
from ....schedules.geometry import num_taps, span
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, cut_at, div_ceil, share
from ..sums import home_tap
from .pairs_fp8 import slots_of, sums_pitch

#: Bytes a partition of a block of taps as loaded.
TAPS_RAW_BYTES = 24_576
#: Bytes a partition of results of one band and job.
TAPS_Y_BYTES = 16_384
#: Bytes a partition of a load of a band's rows, about, if they are not waited for.
PART_BYTES = 4096
#: Columns of a matmul from which on the array is never kept waiting for the next: of a bank that is cut in two.
TAPS_COLUMNS_MIN = 128
#: Matmuls between the transposes of a chunk's filters and their use, at least: they hide the read-outs.
TAPS_LEAD_MATMULS = 4


def home_row(geometry, rows):
    """(the row of taps, those of all planes one after the other, that all sums begin with, whether it meets all outputs
    of planes and rows); where none does, the middle one, which meets most. rows: the Axis of a job's; sums of planes
    that stay apart have one plane."""
    row, taps = home_tap(rows), geometry.planes.taps if geometry.direct == None else 1
    plane = home_tap(geometry.planes) if taps > 1 else 0
    first = (plane if plane >= 0 else taps // 2) * rows.taps + (row if row >= 0 else rows.taps // 2)
    return first, plane >= 0 and row >= 0


def tap_order(taps, first):
    """Rows of taps in the order of the work: this one first; the middle one if it is none of them."""
    home = first if 0 <= first and first < taps else taps // 2
    found = [home]
    for tap in range(taps):
        if tap != home:
            found.append(tap)
    return found


def lead_chunks(geometry):
    """Chunks whose filters are transposed before one is worked on."""
    least = 2 * TAPS_LEAD_MATMULS if geometry.precision == "fp16x3" else TAPS_LEAD_MATMULS
    return div_ceil(least, num_taps(geometry))


def band_elements(geometry, zn, pn, qn):
    """Most elements that outputs zn x pn x qn need."""
    plane = axis_elements(geometry.rows, pn) * axis_elements(geometry.columns, qn)
    return axis_elements(geometry.planes, zn) * plane


def bands_of(geometry, chunks, step, halves, x_bytes, wide, alike):
    """Bands of all images; at least `halves` bands.

    chunks: of x for one band. step: rows of outputs that a job makes at once. wide: as in ImplicitGemmSettings. alike:
    whether all bands of rows but the last have as many.
    """
    P, Q = geometry.rows.out, geometry.columns.out
    slots = 0
    for chunk in chunks:
        slots += slots_of(chunk)
    most = x_bytes // (slots * geometry.itemsize)
    most_y = TAPS_Y_BYTES // 4
    pn, qn = step, Q
    while qn > 1 and (band_elements(geometry, 1, pn, qn) > most or pn * qn > most_y):
        qn = div_ceil(qn, 2)
    apart = pairs_apart(geometry, qn, most)
    while pn < P and band_elements(geometry, apart, pn + step, qn) <= most and apart * (pn + step) * qn <= most_y:
        pn += step
    images = apart
    if pn >= P and qn >= Q and apart == 1:
        images = images_together(geometry, chunks)
        while images > 1 and band_elements(geometry, images, P, Q) > most:
            images -= 1
    num_parts = num_plane_parts(geometry.planes, images)
    if halves > 1 and num_parts % 2 == 1 and num_parts < geometry.planes.out and (apart == 1 or P == 1):
        num_parts += 1
    in_halves = halves > 1 and (num_parts * div_ceil(Q, qn)) % 2 == 1
    if P <= step:
        qn = min(qn, Q)
        parts = div_ceil(qn, BANK_COLUMNS)
        parts = div_ceil(parts, PARTS) * PARTS if in_halves else parts
        qn = div_ceil(qn, min(parts, qn))
    parts_of_planes = cut_planes(geometry.planes, num_parts)
    unit = bank_unit(most_of(parts_of_planes) if apart == 1 else 1, pn, qn, step)
    rows_of_bands = cut_rows(P, pn, unit, step, in_halves, alike)
    by_row, by_column, found = [], [], []
    for rows_of_band in rows_of_bands:
        by_row.append(span(geometry.rows, rows_of_band[0], div_ceil(rows_of_band[1], step) * step))
    for q0 in range(0, Q, qn):
        columns = span(geometry.columns, q0, min(qn, Q - q0))
        by_column.append((q0, widened(geometry, columns, wide) if qn >= Q else columns))
    for part in parts_of_planes:
        planes = span(geometry.planes, part[0], part[1])
        for index in range(len(rows_of_bands)):
            p0, count = rows_of_bands[index]
            rows = by_row[index]
            for column in by_column:
                q0, columns = column
                found.append(
                    Band(
                        z0=part[0],
                        zn=part[1],
                        p0=p0,
                        pn=count,
                        q0=q0,
                        qn=min(qn, Q - q0),
                        d0=planes[0],
                        dn=planes[1],
                        h0=rows[0],
                        hn=rows[1],
                        w0=columns[0],
                        wn=columns[1],
                    )
                )
    return found


def pairs_apart(geometry, qn, most):
    """Planes of outputs of a band, each with banks of its own: of pairs of planes whose rows of taps are channels, as
    many as fit, as they share frames, and rows of a band share none."""
    found = 1
    if geometry.direct != None and geometry.depth != None:
        each = geometry.planes.out // geometry.planes.images
        while found < each and band_elements(geometry, found + 1, 1, qn) <= most:
            found += 1
    return found


def images_together(geometry, chunks):
    """Whole images that one bank of sums holds, one at least; one too where zeros would lie between them, and each
    has enough columns."""
    pixels = geometry.rows.out * geometry.columns.out
    each = geometry.planes.out // geometry.planes.images
    apart = sums_pitch(geometry, chunks, each, geometry.rows.out)
    if apart > geometry.rows.out and pixels >= TAPS_COLUMNS_MIN:
        return 1
    return max(1, min(each, BANK_COLUMNS // (apart * geometry.columns.out)))


def widened(geometry, columns, wide):
    """(first, how many) columns of x, all of them, and so one run, where at most `wide` of them are not needed."""
    size = geometry.columns.size
    in_line = geometry.x_strides[3] == 1 and geometry.x_strides[2] == size
    return (0, size) if in_line and columns[1] > 0 and size - columns[1] <= wide else columns


def bank_rows(band):
    """Rows of outputs that one bank of sums holds."""
    return max(1, min(band.pn, BANK_COLUMNS // (bank_planes(band) * min(band.qn, BANK_COLUMNS))))


def bank_planes(band):
    """Planes of outputs that one bank of sums holds."""
    return min(band.zn, max(1, BANK_COLUMNS // (band.pn * band.qn)))


def banks_of(band, last):
    """Banks of sums of a band; last: the last one is small, as nothing hides what follows it."""
    qt, pt, zt = min(band.qn, BANK_COLUMNS), bank_rows(band), bank_planes(band)
    found = []
    for p in range(0, band.pn, pt):
        for z in range(0, band.zn, zt):
            zn = min(zt, band.zn - z)
            for q in range(0, band.qn, qt):
                found.append(Bank(z=z, zn=zn, p=p, pn=min(pt, band.pn - p), q=q, qn=min(qt, band.qn - q)))
    return split_bank(found) if last else found


def cut_bank(one, zn, pn, qn):
    """A bank cut in two: so many planes, rows and columns of it, all but on one axis, and the rest."""
    z, p, q = zn % one.zn, pn % one.pn, qn % one.qn
    return [
        Bank(z=one.z, zn=zn, p=one.p, pn=pn, q=one.q, qn=qn),
        Bank(z=one.z + z, zn=one.zn - z, p=one.p + p, pn=one.pn - p, q=one.q + q, qn=one.qn - q),
    ]


def split_bank(banks):
    """Banks of which the last is cut in two, by images, rows or columns, such that both have enough columns."""
    one, columns = banks[-1], TAPS_COLUMNS_MIN
    zn, pn, qn = one.zn, one.pn, one.qn
    images, rows = div_ceil(columns, pn * qn), div_ceil(columns, qn)
    if (zn - images) * pn * qn >= columns:
        return banks[:-1] + cut_bank(one, zn - images, pn, qn)
    if zn == 1 and (pn - rows) * qn >= columns:
        return banks[:-1] + cut_bank(one, zn, pn - rows, qn)
    if zn == 1 and pn == 1 and qn >= 2 * columns:
        return banks[:-1] + cut_bank(one, zn, pn, qn - columns)
    return banks


def row_parts(geometry, band, start, pairs):
    """(first row, rows) of the loads of a band's rows, none where it meets none; start: rows of the first bank first,
    then of another bank, then growing parts, each as much as what came before, up to PART_BYTES: the next rows must not
    wait for more than that. pairs: rows of outputs that the first job makes at once, so that a bank needs more of x."""
    if band.dn == 0 or band.hn == 0 or band.wn == 0:
        return []
    rows = geometry.rows
    row_bytes = band.dn * band.wn * geometry.itemsize
    unit = bank_rows(band) * pairs
    most = max(1, PART_BYTES // (unit * rows.stride * row_bytes))
    found, first, banks = [], 0, 1 if start else most
    outputs = 0
    while first < band.hn:
        outputs = min(band.pn, outputs + banks * unit)
        end = rows_to(geometry, band, outputs, first)
        found.append((first, end - first))
        first, banks = end, banks if len(found) == 1 else min(most, 2 * banks)
    return found


def rows_to(geometry, band, outputs, first):
    """End of the rows of x, `first` or later ones, that so many of a band's rows of outputs need."""
    if outputs >= band.pn:
        return band.hn
    needed = span(geometry.rows, band.p0, outputs)
    return min(band.hn, max(first + 1, needed[0] + needed[1] - band.h0))


def cut_rows(P, most, unit, step, in_halves, alike):
    """(first, how many) of bands of at most `most` rows, in whole units, as even as can be, or where they are `alike`
    with a smaller last one; in_halves: the two cores' halves first, of as many units each. step: rows that are not
    cut."""
    units = div_ceil(P, unit)
    if in_halves and units % 2 == 1 and P > step:
        unit = div_ceil(div_ceil(P, units + 1), step) * step
        units = div_ceil(P, unit)
    most_units = max(1, most // unit)
    parts = []
    for half in range(2 if in_halves and units > 1 else 1):
        mine = share(units, 2, half) if in_halves and units > 1 else (0, units)
        inner = cut(mine[1], most_units)
        if alike and len(inner) > 0:
            inner = cut_at(mine[1], div_ceil(mine[1], len(inner)))
        for part in inner:
            first = (mine[0] + part[0]) * unit
            parts.append((first, min(P, first + part[1] * unit) - first))
    return parts
