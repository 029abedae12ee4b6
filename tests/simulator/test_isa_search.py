"""max8, nc_find_index8, nc_match_replace8 and topk against Python lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isa_tiles import LAYOUTS, a_tile, evaluate, fill, get, place, put, result, rounded, same

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

U16, U32 = nl.uint16, nl.uint32
ONES = {U16: 0xFFFF, U32: 0xFFFFFFFF}


def draws(seed, shape, dtype=np.float32, copies=9):
    """Random values, many of them equal."""
    return np.random.default_rng(seed).integers(0, copies, shape).astype(dtype)


# max8.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint16", "int32"])
@pytest.mark.parametrize("out", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=["sbuf", "psum"])
def test_max8(dtype, out, buffer):
    values = rounded(np.random.default_rng(3).normal(scale=30.0, size=(33, 17)), dtype)
    found = result(nisa.max8, (33, 8), out, a_tile(values, dtype, buffer))
    same(found, rounded([sorted(row, reverse=True)[:8] for row in values.astype(np.float32).tolist()], out))


def test_max8_keeps_copies_and_infinities():
    values = np.array([[1, np.inf, -np.inf, 2, 2, 2, -np.inf, 0]], np.float32)
    assert result(nisa.max8, (1, 8), nl.float32, values).tolist() == [[np.inf, 2, 2, 2, 1, 0, -np.inf, -np.inf]]


@pytest.mark.parametrize(("layout", "partitions"), [*itertools.product(LAYOUTS, (1, 32, 128))])
def test_searches_of_views(layout, partitions):
    values = draws(1, (partitions, 3, 7))

    def body():
        data = fill(place(layout, values.shape, nl.float32), values)
        top, where = (place(layout, (partitions, 8), dtype) for dtype in (nl.float32, U32))
        nisa.max8(top, data)
        nisa.nc_find_index8(where, data, top)
        return get(top), get(where)

    top, where = evaluate(body)
    flat = values.reshape(partitions, -1)
    np.testing.assert_array_equal(top, -np.sort(-flat, axis=1)[:, :8])
    np.testing.assert_array_equal(where, np.argsort(-flat, axis=1, kind="stable")[:, :8])


# nc_find_index8.


def found(data, vals, dtype=U32):
    """nc_find_index8 by the definition: each copy of a value takes the next element that equals it."""
    left = list(data)
    out = []
    for value in vals:
        at = left.index(value) if value in left else None
        out.append(ONES[dtype] if at is None else at)
        if at is not None:
            left[at] = None
    return out


@pytest.mark.parametrize("dtype", [U16, U32])
@pytest.mark.parametrize(("of", "wanted"), [(np.float32, np.float32), (np.int32, np.uint32), (np.uint8, np.float32)])
def test_nc_find_index8(dtype, of, wanted):
    data, vals = draws(4, (5, 4, 6), of), draws(5, (5, 8), wanted, copies=11)
    expected = [found(row.reshape(-1).tolist(), v.tolist(), dtype) for row, v in zip(data, vals, strict=True)]
    assert ONES[dtype] in np.array(expected), "some values must be absent"
    assert result(nisa.nc_find_index8, (5, 8), dtype, data, vals).tolist() == expected


def test_a_broadcast_value_finds_its_first_place_first():
    data = np.array([[3, 9, 1, 9, 0, 0, 0, 0, 0]], np.float32)

    def body():
        dst = nl.ndarray((1, 8), U16)
        nisa.nc_find_index8(dst, put(data), put(np.array([[9]], np.float32)).broadcast(1, 8))
        return get(dst)

    assert evaluate(body).tolist() == [[1, 3, *[0xFFFF] * 6]]


def test_a_nan_is_found_nowhere():
    data = np.array([[np.nan, *range(8)]], np.float32)
    vals = np.array([[np.nan, -0.0, 1, 2, 3, 4, 5, 6]], np.float32)
    assert result(nisa.nc_find_index8, (1, 8), U16, data, vals).tolist() == [[0xFFFF, 1, 2, 3, 4, 5, 6, 7]]


# nc_match_replace8.


def replaced(data, vals, imm):
    """(data, indices) of nc_match_replace8 by the definition: as nc_find_index8, values from the last to the first."""
    places = found(data, vals[::-1])[::-1]
    return [imm if i in places else x for i, x in enumerate(data)], places


def test_the_documented_example_of_copies():
    data, vals = [1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8], [3, *[8] * 7]

    def body():
        dst, where = nl.ndarray((1, 11), nl.float32), nl.ndarray((1, 8), U32)
        nisa.nc_match_replace8(dst, put(np.array([data], np.float32)), put(np.array([vals], np.float32)), 0.0, where)
        return get(dst), get(where)

    values, where = evaluate(body)
    assert where.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert values.tolist() == [[1, 2, 0, 4, *[0] * 7]]


@pytest.mark.parametrize("imm", [-np.inf, 3.0, 4], ids=str)
@pytest.mark.parametrize("out", ["float32", "bfloat16", "int16"])
@pytest.mark.parametrize("indices", [None, U16, U32])
def test_nc_match_replace8(imm, out, indices):
    data, vals = draws(6, (7, 5, 3)), draws(7, (7, 2, 4), copies=11)

    def body():
        dst = nl.ndarray(data.shape, out, nl.psum)
        where = None if indices is None else nl.ndarray((7, 8), indices)
        nisa.nc_match_replace8(dst, put(data), put(vals), imm, where)
        return get(dst), None if where is None else get(where)

    values, where = evaluate(body)
    expected = [
        replaced(row.reshape(-1).tolist(), v.reshape(-1).tolist(), imm) for row, v in zip(data, vals, strict=True)
    ]
    same(values, rounded([row for row, _ in expected], out).reshape(data.shape))
    if indices is not None:
        places = np.array([row for _, row in expected], np.uint32)
        same(where, places.astype(indices))


def test_replacing_in_place_sorts():
    values = np.random.default_rng(8).permutation(40).reshape(1, 40).astype(np.float32)

    def body():
        data, top, where = put(values), nl.ndarray((1, 40), nl.float32), nl.ndarray((1, 40), U32)
        for eight in range(0, 40, 8):
            nisa.max8(top[:, eight : eight + 8], data)
            nisa.nc_match_replace8(data, data, top[:, eight : eight + 8], -np.inf, where[:, eight : eight + 8])
        return get(top), get(where)

    top, where = evaluate(body)
    assert top.tolist() == [[*range(39, -1, -1)]]
    np.testing.assert_array_equal(np.take_along_axis(values, where.astype(np.int64), 1), top)


@given(st.lists(st.integers(0, 3), min_size=8, max_size=20), st.lists(st.integers(0, 4), min_size=8, max_size=8))
def test_searches_of_any_row(data, vals):
    def body():
        dst, there, here = nl.ndarray((1, len(data)), nl.float32), nl.ndarray((1, 8), U32), nl.ndarray((1, 8), U32)
        row, eight = put(np.array([data], np.float32)), put(np.array([vals], np.float32))
        nisa.nc_find_index8(there, row, eight)
        nisa.nc_match_replace8(dst, row, eight, -1.0, here)
        return get(there).tolist()[0], get(dst).tolist()[0], get(here).tolist()[0]

    assert evaluate(body) == (found(data, vals), *replaced(data, vals, -1.0))


# topk.


def snake(values, columns):
    """[16, columns] of values, column after column, and NaN where there are none."""
    tile = np.full(16 * columns, np.nan, np.float32)
    tile[: len(values)] = values
    return tile.reshape(columns, 16).T


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(("n", "k"), [(8, 1), (42, 8), (48, 16), (64, 20), (33, 33), (128, 64)])
def test_topk(groups, n, k):
    rows = [np.random.default_rng(g).permutation(n) - n / 2 for g in range(groups)]
    columns, written = -(-n // 16) + 1, -(-k // 16)
    source = rounded(np.concatenate([snake(row, columns) for row in rows]), "bfloat16")

    def body():
        values, places = nl.ndarray((16 * groups, k), nl.bfloat16), nl.ndarray((16 * groups, k), U32)
        nisa.topk(values, places, put(source), n)
        return values.storage.array(values).copy(), places.storage.array(places).copy()

    values, places = evaluate(body)
    for g, row in enumerate(rows):
        group = slice(16 * g, 16 * g + 16)
        top = values[group, :written].T.reshape(-1).astype(np.float32)
        assert top[:k].tolist() == sorted(row)[-k:]
        assert np.isnan(top[k:]).all(), "poison beyond the results"
        np.testing.assert_array_equal(row[places[group, :written].T.reshape(-1)[:k]], sorted(row)[-k:])


def test_topk_ignores_what_lies_beyond_n_and_leaves_other_columns():
    def body():
        src = nl.ndarray((16, 4), nl.bfloat16)
        fill(src[:, 0:1], np.arange(16).reshape(16, 1))  # nothing wrote the other three columns
        values, places = put(np.full((16, 9), 7, np.float32), nl.bfloat16), put(np.full((16, 9), 7, np.uint32))
        nisa.topk(values[:, 0:8], places[:, 0:8], src, 12)
        return get(values), get(places)

    values, places = evaluate(body)
    assert values[:8, 0].tolist() == places[:8, 0].tolist() == [*range(4, 12)]
    assert (places[8:, 0] == ONES[U32]).all()
    assert (places[:, 1:] == 7).all()
    assert (values[:, 1:] == 7).all()


def test_topk_of_equal_values_prefers_the_lower_place():
    def body():
        values, places = nl.ndarray((16, 3), nl.bfloat16), nl.ndarray((16, 3), U32)
        nisa.topk(values, places, nl.ones((16, 1), nl.bfloat16, nl.sbuf), 16)
        return get(places[0:3, 0:1])

    assert evaluate(body).tolist() == [[2], [1], [0]]
