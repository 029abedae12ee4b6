"""Windows of x in SBUF with their padding stored as zeros: [c, chunk * images, rows, columns] of a band.

Channels come to the partitions by plain rows of x where its columns lie side by side (NCHW), and turned by DMA where
its channels do (NHWC). Gaps of a dilated x are zeros as well.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import SCALAR_WORK, is_16bit, pick
from ..._tiles import div_ceil, share
from ..boxes import clear_window
from ..cuts import most_of
from ..transposes import is_transposed
from .shape import inside, rows_inside

#: Scalar's work for a DMA of x: every other one of those that transpose is triggered there, in the time of 348 elements
#: each (trn2.toml, dma).
TRIGGER_WORK = 348 * SCALAR_WORK
#: Bytes of such a DMA, at least, if there are so many neighbouring chunks: two engines trigger one in 290 ns, in which
#: HBM gives a core 100 KiB.
TURNED_BYTES = 98_304
#: Bytes a partition of one load of a later band, if it has as many.
PART_BYTES = 4096


def new_window(operands, source, band, chunks, engine):
    """A window of which only what is no element of x is written."""
    shape = (most_of(chunks) * source.slots, len(chunks) * band.nn, band.hn, band.wn)
    x_sbuf = nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf)
    _, hn, top, h_step = rows_inside(source, band.p0, band.pn, -2)
    _, wn, left, w_step = inside(source.columns, band.q0, band.qn)
    if hn == 0 or wn == 0 or h_step > 1 or w_step > 1:
        nisa.memset(dst=x_sbuf, value=0.0, engine=engine)
        return x_sbuf
    clear_window(x_sbuf, 0, top, 0, band.wn, engine)
    clear_window(x_sbuf, top + hn, band.hn, 0, band.wn, engine)
    clear_window(x_sbuf, top, top + hn, 0, left, engine)
    clear_window(x_sbuf, top, top + hn, left + wn, band.wn, engine)
    return x_sbuf


def parts_of(geometry, source, band, block, start):
    """(first image, images, first row of x, rows) of the loads of a band, in whole blocks; start: what the first block
    needs first, then growing parts, as nothing goes on meanwhile."""
    h0, hn, _, _ = rows_inside(source, band.p0, band.pn, -1)
    wn = inside(source.columns, band.q0, band.qn)[1]
    if hn == 0 or wn == 0:
        return []
    found = []
    if band.nn > 1:
        at_once = div_ceil(PART_BYTES, block.nn * hn * wn * geometry.itemsize)
        first = 0
        while first < band.nn:
            count = block.nn * (growth(len(found)) if start else at_once)
            found.append((first, min(count, band.nn - first), h0, hn))
            first += count
        return found
    at_once = div_ceil(PART_BYTES, block.pn * source.rows.stride * wn * geometry.itemsize)
    first, outputs = 0, 0
    while first < hn:
        outputs = min(band.pn, outputs + block.pn * (growth(len(found)) if start else at_once))
        needed = rows_inside(source, band.p0, outputs, -1)
        end = hn if outputs == band.pn else min(hn, max(first, needed[0] + needed[1] - h0))
        if end > first:
            found.append((0, 1, h0 + first, end - first))
        first = max(first, end)
    return found


def growth(parts):
    """Blocks of the next load after so many: 1, 1, 2, 2, 4, 4 and so on."""
    count = 1
    for _ in range(parts // 2):
        count = 2 * count
    return count


def steps_of(geometry, source, band, chunks, part):
    """(first chunk, chunks, part) of the loads of a part for all chunks.

    DMAs that turn are few and large, as each takes the engine that triggers it, and an even number where that is easy:
    the two engines take turns, and what comes first shall be there first.
    """
    n, nn, h0, hn = part
    together, halves = 1, 1
    if is_transposed(geometry):
        if geometry.C % len(chunks) == 0 and (nn == 1 or is_in_line(geometry, source, band, part)):
            wn = inside(source.columns, band.q0, band.qn)[1]
            one_bytes = nn * hn * wn * chunks[0][1] * geometry.hbm_itemsize
            together = min(len(chunks), div_ceil(TURNED_BYTES, one_bytes))
        halves = 2 if len(chunks) == together and nn == 1 and hn > 1 and source.slots == 1 else 1
    found = []
    for half in range(halves):
        rows = share(hn, halves, half)
        for chunk in range(0, len(chunks), together):
            found.append((chunk, min(together, len(chunks) - chunk), (n, nn, h0 + rows[0], rows[1])))
    return found


def load_step(operands, geometry, source, band, x_sbuf, chunks, step, ledger):
    """One of the loads of a part, for all slots."""
    chunk, count, part = step
    n, nn, h0, hn = part
    for slot in range(source.slots):
        own = rows_inside(source, band.p0, band.pn, slot)
        first = max(h0, own[0])
        rows = min(h0 + hn, own[0] + own[1]) - first
        if rows > 0 and is_transposed(geometry):
            mine = (n, nn, first, rows)
            load_turned(operands, geometry, source, band, x_sbuf, slot, (chunk, count), chunks[chunk], mine, ledger)
        elif rows > 0:
            mine = (n, nn, first, rows)
            load_plain(operands, geometry, source, band, x_sbuf, slot, chunk, chunks[chunk], mine)


def is_in_line(geometry, source, band, part):
    """Whether rows of several images are evenly spaced, in HBM and in the window."""
    return geometry.x_n == part[3] * source.x_h and part[3] == band.hn


def load_plain(operands, geometry, source, band, x_sbuf, slot, chunk, channels, part):
    """A part of a chunk's window from rows of x."""
    pattern = [[geometry.x_c, channels[1]], [geometry.x_n, part[1]], [source.x_h, part[3]]]
    dst, offset, width = place_of(geometry, source, band, x_sbuf, slot, chunk, channels, part)
    copy(dst, operands.x.ap(pattern=pattern + [[source.x_w, width]], offset=offset))


def place_of(geometry, source, band, x_sbuf, slot, chunk, channels, part):
    """(where a part of a chunk goes in its window, its offset in x, its columns)."""
    n, nn, h0, hn = part
    start = rows_inside(source, band.p0, band.pn, slot)
    w0, wn, left, w_step = inside(source.columns, band.q0, band.qn)
    top, h_step = start[2] + (h0 - start[0]) * start[3], start[3]
    image = chunk * band.nn + n
    dst = x_sbuf[
        slot * channels[1] : (slot + 1) * channels[1],
        image : image + nn,
        top : top + (hn - 1) * h_step + 1 : h_step,
        left : left + (wn - 1) * w_step + 1 : w_step,
    ]
    offset = source.offset + (band.n0 + n) * geometry.x_n + channels[0] * geometry.x_c
    if source.slots > 1:
        offset += (slot - source.rows.before) * geometry.x_h
    return dst, offset + h0 * source.x_h + w0 * source.x_w, wn


def load_turned(operands, geometry, source, band, x_sbuf, slot, which, channels, part, ledger):
    """A part of the windows of neighbouring chunks, `which` (first, how many) of `channels` each, turned by DMA: of one
    image, of several whose rows are in line, or of one chunk."""
    n, nn, _, hn = part
    chunk, count = which
    dst, offset, width = place_of(geometry, source, band, x_sbuf, slot, chunk, channels, part)
    middle = [[geometry.x_n, nn], [source.x_h, hn]]
    if count > 1:
        middle = [[channels[1] * geometry.x_c, count], [source.x_h, nn * hn]]
        size = band.hn * band.wn
        top = inside(source.rows, band.p0, band.pn)[2] + part[2] - inside(source.rows, band.p0, band.pn)[0]
        w_step, left = source.columns.lhs_dilation, inside(source.columns, band.q0, band.qn)[2]
        dst = x_sbuf.ap(
            pattern=[
                [x_sbuf.shape[1] * size, channels[1]],
                [band.nn * size, count],
                [source.rows.lhs_dilation * band.wn, nn * hn],
                [w_step, width],
            ],
            offset=(chunk * band.nn + n) * size + top * band.wn + left,
        )
    staged = operands.x.dtype != operands.x_dtype
    turned_sbuf = dst
    if staged:
        turned_sbuf = nl.ndarray((channels[1], middle[0][1], middle[1][1], width), operands.x.dtype, buffer=nl.sbuf)
    pattern = [[source.x_w, width]] + middle + [[1, channels[1]]]
    nisa.dma_transpose(dst=turned_sbuf, src=operands.x.ap(pattern=pattern, offset=offset), axes=(3, 1, 2, 0))
    ledger.scalar = ledger.scalar + TRIGGER_WORK
    if staged:
        engine = pick(ledger, middle[0][1] * middle[1][1] * width, is_16bit(operands.x.dtype))
        nisa.tensor_copy(dst=dst, src=turned_sbuf, engine=engine)
