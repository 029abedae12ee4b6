"""Filters as stationaries: [c, step, k] in SBUF, a step being a tap of a chunk of input channels.

A row of w, one output channel, is contiguous in HBM; the array turns [k, c] of one tap into [c, k], bit by bit, a
column of taps to a PSUM bank. Vector takes what is turned out of it four bytes at a time.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import pick
from ..._tiles import BANK_BYTES, div_ceil, whole_words
from ..call import load_bias
from .chunks import all_partitions, first_step, num_steps, tap_columns


@dataclass
class Batch(nl.NKIObject):
    """Jobs of the items that are being worked on; by job: chunks as loaded, None once they are turned, how many of them
    have been turned, stationaries and bias."""

    index: int
    jobs: list
    raws: list
    turned: list
    tiles: list
    biases: list


def start_batch(plan, index):
    """A Batch of which nothing is loaded yet."""
    return Batch(index=index, jobs=plan.batches[index], raws=[], turned=[], tiles=[], biases=[])


def start_job(operands, geometry, plan, batch):
    """Begin the next job of a batch: its stationaries' tile and bias. Chunks are loaded one by one."""
    job = batch.jobs[len(batch.tiles)]
    steps = num_steps(geometry, plan.chunks) + (1 if plan.halves else 0)
    shape = (all_partitions(plan.chunks), steps, whole_words(job.kn, geometry.itemsize))
    tile_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
    for which in range(len(plan.chunks)):
        clear_missing(tile_sbuf, geometry, plan.chunks[which], first_step(geometry, plan.chunks, which), job.kn)
    batch.tiles.append(tile_sbuf)
    batch.raws.append([])
    batch.turned.append(0)
    batch.biases.append(load_bias(operands.bias, job.k0, job.kn, 1))


def load_job(operands, geometry, plan, batch, index):
    """Load what is not loaded yet of a job that the batch has."""
    if index < len(batch.jobs):
        if index == len(batch.tiles):
            start_job(operands, geometry, plan, batch)
        while len(batch.raws[index]) < len(plan.chunks):
            load_chunk(operands, geometry, plan, batch, index)


def load_chunk(operands, geometry, plan, batch, index):
    """Load the next chunk of a job: [kn, cn, rows, columns] in SBUF, or, of a packed filter, its stationaries."""
    job, which = batch.jobs[index], len(batch.raws[index])
    chunk = plan.chunks[which]
    R, S = geometry.rows.taps, geometry.columns.taps
    raw_sbuf = None
    if geometry.packed > 0:
        load_packed(operands, geometry, plan, batch, index, which)
    else:
        raw_sbuf = nl.ndarray((job.kn, chunk.cn, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        pattern = [[geometry.w_k, job.kn], [geometry.w_c, chunk.cn], [geometry.w_r, R], [geometry.w_s, S]]
        copy(raw_sbuf, operands.w.ap(pattern=pattern, offset=job.k0 * geometry.w_k + chunk.c0 * geometry.w_c))
        if chunk.again > 0:
            nisa.memset(dst=raw_sbuf[0 : job.kn, 0 : chunk.again, 0:R, 0:S], value=0.0, engine=nisa.engine.gpsimd)
    batch.raws[index].append(raw_sbuf)


def load_packed(operands, geometry, plan, batch, index, which):
    """Steps of a chunk from the blocks of a packed filter; zeros for channels that the chunk before has too."""
    job, chunk, tile_sbuf = batch.jobs[index], plan.chunks[which], batch.tiles[index]
    R, S, each = geometry.rows.taps, geometry.columns.taps, geometry.packed
    wide, size = div_ceil(S, chunk.depth), R * S * each
    first = first_step(geometry, plan.chunks, which)
    for block in range(job.kn // each):
        k, start = block * each, ((job.k0 // each + block) * geometry.C + chunk.c0) * size
        for copy_of in range(chunk.depth):
            p = copy_of * chunk.cn
            for s in range(copy_of, S, chunk.depth if chunk.depth > 1 else S):
                # whole rows of taps at once where they are not folded
                taps = [[S * each, R], [1, each]] if chunk.depth > 1 else [[each, R * S], [1, each]]
                begin = first + s // chunk.depth
                steps = tile_sbuf[p : p + chunk.cn, begin : begin + (R - 1) * wide + 1 : wide, k : k + each]
                if chunk.depth == 1:
                    steps = tile_sbuf[0 : chunk.cn, first : first + R * S, k : k + each]
                copy(steps, operands.w.ap(pattern=[[size, chunk.cn]] + taps, offset=start + s * each))
        if plan.halves and which == len(plan.chunks) - 1:
            middle = chunk.cn // 2
            for side in range(2):
                p, step = side * middle, first + R * S
                copy(
                    tile_sbuf[p : p + middle, step : step + 1, k : k + each],
                    operands.w.ap(
                        pattern=[[size, middle], [each, 1], [1, each]],
                        offset=start + (1 - side) * middle * size + (R * S - 1) * each,
                    ),
                )
    for copy_of in range(chunk.depth if chunk.again > 0 else 0):
        p = copy_of * chunk.cn
        again_sbuf = tile_sbuf[p : p + chunk.again, first : first + R * wide, 0 : job.kn]
        nisa.memset(dst=again_sbuf, value=0.0, engine=nisa.engine.gpsimd)


def clear_missing(tile_sbuf, geometry, chunk, first, kn):
    """Zeros where a folded chunk's steps have no tap: the last copies in the last step of a row of taps."""
    R, S = geometry.rows.taps, geometry.columns.taps
    wide = div_ceil(S, chunk.depth)
    begin = first + wide - 1
    for copy_of in range(S - (wide - 1) * chunk.depth, chunk.depth):
        p = copy_of * chunk.cn
        nisa.memset(
            dst=tile_sbuf[p : p + chunk.cn, begin : begin + (R - 1) * wide + 1 : wide, 0:kn],
            value=0.0,
            engine=nisa.engine.vector,
        )


def turn_to(operands, geometry, plan, batch, index, count, ledger):
    """Turn the first `count` chunks of a job, those of them that are not turned yet."""
    while batch.turned[index] < min(count, len(plan.chunks)):
        turn_next(operands, geometry, plan, batch, index, ledger)


def turn_next(operands, geometry, plan, batch, index, ledger):
    """Turn the next chunk of a job."""
    which = batch.turned[index]
    if len(batch.raws[index]) == which:
        load_chunk(operands, geometry, plan, batch, index)
    if geometry.packed == 0:
        raw_sbuf, tile_sbuf = batch.raws[index][which], batch.tiles[index]
        chunk, first = plan.chunks[which], first_step(geometry, plan.chunks, which)
        columns = tap_columns(div_ceil(geometry.columns.taps, chunk.depth))
        for at in range(len(columns)):
            turn_column(tile_sbuf, raw_sbuf, first, columns[at], chunk.depth, ledger)
        if plan.halves and which == len(plan.chunks) - 1:
            extra = num_steps(geometry, plan.chunks)
            turn_column(tile_sbuf, exchanged(raw_sbuf), extra, 0, 1, ledger)
        batch.raws[index][which] = None
    batch.turned[index] = which + 1


def exchanged(raw_sbuf):
    """[kn, cn, 1, 1] in SBUF: the last tap with both halves of its channels exchanged."""
    kn, cn, R, S = raw_sbuf.shape
    both_sbuf = nl.ndarray((kn, cn, 1, 1), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    middle = cn // 2
    for side in range(2):
        nisa.tensor_copy(
            dst=both_sbuf[0:kn, side * middle : (side + 1) * middle, 0:1, 0:1],
            src=raw_sbuf[0:kn, (1 - side) * middle : (2 - side) * middle, R - 1 : R, S - 1 : S],
            engine=nisa.engine.gpsimd,
        )
    return both_sbuf


def turn_column(tile_sbuf, raw_sbuf, step, column, depth, ledger):
    """Column of steps of a chunk's taps [kn, cn, R, S], `depth` columns of taps, into its steps from `step` on."""
    kn, cn, R, S = raw_sbuf.shape
    pitch, wide, s = tile_sbuf.shape[2], div_ceil(S, depth), column * depth
    taps = min(depth, S - s)
    most = BANK_BYTES // pitch
    for first in range(0, R, most):
        count = min(most, R - first)
        turned_psum = nl.ndarray((taps * cn, count, pitch), dtype=raw_sbuf.dtype, buffer=nl.psum)
        for row in range(count):
            data = raw_sbuf[0:kn, 0:cn, first + row, s : s + taps].permute((0, 2, 1))
            nisa.nc_transpose(dst=turned_psum[0 : taps * cn, row, 0:kn], data=data, engine=nisa.engine.tensor)
        begin = step + first * wide + column
        steps_sbuf = tile_sbuf[0 : taps * cn, begin : begin + (count - 1) * wide + 1 : wide, 0:kn]
        if kn == pitch:
            words_psum = turned_psum.view(nl.float32)
            nisa.tensor_copy(dst=steps_sbuf.view(nl.float32), src=words_psum, engine=nisa.engine.vector)
        else:
            engine = pick(ledger, count * kn, False)
            nisa.tensor_copy(dst=steps_sbuf, src=turned_psum[0 : taps * cn, 0:count, 0:kn], engine=engine)
