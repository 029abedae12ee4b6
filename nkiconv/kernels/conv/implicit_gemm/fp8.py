"""product="fp8_pairs": x with the zeros that pairs need, and their matmuls; pairs_fp8.py says what pairs.

x of a chunk lies as [channels, slots, images, rows, columns]. Zeros above and below are stored where a bank has several
images, which lie below each other, or where taps pair; zeros beside x only where taps pair.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import put_first, window_of
from ....schedules.geometry import filter_rows, num_taps
from ....schedules.tiles import WORD_BYTES, size_of
from ..._dma import copy
from ..boxes import offset_at
from .fold import chunk_window, comes_staged, tap_groups
from .jobs import stationary_columns
from .pairs_fp8 import ALONE, CHUNKS, HALVES, slot_channels, slots_of, stores_zeros, sums_pitch, word_of
from .rows import load_columns


@dataclass
class Place(nl.NKIObject):
    """How x of a chunk that pairs lies in SBUF for a band: element (row, column) of it first, zeros counted.

    pitch: rows from one image to the next; images: of such pitches.
    """

    slots: int
    images: int
    row: int
    pitch: int
    column: int
    columns: int


def stored_place(geometry, chunk, band):
    """The Place of a chunk's x for a band."""
    rows = geometry.rows
    extent = window_of(rows, band.pn)
    pitch, images = extent, band.zn
    if band.zn > 1:
        pitch = sums_pitch(geometry, [chunk], band.zn, band.pn) * rows.stride
        images = band.zn + (1 if extent > pitch else 0)
    column, columns = chunk_window(geometry, chunk, band)
    return Place(
        slots=slots_of(chunk),
        images=images,
        row=band.p0 * rows.stride - rows.before,
        pitch=pitch,
        column=column,
        columns=columns,
    )


def x_elements(geometry, chunk, band):
    """Elements a partition of a chunk's x for a band."""
    if chunk[3] == ALONE:
        return band.dn * band.hn * chunk_window(geometry, chunk, band)[1]
    place = stored_place(geometry, chunk, band)
    return place.slots * place.images * place.pitch * place.columns


def load_paired(operands, geometry, chunk, x_sbuf, band, part):
    """A part (first row, rows) of a band of a chunk that pairs, into a tile of `new_rows`."""
    place = stored_place(geometry, chunk, band)
    if comes_staged(geometry, chunk, band):
        load_staged(operands, geometry, chunk, x_sbuf, band, place, part)
        return
    top = band.h0 - place.row + part[0]
    for slot in range(place.slots):
        parts = slot_channels(chunk, slot)
        for which in range(len(parts) * chunk[2]):
            copy_index = which % chunk[2]
            p, c0, count = parts[which // chunk[2]]
            p += copy_index * chunk[1]
            dst = x_sbuf[p : p + count, slot, 0 : band.zn, top : top + part[1], 0 : place.columns]
            first = place.column + copy_index * geometry.columns.dilation
            load_columns(operands, geometry, dst, chunk[0] + c0, band.d0, band.h0 + part[0], first)


def load_staged(operands, geometry, chunk, x_sbuf, band, place, part):
    """The same of a chunk whose rows come as one run, copies a few elements further: GpSimd, for which no read-out
    waits, puts them in place by whole words, and then what of a copy's row lies at the end of the row before."""
    count, width = chunk[1], geometry.columns.size
    parts, top, left = count * chunk[2], band.h0 - place.row + part[0], -place.column
    bottom, size = top + part[1], part[1] * width
    raw_sbuf = nl.ndarray((parts, band.zn, size + width), dtype=operands.x_dtype, buffer=nl.sbuf)
    offset = offset_at(geometry.x_strides, (chunk[0], band.d0, band.h0 + part[0], 0))
    pattern = [[geometry.x_strides[0], count], [geometry.x_strides[1], band.zn], [1, size]]
    src = operands.x.ap(pattern=pattern, offset=offset)
    for copy_index in range(chunk[2]):
        p, first = copy_index * count, width - copy_index * geometry.columns.dilation
        zero(raw_sbuf[p : p + count, 0 : band.zn, first + size : width + size])
        copy(raw_sbuf[p : p + count, 0 : band.zn, first : first + size], src)
    rows_sbuf = raw_sbuf.reshape((parts, band.zn, part[1] + 1, width))
    nisa.tensor_copy(
        dst=in_words(geometry, x_sbuf[0:parts, 0, 0 : band.zn, top:bottom, left : left + width]),
        src=in_words(geometry, rows_sbuf[0:parts, 0 : band.zn, 1 : part[1] + 1, 0:width]),
        engine=nisa.engine.gpsimd,
    )
    for copy_index in range(1, chunk[2]):
        p, shift = copy_index * count, copy_index * geometry.columns.dilation
        edge = min(shift, left)
        if edge > 0:
            nisa.tensor_copy(
                dst=x_sbuf[p : p + count, 0, 0 : band.zn, top:bottom, left - edge : left],
                src=rows_sbuf[p : p + count, 0 : band.zn, 0 : part[1], width - edge : width],
                engine=nisa.engine.gpsimd,
            )
        zero(x_sbuf[p : p + count, 0, 0 : band.zn, top:bottom, left + width - shift : left + width])


def new_rows(operands, geometry, chunk, band):
    """Room for x of a chunk that pairs, and zeros around it."""
    place = stored_place(geometry, chunk, band)
    parts, slots = chunk[1] * chunk[2], place.slots
    shape = (parts, slots, place.images, place.pitch, place.columns)
    x_sbuf = nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf)
    top = band.h0 - place.row
    bottom = top + band.hn
    if band.zn > 1 or stores_zeros(chunk):
        zero(x_sbuf[0:parts, 0:slots, 0 : place.images, 0:top, 0 : place.columns])
        zero(x_sbuf[0:parts, 0:slots, 0 : band.zn, bottom : place.pitch, 0 : place.columns])
    if stores_zeros(chunk):
        word, shift = 1, (chunk[2] - 1) * geometry.columns.dilation
        rows_sbuf = x_sbuf.reshape((parts, slots * place.images * place.pitch, place.columns))
        if comes_staged(geometry, chunk, band):
            word, shift, rows_sbuf = word_of(geometry), 0, in_words(geometry, rows_sbuf)
        left = min(place.columns, max(0, -place.column))
        right = max(left, min(place.columns, geometry.columns.size - place.column - shift))
        zero(rows_sbuf[0:parts, 0 : rows_sbuf.shape[1], 0 : left // word])
        zero(rows_sbuf[0:parts, 0 : rows_sbuf.shape[1], right // word : place.columns // word])
    return x_sbuf


def in_words(geometry, x_sbuf):
    """A tile, or rows of it, as words that are copied as one."""
    word = word_of(geometry)
    if word == 1:
        return x_sbuf
    return x_sbuf.view(nl.float32 if word == WORD_BYTES else nl.bfloat16)


def zero(x_sbuf):
    """Zeros, where there is anything."""
    if size_of(x_sbuf.shape) > 0:
        nisa.memset(dst=x_sbuf, value=0.0, engine=nisa.engine.gpsimd)


@dataclass
class TapPair(nl.NKIObject):
    """One matmul of a chunk that pairs: (row, group) of its taps, the second None where there is one only, and
    (first, 1, how many) planes, rows and columns of outputs. half: of a single tap of HALVES, which half of the array's
    rows it takes; else -1."""

    first: tuple
    second: object
    planes: tuple
    rows: tuple
    columns: tuple
    half: int


def pairs_in(geometry, chunk, every, band, bank, which):
    """Matmuls of a chunk for a bank: Pairs of `every`, its Products tap by tap; which: of the band's banks."""
    found, p0, q0 = [], band.p0 + bank.p, band.q0 + bank.q
    step = 2 if stores_zeros(chunk) else 1
    if chunk[3] == HALVES and geometry.packed == 0 and len(every) == num_taps(geometry):
        every = halved_last(geometry, every)
    for index in range(0, len(every), step):
        first, second = every[index], None
        rows, columns = first.rows[:3], first.columns[:3]
        tap, other, half = (first.row, first.group), None, -1
        if step == 2 and index + 1 < len(every):
            second = every[index + 1]
            rows, columns = joined(rows, second.rows), joined(columns, second.columns)
            other = (second.row, second.group)
            if other[0] < tap[0] or (other[0] == tap[0] and other[1] < tap[1]):
                tap, other = other, tap
        elif chunk[3] == HALVES and len(every) == num_taps(geometry):
            half = which % 2
        if bank.zn > 1:
            rows = (p0, 1, bank.pn)
        if half >= 0:
            rows, columns = (p0, 1, bank.pn), (q0, 1, bank.qn)
        found.append(TapPair(first=tap, second=other, planes=first.planes, rows=rows, columns=columns, half=half))
    return whole_first(found, bank)


def halved_last(geometry, every):
    """Products of all taps, the last tap of the filter behind the others: a plain one has no other in the second slot
    of HALVES."""
    row, group, others, last = filter_rows(geometry) - 1, geometry.columns.taps - 1, [], []
    for product in every:
        if product.row == row and product.group == group:
            last.append(product)
        else:
            others.append(product)
    return others + last


def joined(one, other):
    """The least (first, 1, how many) that holds two."""
    first = min(one[0], other[0])
    return first, 1, max(one[0] + one[2], other[0] + other[2]) - first


def whole_first(pairs, bank):
    """Pairs with one first that meets all of a bank: of a half on the array's last rows that one, which then follows
    the half of the bank before."""
    whole = -1
    for index in range(len(pairs)):
        pair = pairs[index]
        if pair.rows[2] == bank.pn and pair.columns[2] == bank.qn and (whole < 0 or pair.half == 1):
            whole = index
    return put_first(pairs, whole) if whole > 0 else pairs


def multiply_pair(work, one, chunk, factor, pair, accumulate):
    """One matmul of a chunk that pairs."""
    geometry, band, bank, job = work.geometry, one.results.band, one.bank, one.results.job
    of, x_sbuf, w_sbuf = job.chunks[chunk], factor.x_sbuf, factor.stationaries
    place, kn = stored_place(geometry, of, band), stationary_columns(geometry, job)
    rows, columns, apart = pair.rows, pair.columns, one.banks[0].shape[2]
    count = (bank.zn - 1) * apart + rows[2]
    row = bank.z * place.pitch + rows[0] * geometry.rows.stride - geometry.rows.before - place.row
    column = columns[0] * geometry.columns.stride - geometry.columns.before - place.column
    at, w_at = tap_place(geometry, of, place, kn, pair.first)
    # from one slot to the next, or from one tap to the other
    slot, w_slot = place.images * place.pitch * place.columns, w_sbuf.shape[1] // place.slots * w_sbuf.shape[2] * kn
    step, w_step = slot, w_slot
    if pair.second != None:
        step, w_step = tap_place(geometry, of, place, kn, pair.second)
        step, w_step = step - at, w_step - w_at
    parts = x_sbuf.shape[0] if pair.half < 0 else x_sbuf.shape[0] // 2
    first = max(0, pair.half) * parts
    double = pair.half >= 0 or pair.second != None or of[3] == CHUNKS
    window = [[place.columns * geometry.rows.stride, count], [geometry.columns.stride, columns[2]]]
    p, q = rows[0] - band.p0 - bank.p, columns[0] - band.q0 - bank.q
    sums = one.banks[0].reshape((job.kn, bank.zn * apart, bank.qn))
    nisa.nc_matmul(
        dst=sums[0 : job.kn, p : p + count, q : q + columns[2]],
        stationary=w_sbuf.ap(
            pattern=[[place.slots * w_slot, parts]] + ([[w_step, 2]] if double else []) + [[1, job.kn]],
            offset=first * place.slots * w_slot + w_at,
        ),
        moving=x_sbuf.ap(
            pattern=[[place.slots * slot, parts]] + ([[step, 2]] if double else []) + window,
            offset=first * place.slots * slot + row * place.columns + column + at,
        ),
        accumulate=accumulate,
        tile_position=() if pair.half < 0 else (first, 0),
        tile_size=() if pair.half < 0 else (parts, nl.tile_size.pmax),
        perf_mode=nisa.matmul_perf_mode.double_row if double else nisa.matmul_perf_mode.none,
    )


def tap_place(geometry, chunk, place, kn, tap):
    """(elements of x, of stationaries) from the first tap of a chunk to this one."""
    row, group = tap
    x = row * geometry.rows.dilation * place.columns + group * chunk[2] * geometry.columns.dilation
    return x, (row * tap_groups(geometry, chunk) + group) * kn
