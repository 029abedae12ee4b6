"""Every activation function against torch or NumPy in float64, and what activation does around it."""

import math

import numpy as np
import pytest
import torch
from isa_tiles import a_tile, evaluate, get, laid, put, result, rounded, row, same
from pairs import run
from tolerances import assert_relative

from nkiconv.bounds import EPS32
from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.ops import OPS

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


X, COLUMN = np.array([[1, -2], [3, -4]], np.float32), np.array([[10], [20]], np.float32)
#: A function, the dtype of its result, what it is of, other settings, and what comes of it.
VALUES = [
    (nl.copy, "float32", X, {"scale": -1.5, "bias": 0.25}, [[-1.25, 3.25], [-4.25, 6.25]]),
    (nl.copy, "tfloat32", X, {"scale": a_tile(COLUMN, buffer=nl.psum), "bias": COLUMN}, [[20, -10], [80, -60]]),
    (nl.copy, "float32", X.astype(np.int8), {"bias": rounded(COLUMN, "bfloat16")}, [[11, 8], [23, 16]]),
    (nl.copy, "int16", X.astype(np.int32), {"scale": COLUMN, "bias": COLUMN.astype(np.int8)}, [[20, -10], [80, -60]]),
    (nl.relu, "uint8", a_tile(X, "float8_e4m3", nl.psum), {"scale": 2.0, "bias": 0.5}, [[2, 0], [6, 0]]),
    (nl.square, "float8_e5m2", laid("permuted", X, "bfloat16"), {}, [[1, 4], [8, 16]]),
]


@pytest.mark.parametrize(("op", "dtype", "x", "settings", "expected"), VALUES)
def test_scale_then_bias_then_cast(op, dtype, x, settings, expected):
    found = result(nisa.activation, (2, 2), dtype, op, x, to=nl.psum, **settings)
    assert found.astype(np.float32).tolist() == expected


def on_tile(name, x, dtype=None):
    return evaluate(lambda: get(getattr(nl, name)(put(x), dtype=dtype)))


def test_functions_called_on_tiles(rng):
    x = np.abs(rng.normal(size=(5, 6))).astype(np.float32) + 1
    assert_relative(on_tile("exp", x), np.exp(x.astype(np.float64)), 3)
    same(on_tile("rsqrt", x, nl.bfloat16), rounded(1 / np.sqrt(x), "bfloat16"))


TURNS = ("sin", "cos", "tan")
LARGE = row(1e4, 1e5, 1e6, 1e7, -1e7, 3e20, 3e38, 1e-30)
ANGLES = np.concatenate([np.linspace(-100, 100, 240, dtype=np.float32)[None], row(9.0, np.pi, -np.pi, 0.0)], 1)


@pytest.mark.parametrize(
    ("name", "x", "roundings"), [*((f, ANGLES, 4 if f == "tan" else 1) for f in TURNS), *((f, LARGE, 4) for f in TURNS)]
)
def test_angles_keep_their_place_on_the_circle(name, x, roundings):
    assert_relative(on_tile(name, x), getattr(np, name)(x.astype(np.float64)), roundings, floor=EPS32)


# A destination of steps of 0, where only the sum is wanted.

SIX = np.ones((4, 6), np.float32)


def sum_squares(scrap, values, total=None):
    total = nl.ndarray((values.shape[0], 1), nl.float32) if total is None else total
    nisa.activation_reduce(scrap.broadcast(1, values.shape[1]), nl.square, values, nl.add, total)


def test_the_sum_beside_scrap_is_right():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    found = result(lambda total, x: sum_squares(nl.ndarray((4, 1), nl.bfloat16), x, total), (4, 1), nl.float32, values)
    same(found, (values**2).sum(axis=1, keepdims=True))


# what of a tile with scrap in column 3 is read, whether it was written before, whether that is refused
SCRAP = {
    "scrap": (slice(3, 4), False, True), "columns beside it": (slice(0, 3), True, False),
    "what was there before": (slice(2, 5), True, True),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "written", "refused"), SCRAP.values(), ids=SCRAP)
def test_scrap_cannot_be_read(columns, written, refused):
    def body():
        tile = (nl.zeros if written else nl.ndarray)((4, 8), nl.float32)
        sum_squares(tile[0:4, 3:4], put(SIX))
        return get(tile[0:4, columns])

    if refused:
        with pytest.raises(NkiError, match="NKI016"):
            evaluate(body)
    else:
        assert not evaluate(body).any()


def test_scrap_without_a_sum_is_refused():
    with pytest.raises(NkiError, match="NKI017"):
        run(lambda: nisa.activation(nl.ndarray((4, 1), nl.float32).broadcast(1, 6), nl.square, put(SIX)) and None)
