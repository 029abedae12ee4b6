"""range_select and tensor_scalar_cumulative against NumPy and Python loops."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from isa_tiles import LAYOUTS, evaluate, fill, get, place, put, result, rounded, same

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.ops import OPS

CMD = nisa.reduce_cmd
LOWEST = np.finfo(np.float32).min
TESTS = {
    "equal": operator.eq, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge,
}  # fmt: skip


def column(values):
    return put(np.asarray(values, np.float32).reshape(-1, 1))


# range_select.


@pytest.mark.parametrize("op0", TESTS)
@pytest.mark.parametrize("op1", TESTS)
def test_range_select(op0, op1, rng):
    values = rng.normal(size=(5, 3, 4)).astype(np.float32)
    low, high = [2, 3, 4.5, 10, -1], [6, 3, 12, 4, 2]

    def body():
        dst, best = nl.ndarray((5, 12), nl.float32), nl.ndarray((5, 1), nl.float32)
        data = put(values, buffer=nl.psum)
        nisa.range_select(dst, data, OPS[op0], OPS[op1], column(low), column(high), reduce_res=best, range_start=1)
        return get(dst), get(best)

    expected = values.reshape(5, 12).copy()
    for p in range(5):
        for i in range(12):
            if not (TESTS[op0](1 + i, low[p]) and TESTS[op1](1 + i, high[p])):
                expected[p, i] = LOWEST
    selected, best = evaluate(body)
    same(selected, expected)
    same(best, expected.max(axis=1, keepdims=True))


@pytest.mark.filterwarnings("ignore:overflow")  # of NumPy's cast to fp16 in the expected values
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_range_select_of_views_casts_after_the_maximum(layout, dtype, rng):
    values = rounded(rng.normal(size=(32, 2, 5)), dtype)

    def body():
        data, dst = fill(place(layout, values.shape, dtype), values), place(layout, (32, 2, 5), dtype)
        best = nl.ndarray((32, 1), nl.float32)
        ends = column(np.arange(32) % 11)
        nisa.range_select(dst, data, nl.greater_equal, nl.less, column([0] * 32), ends, reduce_res=best)
        return get(dst), get(best)

    chosen = np.where(np.arange(10) < np.arange(32)[:, None] % 11, values.reshape(32, 10).astype(np.float32), LOWEST)
    selected, best = evaluate(body)
    same(selected, rounded(chosen, dtype).reshape(32, 2, 5))
    same(best, chosen.max(axis=1, keepdims=True))
    assert best[0] == LOWEST, "an empty range"
    if dtype != "float32":
        assert selected[0, 0, 0] == -np.inf


def test_range_select_chains_its_maximum():
    def body():
        dst, best = nl.ndarray((1, 4), nl.float32), nl.ndarray((1, 1), nl.float32)
        for start, command, out in ((0, CMD.reset_reduce, None), (4, CMD.reduce, best)):
            data = put(np.array([[9, 1, 2, 3]], np.float32) - start)
            nisa.range_select(dst, data, nl.greater, nl.less, column([0]), column([7]), command, out, range_start=start)
        return get(best)

    assert evaluate(body).item() == 5  # 9 - 4 at place 4; the 9 at place 0 is outside


# tensor_scalar_cumulative.


STEPS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "maximum": max, "minimum": min}


def cumulated(values, op, start):
    """reg = values[i] op reg, along each row, in fp32."""
    out = np.empty_like(values)
    for p, row in enumerate(values):
        reg = np.float32(start)
        for i, x in enumerate(row):
            reg = out[p, i] = STEPS[op](x, reg)
    return out


STARTS = {"add": 0, "subtract": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}


@pytest.mark.parametrize("op", STARTS)
@pytest.mark.parametrize(("dtype", "out"), [("float32", "float32"), ("bfloat16", "int16"), ("uint8", "bfloat16")])
def test_tensor_scalar_cumulative(op, dtype, out, rng):
    values = rounded(rng.integers(0, 3, (5, 3, 4)), dtype)
    flat = values.astype(np.float32).reshape(5, 12) - 1
    found = result(nisa.tensor_scalar_cumulative, (5, 12), out, values, nl.subtract, OPS[op], 1.0, to=nl.psum)
    same(found, rounded(cumulated(flat, op, STARTS[op]), out))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensor_scalar_cumulative_of_views_with_operand_tiles(layout, rng):
    values = rng.integers(-4, 5, (32, 2, 3)).astype(np.float32)
    by, start = rng.integers(-2, 3, 32), rng.integers(-9, 9, 32)

    def body():
        src, dst = fill(place(layout, values.shape, nl.float32), values), place(layout, (32, 2, 3), nl.float32)
        nisa.tensor_scalar_cumulative(dst, src, nl.multiply, nl.add, column(by), column(start), CMD.load_reduce)
        return get(dst)

    flat = values.reshape(32, 6) * by[:, None]
    same(evaluate(body).reshape(32, 6), (flat.cumsum(axis=1) + start[:, None]).astype(np.float32))


def test_cumulating_goes_on_and_shares_the_registers():
    def body():
        row, dst, total = put(np.array([[1, 2, 3]], np.float32)), nl.ndarray((1, 6), nl.float32), column([0])
        nisa.tensor_scalar_cumulative(dst[:, 0:3], row, nl.multiply, nl.add, 1.0)
        nisa.tensor_scalar_cumulative(dst[:, 3:6], row, nl.multiply, nl.add, 10.0, reduce_cmd=CMD.reduce)
        nisa.tensor_scalar_reduce(row, row, nl.multiply, 100.0, nl.add, total, reduce_cmd=CMD.reduce)
        return get(dst), get(total)

    sums, total = evaluate(body)
    assert sums.tolist() == [[1, 3, 6, 16, 36, 66]]
    assert total.item() == 666
