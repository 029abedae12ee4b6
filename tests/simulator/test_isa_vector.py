"""Elementwise instructions of Vector, Scalar and GpSimd: operators against NumPy, activation functions against torch or
NumPy in float64, the rest by hand.
"""

import math

import numpy as np
import pytest
import torch
from isa_tiles import a_tile, evaluate, get, laid, put, result, results, rounded, row, same, sample
from isa_tiles import out as made
from pairs import run
from tolerances import assert_relative

from nkiconv.bounds import EPS32
from nkiconv.simulator import NkiError
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


TYPES = [
    ("float32", "float32", "float32"), ("bfloat16", "float32", "bfloat16"), ("float16", "int8", "float16"),
    ("float8_e4m3", "float8_e5m2", "bfloat16"), ("int32", "float32", "int16"), ("uint8", "int16", "float32"),
    ("tfloat32", "bool_", "tfloat32"),
]  # fmt: skip


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
    (nisa.tensor_scalar, (X, nl.subtract, 2.0, True), {}, [[1, -3], [0, -4]]),
    (nisa.tensor_scalar, (X, nl.less, a_tile(COLUMN, buffer=nl.psum)), {}, [[1, 0], [1, 0]]),
    (nisa.tensor_scalar, (X, nl.subtract, COLUMN, False, nl.subtract, 7.0, True), {}, [[9, 5], [9, 5]]),
    (nisa.tensor_scalar, (X, nl.subtract, 7.0, True, nl.multiply, COLUMN), {}, [[18, 6], [20, 4]]),
    (nisa.tensor_scalar, (X, nl.subtract, 4.0), {"op1": nl.abs}, [[3, 1], [2, 2]]),
    (nisa.tensor_scalar, (X, nl.multiply, 2.0), {"op1": nl.add, "operand1": 1.0, "engine": nisa.engine.scalar},
     [[3, 11], [5, 13]]),
    (nisa.tensor_scalar, (-X, nl.abs, None), {}, [[1, 5], [2, 6]]),
    (nisa.tensor_scalar, (row(4, 0.25), nl.reciprocal, 0), {}, [[0.25, 4]]),
    (nisa.tensor_scalar, (row(4, 0.25), nl.rsqrt, 0.0), {}, [[0.5, 2]]),
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


#: What operators called on tiles x, in SBUF, and y, in PSUM, give; and of NumPy's.
CALLED = {
    "two tiles": (lambda x, y: nl.subtract(x, y), lambda x, y: x - y),
    "a number second": (lambda x, y: nl.subtract(x, 2.0), lambda x, y: x - 2),
    "a number first": (lambda x, y: nl.subtract(2.0, x), lambda x, y: 2 - x),
    "of one": (lambda x, y: nl.rsqrt(nl.abs(x), dtype=nl.bfloat16),
     lambda x, y: rounded(1 / np.sqrt(np.abs(x)), "bfloat16")),
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


F = torch.nn.functional


def derivative(function):
    def slope(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    return slope


def gelu(x):
    """x times the normal distribution function, without the cancellation of 1 + erf in torch's own."""
    return 0.5 * x * torch.special.erfc(-x / math.sqrt(2.0))


def gelu_sigmoid(x):
    return x * torch.sigmoid(1.702 * x)


#: Each function in torch, and the inputs it is tried on: (lowest, highest) of a uniform distribution.
FUNCTIONS = {
    "copy": (lambda x: x, (-1e4, 1e4)), "square": (torch.square, (-1e4, 1e4)), "sigmoid": (torch.sigmoid, (-30, 30)),
    "relu": (torch.relu, (-5, 5)), "gelu": (gelu, (-9, 9)), "gelu_dx": (derivative(F.gelu), (-9, 9)),
    "gelu_apprx_tanh": (lambda x: F.gelu(x, approximate="tanh"), (-9, 9)),
    "gelu_apprx_sigmoid": (gelu_sigmoid, (-9, 9)), "gelu_apprx_sigmoid_dx": (derivative(gelu_sigmoid), (-9, 9)),
    "silu": (F.silu, (-30, 30)), "silu_dx": (derivative(F.silu), (-30, 30)), "tanh": (torch.tanh, (-12, 12)),
    "softplus": (lambda x: F.softplus(x, threshold=1e9), (-40, 40)), "mish": (F.mish, (-30, 30)),
    "erf": (torch.erf, (-4, 4)), "erf_dx": (derivative(torch.erf), (-6, 6)), "exp": (torch.exp, (-20, 20)),
    "log": (torch.log, (1e-6, 1e6)), "sin": (torch.sin, (-math.pi, math.pi)), "arctan": (torch.arctan, (-1.57, 1.57)),
    "sqrt": (torch.sqrt, (1e-9, 1e9)), "rsqrt": (torch.rsqrt, (1e-9, 1e9)),
    "reciprocal": (torch.reciprocal, (-1e4, 1e4)), "sign": (torch.sign, (-3, 3)), "abs": (torch.abs, (-3, 3)),
}  # fmt: skip


def truth(op, x):
    return FUNCTIONS[op][0](torch.from_numpy(x.astype(np.float64))).numpy()


def activate(op, x, dtype="float32", **settings):
    return result(nisa.activation, x.shape, dtype, OPS[op], x, **settings)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_are_exact_to_a_few_fp32_roundings(op, rng):
    """In their range, and near zero relatively too."""
    low, high = FUNCTIONS[op][1]
    x = rng.uniform(low, high, size=(5, 400)).astype(np.float32)
    # slopes cross zero, where fp32 cancels; torch's own gelu in float64 cancels at 1 + tanh
    absolute = 3e-7 if op.endswith("_dx") else 1e-14 if op == "gelu_apprx_tanh" else 0
    assert_relative(activate(op, x), truth(op, x), 64, absolute)
    if low < 0:
        x = (rng.choice([-1, 1], size=(5, 60)) * 10.0 ** rng.uniform(-6, -1, size=(5, 60))).astype(np.float32)
        assert_relative(activate(op, x), truth(op, x), 32)
    if op not in ("sign", "relu"):
        assert np.isnan(activate(op, np.full((1, 2), np.nan, np.float32))).all()


TAILS = row(-80.0, -40.0, -12.0, 12.0, 40.0, 3e38)
#: where formulas meet
MEET = np.array([np.linspace(-2e-3, 2e-3, 101), np.linspace(-15, 15, 101)], np.float32)
PLACES = [
    *((op, TAILS, 160, 1e-37) for op in ("gelu", "gelu_apprx_sigmoid", "silu", "mish", "sigmoid", "softplus", "erf")),
    ("tanh", TAILS, 160, 1e-37), ("erf", MEET, 3, 0), ("gelu", MEET, 64, 1e-38),
]  # fmt: skip


@pytest.mark.parametrize(("op", "x", "roundings", "floor"), PLACES)
def test_tails_and_where_formulas_meet(op, x, roundings, floor):
    assert_relative(activate(op, x), truth(op, x), roundings, floor=floor)


SIGNED, TENS = np.array([[1, -2], [3, -4]], np.float32), np.array([[10], [20]], np.float32)
#: A function, the dtype of its result, what it is of, other settings, and what comes of it.
ACTIVATED = [
    (nl.copy, "float32", SIGNED, {"scale": -1.5, "bias": 0.25}, [[-1.25, 3.25], [-4.25, 6.25]]),
    (nl.copy, "tfloat32", SIGNED, {"scale": a_tile(TENS, buffer=nl.psum), "bias": TENS}, [[20, -10], [80, -60]]),
    (nl.copy, "float32", SIGNED.astype(np.int8), {"bias": rounded(TENS, "bfloat16")}, [[11, 8], [23, 16]]),
    (nl.copy, "int16", SIGNED.astype(np.int32), {"scale": TENS, "bias": TENS.astype(np.int8)}, [[20, -10], [80, -60]]),
    (nl.relu, "uint8", a_tile(SIGNED, "float8_e4m3", nl.psum), {"scale": 2.0, "bias": 0.5}, [[2, 0], [6, 0]]),
]


@pytest.mark.parametrize(("op", "dtype", "x", "settings", "expected"), ACTIVATED)
def test_scale_then_bias_then_cast(op, dtype, x, settings, expected):
    found = result(nisa.activation, (2, 2), dtype, op, x, to=nl.psum, **settings)
    assert found.astype(np.float32).tolist() == expected


TURNS = ("sin", "cos", "tan")
LARGE = row(1e4, 1e5, 1e6, 1e7, -1e7, 3e20, 3e38, 1e-30)
ANGLES = np.concatenate([np.linspace(-100, 100, 240, dtype=np.float32)[None], row(9.0, np.pi, -np.pi, 0.0)], 1)


@pytest.mark.parametrize(
    ("name", "x", "roundings"), [*((f, ANGLES, 4 if f == "tan" else 1) for f in TURNS), *((f, LARGE, 4) for f in TURNS)]
)
def test_angles_keep_their_place_on_the_circle(name, x, roundings):
    found = evaluate(lambda: get(getattr(nl, name)(put(x))))
    assert_relative(found, getattr(np, name)(x.astype(np.float64)), roundings, floor=EPS32)


# A destination of steps of 0, where only the sum is wanted: what of a tile with such scrap in column 3 is read,
# whether it was written before, whether that is refused
SCRAP = {
    "scrap": (slice(3, 4), False, True), "columns beside it": (slice(0, 3), True, False),
    "what was there before": (slice(2, 5), True, True),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "written", "refused"), SCRAP.values(), ids=SCRAP)
def test_scrap_beside_a_sum_cannot_be_read(columns, written, refused):
    values = np.arange(24, dtype=np.float32).reshape(4, 6)

    def body():
        tile, total = (nl.zeros if written else nl.ndarray)((4, 8), nl.float32), nl.ndarray((4, 1), nl.float32)
        nisa.activation_reduce(tile[0:4, 3:4].broadcast(1, 6), nl.square, put(values), nl.add, total)
        same(get(total), (values**2).sum(axis=1, keepdims=True))
        return get(tile[0:4, columns])

    if refused:
        with pytest.raises(NkiError, match="NKI016"):
            evaluate(body)
    else:
        assert not evaluate(body).any()
    with pytest.raises(NkiError, match="NKI017"):
        run(lambda: nisa.activation(nl.ndarray((4, 1), nl.float32).broadcast(1, 6), nl.square, put(values)) and None)
