"""What holds for the timeline of any program, tried on random small ones; and for views of one storage: overlaps(),
covers() and waits for accesses to HBM, against sets of bytes.
"""

import itertools
import math
import operator
from typing import NamedTuple

from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from timelines import DGE, ENGINE, FP32, HBM, PSUM, timed, touched

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.dtypes import DTYPES
from nkiconv.simulator.memory import SHARED_HBM, Region, StorageInfo
from nkiconv.simulator.program import Instruction
from nkiconv.simulator.timeline.dependencies import HBM_SLICES, Dependencies, written_storages
from nkiconv.simulator.timeline.grid import Grid
from nkiconv.simulator.timeline.overlap import RUNS_COMPARED, covers, extent, overlaps

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


def all_bytes(regions):
    """(storage, byte) of every byte that regions meet."""
    return {(region.info.id, byte) for region in regions for byte in touched(region)}


@draws(80, 200)
@given(st.lists(ANY, min_size=2, max_size=8), st.sampled_from(["program", "lookahead"]), st.booleans())
def test_whoever_shares_a_byte_waits(steps, order, throttle):
    """By bytes, not by the dependencies that the code found; a write on the same engine only has to keep its place."""
    tasks, line = timed(kernel(steps, rows=4, columns=8), order=order, throttle=throttle, tasks=True)
    reads, writes = ([all_bytes(getattr(task, kind)) for task in tasks.source] for kind in ("reads", "writes"))
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
