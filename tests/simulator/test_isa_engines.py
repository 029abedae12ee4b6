"""Elementwise instructions of Vector, Scalar and GpSimd: operators against NumPy, activation functions against torch or
NumPy in float64, the rest by hand; nc_matmul and nc_transpose against float64 products: dtypes, windows, accumulation,
double_row, NaN payloads.
"""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from isa_tiles import a_tile, evaluate, get, laid, put, result, results, rounded, row, same, sample
from isa_tiles import out as made
from pairs import run
from tolerances import assert_relative

from nkiconv.bounds import EPS32
from nkiconv.simulator import NkiError, OverwriteWarning
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.dtypes import DTYPES
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


#: Operator, two numbers, and their result: of GpSimd, which has integer arithmetic, of mixed signs.
I32, U32 = np.int32, np.uint32
NATIVE = [
    ("add", (2**31 - 1, I32), (1, I32), -(2**31)), ("subtract", (2**24 + 1, I32), (1, I32), 2**24),
    ("multiply", (65537, I32), (65537, I32), 131073), ("maximum", (2**24, I32), (2**24 + 1, I32), 2**24 + 1),
    ("minimum", (-(2**24) - 1, I32), (-(2**24), I32), -(2**24) - 1), ("equal", (2**24, I32), (2**24 + 1, I32), 0),
    ("greater", (2**24 + 1, I32), (2**24, I32), 1), ("add", (2**32 - 2, U32), (1, I32), 2**32 - 1),
    ("power", (2, I32), (-1, I32), 0), ("power", (1, I32), (-1, I32), 1),
]  # fmt: skip


@pytest.mark.parametrize(("op", "a", "b", "expected", "engine"), [
    *((*row, "unknown") for row in NATIVE), ("add", (2**24, I32), (1, I32), 2**24, "vector"),  # in fp32
])  # fmt: skip
def test_integer_arithmetic(op, a, b, expected, engine):
    (a, of_a), (b, of_b) = a, b
    dst, tiles = nl.uint32 if of_a is U32 else nl.int32, (row(a, dtype=of_a), row(b, dtype=of_b))
    assert result(nisa.tensor_tensor, (1, 1), dst, *tiles, OPS[op], nisa.engine[engine]).item() == expected


# tensor_scalar, scalar_tensor_tensor, tensor_tensor_scan, reciprocal.

X, Y, COLUMN = (np.array(values, np.float32) for values in ([[1, 5], [2, 6]], [[10, 30], [50, 70]], [[3], [4]]))


# An instruction, its operands and settings, and what comes of them.
@pytest.mark.parametrize(("call", "operands", "settings", "expected"), [
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
])  # fmt: skip
def test_values(call, operands, settings, expected):
    found = result(call, np.shape(expected), nl.bfloat16, *operands, **settings)
    same(found, rounded(expected, "bfloat16"))


# Values, a bitvec op and its operand, other arguments, and what comes of them.
@pytest.mark.parametrize(("values", "op", "operand", "more", "expected"), [
    ([0b1011, -1], nl.right_shift, 1, {"op1": nl.bitwise_and, "operand1": 0b101}, [0b101, 0b101]),
    ([0, -1, 5], nl.invert, None, {}, [-1, 0, -6]),
    ([-8], nl.right_shift, 1, {}, [(2**32 - 8) >> 1]),
    ([0, 1, 4, 40], nl.left_shift, 3, {"reverse0": True}, [3, 6, 48, 0]),
    ([-1], nl.bitwise_and, 0xFFFF0000, {}, [-65536]),
    ([1, 2**31 - 1], nl.left_shift, 256, {}, [0, 0]),
])  # fmt: skip
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


@pytest.mark.parametrize(("op", "x", "roundings", "floor"), [
    *((op, TAILS, 160, 1e-37) for op in ("gelu", "gelu_apprx_sigmoid", "silu", "mish", "sigmoid", "softplus", "erf")),
    ("tanh", TAILS, 160, 1e-37), ("erf", MEET, 3, 0), ("gelu", MEET, 64, 1e-38),
])  # fmt: skip
def test_tails_and_where_formulas_meet(op, x, roundings, floor):
    assert_relative(activate(op, x), truth(op, x), roundings, floor=floor)


SIGNED, TENS = np.array([[1, -2], [3, -4]], np.float32), np.array([[10], [20]], np.float32)


# A function, the dtype of its result, what it is of, other settings, and what comes of it.
@pytest.mark.parametrize(("op", "dtype", "x", "settings", "expected"), [
    (nl.copy, "float32", SIGNED, {"scale": -1.5, "bias": 0.25}, [[-1.25, 3.25], [-4.25, 6.25]]),
    (nl.copy, "tfloat32", SIGNED, {"scale": a_tile(TENS, buffer=nl.psum), "bias": TENS}, [[20, -10], [80, -60]]),
    (nl.copy, "float32", SIGNED.astype(np.int8), {"bias": rounded(TENS, "bfloat16")}, [[11, 8], [23, 16]]),
    (nl.copy, "int16", SIGNED.astype(np.int32), {"scale": TENS, "bias": TENS.astype(np.int8)}, [[20, -10], [80, -60]]),
    (nl.relu, "uint8", a_tile(SIGNED, "float8_e4m3", nl.psum), {"scale": 2.0, "bias": 0.5}, [[2, 0], [6, 0]]),
])  # fmt: skip
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


DOUBLE_ROW = nisa.matmul_perf_mode.double_row


def integers(rng, shape, dtype="float32"):
    """Integers from -3..3: products and sums are exact in fp32, so results must be equal."""
    return rng.integers(-3, 4, size=shape).astype(DTYPES[dtype].numpy)


def product(stationary, moving):
    """[M, N] in float64, then fp32; free dims are flattened."""
    lhs = stationary.astype(np.float64).reshape(len(stationary), -1)
    return (lhs.T @ moving.astype(np.float64).reshape(len(moving), -1)).astype(np.float32)


def multiply(stationary, moving, shape, dtypes=(None, None), **settings):
    tiles = a_tile(stationary, dtypes[0]), a_tile(moving, dtypes[1])
    return result(nisa.nc_matmul, shape, nl.float32, *tiles, to=nl.psum, **settings)


@pytest.mark.parametrize(("k", "m", "n", "left", "right"), [
    (1, 1, 1, "bfloat16", "float8_e5m2"), (5, 128, 3, "float16", "float8_e4m3"), (128, 33, 512, "bfloat16", "bfloat16"),
    (33, 7, 20, "float32", "tfloat32"), (33, 7, 20, "tfloat32", "float32"),
])  # fmt: skip
def test_sizes_and_dtypes(k, m, n, left, right, rng):
    a, b = integers(rng, (k, m), left), integers(rng, (k, n), right)
    same(multiply(a, b, (m, n), (left, right)), product(a, b))


def test_products_are_exact_and_sums_fp32(rng):
    a = rng.normal(size=(128, 16)).astype(ml_dtypes.bfloat16)
    b = rng.normal(size=(128, 64)).astype(ml_dtypes.bfloat16)
    magnitude = product(np.abs(a), np.abs(b))
    error = np.abs(multiply(a, b, (16, 64)).astype(np.float64) - a.astype(np.float64).T @ b.astype(np.float64))
    assert np.all(error <= 12 * 2.0**-24 * magnitude)


def test_tfloat32_operands_have_ten_mantissa_bits():
    fine = np.array([[1 + 2.0**-12]], np.float32)

    def body():
        one, dst = put(np.ones((1, 1), np.float32)), nl.ndarray((1, 2), nl.float32, nl.psum)
        nisa.nc_matmul(dst[:, 0:1], one, put(fine))
        nisa.nc_matmul(dst[:, 1:2], one, put(fine).view(nl.tfloat32))
        return get(dst).tolist()

    assert evaluate(body) == [[1 + 2.0**-12, 1.0]]


def test_layouts(rng):
    a, b = integers(rng, (20, 2, 4), "bfloat16"), integers(rng, (20, 3, 5), "bfloat16")

    dst = made((8, 3, 5), nl.float32, nl.psum, "shifted")
    [found] = results(nisa.nc_matmul, dst, laid("strided", a), laid("permuted", b))
    same(found, product(a, b).reshape(8, 3, 5))


#: Matmuls of a number into six columns from the first one, and what they leave; of 0: a memset of two columns.
ACCUMULATED = {
    "by default": ([(1, 0, None), (10, 0, None), (100, 0, None)], [111] * 6),
    "told at first": ([(1, 0, False), (10, 0, None), (100, 0, True)], [111] * 6),
    "told once": ([(1, 0, None), (10, 0, True), (100, 0, None)], [111] * 6),
    "false overwrites": ([(1, 0, False), (10, 0, False)], [10] * 6),
    "overlapping": ([(1, 0, None), (10, 6, None), (100, 3, None)], [1] * 3 + [101] * 3 + [110] * 3 + [10] * 3),
    "a part after a memset": ([(1, 0, None), (0, 0, None), (10, 2, None)], [0] * 2 + [11] * 4 + [10] * 2),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("steps", "expected"), ACCUMULATED.values(), ids=ACCUMULATED)
def test_accumulation(steps, expected):
    """A matmul adds where others wrote, and begins where none has."""

    def body():
        dst = nl.ndarray((1, 12), nl.float32, nl.psum)
        for number, first, accumulate in steps:
            if number == 0:
                nisa.memset(dst[:, first : first + 2], 0.0)
            else:
                moving = put(np.full((1, 6), number, np.float32))
                nisa.nc_matmul(
                    dst[:, first : first + 6], put(np.ones((1, 1), np.float32)), moving, accumulate=accumulate
                )
        return get(dst[:, : len(expected)])

    assert evaluate(body).tolist() == [expected]


ONES = np.ones((4, 6), np.float32)
WRITES = {
    "memset": lambda dst: nisa.memset(dst, 9.0),
    "tensor_copy": lambda dst: nisa.tensor_copy(dst, put(ONES)),
    "activation": lambda dst: nisa.activation(dst, nl.exp, put(ONES)),
    "predicated": lambda dst: nisa.tensor_copy_predicated(dst, 1.0, put(ONES.astype(np.uint8))),
    "nc_transpose": lambda dst: nisa.nc_transpose(dst, put(ONES.T.copy())),
}


@pytest.mark.parametrize("how", WRITES)
def test_what_no_matmul_wrote_is_overwritten(how, rng):
    a, b = integers(rng, (5, 4)), integers(rng, (5, 6))

    def matmuls(dst):
        nisa.nc_matmul(dst, put(a), put(b))
        WRITES[how](dst)
        with pytest.warns(OverwriteWarning, match=r"accumulate=None overwrites .* \[4, 6\]") as told:
            nisa.nc_matmul(dst, put(a), put(b))
        assert told[0].filename == __file__

    same(result(matmuls, (4, 6), nl.float32, to=nl.psum), product(a, b))


@pytest.mark.parametrize(
    ("left", "right", "k"), [("float8_e4m3", "float8_e5m2", 128), ("float8_e5m2", "float8_e5m2", 1)]
)
def test_double_row(left, right, k, rng):
    a, b = integers(rng, (2, k, 2, 7), left), integers(rng, (2, k, 2, 3, 4), right)
    expected = [sum(product(lhs[:, i], rhs[:, i]) for i in range(2)) for lhs, rhs in zip(a, b, strict=True)]
    same(multiply(a[0], b[0], (7, 3, 4), perf_mode=DOUBLE_ROW), expected[0].reshape(7, 3, 4))

    def twice(dst):
        for lhs, rhs in zip(a, b, strict=True):
            nisa.nc_matmul(dst, put(lhs), put(rhs), perf_mode=DOUBLE_ROW)

    same(result(twice, (7, 3, 4), nl.float32, to=nl.psum), sum(expected).reshape(7, 3, 4))


@pytest.mark.parametrize("size", [32, 64, 128])
def test_tiles_of_the_array(size, rng):
    for start in range(0, 128, size):
        a, b = integers(rng, (size, 7)), integers(rng, (size, 20))
        same(multiply(a, b, (7, 20), tile_position=(start, 0), tile_size=(size, 128)), product(a, b))
        a, b = integers(rng, (9, 20)), integers(rng, (9, 7))
        same(multiply(a, b, (20, 7), tile_position=(0, start), tile_size=(32, size)), product(a, b))


#: Bit patterns that a multiplication would change: NaN payloads, infinities, -0, denormals.
ODD_BITS = {
    "float32": np.array([0x7FC01234, 0xFF800000, 0x7F800001, 0x80000000, 0x00000001, 0x3F800000], np.uint32),
    "bfloat16": np.array([0x7FC1, 0xFF80, 0x7F81, 0x8000, 0x0001, 0x3F80], np.uint16),
    "float16": np.array([0x7E01, 0xFC00, 0x7C01, 0x8000, 0x0001, 0x3C00], np.uint16),
}


@pytest.mark.parametrize(
    ("dtype", "how"), [("bfloat16", "matmul"), ("float32", nisa.engine.tensor), ("float16", nisa.engine.vector)]
)
def test_transposes_keep_every_bit(dtype, how):
    bits = ODD_BITS[dtype].reshape(2, 3)
    values, one = bits.view(DTYPES[dtype].numpy), np.eye(2).astype(DTYPES[dtype].numpy)
    call, *given = (nisa.nc_matmul, values, one) if how == "matmul" else (nisa.nc_transpose, values, how)
    found = result(call, (3, 2), dtype, *given, to=nl.psum, **({"is_transpose": True} if how == "matmul" else {}))
    same(found.view(bits.dtype), bits.T.copy())


@pytest.mark.parametrize(("dtype", "engine", "shape", "src", "dst", "runs"), [
    ("bfloat16", "tensor", (5, 3, 4), "sbuf", "psum", "tensor"),
    ("int32", "tensor", (32, 32), "sbuf", "psum", "tensor"),
    ("float8_e4m3", "vector", (32, 2, 2, 8), "sbuf", "psum", "vector"),
    ("tfloat32", "unknown", (33, 128), "sbuf", "psum", "tensor"),
    ("uint8", "unknown", (5, 8), "sbuf", "sbuf", "vector"),
    ("bool_", "unknown", (5, 8), "psum", "psum", "vector"), ("float16", "unknown", (5, 8), "psum", "sbuf", "vector"),
])  # fmt: skip
def test_nc_transpose(dtype, engine, shape, src, dst, runs, rng):
    """The default: Tensor up to 128, from SBUF to PSUM; Vector between memories."""
    values, made = sample(rng, shape, dtype), []

    def transpose(out, data):
        made.append(nisa.nc_transpose(out, data, nisa.engine[engine]))

    data = a_tile(values, dtype, getattr(nl, src))
    found = result(transpose, (values[0].size, shape[0]), dtype, data, to=getattr(nl, dst))
    same(found, values.reshape(shape[0], -1).T.copy())
    assert made[0].engine == runs
