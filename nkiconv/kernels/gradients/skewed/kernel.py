"""Filter gradient of a depthwise row by blocks of gy, for filters that are short against rows.

    dw[c, s] = sum over units (n, b) and positions p of  gy[n, c, q] * x[n, c, q stride + s dilation - left]

with q = b U + p. Units of U neighbouring positions of all images are on the partitions, with the window of x of their
taps. A matmul has positions as columns of its stationary operand [units, p] and windows as its moving one:

    T[p, j] = sum over units of  gy[unit, p] * x[unit, j]      dw is on j = p stride + s dilation, the skew diagonals

Several channels share a matmul, with zeros in each other's places of the stationary operand; or parts of the taps of a
long filter, whose stationaries are later units of gy (setting `shifts`). A unit takes several passes if it has many
positions; their windows begin later by a pass's positions, so that the sums of all passes share T.

If 32 rows of T have all channels (or parts of taps) at equally many positions, evacuations align quadrants of rows, and
a matmul with ones adds them; four groups share a bank. T is stored to HBM and loaded aligned, row p from p strides
further on, and another matmul with ones adds its rows: all images in one sum, rounded once.

Engine plan: DMA loads runs of a unit, stores T and loads it aligned, batches after the products; Tensor multiplies;
Vector and Scalar share evacuations by a ledger. Bound by DMA, whose runs are short, or by Tensor, whose matmuls take at
least the time of 128 columns. Zeros are multiplied: a NaN or Inf reaches the channels that share its matmul.
"""

from dataclasses import dataclass
from itertools import product

from ...._nki import nisa, nl
from ....schedules.depthwise import RowGeometry
from ....schedules.skewed import WARM_UP, SkewedSchedule
from ....schedules.tiles import BANK_COLUMNS, QUADRANT, cut_at, share, some_of
from ..._dma import copy, load, store
from ..._engines import Ledger, copy_balanced, new_ledger
from ..._masks import keep_between, keep_equal
from ..._warm import warm_up, warm_zeros
from ...depthwise_conv1d.free_channels import move_free
from ...depthwise_conv1d.tensors import Rows
from .loads import load_batch, skewed_tiles

#: HBM buffers of products, in rotation by batch; banks in flight before the parts of the oldest are added.
SKEW_SCRATCH, LATE_BANKS = 6, 3
#: Batches from the products to the load of aligned products, and to the store of the gradient.
STEP_LATE, STORE_LATE = 3, 4


@dataclass
class SkewedWork(nl.NKIObject):
    """The state of one core's work. x, gy: in HBM, with strides along n, c and positions; dw: the result; added: the
    tensor that dw is added to, or None. geometry: the convolution's, with dw's w_c and w_s; banks: banks with parts to
    add, (SkewedBatch, first job, stack, T [(part, r, p), jobs, columns]); sums_psum: sums of the parts of a bank's
    stacks so far, or None."""

    x: object
    gy: object
    dw: object
    added: object
    x_strides: tuple
    gy_strides: tuple
    geometry: RowGeometry
    plan: SkewedSchedule
    ledger: Ledger
    scratch: list
    banks: list
    ones_sbuf: object = None
    folds_sbuf: object = None
    sums_psum: object = None


@dataclass
class SkewedBatch(nl.NKIObject):
    """T of a batch in SBUF, [(r, p), jobs, columns], before its store to HBM."""

    index: int
    jobs: int
    sums_sbuf: object


def skewed(x, gy, dw, added, strides, geometry, plan):
    """Write dw. strides: of x and of gy along n, c and positions. plan: the SkewedSchedule."""
    batches = some_of(plan.batches, share(len(plan.batches), nl.num_programs(), nl.program_id(0)))
    work = SkewedWork(x, gy, dw, added, *strides, geometry, plan, ledger=new_ledger(), scratch=[], banks=[])
    warm_up(warm_zeros(), WARM_UP, 1)
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
            finish_banks(work, 0, -1)
        if STEP_LATE <= index and index < len(batches) + STEP_LATE:
            finish_banks(work, len(work.banks), index - STEP_LATE)
            in_step.append(put_in_step(work, batches[index - STEP_LATE], index - STEP_LATE))
        if STORE_LATE <= index:
            store_batch(work, batches[index - STORE_LATE], in_step[index - STORE_LATE])


def start_sums_of_rows(work):
    """Allocate ones [(row, p), row'] at row' = row, the matrix that adds parts of positions if there are several, and
    HBM buffers of products."""
    plan, rows = work.plan, work.plan.rows_of_sums
    work.ones_sbuf = nl.ndarray((rows * plan.part, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=work.ones_sbuf, value=1.0)
    keep_between(work.ones_sbuf, [[-plan.part, rows]], plan.part, work.ones_sbuf)
    if plan.folds > 1:
        work.folds_sbuf = matrix_of_parts(plan)
    size = rows * plan.part * (plan.groups // plan.stacks) * plan.chunks * plan.part_columns
    work.scratch = [nl.ndarray((size,), dtype=nl.float32, buffer=nl.private_hbm) for _ in range(SKEW_SCRATCH)]


def matrix_of_parts(plan):
    """[(part, line), column], 1 if column is line of the middle quadrant: a slice that begins a quadrant earlier adds
    parts to a quadrant later."""
    shape = (plan.folds * QUADRANT, (2 * plan.stacks - 1) * QUADRANT)
    matrix_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    ones_sbuf = nl.ndarray((QUADRANT, QUADRANT), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=matrix_sbuf, value=0.0)
    nisa.memset(dst=ones_sbuf, value=1.0)
    middle = (plan.stacks - 1) * QUADRANT
    for part in range(plan.folds):
        one_sbuf = matrix_sbuf[part * QUADRANT : (part + 1) * QUADRANT, middle : middle + QUADRANT]
        keep_equal(one_sbuf, [[-1, QUADRANT]], ones_sbuf)
    return matrix_sbuf


def multiply_batch(work, block, tiles, index):
    """Products T of all groups and chunks of a batch: appends their banks to `work.banks`."""
    plan, rows = work.plan, work.plan.beside * work.plan.positions
    jobs, each = block.length * plan.chunks, BANK_COLUMNS // plan.columns
    shape = (plan.rows_of_sums * plan.part, jobs, plan.part_columns)
    batch = SkewedBatch(index=index, jobs=jobs, sums_sbuf=nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
    for first, count in cut_at(jobs, each):
        for stack in range(plan.stacks):
            products_psum = nl.ndarray((rows, count, plan.columns), dtype=nl.float32, buffer=nl.psum)
            for job in range(count):
                group, chunk = divmod(first + job, plan.chunks)
                place = (stack * block.length + group, chunk)
                multiply_units(work, tiles, place, products_psum[0:rows, job, 0 : plan.columns])
            parts_sbuf = align_parts(work, products_psum) if plan.folds > 1 else products_psum
            work.banks.append((batch, first, stack, parts_sbuf))
            finish_banks(work, LATE_BANKS if plan.folds > 1 else 0, -1)


def align_parts(work, products_psum):
    """T [(part, r, p), jobs, columns] in SBUF, each part from the first column of its positions on."""
    plan, count, columns = work.plan, products_psum.shape[1], work.plan.part_columns
    parts_sbuf = nl.ndarray((products_psum.shape[0], count, columns), dtype=nl.float32, buffer=nl.sbuf)
    for part in range(plan.folds):
        j = part * plan.part * work.geometry.stride // plan.step
        rows = slice(part * QUADRANT, (part + 1) * QUADRANT)
        copy_balanced(parts_sbuf[rows, 0:count, 0:columns], products_psum[rows, 0:count, j : j + columns], work.ledger)
    return parts_sbuf


def finish_banks(work, most, last):
    """Add the parts of banks until at most `most` are left and all batches up to `last` are done; a batch's last bank
    stores T."""
    plan, columns = work.plan, work.plan.part_columns
    rows = plan.rows_of_sums * plan.part
    while len(work.banks) > 0:
        batch, first, stack, parts_sbuf = work.banks[0]
        count = parts_sbuf.shape[1]
        if len(work.banks) <= most and batch.index > last:
            return
        work.banks.pop(0)
        if plan.folds > 1:
            if stack == 0:
                work.sums_psum = nl.ndarray((rows, count, columns), dtype=nl.float32, buffer=nl.psum)
            line = (plan.stacks - 1 - stack) * QUADRANT
            nisa.nc_matmul(
                dst=work.sums_psum,
                stationary=work.folds_sbuf[0 : plan.folds * QUADRANT, line : line + rows],
                moving=parts_sbuf,
                is_stationary_onezero=True,
                accumulate=stack > 0,
            )
        if stack == plan.stacks - 1:
            sums = parts_sbuf if plan.folds == 1 else work.sums_psum
            copy_balanced(batch.sums_sbuf[0:rows, first : first + count, 0:columns], sums, work.ledger)
            if first + count == batch.jobs:
                row, scratch_hbm = batch.jobs * columns, work.scratch[batch.index % SKEW_SCRATCH]
                copy(scratch_hbm.ap(pattern=[[row, rows], [1, row]], offset=0), batch.sums_sbuf)


def multiply_units(work, tiles, place, into_psum):
    """T of (group, chunk): all units, one pass for each `plan.positions` of their positions."""
    plan, geometry, x_sbuf, gy_sbuf = work.plan, work.geometry, tiles.x, tiles.gy
    (group, chunk), lines = place, plan.channels * plan.units * plan.images
    reach = (plan.columns - 1) * plan.step + 1
    for tile, one in product(range(plan.tiles), range(plan.passes)):
        p = one * plan.positions
        j = p * geometry.stride + chunk * plan.taps * geometry.dilation
        stationary = gy_sbuf[0:lines, tile, group, 0 : plan.beside, p : p + plan.positions]
        if plan.folds > 1:
            stationary = stationary.reshape_dim(2, (plan.folds, plan.part)).permute((0, 2, 1, 3))
        moving = x_sbuf[0:lines, tile, group, j : j + reach : plan.step]
        nisa.nc_matmul(dst=into_psum, stationary=stationary, moving=moving, accumulate=tile + one > 0)


def put_in_step(work, block, index):
    """[(r, p), jobs, reach] of a batch in SBUF: tap s of row p, T[p, p stride + s dilation], is column s * spread. The
    columns between taps are loaded too: one run of HBM a row, not one a tap."""
    plan, geometry, jobs = work.plan, work.geometry, block.length * work.plan.chunks
    row, rows = jobs * plan.part_columns, plan.rows_of_sums
    in_step_sbuf = nl.ndarray((rows * plan.part, jobs, plan.reach), dtype=nl.float32, buffer=nl.sbuf)
    lines = [[plan.part * row, rows], [row + geometry.stride // plan.step, plan.part]]
    columns = [[plan.part_columns, jobs], [1, plan.reach]]
    copy(in_step_sbuf, work.scratch[index % SKEW_SCRATCH].ap(pattern=lines + columns, offset=0))
    return in_step_sbuf


def store_batch(work, block, in_step_sbuf):
    """Store the sums of T's rows, plus the tensor `added` if there is one."""
    plan = work.plan
    beside, groups, taps = plan.rows_of_sums, block.length, plan.chunks * plan.taps
    rows, jobs, each = beside * plan.part, groups * plan.chunks, BANK_COLUMNS // plan.taps
    dtype = work.dw.dtype if work.added == None else nl.float32
    sums_sbuf = nl.ndarray((beside, jobs, plan.taps), dtype=dtype, buffer=nl.sbuf)
    for first, count in cut_at(jobs, each):
        sums_psum = nl.ndarray((beside, count, plan.taps), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=sums_psum,
            stationary=work.ones_sbuf,
            moving=in_step_sbuf[0:rows, first : first + count, 0 : plan.reach : plan.spread],
            is_stationary_onezero=True,
            accumulate=False,
        )
        copy_balanced(sums_sbuf[0:beside, first : first + count, 0 : plan.taps], sums_psum, work.ledger)
    found_sbuf = sums_sbuf.reshape((beside, groups, taps))[0:beside, 0:groups, 0 : plan.span]
    if work.added != None:
        added_sbuf = nl.ndarray((beside, groups, plan.span), dtype=nl.float32, buffer=nl.sbuf)
        move_gradients(work, added_sbuf, work.added, block, load)
        whole_sbuf = nl.ndarray((beside, groups, plan.span), dtype=work.dw.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=whole_sbuf, data1=found_sbuf, data2=added_sbuf, op=nl.add)
        found_sbuf = whole_sbuf
    move_gradients(work, found_sbuf, work.dw, block, store)


def move_gradients(work, tile_sbuf, hbm, block, move):
    """Store [channels of a matmul, groups, taps], or [parts of taps, groups, taps], to a tensor with dw's strides, or
    load it."""
    plan, geometry = work.plan, work.geometry
    if plan.apart == 0:
        rows = Rows(hbm, (0, geometry.w_c, geometry.w_s), 0, geometry.S)
        move_free(tile_sbuf, rows, block, 0, is_store=move is store)
        return
    full, rest = divmod(geometry.S, plan.span)
    if move == load and (rest > 0 or block.count < plan.stacks * block.length):
        nisa.memset(dst=tile_sbuf, value=0.0)
    for stack in range(plan.stacks):
        before = stack * block.length
        groups = max(0, min(block.length, block.count - before))
        for row, rows, taps in ((0, full, plan.span), (full, 1, rest)):
            if groups * rows * taps > 0:
                pattern = [[plan.span * geometry.w_s, rows], [geometry.w_c, groups], [geometry.w_s, taps]]
                offset = (block.c0 + before) * geometry.w_c + row * plan.span * geometry.w_s
                first = stack * plan.beside + row
                move(tile_sbuf[first : first + rows, 0:groups, 0:taps], hbm, pattern, offset)
