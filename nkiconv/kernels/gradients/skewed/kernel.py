"""Filter gradient of a depthwise row by blocks of gy, for filters that are short against rows.

    dw[c, s] = sum over units (n, b) and positions p of  gy[n, c, q] * x[n, c, q stride + s dilation - left]

with q = b U + p.
Units of U neighbouring positions lie on the partitions, of all images, with the window of x that their taps see. One
matmul takes a position more a row of its stationary [units, p] and the window as moving operand:

    T[p, j] = sum over units of  gy[unit, p] * x[unit, j]      wanted is j = p stride + s dilation, the skew diagonals

Several channels lie beside each other, with zeros in each other's places of the stationary; a unit has as many passes
as its positions need, whose windows begin so much later that their sums share T. T goes to HBM and comes back in step,
row p read p strides further on, and a matmul with ones adds its rows: all images in one sum, rounded once.

Engine plan: DMA loads rows in runs of a unit, stores T and loads it in step; Tensor multiplies batch i and sums up
batch i - 2; Vector and Scalar share the read-outs by a ledger. Bound by DMA, whose runs are short, or by Tensor, whose
matmuls stream at least 128 columns.

Zeros are multiplied: a NaN or Inf reaches the channels beside its own.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import Ledger, new_ledger, pick
from ..._masks import keep_between, keep_equal
from ..._tiles import BANK_COLUMNS, share, some_of
from ..._warm import warm_up, warm_zeros
from ...depthwise_conv1d.free_channels import move_free
from ...depthwise_conv1d.geometry import Geometry
from .loads import load_batch, skewed_tiles
from .plan import SkewedPlan, skewed_plan_of

#: Pieces of HBM that products of batches take in turn.
SKEW_SCRATCH = 4
#: Banks on their way before the parts of the oldest are added.
LATE_BANKS = 3
#: Batches behind that of the products are put in step, and stored.
STEP_LATE, STORE_LATE = 2, 3


@dataclass
class SkewedWork(nl.NKIObject):
    """What one core has at hand. x, gy: in HBM, with strides along n, c and positions; dw: the result; added: what it
    is added to, or None. geometry: of the convolution, w_c and w_s those of dw."""

    x: object
    gy: object
    dw: object
    added: object
    x_strides: tuple
    gy_strides: tuple
    geometry: Geometry
    plan: SkewedPlan
    ones_sbuf: object
    folds_sbuf: object
    scratch: list
    #: banks whose parts are yet to be added, in order
    banks: list
    ledger: Ledger


@dataclass
class SkewedBatch(nl.NKIObject):
    """T of a batch on its way to HBM, [(r, p), jobs, columns] in SBUF."""

    index: int
    jobs: int
    sums_sbuf: object


@dataclass
class SkewedBank(nl.NKIObject):
    """A bank of T of a batch, of jobs from `first` on: [(r, part, p), jobs, columns]."""

    batch: object
    first: int
    parts: object


def skewed(x, gy, dw, added, strides, geometry, config):
    """Write dw. strides: of x and of gy along n, c and positions. config: (name, value) pairs of a SkewedConfig."""
    plan = skewed_plan_of(geometry, config)
    batches = some_of(plan.batches, share(len(plan.batches), nl.num_programs(), nl.program_id(0)))
    work = SkewedWork(
        x=x,
        gy=gy,
        dw=dw,
        added=added,
        x_strides=strides[0],
        gy_strides=strides[1],
        geometry=geometry,
        plan=plan,
        ones_sbuf=None,
        folds_sbuf=None,
        scratch=[],
        banks=[],
        ledger=new_ledger(),
    )
    warm_up(warm_zeros(), plan.warmup, 1)
    tiles, loaded, in_step = [], 0, []
    for index in range(len(batches) + STORE_LATE):
        while loaded < min(len(batches), index + plan.buffers):
            if loaded < plan.buffers:
                tiles.append(skewed_tiles(work, loaded))
            load_batch(work, batches[loaded], tiles[loaded % plan.buffers])
            loaded += 1
        if index == 0:
            start_sums_of_rows(work)
        if index < len(batches):
            multiply_batch(work, batches[index], tiles[index % plan.buffers], index)
        else:
            finish_banks(work, 0)
        if STEP_LATE <= index and index < len(batches) + STEP_LATE:
            finish_banks(work, len(work.banks) - banks_up_to(work, index - STEP_LATE))
            in_step.append(put_in_step(work, batches[index - STEP_LATE], index - STEP_LATE))
        if STORE_LATE <= index:
            store_batch(work, batches[index - STORE_LATE], in_step[index - STORE_LATE])


def banks_up_to(work, index):
    """Banks that are yet to be finished of a batch and those before it."""
    found = 0
    for bank in work.banks:
        batch = bank.batch
        if batch.index <= index:
            found += 1
    return found


def start_sums_of_rows(work):
    """Ones [(r, p), r'] where r' = r; of several parts of positions [(r, part, p), (r', p')] where r' = r and p' = p;
    and scratch."""
    plan, jobs = work.plan, work.plan.groups * work.plan.chunks
    rows = plan.beside * plan.part
    work.ones_sbuf = nl.ndarray((rows, plan.beside), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=work.ones_sbuf, value=1.0)
    keep_between(work.ones_sbuf, [[-plan.part, plan.beside]], plan.part, work.ones_sbuf)
    if plan.folds > 1:
        work.folds_sbuf = nl.ndarray((plan.folds * rows, rows), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=work.folds_sbuf, value=0.0)
        ones_sbuf = nl.ndarray((plan.part, plan.part), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=ones_sbuf, value=1.0)
        for index in range(plan.beside * plan.folds):
            first, column = index * plan.part, index // plan.folds * plan.part
            one_sbuf = work.folds_sbuf[first : first + plan.part, column : column + plan.part]
            nisa.tensor_copy(dst=one_sbuf, src=keep_diagonal(ones_sbuf))
    for _ in range(SKEW_SCRATCH):
        size = rows * jobs * plan.part_columns
        work.scratch.append(nl.ndarray((size,), dtype=nl.float32, buffer=nl.private_hbm))


def keep_diagonal(ones_sbuf):
    """The unit matrix of ones, in their place."""
    keep_equal(ones_sbuf, [[-1, ones_sbuf.shape[1]]], ones_sbuf)
    return ones_sbuf


def multiply_batch(work, block, tiles, index):
    """T of all groups and chunks of a batch, on its way to HBM: banks whose parts are yet to be added are put behind
    those of `work.banks`."""
    plan, rows = work.plan, work.plan.beside * work.plan.positions
    jobs, each = block.length * plan.chunks, BANK_COLUMNS // plan.columns
    shape = (plan.beside * plan.part, jobs, plan.part_columns)
    batch = SkewedBatch(index=index, jobs=jobs, sums_sbuf=nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
    for first in range(0, jobs, each):
        count = min(each, jobs - first)
        products_psum = nl.ndarray((rows, count, plan.columns), dtype=nl.float32, buffer=nl.psum)
        for job in range(count):
            multiply_units(work, tiles, first + job, products_psum[0:rows, job, 0 : plan.columns])
        parts_sbuf = products_psum
        if plan.folds > 1:
            parts_sbuf = align_parts(work, products_psum)
        work.banks.append(SkewedBank(batch=batch, first=first, parts=parts_sbuf))
        finish_banks(work, LATE_BANKS if plan.folds > 1 else 0)


def align_parts(work, products_psum):
    """T [(r, part, p), jobs, columns] in SBUF, each part from the columns on that its positions see first."""
    plan, count = work.plan, products_psum.shape[1]
    columns, part = plan.part_columns, plan.part
    parts_sbuf = nl.ndarray((products_psum.shape[0], count, columns), dtype=nl.float32, buffer=nl.sbuf)
    for index in range(plan.beside * plan.folds):
        j = index % plan.folds * part * work.geometry.stride // plan.step
        nisa.tensor_copy(
            dst=parts_sbuf[index * part : (index + 1) * part, 0:count, 0:columns],
            src=products_psum[index * part : (index + 1) * part, 0:count, j : j + columns],
            engine=pick(work.ledger, count * columns, False),
        )
    return parts_sbuf


def finish_banks(work, most):
    """Finish banks until only so many are left: their parts are added, and what is a batch's last sends T to HBM."""
    plan, columns = work.plan, work.plan.part_columns
    rows = plan.beside * plan.part
    while len(work.banks) > most:
        bank = work.banks[0]
        work.banks = work.banks[1 : len(work.banks)]
        batch, count, sums_psum = bank.batch, bank.parts.shape[1], bank.parts
        if plan.folds > 1:
            sums_psum = nl.ndarray((rows, count, columns), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(
                dst=sums_psum,
                stationary=work.folds_sbuf,
                moving=bank.parts,
                is_stationary_onezero=True,
                accumulate=False,
            )
        nisa.tensor_copy(
            dst=batch.sums_sbuf[0:rows, bank.first : bank.first + count, 0:columns],
            src=sums_psum,
            engine=pick(work.ledger, count * columns, False),
        )
        if bank.first + count == batch.jobs:
            row = batch.jobs * columns
            scratch_hbm = work.scratch[batch.index % SKEW_SCRATCH]
            copy(scratch_hbm.ap(pattern=[[row, rows], [1, row]], offset=0), batch.sums_sbuf)


def multiply_units(work, tiles, job, into_psum):
    """T of a group and chunk: all units, a pass for so many of their positions."""
    plan, geometry, x_sbuf, gy_sbuf = work.plan, work.geometry, tiles.x, tiles.gy
    group, chunk = job // plan.chunks, job % plan.chunks
    lines = plan.beside * plan.units * plan.images
    reach = (plan.columns - 1) * plan.step + 1
    for tile in range(plan.tiles):
        for one in range(plan.passes):
            p = one * plan.positions
            j = p * geometry.stride + chunk * plan.taps * geometry.dilation
            nisa.nc_matmul(
                dst=into_psum,
                stationary=gy_sbuf[0:lines, tile, group, 0 : plan.beside, p : p + plan.positions],
                moving=x_sbuf[0:lines, tile, group, j : j + reach : plan.step],
                accumulate=tile + one > 0,
            )


def put_in_step(work, block, index):
    """[(r, p), jobs, taps] of a batch in SBUF: column s of row p is T[p, p stride + s dilation]."""
    plan, geometry, jobs = work.plan, work.geometry, block.length * work.plan.chunks
    scratch_hbm = work.scratch[index % SKEW_SCRATCH]
    row = jobs * plan.part_columns
    in_step_sbuf = nl.ndarray((plan.beside * plan.part, jobs, plan.taps), dtype=nl.float32, buffer=nl.sbuf)
    lines = [[plan.part * row, plan.beside], [row + geometry.stride // plan.step, plan.part]]
    columns = [[plan.part_columns, jobs], [geometry.dilation // plan.step, plan.taps]]
    copy(in_step_sbuf, scratch_hbm.ap(pattern=lines + columns, offset=0))
    return in_step_sbuf


def store_batch(work, block, in_step_sbuf):
    """Rows of T summed up, added to what there is, and stored."""
    plan, geometry = work.plan, work.geometry
    beside, groups, taps = plan.beside, block.length, plan.chunks * plan.taps
    rows, jobs, each = beside * plan.part, groups * plan.chunks, BANK_COLUMNS // plan.taps
    places = (geometry.w_c, geometry.w_s, 0)
    dtype = work.dw.dtype if work.added == None else nl.float32
    sums_sbuf = nl.ndarray((beside, jobs, plan.taps), dtype=dtype, buffer=nl.sbuf)
    for first in range(0, jobs, each):
        count = min(each, jobs - first)
        sums_psum = nl.ndarray((beside, count, plan.taps), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=sums_psum,
            stationary=work.ones_sbuf,
            moving=in_step_sbuf[0:rows, first : first + count, 0 : plan.taps],
            is_stationary_onezero=True,
            accumulate=False,
        )
        nisa.tensor_copy(
            dst=sums_sbuf[0:beside, first : first + count, 0 : plan.taps],
            src=sums_psum,
            engine=pick(work.ledger, count * plan.taps, False),
        )
    found_sbuf = sums_sbuf.reshape((beside, groups, taps))[0:beside, 0:groups, 0 : geometry.S]
    if work.added != None:
        added_sbuf = nl.ndarray((beside, groups, geometry.S), dtype=nl.float32, buffer=nl.sbuf)
        move_free(added_sbuf, work.added, block, 0, places, True)
        whole_sbuf = nl.ndarray((beside, groups, geometry.S), dtype=work.dw.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=whole_sbuf, data1=found_sbuf, data2=added_sbuf, op=nl.add)
        found_sbuf = whole_sbuf
    move_free(found_sbuf, work.dw, block, 0, places, False)
