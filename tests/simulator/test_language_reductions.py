"""nl.sum, max, min, prod, mean, var, all, softmax, rms_norm: against NumPy in float64, and what they refuse."""

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

F32, BF16, I32 = nl.float32, nl.bfloat16, nl.int32

#: What NumPy computes for each call; mean and var over an axis as there.
REFERENCES = {
    "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "mean": np.mean, "var": np.var,
    "all": lambda x, axis: np.all(x, axis).astype(np.float64),
}  # fmt: skip
CASES = [((4, 8), 1, (4, 1)), ((4, 8), (-1,), (4, 1)), ((3, 4, 5), 2, (3, 4)), ((3, 4, 5), [1, 2], (3, 1)),
         ((2, 3, 4, 5), (2, 3), (2, 3)), ((2, 3, 4, 5), -1, (2, 3, 4)), ((128, 1), 1, (128, 1))]  # fmt: skip


def small_integers(shape, seed=0):
    """Halves from -2 to 2, zero among them: sums and products of a few are exact in fp32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32) / 2


def axes_of(x, axis):
    return tuple(a % x.ndim for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=["sbuf", "psum"])
@pytest.mark.parametrize(("shape", "axis", "reduced"), CASES, ids=str)
@pytest.mark.parametrize("name", REFERENCES)
def test_reductions(name, shape, axis, reduced, buffer):
    x = small_integers(shape)
    expected = REFERENCES[name](x.astype(np.float64), axis=axes_of(x, axis))
    out = evaluate(lambda: get(getattr(nl, name)(put(x, buffer=buffer), axis)))
    # only a mean divides: by a rounded 1 / n, then it is rounded, and squared differences from it for var
    tolerance = 8 * 2.0**-24 if name in ("mean", "var") else 0
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=tolerance, atol=tolerance)
    if name != "var":
        assert out.shape == reduced
    assert out.dtype == np.float32


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "mean", "var"])
def test_dims_can_be_kept(name):
    x = small_integers((3, 4, 5))
    kept = evaluate(lambda: get(getattr(nl, name)(put(x), (1, 2), keepdims=True)))
    assert kept.shape == (3, 1, 1)
    one = evaluate(lambda: get(getattr(nl, name)(put(x), 2, nl.bfloat16, True)))
    assert one.shape == (3, 4, 1)
    assert one.dtype == ml_dtypes.bfloat16
    expected = REFERENCES[name](x.astype(np.float64), axis=2)[..., None]
    np.testing.assert_allclose(one.astype(np.float64), expected, rtol=2**-8, atol=2**-9)


def test_var_keeps_dims_whatever_it_is_told():
    x = small_integers((3, 4, 5))
    assert evaluate(lambda: nl.var(put(x), (1, 2), keepdims=False).shape) == (3, 1, 1)


def test_all_sees_one_zero():
    x = np.ones((2, 3, 4), np.float32)
    x[1, 2, 3] = 0
    np.testing.assert_array_equal(evaluate(lambda: get(nl.all(put(x), (1, 2), dtype=nl.uint8))), [[1], [0]])


def test_means_are_fp32_until_they_are_written():
    x = np.full((1, 512), 1.0, ml_dtypes.bfloat16)
    x[0, 0] = 3.0
    mean = evaluate(lambda: get(nl.mean(put(x), 1, dtype=F32)))
    assert mean == 514 / 512
    variance = evaluate(lambda: get(nl.var(put(x), 1, dtype=F32)))
    np.testing.assert_allclose(variance, x.astype(np.float64).var(), rtol=1e-6)


def test_variance_of_large_numbers_close_to_each_other():
    x = np.array([[4096.0, 4097.0, 4098.0, 4099.0]], np.float32)
    assert evaluate(lambda: get(nl.var(put(x), 1))) == 1.25


def test_integers():
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    out = evaluate(lambda: get(nl.sum(put(x), 1)))
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, x.sum(1, keepdims=True))


@draws(30)
@given(st.data())
def test_strided_views(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    axes = tuple(range(data.draw(st.integers(1, len(shape) - 1)), len(shape)))
    x = small_integers(shape, seed=3)

    def body():
        view = place("strided", shape, F32)
        view.storage.write(view, x)
        return [get(getattr(nl, name)(view, axes)) for name in ("sum", "var")]

    total, variance = evaluate(body)
    np.testing.assert_array_equal(total.reshape(-1), x.sum(axes).reshape(-1))
    np.testing.assert_allclose(variance.reshape(-1), x.var(axes).reshape(-1), rtol=1e-6, atol=1e-7)


def softmax(x, axes):
    powers = np.exp(x - x.max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


@pytest.mark.parametrize(("shape", "axis", "reduced"), CASES, ids=str)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=["sbuf", "psum"])
def test_softmax(shape, axis, reduced, buffer):
    x = np.random.default_rng(1).normal(scale=20, size=shape).astype(np.float32)
    out = evaluate(lambda: get(nl.softmax(put(x, buffer=buffer), axis)))
    np.testing.assert_allclose(out, softmax(x.astype(np.float64), axes_of(x, axis)), rtol=1e-5, atol=1e-30)


def test_softmax_of_what_would_overflow_and_its_dtype():
    x = np.array([[1000.0, 1000.0], [-1000.0, 0.0]], np.float32)
    out = evaluate(lambda: get(nl.softmax(put(x), dtype=BF16)))
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(out.astype(np.float32), [[0.5, 0.5], [0, 1]])


def test_instructions_of_softmax():
    ops = [i.op for i in run(lambda: dropped(nl.softmax(put(small_integers((4, 8)))))).instructions]
    assert ops == ["tensor_reduce", "activation", "reciprocal", "tensor_scalar"]
    ops = [i.op for i in run(lambda: dropped(nl.softmax(put(small_integers((4, 8, 2)))))).instructions]
    assert ops == ["tensor_reduce", "tensor_tensor", "activation", "tensor_reduce", "reciprocal", "tensor_tensor"]


@pytest.mark.parametrize("compute", [None, BF16])
@pytest.mark.parametrize(("shape", "axis", "reduced"), CASES, ids=str)
def test_rms_norm(shape, axis, reduced, compute):
    rng = np.random.default_rng(2)
    x, w = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    axes, n = axes_of(x, axis), 7
    out = evaluate(lambda: get(nl.rms_norm(put(x), put(w), axis, n, epsilon=0.25, compute_dtype=compute)))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).sum(axes, keepdims=True) / n + 0.25) * w
    np.testing.assert_allclose(out, expected, rtol=1e-5 if compute is None else 0.03, atol=1e-6)
    if compute is not None:
        assert not np.allclose(out, expected, rtol=1e-5)


def test_epsilon_of_rms_norm_is_a_millionth():
    x = np.zeros((1, 4), np.float32)
    x[0, 0] = 1e-3
    out = evaluate(lambda: get(nl.rms_norm(put(x), put(np.ones((1, 4), np.float32)), 1, 1, dtype=nl.float16)))
    assert out.dtype == np.float16
    np.testing.assert_allclose(out[0, 0], np.sqrt(0.5), rtol=1e-3)


@pytest.mark.parametrize("name", [*REFERENCES, "softmax"])
@pytest.mark.parametrize("axis", [0, (0, 1), (0, 1, 2), 1, (1,), -2, 3, (), 1.0, True, "x"], ids=str)
def test_axes_are_the_last_ones(name, axis):
    with pytest.raises(NkiError, match=rf"NKI062: {name}: axis="):
        run(lambda: getattr(nl, name)(put(small_integers((2, 3, 4))), axis))


@pytest.mark.parametrize("name", [*REFERENCES, "softmax"])
@pytest.mark.parametrize("make", [lambda: 3.0, lambda: nl.zeros((4, 8), F32, nl.hbm)], ids=["number", "hbm"])
def test_operands_are_tiles(name, make):
    with pytest.raises(NkiError, match=rf"NKI040: {name}: x is not a tile"):
        run(lambda: getattr(nl, name)(make(), 1))


def test_rms_norm_refuses():
    x = small_integers((4, 8))
    with pytest.raises(NkiError, match=r"NKI040: rms_norm: w is not a tile"):
        run(lambda: nl.rms_norm(put(x), 1.0, 1, 8))
    with pytest.raises(NkiError, match=r"NKI044: rms_norm"):
        run(lambda: nl.rms_norm(put(x), put(x[:1]), 1, 8))
    with pytest.raises(NkiError, match=r"NKI062: rms_norm"):
        run(lambda: nl.rms_norm(put(x), put(x), 0, 8))
    with pytest.raises(NkiError, match=r"NKI069: rms_norm"):
        run(lambda: nl.rms_norm(put(np.zeros((4, 8), np.float32)), put(x), 1, 8, epsilon=0.0))
