"""What deep takes by prices: a walk through the longer job's pieces on the clocks of a core's engines."""

from ..._clock import end_of, load, matmuls, new_clock, on_gpsimd, on_scalar, on_vector, store, stream
from ..._prices import (
    EXCHANGE_BYTE_NS,
    EXCHANGE_BYTES,
    EXCHANGE_NS,
    GPSIMD_DONE_NS,
    GPSIMD_FIXED_NS,
    GPSIMD_NS,
    HOP_NS,
    HOP_TENSOR_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_FP32_NS,
    MATMUL_NS,
    SCALAR_DONE_NS,
    SCALAR_FIXED_NS,
    SCALAR_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    TRANSPOSE_PASSES_FP32,
    VECTOR_DONE_NS,
    VECTOR_FIXED_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_MEMSET_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    row_ns,
    run_ns,
)

#: Steps that are turned before one is multiplied, while its filters are read out.
AHEAD = 2
#: Most matmuls on zeros.
WARM_UP_MOST = 256
#: ns from a core's start until the first matmul on zeros.
DEEP_WARM_UP_START_NS = 190.0


def deep_ns(geometry, deep):
    """ns of the busier of two cores; the second job is the longer one where they differ."""
    clock, job = new_clock(), deep.jobs[1]
    clock.tensor = stream(clock, DEEP_WARM_UP_START_NS, deep.warmup * MATMUL_COLUMNS_MIN * TENSOR_COLUMN_NS)
    x_ns, free = 0.0, (0.0, 0.0)
    waiting, pieces = [], 0
    for first in range(0, len(job.chunks), deep.together):
        count = min(deep.together, len(job.chunks) - first)
        for index in range(len(deep.taps)):
            for block in range(len(job.blocks)):
                kn = job.blocks[block][1]
                if block == 0 and index == 0:
                    x_ns = max(load_x(clock, geometry, deep, count), zeros(clock, geometry, deep, count))
                if pieces == 0:
                    free = cleared(clock, geometry, deep)
                filters_ns = load_filters(clock, geometry, deep, kn, count, deep.taps[index])
                for which in range(len(deep.steps[index])):
                    step = deep.steps[index][which]
                    ready = filters_ns
                    if geometry.packed == 0:
                        ready = turn(clock, geometry, filters_ns, count * kn, step.taps, free[min(pieces, 1)])
                    if which == 0 and block == 0 and index == 0:
                        x_ns = put_among_zeros(clock, geometry, deep, x_ns, count)
                    waiting.append((max(ready, x_ns) + HOP_TENSOR_NS, count * (step.end - step.first)))
                    if len(waiting) > AHEAD:
                        now = waiting[len(waiting) - AHEAD - 1]
                        multiply(clock, geometry, deep, now[0], now[1])
                pieces += 1
    summed = 0.0
    for index in range(max(0, len(waiting) - AHEAD), len(waiting)):
        summed = multiply(clock, geometry, deep, waiting[index][0], waiting[index][1])
    return ended(clock, geometry, deep, job, summed)


def cleared(clock, geometry, deep):
    """When the first piece's stationary is clear, by Vector, and the second one's, by GpSimd."""
    if not deep.gaps:
        return 0.0, 0.0
    last = deep.steps[0][len(deep.steps[0]) - 1]
    words = deep.together * (last.tap + last.taps) * deep.slot * geometry.itemsize / 4
    first = on_vector(
        clock, DEEP_WARM_UP_START_NS, VECTOR_FIXED_NS + words * VECTOR_MEMSET_NS, words * VECTOR_MEMSET_NS
    )
    return first, on_gpsimd(clock, 0.0, GPSIMD_FIXED_NS + words * GPSIMD_NS, GPSIMD_DONE_NS + words * GPSIMD_NS)


def warm_count(geometry, deep):
    """Matmuls on zeros until the first filters come: work without which the array might stay at half rate, as matmuls
    on few pixels keep it waiting."""
    clock, job = new_clock(), deep.jobs[1]
    load_x(clock, geometry, deep, deep.together)
    come_ns = load_filters(clock, geometry, deep, job.blocks[0][1], deep.together, deep.taps[0])
    time, count = DEEP_WARM_UP_START_NS, 0
    while time < come_ns and count < WARM_UP_MOST:
        time = stream(clock, time, MATMUL_COLUMNS_MIN * TENSOR_COLUMN_NS)
        count += 1
    return count


def load_filters(clock, geometry, deep, kn, count, taps):
    """Filters of a piece; returns when they are there."""
    _, rn, _, sn = taps
    S, item = geometry.columns.taps, geometry.itemsize
    num_bytes = count * kn * deep.depth * rn * sn * geometry.hbm_itemsize
    if geometry.packed > 0:
        each = min(kn, geometry.packed)
        row = rn * sn * run_ns(each * item)
        if kn % geometry.packed == 0 and sn == S:
            row = run_ns(rn * sn * each * item)
        blocks = max(1, kn // each)
        return load(clock, 0.0, blocks, deep.depth, blocks * row, num_bytes)
    whole = geometry.w_s == 1 and geometry.w_r == S and geometry.w_c == S * geometry.rows.taps
    row = deep.depth * rn * row_ns(sn, geometry.w_s, item)
    if whole and rn == geometry.rows.taps and sn == S:
        row = run_ns(deep.depth * rn * sn * item)
    elif whole and sn == S:
        row = deep.depth * run_ns(rn * sn * item)
    return load(clock, 0.0, count, count * kn, row, num_bytes)


def load_x(clock, geometry, deep, count):
    """x of so many chunks; returns when the last is there."""
    window, item = deep.window, geometry.itemsize
    row = window.hn * row_ns(window.wn, geometry.x_w, item)
    if geometry.x_w == 1 and geometry.x_h == window.wn:
        row = run_ns(window.hn * window.wn * item)
    num_bytes = deep.depth * geometry.N * window.hn * window.wn * geometry.hbm_itemsize
    ready = 0.0
    for _ in range(count):
        ready = load(clock, 0.0, 1, deep.depth, geometry.N * row, num_bytes)
    return ready


def is_copied(window):
    """Whether x in SBUF has zeros around it, so that it is copied there from where it was loaded."""
    return window.height > window.hn or window.width > window.wn


def zeros(clock, geometry, deep, count):
    """Zeros for x of so many chunks; returns when they are there."""
    window = deep.window
    if not is_copied(window):
        return 0.0
    words_ns = count * geometry.N * window.height * window.width * geometry.itemsize / 4 * GPSIMD_NS
    return on_gpsimd(clock, 0.0, GPSIMD_FIXED_NS + words_ns, GPSIMD_DONE_NS + words_ns)


def put_among_zeros(clock, geometry, deep, ready, count):
    """x of so many chunks into its zeros; returns when it is there."""
    window = deep.window
    if not is_copied(window):
        return ready
    return read(clock, ready, count * geometry.N * window.hn * window.wn, geometry.itemsize == 2)


def turn(clock, geometry, ready, rows, taps, free):
    """Transposes of a step and their read-out to what is free by then; returns when that is done."""
    passes = TRANSPOSE_PASSES_FP32 if geometry.itemsize == 4 else 1
    end = matmuls(clock, ready + HOP_TENSOR_NS, taps * passes, rows, TENSOR_COLUMN_NS, MATMUL_NS)
    return read(clock, max(end + HOP_NS, free), taps * rows, geometry.itemsize == 2)


def read(clock, ready, elements, fast):
    """A copy by Vector or Scalar, whichever is done first; returns when its result is there."""
    vector_ns = elements * (VECTOR_NS_16BIT if fast else VECTOR_NS)
    scalar_ns = elements * SCALAR_NS
    if max(clock.vector, ready) + vector_ns <= max(clock.scalar, ready) + scalar_ns:
        return on_vector(clock, ready, VECTOR_FIXED_PSUM_NS + vector_ns, VECTOR_DONE_NS + vector_ns)
    return on_scalar(clock, ready, SCALAR_FIXED_NS + scalar_ns, SCALAR_DONE_NS + scalar_ns)


def multiply(clock, geometry, deep, ready, products):
    """So many products, of all banks of sums; returns when the last sums are there."""
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    fixed_ns = MATMUL_NS if geometry.fast else 2 * MATMUL_FP32_NS
    bank = deep.banks[0]
    return matmuls(clock, ready, products * len(deep.banks), bank.nn * bank.pn * deep.columns, column_ns, fixed_ns)


def ended(clock, geometry, deep, job, summed):
    """From the last sums to the end of the last store."""
    P, Q = geometry.rows.out, geometry.columns.out
    pixels = geometry.N * P * Q
    blocks = len(job.blocks)
    ready = summed + HOP_NS
    done = ready
    for _ in range(blocks):
        for index in range(len(deep.banks)):
            elements = deep.banks[index].nn * deep.banks[index].pn * Q
            done = read(clock, ready, elements, False)
            for _ in range(deep.T - 1):
                vector_ns = elements * VECTOR_NS
                done = on_vector(clock, done, VECTOR_FIXED_PSUM_NS + vector_ns, VECTOR_DONE_NS + vector_ns)
    kn = job.blocks[blocks - 1][1]
    mine = pixels
    if deep.shard == "contraction":
        mine = (geometry.N * P + 1) // 2 * Q
        more = max(0, kn * mine * 4 - EXCHANGE_BYTES)
        done += blocks * (EXCHANGE_NS + more * EXCHANGE_BYTE_NS)
        vector_ns = mine * VECTOR_NS
        done = on_vector(clock, done, VECTOR_FIXED_PSUM_NS + vector_ns, VECTOR_DONE_NS + vector_ns)
    if deep.shard == "contraction" or deep.T > 1:
        done = read(clock, done, mine, False)
    row = mine // Q * row_ns(Q, geometry.y_q, geometry.itemsize)
    if geometry.y_q == 1 and geometry.y_p == Q:
        row = geometry.N * run_ns(mine // geometry.N * geometry.itemsize)
    for _ in range(blocks):
        store(clock, done, kn, row, kn * mine * geometry.itemsize)
    return end_of(clock)
