"""The loop of a stack: bands of x come in, one matmul serves several rows, shifts and outputs, rows of y go out."""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import Ledger
from ..._epilogue import finish
from ..._prices import HALF_RATE, ROWS_AN_ENGINE, TENSOR_COLUMN_NS, run_ns
from ..._tiles import BANK_COLUMNS, div_ceil, share
from ..._warm import warm_up, warm_zeros
from ..call import load_bias, of_array, reader, scale_residual
from .filters import load_padded, turn_padded
from .plan import stack_bands

#: Buffers of x.
RING = 2
#: ns from the first trigger to the first rows beside their own transfer, and most matmuls on zeros until then.
WARM_UP_NS = 1200.0
WARM_UP_MAX = 64


def run_stack(operands, geometry, extras, stack):
    """This core's part of the bands; x of the next one is loaded before one is worked on."""
    bands = stack_bands(geometry, stack)
    mine = share(len(bands), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    ledger = Ledger(vector_ns=0.0, scalar_ns=0.0)
    end = mine[0] + mine[1]
    padded, filters, biases = [], [], []
    padded.append(load_padded(operands, geometry, stack, stack.jobs[0]))
    ring = x_ring(operands, stack, bands, mine[0], end)
    now = load_stack(operands, geometry, stack, bands[mine[0]], ring[0])
    warmup = stack.warmup if stack.warmup >= 0 else warm_count(geometry, stack, bands[mine[0]])
    warm_up(warm_zeros(), warmup, 1)
    load_next(operands, geometry, stack, padded)
    turn_next(operands, geometry, stack, padded, filters, biases, ledger)
    for index in range(mine[0], end):
        after = None
        for job in range(len(stack.jobs)):
            # the next job's filters are turned before this one's sums, and read out during them
            load_next(operands, geometry, stack, padded)
            turn_next(operands, geometry, stack, padded, filters, biases, ledger)
            if job == 0 and index + 1 < end:
                buffer_sbuf = ring[(index + 1 - mine[0]) % len(ring)]
                after = load_stack(operands, geometry, stack, bands[index + 1], buffer_sbuf)
            work_stack(
                operands,
                geometry,
                extras.epilogue,
                stack,
                stack.jobs[job],
                filters[job],
                biases[job],
                bands[index],
                now,
                ledger,
                index + 1 == end,
            )
        now = after


def load_next(operands, geometry, stack, padded):
    """Load the filters of the next job, if there is one."""
    if len(padded) < len(stack.jobs):
        padded.append(load_padded(operands, geometry, stack, stack.jobs[len(padded)]))


def turn_next(operands, geometry, stack, padded, filters, biases, ledger):
    """Stationaries and bias of the next job, if there is one."""
    job = len(filters)
    if job < len(stack.jobs):
        biases.append(load_bias(operands.bias, stack.jobs[job][0], stack.jobs[job][1], stack.U))
        filters.append(turn_padded(operands, padded[job], geometry, stack, stack.jobs[job], ledger))
        padded[job] = None


def warm_count(geometry, stack, band):
    """Matmuls of 128 columns on zeros that keep the array busy until the first rows are there, about."""
    rows = band.nn * ((band.jn - 1) * stack.step + stack.num_taps)
    loads_ns = ROWS_AN_ENGINE * rows * run_ns(min(stack.width, geometry.columns.size) * geometry.itemsize)
    return min(WARM_UP_MAX, int((WARM_UP_NS + loads_ns) / (nl.tile_size.pmax * TENSOR_COLUMN_NS / HALF_RATE)))


def x_ring(operands, stack, bands, first, end):
    """Buffers that bands take in turn: they cap how far loads run ahead of the sums."""
    images, blocks = 1, 1
    for index in range(first, end):
        images = max(images, bands[index].nn)
        blocks = max(blocks, bands[index].jn)
    shape = (stack.parts, images, (blocks - 1) * stack.step + stack.num_taps, stack.width)
    ring = []
    for _ in range(min(RING, end - first)):
        ring.append(nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf))
    return ring


def load_stack(operands, geometry, stack, band, ring_sbuf):
    """X [(d, b, c), images, blocks of B rows, columns] of a band in a buffer; zeros where there is no x."""
    rows, columns = geometry.rows, geometry.columns
    B = stack.B
    m0, mn = band.j0 * stack.step, (band.jn - 1) * stack.step + stack.num_taps
    x_sbuf = ring_sbuf[0 : stack.parts, 0 : band.nn, 0:mn, 0 : stack.width]
    spans = []
    left, right = 0, stack.width
    for d in range(stack.D):
        shift = d * columns.dilation - columns.before
        low = min(stack.width, max(0, -shift))
        high = max(low, min(stack.width, columns.size - shift))
        spans.append((low, high, shift))
        left, right = max(left, low), min(right, high)
    first, last = whole_blocks(rows, B, m0, mn)
    clear(x_sbuf, 0, first - m0, 0, stack.width)
    clear(x_sbuf, last - m0, mn, 0, stack.width)
    clear(x_sbuf, first - m0, last - m0, 0, left)
    clear(x_sbuf, first - m0, last - m0, max(left, right), stack.width)
    for d in range(stack.D):
        low, high, shift = spans[d]
        if low < high:
            place = (low, high, low + shift)
            if first < last:
                load_rows(operands.x, x_sbuf, geometry, stack, band, d, 0, B, first, last - first, m0, place)
            for m in range(m0, m0 + mn):
                if m < first or m >= last:
                    b0 = min(B, max(0, rows.before - m * B))
                    b1 = max(b0, min(B, rows.size + rows.before - m * B))
                    if b0 < b1:
                        load_rows(operands.x, x_sbuf, geometry, stack, band, d, b0, b1, m, 1, m0, place)
    return of_array(x_sbuf, operands)


def whole_blocks(rows, B, m0, mn):
    """(first, end) of the blocks of B padded rows, among mn from m0 on, all of whose rows are x's."""
    first = max(m0, div_ceil(max(0, rows.before), B))
    end = min(m0 + mn, max(0, rows.size + rows.before) // B)
    return (m0, m0) if end <= first else (first, end)


def clear(x_sbuf, m0, m1, w0, w1):
    """Zeros in blocks m0 .. m1-1, columns w0 .. w1-1."""
    if m0 < m1 and w0 < w1:
        parts, images = x_sbuf.shape[0], x_sbuf.shape[1]
        nisa.memset(dst=x_sbuf[0:parts, 0:images, m0:m1, w0:w1], value=0.0, engine=nisa.engine.vector)


def load_rows(x_hbm, x_sbuf, geometry, stack, band, d, b0, b1, m, count, m0, place):
    """Rows b0 .. b1-1 of `count` blocks from m on, shift d. place: (first column, end, the element of x there)."""
    rows, C, B = geometry.rows, geometry.C, stack.B
    low, high, element = place
    h = m * B + b0 - rows.before
    for n in range(band.nn):
        copy(
            x_sbuf[(d * B + b0) * C : (d * B + b1) * C, n, m - m0 : m - m0 + count, low:high],
            x_hbm.ap(
                pattern=[
                    [geometry.x_h, b1 - b0],
                    [geometry.x_c, C],
                    [B * geometry.x_h, count],
                    [geometry.x_w, high - low],
                ],
                offset=(band.n0 + n) * geometry.x_n + h * geometry.x_h + element * geometry.x_w,
            ),
        )


def work_stack(operands, geometry, epilogue, stack, job, filters_sbuf, bias_sbuf, band, x_sbuf, ledger, last):
    """Results of one job for one band: banks of sums one after the other, then the store, row by row of a block."""
    columns = geometry.columns
    outputs, Q = stack.U * job[1], columns.out
    y_sbuf = nl.ndarray((outputs, band.nn, band.jn, Q), dtype=operands.y.dtype, buffer=nl.sbuf)
    residual_sbuf = load_residual(operands, geometry, stack, job, band)
    qt = min(Q, BANK_COLUMNS)
    jt = max(1, min(band.jn, BANK_COLUMNS // (band.nn * qt)))
    for j in range(0, band.jn, jt):
        jn = min(jt, band.jn - j)
        for q in range(0, Q, qt):
            qn = min(qt, Q - q)
            acc_psum = nl.ndarray((outputs, band.nn, jn, qn), dtype=nl.float32, buffer=nl.psum)
            for t in range(stack.num_taps):
                for g in range(stack.groups):
                    m = j * stack.step + t
                    w = q * columns.stride + g * stack.D * columns.dilation
                    nisa.nc_matmul(
                        dst=acc_psum,
                        stationary=filters_sbuf[0 : filters_sbuf.shape[0], t * stack.groups + g, 0:outputs],
                        moving=x_sbuf[
                            0 : x_sbuf.shape[0],
                            0 : band.nn,
                            m : m + (jn - 1) * stack.step + 1 : stack.step,
                            w : w + (qn - 1) * columns.stride + 1 : columns.stride,
                        ],
                        accumulate=t + g > 0,
                    )
            residual = None
            if residual_sbuf != None:
                residual = residual_sbuf[0:outputs, 0 : band.nn, j : j + jn, q : q + qn]
            finish(
                y_sbuf[0:outputs, 0 : band.nn, j : j + jn, q : q + qn],
                acc_psum,
                bias_sbuf,
                residual,
                epilogue,
                reader(ledger, epilogue, band.nn * jn * qn),
            )
        if last:
            store_stack(operands.y, y_sbuf, geometry, stack, job, band, j, jn)
    if not last:
        store_stack(operands.y, y_sbuf, geometry, stack, job, band, 0, band.jn)


def y_rows(geometry, stack, job, band, u, j, jn):
    """(pattern, offset, blocks) of row u of blocks j .. j+jn-1 of a band, as far as y has it."""
    k0, kn = job
    p = (band.j0 + j) * stack.U + u
    count = min(jn, div_ceil(max(0, geometry.rows.out - p), stack.U))
    pattern = [
        [geometry.y_k, kn],
        [geometry.y_n, band.nn],
        [stack.U * geometry.y_p, count],
        [geometry.y_q, geometry.columns.out],
    ]
    return pattern, band.n0 * geometry.y_n + k0 * geometry.y_k + p * geometry.y_p, count


def load_residual(operands, geometry, stack, job, band):
    """The residual of a band times beta, fp32 if it was multiplied, or None."""
    if operands.residual == None:
        return None
    kn = job[1]
    shape = (stack.U * kn, band.nn, band.jn, geometry.columns.out)
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    if (band.j0 + band.jn) * stack.U > geometry.rows.out:
        nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for u in range(stack.U):
        where = y_rows(geometry, stack, job, band, u, 0, band.jn)
        if where[2] > 0:
            copy(
                residual_sbuf[u * kn : (u + 1) * kn, 0 : band.nn, 0 : where[2], 0 : shape[3]],
                operands.residual.ap(pattern=where[0], offset=where[1]),
            )
    return scale_residual(residual_sbuf, operands.beta)


def store_stack(y_hbm, y_sbuf, geometry, stack, job, band, j, jn):
    """Blocks j .. j+jn-1 of a band's results, one DMA for each row of a block."""
    kn = job[1]
    for u in range(stack.U):
        where = y_rows(geometry, stack, job, band, u, j, jn)
        if where[2] > 0:
            copy(
                y_hbm.ap(pattern=where[0], offset=where[1]),
                y_sbuf[u * kn : (u + 1) * kn, 0 : band.nn, j : j + where[2], 0 : geometry.columns.out],
            )
