"""The loop of conv2d: bands of x come in, every tap is a matmul on the window of it that it meets, sums go out."""

from ..._nki import nisa, nl
from .._dma import copy
from .._engines import Ledger, pick
from .._epilogue import finish
from .._prices import SCALAR_NS
from .._tiles import BANK_COLUMNS, share
from .._warm import warm_up, warm_zeros
from .filters import make_filters
from .geometry import met
from .plan import chunks_of

#: Matmuls on zeros while the first filters and rows are on their way.
WARM_UP = 12


def run_items(operands, geometry, epilogue, pool, plan):
    """This core's part of the items; x of the next one is loaded before one is worked on."""
    mine = share(len(plan.items), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    ledger = Ledger(vector_ns=0.0, scalar_ns=0.0)
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, WARM_UP, 1)
    known, filters, biases, now = -1, [], [], None
    for index in range(mine[0], mine[0] + mine[1]):
        item = plan.items[index]
        batch = plan.batches[item.batch]
        if now == None:
            now = load_band(operands.x, geometry, chunks_of(batch), item.band)
        if item.batch != known:
            known, filters, biases = item.batch, [], []
            for job in range(len(batch)):
                filters.append(make_filters(operands.w, geometry, batch[job], ledger))
                biases.append(load_bias(operands.bias, batch[job]))
        after = None
        if index + 1 < mine[0] + mine[1]:
            following = plan.items[index + 1]
            after = load_band(operands.x, geometry, chunks_of(plan.batches[following.batch]), following.band)
        chunks = chunks_of(batch)
        for job in range(len(batch)):
            work_band(
                operands,
                geometry,
                epilogue,
                pool,
                batch[job],
                item.band,
                filters[job],
                biases[job],
                chunks,
                now,
                ledger,
                zeros_sbuf,
            )
        now = after


def load_bias(bias_hbm, job):
    """[kn, 1] fp32 in SBUF, or None."""
    if bias_hbm == None:
        return None
    bias_sbuf = nl.ndarray((job.kn, 1), dtype=nl.float32, buffer=nl.sbuf)
    copy(bias_sbuf, bias_hbm.ap(pattern=[[1, job.kn], [1, 1]], offset=job.k0))
    return bias_sbuf


def load_band(x_hbm, geometry, chunks, band):
    """For each chunk [cn, images, rows, columns] of x in SBUF; None where the band meets none of it."""
    tiles = []
    for index in range(len(chunks)):
        first, count = chunks[index]
        tile_sbuf = None
        if band.hn > 0 and band.wn > 0:
            tile_sbuf = nl.ndarray((count, band.nn, band.hn, band.wn), dtype=x_hbm.dtype, buffer=nl.sbuf)
            offset = band.n0 * geometry.x_n + first * geometry.x_c + band.h0 * geometry.x_h + band.w0 * geometry.x_w
            pattern = [
                [geometry.x_c, count],
                [geometry.x_n, band.nn],
                [geometry.x_h, band.hn],
                [geometry.x_w, band.wn],
            ]
            copy(tile_sbuf, x_hbm.ap(pattern=pattern, offset=offset))
        tiles.append(tile_sbuf)
    return tiles


def work_band(operands, geometry, epilogue, pool, job, band, filters, bias_sbuf, chunks, tiles, ledger, zeros_sbuf):
    """Results of one job for one band: PSUM banks one after the other, then pooling and the store."""
    y_dtype = operands.y.dtype
    pooled = pool[0] * pool[1] > 1
    shape = (job.kn, band.nn, band.pn, band.qn)
    y_sbuf = nl.ndarray(shape, dtype=nl.float32 if pooled else y_dtype, buffer=nl.sbuf)
    residual_sbuf = load_residual(operands, geometry, job, band)
    qt = min(band.qn, BANK_COLUMNS)
    pt = max(1, min(band.pn, BANK_COLUMNS // (band.nn * qt)))
    for p in range(0, band.pn, pt):
        for q in range(0, band.qn, qt):
            pn, qn = min(pt, band.pn - p), min(qt, band.qn - q)
            acc_psum = nl.ndarray((job.kn, band.nn, pn, qn), dtype=nl.float32, buffer=nl.psum)
            accumulate(acc_psum, geometry, job, band, filters, chunks, tiles, (p, pn, q, qn), zeros_sbuf)
            residual = None
            if residual_sbuf != None:
                residual = residual_sbuf[0 : job.kn, 0 : band.nn, p : p + pn, q : q + qn]
            finish(
                y_sbuf[0 : job.kn, 0 : band.nn, p : p + pn, q : q + qn],
                acc_psum,
                bias_sbuf,
                residual,
                epilogue,
                reader(ledger, epilogue, band.nn * pn * qn),
            )
    if pooled:
        y_sbuf = pool_band(y_sbuf, pool, y_dtype)
    store_band(operands.y, y_sbuf, geometry, job, band, pool)


def reader(ledger, epilogue, elements):
    """The engine of a read-out; an activation is Scalar's."""
    if epilogue.activation != "":
        ledger.scalar_ns = ledger.scalar_ns + elements * SCALAR_NS
        return nisa.engine.scalar
    return pick(ledger, elements, False)


def accumulate(acc_psum, geometry, job, band, filters, chunks, tiles, part, zeros_sbuf):
    """Sums of all chunks and taps; part: (p, pn, q, qn) within the band.

    Taps that meet all of the part come first, so that the others add to what is there; where none does, a product of
    zeros does.
    """
    rows, columns = geometry.rows, geometry.columns
    p0, pn, q0, qn = band.p0 + part[0], part[1], band.q0 + part[2], part[3]
    whole, partial = [], []
    for r in range(rows.taps):
        on_rows = met(rows, r, p0, pn)
        for s in range(columns.taps):
            on_columns = met(columns, s, q0, qn)
            if on_rows[2] > 0 and on_columns[2] > 0:
                tap = r * columns.taps + s
                if on_rows[2] == pn and on_columns[2] == qn:
                    whole.append((tap, on_rows, on_columns))
                else:
                    partial.append((tap, on_rows, on_columns))
    started = False
    if len(whole) == 0:
        nothing = [[zeros_sbuf.shape[1], 1], [0, band.nn], [0, pn], [0, qn]]
        nisa.nc_matmul(
            dst=acc_psum,
            stationary=zeros_sbuf[0:1, 0 : job.kn],
            moving=zeros_sbuf.ap(pattern=nothing, offset=0),
            accumulate=False,
        )
        started = True
    every = whole + partial
    for index in range(len(every)):
        tap, on_rows, on_columns = every[index]
        for chunk in range(len(job.chunks)):
            place = place_of(chunks, job.chunks[chunk])
            nisa.nc_matmul(
                dst=acc_psum[
                    0 : job.kn,
                    0 : band.nn,
                    on_rows[0] - p0 : on_rows[0] - p0 + (on_rows[2] - 1) * on_rows[1] + 1 : on_rows[1],
                    on_columns[0] - q0 : on_columns[0] - q0 + (on_columns[2] - 1) * on_columns[1] + 1 : on_columns[1],
                ],
                stationary=filters[chunk][0 : job.chunks[chunk][1], tap, 0 : job.kn],
                moving=window(tiles[place], band, on_rows, on_columns),
                accumulate=started,
            )
            started = True


def place_of(chunks, wanted):
    """Index of a chunk in a list."""
    found = 0
    for index in range(len(chunks)):
        if chunks[index] == wanted:
            found = index
    return found


def window(tile_sbuf, band, on_rows, on_columns):
    """What a tap meets of x: [cn, images, rows, columns], strided."""
    h = on_rows[3] - band.h0
    w = on_columns[3] - band.w0
    return tile_sbuf[
        0 : tile_sbuf.shape[0],
        0 : band.nn,
        h : h + (on_rows[2] - 1) * on_rows[4] + 1 : on_rows[4],
        w : w + (on_columns[2] - 1) * on_columns[4] + 1 : on_columns[4],
    ]


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
    where = y_pattern(geometry, job, band, (1, 1))
    copy(residual_sbuf, operands.residual.ap(pattern=where[0], offset=where[1]))
    if operands.beta == 1.0:
        return residual_sbuf
    scaled_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled_sbuf, data=residual_sbuf, op0=nl.multiply, operand0=operands.beta)
    return scaled_sbuf


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


def store_band(y_hbm, y_sbuf, geometry, job, band, pool):
    """One DMA for a job's band."""
    where = y_pattern(geometry, job, band, pool)
    copy(y_hbm.ap(pattern=where[0], offset=where[1]), y_sbuf)
