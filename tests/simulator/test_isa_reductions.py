"""Reductions, engine registers, statistics, shuffles and affine patterns, by hand and against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, get, laid, out, put, result, results, row, same
from tolerances import assert_near

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

CMD = nisa.reduce_cmd
F32, I16, I32, U8 = nl.float32, nl.int16, nl.int32, nl.uint8
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


# Registers: tensor_scalar_reduce, select_reduce, activation.


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
        -11,
    ),
    "from a column": (
        [lambda d, r, x: tsr(d, x, nl.add, 0.0, nl.multiply, r, reduce_cmd=CMD.load_reduce, reduce_init=put(row(4)))],
        8,
    ),
    "a reset forgets": ([lambda d, r, x: tsr(d, x, nl.add, 0.0, nl.add, r)] * 2, 3),
    "Vector's are shared": (
        [lambda d, r, x: tsr(d, x, nl.multiply, 2.0, nl.maximum),
         lambda d, r, x: nisa.select_reduce(d, put(np.ones((1, 2), np.uint8)), x, 0.0, r, CMD.reduce)],
        4,
    ),
    "Scalar's and Vector's are apart": (
        [lambda d, r, x: act(d, nl.copy, x, reduce_op=nl.add, reduce_cmd=CMD.reset_reduce),
         lambda d, r, x: tsr(d, x, nl.multiply, 10.0, nl.add),
         lambda d, r, x: act(d, nl.copy, x, reduce_op=nl.add, reduce_cmd=CMD.reduce, reduce_res=r)],
        6,
    ),
    "activations": (
        [
            lambda d, r, x: act(d, nl.square, x, reduce_cmd=CMD.reset),
            lambda d, r, x: act(d, nl.square, x, reduce_cmd=CMD.reduce, reduce_op=nl.add),
            lambda d, r, x: act(d, nl.copy, x, reduce_cmd=CMD.idle),
            lambda d, r, x: act(d, nl.abs, x, 1.0, 2.0, reduce_cmd=CMD.reduce, reduce_res=r, reduce_op=nl.add),
        ],
        5 + 8,
    ),
    "a result that is read alone": (
        [lambda d, r, x: act(d, nl.square, x, reduce_cmd=CMD.reset_reduce, reduce_op=nl.add),
         lambda d, r, x: act(d, nl.copy, x, reduce_res=r)],
        5,
    ),
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


# bn_aggr.


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
