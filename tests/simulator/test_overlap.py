"""overlaps() and covers() of two views of one storage, against sets of bytes counted one by one."""

from __future__ import annotations

import itertools

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from nkiconv.simulator.dtypes import DTYPES
from nkiconv.simulator.memory import PRIVATE_HBM, PSUM, SBUF, Region, StorageInfo
from nkiconv.simulator.timeline.overlap import RUNS_COMPARED, covers, extent, overlaps

#: bytes of one partition of the on-chip storages, and of the HBM ones: small, so that views meet often
ROW, PARTITIONS, FLAT = 48, 4, 96
DTYPE_NAMES = ("uint8", "bfloat16", "float32")


def storage(buffer):
    shape = (FLAT,) if buffer is PRIVATE_HBM else (PARTITIONS, ROW)
    return StorageInfo("", shape, "uint8", buffer, "")


def touched(region):
    size = region.itemsize
    indices = itertools.product(*(range(n) for n in region.shape))
    firsts = (region.offset + sum(i * s for i, s in zip(index, region.strides, strict=True)) for index in indices)
    return {first * size + byte for first in firsts for byte in range(size)}


@st.composite
def patterns(draw, elems):
    """(shape, strides, first element) of a view inside `elems` elements: any signs, zeros, rows over rows."""
    shape, strides = [], []
    low = high = 0
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 5))
        room = (elems - 1 - (high - low)) // max(1, count - 1)
        stride = draw(st.integers(-min(room, 12), min(room, 12)))
        low, high = low + min(0, stride * (count - 1)), high + max(0, stride * (count - 1))
        shape.append(count)
        strides.append(stride)
    first = draw(st.integers(-low, elems - 1 - high))
    return tuple(shape), tuple(strides), first


@st.composite
def slices(draw, elems):
    """The same for what indexing makes: every step-th element of one row-major dim or two."""
    columns = draw(st.integers(1, elems))
    start, step = draw(st.integers(0, columns - 1)), draw(st.integers(1, 4))
    stop = draw(st.integers(start + 1, columns))
    count = -(-(stop - start) // step)
    rows = draw(st.integers(1, elems // columns))
    return (rows, count), (columns, step), start


@st.composite
def regions(draw, info):
    """A view of a storage in a dtype of its own; on chip a range of partitions times a pattern of free elements."""
    dtype = draw(st.sampled_from(DTYPE_NAMES))
    size = DTYPES[dtype].itemsize
    elems = info.bytes_per_partition // size if info.on_chip else info.num_bytes // size
    shape, strides, first = draw(st.one_of(patterns(elems), slices(elems)))
    if not info.on_chip:
        return Region(info, dtype, shape, strides, first)
    p0 = draw(st.integers(0, PARTITIONS - 1))
    rows = draw(st.integers(1, PARTITIONS - p0))
    return Region(info, dtype, (rows, *shape), (elems, *strides), p0 * elems + first)


@st.composite
def pairs_of_views(draw):
    """Two views of one storage, sometimes the same one shifted."""
    info = storage(draw(st.sampled_from([SBUF, PSUM, PRIVATE_HBM])))
    a = draw(regions(info))
    if draw(st.booleans()):
        return a, draw(regions(info))
    elems = info.bytes_per_partition // a.itemsize if info.on_chip else info.num_bytes // a.itemsize
    inside = [byte // a.itemsize % elems for byte in touched(a)]
    shift = draw(st.integers(-min(inside), elems - 1 - max(inside)))
    return a, a._replace(offset=a.offset + shift)


FEW, MANY = 500, pytest.param(5000, marks=pytest.mark.slow)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_against_sets_of_bytes(count):
    draws(count)(given(pairs_of_views())(check_against_sets_of_bytes))()


def check_against_sets_of_bytes(views):
    a, b = views
    bytes_a, bytes_b = touched(a), touched(b)
    first, second, on_chip = extent(a), extent(b), a.info.on_chip
    assert overlaps(first, second, on_chip) == bool(bytes_a & bytes_b)
    assert overlaps(second, first, on_chip) == bool(bytes_a & bytes_b)
    if covers(first, second, on_chip):
        assert bytes_b <= bytes_a
    if on_chip:
        assert covers(first, second, on_chip) == (bytes_b <= bytes_a), "on chip it is exact"
    assert covers(first, first, on_chip), "a view covers itself"


@draws(200)
@given(pairs_of_views())
def test_an_extent_bounds_its_view(views):
    region = views[0]
    e = extent(region)
    row = region.info.bytes_per_partition if region.info.on_chip else region.info.num_bytes
    found = touched(region)
    assert {byte // row for byte in found} == set(range(e.p0, e.p1))
    columns = {byte % row for byte in found}
    assert (min(columns), max(columns) + 1) == (e.b0, e.b1)
    if e.dense:
        assert columns == set(range(e.b0, e.b1))


def hbm(shape, strides, offset=0, dtype="uint8", size=1 << 22):
    return extent(Region(StorageInfo("", (size,), "uint8", PRIVATE_HBM, ""), dtype, shape, strides, offset))


# why                            two HBM views: shape, strides, offset           they meet    a covers b
HBM_VIEWS = [
    ("disjoint rows", ((4, 8), (16, 1), 0), ((4, 8), (16, 1), 8), False, False),
    ("rows that touch", ((4, 8), (16, 1), 0), ((4, 8), (16, 1), 7), True, False),
    ("interleaved columns", ((8, 4), (8, 2), 0), ((8, 4), (8, 2), 1), False, False),
    ("windows over windows", ((4, 8), (2, 1), 0), ((1, 2), (1, 1), 13), True, False),
    ("behind the last window", ((4, 8), (2, 1), 0), ((1, 2), (1, 1), 14), False, False),
    ("backwards and forwards", ((8,), (-2,), 14), ((8,), (2,), 1), False, False),
    ("backwards over forwards", ((8,), (-2,), 15), ((8,), (2,), 1), True, False),
    ("a whole block and its rows", ((64,), (1,), 0), ((4, 3), (16, 5), 2), True, True),
    ("one and the same", ((4, 3), (16, 5), 2), ((4, 3), (16, 5), 2), True, True),
]


@pytest.mark.parametrize(("why", "a", "b", "meet", "cover"), HBM_VIEWS, ids=[row[0] for row in HBM_VIEWS])
def test_hbm_views(why, a, b, meet, cover):
    assert overlaps(hbm(*a), hbm(*b), False) == meet
    assert covers(hbm(*a), hbm(*b), False) == cover


def test_hbm_cover_may_be_missed_but_not_invented():
    """Two halves of one pattern: a holds b, but to find that out is too dear; a wait too many is no error."""
    a, b = hbm((4, 3), (16, 5)), hbm((2, 3), (16, 5))
    assert overlaps(a, b, False)
    assert not covers(a, b, False)


def test_views_of_very_many_runs_are_compared_by_their_ends():
    """Above the limit two interleaved views count as meeting, which costs a wait; their ends still tell them apart."""
    count = RUNS_COMPARED + 1
    even, odd = hbm((count,), (2,)), hbm((count,), (2,), 1)
    assert overlaps(even, odd, False)
    assert not overlaps(even, hbm((count,), (2,), 2 * count), False)
    assert not overlaps(hbm((count - 1,), (2,)), hbm((count - 1,), (2,), 1), False)


def test_long_rows_on_chip():
    """A whole partition of SBUF: every other of 50,000 fp32 elements."""
    info = StorageInfo("", (128, 50_000), "float32", SBUF, "")
    views = [extent(Region(info, "float32", (128, 25_000), (50_000, 2), offset)) for offset in (0, 1)]
    assert not overlaps(*views, True)
    assert overlaps(views[0], extent(Region(info, "float32", (1, 1), (50_000, 1), 127 * 50_000 + 49_998)), True)
    assert not overlaps(views[0], extent(Region(info, "float32", (1, 1), (50_000, 1), 127 * 50_000 + 49_999)), True)
