"""The loop of conv2d: bands of x come in, every tap is a matmul on the window of it that it meets, sums go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import Ledger
from ..._epilogue import finish
from ..._tiles import BANK_COLUMNS, share
from ..._warm import warm_up, warm_zeros
from ..call import load_bias, of_array, reader, scale_residual
from ..geometry import met
from .filters import load_filters, turn_filters
from .plan import chunks_of


@dataclass
class Batch(nl.NKIObject):
    """Jobs of the items that are being worked on, and what each needs: filters as loaded, as stationaries, bias."""

    index: int
    jobs: list
    chunks: list
    loaded: list
    filters: list
    biases: list


def start_batch(operands, geometry, plan, index):
    """A Batch whose first filters are on their way."""
    jobs = plan.batches[index]
    batch = Batch(index=index, jobs=jobs, chunks=chunks_of(jobs), loaded=[], filters=[], biases=[])
    load_next(operands, geometry, batch)
    return batch


def load_next(operands, geometry, batch):
    """Load filters and bias of the next job that has none yet."""
    job = len(batch.loaded)
    if job < len(batch.jobs):
        batch.loaded.append(load_filters(operands, geometry, batch.jobs[job]))
        batch.biases.append(load_bias(operands.bias, batch.jobs[job].k0, batch.jobs[job].kn, 1))


def run_items(operands, geometry, extras, plan):
    """This core's part of the items; x of the next one is loaded before one is worked on."""
    mine = share(len(plan.items), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    ledger = Ledger(vector_ns=0.0, scalar_ns=0.0)
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, plan.warmup, 1)
    end = mine[0] + mine[1]
    batch, now, following = None, None, None
    for index in range(mine[0], end):
        item = plan.items[index]
        if batch == None or batch.index != item.batch:
            batch = following if following != None else start_batch(operands, geometry, plan, item.batch)
            following = None
        if now == None:
            now = load_band(operands, geometry, batch, item.band, first_rows(geometry, item.band))
        after = None
        for job in range(len(batch.jobs)):
            if job == len(batch.filters):
                load_next(operands, geometry, batch)
                turned = turn_filters(operands, batch.loaded[job], geometry, batch.jobs[job], ledger)
                batch.filters.append(all_of_array(turned, operands))
            if job == 0 and index + 1 < end:
                coming = plan.items[index + 1]
                if coming.batch != item.batch:
                    following = start_batch(operands, geometry, plan, coming.batch)
                of = batch if following == None else following
                after = load_band(operands, geometry, of, coming.band, coming.band.hn)
            work_band(operands, geometry, extras, batch, job, item.band, now, ledger, zeros_sbuf, index + 1 == end)
        now = after


def first_rows(geometry, band):
    """Rows of a band that its first bank of sums needs: they are loaded first."""
    rows = bank_rows(band)
    needed = (rows - 1) * geometry.rows.stride + (geometry.rows.taps - 1) * geometry.rows.dilation
    return min(band.hn, needed // geometry.rows.lhs_dilation + 1)


def bank_rows(band):
    """Rows of outputs that one bank of sums holds."""
    return max(1, min(band.pn, BANK_COLUMNS // (band.nn * min(band.qn, BANK_COLUMNS))))


def load_band(operands, geometry, batch, band, first):
    """For each chunk [cn, images, rows, columns] of x in SBUF, the `first` rows before the others; None where the band
    meets none of it."""
    tiles, chunks = [], batch.chunks
    for _ in range(len(chunks)):
        tile_sbuf = None
        tiles.append(tile_sbuf)
    if band.hn == 0 or band.wn == 0:
        return tiles
    for part in range(2 if first < band.hn else 1):
        h0 = 0 if part == 0 else first
        hn = first if part == 0 else band.hn - first
        for index in range(len(chunks)):
            c0, count = chunks[index]
            if part == 0:
                shape = (count, band.nn, band.hn, band.wn)
                tiles[index] = nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf)
            offset = band.n0 * geometry.x_n + c0 * geometry.x_c
            offset += (band.h0 + h0) * geometry.x_h + band.w0 * geometry.x_w
            pattern = [
                [geometry.x_c, count],
                [geometry.x_n, band.nn],
                [geometry.x_h, hn],
                [geometry.x_w, band.wn],
            ]
            copy(
                tiles[index][0:count, 0 : band.nn, h0 : h0 + hn, 0 : band.wn],
                operands.x.ap(pattern=pattern, offset=offset),
            )
    return all_of_array(tiles, operands)


def all_of_array(tiles, operands):
    """The tiles as the array is to take them."""
    found = []
    for index in range(len(tiles)):
        found.append(of_array(tiles[index], operands))
    return found


def work_band(operands, geometry, extras, batch, index, band, tiles, ledger, zeros_sbuf, last):
    """Results of one job for one band: PSUM banks one after the other, then pooling and the store.

    last: whether nothing hides the stores, so that each bank's results leave at once.
    """
    y_dtype, job, epilogue, pool = operands.y.dtype, batch.jobs[index], extras.epilogue, extras.pool
    pooled = pool != (1, 1)
    shape = (job.kn, band.nn, band.pn, band.qn)
    y_sbuf = nl.ndarray(shape, dtype=nl.float32 if pooled else y_dtype, buffer=nl.sbuf)
    residual_sbuf = load_residual(operands, geometry, job, band)
    qt, pt = min(band.qn, BANK_COLUMNS), bank_rows(band)
    for p in range(0, band.pn, pt):
        pn = min(pt, band.pn - p)
        for q in range(0, band.qn, qt):
            qn = min(qt, band.qn - q)
            acc_psum = nl.ndarray((job.kn, band.nn, pn, qn), dtype=nl.float32, buffer=nl.psum)
            accumulate(acc_psum, geometry, batch, index, band, tiles, (p, pn, q, qn), zeros_sbuf)
            residual = None
            if residual_sbuf != None:
                residual = residual_sbuf[0 : job.kn, 0 : band.nn, p : p + pn, q : q + qn]
            finish(
                y_sbuf[0 : job.kn, 0 : band.nn, p : p + pn, q : q + qn],
                acc_psum,
                batch.biases[index],
                residual,
                epilogue,
                reader(ledger, epilogue, band.nn * pn * qn),
            )
        if last and not pooled:
            store_rows(operands.y, y_sbuf, geometry, job, band, p, pn)
    if pooled:
        y_sbuf = pool_band(y_sbuf, pool, y_dtype)
        where = y_pattern(geometry, job, band, pool)
        copy(operands.y.ap(pattern=where[0], offset=where[1]), y_sbuf)
    elif not last:
        store_rows(operands.y, y_sbuf, geometry, job, band, 0, band.pn)


def accumulate(acc_psum, geometry, batch, index, band, tiles, part, zeros_sbuf):
    """Sums of all chunks and taps; part: (p, pn, q, qn) within the band.

    Taps that meet all of the part come first, so that the others add to what is there; where none does, a product of
    zeros does.
    """
    job = batch.jobs[index]
    filters = batch.filters[index]
    p0, pn, q0, qn = band.p0 + part[0], part[1], band.q0 + part[2], part[3]
    every = products(geometry, batch, job, p0, pn, q0, qn)
    started = False
    if len(every) == 0 or every[0].rows[2] < pn or every[0].columns[2] < qn:
        nothing = [[zeros_sbuf.shape[1], 1], [0, band.nn], [0, pn], [0, qn]]
        nisa.nc_matmul(
            dst=acc_psum,
            stationary=zeros_sbuf[0:1, 0 : job.kn],
            moving=zeros_sbuf.ap(pattern=nothing, offset=0),
            accumulate=False,
        )
        started = True
    for which in range(len(every)):
        one = every[which]
        rows, columns = one.rows, one.columns
        stationaries = filters[one.filter]
        x_sbuf = tiles[one.tile]
        h = rows[3] - band.h0
        w = columns[3] - band.w0
        nisa.nc_matmul(
            dst=acc_psum[
                0 : job.kn,
                0 : band.nn,
                rows[0] - p0 : rows[0] - p0 + (rows[2] - 1) * rows[1] + 1 : rows[1],
                columns[0] - q0 : columns[0] - q0 + (columns[2] - 1) * columns[1] + 1 : columns[1],
            ],
            stationary=stationaries[0 : stationaries.shape[0], one.tap, 0 : job.kn],
            moving=x_sbuf[
                0 : x_sbuf.shape[0],
                0 : band.nn,
                h : h + (rows[2] - 1) * rows[4] + 1 : rows[4],
                w : w + (columns[2] - 1) * columns[4] + 1 : columns[4],
            ],
            accumulate=started,
        )
        started = True


@dataclass
class Product(nl.NKIObject):
    """One matmul: which stationary (tile, tap) meets which tile of x where, as `geometry.met` says."""

    filter: int
    tap: int
    tile: int
    rows: tuple
    columns: tuple


def products(geometry, batch, job, p0, pn, q0, qn):
    """Matmuls of a bank of outputs; those that meet all of them first."""
    S = geometry.columns.taps
    whole, partial = [], []
    for s in range(S):
        on_columns = met(geometry.columns, s, q0, qn)
        for r in range(geometry.rows.taps if on_columns[2] > 0 else 0):
            on_rows = met(geometry.rows, r, p0, pn)
            found = whole if on_rows[2] == pn and on_columns[2] == qn else partial
            if on_rows[2] > 0:
                for chunk in range(len(job.chunks)):
                    place = place_of(batch.chunks, job.chunks[chunk])
                    found.append(Product(filter=chunk, tap=r * S + s, tile=place, rows=on_rows, columns=on_columns))
    return whole + partial


def place_of(chunks, wanted):
    """Index of a chunk in a list."""
    found = 0
    for index in range(len(chunks)):
        if chunks[index] == wanted:
            found = index
    return found


def y_pattern(geometry, job, band, pool):
    """(pattern, offset) of a band's results in HBM: [kn, images, rows, columns]."""
    pattern = [
        [geometry.y_k, job.kn],
        [geometry.y_n, band.nn],
        [geometry.y_p, band.pn // pool[0]],
        [geometry.y_q, band.qn // pool[1]],
    ]
    offset = band.n0 * geometry.y_n + job.k0 * geometry.y_k
    return pattern, offset + band.p0 // pool[0] * geometry.y_p + band.q0 // pool[1] * geometry.y_q


def load_residual(operands, geometry, job, band):
    """The residual of a band times beta, fp32 if it was multiplied, or None."""
    if operands.residual == None:
        return None
    shape = (job.kn, band.nn, band.pn, band.qn)
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    pattern = [[geometry.r_k, job.kn], [geometry.r_n, band.nn], [geometry.r_p, band.pn], [geometry.r_q, band.qn]]
    offset = band.n0 * geometry.r_n + job.k0 * geometry.r_k + band.p0 * geometry.r_p + band.q0 * geometry.r_q
    copy(residual_sbuf, operands.residual.ap(pattern=pattern, offset=offset))
    return scale_residual(residual_sbuf, operands.beta)


def pool_band(y_sbuf, pool, dtype):
    """Maxima of windows: [kn, images, rows / height, columns / width], first along columns, then along rows."""
    kn, nn, pn, qn = y_sbuf.shape
    wide_sbuf = largest(y_sbuf, pool[1], (kn, nn, pn, qn // pool[1]), 3, nl.float32)
    return largest(wide_sbuf, pool[0], (kn, nn, pn // pool[0], qn // pool[1]), 2, dtype)


def largest(data_sbuf, count, shape, axis, dtype):
    """Maxima of `count` neighbours along an axis."""
    found_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    if count == 1:
        nisa.tensor_copy(dst=found_sbuf, src=data_sbuf)
        return found_sbuf
    before = neighbours(data_sbuf, axis, 0, count)
    for index in range(1, count):
        last = index == count - 1
        into = found_sbuf if last else nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=into, data1=before, data2=neighbours(data_sbuf, axis, index, count), op=nl.maximum)
        before = into
    return found_sbuf


def neighbours(data_sbuf, axis, first, step):
    """Every step-th element along an axis."""
    kn, nn, pn, qn = data_sbuf.shape
    if axis == 3:
        return data_sbuf[0:kn, 0:nn, 0:pn, first:qn:step]
    return data_sbuf[0:kn, 0:nn, first:pn:step, 0:qn]


def store_rows(y_hbm, y_sbuf, geometry, job, band, p, pn):
    """One DMA for rows p .. p+pn-1 of a job's band."""
    pattern = [[geometry.y_k, job.kn], [geometry.y_n, band.nn], [geometry.y_p, pn], [geometry.y_q, band.qn]]
    offset = band.n0 * geometry.y_n + job.k0 * geometry.y_k + (band.p0 + p) * geometry.y_p + band.q0 * geometry.y_q
    copy(y_hbm.ap(pattern=pattern, offset=offset), y_sbuf[0 : job.kn, 0 : band.nn, p : p + pn, 0 : band.qn])
