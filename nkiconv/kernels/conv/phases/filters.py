"""Filters of phases: rows [k, tap] of each input channel as HBM has them, and stationaries put together of them."""

from ...._nki import nisa, nl
from ....schedules.geometry import filter_rows, num_taps
from ..._engines import is_16bit, pick
from ..boxes import load_box, offset_at, pattern_of
from .shape import is_built, width_of


def load_filters(operands, geometry, phases, block, chunk, ledger):
    """Filters of a block of output channels for a chunk: the stationaries of each job, or only what was loaded.

    block: (first, how many) output channels; chunk: as of `shape.chunks_of_x`. [(segment, c), k, tap] in SBUF, or
    [(segment, c), product, columns].
    """
    k0, kn = block
    c0, cn, first, held = chunk
    rows, columns, strides = filter_rows(geometry), geometry.columns.taps, geometry.w_strides
    raw_sbuf = nl.ndarray((held * cn, kn, rows, columns), dtype=operands.w_dtype, buffer=nl.sbuf)
    by_c = (strides[1], strides[0], strides[2], strides[3])
    for segment in range(held):
        pattern, offset = pattern_of(by_c, (cn, kn, rows, columns)), offset_at(by_c, (c0, k0, 0, 0))
        load_box(raw_sbuf, operands.w, (segment * cn, 0, 0, 0), pattern, offset)
    raw_sbuf = raw_sbuf.reshape((held * cn, kn, num_taps(geometry)))
    if not is_built(phases):
        return [raw_sbuf]
    found = []
    for job in phases.jobs:
        found.append(built(raw_sbuf, phases, job, (first, held), ledger))
    return found


def built(raw_sbuf, phases, job, segments, ledger):
    """Stationaries of a job for some segments (first, how many), block-diagonal over these and zero for the others:
    [(segment, c), product, (phase, segment, k)]."""
    kn, cn = raw_sbuf.shape[1], raw_sbuf.shape[0] // segments[1]
    shape = (raw_sbuf.shape[0], max(1, len(job.products)), width_of(phases, kn))
    tile_sbuf = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for index in range(len(job.products)):
        taps = job.products[index][1]
        for phase in range(len(taps)):
            for segment in range(segments[1] if taps[phase] >= 0 else 0):
                parts, column = segment * cn, phase * phases.slot + (segments[0] + segment) * kn
                nisa.tensor_copy(
                    dst=tile_sbuf[parts : parts + cn, index, column : column + kn],
                    src=raw_sbuf[parts : parts + cn, 0:kn, taps[phase]],
                    engine=pick(ledger, kn, is_16bit(raw_sbuf.dtype)),
                )
    return tile_sbuf


def stationary_of(filters, phases, job, product):
    """The stationary of a product of a job, of what `load_filters` returns: [(segment, c), columns]."""
    if is_built(phases):
        tile_sbuf = filters[job]
        return tile_sbuf[0 : tile_sbuf.shape[0], product, 0 : tile_sbuf.shape[2]]
    raw_sbuf, taps = filters[0], phases.jobs[job].products[product][1]
    return raw_sbuf[0 : raw_sbuf.shape[0], 0 : raw_sbuf.shape[1], taps[0]]
