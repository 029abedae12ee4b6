"""The grid that accesses to HBM are found again by, and the waits found with it, against sets of bytes."""

import itertools

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from nkiconv.simulator.dtypes import DTYPES
from nkiconv.simulator.memory import SHARED_HBM, Region, StorageInfo
from nkiconv.simulator.program import Instruction
from nkiconv.simulator.timeline.dependencies import HBM_SLICES, Dependencies, written_storages
from nkiconv.simulator.timeline.grid import Grid
from nkiconv.simulator.timeline.overlap import RUNS_COMPARED, covers, extent

NUM_BYTES = 240


def touched(region):
    indices = itertools.product(*(range(n) for n in region.shape))
    firsts = (region.offset + sum(i * s for i, s in zip(index, region.strides, strict=True)) for index in indices)
    return {first * region.itemsize + byte for first in firsts for byte in range(region.itemsize)}


@st.composite
def views(draw, info):
    """A view of a storage: any strides, or a box of a row-major tensor that fills it."""
    dtype = draw(st.sampled_from(["uint8", "bfloat16"]))
    elems = NUM_BYTES // DTYPES[dtype].itemsize
    shape, strides, low, high = [], [], 0, 0
    if draw(st.booleans()):
        sizes = draw(st.sampled_from([(4, 5, 6), (10, 12), (2, 3, 4, 5), (120,)]))
        offset = 0
        for dim, size in enumerate(sizes):
            begin = draw(st.integers(0, size - 1))
            end = draw(st.integers(begin + 1, size))
            stride = 1
            for inner in sizes[dim + 1 :]:
                stride *= inner
            shape.append(end - begin)
            strides.append(stride)
            offset += begin * stride
        return Region(info, dtype, tuple(shape), tuple(strides), offset)
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 5))
        room = min(30, (elems - 1 - high + low) // max(1, count - 1))
        stride = draw(st.integers(-room, room))
        low, high = low + min(0, stride * (count - 1)), high + max(0, stride * (count - 1))
        shape.append(count)
        strides.append(stride)
    return Region(info, dtype, tuple(shape), tuple(strides), draw(st.integers(-low, elems - 1 - high)))


INFO = StorageInfo("", (NUM_BYTES,), "uint8", SHARED_HBM, "")


FEW, MANY = 300, pytest.param(3000, marks=pytest.mark.slow)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_views_that_share_a_byte_share_a_cell(count):
    three = views(INFO), views(INFO), views(INFO)
    draws(count)(given(*three, st.sampled_from([1, 2, 3, 64]))(check_cells))()


def check_cells(typical, a, b, most):
    grid = Grid(extent(typical), NUM_BYTES, most)
    cells_a, cells_b = list(grid.cells(extent(a))), list(grid.cells(extent(b)))
    assert len(set(cells_a)) == len(cells_a)
    assert min(cells_a) >= 0
    if touched(a) & touched(b):
        assert set(cells_a) & set(cells_b)


def waits(accesses):
    """What each access waits for, from the bytes of all that came before it.

    A writer is forgotten when one write covers it, as is a reader.
    """
    known, found = [], []
    for region, writes in accesses:
        e, mine = extent(region), touched(region)
        met = [(i, one, wrote) for i, one, wrote in known if (writes or wrote) and touched(one) & mine]
        found.append({i for i, _, _ in met})
        if writes:
            hidden = {i for i, one, _ in met if covers(e, extent(one), False)}
            known = [one for one in known if one[0] not in hidden]
        known.append((len(found) - 1, region, writes))
    return found


@pytest.mark.parametrize("count", [FEW, MANY])
def test_waits_are_those_of_every_byte(count):
    """DMAs on one storage, in program order."""
    some = st.lists(st.tuples(views(INFO), st.booleans()), min_size=1, max_size=12)
    draws(count)(given(some)(check_waits))()


def check_waits(accesses):
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


def box(shape, strides, offset=0):
    return Region(StorageInfo("", (1 << 22,), "uint8", SHARED_HBM, ""), "uint8", shape, strides, offset)


# what is written                       a view: shape, strides           another's offset
APART = [
    ("rows of every channel", ((128, 512), (1 << 15, 1)), 512),
    ("rows of channels of images", ((8, 16, 512), (1 << 19, 1 << 15, 1)), 512),
    ("columns of every row", ((64, 2, 32), (1 << 15, 128, 1)), 256),
    ("other channels", ((16, 512), (1 << 15, 1)), 1 << 19),
    ("blocks", ((1 << 15,), (1,)), 1 << 15),
]


@pytest.mark.parametrize(("what", "view", "step"), APART, ids=[row[0] for row in APART])
def test_views_side_by_side_share_no_cell(what, view, step):
    """All that are written beside each other, so that none is compared with all others."""
    grid = Grid(extent(box(*view)), 1 << 22, HBM_SLICES)
    cells = [set(grid.cells(extent(box(*view, i * step)))) for i in range(HBM_SLICES)]
    assert all(len(each) <= 2 for each in cells)
    assert max(len([each for each in cells if i in each]) for i in set().union(*cells)) <= 2


def test_a_view_that_is_not_compared_run_by_run_meets_all_between_its_ends():
    """It counts as overlapping them, and must be found to do so."""
    count = RUNS_COMPARED + 1
    even, odd = box((count,), (2,)), box((count, 1), (2, 1), 1)
    grid = Grid(extent(even), 1 << 22, HBM_SLICES)
    assert set(grid.cells(extent(even))) & set(grid.cells(extent(odd)))
    narrow = Grid(extent(box((128, 512), (1 << 15, 1))), 1 << 22, HBM_SLICES)
    assert set(narrow.cells(extent(even))) & set(narrow.cells(extent(box((2, 1), (1 << 15, 1), 513))))


def test_the_typical_view_is_the_one_written_most_often():
    often, once = box((4, 8), (64, 1)), box((32,), (1,))
    often, once = often._replace(info=once.info), once
    writes = [once, *(often._replace(offset=8 * i) for i in range(3))]
    made = [Instruction(i, "dma", "dma_copy", (region,), (), {}, "", 0) for i, region in enumerate(writes)]
    (found,) = written_storages(made).values()
    assert (found.shape, found.strides) == (often.shape, often.strides)
