"""What waits for space, loads that the compiler drops, and the Tensor Engine's throttle, against times worked out by
hand.

A window of the throttle lasts 3413.3 ns and the array starts at half rate: a window that is busy throughout does 1706.7
ns of full-rate work. 0.3725 of 3413.3 = 1271.5 ns of work releases the next window; at half rate that is 2542.9 ns,
74.5 % of it.
"""

import pytest
from timelines import BF16, ENGINE, FP32, HBM, PSUM, load, ns, store, tile, timed, vector

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator import timeline as tl
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
    "is released after the first busy window": (
        [(0, 2 * 1706.67, 3413.33 + 1706.67)], [(0, False), (3413.33, True)],
    ),
    # ten idle windows; busy from the middle of the eleventh: it does 853 by its end, less than 1271.5, so half rate
    # goes on through the twelfth, whose end is at 12 windows
    "the grid runs on through idle time": (
        [(10.5 * WINDOW, 4000, 12 * WINDOW + 4000 - 0.25 * WINDOW - 0.5 * WINDOW)], [(0, False), (12 * WINDOW, True)],
    ),
    # 413.3 ns at half rate do 206.7 of 1000; 1606.7 in this window release the next: 793.3 more at full rate
    "a stream across a line takes piecewise time": (
        [(0, 1400, 2800), (3000, 1000, 3413.33 + 793.33)], [(0, False), (3413.33, True)],
    ),
    # at full rate from 3413.3; idle until 6726.7, so that only 100 are done by the line at 6826.7; then half rate
    "a stream may lose its rate on the way": (
        [(0, 1700, 3400), (6726.67, 500, 6826.67 + 800)], [(0, False), (3413.33, True), (6826.67, False)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("streams", "changes"), STREAMS.values(), ids=STREAMS)
def test_streams(streams, changes):
    array = throttle()
    assert not array.at_full_rate(0.0)
    for start, full_ns, end in streams:
        assert array.stream(start, full_ns) == near(end)
    assert array.changes == [(near(at), full) for at, full in changes]


# phase, when a busy array is released: the first line whose whole window it was busy in, or enough of it
PHASES = [(0.0, 3413.3), (0.25, 2560.0), (0.26, 2525.9 + 3413.3), (0.9, 3754.7)]


@pytest.mark.parametrize(("phase", "released"), PHASES)
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
