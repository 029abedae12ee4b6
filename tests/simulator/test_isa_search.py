"""Searches, selections by range, cumulations and gathers, by hand and against Python loops."""

import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, fill, get, laid, out, put, result, results, rounded, row, same, sample

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

CMD = nisa.reduce_cmd
F32, BF16, I32, U16, U32 = nl.float32, nl.bfloat16, nl.int32, nl.uint16, nl.uint32
ONES = {U16: 0xFFFF, U32: 0xFFFFFFFF}
DIGITS = row(3, 1, 4, 1, 5, 9, 2, 6, 5)
X, COLUMN = np.array([[2, 1, 3], [0, 4, 2]], np.float32), np.array([[10], [20]], np.float32)
CUMULATIVE, SEGMENTS = nisa.tensor_scalar_cumulative, row(0, 1, 1, 2, 2, 2, 0, 3, 3)
BOUNDS = [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]
#: An instruction, the dtype of its result, its operands after it, and what it holds.
VALUES = [
    (nisa.max8, BF16, (laid("permuted", DIGITS.reshape(1, 3, 3)),), [[9, 6, 5, 5, 4, 3, 2, 1]]),
    (nisa.max8, F32, (row(1, np.inf, -np.inf, 2, 2, 2, -np.inf, 0),), [[np.inf, 2, 2, 2, 1, 0, -np.inf, -np.inf]]),
    (nisa.max8, I32, (a_tile(DIGITS.astype(np.int8), buffer=nl.psum),), [[9, 6, 5, 5, 4, 3, 2, 1]]),
    # each copy of a value takes the next element that equals it
    (nisa.nc_find_index8, U16, (DIGITS, row(1, 1, 9, 7, 5, 1, 5, 3)), [[1, 3, 5, ONES[U16], 4, ONES[U16], 8, 0]]),
    (nisa.nc_find_index8, U32, (DIGITS.astype(np.uint8), row(8, *[6] * 7, dtype=np.int32)),
     [[ONES[U32], 7, *[ONES[U32]] * 6]]),
    (nisa.nc_find_index8, U16, (row(np.nan, *range(8)), row(np.nan, -0.0, 1, 2, 3, 4, 5, 6)),
     [[ONES[U16], 1, 2, 3, 4, 5, 6, 7]]),
    # reg = values op reg
    (CUMULATIVE, F32, (X, nl.subtract, nl.add, 1.0), [[1, 1, 3], [-1, 2, 3]]),
    (CUMULATIVE, nl.int16, (X, nl.subtract, nl.subtract, 1.0), [[1, -1, 3], [-1, 4, -3]]),
    (CUMULATIVE, BF16, (X, nl.add, nl.multiply, 1.0), [[3, 6, 24], [1, 5, 15]]),
    (CUMULATIVE, F32, (X, nl.multiply, nl.maximum, 1.0), [[2, 2, 3], [0, 4, 4]]),
    (CUMULATIVE, F32, (X, nl.multiply, nl.minimum, 1.0), [[2, 1, 1], [0, 0, 0]]),
    (CUMULATIVE, F32, (laid("permuted", X), nl.multiply, nl.add, COLUMN, COLUMN, CMD.load_reduce),
     [[30, 40, 70], [20, 100, 140]]),
    (nisa.nc_n_gather, F32, (laid("permuted", DIGITS.reshape(1, 3, 3)), row(8, 0, 5, dtype=np.uint32)), [[5, 3, 9]]),
    (nisa.nc_n_gather, nl.bool_, (a_tile(row(0, 1, 1), nl.bool_), row(1, 0, dtype=np.uint32)), [[1, 0]]),
    (nisa.sequence_bounds, I32, (SEGMENTS,), BOUNDS),
    (nisa.sequence_bounds, F32, (SEGMENTS.astype(np.int32),), BOUNDS),
]  # fmt: skip


@pytest.mark.parametrize(("call", "dtype", "operands", "expected"), VALUES)
def test_values(call, dtype, operands, expected):
    assert result(call, np.shape(expected), dtype, *operands).astype(np.float64).tolist() == expected


@pytest.mark.parametrize(("imm", "to", "indices"), [(-np.inf, F32, U16), (3.0, BF16, None), (0.0, nl.int16, U32)])
def test_the_documented_example_of_copies(imm, to, indices):
    data, vals = row(1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8), row(3, *[8] * 7)
    values, *where = results(
        nisa.nc_match_replace8, out((1, 11), to), data, vals, imm, indices and out((1, 8), indices)
    )
    assert values.tolist() == [[1, 2, imm, 4, *[imm] * 7]]
    assert [one.tolist() for one in where] == [[[2, 10, 9, 8, 7, 6, 5, 4]]] * (indices is not None)


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
#: Two tests of places 1, 2, 3 and 4, and which of them hold both.
RANGES = [
    (nl.greater, 1, nl.less, 4, [2, 3]), (nl.greater_equal, 2, nl.less_equal, 3, [2, 3]),
    (nl.equal, 4, nl.greater, 0, [4]), (nl.less, 3, nl.equal, 3, []), (nl.less_equal, 2, nl.greater_equal, 2, [2]),
]  # fmt: skip


@pytest.mark.parametrize("to", [F32, BF16])
@pytest.mark.parametrize(("op0", "low", "op1", "high", "held"), RANGES)
def test_range_select(op0, low, op1, high, held, to):
    """The maximum is fp32's, whatever is written."""
    data, more = a_tile(row(5, 7, 6, 8.125), buffer=nl.psum), {"reduce_res": out((1, 1), F32), "range_start": 1}
    given = out((1, 4), to), data, op0, op1, row(low), row(high)
    selected, best = results(nisa.range_select, *given, **more)
    expected = np.array([x if place in held else LOWEST for place, x in enumerate((5, 7, 6, 8.125), 1)], np.float32)
    same(selected, rounded(expected[None], to))
    assert best.item() == expected.max()


def test_range_select_chains_its_maximum():
    def select(best, low, high):
        for start, command, to in ((0, CMD.reset_reduce, None), (4, CMD.reduce, best)):
            data = put(row(9, 1, 2, 3) - start)
            dst = nl.ndarray((1, 4), F32)
            nisa.range_select(dst, data, nl.greater, nl.less, low, high, command, to, range_start=start)

    # 9 - 4 at place 4; the 9 at place 0 is outside
    assert results(select, out((1, 1), F32), row(0), row(7))[0].item() == 5


def test_cumulating_goes_on_and_shares_the_registers():
    def cumulate(dst, total, values):
        nisa.tensor_scalar_cumulative(dst[:, 0:3], values, nl.multiply, nl.add, 1.0)
        nisa.tensor_scalar_cumulative(dst[:, 3:6], values, nl.multiply, nl.add, 10.0, reduce_cmd=CMD.reduce)
        nisa.tensor_scalar_reduce(values, values, nl.multiply, 100.0, nl.add, total, reduce_cmd=CMD.reduce)

    sums, total = results(cumulate, out((1, 6), F32), out(row(0), F32), row(1, 2, 3))
    assert sums.tolist() == [[1, 3, 6, 16, 36, 66]]
    assert total.item() == 666


# Gathers and counts.


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


def test_nonzero_with_count_reads_no_other_partition():
    def body():
        src, dst = nl.ndarray((33, 2), F32), nl.ndarray((33, 3), nl.int32)
        for p in (0, 16, 32):
            fill(src[p : p + 1], np.array([[0, p]]))
        nisa.nonzero_with_count(dst, src, 40, -5)
        return [get(dst[p : p + 1]).tolist()[0] for p in (0, 16, 32)]

    assert evaluate(body) == [[-5, -5, 0], [41, -5, 1], [41, -5, 1]]
