"""Elementwise instructions of Vector, Scalar and GpSimd: operators against NumPy, the rest by hand."""

import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, get, laid, put, result, results, rounded, row, same, sample
from isa_tiles import out as made
from tolerances import assert_relative

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.ops import OPS

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")

#: Operators that NumPy has by the same name.
ARITHMETIC = (
    "add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "greater_equal", "greater", "less_equal",
    "less", "logical_and", "logical_or", "logical_xor",
)  # fmt: skip
BITVEC = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")


# tensor_tensor.


TYPES = [
    ("float32", "float32", "float32"),
    ("bfloat16", "float32", "bfloat16"),
    ("float16", "int8", "float16"),
    ("float8_e4m3", "float8_e5m2", "bfloat16"),
    ("int32", "float32", "int16"),
    ("uint8", "int16", "float32"),
    ("tfloat32", "bool_", "tfloat32"),
]


@pytest.mark.parametrize(("op", "types"), [*zip(ARITHMETIC, TYPES * 2, strict=True)])
def test_tensor_tensor_is_fp32(op, types, rng):
    left, right, out = types
    a, b = sample(rng, (33, 4, 6), left), sample(rng, (33, 4, 6), right)
    a[:, 0], b[:, 1], b[:, 2] = 0, 0, a[:, 2].astype(b.dtype)

    dst = made(a.shape, out, nl.psum, "strided")
    [found] = results(nisa.tensor_tensor, dst, laid("permuted", a, left), a_tile(b, right, nl.psum), OPS[op])
    same(found, rounded(getattr(np, op)(a.astype(np.float32), b.astype(np.float32)), out))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_power(dtype, rng):
    base, exponent = sample(rng, (5, 8), dtype), rng.integers(0, 4, size=(5, 8)).astype(np.float32)
    found = result(nisa.tensor_tensor, (5, 8), nl.float32, base, exponent, nl.power)
    assert_relative(found, base.astype(np.float64) ** exponent.astype(np.float64), 5)


@pytest.mark.parametrize(("op", "dtype"), [*zip(BITVEC, INTEGERS[1:], strict=True)])
def test_bits_of_two_tensors(op, dtype, rng):
    limits = np.iinfo(dtype)
    a = rng.integers(limits.min, limits.max, size=(5, 9), endpoint=True, dtype=dtype)
    b = a[::-1].copy() if op.startswith("bitwise") else rng.integers(0, limits.bits + 3, size=(5, 9)).astype(dtype)
    expected = getattr(np, op)(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")).view(dtype)
    same(result(nisa.tensor_tensor, (5, 9), dtype, a, b, OPS[op]), expected)


#: Operator, two numbers, and their result: of GpSimd, which has integer arithmetic, of mixed signs, and of Vector.
I32, U32 = np.int32, np.uint32
NATIVE = [
    ("add", (2**31 - 1, I32), (1, I32), -(2**31)), ("subtract", (2**24 + 1, I32), (1, I32), 2**24),
    ("multiply", (65537, I32), (65537, I32), 131073), ("maximum", (2**24, I32), (2**24 + 1, I32), 2**24 + 1),
    ("minimum", (-(2**24) - 1, I32), (-(2**24), I32), -(2**24) - 1), ("equal", (2**24, I32), (2**24 + 1, I32), 0),
    ("greater", (2**24 + 1, I32), (2**24, I32), 1), ("add", (2**32 - 2, U32), (1, I32), 2**32 - 1),
    ("power", (2, I32), (-1, I32), 0), ("power", (1, I32), (-1, I32), 1),
]  # fmt: skip


@pytest.mark.parametrize(("op", "a", "b", "expected"), NATIVE)
def test_integer_arithmetic(op, a, b, expected):
    (a, of_a), (b, of_b) = a, b
    dst, tiles = nl.uint32 if of_a is U32 else nl.int32, (row(a, dtype=of_a), row(b, dtype=of_b))
    assert result(nisa.tensor_tensor, (1, 1), dst, *tiles, OPS[op]).item() == expected


def test_vector_adds_integers_in_fp32():
    tiles = row(2**24, dtype=I32), row(1, dtype=I32)
    assert result(nisa.tensor_tensor, (1, 1), nl.int32, *tiles, nl.add, nisa.engine.vector).item() == 2**24


# tensor_scalar, scalar_tensor_tensor, tensor_tensor_scan, reciprocal.

X, Y, COLUMN = (np.array(values, np.float32) for values in ([[1, 5], [2, 6]], [[10, 30], [50, 70]], [[3], [4]]))
#: An instruction, its operands and settings, and what comes of them.
VALUES = [
    (nisa.tensor_scalar, (X, nl.subtract, 2.0), {}, [[-1, 3], [0, 4]]),
    (nisa.tensor_scalar, (X, nl.subtract, 2.0, True), {}, [[1, -3], [0, -4]]),
    (nisa.tensor_scalar, (X, nl.subtract, COLUMN), {}, [[-2, 2], [-2, 2]]),
    (nisa.tensor_scalar, (X, nl.less, a_tile(COLUMN, buffer=nl.psum)), {}, [[1, 0], [1, 0]]),
    (nisa.tensor_scalar, (X, nl.subtract, COLUMN, False, nl.subtract, 7.0, True), {}, [[9, 5], [9, 5]]),
    (nisa.tensor_scalar, (X, nl.subtract, 7.0, True, nl.multiply, COLUMN), {}, [[18, 6], [20, 4]]),
    (nisa.tensor_scalar, (X, nl.subtract, 4.0), {"op1": nl.abs}, [[3, 1], [2, 2]]),
    (nisa.tensor_scalar, (X, nl.multiply, 2.0), {"op1": nl.add, "operand1": 1.0, "engine": nisa.engine.scalar},
     [[3, 11], [5, 13]]),
    (nisa.tensor_scalar, (-X, nl.abs, None), {}, [[1, 5], [2, 6]]),
    (nisa.tensor_scalar, (row(4, 0.25), nl.reciprocal, 0), {}, [[0.25, 4]]),
    (nisa.tensor_scalar, (row(4, 0.25), nl.rsqrt, 0.0), {}, [[0.5, 2]]),
    (nisa.scalar_tensor_tensor, (X, nl.subtract, 2.0, nl.subtract, Y), {}, [[-11, -27], [-50, -66]]),
    (nisa.scalar_tensor_tensor, (X, nl.subtract, COLUMN, nl.subtract, Y, True), {}, [[-8, -32], [-48, -72]]),
    (nisa.scalar_tensor_tensor, (X, nl.subtract, 2.0, nl.subtract, Y, False, True), {}, [[11, 27], [50, 66]]),
    # state = data0 op0 state, then op1 data1
    (nisa.tensor_tensor_scan, (X, Y, 2.0, nl.multiply, nl.add), {}, [[12, 90], [54, 394]]),
    (nisa.tensor_tensor_scan, (X, Y, COLUMN, nl.subtract, nl.subtract), {"reverse0": True}, [[-8, -43], [-48, -124]]),
    (nisa.tensor_tensor_scan, (X, Y, 2.0, nl.subtract, nl.add), {"reverse1": True}, [[9, 26], [50, 26]]),
    (nisa.reciprocal, (a_tile(row(1, -8, 64), buffer=nl.psum),), {}, [[1, -0.125, 0.015625]]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "operands", "settings", "expected"), VALUES)
def test_values(call, operands, settings, expected):
    found = result(call, np.shape(expected), nl.bfloat16, *operands, **settings)
    same(found, rounded(expected, "bfloat16"))


#: Values, a bitvec op and its operand, other arguments, and what comes of them.
SHIFTED = [
    ([0b1011, -1], nl.right_shift, 1, {"op1": nl.bitwise_and, "operand1": 0b101}, [0b101, 0b101]),
    ([0, -1, 5], nl.invert, None, {}, [-1, 0, -6]),
    ([-8], nl.right_shift, 1, {}, [(2**32 - 8) >> 1]),
    ([0, 1, 4, 40], nl.left_shift, 3, {"reverse0": True}, [3, 6, 48, 0]),
    ([-1], nl.bitwise_and, 0xFFFF0000, {}, [-65536]),
    ([1, 2**31 - 1], nl.left_shift, 256, {}, [0, 0]),
]


@pytest.mark.parametrize(("values", "op", "operand", "more", "expected"), SHIFTED)
def test_bits_two_ops_invert_wide_counts_and_reversed_shifts(values, op, operand, more, expected):
    given = row(*values, dtype=I32), op, operand
    assert result(nisa.tensor_scalar, (1, len(values)), nl.int32, *given, **more).tolist() == [expected]


# Operators called on tiles.


#: What operators called on tiles x, in SBUF, and y, in PSUM, give; and of NumPy's.
CALLED = {
    "two tiles": (lambda x, y: nl.subtract(x, y), lambda x, y: x - y),
    "a number second": (lambda x, y: nl.subtract(x, 2.0), lambda x, y: x - 2),
    "a number first": (lambda x, y: nl.subtract(2.0, x), lambda x, y: 2 - x),
    "one": (lambda x, y: nl.abs(x), lambda x, y: np.abs(x)),
    "copy": (lambda x, y: nl.copy(y), lambda x, y: y),
    "another dtype": (lambda x, y: nl.multiply(put(np.ones((5, 6), np.int8)), 0.5, dtype=nl.float32),
     lambda x, y: np.full((5, 6), 0.5, np.float32)),
    "bits": (lambda x, y: nl.invert(put(row(5, dtype=np.int16))), lambda x, y: row(-6, dtype=np.int16)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
def test_operators_called_on_tiles(name, rng):
    a, b = rng.normal(size=(2, 5, 6)).astype(np.float32)
    call, expected = CALLED[name]

    def body():
        made = call(put(a), put(b, buffer=nl.psum))
        assert made.buffer is nl.sbuf
        return get(made)

    same(evaluate(body), expected(a, b))
