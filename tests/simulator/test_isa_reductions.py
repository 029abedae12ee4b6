"""Reductions, engine registers, statistics, shuffles and affine patterns against plain NumPy."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, get, laid, out, put, result, results, rounded, row, same, sample
from tolerances import assert_near

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.dtypes import DTYPES
from nkiconv.simulator.ops import OPS

CMD = nisa.reduce_cmd


def small_integers(rng, shape, dtype):
    """Integers from -3..3 (0..3 if unsigned), whose sums and products are exact in fp32."""
    low = 0 if dtype.startswith("u") else -3
    return (sample(rng, shape, "float32").clip(low, 3).round() + 0.0).astype(DTYPES[dtype].numpy)


#: What each reduction means on a list of Python floats.
REDUCTIONS = {
    "add": sum, "subtract": lambda xs: xs[0] - sum(xs[1:]), "multiply": lambda xs: np.prod(xs), "maximum": max,
    "minimum": min, "logical_and": lambda xs: float(all(xs)), "logical_or": lambda xs: float(any(xs)),
    "logical_xor": lambda xs: float(sum(map(bool, xs)) % 2),
}  # fmt: skip
BITS = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}


def folded(op, values):
    return np.apply_along_axis(lambda xs: REDUCTIONS[op](xs.tolist()), -1, values.astype(np.float64))


# tensor_reduce.


@pytest.mark.parametrize(("op", "dtype", "to", "axis"), [
    ("add", "float32", "float32", 3), ("subtract", "bfloat16", "int16", (2, 3)),
    ("multiply", "int8", "bfloat16", (1, 2, 3)), ("maximum", "float32", "int16", [3, 2]),
    ("minimum", "bfloat16", "float32", (1, 2, 3)), ("logical_and", "int8", "float32", (2, 3)),
    ("logical_or", "float32", "bfloat16", 3), ("logical_xor", "float32", "float32", (2, 3)),
])  # fmt: skip
def test_tensor_reduce(op, dtype, to, axis, rng):
    values = small_integers(rng, (5, 2, 3, 4), dtype)
    first = 3 if axis == 3 else min(axis)
    shape = (5, *values.shape[1:first]) if first > 1 else (5, 1)
    expected = folded(op, values.reshape(*values.shape[:first], -1))
    found = result(nisa.tensor_reduce, shape, to, OPS[op], values, axis, to=nl.psum)
    same(found, rounded(expected, to).reshape(shape))


def test_tensor_reduce_of_views(rng):
    values = small_integers(rng, (33, 3, 7), "float32")
    dst, data = out((33, 3, 1), nl.float32, layout="strided"), laid("permuted", values, buffer=nl.psum)
    [found] = results(nisa.tensor_reduce, dst, nl.add, data, 2, negate=True, keepdims=True)
    same(found, -values.sum(axis=2, keepdims=True))


@pytest.mark.parametrize(("op", "dtype"), [*zip(BITS, ["uint8", "int16", "int32"], strict=True)])
def test_tensor_reduce_of_bits(op, dtype, rng):
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, size=(5, 3, 4), endpoint=True, dtype=dtype)
    same(result(nisa.tensor_reduce, (5, 3), dtype, OPS[op], values, 2), BITS[op].reduce(values, axis=2))


# tensor_partition_reduce.


@pytest.mark.parametrize(("op", "partitions"), [("add", 5), ("average", 33), ("maximum", 128)])
def test_tensor_partition_reduce(op, partitions, rng):
    values = small_integers(rng, (partitions, 3, 4), "bfloat16")
    columns = values.astype(np.float64).reshape(partitions, 12)
    expected = {"add": columns.sum(0), "average": columns.sum(0) / partitions, "maximum": columns.max(0)}[op]
    same(result(nisa.tensor_partition_reduce, (1, 12), nl.float32, OPS[op], values), rounded(expected, "float32")[None])


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or"])
def test_tensor_partition_reduce_of_bits(op, rng):
    values = rng.integers(0, 256, size=(7, 12)).astype(np.uint8)
    found = result(nisa.tensor_partition_reduce, (1, 12), nl.uint8, OPS[op], values)
    same(found, BITS[op].reduce(values, axis=0)[None])


# Registers: tensor_scalar_reduce, select_reduce, activation.

FOLDS = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


@pytest.mark.parametrize(("op", "negate"), [*zip(FOLDS, [False, True] * 2, strict=True)])
def test_tensor_scalar_reduce(op, negate, rng):
    values = small_integers(rng, (5, 3, 4), "int8")
    dst, res = out((5, 12), nl.bfloat16), out((5, 1), nl.float32, nl.psum)
    call = nisa.tensor_scalar_reduce
    found, total = results(call, dst, values, nl.subtract, 0.5, OPS[op], res, reduce_res_negate=negate)
    shifted = values.reshape(5, 12).astype(np.float32) - np.float32(0.5)
    same(found, rounded(shifted, "bfloat16"))
    same(total, (-1 if negate else 1) * FOLDS[op].reduce(shifted, axis=1, keepdims=True))


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


@pytest.mark.parametrize(("dtype", "reverse", "false"), [
    ("int8", False, "number"), ("uint8", True, "column"), ("int16", False, "column"), ("uint16", True, "number"),
])  # fmt: skip
def test_select_reduce(dtype, reverse, false, rng):
    values = rng.normal(size=(5, 3, 4)).astype(ml_dtypes.bfloat16)
    mask = rng.integers(0, 2, size=(5, 12)).astype(dtype)
    column = rng.normal(size=(5, 1)).astype(np.float32)
    other = column if false == "column" else np.float32(-0.5)
    found, largest = results(
        nisa.select_reduce, out((5, 3, 4), nl.float32, nl.psum), mask, a_tile(values, buffer=nl.psum),
        column if false == "column" else -0.5, out((5, 1), nl.float32), reduce_cmd=CMD.reset_reduce,
        reverse_pred=reverse,
    )  # fmt: skip
    expected = np.where((mask != 0) != reverse, values.reshape(5, 12).astype(np.float32), other)
    same(found, expected.reshape(5, 3, 4))
    same(largest, expected.max(axis=1, keepdims=True))


def test_activation_reduce_and_a_result_that_aliases_dst(rng):
    values = small_integers(rng, (5, 6), "float32")

    def reduce(first, second, values):
        dst = nl.ndarray((5, 6), nl.float32)
        nisa.activation_reduce(dst, nl.square, values, nl.add, first, scale=2.0)
        nisa.activation_reduce(dst, nl.square, values, nl.add, dst[:, 2:3], bias=1.0)
        nisa.tensor_copy(second, dst[:, 2:3])

    first, second = results(reduce, out((5, 1), nl.float32), out((5, 1), nl.float32), values)
    same(first, np.square(2 * values).sum(axis=1, keepdims=True))
    same(second, np.square(values + 1).sum(axis=1, keepdims=True))


# bn_stats and bn_aggr.


@pytest.mark.parametrize(("size", "dtype"), [(1, "float32"), (2, "bfloat16"), (7, "int8"), (512, "float32")])
def test_bn_stats_of_even_and_odd_elements(size, dtype, rng):
    values = sample(rng, (5, size), dtype)
    expected = np.zeros((5, 6))
    for at, part in ((0, values[:, 0::2]), (3, values[:, 1::2])):
        wide = part.astype(np.float64)
        count = wide.shape[1]
        if count:
            expected[:, at : at + 3] = np.stack([np.full(5, count), wide.mean(1), wide.var(1) * count], 1)
    found = result(nisa.bn_stats, (5, 6), nl.float32, values)
    assert_near(found, expected, 4 * size, size * np.square(values.astype(np.float64)).max())


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


# iota and affine_select.

PATTERNS = [
    ([[1, 24]], 0, 0), ([[3, 24]], -5, 7), ([[10, 4], [-1, 6]], 2, 1), ([[0, 2], [1, 3], [5, 4]], 0, -2),
    ([[7, 2], [-3, 2], [1, 3], [0, 2]], 100, 11),
]  # fmt: skip


def affine(partitions, pattern, offset, multiplier):
    """The document's loop nest, for one partition after the other."""
    counts = [range(count) for _, count in pattern]
    steps = [step for step, _ in pattern]
    values = [
        offset + p * multiplier + sum(i * s for i, s in zip(index, steps, strict=True))
        for p in range(partitions)
        for index in itertools.product(*counts)
    ]
    return np.array(values).reshape(partitions, -1)


@pytest.mark.parametrize(("row", "dtype"), [*enumerate(["int32", "float32", "bfloat16", "int16", "int32"])])
def test_iota(row, dtype):
    pattern, offset, multiplier = PATTERNS[row]
    [found] = results(nisa.iota, out((33, 4, 6), dtype, layout="permuted"), pattern, offset, multiplier)
    same(found.reshape(33, 24), rounded(affine(33, pattern, offset, multiplier), dtype))


def test_offsets_may_be_registers():
    def body():
        dst, kept = nl.ndarray((2, 4), nl.int32), nl.ndarray((1, 4), nl.float32)
        nisa.iota(dst, [[1, 4]], offset=nisa.register_alloc(3))
        nisa.affine_select(kept, [[1, 4]], 0, nl.full((1, 4), 5.0, nl.float32), 0.0, nl.less, nisa.register_alloc(-2))
        return get(dst).tolist(), get(kept).tolist()

    assert evaluate(body) == ([[3, 4, 5, 6], [3, 4, 5, 6]], [[5.0, 5.0, 0.0, 0.0]])


IOTAS = [
    ("bool_", [[1, 4]], -1, [1, 0, 1, 1]), ("int32", [[1, 3]], 2**24 + 1, [2**24 + 1, 2**24 + 2, 2**24 + 3]),
    ("int8", [[200, 3]], -200, [-128, 0, 127]), ("uint32", [[1, 3]], -1, [0, 0, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "pattern", "offset", "expected"), IOTAS)
def test_iota_is_exact_in_int32_and_saturates_narrower_integers(dtype, pattern, offset, expected):
    assert result(nisa.iota, (1, len(expected)), dtype, pattern, offset).tolist() == [expected]


COMPARISONS = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize(("row", "cmp_op"), [*enumerate(COMPARISONS)])
def test_affine_select(row, cmp_op, rng):
    pattern, offset, multiplier = PATTERNS[row % len(PATTERNS)]
    values = rng.normal(size=(33, 4, 6)).astype(ml_dtypes.bfloat16)
    offset -= 30
    chosen = COMPARISONS[cmp_op](affine(33, pattern, offset, multiplier), 0).reshape(33, 4, 6)
    given = pattern, multiplier, values, -9984.0, OPS[cmp_op], offset
    found = result(nisa.affine_select, (33, 4, 6), nl.bfloat16, *given)
    same(found, np.where(chosen, values, ml_dtypes.bfloat16(-9984.0)))


def test_affine_select_compares_for_equality_by_default_and_makes_a_diagonal():
    def select(dst, column):
        nisa.affine_select(dst, [[-1, 4]], 1, column.broadcast(1, 4), 0.0)

    same(result(select, (4, 4), nl.float32, np.full((4, 1), 7, np.int16)), 7 * np.eye(4, dtype=np.float32))
