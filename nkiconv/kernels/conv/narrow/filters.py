"""Filters of narrow as stationaries: [c, (plane, line), g, (t, u, k)] in SBUF for each chunk of input channels.

A row of w, one output channel, is contiguous in HBM; the array transposes [k, c] of one tap into [c, k], several taps
to a PSUM bank. Row u of a block meets tap r at line u * stride + r * dilation, so the filters of u are one copy of all
taps, shifted down by u * stride lines, beside those of the other rows; all else is zero.
"""

from ...._nki import nisa, nl
from ....schedules.geometry import filter_rows
from ....schedules.planes import is_by_plane
from ....schedules.tiles import cut_at
from ..._engines import is_16bit, pick
from ..boxes import load_box, load_packed, pattern_of
from ..call import of_array
from ..filter_feed import clear_words, transpose_together, transposes_of_bank
from .cuts import lane_parts


def load_narrow_filters(operands, geometry, narrow):
    """(first chunk, how many, tile [(chunk, k), c, r, s], or of one chunk [c, taps, k] of a packed filter) of all
    filters as loaded: as many chunks beside each other on the partitions as fit, so that one transpose of a tap serves
    them all. The last chunk has most channels, so that each can be loaded as if it had as many."""
    K, R, S = geometry.K, filter_rows(geometry), geometry.columns.taps
    found = []
    if geometry.flipped:
        return load_filters_backwards(operands, geometry, narrow)
    for part in loaded_together(geometry, narrow):
        first, count = part
        last = first + count - 1 if is_by_plane(geometry) else len(narrow.chunks) - 1
        channels, parts = narrow.chunks[last][1], lane_parts(narrow, last)
        c0, cn = narrow.chunks[first]
        shape = (lane_parts(narrow, first), R * S, K) if geometry.packed > 0 else (count * K, parts, R, S)
        tile_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
        if cn < narrow.apart and geometry.packed > 0:
            nisa.memset(dst=tile_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for lane in range(narrow.L - 1 if cn < narrow.apart and geometry.packed == 0 else 0):
            gap = lane * narrow.apart + cn
            nisa.memset(
                dst=tile_sbuf[0 : shape[0], gap : gap + narrow.apart - cn, 0:R, 0:S],
                value=0.0,
                engine=nisa.engine.gpsimd,
            )
        for lane in range(narrow.L if geometry.packed > 0 else 0):
            own_sbuf = tile_sbuf[lane * narrow.apart : lane * narrow.apart + cn, 0 : R * S, 0:K]
            load_packed(own_sbuf, operands.w, geometry, c0, cn, 0, K)
        if geometry.packed > 0:
            found.append((first, count, tile_sbuf))
            continue
        if narrow.V > 1:
            load_windows(tile_sbuf, operands.w, geometry, narrow, first)
        for place in range(count * narrow.L if narrow.V == 1 else 0):
            index, lane = place // narrow.L, place % narrow.L
            pattern = pattern_of(geometry.w_strides, (K, channels, R, S))
            offset = narrow.chunks[first + index][0] * geometry.w_strides[1]
            load_box(tile_sbuf, operands.w, (index * K, lane * narrow.apart, 0, 0), pattern, offset)
        found.append((first, count, tile_sbuf))
    return found


def loaded_together(geometry, narrow):
    """(first, how many) chunks whose filters are loaded together: where channels are plane by plane, chunks of as
    many channels, as each plane's begin there."""
    most = 1 if geometry.packed > 0 else nl.tile_size.pmax // geometry.K
    if not is_by_plane(geometry):
        return cut_at(len(narrow.chunks), most)
    found = []
    for index in range(len(narrow.chunks)):
        first, count = found[-1] if len(found) > 0 else (0, most)
        if count < most and narrow.chunks[index][1] == narrow.chunks[first][1]:
            found[-1] = (first, count + 1)
        else:
            found.append((index, 1))
    return found


def load_filters_backwards(operands, geometry, narrow):
    """The same of the filter of a transposed convolution of images: [c, k, taps backwards], a channel's in a run."""
    K, R, S, strides, found = geometry.K, filter_rows(geometry), geometry.columns.taps, geometry.w_strides, []
    for chunk in range(len(narrow.chunks)):
        c0, cn = narrow.chunks[chunk]
        tile_sbuf = nl.ndarray((lane_parts(narrow, chunk), K, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        if cn < narrow.apart:
            nisa.memset(dst=tile_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        pattern = pattern_of((strides[1], strides[0], strides[2], strides[3]), (cn, K, R, S))
        for lane in range(narrow.L):
            load_box(tile_sbuf, operands.w, (lane * narrow.apart, 0, 0, 0), pattern, c0 * strides[1])
        found.append((chunk, 1, tile_sbuf))
    return found


def load_windows(tile_sbuf, w_hbm, geometry, narrow, first):
    """Filters of chunks from `first` on into a tile [(chunk, plane, k), c, r, s] for each plane of y of a window: c has
    all planes of x that the window sees, and zeros where it does not look at them."""
    rows, channels, R, S = tile_sbuf.shape
    each, depth, apart = geometry.depth.taps, narrow.depth, geometry.w_strides
    K, C = geometry.K // narrow.V, channels // each
    nisa.memset(dst=tile_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    planes_sbuf = tile_sbuf.reshape((rows, C, each, R, S))
    pattern = [[apart[0], K], [apart[1], C], [R * apart[2], depth.taps], [apart[2], R], [apart[3], S]]
    for part in range(rows // K):
        d = part % narrow.V * depth.stride
        seen = planes_sbuf[0:rows, 0:C, d : d + (depth.taps - 1) * depth.dilation + 1 : depth.dilation, 0:R, 0:S]
        offset = narrow.chunks[first + part // narrow.V][0] // each * apart[1]
        load_box(seen, w_hbm, (part * K, 0, 0, 0, 0), pattern, offset)


def clear_stationaries(operands, geometry, narrow):
    """Zeroed tiles [c, (plane, line), g, t, slot] for each chunk."""
    found = []
    for chunk in range(len(narrow.chunks)):
        shape = (
            lane_parts(narrow, chunk),
            geometry.planes.taps * len(narrow.lines),
            narrow.groups,
            narrow.T,
            narrow.slot,
        )
        found.append(nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf))
        clear_words(found[len(found) - 1], nisa.engine.vector if len(found) % 2 == 1 else nisa.engine.gpsimd)
    return found


def transpose_loaded(loaded, geometry, ledger):
    """Loaded filters as [c, taps, (chunk, k)] in SBUF: as many transposes to a PSUM bank as fit, then one read-out."""
    if geometry.packed > 0:
        return loaded[2]
    raw_sbuf = loaded[2]
    rows, channels, R, S = raw_sbuf.shape
    if geometry.flipped:
        return turned_forwards(raw_sbuf, ledger)
    taps_sbuf = nl.ndarray((channels, R * S, rows), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    each = geometry.depth.taps if is_by_plane(geometry) else 1
    by_channel = raw_sbuf.reshape((rows, channels // each, each, R, S))
    for part in cut_at(R * S, transposes_of_bank(rows, geometry.itemsize)):
        first, count = part
        sources = []
        for tap in range(first, first + count):
            if each == 1:
                sources.append(raw_sbuf[0:rows, 0:channels, tap // S, tap % S])
            else:
                own = by_channel[0:rows, 0 : channels // each, 0:each, tap // S, tap % S]
                sources.append(own.permute((0, 2, 1)))
        own_sbuf = taps_sbuf[0:channels, first : first + count, 0:rows]
        transpose_together(own_sbuf, sources, geometry.itemsize, ledger)
    return taps_sbuf


def turned_forwards(raw_sbuf, ledger):
    """[c, k, taps backwards] as [c, taps, k]."""
    parts, K, R, S = raw_sbuf.shape
    taps_sbuf = nl.ndarray((parts, R * S, K), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    for tap in range(R * S):
        at = R * S - 1 - tap
        src = raw_sbuf[0:parts, 0:K, at // S, at % S]
        nisa.tensor_copy(dst=taps_sbuf[0:parts, tap, 0:K], src=src, engine=pick(ledger, K, is_16bit(raw_sbuf.dtype)))
    return taps_sbuf


def lay_out(operands, loaded, transposed, cleared, geometry, narrow, ledger):
    """Stationaries [c, (plane, line), g, (t, slot)] of all chunks: what was transposed, in cleared tiles."""
    found = []
    for index in range(len(loaded)):
        first, together, _ = loaded[index]
        for part in range(together):
            chunk = first + part
            count = lane_parts(narrow, chunk)
            taps_sbuf = transposed[index]
            own_sbuf = taps_sbuf[0:count, 0 : taps_sbuf.shape[1], part * geometry.K : (part + 1) * geometry.K]
            for u in range(narrow.U):
                place_row(cleared[chunk], own_sbuf, geometry, narrow, u, ledger)
            shape = cleared[chunk].shape
            tile_sbuf = cleared[chunk].reshape((shape[0], shape[1], shape[2], shape[3] * shape[4]))
            found.append(of_array(tile_sbuf, operands))
    return found


def place_row(tile_sbuf, taps_sbuf, geometry, narrow, u, ledger):
    """The taps of row u of a block in its columns of the lines that meet them, for each group of columns of taps."""
    S, K, T = geometry.columns.taps, geometry.K, narrow.T
    count, taps, _ = taps_sbuf.shape
    of_rows = taps_sbuf.reshape((count, taps // S, S, K))
    runs = runs_of_taps(geometry.rows, narrow, u)
    for index in range(geometry.planes.taps * len(runs)):
        tap, tap_step, line, line_step, num = runs[index % len(runs)]
        tap += index // len(runs) * geometry.rows.taps
        line += index // len(runs) * len(narrow.lines)
        for g in range(narrow.groups):
            tn = min(T, S - g * T)
            lines = tile_sbuf[0:count, line : line + (num - 1) * line_step + 1 : line_step, g, 0:tn, u * K : u * K + K]
            src = of_rows[0:count, tap : tap + (num - 1) * tap_step + 1 : tap_step, g * T : g * T + tn, 0:K]
            nisa.tensor_copy(dst=lines, src=src, engine=pick(ledger, num * tn * K, is_16bit(taps_sbuf.dtype)))


def runs_of_taps(rows, narrow, u):
    """(first row of taps, step, index of its line, step of those, how many) of the rows of taps that row u of a block
    meets on rows of x: one where both are evenly spaced, else one for each."""
    found, even = [], True
    for index in range(len(narrow.lines)):
        behind = narrow.place + narrow.lines[index] * rows.lhs_dilation - u * rows.stride
        if behind >= 0 and behind % rows.dilation == 0 and behind // rows.dilation < rows.taps:
            found.append((behind // rows.dilation, 1, index, 1, 1))
    if len(found) < 2:
        return found
    first, second = found[0], found[1]
    for index in range(len(found)):
        one = found[index]
        even = even and one[0] - first[0] == index * (second[0] - first[0])
        even = even and one[2] - first[2] == index * (second[2] - first[2])
    return [(first[0], second[0] - first[0], first[2], second[2] - first[2], len(found))] if even else found
