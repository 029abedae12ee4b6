"""The loop: bands of x come in, one matmul serves several rows, shifts and outputs, rows of y go out.

    | stationary | K (partitions)                | M (columns)          | N            | evacuation |
    |------------|-------------------------------|----------------------|--------------|------------|
    | w placed   | D shifts of taps, B rows, C   | U rows of y, K       | z, blocks, q | plain      |
    | depthwise  | A channels, all H rows        | A channels, all P    | z, q         | plain      |

Pseudocode, of one core; `schedules/stacked.py` has the formula:

    load filters of the first M tile, then x of the first output tile
    for (M tile, output tile):                    # all M tiles of an output tile; depthwise: each has x of its own
        load x of the next output tiles
        place filters of the next M tile          # `filters`: transposed on the array; `runs`: DMAs of Toeplitz rows
        for v, bank of (planes, blocks, columns):
            for plane of taps, group g of columns of taps, block t of rows:
                PSUM[(u, k), z, j, q] += F[g, z, t]^T X[:, z, j * e + .., q * stride + ..]
            y = epilogue(PSUM)                    # Vector or Scalar, whichever has had less to do
        store y
"""

import itertools

from ...._nki import nisa, nl
from ....schedules.tiles import slot_for
from ..._engines import new_ledger
from ..._epilogue import evacuate
from ..._warm import accumulator, warm_up, warm_zeros
from ..call import of_array
from ..sums import Product, elements_met, planes_in_order, sums_met, zero_sums
from .filters import TransposedFilters
from .load import Inputs
from .results import Residuals, load_biases, store, transpose_biases
from .runs import RunFilters


def run_stacked(operands, geometry, options, schedule):
    """This core's part of the bands, or of the M tiles of a depthwise problem; x of the next ones is on its way while
    one is worked on."""
    jobs, loads, steps = schedule.share_of(nl.program_id(0), nl.num_programs())
    if len(steps) == 0:
        return
    ledger, diagonal = new_ledger(), schedule.diagonal
    inputs = Inputs(operands, geometry, schedule, loads)
    filters = (
        RunFilters(operands, geometry, schedule, jobs)
        if diagonal
        else TransposedFilters(operands, geometry, schedule, jobs, ledger)
    )
    # filters that wait for zeros must not come after all rows
    late = schedule.filters == "straight" and not schedule.fits_window
    if not late:
        inputs.clear(0, 0)
    zeros_sbuf = warm_zeros()
    filters.start()
    if late:
        inputs.clear(0, 1)
    inputs.load(1)
    residuals = Residuals(operands, geometry, schedule, [(jobs[step.job], step.band) for step in steps])
    residuals.load(1)
    bias_rows = load_biases(operands.bias, jobs)
    filters.load(0)
    inputs.load(len(inputs.tiles))
    blocks = 4 if diagonal else 1
    warm = warm_up(zeros_sbuf, schedule.warmup - schedule.late_warmup, blocks)
    filters.place(0)
    warm = warm + warm_up(zeros_sbuf, schedule.late_warmup, blocks)
    biases = transpose_biases(bias_rows, schedule, jobs)
    for turn, step in enumerate(steps):
        job, band = jobs[step.job], step.band
        inputs.load(step.load + len(inputs.tiles))
        filters.load(step.job + 1)
        filters.place(step.job)
        residuals.load(turn + len(residuals.tiles))
        stationaries, residual_sbuf = filters.of_job(step.job), residuals.take(turn)
        x = (of_array(inputs.take(step.load), operands), zeros_sbuf, warm)
        size, columns = schedule.U * job[1], geometry.columns.out
        # banks leave from parts of the partitions in turn: each part has DMA engines of its own
        slot = slot_for(size)
        slots = nl.tile_size.pmax // slot
        shape = (nl.tile_size.pmax if slots > 1 else size, band.zn, band.jn, schedule.V, columns)
        y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
        parts, columns = schedule.tiles(band, step.last)
        for index, (j, jn) in enumerate(parts):
            base = (turn * len(parts) + index) % slots * slot
            for v, (z, n), (q, qn) in itertools.product(range(schedule.V), schedule.planes_of_tiles(band.zn), columns):
                acc_psum = sums_of((size, n, jn, qn), geometry, schedule, stationaries, x, band, v, (z, j, q))
                y = y_sbuf[base : base + size, z : z + n, j : j + jn, v, q : q + qn]
                residual = None
                if residual_sbuf != None:
                    residual = residual_sbuf[0:size, z : z + n, j : j + jn, v, q : q + qn]
                evacuate(y, acc_psum, biases[step.job], residual, options.epilogue, ledger)
            store(operands.y, y_sbuf, base, geometry, schedule, job, band, (j, jn))


def sums_of(shape, geometry, schedule, filters, x, band, v, first):
    """Sums [outputs, planes, blocks, columns] in PSUM of row v of blocks, from plane, block and column `first` of a
    band on. x: (the band's X, zeros, WarmBanks)."""
    _, zn, jn, qn = shape
    (z, j, q), (x_sbuf, zeros_sbuf, warm) = first, x
    acc_psum, started = accumulator(warm, shape)
    d0, phases, num_taps = schedule.planes_of(band)[0], len(schedule.phases), schedule.num_taps
    planes = planes_in_order(geometry.planes, band.z0 + z, zn)
    if not started and (len(planes) == 0 or planes[0][1][2] < zn):
        zero_sums(acc_psum, zeros_sbuf)
        started = True
    for (plane, valid_range), (place, g) in itertools.product(planes, enumerate(schedule.order)):
        columns = schedule.columns_met(g, q, qn)
        for t in range(num_taps if columns[2] > 0 else 0):
            m = j * schedule.step + v * geometry.rows.stride // schedule.G + t * schedule.B // schedule.G
            stationary = filters[((plane * schedule.groups + place) * phases + v % phases) * num_taps + t]
            product = Product(planes=valid_range, rows=(j, 1, jn, m, schedule.step), columns=columns)
            nisa.nc_matmul(
                dst=sums_met(acc_psum, product, (band.z0 + z, j, q)),
                stationary=stationary,
                moving=elements_met(x_sbuf, (0, stationary.shape[0]), product, (d0, 0, 0)),
                accumulate=started,
            )
            started = True
    return acc_psum
