"""The loop of products by fp16 pairs: rows of x become pairs ahead of the array, every tap is three matmuls.

High times high parts are summed in one PSUM bank; high times low and low times high parts, 2^11 too large, in another,
which the read-out scales and adds. The array works through a job's filters piece by piece, all products of a piece one
after the other, so that the next pieces can be turned between them.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import Ledger, new_ledger, pick
from ..._epilogue import Epilogue, finish
from ..._tiles import div_ceil, share
from ..._warm import warm_up, warm_zeros
from ..call import Extras, Operands, scale_residual
from ..cuts import Band, box, index_of, put_first, strides_of_residual, strides_of_y
from ..geometry import Geometry, met
from ..taps.rows import pool_band
from .cuts import banks_of
from .filters import Filters, load_ahead, start_filters, turn_piece
from .pairs import DOWN, advance
from .work import LEAD, Plan
from .x import Rows, load_rows, parts_needed, rows_needed, split_part, start_rows


@dataclass
class Work(nl.NKIObject):
    """What the loop carries from item to item: filters of this batch and of the next, x of this band and the next."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    plan: Plan
    zeros_sbuf: object
    ledger: Ledger
    batch: int
    filters: Filters
    following: object
    rows: Rows
    coming: object
    #: whose low parts are not there yet
    pairs: list
    #: pieces of filters whose products are still to come for this band
    groups: int


def run_split(operands, geometry, extras, plan):
    """This core's part of the items."""
    mine = share(len(plan.items), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, plan.warmup, 1)
    first = plan.items[mine[0]]
    filters = start_filters(geometry, plan.batches[first.batch])
    needed = rows_needed(geometry, first.band, 0, banks_of(first.band)[0][1])
    work = Work(
        operands=operands,
        geometry=geometry,
        extras=extras,
        plan=plan,
        zeros_sbuf=zeros_sbuf,
        ledger=new_ledger(),
        batch=first.batch,
        filters=filters,
        following=None,
        rows=start_rows(first.band, filters.chunks, needed),
        coming=None,
        pairs=[],
        groups=0,
    )
    for _ in range(len(work.filters.blocks)):
        load_ahead(operands, geometry, work.filters, None, 1)
        load_rows(operands, geometry, work.rows, 1)
    end = mine[0] + mine[1]
    for index in range(mine[0], end):
        item = plan.items[index]
        if item.batch != work.batch:
            work.batch = item.batch
            work.filters = work.following
            work.following = None
        if work.coming != None:
            work.rows = work.coming
            work.coming = None
        if index + 1 < end:
            start_next(work, item, plan.items[index + 1])
        work_item(work, item)


def start_next(work, item, after):
    """Whatever of the next item's filters and x is not there."""
    chunks = work.filters.chunks
    if after.batch != item.batch:
        work.following = start_filters(work.geometry, work.plan.batches[after.batch])
        chunks = work.following.chunks
    if not after.same:
        work.coming = start_rows(after.band, chunks, 0)


def work_item(work, item):
    """Results of all jobs of a batch for one band: PSUM banks one after the other, then pooling."""
    operands, geometry, pool, band = work.operands, work.geometry, work.extras.pool, item.band
    banks = banks_of(band)
    work.groups = len(banks) * len(work.filters.pieces)
    for index in range(len(work.filters.jobs)):
        job = work.filters.jobs[index]
        residual_sbuf = load_residual(operands, geometry, job, band)
        band_sbuf = None
        if pool != (1, 1):
            band_sbuf = nl.ndarray((job.kn, band.nn, band.pn, band.qn), dtype=nl.float32, buffer=nl.sbuf)
        for which in range(len(banks)):
            p, pn, q, qn = banks[which]
            after = banks[min(which + 1, len(banks) - 1)]
            sums = start_sums(band, index, job.kn, banks[which])
            accumulate(work, sums, rows_needed(geometry, band, p, pn), rows_needed(geometry, band, after[0], after[1]))
            y_sbuf, residual = None, None
            if band_sbuf != None:
                y_sbuf = band_sbuf[0 : job.kn, 0 : band.nn, p : p + pn, q : q + qn]
            else:
                y_sbuf = nl.ndarray((job.kn, band.nn, pn, qn), dtype=operands.y.dtype, buffer=nl.sbuf)
            if residual_sbuf != None:
                residual = residual_sbuf[0 : job.kn, 0 : band.nn, p : p + pn, q : q + qn]
            read_out(work, y_sbuf, sums, work.filters.biases[index], residual)
            if band_sbuf == None:
                store(operands.y, y_sbuf, geometry, job, band.n0, band.p0 + p, band.q0 + q)
        if band_sbuf != None:
            y_sbuf = pool_band(band_sbuf, pool, operands.y.dtype)
            store(operands.y, y_sbuf, geometry, job, band.n0, band.p0 // pool[0], band.q0 // pool[1])


def split_to(work, count):
    """Start pairs of x until that many parts of this band are."""
    while work.rows.split < count:
        split_next(work)


def split_share(work):
    """Start pairs of x so that the next band has all of its own with the last piece of this one's products."""
    left = len(work.rows.parts) - work.rows.split
    if work.coming != None:
        left += len(work.coming.parts) - work.coming.split
    for _ in range(div_ceil(left, work.groups)):
        split_next(work)
    work.groups = work.groups - 1


def split_next(work):
    """Start the pairs of the next part of x, of this band or the next one's."""
    of = work.rows if work.rows.split < len(work.rows.parts) else work.coming
    while len(of.staged) <= of.split:
        advance_all(work)
    work.pairs.append(split_part(of, work.ledger))


def turn_to(work, count):
    """Start pairs of pieces of this batch's filters until so many are turned."""
    while work.filters.turned < min(count, len(work.filters.pieces)):
        work.pairs.append(turn_piece(work.operands, work.geometry, work.filters, work.ledger))


def turn_next(work, last_job):
    """Turn a piece ahead: of this batch's filters, and with its last job the first of the next one's."""
    following = work.following
    if work.filters.turned < len(work.filters.pieces):
        turn_to(work, work.filters.turned + 1)
    elif last_job and following != None and following.turned < min(work.plan.ahead, len(following.pieces)):
        work.pairs.append(turn_piece(work.operands, work.geometry, following, work.ledger))


def advance_all(work):
    """One instruction of every pair that is not done; load what there is room for then."""
    work.pairs = advance(work.pairs, work.ledger)
    load_ahead(work.operands, work.geometry, work.filters, work.following, len(work.filters.blocks))
    load_rows(work.operands, work.geometry, work.rows, len(work.rows.parts))
    if work.coming != None and work.rows.ended == len(work.rows.parts):
        load_rows(work.operands, work.geometry, work.coming, len(work.coming.parts))


@dataclass
class Sums(nl.NKIObject):
    """Sums of one bank of outputs on their way: rows p0 .. p0+pn-1, columns q0 .. q0+qn-1 of a band's images, of a job.

    main_psum, rest_psum: [kn, images, pn, qn] fp32, sums of high times high parts and of the others, 2^11 too large.
    started: whether something has been written to all of them.
    """

    band: Band
    job: int
    p0: int
    pn: int
    q0: int
    qn: int
    main_psum: object
    rest_psum: object
    started: bool


def start_sums(band, index, kn, bank):
    """Sums of a job (index) of kn output channels before any product; bank: (p, pn, q, qn) within the band."""
    p, pn, q, qn = bank
    shape = (kn, band.nn, pn, qn)
    return Sums(
        band=band,
        job=index,
        p0=band.p0 + p,
        pn=pn,
        q0=band.q0 + q,
        qn=qn,
        main_psum=nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum),
        rest_psum=nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum),
        started=False,
    )


def accumulate(work, sums, hn, next_hn):
    """All products of a bank, piece by piece; meanwhile filters are turned, and x becomes pairs, ahead of them.

    hn, next_hn: rows of the band's x that this bank and the next one need.
    """
    filters = work.filters
    job = filters.jobs[sums.job]
    first, end = filters.firsts[sums.job], filters.firsts[sums.job + 1]
    for which in range(first, end):
        piece, soon = filters.pieces[which], filters.pieces[min(which + LEAD, end - 1)]
        place = index_of(filters.chunks, job.chunks[piece.chunk])
        needed = parts_needed(work.rows, hn, place)
        turn_to(work, which + 1)
        split_to(work, needed)
        while filters.ended <= which or work.rows.ended < needed:
            advance_all(work)
        turn_to(work, which + LEAD)
        multiply(work, sums, piece, place, which + 1 == end)
        advance_all(work)
        while filters.ended < min(which + 2, filters.turned):
            advance_all(work)
        turn_next(work, sums.job + 1 == len(filters.jobs))
        split_to(work, parts_needed(work.rows, hn, index_of(filters.chunks, job.chunks[soon.chunk])))
        split_to(work, parts_needed(work.rows, next_hn, place))
        split_share(work)
    if not sums.started:
        write_zeros(work, sums)


@dataclass
class Product(nl.NKIObject):
    """A tap that meets x in a bank: what `geometry.met` says of its rows and columns."""

    tap: int
    rows: tuple
    columns: tuple


def products_of(geometry, sums, piece):
    """Products of a piece's taps in a bank of outputs; one that meets all of them first."""
    found, whole = [], 0
    on_rows = met(geometry.rows, piece.r, sums.p0, sums.pn)
    for s in range(piece.s0, piece.s0 + piece.sn if on_rows[2] > 0 else 0):
        on_columns = met(geometry.columns, s, sums.q0, sums.qn)
        if on_columns[2] > 0:
            if on_rows[2] == sums.pn and on_columns[2] == sums.qn:
                whole = len(found)
            found.append(Product(tap=piece.r * geometry.columns.taps + s, rows=on_rows, columns=on_columns))
    if whole > 0:
        found = put_first(found, whole)
    return found


def multiply(work, sums, piece, place, last):
    """The three products of each of a piece's taps, kind by kind: high parts, which are there first, before low ones.

    The first product of each kind of sums writes all of them: a tap that meets all of the bank, or else zeros. place:
    index of the piece's chunk of x. last: of the bank; high parts come last then, as the rest has one read-out more to
    go through.
    """
    band, filters, rows = sums.band, work.filters, work.rows
    products = products_of(work.geometry, sums, piece)
    if len(products) == 0:
        return
    first = products[0]
    if not sums.started and (first.rows[2] < sums.pn or first.columns[2] < sums.qn):
        write_zeros(work, sums)
    for turn in range(3):
        kind = (turn + 1) % 3 if last else turn
        stationaries = (filters.lows if kind == 1 else filters.highs)[sums.job][piece.chunk]
        x_sbuf = (rows.lows if kind == 2 else rows.highs)[place]
        acc_psum = sums.main_psum if kind == 0 else sums.rest_psum
        for which in range(len(products)):
            on_rows, on_columns = products[which].rows, products[which].columns
            p, q = on_rows[0] - sums.p0, on_columns[0] - sums.q0
            h, w = on_rows[3] - band.h0, on_columns[3] - band.w0
            nisa.nc_matmul(
                dst=acc_psum[
                    0 : acc_psum.shape[0],
                    0 : band.nn,
                    p : p + (on_rows[2] - 1) * on_rows[1] + 1 : on_rows[1],
                    q : q + (on_columns[2] - 1) * on_columns[1] + 1 : on_columns[1],
                ],
                stationary=stationaries[0 : stationaries.shape[0], products[which].tap, 0 : acc_psum.shape[0]],
                moving=x_sbuf[
                    0 : x_sbuf.shape[0],
                    0 : band.nn,
                    h : h + (on_rows[2] - 1) * on_rows[4] + 1 : on_rows[4],
                    w : w + (on_columns[2] - 1) * on_columns[4] + 1 : on_columns[4],
                ],
                accumulate=sums.started or kind == 2 or which > 0,
            )
    sums.started = True


def write_zeros(work, sums):
    """Zeros into both kinds of sums by a product of zeros."""
    zeros_sbuf = work.zeros_sbuf
    pattern = [[zeros_sbuf.shape[1], 1], [0, sums.band.nn], [0, sums.pn], [0, sums.qn]]
    for kind in range(2):
        acc_psum = sums.main_psum if kind == 0 else sums.rest_psum
        nisa.nc_matmul(
            dst=acc_psum,
            stationary=zeros_sbuf[0:1, 0 : acc_psum.shape[0]],
            moving=zeros_sbuf.ap(pattern=pattern, offset=0),
            accumulate=False,
        )
    sums.started = True


def read_out(work, y_sbuf, sums, bias_sbuf, residual_sbuf):
    """Both sums into y_sbuf, with everything that the epilogue asks for.

    The rest, scaled, is a residual of the main sums; what is to be added before the activation joins it.
    """
    epilogue, shape = work.extras.epilogue, sums.main_psum.shape
    rest_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    last = epilogue.residual == "post_activation" and epilogue.activation != ""
    if residual_sbuf != None and not last:
        nisa.scalar_tensor_tensor(
            dst=rest_sbuf, data=sums.rest_psum, op0=nl.multiply, operand0=DOWN, op1=nl.add, operand1=residual_sbuf
        )
    else:
        elements = shape[1] * shape[2] * shape[3]
        engine = pick(work.ledger, elements, False)
        nisa.tensor_scalar(dst=rest_sbuf, data=sums.rest_psum, op0=nl.multiply, operand0=DOWN, engine=engine)
    joined = Epilogue(
        activation=epilogue.activation,
        bias=epilogue.bias,
        residual="pre_activation",
        y_itemsize=epilogue.y_itemsize,
    )
    done_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) if last else y_sbuf
    finish(done_sbuf, sums.main_psum, bias_sbuf, rest_sbuf, joined, nisa.engine.vector)
    if last:
        nisa.tensor_tensor(dst=y_sbuf, data1=done_sbuf, data2=residual_sbuf, op=nl.add)


def load_residual(operands, geometry, job, band):
    """The residual of a band times beta, fp32 if it was multiplied, or None."""
    if operands.residual == None:
        return None
    residual_sbuf = nl.ndarray((job.kn, band.nn, band.pn, band.qn), dtype=operands.residual.dtype, buffer=nl.sbuf)
    where = box(strides_of_residual(geometry), job.k0, band.n0, band.p0, band.q0, residual_sbuf.shape)
    copy(residual_sbuf, operands.residual.ap(pattern=where[0], offset=where[1]))
    return scale_residual(residual_sbuf, operands.beta)


def store(y_hbm, y_sbuf, geometry, job, n0, p0, q0):
    """One DMA for results [kn, images, rows, columns] of a job from image n0, row p0 and column q0 on."""
    where = box(strides_of_y(geometry), job.k0, n0, p0, q0, y_sbuf.shape)
    copy(y_hbm.ap(pattern=where[0], offset=where[1]), y_sbuf)
