"""The loop of conv2d: bands of x come in, every tap is a matmul on the window of it that it meets, sums go out.

Filters are transposed just before their first sums, chunk by chunk of input channels, and those that are needed next
between the matmuls of what goes before, so that the array neither waits for them nor for their read-outs.
"""

from dataclasses import dataclass, replace

from ...._nki import nl
from ....schedules.cuts import Band, Bank, chunks_of, same_place
from ....schedules.geometry import Geometry
from ....schedules.options import Extras
from ....schedules.pairs_of_planes import band_of_y, bank_of_y, planes_at_once
from ....schedules.tiles import div_ceil, filled
from ..._engines import Ledger, new_ledger
from ..._epilogue import load_bias
from ..._warm import accumulator
from ..call import Operands, finish_shared
from ..sums import is_whole, zero_sums
from .cuts import banks_of, lead_chunks, row_parts
from .filters import (
    Filters,
    after_job,
    load_ahead,
    load_block,
    load_first,
    move_block,
    moves_to,
    pieces_to,
    start_filters,
    transpose_piece,
    transpose_until,
)
from .fp8 import load_paired, new_rows
from .fp16x3 import kinds_of, read_sums_out, sums_of
from .jobs import Job
from .last import is_last, pass_late, put_off
from .matmuls import factors_of, matmuls_of, multiply, num_matmuls
from .pace import Pace, due_now, start_pace
from .pairs_fp8 import ALONE, sums_pitch
from .parts import add_parts, end_pairs, prepare_due, prepared_tile, set_preparing_pace
from .rows import load_residual, load_rows, rows_in, rows_tile, store_banks, window
from .winograd import read_pair_out

#: Filters are transposed between the matmuls of this part of a job, when they have come, and before they are needed.
TAPS_TRANSPOSE_FROM, TAPS_TRANSPOSE_UNTIL = 0.45, 0.85
#: And those of a chunk that comes soon between the matmuls of this part of one, as they may be on their way still.
LEAD_FROM, LEAD_UNTIL = 0.1, 0.7
#: Banks whose results leave by one DMA, if there are more to come.
STORE_BANKS = 4


@dataclass
class Batch(nl.NKIObject):
    """Jobs of the items that are being worked on, and what each needs."""

    index: int
    jobs: list
    chunks: list
    #: whether the sums of all jobs for a band are made together, chunk by chunk of x
    together: bool
    filters: Filters
    biases: list


@dataclass
class Results(nl.NKIObject):
    """What a job (its index) makes of a band, in its own rows: banks, y_sbuf, residual_sbuf [outputs, images, rows,
    columns] or None, and banks that are not stored yet."""

    index: int
    job: Job
    band: Band
    banks: list
    y_sbuf: object
    residual_sbuf: object
    waiting: list


@dataclass
class Sums(nl.NKIObject):
    """A bank of sums of Results (`which` of them), in as many banks of PSUM as are read out together, and whether a
    product is there yet."""

    results: Results
    which: int
    bank: Bank
    banks: list
    started: bool


@dataclass
class Work(nl.NKIObject):
    """What one core has at hand. late: results that wait to be transposed; pace: of pieces of coming filters;
    preparing: what `parts` has of x that is multiplied otherwise than it comes, or None."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    ledger: Ledger
    zeros_sbuf: object
    batch: Batch
    late: list
    pace: Pace
    #: WarmBanks
    warm: list
    following: object = None
    preparing: object = None


def start_work(operands, geometry, extras, zeros_sbuf, batch, preparing):
    """Work of a core whose engines have had nothing to do."""
    return Work(
        operands=operands,
        geometry=geometry,
        extras=extras,
        ledger=new_ledger(),
        zeros_sbuf=zeros_sbuf,
        batch=batch,
        late=[],
        pace=Pace(),
        warm=[],
        preparing=preparing,
    )


def jobs_at_once(batch):
    """Indices of a batch's jobs, of those together whose sums are made together."""
    found, every = [], []
    for job in range(len(batch.jobs)):
        found.append([job])
        every.append(job)
    return [every] if batch.together else found


def start_batch(geometry, plan, index, at_once, preparing):
    """A Batch of which nothing is loaded yet; the filters of the first `at_once` jobs are waited for."""
    jobs = plan.batches[index]
    together = plan.together[index]
    pairing = preparing if geometry.direct == None else None
    filters = start_filters(geometry, jobs, max(at_once, plan.moved[index]), together, pairing)
    return Batch(index=index, jobs=jobs, chunks=chunks_of(jobs), together=together, filters=filters, biases=[])


def load_biases(work, batch, last):
    """Load the biases of jobs up to `last`."""
    while len(batch.biases) <= min(last, len(batch.jobs) - 1):
        job = batch.jobs[len(batch.biases)]
        batch.biases.append(load_bias(work.operands.bias, job.k0, job.kn, job.rows))


def start_band(work, item):
    """x of the first band: of each chunk the first filters that there is room for and the rows of the first sums, then
    all others."""
    batch, band = work.batch, item.band
    tiles = filled(len(batch.chunks), None)
    job = batch.jobs[0]
    parts = row_parts(work.geometry, band, True, job.rows)
    lead = lead_chunks(work.geometry)
    for chunk in range(len(job.chunks)):
        last = jobs_at_once(batch)[0][-1]
        by_job = batch.filters.by_job
        first, last = by_job[0][chunk].place, by_job[last][chunk].place
        soon = work.geometry.packed > 0 and chunk == 0
        if soon:
            load_block(work.operands, work.geometry, batch.filters)
        else:
            load_first(work.operands, work.geometry, batch.filters, max(first + lead - 1, last))
        if len(parts) > 0:
            bring_rows(work, batch.chunks, tiles, batch.chunks.index(job.chunks[chunk]), band, parts[0])
        if soon:
            load_first(work.operands, work.geometry, batch.filters, max(first + lead - 1, last))
    for index in range(len(batch.chunks) if len(parts) > 0 else 0):
        if tiles[index] == None:
            bring_rows(work, batch.chunks, tiles, index, band, parts[0])
    load_biases(work, batch, 0)
    for part in range(1, len(parts)):
        for index in range(len(batch.chunks)):
            bring_rows(work, batch.chunks, tiles, index, band, parts[part])
    return tiles


def load_next(work, plan, index, now):
    """x of the item after one, which may be what is there; where it has other jobs, their first filters before it."""
    item, coming = plan.items[index], plan.items[index + 1]
    of = work.batch
    if coming.batch != item.batch:
        work.following = start_batch(work.geometry, plan, coming.batch, 0, work.preparing)
        of = work.following
        load_ahead(work.operands, work.geometry, of.filters)
        load_biases(work, of, 0)
    if of.chunks == work.batch.chunks and same_place(coming.band, item.band):
        return now
    tiles = filled(len(of.chunks), None)
    parts = row_parts(work.geometry, coming.band, False, 1)
    if plan.whole and len(parts) > 0:
        parts = [(0, coming.band.hn)]
    for part in range(len(parts)):
        for chunk in range(len(of.chunks)):
            bring_rows(work, of.chunks, tiles, chunk, coming.band, parts[part], True)
    return tiles


def bring_rows(work, chunks, tiles, index, band, part, held=False):
    """x of a chunk in a part (first row, rows) of a band, into its tile; held: as of `load_rows`."""
    operands, geometry, chunk = work.operands, work.geometry, chunks[index]
    if chunk[3] != ALONE:
        if tiles[index] == None:
            tiles[index] = new_rows(operands, geometry, chunk, band)
        load_paired(operands, geometry, chunk, tiles[index], band, part)
    elif work.preparing == None:
        if tiles[index] == None:
            tiles[index] = rows_tile(operands, geometry, chunk, band)
        rows_sbuf = rows_in(tiles[index], part[0], part[1])
        load_rows(work, chunk, rows_sbuf, band, band.h0 + part[0], len(chunks) == 1, held)
    else:
        if tiles[index] == None:
            tiles[index] = prepared_tile(geometry, chunk, band)
        add_parts(work, chunks, index, tiles[index], band, part)


def set_rate(work, jobs, band):
    """Transpose the filters of the next job, or the first of the following batch, during the matmuls of `jobs`."""
    geometry, batch = work.geometry, work.batch
    filters, job = batch.filters, jobs[-1]
    banks = len(banks_of(job_band(band, batch.jobs[job]), False))
    matmuls = len(jobs) * banks * num_matmuls(geometry, batch.jobs[job]) * kinds_of(geometry)
    if work.preparing != None:
        set_preparing_pace(work, matmuls)
    coming = 0
    if job + 1 < len(batch.jobs):
        coming = filters_to(filters, after_job(filters, job + 1) - 1) - pieces_to(filters, after_job(filters, job) - 1)
    elif work.following != None:
        coming = filters_to(work.following.filters, 0)
    work.pace = start_pace(coming, matmuls, TAPS_TRANSPOSE_FROM, TAPS_TRANSPOSE_UNTIL)


def filters_to(filters, last):
    """Pieces and blocks to transpose until chunk `last` of all is complete."""
    return pieces_to(filters, last) + moves_to(filters, last)


def transpose_due(work, pieces):
    """After a matmul: transpose what is due of the next job's or batch's filters; pieces: whether by the array too."""
    for _ in range(due_now(work.pace)):
        filters = work.batch.filters
        last = len(filters.order) - 1
        if filters_to(filters, last) == 0 and work.following != None:
            filters = work.following.filters
            last = 0
        if moves_to(filters, last) > 0:
            move_block(work.operands, work.geometry, filters, work.ledger)
        elif pieces and pieces_to(filters, last) > 0:
            transpose_piece(work.operands, work.geometry, filters, work.ledger)


def work_band(work, jobs, item, tiles, last):
    """Results of some jobs for one band: their PSUM banks one after the other, or together, chunk by chunk of x.

    last: whether nothing hides the stores, so that each bank's results leave at once.
    """
    places = []
    for index in jobs:
        results = start_results(work, index, item)
        for which in range(len(results.banks)):
            places.append((results, which))
    at_once = len(places) if work.batch.together else 1
    for first in range(0, len(places), at_once):
        sums = []
        for which in range(first, first + at_once):
            results, bank = places[which]
            sums.append(start_sums(work, results, bank))
        for chunk in range(len(results.job.chunks)):
            for one in sums:
                add_chunk(work, one, chunk, tiles)
        for one in sums:
            finish_sums(work, one, item, last)


def start_results(work, index, item):
    """Results of a job for an item, of which nothing is there yet but the residual."""
    operands, geometry, job = work.operands, work.geometry, work.batch.jobs[index]
    band = job_band(item.band, job)
    shape = (job.rows * job.kn, planes_at_once(geometry) * band.zn, band.pn, band.qn)
    return Results(
        index=index,
        job=job,
        band=band,
        banks=banks_of(band, item.last and index == len(work.batch.jobs) - 1),
        y_sbuf=nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf),
        residual_sbuf=load_residual(operands, geometry, job, band_of_y(geometry, item.band), work.ledger),
        waiting=[],
    )


def start_sums(work, results, which):
    """A bank of results, of which no product is there yet."""
    bank, job = results.banks[which], results.job
    apart = sums_pitch(work.geometry, job.chunks, bank.zn, bank.pn)
    shape = (job.rows * job.kn, bank.zn, apart, bank.qn)
    # a last plane of a volume is none that the last bank of pairs of planes is for
    alone = bank_of_y(work.geometry, results.band, bank).zn < planes_at_once(work.geometry)
    count, banks, started = sums_of(work.geometry) - (1 if alone else 0), [], False
    if count == 1:
        first_psum, started = accumulator(work.warm, shape)
        banks.append(first_psum)
    while len(banks) < count:
        banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    return Sums(results=results, which=which, bank=bank, banks=banks, started=started)


def finish_sums(work, one, item, last):
    """Read a bank of sums out, and store what waits for that, as `last` has it in `work_band`."""
    results, epilogue = one.results, work.extras.epilogue
    bank, band = bank_of_y(work.geometry, item.band, one.bank), band_of_y(work.geometry, item.band)
    residual = None if results.residual_sbuf == None else window(results.residual_sbuf, bank)
    y_sbuf, bias_sbuf = window(results.y_sbuf, bank), work.batch.biases[results.index]
    if work.geometry.direct != None:
        read_pair_out(y_sbuf, one.banks, bias_sbuf, residual, epilogue, work.ledger)
    elif len(one.banks) > 1:
        read_sums_out(y_sbuf, one.banks[0], one.banks[1], bias_sbuf, residual, epilogue, work.ledger)
    else:
        acc_psum = one.banks[0][0 : y_sbuf.shape[0], 0 : bank.zn, 0 : bank.pn, 0 : bank.qn]
        elements, strict = bank.zn * bank.pn * bank.qn, work.extras.strict_nonfinite
        finish_shared(y_sbuf, acc_psum, bias_sbuf, residual, epilogue, work.ledger, elements, strict)
    if is_last(work.geometry):
        put_off(work, window(results.y_sbuf, bank), results.job, band, bank)
        return
    results.waiting.append(bank)
    if last or one.which + 1 == len(results.banks) or len(results.waiting) >= STORE_BANKS:
        store_banks(work.operands, results.y_sbuf, work.geometry, results.job, band, results.waiting)
        results.waiting = []


def job_band(band, job):
    """A band in a job's own rows, pairs of rows where it makes two at once."""
    if job.rows == 1:
        return band
    return replace(band, p0=band.p0 // job.rows, pn=div_ceil(band.pn, job.rows))


def add_chunk(work, one, chunk, tiles):
    """Products of all taps of a chunk of x, added to a bank of Sums.

    A tap that meets all of the bank comes first, so that the others add to what is there; where none does, a product
    of zeros does.
    """
    geometry, batch = work.geometry, work.batch
    band, bank, index = one.results.band, one.bank, one.results.index
    job, filters = batch.jobs[index], batch.filters
    place = batch.chunks.index(job.chunks[chunk])
    every = matmuls_of(geometry, job, job.chunks[chunk], band, bank, one.which)
    covered, nothing = False, len(every) == 0 or tiles[place] == None
    if not nothing:
        covered = is_whole(every[0], bank.zn, bank.pn, bank.qn)
    if not one.started and not covered:
        for acc_psum in one.banks:
            zero_sums(acc_psum, work.zeros_sbuf)
        one.started = True
    if nothing:
        return
    own = filters.by_job[index][chunk]
    lead = lead_chunks(geometry)
    last_bank = batch.together or one.which + 1 == len(one.results.banks)
    end = len(filters.order) if last_bank else after_job(filters, index)
    transpose_until(work.operands, geometry, filters, min(own.place + lead, end) - 1, work.ledger)
    soon = pieces_to(filters, min(own.place + lead, end - 1))
    factors = factors_of(work, one, chunk, tiles[place], every)
    pace = start_pace(soon, len(every) * len(factors), LEAD_FROM, LEAD_UNTIL)
    for kind in range(len(factors)):
        factor = factors[kind]
        if factor.low:
            end_pairs(work, own.end[1], factor.parts)
        for which in range(len(every)):
            multiply(work, one, chunk, factor, every[which], one.started or which > 0 or factor.adds)
            for _ in range(min(soon, due_now(pace))):
                soon -= 1
                transpose_piece(work.operands, geometry, filters, work.ledger)
            transpose_due(work, soon == 0)
            pass_late(work)
            if work.preparing != None:
                prepare_due(work, kind * len(every) + which, len(factors))
    one.started = True
