"""Filters of phases: rows [k, tap] of each input channel as HBM has them, and stationaries put together of them."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import is_16bit, pick
from ..boxes import load_box
from ..geometry import filter_rows, num_taps
from .shape import is_built


@dataclass
class PhaseFilters(nl.NKIObject):
    """Filters of a batch: by block of output channels and chunk of input channels what was loaded, [c, k, tap] in SBUF,
    and the stationaries of each job, [c, product, columns]."""

    raws: list
    tiles: list


def no_filters(phases, batch):
    """Filters of a batch of which nothing is loaded yet."""
    raws, tiles = [], []
    for _ in range(len(batch)):
        of_block, made = [], []
        for _ in range(len(phases.chunks)):
            nothing, no_jobs = None, []
            of_block.append(nothing)
            made.append(no_jobs)
        raws.append(of_block)
        tiles.append(made)
    return PhaseFilters(raws=raws, tiles=tiles)


def load_filters(operands, geometry, phases, filters, batch, block, chunk, ledger):
    """Filters of a block for a chunk; for each segment where there are several."""
    k0, kn = batch[block]
    c0, cn = phases.chunks[chunk]
    rows, columns, strides = filter_rows(geometry), geometry.columns.taps, geometry.w_strides
    raw_sbuf = nl.ndarray((phases.segments * cn, kn, rows, columns), dtype=operands.w_dtype, buffer=nl.sbuf)
    pattern = [[strides[1], cn], [strides[0], kn], [strides[2], rows], [strides[3], columns]]
    offset = c0 * strides[1] + k0 * strides[0]
    for segment in range(phases.segments):
        load_box(raw_sbuf, operands.w, (segment * cn, 0, 0, 0), pattern, offset)
    raw_sbuf = raw_sbuf.reshape((phases.segments * cn, kn, num_taps(geometry)))
    filters.raws[block][chunk] = raw_sbuf
    if is_built(phases):
        made = []
        for job in phases.jobs:
            made.append(built(raw_sbuf, phases, job, cn, ledger))
        filters.tiles[block][chunk] = made


def built(raw_sbuf, phases, job, cn, ledger):
    """Stationaries of a job, block-diagonal over segments: [(segment, c), product, (phase, segment, k)]."""
    kn, width = raw_sbuf.shape[1], len(job.phases) * phases.slot
    shape = (phases.segments * cn, max(1, len(job.products)), width)
    tile_sbuf = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for index in range(len(job.products)):
        taps = job.products[index][1]
        for phase in range(len(taps)):
            if taps[phase] >= 0:
                for segment in range(phases.segments):
                    parts, column = segment * cn, phase * phases.slot + segment * kn
                    nisa.tensor_copy(
                        dst=tile_sbuf[parts : parts + cn, index, column : column + kn],
                        src=raw_sbuf[parts : parts + cn, 0:kn, taps[phase]],
                        engine=pick(ledger, kn, is_16bit(raw_sbuf.dtype)),
                    )
    return tile_sbuf


def stationary_of(filters, phases, block, chunk, job, product):
    """The stationary of a product of a job: [(segment, c), columns]."""
    if is_built(phases):
        made = filters.tiles[block][chunk]
        tile_sbuf = made[job]
        return tile_sbuf[0 : tile_sbuf.shape[0], product, 0 : tile_sbuf.shape[2]]
    raw_sbuf = filters.raws[block][chunk]
    taps = phases.jobs[job].products[product][1]
    return raw_sbuf[0 : raw_sbuf.shape[0], 0 : raw_sbuf.shape[1], taps[0]]
