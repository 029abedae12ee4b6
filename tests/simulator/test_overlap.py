"""Views of one storage: overlaps(), covers() and waits for accesses to HBM, against sets of bytes."""

import math
import operator

from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from timelines import touched

from nkiconv.simulator.dtypes import DTYPES
from nkiconv.simulator.memory import SHARED_HBM, Region, StorageInfo
from nkiconv.simulator.program import Instruction
from nkiconv.simulator.timeline.dependencies import HBM_SLICES, Dependencies, written_storages
from nkiconv.simulator.timeline.grid import Grid
from nkiconv.simulator.timeline.overlap import RUNS_COMPARED, covers, extent, overlaps


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
    """DMAs on one storage, in program order."""
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
