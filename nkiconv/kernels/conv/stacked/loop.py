"""The loop of a stack: bands of x come in, one matmul serves several rows, shifts and outputs, rows of y go out."""

from ...._nki import nisa, nl
from ..._engines import new_ledger
from ..._tiles import PARTS, share, slot_for
from ..._warm import accumulator, warm_up, warm_zeros
from ..call import finish_shared, of_array, scale_residual
from ..cuts import largest_band, part_of_core
from ..filter_feed import tiles_in_turn
from ..geometry import met
from ..ring import load_until
from ..sums import Product, elements_met, planes_in_order, sums_met, zero_sums
from .filters import load_padded, shift_rows, transpose_padded
from .load import clear_rims, load_bands, planes_of_band, ring_of_bands, x_of_band
from .results import load_stack_biases, load_stack_residual, store_stack, transpose_biases
from .shape import columns_of, fits_window, jobs_ahead, order_of_groups, residual_depth, stack_bands, tiles_of_band

#: DMAs that bring the first filters, where they are of many channels.
FIRST_DMAS = 2


def run_stack(operands, geometry, extras, stack):
    """This core's part of the bands; x of the next ones is on its way while one is worked on."""
    every = stack_bands(geometry, stack)
    start, bands = part_of_core(every)
    if len(bands) == 0:
        return
    ledger = new_ledger()
    # of each core's bands, whether there are two or not: sums of other banks round in another order
    ends = (share(len(every), PARTS, 0)[1], len(every))
    ahead = jobs_ahead(geometry, stack)
    padded, filters, residuals = [], [], []
    ring = ring_of_bands(operands, geometry, stack, bands)
    # filters that wait for zeros must not come after all rows
    hold = 1 if stack.filters == "straight" and not fits_window(geometry, stack) else 0
    if hold == 0:
        clear_rims(ring, geometry, stack, bands, 0, hold)
    zeros_sbuf = warm_zeros()
    load_jobs(operands, geometry, stack, padded, 1)
    if hold > 0:
        clear_rims(ring, geometry, stack, bands, 0, hold)
    load_until(ring, operands, 1)
    jobs = len(stack.jobs)
    residual_ring = residual_tiles(operands, geometry, stack, bands)
    load_residuals(operands, geometry, stack, bands, residual_ring, residuals, 1)
    bias_rows = load_stack_biases(operands.bias, stack)
    load_jobs(operands, geometry, stack, padded, ahead)
    load_bands(operands, geometry, stack, bands, ring, len(ring.tiles))
    warm = warm_up(zeros_sbuf, stack.warmup - stack.late_warmup, 1)
    transpose_next(operands, geometry, stack, padded, filters, ledger)
    warm = warm + warm_up(zeros_sbuf, stack.late_warmup, 1)
    biases = transpose_biases(bias_rows, stack)
    for turn in range(len(bands) * jobs):
        index, job = turn // jobs, turn % jobs
        # the next job's filters are transposed before this one's sums and read out during them; the second job's come
        # after the first rows, and are read out during the third's transposes
        load_jobs(operands, geometry, stack, padded, job + 1 + ahead)
        for _ in range(2 if job == 1 else min(1, job)):
            transpose_next(operands, geometry, stack, padded, filters, ledger)
        if job == 0 and index > 0:
            load_bands(operands, geometry, stack, bands, ring, index + len(ring.tiles))
        load_residuals(operands, geometry, stack, bands, residual_ring, residuals, turn + len(residual_ring))
        own = (stack.jobs[job], filters[job], biases[job])
        residual = scale_residual(residuals[turn], operands.beta) if len(residual_ring) > 0 else None
        last = start + index + 1 in ends and job + 1 == jobs
        x_sbuf = of_array(x_of_band(ring, geometry, stack, bands, index), operands)
        x = (x_sbuf, zeros_sbuf, warm)
        work_stack(operands, geometry, extras.epilogue, stack, own, bands[index], x, residual, ledger, turn, last)


def residual_tiles(operands, geometry, stack, bands):
    """Tiles that residuals of a band and job take in turn; [] without a residual."""
    if operands.residual == None:
        return []
    images, blocks = largest_band(bands)
    shape = (stack.U * stack.kn, images, blocks, stack.V, geometry.columns.out)
    return tiles_in_turn(residual_depth(geometry, stack), shape, operands.residual.dtype)


def load_residuals(operands, geometry, stack, bands, ring, residuals, count):
    """Load residuals, of bands and their jobs in turn, until there are `count`, or all; none without a residual."""
    jobs = len(stack.jobs)
    while len(residuals) < min(count, len(bands) * jobs) and len(ring) > 0:
        step = len(residuals)
        band, job = bands[step // jobs], stack.jobs[step % jobs]
        residuals.append(load_stack_residual(operands, geometry, stack, job, band, ring[step % len(ring)]))


def load_jobs(operands, geometry, stack, padded, count):
    """Load the filters of jobs until there are `count`, or all."""
    while len(padded) < min(count, len(stack.jobs)):
        job = stack.jobs[len(padded)]
        parts = FIRST_DMAS if len(padded) == 0 and job[1] > nl.tile_size.pmax // FIRST_DMAS else 1
        padded.append(load_padded(operands, geometry, stack, job, parts))


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


def work_stack(operands, geometry, epilogue, stack, own, band, x, residual_sbuf, ledger, turn, last):
    """Results of one job for one band: banks of sums one after the other, and stores of several of them at a time.

    own: (channels of the job, its filters, its biases); x: (the band's X, zeros, WarmBanks).
    """
    job, filters_sbuf, bias_sbuf = own
    zn, Q, size = band.zn, geometry.columns.out, stack.U * job[1]
    # banks leave from parts of the partitions in turn: each part has DMA engines of its own
    slot = slot_for(size)
    slots = nl.tile_size.pmax // slot
    shape = (nl.tile_size.pmax if slots > 1 else size, zn, band.jn, stack.V, Q)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    parts, columns = tiles_of_band(band, Q, last)
    for index in range(len(parts)):
        j, jn = parts[index]
        base = (turn * len(parts) + index) % slots * slot
        for v in range(stack.V):
            for column in columns:
                q, qn = column
                acc_psum = sum_tile((size, zn, jn, qn), geometry, stack, filters_sbuf, x, band, v, j, q)
                y = y_sbuf[base : base + size, 0:zn, j : j + jn, v, q : q + qn]
                residual = None if residual_sbuf == None else residual_sbuf[0:size, 0:zn, j : j + jn, v, q : q + qn]
                finish_shared(y, acc_psum, bias_sbuf, residual, epilogue, ledger, zn * jn * qn)
        store_stack(operands.y, y_sbuf, base, geometry, stack, job, band, j, jn)


def sum_tile(shape, geometry, stack, filters_sbuf, x, band, v, j, q):
    """Sums [(u, k), planes, blocks, columns] in PSUM of row v of blocks from j on for all u, columns from q on. x: (the
    band's X, zeros, WarmBanks)."""
    outputs, zn, jn, qn = shape
    x_sbuf, zeros_sbuf, warm = x
    acc_psum, started = accumulator(warm, shape)
    d0, phases = planes_of_band(geometry, band)[0], len(stack.phases)
    planes = planes_in_order(geometry.planes, band.z0, zn)
    if not started and (len(planes) == 0 or planes[0][1][2] < zn):
        zero_sums(acc_psum, zeros_sbuf)
        started = True
    order = order_of_groups(stack)
    for plane in planes:
        for place in range(len(order)):
            g = order[place]
            parts = columns_of(geometry, stack, g) * stack.B * geometry.C
            found = columns_met(geometry, stack, g, q, qn)
            for t in range(stack.num_taps if found[2] > 0 else 0):
                m = j * stack.step + v * geometry.rows.stride // stack.G + t * stack.B // stack.G
                row = ((plane[0] * stack.groups + place) * phases + v % phases) * stack.num_taps + t
                product = Product(row=row, planes=plane[1], rows=(j, 1, jn, m, stack.step), columns=found)
                nisa.nc_matmul(
                    dst=sums_met(acc_psum, product, (band.z0, j, q)),
                    stationary=filters_sbuf[0:parts, row, 0:outputs],
                    moving=elements_met(x_sbuf, (0, parts), product, (d0, 0, 0)),
                    accumulate=started,
                )
                started = True
    return acc_psum


def columns_met(geometry, stack, g, q, qn):
    """What a group of columns of taps meets, as `geometry.met`; zeros in X count as met."""
    columns = geometry.columns
    if stack.whole >= 0:
        return met(columns, g, q, qn)
    return q, 1, qn, q * columns.stride + g * stack.D * columns.dilation, columns.stride
