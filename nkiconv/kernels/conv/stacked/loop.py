"""The loop of a stack: bands of x come in, one matmul serves several rows, shifts and outputs, rows of y go out."""

from ...._nki import nisa, nl
from ....schedules.cuts import combined, largest_band
from ....schedules.geometry import met
from ....schedules.tiles import PARTS, share, slot_for
from ..._engines import new_ledger
from ..._warm import accumulator, warm_up, warm_zeros
from ..call import finish_shared, of_array, part_of_core, scale_residual
from ..filter_feed import tiles_in_turn
from ..ring import load_until
from ..sums import Product, elements_met, planes_in_order, sums_met, zero_sums
from .diagonal import WARM_UP_BLOCKS
from .filters import TransposedFilters
from .load import clear_rims, load_bands, planes_of_band, ring_of_bands, x_of_load
from .results import load_stack_biases, load_stack_residual, store_stack, transpose_biases
from .runs import RunFilters
from .shape import fits_window, order_of_groups, planes_of_tiles, residual_depth, stack_bands, tiles_of_band


def run_stack(operands, geometry, extras, stack):
    """This core's part of the bands, or of the jobs of a depthwise stack; x of the next ones is on its way while one is
    worked on."""
    steps, loads, jobs, ends = steps_of_core(geometry, stack)
    if len(steps) == 0:
        return
    ledger = new_ledger()
    ring = ring_of_bands(operands, geometry, stack, loads)
    filters = filters_of_core(operands, geometry, stack, jobs, ledger)
    # filters that wait for zeros must not come after all rows
    hold = 1 if stack.filters == "straight" and not fits_window(geometry, stack) else 0
    if hold == 0:
        clear_rims(ring, geometry, stack, loads, 0, hold)
    zeros_sbuf = warm_zeros()
    filters.start()
    if hold > 0:
        clear_rims(ring, geometry, stack, loads, 0, hold)
    load_until(ring, operands, 1)
    results, residuals = [(jobs[job], band) for job, band, _ in steps], []
    residual_ring = residual_tiles(operands, geometry, stack, results)
    load_residuals(operands, geometry, stack, results, residual_ring, residuals, 1)
    bias_rows = load_stack_biases(operands.bias, jobs)
    filters.load(0)
    load_bands(operands, geometry, stack, loads, ring, len(ring.tiles))
    blocks = WARM_UP_BLOCKS if stack.is_diagonal() else 1
    warm = warm_up(zeros_sbuf, stack.warmup - stack.late_warmup, blocks)
    filters.place(0)
    warm = warm + warm_up(zeros_sbuf, stack.late_warmup, blocks)
    biases = transpose_biases(bias_rows, stack, jobs)
    for turn in range(len(steps)):
        job, band, load = steps[turn]
        load_bands(operands, geometry, stack, loads, ring, load + len(ring.tiles))
        filters.load(job + 1)
        filters.place(job)
        load_residuals(operands, geometry, stack, results, residual_ring, residuals, turn + len(residual_ring))
        own = (jobs[job], filters.of_job(job), biases[job])
        residual = scale_residual(residuals[turn], operands.beta) if len(residual_ring) > 0 else None
        x_sbuf = of_array(x_of_load(ring, geometry, stack, loads, load), operands)
        x = (x_sbuf, zeros_sbuf, warm)
        work_stack(operands, geometry, extras.epilogue, stack, own, band, x, residual, ledger, turn, turn in ends)


def steps_of_core(geometry, stack):
    """([(job, band, load of x)], [(channels, band) of each load], jobs, steps that nothing follows) of this core: all
    jobs of a band, or all bands of a job that has x of its own."""
    every = stack_bands(geometry, stack)
    if stack.is_diagonal():
        _, jobs = part_of_core(stack.jobs)
        steps, loads = [], []
        for job in range(len(jobs)):
            for band in every:
                steps.append((job, band, len(loads)))
                loads.append((jobs[job], band))
        return steps, loads, jobs, []
    start, bands = part_of_core(every)
    steps, ends = [], []
    for index in range(len(bands)):
        for job in range(len(stack.jobs)):
            steps.append((job, bands[index], index))
        # of each core's bands, whether there are two or not: sums of other banks round in another order
        if start + index + 1 in (share(len(every), PARTS, 0)[1], len(every)):
            ends.append(len(steps) - 1)
    return steps, [((0, geometry.C), band) for band in bands], stack.jobs, ends


def filters_of_core(operands, geometry, stack, jobs, ledger):
    """Who brings the filters of jobs to their places."""
    if stack.is_diagonal():
        return RunFilters(operands=operands, geometry=geometry, stack=stack, jobs=jobs, buffers=[])
    return TransposedFilters(operands, geometry, stack, jobs, ledger, [], [])


def residual_tiles(operands, geometry, stack, results):
    """Tiles that residuals of (channels, band) each take in turn; [] without a residual."""
    if operands.residual == None:
        return []
    images, blocks = largest_band([band for _, band in results])
    shape = (stack.U * stack.kn, images, blocks, stack.V, geometry.columns.out)
    return tiles_in_turn(residual_depth(geometry, stack), shape, operands.residual.dtype)


def load_residuals(operands, geometry, stack, results, ring, residuals, count):
    """Load residuals of (channels, band) each until there are `count`, or all; none without a residual."""
    while len(residuals) < min(count, len(results)) and len(ring) > 0:
        job, band = results[len(residuals)]
        buffer_sbuf = ring[len(residuals) % len(ring)]
        residuals.append(load_stack_residual(operands, geometry, stack, job, band, buffer_sbuf))


def work_stack(operands, geometry, epilogue, stack, own, band, x, residual_sbuf, ledger, turn, last):
    """Results of one job for one band: banks of sums one after the other, and stores of several of them at a time.

    own: (channels of the job, its filters, its biases); x: (the band's X, zeros, WarmBanks).
    """
    job, filters, bias_sbuf = own
    zn, Q, size = band.zn, geometry.columns.out, stack.U * job[1]
    # banks leave from parts of the partitions in turn: each part has DMA engines of its own
    slot = slot_for(size)
    slots = nl.tile_size.pmax // slot
    shape = (nl.tile_size.pmax if slots > 1 else size, zn, band.jn, stack.V, Q)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    parts, columns = tiles_of_band(band, Q, last)
    planes = planes_of_tiles(zn, Q)
    for index in range(len(parts)):
        j, jn = parts[index]
        base = (turn * len(parts) + index) % slots * slot
        for v, plane, column in combined(range(stack.V), planes, columns):
            (z, n), (q, qn) = plane, column
            acc_psum = sum_tile((size, n, jn, qn), geometry, stack, filters, x, band, v, (z, j, q))
            y = y_sbuf[base : base + size, z : z + n, j : j + jn, v, q : q + qn]
            residual = None if residual_sbuf == None else residual_sbuf[0:size, z : z + n, j : j + jn, v, q : q + qn]
            finish_shared(y, acc_psum, bias_sbuf, residual, epilogue, ledger, n * jn * qn)
        store_stack(operands.y, y_sbuf, base, geometry, stack, job, band, j, jn)


def sum_tile(shape, geometry, stack, filters, x, band, v, first):
    """Sums [outputs, planes, blocks, columns] in PSUM of row v of blocks, from plane, block and column `first` of a
    band on. x: (the band's X, zeros, WarmBanks)."""
    _, zn, jn, qn = shape
    (z, j, q), (x_sbuf, zeros_sbuf, warm) = first, x
    acc_psum, started = accumulator(warm, shape)
    d0, phases = planes_of_band(geometry, band)[0], len(stack.phases)
    planes = planes_in_order(geometry.planes, band.z0 + z, zn)
    if not started and (len(planes) == 0 or planes[0][1][2] < zn):
        zero_sums(acc_psum, zeros_sbuf)
        started = True
    order = order_of_groups(stack)
    for plane in planes:
        for place in range(len(order)):
            found = columns_met(geometry, stack, order[place], q, qn)
            for t in range(stack.num_taps if found[2] > 0 else 0):
                m = j * stack.step + v * geometry.rows.stride // stack.G + t * stack.B // stack.G
                stationary = filters[((plane[0] * stack.groups + place) * phases + v % phases) * stack.num_taps + t]
                product = Product(planes=plane[1], rows=(j, 1, jn, m, stack.step), columns=found)
                nisa.nc_matmul(
                    dst=sums_met(acc_psum, product, (band.z0 + z, j, q)),
                    stationary=stationary,
                    moving=elements_met(x_sbuf, (0, stationary.shape[0]), product, (d0, 0, 0)),
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
