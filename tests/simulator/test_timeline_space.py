"""What waits for space, by hand, and loads that the compiler drops because a tile holds their bytes."""

import pytest
from timelines import BF16, ENGINE, FP32, HBM, PSUM, load, ns, store, tile, timed, vector

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator import timeline as tl


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


# Loads that the compiler drops.


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


# Matmuls that nobody reads.


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
