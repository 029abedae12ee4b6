"""Windows of x in SBUF with their padding stored as zeros: [c, chunk * planes, rows, columns] of a band.

Channels come to the partitions by plain rows of x where its columns lie side by side (NCHW), and transposed by DMA
where its channels do (NHWC). Gaps of a dilated x that is not dense are zeros as well.
"""

from ...._nki import nl
from ....schedules.cuts import most_of, window_of
from ....schedules.frames import plane_pieces
from ....schedules.tiles import div_ceil
from ..._dma import copy
from ..boxes import clear_window, offset_at, pattern_of
from ..frames import tensor_of
from ..sums import spaced
from ..transposes import is_transposed, load_transposed
from .shape import held, inside, rows_inside, window_shape

#: Bytes a partition of one load of a later band, if it has as many.
SWAPPED_LOAD_BYTES = 8192


def new_window(operands, source, band, chunks, engine):
    """A window of which only what is no element of x is written."""
    planes, rows, columns = window_shape(source, band)
    shape = (most_of(chunks) * source.slots, len(chunks) * planes, rows, columns)
    x_sbuf = nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf)
    _, dn, before, _ = inside(source.planes, band.z0, band.zn)
    for chunk in range(len(chunks)):
        for some in ((0, before), (before + dn, planes)):
            if some[0] < some[1]:
                first, end = chunk * planes + some[0], chunk * planes + some[1]
                clear_window(x_sbuf[0 : shape[0], first:end, 0:rows, 0:columns], 0, rows, 0, columns, engine)
    _, wn, left, w_step = inside(source.columns, band.q0, band.qn, source.dense)
    top, end = 0, rows if w_step == 1 else 0
    for slot in range(source.slots):
        _, hn, first, h_step = rows_inside(source, band.p0, band.pn, slot)
        top, end = max(top, first), min(end, first + hn if h_step == 1 else 0)
    end = max(top, end)
    clear_window(x_sbuf, 0, top, 0, columns, engine)
    clear_window(x_sbuf, end, rows, 0, columns, engine)
    clear_window(x_sbuf, top, end, 0, left, engine)
    clear_window(x_sbuf, top, end, left + wn, columns, engine)
    return x_sbuf


def load_parts(geometry, source, band, block, num_chunks, start):
    """(first plane, planes, first row, rows of the window) of the loads of a band, in whole blocks; start: what the
    first block needs first, then each time as much as is there, as nothing goes on meanwhile, or several times that
    where many chunks make many loads of a part."""
    planes, rows, columns = window_shape(source, band)
    axis, most, each, height = source.rows, band.pn, block.pn * block.apart, block.pn * block.apart * source.rows.stride
    several = band.zn > 1
    if several:
        axis, most, each, height = source.planes, band.zn, block.zn, window_of(source.rows, block.pn * block.apart)
    at_once = each * div_ceil(SWAPPED_LOAD_BYTES, block.zn * height * columns * geometry.itemsize)
    found, outputs, first, growth = [], 0, 0, max(1, num_chunks // 4)
    while outputs < most:
        outputs = min(most, outputs + (max(each, growth * outputs) if start else at_once))
        end = held(axis, outputs, source.dense and not several)
        found.append((first, end - first, 0, rows) if several else (0, planes, first, end - first))
        first = end
    return found


def load_part(operands, geometry, source, band, x_sbuf, chunk, channels, part, ledger):
    """A part of a chunk's window; channels: (first, how many)."""
    first_plane, planes, start, count = part
    d0, dn, before, _ = inside(source.planes, band.z0, band.zn)
    n = max(first_plane, before)
    nn = max(0, min(first_plane + planes, before + dn) - n)
    w0, wn, left, w_step = inside(source.columns, band.q0, band.qn, source.dense)
    dn = window_of(source.planes, band.zn)
    image, cn = chunk * dn + n, channels[1]
    alone = x_sbuf.shape[1] == dn and source.slots == 1
    for slot in range(source.slots if wn > 0 and nn > 0 else 0):
        h0, hn, top, h_step = rows_inside(source, band.p0, band.pn, slot)
        skip = div_ceil(max(0, start - top), h_step)
        hn = min(hn, div_ceil(max(0, start + count - top), h_step)) - skip
        if hn <= 0:
            continue
        top += skip * h_step
        dst = spaced(x_sbuf, (slot * cn, cn), (image, nn, 1), (top, hn, h_step), (left, wn, w_step))
        row = (h0 + skip) * source.slots + (slot - source.rows.before if source.slots > 1 else 0)
        for piece in plane_pieces(geometry, d0 + n - before, nn):
            own = dst[0:cn, piece.first : piece.first + piece.count, 0:hn, 0:wn]
            apart, x_hbm = piece.strides, tensor_of(operands, piece.framed)
            strides = (apart[0], apart[1], source.slots * apart[2], apart[3])
            offset = offset_at(apart, (channels[0], piece.plane, row, w0))
            if is_transposed(geometry):
                load_transposed(own, x_hbm, strides, offset, alone, ledger)
            else:
                copy(own, x_hbm.ap(pattern=pattern_of(strides, (cn, piece.count, hn, wn)), offset=offset))
