"""nl.floor, ceil, trunc, cos, tan, negative, logical_not: against NumPy, and what they refuse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from isa_tiles import evaluate, get, place, put
from pairs import dropped, run

from nkiconv.simulator import NkiError
from nkiconv.simulator import language as nl

F32, BF16 = nl.float32, nl.bfloat16
ROUNDING = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}
CALLS = (*ROUNDING, "cos", "tan", "negative", "logical_not")

#: Ties, neighbours of whole numbers, what has no fraction, what int32 does not hold, and what is no number
AWKWARD = np.array(
    [[0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.2, -3.7, 0.99999994, -0.99999994, 1e-30, -1e-30, 8388607.5, -8388607.5,
      2.0**23, -(2.0**23), 2.0**24 + 2, 2.0**31, -(2.0**31), 3e9, -3e38, np.inf, -np.inf, np.nan]],
    np.float32,
)  # fmt: skip


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=["sbuf", "psum"])
@pytest.mark.parametrize("name", ROUNDING)
def test_rounding(name, buffer):
    out = evaluate(lambda: get(getattr(nl, name)(put(AWKWARD, buffer=buffer))))
    np.testing.assert_array_equal(out, ROUNDING[name](AWKWARD))


@draws(60)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=8), st.sampled_from(sorted(ROUNDING)))
def test_rounding_any_float(numbers, name):
    x = np.array([numbers], np.float32)
    np.testing.assert_array_equal(evaluate(lambda: get(getattr(nl, name)(put(x)))), ROUNDING[name](x))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3])
@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_of_narrow_floats(name, dtype):
    x = np.arange(-40, 41, dtype=np.float32).reshape(3, 27) / 16
    narrow = x.astype(dtype)
    out = evaluate(lambda: get(getattr(nl, name)(put(narrow))))
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.astype(np.float32), ROUNDING[name](narrow.astype(np.float32)))


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_into_another_dtype(name):
    x = np.array([[1.25, -1.25, 3.75]], ml_dtypes.bfloat16)
    out = evaluate(lambda: get(getattr(nl, name)(put(x), dtype=nl.int32)))
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, ROUNDING[name](x.astype(np.float32)))


@pytest.mark.parametrize("name", ROUNDING)
def test_integers_are_whole(name):
    x = np.array([[2**31 - 1, -5, 7]], np.int32)
    np.testing.assert_array_equal(evaluate(lambda: get(getattr(nl, name)(put(x)))), x)


@pytest.mark.parametrize("layout", ["strided", "shifted"])
@pytest.mark.parametrize("name", CALLS)
def test_views(name, layout):
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)

    def body():
        view = place(layout, x.shape, F32)
        view.storage.write(view, x)
        return get(getattr(nl, name)(view))

    reference = {**ROUNDING, "cos": np.cos, "tan": np.tan, "negative": np.negative, "logical_not": np.logical_not}[name]
    # angles are reduced and turned in fp32; all else is exact
    rtol, atol = (2e-6, 1e-6) if name in ("cos", "tan") else (0, 0)
    np.testing.assert_allclose(evaluate(body), reference(x.astype(np.float64)), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ["cos", "tan", "sin"])
def test_angles_of_many_turns(name):
    x = np.linspace(-60, 60, 1001, dtype=np.float32)[None]
    wide = getattr(np, name)(x.astype(np.float64))
    out = evaluate(lambda: get(getattr(nl, name)(put(x)))).astype(np.float64)
    scale = 1 + wide * wide if name == "tan" else 1.0  # what an error of the angle becomes
    assert np.max(np.abs(out - wide) / scale) < 2e-5


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("cos", 0.0, 1.0), ("cos", np.pi, -1.0), ("tan", 0.0, 0.0), ("tan", np.pi / 4, 1.0), ("cos", np.pi / 3, 0.5)],
)
def test_known_angles(name, value, expected):
    out = evaluate(lambda: get(getattr(nl, name)(put(np.array([[value]], np.float32)))))
    np.testing.assert_allclose(out, [[expected]], atol=5e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, ml_dtypes.bfloat16])
def test_negative(dtype):
    x = np.array([[5, -3, 0]]).astype(dtype)
    out = evaluate(lambda: get(nl.negative(put(x))))
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.astype(np.float32), [[-5, 3, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int32])
def test_logical_not(dtype):
    x = np.array([[0, 1, 1, 0]]).astype(dtype)
    out = evaluate(lambda: get(nl.logical_not(put(x))))
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, 1 - x)


@pytest.mark.parametrize("name", CALLS)
def test_results_take_a_dtype(name):
    x = np.array([[0.0, 1.0]], np.float32)
    plain = evaluate(lambda: get(getattr(nl, name)(put(x))))
    half = evaluate(lambda: get(getattr(nl, name)(put(x), dtype=nl.float16)))
    assert (plain.dtype, half.dtype) == (np.float32, np.float16)
    np.testing.assert_array_equal(half, plain.astype(np.float16))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("make", [lambda: 3.0, lambda: nl.zeros((4, 8), F32, nl.hbm)], ids=["number", "hbm"])
def test_operands_are_tiles(name, make):
    with pytest.raises(NkiError, match=rf"NKI040: {name}: "):
        run(lambda: dropped(getattr(nl, name)(make())))


@pytest.mark.parametrize(("name", "ops"), [("negative", 1), ("logical_not", 1), ("cos", 5), ("tan", 11), ("floor", 5)])
def test_instructions(name, ops):
    assert len(run(lambda: dropped(getattr(nl, name)(put(np.ones((4, 8), np.float32))))).instructions) == ops
