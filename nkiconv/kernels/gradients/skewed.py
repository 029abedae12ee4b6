"""`skewed`, the filter gradient of a depthwise row by blocks of gy times windows of x, whose skew diagonals it is; for
filters that are short against rows.

    dw[c, s] = sum over units (n, b) and positions p of  gy[n, c, q] * x[n, c, q stride + s dilation - left]

with q = b U + p. Units of U neighbouring positions of all images are on the partitions, with the window of x of their
taps. A matmul has positions as columns of its stationary operand [units, p] and windows as its moving one:

    T[p, j] = sum over units of  gy[unit, p] * x[unit, j]      dw is on j = p stride + s dilation, the skew diagonals

Several channels share a matmul, with zeros in each other's places of the stationary operand; or parts of the taps of a
long filter, whose stationaries are later units of gy (setting `shifts`). A unit takes several passes if it has many
positions; their windows begin later by a pass's positions, so that the sums of all passes share T.

If 32 rows of T have all channels (or parts of taps) at equally many positions, evacuations align quadrants of rows, and
a matmul with ones adds them; four groups share a bank. The rows that are left are added by a matmul each, whose
stationary operand has ones at one position and whose moving one is T from that position's first tap on: all images in
one sum, rounded once.

Engine plan: DMA loads runs of a unit; Tensor multiplies, and adds rows of fp32 a batch later; Vector and Scalar share
evacuations by a ledger. Bound by DMA, whose runs are short, or by Tensor, whose matmuls take at least the time of 128
columns. Zeros are multiplied: a NaN or Inf reaches the channels that share its matmul.
"""

from dataclasses import dataclass
from functools import partial
from itertools import product

from ..._nki import nisa, nl
from ...schedules.depthwise import RowGeometry
from ...schedules.skewed import WARM_UP, SkewedSchedule, unit_runs, x_windows
from ...schedules.tiles import BANK_COLUMNS, QUADRANT, cut_at
from .._dma import Feed
from .._engines import Ledger, copy_balanced, new_ledger
from .._masks import constant, keep_equal
from .._warm import warm_up, warm_zeros
from ..conv.call import part_of_core
from ..conv.sums import along, multiply
from ..depthwise_conv1d.tensors import Rows, move_free

#: Banks of products in flight before the parts of the oldest are added: of 0 to 4 the fastest for s128_train in NCHW
#: (with one 1.18 times as long, with three 1.11; `nkiconv plan s128_train --direction wgrad`).
LATE_BANKS = 2


@dataclass
class SkewedWork(nl.NKIObject):
    """The state of one core's work. x, gy, dw: Rows; added: the Rows that dw is added to, or None. banks: banks with
    parts to add, (a batch's T [(r, p), jobs, columns] in SBUF, first job, stack, products [(part, r, p), jobs,
    columns]); sums_psum: sums of the parts of a bank's stacks so far, or None."""

    x: Rows
    gy: Rows
    dw: Rows
    added: Rows
    geometry: RowGeometry
    plan: SkewedSchedule
    ledger: Ledger
    banks: list
    ones_sbuf: object = None
    folds_sbuf: object = None
    sums_psum: object = None


def skewed(tensors, geometry, plan):
    """Write dw. tensors: Rows of x, gy, dw and the tensor that it is added to, or None. plan: the SkewedSchedule."""
    work = SkewedWork(*tensors, geometry, plan, ledger=new_ledger(), banks=[])
    warm_up(warm_zeros(), WARM_UP, 1)
    batches, sums = part_of_core(plan.batches), []
    tiles = [unit_tiles(work, number) for number in range(min(plan.buffers, len(batches)))]
    feed = Feed(batches, tiles, partial(load_batch, work))
    for index in range(len(batches) + 1):
        feed.until(index + plan.buffers)
        if index == 0:
            start_sums_of_rows(work)
        if index < len(batches):
            sums.append(multiply_batch(work, batches[index], *feed.of(index)))
        if index > 0:
            store_batch(work, batches[index - 1], sums[index - 1])


def start_sums_of_rows(work):
    """Allocate ones that add rows of T, [(quarter, r, p), p', r'] at r' = r and p' = p; and if positions have several
    parts, ones that add them, [(part, r, p), quarter, place, (r', p')] at the same row of the middle place: a slice of
    places that begins a stack earlier adds parts to a stack later."""
    plan, rows, quarters, each = work.plan, work.plan.rows_of_sums, work.plan.quarters, work.plan.quarter
    size = rows * each
    one_sbuf = constant((nl.tile_size.pmax, quarters * size), nl.float32, 1.0)
    if plan.folds > 1:
        shape = plan.folds * QUADRANT, quarters, 2 * plan.stacks - 1, plan.beside * each
        work.folds_sbuf = constant(shape, nl.float32, 0.0)
        for part in range(plan.folds):
            own, pattern = slice(part * QUADRANT, (part + 1) * QUADRANT), [[-each, quarters], [-plan.part, plan.beside]]
            into_sbuf = work.folds_sbuf[own, :, plan.stacks - 1]
            keep_equal(into_sbuf, [*pattern, [-1, each]], one_sbuf[own, 0:QUADRANT])
    work.ones_sbuf = nl.ndarray((quarters * size, each, rows), dtype=nl.float32, buffer=nl.sbuf)
    for quarter in range(quarters):
        own = slice(quarter * size, (quarter + 1) * size)
        keep_equal(work.ones_sbuf[own], [[-1, each], [-each, rows]], one_sbuf[own, 0:size])


def multiply_batch(work, block, x_sbuf, gy_sbuf):
    """Products of all groups and chunks of a batch: appends their banks to `work.banks`, and returns the batch's T."""
    plan, rows = work.plan, work.plan.beside * work.plan.positions
    jobs, each = block.length * plan.chunks, BANK_COLUMNS // plan.columns
    shape = plan.rows_of_sums * plan.part, jobs, plan.quarter_columns
    sums_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    for first, count in cut_at(jobs, each):
        for stack in range(plan.stacks):
            products_psum = nl.ndarray((rows, count, plan.columns), dtype=nl.float32, buffer=nl.psum)
            for job in range(count):
                group, chunk = divmod(first + job, plan.chunks)
                place = stack * block.length + group, chunk
                multiply_units(work, x_sbuf, gy_sbuf, place, products_psum[:, job])
            parts_sbuf = align_parts(work, products_psum) if plan.folds > 1 else products_psum
            work.banks.append((sums_sbuf, first, stack, parts_sbuf))
            while len(work.banks) > (LATE_BANKS if plan.folds > 1 else 0):
                finish_bank(work)
    return sums_sbuf


def multiply_units(work, x_sbuf, gy_sbuf, place, into_psum):
    """T of (group, chunk): all units, one pass for each `plan.positions` of their positions."""
    plan, geometry, (group, chunk) = work.plan, work.geometry, place
    lines = slice(0, plan.channels * plan.units * plan.images)
    for tile, one in product(range(plan.tiles), range(plan.passes)):
        p = one * plan.positions
        j = p * geometry.stride + chunk * plan.taps * geometry.dilation
        stationary = gy_sbuf[lines, tile, group, :, p : p + plan.positions]
        if plan.folds > 1:
            stationary = stationary.reshape_dim(2, (plan.folds, plan.part)).permute((0, 2, 1, 3))
        moving = x_sbuf[lines, tile, group, along(j, plan.columns, plan.step)]
        multiply(into_psum, stationary, moving, tile + one > 0)


def align_parts(work, products_psum):
    """Products [(part, r, p), jobs, columns] in SBUF, each part from the first column of its positions on."""
    plan, (lines, count, _) = work.plan, products_psum.shape
    parts_sbuf = nl.ndarray((lines, count, plan.part_columns), dtype=nl.float32, buffer=nl.sbuf)
    for part in range(plan.folds):
        j = part * plan.part * work.geometry.stride // plan.step
        rows = slice(part * QUADRANT, (part + 1) * QUADRANT)
        copy_balanced(parts_sbuf[rows], products_psum[rows, :, j : j + plan.part_columns], work.ledger)
    return parts_sbuf


def finish_bank(work):
    """Add the parts of the oldest bank; the last of its stacks writes its batch's T, each quarter of the positions from
    the first column of its own on."""
    plan, rows, (sums_sbuf, first, stack, sums) = work.plan, work.ones_sbuf.shape[0], work.banks.pop(0)
    count, columns = sums.shape[1], sums_sbuf.shape[2]
    if plan.folds > 1:
        if stack == 0:
            work.sums_psum = nl.ndarray((rows, count, plan.part_columns), dtype=nl.float32, buffer=nl.psum)
        folds = work.folds_sbuf[:, :, plan.stacks - 1 - stack : 2 * plan.stacks - 1 - stack]
        multiply(work.sums_psum, folds, sums, stack > 0, is_stationary_onezero=True)
        sums = work.sums_psum
    for quarter in range(plan.quarters if stack == plan.stacks - 1 else 0):
        own = slice(quarter * rows // plan.quarters, (quarter + 1) * rows // plan.quarters)
        j = quarter * plan.quarter * work.geometry.stride // plan.step
        copy_balanced(sums_sbuf[own, first : first + count], sums[own, :, j : j + columns], work.ledger)


def store_batch(work, block, rows_sbuf):
    """Add the rows of a batch's T and store the sums, plus the tensor `added` if there is one."""
    plan, geometry = work.plan, work.geometry
    while work.banks and work.banks[0][0] is rows_sbuf:
        finish_bank(work)
    beside, groups, taps = plan.rows_of_sums, block.length, plan.chunks * plan.taps
    jobs, each = groups * plan.chunks, BANK_COLUMNS // plan.taps
    dtype = work.dw.dtype if work.added == None else nl.float32
    sums_sbuf = nl.ndarray((beside, jobs, plan.taps), dtype=dtype, buffer=nl.sbuf)
    for first, count in cut_at(jobs, each):
        sums_psum = nl.ndarray((beside, count, plan.taps), dtype=nl.float32, buffer=nl.psum)
        for p in range(plan.quarter):
            columns = along(p * geometry.stride // plan.step, plan.taps, plan.spread)
            moving = rows_sbuf[:, first : first + count, columns]
            multiply(sums_psum, work.ones_sbuf[:, p], moving, p > 0, is_stationary_onezero=True)
        copy_balanced(sums_sbuf[:, first : first + count], sums_psum, work.ledger)
    found_sbuf = sums_sbuf.reshape((beside, groups, taps))[:, :, 0 : plan.span]
    if work.added != None:
        added_sbuf = nl.ndarray((beside, groups, plan.span), dtype=nl.float32, buffer=nl.sbuf)
        move_gradients(work, added_sbuf, work.added, block, False)
        whole_sbuf = nl.ndarray((beside, groups, plan.span), dtype=work.dw.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=whole_sbuf, data1=found_sbuf, data2=added_sbuf, op=nl.add)
        found_sbuf = whole_sbuf
    move_gradients(work, found_sbuf, work.dw, block, True)


def move_gradients(work, tile_sbuf, rows, block, is_store):
    """Store [channels of a matmul, groups, taps], or [parts of taps, groups, taps], to Rows of taps, or load it."""
    plan = work.plan
    if plan.apart == 0:
        move_free(tile_sbuf, rows, block, 0, is_store=is_store)
        return
    (full, rest), (_, w_c, w_s) = divmod(rows.high, plan.span), rows.steps
    if not is_store and (rest > 0 or block.count < plan.stacks * block.length):
        nisa.memset(dst=tile_sbuf, value=0.0)
    for stack in range(plan.stacks):
        before = stack * block.length
        groups = max(0, min(block.length, block.count - before))
        for part, parts, taps in ((0, full, plan.span), (full, 1, rest)):
            if groups * parts * taps > 0:
                pattern, first = [[plan.span * w_s, parts], [w_c, groups], [w_s, taps]], stack * plan.beside + part
                into = tile_sbuf[first : first + parts, 0:groups, 0:taps]
                rows.move(into, pattern, 0, block.c0 + before, part * plan.span, is_store)


def unit_tiles(work, number):
    """x [units, tiles of images, groups, window] and gy [units, tiles, groups, beside, positions] in SBUF, with
    zeros in elements that are never loaded. number: of earlier tiles; engines rotate by it."""
    plan, lead = work.plan, (nl.tile_size.pmax, work.plan.tiles, work.plan.groups)
    x_sbuf = nl.ndarray((*lead, plan.window), dtype=work.x.dtype, buffer=nl.sbuf)
    gy_sbuf = nl.ndarray((*lead, plan.beside, plan.padded), dtype=work.gy.dtype, buffer=nl.sbuf)
    engines = (nisa.engine.vector, nisa.engine.gpsimd)
    clear_gy(gy_sbuf, engines[number % 2])
    runs = unit_runs(plan.units, *x_windows(plan, work.geometry), work.x.high)
    low, high = max(run.low for run in runs), min(run.high for run in runs)
    # the last tile may have partitions for more images than there are
    whole = plan.tiles if plan.tiles * plan.images == work.geometry.N else plan.tiles - 1
    for numbers, columns in (
        ((0, whole), (0, low)),
        ((0, whole), (max(low, high), plan.window)),
        ((whole, plan.tiles), (0, plan.window)),
    ):
        clear_x(x_sbuf, numbers, columns, engines[(number + 1) % 2])
    return x_sbuf, gy_sbuf


def clear_gy(gy_sbuf, engine):
    """Zeros in all of gy, two of 16 bits at once."""
    dst = gy_sbuf if gy_sbuf.dtype == nl.float32 else gy_sbuf.view(nl.float32)
    nisa.memset(dst=dst, value=0.0, engine=engine)


def clear_x(x_sbuf, numbers, columns, engine):
    """Zeros in columns (first, end) of the windows of x, of tiles of images (first, end)."""
    (tile, last), (first, end) = numbers, columns
    if tile < last and first < end:
        nisa.memset(dst=x_sbuf[:, tile:last, :, first:end], value=0.0, engine=engine)


def load_batch(work, feed, index):
    """Load the units of a batch's channels."""
    plan, block, (x_sbuf, gy_sbuf) = work.plan, feed.tiles[index], feed.of(index)
    each, length, x_places = plan.channels, block.length, x_windows(plan, work.geometry)
    is_full = block.count == each * plan.stacks * length
    if not is_full:
        # earlier channels' elements in places that these do not fill
        clear_gy(gy_sbuf, nisa.engine.vector)
        clear_x(x_sbuf, (0, plan.tiles), (0, plan.window), nisa.engine.gpsimd)
    for row in range(plan.beside):
        # parts of taps have the same channels, on the same partitions, and the same windows of x
        line, gy_places = row if plan.apart == 0 else 0, (plan.unit, (plan.first - row * plan.apart) * plan.unit)
        for stack in range(1 if is_full else plan.stacks):
            before = (stack * each + line) * length
            count = max(0, min(length, block.count - before))
            channels = (block.c0 + before, plan.stacks if is_full else 1, each * length, count)
            for tile in range(plan.tiles if count > 0 else 0):
                groups, place = slice(stack * length, stack * length + channels[1] * count), (channels, line, tile)
                load_units(work, gy_sbuf[:, tile, groups, row], work.gy, place, (*gy_places, plan.unit))
                if row == line:
                    load_units(work, x_sbuf[:, tile, groups], work.x, place, x_places)


def load_units(work, tile_sbuf, rows, place, windows):
    """Load a tile [units, channels, elements] of Rows. place: ((first channel, number of runs of neighbours, channels
    between runs, neighbours of a run), row of the channels that share a matmul, tile of images); windows: (elements
    between units, first element of the first unit, elements of a unit)."""
    plan, (channels, line, tile), (apart, start, window) = work.plan, place, windows
    n0, (by_image, by_channel, step) = tile * plan.images, rows.steps
    images = min(plan.images, work.geometry.N - n0)
    for run in unit_runs(plan.units, apart, start, window, rows.high):
        size = run.high - run.low
        # with fewer images than the tile's, units are not contiguous
        together = run.count if images == plan.images else 1
        for unit in range(run.first, run.first + run.count if size > 0 else run.first, together):
            part = (line * plan.units + unit) * plan.images
            pattern = [[apart * step, together], [by_image, images]]
            pattern = pattern + [[channels[2] * by_channel, channels[1]], [by_channel, channels[3]], [step, size]]
            into = tile_sbuf[part : part + together * images, :, run.low : run.high]
            rows.load(into, pattern, n0, channels[0], unit * apart + start + run.low)
