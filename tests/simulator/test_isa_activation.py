"""Every activation function against torch or NumPy in float64, and what activation does around it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from isa_tiles import LAYOUTS, a_tile, evaluate, fill, get, place, put, result, rounded, same, sample
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
    "copy": (lambda x: x, (-1e4, 1e4)),
    "square": (torch.square, (-1e4, 1e4)),
    "sigmoid": (torch.sigmoid, (-30, 30)),
    "relu": (torch.relu, (-5, 5)),
    "gelu": (gelu, (-9, 9)),
    "gelu_dx": (derivative(F.gelu), (-9, 9)),
    "gelu_apprx_tanh": (lambda x: F.gelu(x, approximate="tanh"), (-9, 9)),
    "gelu_apprx_sigmoid": (gelu_sigmoid, (-9, 9)),
    "gelu_apprx_sigmoid_dx": (derivative(gelu_sigmoid), (-9, 9)),
    "silu": (F.silu, (-30, 30)),
    "silu_dx": (derivative(F.silu), (-30, 30)),
    "tanh": (torch.tanh, (-12, 12)),
    "softplus": (lambda x: F.softplus(x, threshold=1e9), (-40, 40)),
    "mish": (F.mish, (-30, 30)),
    "erf": (torch.erf, (-4, 4)),
    "erf_dx": (derivative(torch.erf), (-6, 6)),
    "exp": (torch.exp, (-20, 20)),
    "log": (torch.log, (1e-6, 1e6)),
    "sin": (torch.sin, (-math.pi, math.pi)),
    "arctan": (torch.arctan, (-1.57, 1.57)),
    "sqrt": (torch.sqrt, (1e-9, 1e9)),
    "rsqrt": (torch.rsqrt, (1e-9, 1e9)),
    "reciprocal": (torch.reciprocal, (-1e4, 1e4)),
    "sign": (torch.sign, (-3, 3)),
    "abs": (torch.abs, (-3, 3)),
}


def truth(op, x):
    return FUNCTIONS[op][0](torch.from_numpy(x.astype(np.float64))).numpy()


def activate(op, x, dtype="float32", **settings):
    return result(nisa.activation, x.shape, dtype, OPS[op], x, **settings)


def test_every_function_of_the_table_is_here():
    assert {name for name, op in OPS.items() if op.activation} == set(FUNCTIONS)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_are_exact_to_a_few_fp32_roundings(op, rng):
    low, high = FUNCTIONS[op][1]
    x = rng.uniform(low, high, size=(5, 400)).astype(np.float32)
    # slopes cross zero, where fp32 cancels; torch's own gelu in float64 cancels at 1 + tanh
    absolute = 3e-7 if op.endswith("_dx") else 1e-14 if op == "gelu_apprx_tanh" else 0
    assert_relative(activate(op, x), truth(op, x), 64, absolute)


@pytest.mark.parametrize("op", [op for op in FUNCTIONS if FUNCTIONS[op][1][0] < 0])
def test_functions_are_relatively_exact_near_zero(op, rng):
    x = (rng.choice([-1, 1], size=(5, 60)) * 10.0 ** rng.uniform(-6, -1, size=(5, 60))).astype(np.float32)
    assert_relative(activate(op, x), truth(op, x), 32)


@pytest.mark.parametrize("op", ["gelu", "gelu_apprx_sigmoid", "silu", "mish", "sigmoid", "softplus", "erf", "tanh"])
def test_tails(op):
    x = np.array([[-80.0, -40.0, -12.0, 12.0, 40.0, 3e38]], np.float32)
    assert_relative(activate(op, x), truth(op, x), 160, floor=1e-37)


def test_erf_and_gelu_where_their_formulas_meet():
    x = np.array([np.linspace(-2e-3, 2e-3, 101), np.linspace(-15, 15, 101)]).astype(np.float32)
    assert_relative(activate("erf", x), truth("erf", x), 3)
    assert_relative(activate("gelu", x), truth("gelu", x), 64, floor=1e-38)


@pytest.mark.parametrize("op", [op for op in FUNCTIONS if op not in ("sign", "relu")])
def test_nan_stays_nan(op):
    assert np.isnan(activate(op, np.full((1, 2), np.nan, np.float32))).all()


@pytest.mark.parametrize("src", ["float32", "bfloat16", "float16", "float8_e4m3", "int8", "int32", "uint8"])
@pytest.mark.parametrize("dst", ["float32", "bfloat16", "float16", "float8_e5m2", "int16", "uint8", "tfloat32"])
def test_dtypes(src, dst, rng):
    x = sample(rng, (5, 24), src)
    wide = x.astype(np.float32) * np.float32(2) + np.float32(0.5)
    found = result(nisa.activation, (5, 24), dst, nl.relu, a_tile(x, src, nl.psum), 0.5, 2.0, to=nl.psum)
    same(found, rounded(np.where(wide > 0, wide, 0), dst))


@pytest.mark.parametrize("scale", ["number", "column", "default"])
@pytest.mark.parametrize("bias", ["number", "fp32", "bf16", "int8", "default"])
def test_scale_then_bias(scale, bias, rng):
    x = rng.normal(size=(33, 4, 6)).astype(np.float32)
    s, b = rng.normal(size=(2, 33, 1)).astype(np.float32)
    b = {"bf16": rounded(b, "bfloat16"), "int8": rounded(b * 4, "int8")}.get(bias, b)

    def body():
        out = nl.ndarray((33, 24), nl.float32)
        settings = {}
        if scale != "default":
            settings["scale"] = -1.5 if scale == "number" else put(s, buffer=nl.psum)
        if bias != "default":
            settings["bias"] = 0.25 if bias == "number" else put(b)
        nisa.activation(out, nl.copy, put(x), **settings)
        return get(out)

    factor = {"number": np.float32(-1.5), "column": s[:, None], "default": np.float32(1)}[scale]
    offset = {"number": np.float32(0.25), "default": np.float32(0)}.get(bias, b.astype(np.float32)[:, None])
    same(evaluate(body), (x * factor + offset).reshape(33, 24))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("partitions", [1, 5, 32, 33, 128])
def test_views(layout, partitions, rng):
    x = rng.normal(size=(partitions, 3, 4)).astype(np.float32)

    def body():
        out = place(layout, x.shape, nl.float32)
        nisa.activation(out, nl.square, fill(place(layout, x.shape, nl.float32, nl.psum), x))
        return get(out)

    same(evaluate(body), np.square(x))


def test_functions_called_on_tiles(rng):
    x = np.abs(rng.normal(size=(5, 6))).astype(np.float32) + 1
    exp, rsqrt = evaluate(lambda: (get(nl.exp(put(x))), get(nl.rsqrt(put(x), dtype=nl.bfloat16))))
    assert_relative(exp, np.exp(x.astype(np.float64)), 3)
    same(rsqrt, rounded(1 / np.sqrt(x), "bfloat16"))


def test_rsqrt_of_a_tile_runs_on_gpsimd():
    def body():
        nl.rsqrt(put(np.ones((4, 8), np.float32)))

    execution = run(body)
    assert [i.engine for i in execution.instructions] == ["gpsimd"]
    with pytest.raises(NkiError, match="NKI042"):
        evaluate(lambda: nl.rsqrt(put(np.ones((4, 8), np.float32), buffer=nl.psum)))


def test_sin_of_a_tile_takes_any_angle(rng):
    x = np.concatenate([rng.uniform(-100, 100, (4, 60)), np.full((4, 4), [9.0, np.pi, -np.pi, 0.0])], 1).astype(
        np.float32
    )
    assert_relative(evaluate(lambda: get(nl.sin(put(x)))), np.sin(x.astype(np.float64)), 1, floor=EPS32)


@pytest.mark.parametrize(("name", "exact"), [("sin", np.sin), ("cos", np.cos), ("tan", np.tan)])
def test_large_angles_keep_their_place_on_the_circle(name, exact):
    x = np.array([[1e4, 1e5, 1e6, 1e7, -1e7, 3e20, 3e38, 1e-30]], np.float32)
    assert_relative(evaluate(lambda: get(getattr(nl, name)(put(x)))), exact(x.astype(np.float64)), 4, floor=EPS32)


class TestScrap:
    """A destination of steps of 0, where only the sum is wanted."""

    @staticmethod
    def summed(values, scrap):
        total = nl.ndarray((values.shape[0], 1), nl.float32)
        nisa.activation_reduce(
            scrap.broadcast(1, values.shape[1]), op=nl.square, data=put(values), reduce_op=nl.add, reduce_res=total
        )
        return total

    def test_the_sum_is_right(self):
        values = np.arange(24, dtype=np.float32).reshape(4, 6)
        found = evaluate(lambda: get(self.summed(values, nl.ndarray((4, 1), nl.bfloat16))))
        same(found, (values**2).sum(axis=1, keepdims=True))

    @pytest.mark.parametrize("written", [False, True])
    def test_what_it_leaves_cannot_be_read(self, written):
        def body():
            tile = nl.zeros((4, 8), nl.float32) if written else nl.ndarray((4, 8), nl.float32)
            self.summed(np.ones((4, 6), np.float32), tile[0:4, 3:4])
            return get(tile[0:4, 0:3]) if written else get(tile[0:4, 3:4])

        if written:
            same(evaluate(body), np.zeros((4, 3), np.float32))
        else:
            with pytest.raises(NkiError, match="NKI016"):
                evaluate(body)

    def test_nor_can_what_was_there_before(self):
        def body():
            tile = nl.zeros((4, 8), nl.float32)
            get(tile)
            self.summed(np.ones((4, 6), np.float32), tile[0:4, 3:4])
            return get(tile[0:4, 2:5])

        with pytest.raises(NkiError, match="NKI016"):
            evaluate(body)

    def test_it_can_be_written_again(self):
        def body():
            tile = nl.zeros((4, 2), nl.float32)
            self.summed(np.ones((4, 6), np.float32), tile[0:4, 1:2])
            nisa.memset(tile[0:4, 1:2], 5.0)
            return get(tile)

        same(evaluate(body), np.array([[0, 5]] * 4, np.float32))

    def test_without_a_sum_it_is_refused(self):
        def body():
            tile = nl.ndarray((4, 1), nl.float32)
            nisa.activation(tile.broadcast(1, 6), op=nl.square, data=put(np.ones((4, 6), np.float32)))

        with pytest.raises(NkiError, match="NKI017"):
            run(body)
