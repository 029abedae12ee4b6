"""Bands of x on their way: rows of a band come in as fp32 and become pairs of fp16, in the order of their use."""

from dataclasses import dataclass

from ...._nki import nl
from ..._dma import copy
from ..cuts import Band
from ..geometry import span
from .pairs import start_pair

#: Bytes a partition of fp32 elements that are loaded together, if more than one row, and of all that are not pairs yet.
PART_BYTES = 4096
STAGE_BYTES = 16_384


@dataclass
class Part(nl.NKIObject):
    """Rows of a band, from its first, of one of the chunks (index) of channels."""

    chunk: int
    h0: int
    hn: int


@dataclass
class Rows(nl.NKIObject):
    """A band of x on its way from HBM to pairs."""

    band: Band
    #: (first, how many) of channels
    chunks: list
    parts: list
    #: parts as loaded so far, [channels, images, rows, columns] fp32 in SBUF; how many have high parts, and low ones
    staged: list
    split: int
    ended: int
    #: by chunk: high and low parts of the band, [channels, images, rows, columns] fp16 in SBUF
    highs: list
    lows: list


def part_rows(band):
    """Rows of a band's parts, at most."""
    return max(1, PART_BYTES // (4 * band.nn * max(1, band.wn)))


def parts_of(band, chunks, first):
    """Parts of a band in the order of their use: the first rows chunk by chunk, all others row by row."""
    found = []
    if band.wn == 0:
        return found
    most = part_rows(band)
    for index in range(len(chunks)):
        for h0 in range(0, first, most):
            found.append(Part(chunk=index, h0=h0, hn=min(most, first - h0)))
    for h0 in range(first, band.hn, most):
        for index in range(len(chunks)):
            found.append(Part(chunk=index, h0=h0, hn=min(most, band.hn - h0)))
    return found


def start_rows(band, chunks, first):
    """A band of which nothing is loaded yet; first: as for `parts_of`."""
    highs, lows = [], []
    for _ in range(len(chunks)):
        nothing = None
        highs.append(nothing)
        lows.append(nothing)
    parts = parts_of(band, chunks, first)
    return Rows(band=band, chunks=chunks, parts=parts, staged=[], split=0, ended=0, highs=highs, lows=lows)


def rows_needed(geometry, band, p, pn):
    """Rows of a band's x, from its first, that its outputs in rows p .. p+pn-1 need."""
    found = span(geometry.rows, band.p0 + p, pn)
    return max(0, found[0] + found[1] - band.h0) if found[1] > 0 else 0


def parts_needed(rows, hn, chunk):
    """How many parts hold the first hn rows of the chunks up to this one (index)."""
    count = 0
    for index in range(len(rows.parts)):
        part = rows.parts[index]
        if part.h0 < hn and part.chunk <= chunk:
            count = index + 1
    return count


def load_rows(operands, geometry, rows, most):
    """Load at most so many parts, while those that are no pairs yet are few enough."""
    band = rows.band
    row_bytes = 4 * band.nn * band.wn
    staged_bytes = 0
    for index in range(rows.ended, len(rows.staged)):
        staged_bytes += rows.parts[index].hn * row_bytes
    end = min(len(rows.parts), len(rows.staged) + most)
    while len(rows.staged) < end:
        part = rows.parts[len(rows.staged)]
        staged_bytes += part.hn * row_bytes
        if staged_bytes > STAGE_BYTES and len(rows.staged) > rows.ended:
            return
        c0, count = rows.chunks[part.chunk]
        part_sbuf = nl.ndarray((count, band.nn, part.hn, band.wn), dtype=nl.float32, buffer=nl.sbuf)
        pattern = [
            [geometry.x_c, count],
            [geometry.x_n, band.nn],
            [geometry.x_h, part.hn],
            [geometry.x_w, band.wn],
        ]
        offset = band.n0 * geometry.x_n + c0 * geometry.x_c
        offset += (band.h0 + part.h0) * geometry.x_h + band.w0 * geometry.x_w
        copy(part_sbuf, operands.x.ap(pattern=pattern, offset=offset))
        rows.staged.append(part_sbuf)


def split_part(rows, ledger):
    """The Pair of the next part."""
    band, part = rows.band, rows.parts[rows.split]
    count = rows.chunks[part.chunk][1]
    if rows.highs[part.chunk] == None:
        shape = (count, band.nn, band.hn, band.wn)
        rows.highs[part.chunk] = nl.ndarray(shape, dtype=nl.float16, buffer=nl.sbuf)
        rows.lows[part.chunk] = nl.ndarray(shape, dtype=nl.float16, buffer=nl.sbuf)
    part_sbuf, end = rows.staged[rows.split], part.h0 + part.hn
    rows.split = rows.split + 1
    return start_pair(
        rows,
        part_sbuf,
        False,
        part_sbuf,
        rows.highs[part.chunk][0:count, 0 : band.nn, part.h0 : end, 0 : band.wn],
        rows.lows[part.chunk][0:count, 0 : band.nn, part.h0 : end, 0 : band.wn],
        band.nn * part.hn * band.wn,
        ledger,
    )
