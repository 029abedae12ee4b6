"""local_gather, nc_n_gather, sequence_bounds and nonzero_with_count against Python loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isa_tiles import LAYOUTS, a_tile, evaluate, fill, get, place, put, result, same, sample

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

# local_gather.


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "int32"])
@pytest.mark.parametrize(("partitions", "columns", "width", "count"), [
    (16, 1, 1, None), (32, 3, 1, 40), (128, 4, 4, 64), (128, 2, 32, 5), (64, 256, 1, None),
])  # fmt: skip
def test_local_gather(dtype, partitions, columns, width, count, rng):
    values = sample(rng, (partitions, 8, 6), dtype)
    index = rng.integers(0, 48 - width + 1, (partitions, columns)).astype(np.uint16)
    used = 16 * columns if count is None else count
    expected = np.empty((partitions, used, width), values.dtype)
    for p in range(partitions):
        for k in range(used):
            first = index[p // 16 * 16 + k % 16, k // 16]
            expected[p, k] = values[p].reshape(-1)[first : first + width]
    found = result(nisa.local_gather, (partitions, used, width), dtype, a_tile(values, dtype), index, width, count)
    same(found, expected)


# nc_n_gather.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint32", "bool_"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nc_n_gather(dtype, layout, rng):
    values = sample(rng, (32, 3, 5), dtype)
    index = rng.integers(0, 15, (32, 4, 7)).astype(np.uint32)

    def body():
        dst, data = place(layout, index.shape, dtype), fill(place(layout, values.shape, dtype), values)
        nisa.nc_n_gather(dst, data, fill(place(layout, index.shape, nl.uint32), index))
        return get(dst)

    expected = [[row.reshape(-1)[i] for i in at.reshape(-1)] for row, at in zip(values, index, strict=True)]
    same(evaluate(body), np.array(expected, values.dtype).reshape(index.shape))


def test_gathers_keep_the_payload_of_a_nan():
    bits = np.array([[0x7F800001, 0xFFC00002]], np.uint32)

    def body():
        dst = nl.ndarray((1, 2), nl.float32)
        nisa.nc_n_gather(dst, put(bits).view(nl.float32), put(np.array([[1, 0]], np.uint32)))
        return get(dst.view(nl.uint32))

    same(evaluate(body), bits[:, ::-1])


# sequence_bounds.


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("out", ["float32", "int32"])
def test_the_documented_example_of_segments(dtype, out):
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], dtype)
    expected = [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]
    same(result(nisa.sequence_bounds, (1, 2, 9), out, ids), np.array(expected, out))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_sequence_bounds_of_any_segments(ids):
    expected = []
    for i, wanted in enumerate(ids):
        first, end = i, i + 1
        while first > 0 and ids[first - 1] == wanted:
            first -= 1
        while end < len(ids) and ids[end] == wanted:
            end += 1
        expected.append((first, end) if wanted else (len(ids), -1))
    found = result(nisa.sequence_bounds, (1, 2, len(ids)), nl.int32, np.array([ids], np.int32))
    assert found[0].T.tolist() == [[*pair] for pair in expected]


# nonzero_with_count.


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(("partitions", "shape"), [(1, (8,)), (17, (3, 5)), (128, (4, 4))])
def test_nonzero_with_count(dtype, partitions, shape, rng):
    values = rng.integers(-1, 2, (partitions, *shape)).astype(dtype)
    size = int(np.prod(shape))

    def body():
        dst = put(np.full((partitions, size + 1), 77, np.int32))
        nisa.nonzero_with_count(dst, put(values), 16, -5)
        return get(dst)

    expected = np.full((partitions, size + 1), 77, np.int32)
    for p in range(0, partitions, 16):
        places = [16 + i for i, x in enumerate(values[p].reshape(-1)) if x]
        expected[p] = [*places, *[-5] * (size - len(places)), len(places)]
    same(evaluate(body), expected)


def test_nonzero_with_count_reads_no_other_partition():
    def body():
        src, dst = nl.ndarray((33, 2), nl.float32), nl.ndarray((33, 3), nl.int32)
        for p in (0, 16, 32):
            fill(src[p : p + 1], np.array([[0, p]]))
        nisa.nonzero_with_count(dst, src)
        return [get(dst[p : p + 1]).tolist()[0] for p in (0, 16, 32)]

    assert evaluate(body) == [[-1, -1, 0], [1, -1, 1], [1, -1, 1]]
