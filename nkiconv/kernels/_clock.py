"""A clock for each engine of a core: how long a kernel takes, found by walking through its order of work.

Compile-time decisions that no formula gets right (what comes first, what waits for what, whether the array is at its
full rate by then) are taken by letting the candidates run against these clocks. A walk issues work in a kernel's
program order: each engine starts when it is free and its operands are there. Prices are those of `_prices`. What is
left out: room in SBUF and PSUM, who else uses a port, packets of two DMAs in turn beyond halving the rate.
"""

from dataclasses import dataclass

from .._nki import nl
from ._prices import (
    DMA_DONE_NS,
    DMA_END_NS,
    DMA_ENGINES,
    FIRST_PACKET_NS,
    HALF_RATE,
    HOP_DMA_NS,
    LOAD_SKEW_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_DONE_HALF_NS,
    MATMUL_DONE_NS,
    MATMUL_START_NS,
    ROWS_AN_ENGINE,
    STATIC_ISSUE_NS,
    STORE_SKEW_NS,
    WINDOW_NS,
    WINDOW_WORK,
    hbm_ns,
)
from ._tiles import div_ceil

#: How much more work than it takes the array should have to be at its full rate, as what is on the edge may miss it; in
#: the first windows, of which a walk knows more, and later.
EARLY = 2
MARGIN_EARLY = 1.04
MARGIN = 1.09


@dataclass
class Clock(nl.NKIObject):
    """When each part of a core is free next, in ns from the kernel's first instruction."""

    tensor: float
    vector: float
    scalar: float
    gpsimd: float
    #: triggers of loads, of those that wait for something, which hold nobody up, and of stores
    sync: float
    late_sync: float
    triggers: float
    #: the DMA engines, by what is on its way in either direction; loads that had to wait for something are apart
    loads: float
    late: float
    stores: float
    #: ns of work that DMA engines have been given
    moved: float
    #: (start, ns of work) of stores, those that begin after the loads so far; how many of them loads have reached since
    later: list
    reached: int
    #: the array's rate, full or not; the end of its window, and its work in that so far
    full: bool
    line: float
    work: float


def new_clock():
    """All engines free at 0, the array at half rate."""
    return Clock(
        tensor=0.0,
        vector=0.0,
        scalar=0.0,
        gpsimd=0.0,
        sync=0.0,
        late_sync=0.0,
        triggers=0.0,
        loads=0.0,
        late=0.0,
        stores=0.0,
        moved=0.0,
        later=[],
        reached=0,
        full=False,
        line=WINDOW_NS,
        work=0.0,
    )


def cross(clock):
    """The array's window ends."""
    margin = MARGIN_EARLY if clock.line <= EARLY * WINDOW_NS else MARGIN
    clock.full = clock.work >= margin * WINDOW_WORK * WINDOW_NS
    clock.work = 0.0
    clock.line += WINDOW_NS


def stream(clock, start, work_ns):
    """When `work_ns` of the array's work at full rate end that start at `start`."""
    while clock.line < start and (clock.full or clock.work > 0.0):
        cross(clock)
    if clock.line < start:
        clock.line += WINDOW_NS * div_ceil(int(start - clock.line), int(WINDOW_NS))
    time = start
    left = work_ns
    speed = 1.0 if clock.full else HALF_RATE
    while time + left / speed > clock.line:
        done = (clock.line - time) * speed
        clock.work += done
        left -= done
        time = clock.line
        cross(clock)
        speed = 1.0 if clock.full else HALF_RATE
    clock.work += left
    return time + left / speed


def matmuls(clock, ready, count, columns, column_ns, fixed_ns):
    """`count` matmuls or transposes of so many moving columns, one after the other; returns when the last's result is
    there. column_ns: of a column at full rate; fixed_ns: of each beside those."""
    time = clock.tensor
    if ready > time:
        time = ready + MATMUL_START_NS
    end = time
    if columns >= MATMUL_COLUMNS_MIN:
        end = stream(clock, time, count * columns * column_ns)
        time = end + (count * fixed_ns if clock.full else 0.0)
    else:
        # short ones keep the array waiting, which is no work
        rest_ns = (MATMUL_COLUMNS_MIN - columns) * column_ns
        for _ in range(count):
            end = stream(clock, time, columns * column_ns)
            time = end + (rest_ns + fixed_ns if clock.full else rest_ns / HALF_RATE)
    clock.tensor = time
    return end + (MATMUL_DONE_NS if clock.full else MATMUL_DONE_HALF_NS)


def load(clock, ready, triggers, rows, row_ns, num_bytes):
    """Static DMAs to so many partitions, row_ns of a DMA engine each; returns when what waits for them may start.

    ready: when what the columns hold before is there, 0 where nothing is. triggers: DMAs that it takes, all alike.

    Loads and stores that are on their way at the same time have half of the engines each.
    """
    trigger = clock.sync
    if ready > 0.0:
        trigger = max(clock.late_sync, ready + HOP_DMA_NS)
        clock.late_sync = trigger + triggers * STATIC_ISSUE_NS
    else:
        clock.sync += triggers * STATIC_ISSUE_NS
    arrival = trigger + (triggers - 1) * STATIC_ISSUE_NS + FIRST_PACKET_NS + skew(rows, LOAD_SKEW_NS)
    busy = max(min(rows, ROWS_AN_ENGINE) * row_ns, hbm_ns(num_bytes, num_bytes / rows))
    clock.moved += busy
    if arrival > clock.loads and ready > 0.0:
        # it comes when others may be through
        start = max(arrival, clock.late)
        both = max(0.0, min(busy, clock.stores - start))
        clock.late = start + busy + both
        clock.stores += both
        return clock.late + DMA_END_NS + DMA_DONE_NS
    end = max(arrival, clock.loads) + busy
    if clock.late > end - busy:
        clock.late += busy
    while clock.reached < len(clock.later) and clock.later[clock.reached][0] < end:
        other = clock.later[clock.reached]
        clock.reached += 1
        if other[0] + other[1] > end - busy:
            end += other[1]
            clock.stores += min(busy, other[1])
    clock.loads = end
    return end + DMA_END_NS + DMA_DONE_NS


def store(clock, ready, rows, row_ns, num_bytes):
    """A static DMA from so many partitions of something that is ready."""
    trigger = max(clock.triggers, ready + HOP_DMA_NS)
    clock.triggers = trigger + STATIC_ISSUE_NS
    start = max(trigger + FIRST_PACKET_NS + skew(rows, STORE_SKEW_NS), clock.stores)
    busy = max(min(rows, ROWS_AN_ENGINE) * row_ns, hbm_ns(num_bytes, num_bytes / rows))
    clock.moved += busy
    both = max(0.0, min(busy, max(clock.loads, clock.late) - start))
    clock.stores = start + busy + both
    if clock.loads > start:
        clock.loads += both
    if clock.late > start:
        clock.late += both
    if both < busy:
        clock.later.append((start + 2 * both, busy - both))


def skew(rows, last_ns):
    """ns that the last of the DMA engines of so many partitions begins later than the first."""
    return last_ns * (div_ceil(rows, ROWS_AN_ENGINE) - 1) / (DMA_ENGINES - 1)


def on_vector(clock, ready, busy_ns, done_ns):
    """An instruction of Vector's; returns when its result is there, done_ns after its start."""
    start = max(clock.vector, ready)
    clock.vector = start + busy_ns
    return start + done_ns


def on_scalar(clock, ready, busy_ns, done_ns):
    """An instruction of Scalar's; returns when its result is there, done_ns after its start."""
    start = max(clock.scalar, ready)
    clock.scalar = start + busy_ns
    return start + done_ns


def on_gpsimd(clock, ready, busy_ns, done_ns):
    """An instruction of GpSimd's; returns when its result is there, done_ns after its start."""
    start = max(clock.gpsimd, ready)
    clock.gpsimd = start + busy_ns
    return start + done_ns


def end_of(clock):
    """When the last store is done."""
    return clock.stores + DMA_END_NS
