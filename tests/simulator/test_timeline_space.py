"""What waits for space, loads that the compiler drops, and the Tensor Engine's throttle, by hand; what holds for the
timeline of any program, on random small ones; views of one storage against sets of bytes.
"""

import itertools
import math
import operator
from typing import NamedTuple

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from timelines import BF16, DGE, ENGINE, FP32, HBM, PSUM, load, ns, store, tile, timed, touched, vector

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator import timeline as tl
from nkiconv.simulator.dtypes import DTYPES
from nkiconv.simulator.memory import SHARED_HBM, Region, StorageInfo
from nkiconv.simulator.program import Instruction
from nkiconv.simulator.timeline.dependencies import HBM_SLICES, Dependencies, written_storages
from nkiconv.simulator.timeline.grid import Grid
from nkiconv.simulator.timeline.overlap import RUNS_COMPARED, covers, extent, overlaps
from nkiconv.simulator.timeline.throttle import Throttle
from nkiconv.simulator.timing import Rates


@pytest.mark.parametrize(("columns", "stalls"), [(30_000, True), (26_000, False)])
def test_sbuf_tiles_wait_for_room(columns, stalls):
    """Two tiles of 120,000 B a partition do not fit 212,728 B at once, two of 104,000 B do."""

    def body():
        for _ in range(2):
            x = tile(columns)
            load(x)
            store(x)

    line = timed(body)
    assert line.start[2] == (pytest.approx(line.visible[1] + 380) if stalls else 58)
    assert (line.ready_by[2] == tl.SPACE) == stalls


def test_a_load_waits_for_the_bytes_that_it_overwrites_and_for_no_others():
    """Blocks of 120,000 B a partition in 4 parts: the second's first part waits for nobody, as 92,728 B are free. Its
    last one comes when the first one's part has been read, before the others have."""

    def body():
        for _ in range(2):
            x = nl.ndarray((128, 4, 7500), FP32)
            for part in range(4):
                load(x[:, part], src=nl.ndarray((128, 7500), FP32, HBM))
            for part in range(4):
                nisa.tensor_copy(tile(128, BF16), x[:, part, 0:128], engine=ENGINE.scalar)

    line = timed(body)
    loads, reads = line.start[8:12], line.visible[4:8]
    assert [at == tl.SPACE for at in line.ready_by[8:12]] == [False] * 3 + [True]
    assert loads[3] == pytest.approx(reads[0] + 32)
    assert reads[0] < loads[3] < reads[1]


def test_a_small_tile_does_not_wait_behind_a_large_one():
    """The third tile fits beside the first; it would not beside the first and the second, which waits for that."""

    def body(columns):
        for n in (30_000, 30_000, columns):
            x = tile(n)
            load(x)
            store(x)

    small, large = timed(lambda: body(20_000)), timed(lambda: body(24_000))
    assert (small.ready_by[4], large.ready_by[4]) == (tl.NOTHING, tl.SPACE)
    assert small.start[4] == pytest.approx(58)


def copy_of(x, part=False, writes="nothing"):
    """Load x into a tile of its own, or a part of one, copy that, and write to one of the two or to neither."""
    dst, kept = nl.ndarray((128, 2, 64), FP32)[:, 0] if part else tile(64), tile(64)
    nisa.dma_copy(dst, x)
    vector(kept, dst)
    if writes == "the tile":
        nisa.memset(dst[:, 0:8], 0.0)
    elif writes == "the source":
        store(kept, dst=x)


@pytest.mark.parametrize(("why", "loads", "between", "on_device", "given"), [
    ("the same bytes are there", 1, 0, False, {}),
    ("they were loaded 128 DMAs ago", 1, 127, False, {}),
    ("or more", 3, 128, False, {}),
    ("a part of a tile", 3, 0, False, {"part": True}),
    ("a loop on the device has one copy of its body", 3, 0, True, {}),
    ("somebody writes the tile", 3, 0, False, {"writes": "the tile"}),
    ("somebody writes the source, thrice", 6, 0, False, {"writes": "the source"}),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_loads_of_what_a_tile_holds_are_dropped(why, loads, between, on_device, given):
    """How many DMAs remain of three loads of the same bytes, without those between them."""

    def body():
        x = tile(64, FP32, HBM)

        def once(_):
            copy_of(x, **given)
            for _ in range(between):
                load(tile(64))

        if on_device:
            nl.fori_loop(0, 3, once)
        else:
            for i in range(3):
                once(i)

    tasks, _ = timed(body, tasks=True)
    assert sum(task.op == "dma_copy" for task in tasks.source) - 3 * between == loads


@pytest.mark.parametrize(("columns", "stalls"), [(512, True), (256, False)])
def test_psum_tiles_wait_for_a_bank(columns, stalls):
    """The ninth bank waits for the first one's end; nine half banks fit."""

    def body():
        a, b = tile(128, BF16), tile(128, BF16)
        for _ in range(9):
            acc = tile(columns, FP32, PSUM)[:, 0:128]
            nisa.nc_matmul(acc, a, b)
            vector(tile(128), acc)

    line = timed(body)
    # a matmul every 53.3 + 2.5 from 16 on; the first copy ends at 16 + 53.3 + 164 + 38 + 157 + 128 * 1.0417 = 561.7
    matmuls = line.start[0::2]
    assert matmuls[:8] == ns(*[16 + i * 55.83 for i in range(8)])
    assert matmuls[8] == pytest.approx(561.7 + 52 + 16 if stalls else 16 + 8 * 55.83, abs=0.2)


@pytest.mark.parametrize(("drops", "kept"), [(0, 4), (1, 1)])
def test_matmuls_that_nobody_reads_are_dropped_where_the_compiler_does_so(drops, kept):
    def body():
        zeros, warm, sums, out = tile(128, BF16), tile(128, FP32, PSUM), tile(128, FP32, PSUM), tile(128)
        for _ in range(3):
            nisa.nc_matmul(warm, zeros, zeros)
        nisa.nc_matmul(sums, zeros, zeros)
        vector(out, sums)

    tasks, _ = timed(body, constants={"scheduling.drops_unread": drops}, tasks=True)
    assert sum(task.op == "nc_matmul" for task in tasks.source) == kept


WINDOW = 4096 / 1.2


def near(expected):
    return pytest.approx(expected, abs=0.05)


def throttle(phase=0.0, **settings):
    return Throttle(Rates(), phase, **settings)


def busy(array, window, full_ns, share=1.0):
    return array.stream(window * WINDOW, full_ns, share)


# why: streams (start, ns of full-rate work, end), and when the rate changed
STREAMS = {
    # 206.7 by the line, not enough: the other 793.3 take 1586.7
    "starts at half rate, and a line changes nothing": ([(3000, 1000, 3413.33 + 1586.67)], [(0, False)]),
    # 1706.7 are done by the line at 3413.3, the other 1706.7 take as long as they say
    "is released after the first busy window": ([(0, 2 * 1706.67, 3413.33 + 1706.67)], [(0, False), (3413.33, True)]),
    # ten idle windows; busy from the middle of the eleventh: it does 853 by its end, less than 1271.5, so half rate
    # goes on through the twelfth, whose end is at 12 windows
    "the grid runs on through idle time": (
        [(10.5 * WINDOW, 4000, 12 * WINDOW + 4000 - 0.25 * WINDOW - 0.5 * WINDOW)], [(0, False), (12 * WINDOW, True)]),
    # 413.3 ns at half rate do 206.7 of 1000; 1606.7 in this window release the next: 793.3 more at full rate
    "a stream across a line takes piecewise time": (
        [(0, 1400, 2800), (3000, 1000, 3413.33 + 793.33)], [(0, False), (3413.33, True)]),
    # at full rate from 3413.3; idle until 6726.7, so that only 100 are done by the line at 6826.7; then half rate
    "a stream may lose its rate on the way": (
        [(0, 1700, 3400), (6726.67, 500, 6826.67 + 800)], [(0, False), (3413.33, True), (6826.67, False)]),
}  # fmt: skip


@pytest.mark.parametrize(("streams", "changes"), STREAMS.values(), ids=STREAMS)
def test_streams(streams, changes):
    array = throttle()
    assert not array.at_full_rate(0.0)
    for start, full_ns, end in streams:
        assert array.stream(start, full_ns) == near(end)
    assert array.changes == [(near(at), full) for at, full in changes]


# phase, when a busy array is released: the first line whose whole window it was busy in, or enough of it
@pytest.mark.parametrize(("phase", "released"), [(0.0, 3413.3), (0.25, 2560.0), (0.26, 2525.9 + 3413.3), (0.9, 3754.7)])
def test_phase_shifts_the_grid(phase, released):
    """Time 0 lies `phase` of a window behind a line, and the work before it is none."""
    array = throttle(phase)
    end = array.stream(0.0, 10_000.0)
    assert array.changes == [(0.0, False), (pytest.approx(released, abs=0.1), True)]
    assert end == pytest.approx(released + 10_000 - released / 2, abs=0.1)


def test_a_share_of_the_rows_does_a_share_of_the_work():
    # three quarters of 1706.7 are 1280, just enough; 74 % are not
    for share, released in ((0.75, True), (0.74, False)):
        array = throttle()
        assert busy(array, 0, 1706.6, share) == near(3413.2)
        assert array.at_full_rate(WINDOW + 1) == released
        # the same when the stream goes on across the line
        assert busy(throttle(), 0, 2000, share) == near(WINDOW + 293.33 if released else 4000)


def test_a_kernel_of_matmuls_is_released_once():
    def body():
        a, b = nl.ndarray((128, 128), nl.bfloat16), nl.ndarray((128, 500), nl.bfloat16)
        for _ in range(24):
            nisa.nc_matmul(nl.ndarray((128, 500), nl.float32, nl.psum), a, b)

    line = timed(body, throttle=True)
    # the ninth starts at 8 * 416.7 = 3333.3, does 40 of 208.3 by the line and the rest at full rate, at which 2.5 ns
    # lie between two; at half rate there are none
    half = [416.67 * i for i in range(9)]
    full = [3413.33 + 168.33 + 2.5 + 210.83 * i for i in range(15)]
    assert line.start == pytest.approx(half + full, abs=0.2)
    assert line.visible[0] == pytest.approx(416.67 + 206, abs=0.2)
    assert line.visible[-1] == pytest.approx(full[-1] + 208.33 + 164, abs=0.2)
    assert line.throttle_changes == [[(0.0, False), (near(3413.33), True)]]


#: settings of a dma_copy, by who triggers it
WAYS = {
    "static": {"dge_mode": DGE.none}, "software": {"dge_mode": DGE.swdge},
    "sync": {"dge_mode": DGE.hwdge, "engine": ENGINE.sync}, "scalar": {"dge_mode": DGE.hwdge, "engine": ENGINE.scalar},
}  # fmt: skip
SLOTS = 3


class Step(NamedTuple):
    """An instruction: what, by whom, on which tiles, and every `step`-th column from `first` to the half or the end."""

    op: str
    way: str
    a: int
    b: int
    first: int = 0
    step: int = 1
    half: bool = False


def steps_of(op, ways):
    slot = st.integers(0, SLOTS - 1)
    return st.builds(
        Step, st.just(op), st.sampled_from(ways), slot, slot, slot, slot.map(lambda n: n + 1), st.booleans()
    )


COMPUTE = st.one_of(
    steps_of("copy", ("vector", "scalar", "gpsimd")),
    steps_of("drain", ("vector", "scalar")),
    steps_of("matmul", ("tensor",)),
)


def transfers(*ways):
    return st.one_of(steps_of("load", ways), steps_of("store", ways))


ANY = st.one_of(COMPUTE, transfers(*WAYS))


def kernel(steps, rows=128, columns=64):
    """A kernel body: steps on three SBUF tiles, three PSUM tiles and one output."""

    def body():
        sbuf = [nl.ndarray((rows, columns), FP32, nl.sbuf) for _ in range(SLOTS)]
        psum = [nl.ndarray((128, columns), FP32, PSUM) for _ in range(SLOTS)]
        out = nl.ndarray((SLOTS * rows, columns), FP32, HBM)
        for step in steps:
            part = slice(step.first, columns // 2 if step.half else columns, step.step)
            tile = sbuf[step.a][:, part]
            if step.op == "load":
                nisa.dma_copy(tile, nl.ndarray((rows, columns), FP32, HBM)[:, part], **WAYS[step.way])
            elif step.op == "store":
                nisa.dma_copy(out[rows * step.b : rows * step.b + rows, part], tile, **WAYS[step.way])
            elif step.op == "copy":
                nisa.tensor_copy(sbuf[step.b][:, part], tile, engine=ENGINE[step.way])
            elif step.op == "drain":
                nisa.tensor_copy(tile, psum[step.b][0:rows, part], engine=ENGINE[step.way])
            else:
                nisa.nc_matmul(psum[step.b][0:columns], sbuf[step.a], sbuf[step.a])

    return body


@draws(80, 200)
@given(st.lists(ANY, min_size=2, max_size=8), st.sampled_from(["program", "lookahead"]), st.booleans())
def test_whoever_shares_a_byte_waits(steps, order, throttle):
    """By bytes, not by the dependencies that the code found; a write on the same engine only has to keep its place."""
    tasks, line = timed(kernel(steps, rows=4, columns=8), order=order, throttle=throttle, tasks=True)
    reads, writes = (
        [{(one.info.id, byte) for one in getattr(task, kind) for byte in touched(one)} for task in tasks.source]
        for kind in ("reads", "writes")
    )
    for i, j in itertools.combinations(range(len(tasks)), 2):
        if writes[i] & reads[j]:
            assert line.start[j] > line.visible[i]
        elif writes[j] & (reads[i] | writes[i]):
            same = tasks.engine[i] == tasks.engine[j] and not tasks.is_dma[i] and not tasks.is_dma[j]
            assert line.start[j] > (line.start[i] if same else line.visible[i])


@draws(40, 200)
@given(st.lists(ANY, min_size=2, max_size=9), st.sampled_from(["program", "lookahead"]))
def test_no_engine_does_two_things_at_once(steps, order):
    tasks, line = timed(kernel(steps), order=order, tasks=True)
    for i, j in itertools.permutations(range(len(tasks)), 2):
        if tasks.engine[i] != tasks.engine[j] or (line.start[i], i) > (line.start[j], j):
            continue
        # behind a trigger its engine is free when it is issued; a trigger may follow an instruction that still runs
        behind = 7 if tasks.is_dma[j] and not tasks.is_dma[i] else line.free[i] - line.start[i]
        assert line.start[j] >= line.start[i] + behind - 1e-6


@draws(40, 200)
@given(st.lists(st.one_of(COMPUTE, transfers("sync")), min_size=1, max_size=8), COMPUTE)
def test_an_instruction_more_changes_nothing_before_it(steps, more):
    """The last of its engine's queue holds nobody up. Sync, which computes nothing, triggers all DMA."""
    _, before = timed(kernel(steps), tasks=True)
    _, after = timed(kernel([*steps, more]), tasks=True)
    assert after.visible[:-1] == before.visible
    assert max(after.visible) >= max(before.visible)
    if any(step.op in ("load", "store") for step in steps):
        assert after.total_ns == before.total_ns, "from the first DMA to the last"


@st.composite
def patterns(draw, elems, most):
    """(shape, strides, first element) of a view inside `elems` elements: any signs, zeros, rows over rows."""
    shape, strides = [], []
    low = high = 0
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 5))
        room = min(most, (elems - 1 - high + low) // max(1, count - 1))
        stride = draw(st.integers(-room, room))
        low, high = low + min(0, stride * (count - 1)), high + max(0, stride * (count - 1))
        shape.append(count)
        strides.append(stride)
    return tuple(shape), tuple(strides), draw(st.integers(-low, elems - 1 - high))


def box(shape, strides, offset=0):
    return Region(StorageInfo("", (1 << 22,), "uint8", SHARED_HBM, ""), "uint8", shape, strides, offset)


def test_views_of_very_many_runs_are_compared_by_their_ends():
    """Above the limit two interleaved views count as meeting, which costs a wait; their ends still tell them apart."""
    count = RUNS_COMPARED + 1
    for n, odd, meet in ((count, 1, True), (count, 2 * count, False), (count - 1, 1, False)):
        assert overlaps(extent(box((n,), (2,))), extent(box((n,), (2,), odd))) == meet


@st.composite
def views(draw, info):
    """A view of a storage: any strides, or a box of a row-major tensor that fills it."""
    dtype = draw(st.sampled_from(["uint8", "bfloat16"]))
    elems = NUM_BYTES // DTYPES[dtype].itemsize
    if draw(st.booleans()):
        sizes = draw(st.sampled_from([(4, 5, 6), (10, 12), (2, 3, 4, 5), (120,)]))
        begins = [draw(st.integers(0, size - 1)) for size in sizes]
        shape = [draw(st.integers(1, size - begin)) for size, begin in zip(sizes, begins, strict=True)]
        strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
        return Region(info, dtype, tuple(shape), tuple(strides), sum(map(operator.mul, begins, strides)))
    return Region(info, dtype, *draw(patterns(elems, 30)))


NUM_BYTES = 240
INFO = StorageInfo("", (NUM_BYTES,), "uint8", SHARED_HBM, "")


def waits(accesses):
    """What each access waits for, from the bytes of all that came before it; who is covered by a write is forgotten."""
    known, found = [], []
    for region, writes in accesses:
        e, mine = extent(region), touched(region)
        for _, one, _ in known:
            assert overlaps(e, extent(one)) == bool(touched(one) & mine)
            assert not covers(e, extent(one), False) or touched(one) <= mine
        met = [(i, one, wrote) for i, one, wrote in known if (writes or wrote) and touched(one) & mine]
        found.append({i for i, _, _ in met})
        if writes:
            hidden = {i for i, one, _ in met if covers(e, extent(one), False)}
            known = [one for one in known if one[0] not in hidden]
        known.append((len(found) - 1, region, writes))
    return found


@draws(80, 5000)
@given(st.lists(st.tuples(views(INFO), st.booleans()), min_size=1, max_size=12))
def test_waits_are_those_of_every_byte(accesses):
    instructions = [
        Instruction(i, "dma", "dma_copy", (region,) if writes else (), () if writes else (region,), {}, "", 0)
        for i, (region, writes) in enumerate(accesses)
    ]
    dependencies = Dependencies(written_storages(instructions))
    found = [set().union(*dependencies.of(one, one.index)) for one in instructions]
    if not any(writes for _, writes in accesses):
        assert found == [set()] * len(accesses)
    else:
        assert found == waits(accesses)


def test_a_view_that_is_not_compared_run_by_run_meets_all_between_its_ends():
    """It counts as overlapping them, and must be found to do so."""
    count = RUNS_COMPARED + 1
    even, odd = box((count,), (2,)), box((count, 1), (2, 1), 1)
    grid = Grid(extent(even), 1 << 22, HBM_SLICES)
    assert set(grid.cells(extent(even))) & set(grid.cells(extent(odd)))
    narrow = Grid(extent(box((128, 512), (1 << 15, 1))), 1 << 22, HBM_SLICES)
    assert set(narrow.cells(extent(even))) & set(narrow.cells(extent(box((2, 1), (1 << 15, 1), 513))))
