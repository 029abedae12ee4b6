"""Filters of narrow as stationaries: [c, (line, g), (t, u, k)] in SBUF for each chunk of input channels.

A row of w, one output channel, is contiguous in HBM; the array transposes [k, c] of one tap into [c, k], several taps
to a PSUM bank. Row u of a block meets tap r at line u * stride + r * dilation, so the filters of u are one copy of all
taps, shifted down by u * stride lines, beside those of the other rows; all else is zero.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import is_16bit, pick
from ..._tiles import cut_at
from ..boxes import load_box, load_packed, strides_of_w
from ..call import of_array
from ..filter_feed import clear_words, transpose_together, transposes_of_bank


@dataclass
class Loaded(nl.NKIObject):
    """Filters of some chunks as loaded: tile [(chunk, k), c, r, s], or of one chunk [c, taps, k] of a packed filter."""

    first: int
    count: int
    tile: object


def load_narrow_filters(operands, geometry, narrow):
    """All filters as Loaded: as many chunks beside each other on the partitions as fit, so that one transpose of a tap
    serves them all. The last chunk has most channels, so that each can be loaded as if it had as many."""
    K, R, S = geometry.K, geometry.rows.taps, geometry.columns.taps
    channels = narrow.chunks[len(narrow.chunks) - 1][1]
    by = strides_of_w(geometry)
    found = []
    together = 1 if geometry.packed > 0 else nl.tile_size.pmax // K
    for first in range(0, len(narrow.chunks), together):
        count = min(together, len(narrow.chunks) - first)
        c0, cn = narrow.chunks[first]
        shape = (cn, R * S, K) if geometry.packed > 0 else (count * K, channels, R, S)
        tile_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
        if geometry.packed > 0:
            load_packed(tile_sbuf, operands.w, geometry, c0, cn, 0, K)
        for index in range(count if geometry.packed == 0 else 0):
            pattern = [[by[0], K], [by[1], channels], [by[2], R], [by[3], S]]
            load_box(tile_sbuf, operands.w, (index * K, 0, 0, 0), pattern, narrow.chunks[first + index][0] * by[1])
        found.append(Loaded(first=first, count=count, tile=tile_sbuf))
    return found


def clear_stationaries(operands, narrow):
    """Zeroed tiles [c, line, g, t, slot] for each chunk."""
    found = []
    for chunk in narrow.chunks:
        shape = (chunk[1], len(narrow.lines), narrow.groups, narrow.T, narrow.slot)
        found.append(nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf))
        clear_words(found[len(found) - 1], nisa.engine.vector if len(found) % 2 == 1 else nisa.engine.gpsimd)
    return found


def transpose_loaded(loaded, geometry, ledger):
    """Loaded filters as [c, taps, (chunk, k)] in SBUF: as many transposes to a PSUM bank as fit, then one read-out."""
    if geometry.packed > 0:
        return loaded.tile
    raw_sbuf = loaded.tile
    rows, channels, R, S = raw_sbuf.shape
    taps_sbuf = nl.ndarray((channels, R * S, rows), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    for part in cut_at(R * S, transposes_of_bank(rows, geometry.itemsize)):
        first, count = part
        sources = []
        for tap in range(first, first + count):
            sources.append(raw_sbuf[0:rows, 0:channels, tap // S, tap % S])
        own_sbuf = taps_sbuf[0:channels, first : first + count, 0:rows]
        transpose_together(own_sbuf, sources, geometry.itemsize, ledger)
    return taps_sbuf


def lay_out(operands, loaded, transposed, cleared, geometry, narrow, ledger):
    """Stationaries [c, line, g, (t, slot)] of all chunks for the array: what was transposed, in cleared tiles."""
    found = []
    for index in range(len(loaded)):
        load = loaded[index]
        for part in range(load.count):
            chunk = load.first + part
            count = narrow.chunks[chunk][1]
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
    count = taps_sbuf.shape[0]
    for run in runs_of_taps(geometry.rows, narrow, u):
        for g in range(narrow.groups):
            tn = min(T, S - g * T)
            nisa.tensor_copy(
                dst=tile_sbuf[
                    0:count,
                    run.line : run.line + (run.count - 1) * run.line_step + 1 : run.line_step,
                    g,
                    0:tn,
                    u * K : (u + 1) * K,
                ],
                src=taps_of_run(taps_sbuf, run, S, g * T, tn),
                engine=pick(ledger, run.count * tn * K, is_16bit(taps_sbuf.dtype)),
            )


def taps_of_run(taps_sbuf, run, S, s0, sn):
    """[c, rows of taps of a run, columns s0 .. s0+sn-1, k] of [c, taps, k]."""
    count, taps, K = taps_sbuf.shape
    return taps_sbuf[0:count, 0:taps, 0:K].reshape((count, taps // S, S, K))[
        0:count, run.tap : run.tap + (run.count - 1) * run.tap_step + 1 : run.tap_step, s0 : s0 + sn, 0:K
    ]


@dataclass
class Run(nl.NKIObject):
    """Rows of taps, evenly spaced, and the indices of the lines on which they lie, evenly spaced too."""

    tap: int
    tap_step: int
    line: int
    line_step: int
    count: int


def runs_of_taps(rows, narrow, u):
    """The rows of taps that row u of a block meets on rows of x, in as few Runs as can be."""
    places = []
    for index in range(len(narrow.lines)):
        behind = narrow.lines[index].place - u * rows.stride
        if behind >= 0 and behind % rows.dilation == 0 and behind // rows.dilation < rows.taps:
            places.append((behind // rows.dilation, index))
    found = []
    for index in range(len(places)):
        tap, line = places[index]
        last = found[len(found) - 1] if index > 0 else None
        if last != None and last.count == 1:
            last.tap_step = tap - last.tap
            last.line_step = line - last.line
            last.count = 2
        elif last != None and (tap, line) == after(last):
            last.count += 1
        else:
            found.append(Run(tap=tap, tap_step=1, line=line, line_step=1, count=1))
    return found


def after(run):
    """(tap, line) that would come next in a run."""
    return run.tap + run.count * run.tap_step, run.line + run.count * run.line_step
