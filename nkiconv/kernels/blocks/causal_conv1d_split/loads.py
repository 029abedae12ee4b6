"""What comes to SBUF: x with the tokens that the taps see before it, filters as diagonals, bias."""

from ...._nki import nisa, nl
from ..._dma import copy, load
from ..._engines import book_select
from ..._masks import make_diagonals
from ..._prologue import load_rows, load_tokens


def load_span(operands, geometry, span):
    """x of a span: [partitions, tiles, S - 1 + tokens] in SBUF; the first S - 1 columns are those before it."""
    group, row, halo = span.group, span.row, geometry.S - 1
    before = min(halo, span.first)
    columns = before + span.count
    x_sbuf = nl.ndarray((partitions_of(group), group.tiles, halo + span.count), dtype=operands.x.dtype, buffer=nl.sbuf)
    for run in group.runs:
        tiles = slice(run.tile0, run.tile0 + run.tiles)
        if before < halo:
            load_halo(x_sbuf[0 : run.rows, tiles, 0 : halo - before], operands, geometry, run, row, before)
        offset = row.image * geometry.x_n + run.c0 * geometry.x_c + (row.first + span.first - before) * geometry.x_t
        steps = (run.row_step * geometry.x_c, run.tile_step * geometry.x_c)
        into = x_sbuf[0 : run.rows, tiles, halo - before : halo + span.count]
        if geometry.x_t == 1:
            load_rows(into, operands.x, [[steps[0], run.rows], [steps[1], run.tiles], [1, columns]], offset)
        else:
            for tile in range(run.tiles):
                dst = into[0 : run.rows, tile, 0:columns]
                load_tokens(dst, operands.x, (geometry.x_t, steps[0]), offset + tile * steps[1])
    return x_sbuf


def load_halo(dst, operands, geometry, run, row, present):
    """What precedes a row: zeros, or its state but for the last `present` elements, which x has taken over."""
    if operands.state == None:
        nisa.memset(dst=dst, value=0.0, engine=nisa.engine.gpsimd)
        return
    size = geometry.S - 1
    pattern = [[run.row_step * size, run.rows], [run.tile_step * size, run.tiles], [1, size - present]]
    load_rows(dst, operands.state, pattern, (row.number * geometry.C + run.c0) * size + present)


def load_diagonals(operands, geometry, group, first, ledger):
    """The filters of a group: for each tile [partitions, S, partitions] in SBUF, those of tap s on its diagonal.

    first: whether it is the core's first: then tiles are made one by one, and the first is soon there.
    """
    S, found = geometry.S, []
    for run in group.runs:
        w_sbuf = nl.ndarray((run.rows, run.tiles, S), dtype=operands.w.dtype, buffer=nl.sbuf)
        steps = [run.row_step * geometry.w_c, run.tile_step * geometry.w_c]
        pattern = [[steps[0], run.rows], [steps[1], run.tiles], [geometry.w_s, S]]
        load(w_sbuf, operands.w, pattern, run.c0 * geometry.w_c)
        each = 1 if first else run.tiles
        for tile in range(0, run.tiles, each):
            taps = w_sbuf[0 : run.rows, tile : tile + each, 0:S].reshape((run.rows, each * S))
            book_select(ledger, each * S * run.rows)
            diagonals = make_diagonals(taps, operands.w.dtype)
            for one in range(each):
                found.append(diagonals[0 : run.rows, one * S : (one + 1) * S, 0 : run.rows])
    return found


def load_head_bias(operands, group):
    """Bias of a group's channels on all partitions, [128, channels] fp32 in SBUF, or None."""
    if operands.bias == None:
        return None
    bias_sbuf = nl.ndarray((nl.tile_size.pmax, group.count), dtype=nl.float32, buffer=nl.sbuf)
    copy(bias_sbuf, operands.bias.ap(pattern=[[0, nl.tile_size.pmax], [1, group.count]], offset=group.c0))
    return bias_sbuf


def partitions_of(group):
    """Partitions of a group's tiles."""
    return group.runs[0].rows
