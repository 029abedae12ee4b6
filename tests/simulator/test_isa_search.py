"""Searches, selections by range, cumulations and gathers against NumPy and Python loops."""

import itertools
import operator

import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, fill, get, laid, out, put, result, results, rounded, row, same, sample

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.ops import OPS

CMD = nisa.reduce_cmd
F32, U16, U32 = nl.float32, nl.uint16, nl.uint32
ONES = {U16: 0xFFFF, U32: 0xFFFFFFFF}


def draws(seed, shape, dtype=np.float32, copies=9):
    """Random values, many of them equal."""
    return np.random.default_rng(seed).integers(0, copies, shape).astype(dtype)


# max8.


@pytest.mark.parametrize(("dtype", "to"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("int32", "int32")])
def test_max8(dtype, to):
    values = np.random.default_rng(3).normal(scale=3.0, size=(33, 17)).round() + 0.0  # many are equal
    values[0, :2] = np.inf, -np.inf
    values = rounded(values, dtype)
    found = result(nisa.max8, (33, 8), to, a_tile(values, dtype, nl.psum))
    same(found, rounded([sorted(row, reverse=True)[:8] for row in values.astype(np.float32).tolist()], to))


# nc_find_index8.


def found(data, vals, dtype=U32):
    """nc_find_index8 by the definition: each copy of a value takes the next element that equals it."""
    left, places = list(data), []
    for value in vals:
        places.append(left.index(value) if value in left else ONES[dtype])
        if value in left:
            left[places[-1]] = None
    return places


@pytest.mark.parametrize(("dtype", "of", "wanted"), [(U16, np.float32, np.float32), (U32, np.uint8, np.int32)])
def test_nc_find_index8(dtype, of, wanted):
    data, vals = draws(4, (5, 4, 6), of), draws(5, (5, 8), wanted, copies=11)
    expected = [found(row.reshape(-1).tolist(), v.tolist(), dtype) for row, v in zip(data, vals, strict=True)]
    assert ONES[dtype] in np.array(expected), "some values must be absent"
    assert result(nisa.nc_find_index8, (5, 8), dtype, data, vals).tolist() == expected


def test_a_nan_is_found_nowhere():
    data, vals = row(np.nan, *range(8)), row(np.nan, -0.0, 1, 2, 3, 4, 5, 6)
    assert result(nisa.nc_find_index8, (1, 8), U16, data, vals).tolist() == [[0xFFFF, 1, 2, 3, 4, 5, 6, 7]]


# nc_match_replace8.


def replaced(data, vals, imm):
    """(data, indices) of nc_match_replace8 by the definition: as nc_find_index8, values from the last to the first."""
    places = found(data, vals[::-1])[::-1]
    return [imm if i in places else x for i, x in enumerate(data)], places


def test_the_documented_example_of_copies():
    data, vals = [1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8], [3, *[8] * 7]
    values, where = results(nisa.nc_match_replace8, out((1, 11), F32), row(*data), row(*vals), 0.0, out((1, 8), U32))
    assert where.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert values.tolist() == [[1, 2, 0, 4, *[0] * 7]]


@pytest.mark.parametrize(
    ("imm", "to", "indices"), [(-np.inf, "float32", U16), (3.0, "bfloat16", None), (4, "int16", U32)]
)
def test_nc_match_replace8(imm, to, indices):
    data, vals = draws(6, (7, 5, 3)), draws(7, (7, 2, 4), copies=11)
    places = indices and out((7, 8), indices)
    values, *where = results(nisa.nc_match_replace8, out(data.shape, to, nl.psum), data, vals, imm, places)
    rows = zip(data.reshape(7, -1).tolist(), vals.reshape(7, -1).tolist(), strict=True)
    expected = [replaced(*one, imm) for one in rows]
    same(values, rounded([one for one, _ in expected], to).reshape(data.shape))
    for one in where:
        same(one, np.array([at for _, at in expected], np.uint32).astype(indices))
    assert len(where) == (indices is not None)


# topk.


def snake(values, columns):
    """[16, columns] of values, column after column, and NaN where there are none."""
    tile = np.full(16 * columns, np.nan, np.float32)
    tile[: len(values)] = values
    return tile.reshape(columns, 16).T


@pytest.mark.parametrize(("groups", "n", "k"), [(1, 8, 1), (2, 42, 8), (8, 33, 33), (1, 128, 64)])
def test_topk(groups, n, k):
    rows = [np.random.default_rng(g).permutation(n) - n / 2 for g in range(groups)]
    columns, written = -(-n // 16) + 1, -(-k // 16)
    source = rounded(np.concatenate([snake(row, columns) for row in rows]), "bfloat16")

    def body():
        values, places = nl.ndarray((16 * groups, k), nl.bfloat16), nl.ndarray((16 * groups, k), U32)
        nisa.topk(values, places, put(source), n)
        return values.storage.array(values).copy(), places.storage.array(places).copy()

    values, places = evaluate(body)
    for g, one in enumerate(rows):
        group = slice(16 * g, 16 * g + 16)
        top = values[group, :written].T.reshape(-1).astype(np.float32)
        assert top[:k].tolist() == sorted(one)[-k:]
        assert np.isnan(top[k:]).all(), "poison beyond the results"
        np.testing.assert_array_equal(one[places[group, :written].T.reshape(-1)[:k]], sorted(one)[-k:])


def test_topk_ignores_what_lies_beyond_n_and_leaves_other_columns():
    def best(values, places):
        src = nl.ndarray((16, 4), nl.bfloat16)
        fill(src[:, 0:1], np.arange(16).reshape(16, 1))  # nothing wrote the other three columns
        nisa.topk(values[:, 0:8], places[:, 0:8], src, 12)

    values, places = results(best, *(out(np.full((16, 9), 7), dtype) for dtype in (nl.bfloat16, U32)))
    assert values[:8, 0].tolist() == places[:8, 0].tolist() == [*range(4, 12)]
    assert (places[8:, 0] == ONES[U32]).all()
    assert all((one[:, 1:] == 7).all() for one in (places, values))


def test_topk_of_equal_values_prefers_the_lower_place():
    def body():
        values, places = nl.ndarray((16, 3), nl.bfloat16), nl.ndarray((16, 3), U32)
        nisa.topk(values, places, nl.ones((16, 1), nl.bfloat16, nl.sbuf), 16)
        return get(places[0:3, 0:1])

    assert evaluate(body).tolist() == [[2], [1], [0]]


# range_select.

LOWEST = np.finfo(np.float32).min
TESTS = {
    "equal": operator.eq, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge,
}  # fmt: skip


def column(values):
    return np.asarray(values, np.float32).reshape(-1, 1)


@pytest.mark.parametrize(
    ("op0", "op1", "to"), [*zip(TESTS, reversed(TESTS), ["float32", "bfloat16"] * 2 + ["float32"], strict=True)]
)
def test_range_select(op0, op1, to, rng):
    values = rng.normal(size=(5, 3, 4)).astype(np.float32)
    low, high = column([2, 3, 4.5, 10, -1]), column([6, 3, 12, 4, 2])
    more = {"reduce_res": out((5, 1), F32), "range_start": 1}
    data = a_tile(values, buffer=nl.psum)
    selected, best = results(nisa.range_select, out((5, 12), to), data, OPS[op0], OPS[op1], low, high, **more)
    places = 1 + np.arange(12)
    expected = np.where(TESTS[op0](places, low) & TESTS[op1](places, high), values.reshape(5, 12), LOWEST)
    same(selected, rounded(expected, to))
    same(best, expected.max(axis=1, keepdims=True))


def test_range_select_chains_its_maximum():
    def select(best, low, high):
        for start, command, to in ((0, CMD.reset_reduce, None), (4, CMD.reduce, best)):
            data = put(row(9, 1, 2, 3) - start)
            dst = nl.ndarray((1, 4), F32)
            nisa.range_select(dst, data, nl.greater, nl.less, low, high, command, to, range_start=start)

    # 9 - 4 at place 4; the 9 at place 0 is outside
    assert results(select, out((1, 1), F32), column([0]), column([7]))[0].item() == 5


# tensor_scalar_cumulative.

STEPS = {
    "add": (operator.add, 0), "subtract": (operator.sub, 0), "multiply": (operator.mul, 1), "maximum": (max, -np.inf),
    "minimum": (min, np.inf),
}  # fmt: skip


def cumulated(values, step, start):
    """reg = values[i] op reg, along each row, in fp32."""
    return np.array([[*itertools.accumulate(one, lambda reg, x: step(x, reg), initial=np.float32(start))][1:]
                     for one in values], np.float32)  # fmt: skip


@pytest.mark.parametrize(("op", "dtype", "to"), [
    ("add", "float32", "float32"), ("subtract", "bfloat16", "int16"), ("multiply", "uint8", "bfloat16"),
    ("maximum", "float32", "bfloat16"), ("minimum", "int16", "float32"),
])  # fmt: skip
def test_tensor_scalar_cumulative(op, dtype, to, rng):
    values = rounded(rng.integers(0, 3, (5, 3, 4)), dtype)
    flat = values.astype(np.float32).reshape(5, 12) - 1
    found = result(nisa.tensor_scalar_cumulative, (5, 12), to, values, nl.subtract, OPS[op], 1.0, to=nl.psum)
    same(found, rounded(cumulated(flat, *STEPS[op]), to))


def test_tensor_scalar_cumulative_of_views_with_operand_tiles(rng):
    values = rng.integers(-4, 5, (32, 2, 3)).astype(np.float32)
    by, start = column(rng.integers(-2, 3, 32)), column(rng.integers(-9, 9, 32))
    dst, src = out(values.shape, F32, layout="strided"), laid("permuted", values)
    [sums] = results(nisa.tensor_scalar_cumulative, dst, src, nl.multiply, nl.add, by, start, CMD.load_reduce)
    same(sums.reshape(32, 6), ((values.reshape(32, 6) * by).cumsum(axis=1) + start).astype(np.float32))


def test_cumulating_goes_on_and_shares_the_registers():
    def cumulate(dst, total, values):
        nisa.tensor_scalar_cumulative(dst[:, 0:3], values, nl.multiply, nl.add, 1.0)
        nisa.tensor_scalar_cumulative(dst[:, 3:6], values, nl.multiply, nl.add, 10.0, reduce_cmd=CMD.reduce)
        nisa.tensor_scalar_reduce(values, values, nl.multiply, 100.0, nl.add, total, reduce_cmd=CMD.reduce)

    sums, total = results(cumulate, out((1, 6), F32), out(column([0]), F32), row(1, 2, 3))
    assert sums.tolist() == [[1, 3, 6, 16, 36, 66]]
    assert total.item() == 666


# local_gather and nc_n_gather.


@pytest.mark.parametrize(("dtype", "partitions", "columns", "width", "count"), [
    ("float32", 16, 1, 1, None), ("bfloat16", 32, 3, 1, 40), ("uint8", 128, 2, 32, 5),
])  # fmt: skip
def test_local_gather(dtype, partitions, columns, width, count, rng):
    values = sample(rng, (partitions, 8, 6), dtype)
    index = rng.integers(0, 48 - width + 1, (partitions, columns)).astype(np.uint16)
    used = 16 * columns if count is None else count
    expected = np.empty((partitions, used, width), values.dtype)
    for p, k in np.ndindex(partitions, used):
        first = index[p // 16 * 16 + k % 16, k // 16]
        expected[p, k] = values[p].reshape(-1)[first : first + width]
    found = result(nisa.local_gather, (partitions, used, width), dtype, a_tile(values, dtype), index, width, count)
    same(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool_"])
def test_nc_n_gather(dtype, rng):
    values, index = sample(rng, (32, 3, 5), dtype), rng.integers(0, 15, (32, 4, 7)).astype(np.uint32)
    dst = out(index.shape, dtype, layout="strided")
    [found] = results(nisa.nc_n_gather, dst, laid("permuted", values, dtype), laid("shifted", index))
    expected = np.take_along_axis(values.reshape(32, -1), index.reshape(32, -1).astype(np.int64), 1)
    same(found, expected.reshape(index.shape))


# sequence_bounds and nonzero_with_count.


@pytest.mark.parametrize(("dtype", "to"), [("float32", "int32"), ("int32", "float32")])
def test_the_documented_example_of_segments(dtype, to):
    ids = row(0, 1, 1, 2, 2, 2, 0, 3, 3, dtype=dtype)
    expected = [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]
    same(result(nisa.sequence_bounds, (1, 2, 9), to, ids), np.array(expected, to))


@pytest.mark.parametrize(("dtype", "partitions", "shape"), [("float32", 17, (3, 5)), ("int32", 128, (4, 4))])
def test_nonzero_with_count(dtype, partitions, shape, rng):
    values = rng.integers(-1, 2, (partitions, *shape)).astype(dtype)
    size = int(np.prod(shape))
    expected = np.full((partitions, size + 1), 77, np.int32)
    [found] = results(nisa.nonzero_with_count, out(expected, nl.int32), values, 16, -5)
    for p in range(0, partitions, 16):
        places = [16 + i for i, x in enumerate(values[p].reshape(-1)) if x]
        expected[p] = [*places, *[-5] * (size - len(places)), len(places)]
    same(found, expected)


def test_nonzero_with_count_reads_no_other_partition():
    def body():
        src, dst = nl.ndarray((33, 2), F32), nl.ndarray((33, 3), nl.int32)
        for p in (0, 16, 32):
            fill(src[p : p + 1], np.array([[0, p]]))
        nisa.nonzero_with_count(dst, src)
        return [get(dst[p : p + 1]).tolist()[0] for p in (0, 16, 32)]

    assert evaluate(body) == [[-1, -1, 0], [1, -1, 1], [1, -1, 1]]
