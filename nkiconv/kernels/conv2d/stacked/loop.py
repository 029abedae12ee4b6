"""The loop of a stack: bands of x come in, one matmul serves several rows, shifts and outputs, rows of y go out."""

from ...._nki import nisa, nl
from ..._engines import new_ledger
from ..._tiles import PARTS, div_ceil, share
from ..._warm import warm_up, warm_zeros
from ..call import finish_shared, scale_residual
from ..geometry import met
from .bias import load_biases, transpose_biases
from .filters import load_padded, shift_rows, transpose_padded
from .load import clear_next, load_stack, make_ring
from .shape import band_rows, columns_of, fits, jobs_ahead, order_of_groups, rows_apart, slot_of, stack_bands, tiles_of
from .store import load_residual, residual_buffers, store_stack

#: Of the matmuls on zeros, the last that are of 128 columns each, and how many times that others are.
SHORT_WARM_UPS = 16
WARM_UP_BLOCKS = 4
#: DMAs that bring the first filters, where they are of many channels.
FIRST_DMAS = 2
#: Pieces that the loads of the first band come in, if it is of so many tiles.
LEAST_PIECES = 6


def run_stack(operands, geometry, extras, stack):
    """This core's part of the bands; x of the next ones is on its way while one is worked on."""
    bands = stack_bands(geometry, stack)
    mine = share(len(bands), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    ledger = new_ledger()
    end = mine[0] + mine[1]
    # of each core's bands, whether there are two or not: sums of other banks round in another order
    ends = (share(len(bands), PARTS, 0)[1], len(bands))
    ahead = jobs_ahead(geometry, stack)
    padded, filters, loaded = [], [], []
    ring = make_ring(operands, stack, bands, mine[0], end)
    # filters that wait for zeros must not come after all rows
    hold = 1 if stack.filters == "straight" and not fits(geometry, stack) else 0
    if hold == 0:
        clear_next(geometry, stack, bands[mine[0]], ring, 0, True, hold)
    zeros_sbuf = warm_zeros()
    load_jobs(operands, geometry, stack, padded, 1)
    if hold > 0:
        clear_next(geometry, stack, bands[mine[0]], ring, 0, True, hold)
    pieces = first_pieces(stack, bands[mine[0]], geometry.columns.out)
    loaded.append(load_stack(operands, geometry, stack, bands[mine[0]], ring, 0, pieces))
    jobs = len(stack.jobs)
    residual_ring = residual_buffers(operands, geometry, stack, bands[mine[0] : end])
    residuals = []
    if len(residual_ring) > 0:
        load_step(operands, geometry, stack, bands, mine[0], residual_ring, residuals)
    bias_rows = load_biases(operands.bias, stack)
    load_jobs(operands, geometry, stack, padded, ahead)
    load_bands(operands, geometry, stack, bands, mine[0], mine[0] + len(ring.buffers), end, ring, loaded)
    # long ones first, as many as leave enough short ones to end in time
    before = stack.warmup - stack.late_warmup
    longer = max(0, before - SHORT_WARM_UPS) // WARM_UP_BLOCKS
    warm_up(zeros_sbuf, longer, WARM_UP_BLOCKS)
    warm_up(zeros_sbuf, before - longer * WARM_UP_BLOCKS, 1)
    transpose_next(operands, geometry, stack, padded, filters, ledger)
    warm_up(zeros_sbuf, stack.late_warmup, 1)
    biases = transpose_biases(bias_rows, stack)
    for index in range(mine[0], end):
        for job in range(jobs):
            # the next job's filters are transposed before this one's sums and read out during them; the second job's
            # come after the first rows, and are read out during the third's transposes
            load_jobs(operands, geometry, stack, padded, job + 1 + ahead)
            if job > 0:
                transpose_next(operands, geometry, stack, padded, filters, ledger)
            if job == 1:
                transpose_next(operands, geometry, stack, padded, filters, ledger)
            if job == 0 and index > mine[0]:
                load_bands(operands, geometry, stack, bands, mine[0], index + len(ring.buffers), end, ring, loaded)
            turn = (index - mine[0]) * jobs + job
            while len(residual_ring) > 0 and len(residuals) < min(turn + len(residual_ring), mine[1] * jobs):
                load_step(operands, geometry, stack, bands, mine[0], residual_ring, residuals)
            work_stack(
                operands,
                geometry,
                extras.epilogue,
                stack,
                stack.jobs[job],
                filters[job],
                biases[job],
                bands[index],
                loaded[index - mine[0]],
                scale_residual(residuals[turn], operands.beta) if len(residual_ring) > 0 else None,
                ledger,
                turn,
                index + 1 in ends and job + 1 == jobs,
            )


def load_step(operands, geometry, stack, bands, first, ring, residuals):
    """Load the next residual, of bands from `first` on and their jobs in turn; all but the first band's are held."""
    step, jobs = len(residuals), len(stack.jobs)
    band, job = bands[first + step // jobs], stack.jobs[step % jobs]
    residuals.append(load_residual(operands, geometry, stack, job, band, ring[step % len(ring)], step >= jobs))


def load_jobs(operands, geometry, stack, padded, count):
    """Load the filters of jobs until there are `count`, or all."""
    while len(padded) < min(count, len(stack.jobs)):
        job = stack.jobs[len(padded)]
        parts = FIRST_DMAS if len(padded) == 0 and job[1] > nl.tile_size.pmax // FIRST_DMAS else 1
        padded.append(load_padded(operands, geometry, stack, job, parts))


def load_bands(operands, geometry, stack, bands, first, until, end, ring, loaded):
    """Load bands, counted from `first` on, until those before `until` are loaded, or all."""
    while first + len(loaded) < min(until, end):
        band = bands[first + len(loaded)]
        turn = len(loaded) % len(ring.buffers)
        # the second band waits for the triggers of the filters, each other one for the band before
        hold = 1
        if len(loaded) == 1:
            hold += stack.hold // (band.nn * band_rows(stack, band.jn))
        clear_next(geometry, stack, band, ring, turn, False, hold)
        pieces = [band_rows(stack, band.jn)]
        loaded.append(load_stack(operands, geometry, stack, band, ring, turn, pieces))


def transpose_next(operands, geometry, stack, padded, filters, ledger):
    """Stationaries of the next job, if there is one; the rows of the one after it are shifted, so that they do
    not wait for read-outs of sums."""
    job = len(filters)
    if job == 0:
        padded[job] = shift_rows(padded[job], geometry, stack, stack.jobs[job][1])
    if job < len(stack.jobs):
        filters.append(transpose_padded(operands, padded[job], geometry, stack, stack.jobs[job], ledger))
        padded[job] = None
    if job + 1 < len(stack.jobs):
        padded[job + 1] = shift_rows(padded[job + 1], geometry, stack, stack.jobs[job + 1][1])


def first_pieces(stack, band, Q):
    """Where the loads of the first band end: each piece is for twice as many tiles of sums as the one before, but none
    for more than a share of all, as the sums of the last begin when all is there."""
    parts = tiles_of(stack, band, Q, False)[0]
    found = []
    index, step = 0, 1
    while index < len(parts):
        index += step
        step = min(2 * step, div_ceil(len(parts), LEAST_PIECES))
        last = parts[min(index, len(parts)) - 1]
        found.append(band_rows(stack, last[0] + last[1]))
    return found


def work_stack(
    operands, geometry, epilogue, stack, job, filters_sbuf, bias_sbuf, band, x_sbuf, residual_sbuf, ledger, turn, last
):
    """Results of one job for one band: banks of sums one after the other, and stores of several of them at a time."""
    kn, Q = job[1], geometry.columns.out
    apart = rows_apart(stack)
    size = apart[0] * kn
    # banks leave from parts of the partitions in turn: each part has DMA engines of its own
    slot = slot_of(size)
    slots = nl.tile_size.pmax // slot
    shape = (nl.tile_size.pmax if slots > 1 else size, band.nn, band.jn, apart[1], Q)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    parts, columns = tiles_of(stack, band, Q, last)
    for index in range(len(parts)):
        j, jn = parts[index]
        base = (turn * len(parts) + index) % slots * slot
        for v in range(stack.V):
            for column in columns:
                q, qn = column
                acc_psum = sum_tile(geometry, stack, filters_sbuf, x_sbuf, band, kn, v, j, jn, q, qn)
                for u in range(stack.U if stack.merged else 1):
                    # all rows of the block, or row u of it
                    k0, k1 = (u * kn, (u + 1) * kn) if stack.merged else (0, stack.U * kn)
                    w = u * stack.V + v
                    residual = None
                    if residual_sbuf != None:
                        residual = residual_sbuf[0:size, 0 : band.nn, j : j + jn, w, q : q + qn]
                    finish_shared(
                        y_sbuf[base : base + size, 0 : band.nn, j : j + jn, w, q : q + qn],
                        acc_psum[k0:k1, 0 : band.nn, 0:jn, 0:qn],
                        None if bias_sbuf == None else bias_sbuf[k0:k1, 0:1],
                        residual,
                        epilogue,
                        ledger,
                        band.nn * jn * qn,
                    )
        store_stack(operands.y, y_sbuf, base, geometry, stack, job, band, j, jn)


def sum_tile(geometry, stack, filters_sbuf, x_sbuf, band, kn, v, j, jn, q, qn):
    """Sums [(u, k), images, jn blocks, qn columns] in PSUM of row v of each block for all u."""
    columns, C = geometry.columns, geometry.C
    outputs = stack.U * kn
    acc_psum = nl.ndarray((outputs, band.nn, jn, qn), dtype=nl.float32, buffer=nl.psum)
    phases = len(stack.phases)
    started = False
    order = order_of_groups(stack)
    for place in range(len(order)):
        g = order[place]
        # columns of sums that the group meets, and the first column of X for them
        low, count, w = 0, qn, q * columns.stride + g * stack.D * columns.dilation
        if stack.whole >= 0:
            found = met(columns, g, q, qn)
            low, count, w = found[0] - q, found[2], found[3]
        parts = columns_of(geometry, stack, g) * stack.B * C
        for t in range(stack.num_taps if count > 0 else 0):
            m = j * stack.step + v * geometry.rows.stride // stack.G + t * stack.B // stack.G
            nisa.nc_matmul(
                dst=acc_psum[0:outputs, 0 : band.nn, 0:jn, low : low + count],
                stationary=filters_sbuf[0:parts, (place * phases + v % phases) * stack.num_taps + t, 0:outputs],
                moving=x_sbuf[
                    0:parts,
                    0 : band.nn,
                    m : m + (jn - 1) * stack.step + 1 : stack.step,
                    w : w + (count - 1) * columns.stride + 1 : columns.stride,
                ],
                accumulate=started,
            )
            started = True
    return acc_psum
