"""Reductions, engine registers, statistics, shuffles, searches, selections, cumulations, gathers and random bits, by
hand and against NumPy and Python loops.
"""

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, fill, get, laid, out, put, result, results, rounded, row, same, sample
from pairs import run
from tolerances import assert_near

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

CMD = nisa.reduce_cmd
F32, BF16, I16, I32, U8, U16, U32 = nl.float32, nl.bfloat16, nl.int16, nl.int32, nl.uint8, nl.uint16, nl.uint32
PAIRS = np.array([[[2, -1], [3, 0]]], np.float32)
BITS = np.array([[0b0110, 0b1010, 0b0011]])
ROWS = np.array([[1, 2], [2, -3], [6, 4]], ml_dtypes.bfloat16)
DATA = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
REDUCE, ACROSS, SELECT = nisa.tensor_reduce, nisa.tensor_partition_reduce, nisa.affine_select
#: An instruction, the dtype of its result, its operands after it and settings, and what it holds.
VALUES = [
    (REDUCE, F32, (nl.add, PAIRS, 2), {}, [[1, 3]]),
    (REDUCE, I16, (nl.subtract, PAIRS.astype(np.int8), -1), {}, [[3, 3]]),
    (REDUCE, F32, (nl.multiply, PAIRS, 2), {}, [[-2, 0]]),
    (REDUCE, nl.bfloat16, (nl.maximum, PAIRS, (1, 2)), {}, [[3]]),
    (REDUCE, F32, (nl.minimum, PAIRS, [2, 1]), {}, [[-1]]),
    (REDUCE, F32, (nl.logical_and, PAIRS, 2), {}, [[1, 0]]),
    (REDUCE, F32, (nl.logical_or, PAIRS, 2), {}, [[1, 1]]),
    (REDUCE, F32, (nl.logical_xor, PAIRS, 2), {}, [[0, 1]]),
    (REDUCE, F32, (nl.add, laid("permuted", PAIRS, buffer=nl.psum), 2), {"negate": True, "keepdims": True},
     [[[-1], [-3]]]),
    (REDUCE, F32, (nl.add, laid("permuted", np.ones((1, 2, 2, 2, 2), np.float32)), (1, 2, 3, 4)), {}, [[16]]),
    (REDUCE, U8, (nl.bitwise_and, BITS.astype(np.uint8), 1), {}, [[0b0010]]),
    (REDUCE, I16, (nl.bitwise_or, BITS.astype(np.int16), 1), {}, [[0b1111]]),
    (REDUCE, I32, (nl.bitwise_xor, BITS.astype(np.int32), 1), {}, [[0b1111]]),
    (ACROSS, F32, (nl.add, ROWS), {}, [[9, 3]]),
    (ACROSS, F32, (nl.average, ROWS), {}, [[3, 1]]),
    (ACROSS, F32, (nl.maximum, ROWS), {}, [[6, 4]]),
    (ACROSS, U8, (nl.bitwise_and, BITS.T.astype(np.uint8)), {}, [[0b0010]]),
    (ACROSS, U8, (nl.bitwise_or, BITS.T.astype(np.uint8)), {}, [[0b1111]]),
    # of even elements and of odd ones: how many, their mean, and their squared differences from it
    (nisa.bn_stats, F32, (row(1, 2, 3, 6, 5),), {}, [[3, 3, 8, 2, 4, 8]]),
    (nisa.bn_stats, F32, (row(7, dtype=np.int8),), {}, [[1, 7, 0, 0, 0, 0]]),
    (nisa.iota, F32, ([[3, 4]], -5, 7), {}, [[-5, -2, 1, 4], [2, 5, 8, 11]]),
    (nisa.iota, I16, ([[10, 2], [-1, 3]], 2, 1), {}, [[2, 1, 0, 12, 11, 10], [3, 2, 1, 13, 12, 11]]),
    (nisa.iota, I32, ([[7, 2], [0, 2], [1, 1], [-3, 2]], 1), {}, [[1, -2, 1, -2, 8, 5, 8, 5]]),
    (nisa.iota, nl.bool_, ([[1, 4]], -1), {}, [[1, 0, 1, 1]]),
    (nisa.iota, I32, ([[1, 2]], 2**24 + 1), {}, [[2**24 + 1, 2**24 + 2]]),
    (nisa.iota, nl.int8, ([[200, 3]], -200), {}, [[-128, 0, 127]]),
    (nisa.iota, nl.uint32, ([[1, 3]], -1), {}, [[0, 0, 1]]),
    # the pattern counts -2 -1 0 1 on partition 0, -1 0 1 2 on partition 1
    (SELECT, F32, ([[1, 4]], 1, DATA, -9.0), {"offset": -2}, [[-9, -9, 3, -9], [-9, 6, -9, -9]]),
    (SELECT, F32, ([[1, 4]], 1, DATA, -9.0, nl.not_equal, -2), {}, [[1, 2, -9, 4], [5, -9, 7, 8]]),
    (SELECT, F32, ([[1, 4]], 1, DATA, -9.0, nl.less, -2), {}, [[1, 2, -9, -9], [5, -9, -9, -9]]),
    (SELECT, F32, ([[1, 4]], 1, DATA, -9.0, nl.less_equal, -2), {}, [[1, 2, 3, -9], [5, 6, -9, -9]]),
    (SELECT, F32, ([[1, 4]], 1, DATA, -9.0, nl.greater, -2), {}, [[-9, -9, -9, 4], [-9, -9, 7, 8]]),
    (SELECT, nl.bfloat16, ([[2, 2], [1, 2]], 1, DATA, -9.0, nl.greater_equal, -2), {}, [[-9, -9, 3, 4], [-9, 6, 7, 8]]),
]  # fmt: skip
ONES = {U16: 0xFFFF, U32: 0xFFFFFFFF}
DIGITS = row(3, 1, 4, 1, 5, 9, 2, 6, 5)
NUMBERS, COLUMN = np.array([[2, 1, 3], [0, 4, 2]], np.float32), np.array([[10], [20]], np.float32)
CUMULATIVE, SEGMENTS = nisa.tensor_scalar_cumulative, row(0, 1, 1, 2, 2, 2, 0, 3, 3)
BOUNDS = [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]
#: An instruction, the dtype of its result, its operands after it, and what it holds.
SEARCHED = [
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
    (CUMULATIVE, F32, (NUMBERS, nl.subtract, nl.add, 1.0), [[1, 1, 3], [-1, 2, 3]]),
    (CUMULATIVE, nl.int16, (NUMBERS, nl.subtract, nl.subtract, 1.0), [[1, -1, 3], [-1, 4, -3]]),
    (CUMULATIVE, BF16, (NUMBERS, nl.add, nl.multiply, 1.0), [[3, 6, 24], [1, 5, 15]]),
    (CUMULATIVE, F32, (NUMBERS, nl.multiply, nl.maximum, 1.0), [[2, 2, 3], [0, 4, 4]]),
    (CUMULATIVE, F32, (NUMBERS, nl.multiply, nl.minimum, 1.0), [[2, 1, 1], [0, 0, 0]]),
    (CUMULATIVE, F32, (laid("permuted", NUMBERS), nl.multiply, nl.add, COLUMN, COLUMN, CMD.load_reduce),
     [[30, 40, 70], [20, 100, 140]]),
    (nisa.nc_n_gather, F32, (laid("permuted", DIGITS.reshape(1, 3, 3)), row(8, 0, 5, dtype=np.uint32)), [[5, 3, 9]]),
    (nisa.nc_n_gather, nl.bool_, (a_tile(row(0, 1, 1), nl.bool_), row(1, 0, dtype=np.uint32)), [[1, 0]]),
    (nisa.sequence_bounds, I32, (SEGMENTS,), BOUNDS),
    (nisa.sequence_bounds, F32, (SEGMENTS.astype(np.int32),), BOUNDS),
]  # fmt: skip
VALUES += [(call, dtype, operands, {}, expected) for call, dtype, operands, expected in SEARCHED]


@pytest.mark.parametrize(("call", "dtype", "operands", "settings", "expected"), VALUES)
def test_values(call, dtype, operands, settings, expected):
    found = result(call, np.shape(expected), dtype, *operands, **settings)
    assert found.astype(np.float64).tolist() == expected


def test_offsets_may_be_registers():
    def body():
        dst, kept = nl.ndarray((2, 4), nl.int32), nl.ndarray((1, 4), nl.float32)
        nisa.iota(dst, [[1, 4]], offset=nisa.register_alloc(3))
        nisa.affine_select(kept, [[1, 4]], 0, nl.full((1, 4), 5.0, nl.float32), 0.0, nl.less, nisa.register_alloc(-2))
        return get(dst).tolist(), get(kept).tolist()

    assert evaluate(body) == ([[3, 4, 5, 6], [3, 4, 5, 6]], [[5.0, 5.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("op", "negate", "expected"),
    [(nl.add, False, 5.5), (nl.multiply, True, -2.625), (nl.maximum, False, 3.5), (nl.minimum, True, -0.5)],
)
def test_tensor_scalar_reduce(op, negate, expected):
    dst, res = out((1, 3), nl.bfloat16), out((1, 1), F32, nl.psum)
    given = dst, row(1, 2, 4, dtype=np.int8), nl.subtract, 0.5, op, res
    found, total = results(nisa.tensor_scalar_reduce, *given, reduce_res_negate=negate)
    assert (found.tolist(), total.item()) == ([[0.5, 1.5, 3.5]], expected)


tsr, act = nisa.tensor_scalar_reduce, nisa.activation
#: Instructions on dst, a result and [[1, 2]], and what the result holds at last.
CHAINS = {
    "of the fp32 result, not of dst": ([lambda d, r, x: tsr(d, x, nl.multiply, 0.25, nl.add, r)], 0.75),
    "from a number": (
        [lambda d, r, x: tsr(d, x, nl.add, 0.0, nl.add, None, reduce_cmd=CMD.load_reduce, reduce_init=5.0),
         lambda d, r, x: tsr(d, x, nl.add, 0.0, nl.add, r, reduce_cmd=CMD.reduce, reduce_res_negate=True)],
        -11),
    "from a column": (
        [lambda d, r, x: tsr(d, x, nl.add, 0.0, nl.multiply, r, reduce_cmd=CMD.load_reduce, reduce_init=put(row(4)))],
        8),
    "a reset forgets": ([lambda d, r, x: tsr(d, x, nl.add, 0.0, nl.add, r)] * 2, 3),
    "Vector's are shared": ([lambda d, r, x: tsr(d, x, nl.multiply, 2.0, nl.maximum),
         lambda d, r, x: nisa.select_reduce(d, put(np.ones((1, 2), np.uint8)), x, 0.0, r, CMD.reduce)],
        4),
    "Scalar's and Vector's are apart": (
        [lambda d, r, x: act(d, nl.copy, x, reduce_op=nl.add, reduce_cmd=CMD.reset_reduce),
         lambda d, r, x: tsr(d, x, nl.multiply, 10.0, nl.add),
         lambda d, r, x: act(d, nl.copy, x, reduce_op=nl.add, reduce_cmd=CMD.reduce, reduce_res=r)],
        6),
    "activations": ([lambda d, r, x: act(d, nl.square, x, reduce_cmd=CMD.reset),
            lambda d, r, x: act(d, nl.square, x, reduce_cmd=CMD.reduce, reduce_op=nl.add),
            lambda d, r, x: act(d, nl.copy, x, reduce_cmd=CMD.idle),
            lambda d, r, x: act(d, nl.abs, x, 1.0, 2.0, reduce_cmd=CMD.reduce, reduce_res=r, reduce_op=nl.add)],
        5 + 8),
    "a result that is read alone": (
        [lambda d, r, x: act(d, nl.square, x, reduce_cmd=CMD.reset_reduce, reduce_op=nl.add),
         lambda d, r, x: act(d, nl.copy, x, reduce_res=r)],
        5),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name):
    calls, expected = CHAINS[name]

    def chain(res, x):
        dst = nl.ndarray((1, 2), nl.int8)
        for call in calls:
            call(dst if "dst" in name else nl.ndarray((1, 2), nl.float32), res, x)

    assert result(chain, (1, 1), nl.float32, row(1, 2), to=nl.psum).item() == expected


@pytest.mark.parametrize(("dtype", "reverse", "other", "expected"), [
    (np.int8, False, -0.5, [1, -0.5, 2]), (np.uint8, True, row(4), [4, 5, 4]), (np.int16, False, row(4), [1, 4, 2]),
    (np.uint16, True, -0.5, [-0.5, 5, -0.5]),
])  # fmt: skip
def test_select_reduce(dtype, reverse, other, expected):
    given = out((1, 3), F32, nl.psum), row(1, 0, 7, dtype=dtype), a_tile(row(1, 5, 2), "bfloat16", nl.psum), other
    found, largest = results(
        nisa.select_reduce, *given, out((1, 1), F32), reduce_cmd=CMD.reset_reduce, reverse_pred=reverse
    )
    assert (found.tolist(), largest.item()) == ([expected], max(expected))


def test_activation_reduce_and_a_result_that_aliases_dst(rng):
    values = rng.integers(-3, 4, (5, 6)).astype(np.float32)

    def reduce(first, second, values):
        dst = nl.ndarray((5, 6), nl.float32)
        nisa.activation_reduce(dst, nl.square, values, nl.add, first, scale=2.0)
        nisa.activation_reduce(dst, nl.square, values, nl.add, dst[:, 2:3], bias=1.0)
        nisa.tensor_copy(second, dst[:, 2:3])

    first, second = results(reduce, out((5, 1), nl.float32), out((5, 1), nl.float32), values)
    same(first, np.square(2 * values).sum(axis=1, keepdims=True))
    same(second, np.square(values + 1).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("chunks", [(512, 3), (7, 1, 30)])
def test_bn_aggr_of_chunks(chunks, rng):
    values = (rng.normal(size=(33, sum(chunks))) + 3).astype(np.float32)

    def aggregate(out, *parts):
        stats = nl.ndarray((33, len(chunks), 6), nl.float32)
        for i, part in enumerate(parts):
            nisa.bn_stats(stats[:, i], part)
        nisa.bn_aggr(out, stats)

    found = result(aggregate, (33, 2), nl.float32, *np.split(values, np.cumsum(chunks)[:-1], axis=1))
    wide = values.astype(np.float64)
    assert_near(found, np.stack([wide.mean(1), wide.var(1)], 1), 4 * wide.shape[1], np.square(wide).max())


# nc_stream_shuffle.

MASKS = {"reverse": list(range(31, -1, -1)), "broadcast": [3] * 32, "some": [5, 255] * 16, "none": [255] * 32}


@pytest.mark.parametrize(
    ("partitions", "mask"), [(32, "reverse"), (128, "broadcast"), (96, "some"), (64, "none"), (40, "some")]
)
def test_stream_shuffle(partitions, mask, rng):
    old, new = rng.normal(size=(2, partitions, 3, 2)).astype(np.float16)
    [found] = results(nisa.nc_stream_shuffle, out(old, "float16", nl.psum), new, MASKS[mask])
    source = np.array([MASKS[mask][p % 32] for p in range(partitions)])
    expected = new[np.where(source == 255, 0, np.arange(partitions) // 32 * 32 + source)]
    expected[source == 255] = old[source == 255]
    same(found, expected)


def test_stream_shuffle_in_place_and_across_quadrants(rng):
    values = rng.normal(size=(64, 4)).astype(np.float32)

    def shuffle(data):
        nisa.nc_stream_shuffle(data[0:32], data[0:32], MASKS["reverse"])
        nisa.nc_stream_shuffle(data[32:64], data[0:1], [0] * 32)

    expected = np.concatenate([values[31::-1], np.repeat(values[31:32], 32, axis=0)])
    same(results(shuffle, out(values, nl.float32))[0], expected)


@pytest.mark.parametrize(("imm", "to", "indices"), [(-np.inf, F32, U16), (3.0, BF16, None), (0.0, nl.int16, U32)])
def test_the_documented_example_of_copies(imm, to, indices):
    data, vals = row(1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8), row(3, *[8] * 7)
    values, *where = results(
        nisa.nc_match_replace8, out((1, 11), to), data, vals, imm, indices and out((1, 8), indices)
    )
    assert values.tolist() == [[1, 2, imm, 4, *[imm] * 7]]
    assert [one.tolist() for one in where] == [[[2, 10, 9, 8, 7, 6, 5, 4]]] * (indices is not None)


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


def test_topk_ignores_what_lies_beyond_n_leaves_other_columns_and_prefers_lower_places():
    def best(values, places):
        src = nl.ndarray((16, 4), nl.bfloat16)
        fill(src[:, 0:1], np.arange(16).reshape(16, 1))  # nothing wrote the other three columns
        nisa.topk(values[:, 0:8], places[:, 0:8], src, 12)

    values, places = results(best, *(out(np.full((16, 9), 7), dtype) for dtype in (nl.bfloat16, U32)))
    assert values[:8, 0].tolist() == places[:8, 0].tolist() == [*range(4, 12)]
    assert (places[8:, 0] == ONES[U32]).all()
    assert all((one[:, 1:] == 7).all() for one in (places, values))

    def equal(values, places):
        nisa.topk(values, places, nl.ones((16, 1), nl.bfloat16, nl.sbuf), 16)

    _, places = results(equal, *(out(np.zeros((16, 3)), dtype) for dtype in (nl.bfloat16, U32)))
    assert places[:3, 0].tolist() == [2, 1, 0]


# range_select.

LOWEST = np.finfo(np.float32).min


@pytest.mark.parametrize("to", [F32, BF16])
# Two tests of places 1, 2, 3 and 4, and which of them hold both.
@pytest.mark.parametrize(("op0", "low", "op1", "high", "held"), [
    (nl.greater, 1, nl.less, 4, [2, 3]), (nl.greater_equal, 2, nl.less_equal, 3, [2, 3]),
    (nl.equal, 4, nl.greater, 0, [4]), (nl.less, 3, nl.equal, 3, []), (nl.less_equal, 2, nl.greater_equal, 2, [2]),
])  # fmt: skip
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


ENGINE = nisa.engine
on_each = pytest.mark.parametrize("engine", [ENGINE.vector, ENGINE.gpsimd], ids=lambda e: e.name)


def bits(shape, dtype="uint32", engine=ENGINE.vector):
    dst = nl.ndarray(shape, dtype)
    nisa.rng(dst, engine)
    return get(dst)


def seed(value=7, dtype="uint32"):
    nisa.set_rng_seed(put(np.array([[value]], dtype)))


def fair(chance, count):
    """The share of so many draws that have this chance each, within five standard deviations."""
    return pytest.approx(chance, abs=5 * (chance * (1 - chance) / count) ** 0.5)


@on_each
@pytest.mark.parametrize("dtype", ["int8", "uint32"])
def test_bits_are_uniform(engine, dtype):
    values = evaluate(lambda: bits((128, 4, 128), dtype, engine))
    raw = values.view(f"u{values.itemsize}")
    for bit in range(8 * values.itemsize):
        assert ((raw >> raw.dtype.type(bit)) & raw.dtype.type(1)).mean() == fair(1 / 2, raw.size), f"bit {bit}"
    counts = np.bincount((raw & raw.dtype.type(15)).reshape(-1), minlength=16)
    assert (counts / raw.size).tolist() == [fair(1 / 16, raw.size)] * 16


@on_each
def test_runs_repeat_and_numbers_do_not(engine):
    first, second = (evaluate(lambda: (bits((4, 8), engine=engine), bits((4, 8), engine=engine))) for _ in range(2))
    same(np.stack(first), np.stack(second))
    assert (first[0] != first[1]).all()
    assert len(np.unique(first[0])) == 32, "no two lanes or steps agree"


def test_the_cores_of_a_launch_differ():
    seen = {}

    def body():
        seen[int(nl.program_id(0))] = bits((4, 8)), bits((4, 8), engine=ENGINE.gpsimd)

    run(body, lnc=2)
    for mine, other in zip(seen[0], seen[1], strict=True):
        assert (mine != other).all()


def mask():
    dst = nl.ndarray((4, 64), nl.float32)
    nisa.dropout(dst, put(np.ones((4, 64), np.float32)), 0.5)
    return get(dst)


@pytest.mark.parametrize(
    ("draw", "dtype"), [(lambda: bits((4, 64)), "float32"), (mask, "int32")], ids=["rng", "dropout"]
)
def test_a_seed_decides_what_follows_on_vector(draw, dtype):
    def body():
        return [(bits((3, 5)), seed(value, dtype), draw())[2] for value in (7, 7, 8)]

    first, again, other = evaluate(body)
    same(first, again)
    changes = 1 if first.dtype == np.uint32 else 1 / 2  # of masks that drop a half
    assert (first != other).mean() == fair(changes, first.size)


def state(first=0, lanes=128):
    """GpSimd's state in a tile that starts at partition `first`."""
    tile = nl.ndarray((first + lanes, 6), nl.uint32)[first : first + lanes]
    nisa.rand_get_state(tile)
    return tile


def test_a_saved_state_goes_on_where_it_was():
    def body():
        saved = state()
        first = bits((128, 9), engine=ENGINE.gpsimd)
        nisa.rand_set_state(saved)
        return first, bits((128, 9), engine=ENGINE.gpsimd), get(saved), get(state())

    first, again, before, after = evaluate(body)
    same(first, again)
    assert (before != after).all()


def test_the_lanes_step_by_xorwow():
    x, y, z, w, v, d = words = [1, 20, 300, 4000, 50000, 600000]

    def body():
        nisa.rand_set_state(put(np.array([words], np.uint32)))
        return bits((1, 4), engine=ENGINE.gpsimd).tolist()[0]

    expected = []
    for _ in range(4):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) ^ t ^ (t << 1)) % 2**32
        d = (d + 362437) % 2**32
        expected.append((v + d) % 2**32)
    assert evaluate(body) == expected


@pytest.mark.parametrize(("dtype", "tile"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("int32", "float32")])
def test_dropout_drops_its_share_and_keeps_the_rest(dtype, tile):
    values = np.arange(1, 1 + 128 * 500).reshape(128, 500) % 100 + 1
    chances = (np.arange(128) % 5 / 4).reshape(128, 1)
    given = a_tile(values.astype(np.float32), dtype), a_tile(chances.astype(np.float32), tile)
    out = result(nisa.dropout, values.shape, dtype, *given).astype(np.float32)
    assert set(np.unique(out / values)) == {0.0, 1.0}
    for chance in (0, 0.25, 0.5, 0.75, 1):
        share = (out[chances[:, 0] == chance] == 0).mean()
        assert share == fair(chance, 500 * (chances == chance).sum())
