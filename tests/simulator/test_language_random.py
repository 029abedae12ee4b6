"""nl.rand, random_seed, dropout, gather_flattened: range, distribution, seeds, and what they refuse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import evaluate, get, hbm, put, sb
from pairs import dropped, run

from nkiconv.simulator import NkiError
from nkiconv.simulator import language as nl

F32, BF16 = nl.float32, nl.bfloat16
MEMORIES = [nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm]


def seeded(value):
    nl.random_seed(nl.full((1, 1), value, nl.int32))


@pytest.mark.parametrize("buffer", MEMORIES, ids=lambda b: b.name)
def test_rand_is_uniform(buffer):
    def body():
        tensor = nl.rand((128, 400), F32, buffer, name="noise")
        assert (tensor.shape, tensor.dtype, tensor.buffer, tensor.name) == ((128, 400), F32, buffer, "noise")
        return get(tensor)

    x = evaluate(body)
    assert x.min() >= 0
    assert x.max() < 1
    counts, _ = np.histogram(x, bins=16, range=(0, 1))
    expected = x.size / 16
    assert np.all(np.abs(counts - expected) < 6 * np.sqrt(expected))
    assert len(np.unique(x)) > 0.99 * x.size
    np.testing.assert_array_equal(x * 2**24, np.rint(x * 2**24))


@pytest.mark.parametrize("shape", [(300, 5), (3,), (2, 5000), (130, 3, 2)], ids=str)
def test_rand_fills_hbm(shape):
    x = evaluate(lambda: get(nl.rand(shape, BF16, nl.hbm)))
    assert x.shape == shape
    assert x.dtype == ml_dtypes.bfloat16
    assert 0 <= x.astype(np.float32).min() <= x.astype(np.float32).max() <= 1


def test_a_seed_repeats_its_numbers():
    def body():
        seeded(42)
        first, second = get(nl.rand((4, 8), F32)), get(nl.rand((4, 8), F32))
        seeded(42)
        again = get(nl.rand((4, 8), F32))
        seeded(43)
        return first, second, again, get(nl.rand((4, 8), F32))

    first, second, again, other = evaluate(body)
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == second)
    assert not np.any(first == other)


@pytest.mark.parametrize("dtype", [None, nl.float16])
@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_dropout(rate, dtype):
    x = np.random.default_rng(0).uniform(1, 2, (128, 200)).astype(np.float32)
    out = evaluate(lambda: get(nl.dropout(put(x), rate, dtype=dtype)))
    assert out.dtype == (np.float32 if dtype is None else np.float16)
    kept = out != 0
    np.testing.assert_array_equal(out[kept], x[kept].astype(out.dtype))
    assert abs(1 - kept.mean() - rate) <= 5 * np.sqrt(rate * (1 - rate) / x.size)


def test_dropout_by_partition():
    def body():
        rates = put(np.array([[0.0], [1.0]], np.float32))
        return get(nl.dropout(sb(2, 50), rates))

    np.testing.assert_array_equal(evaluate(body), np.repeat([[1.0], [0.0]], 50, axis=1))


@pytest.mark.parametrize("dtype", [None, BF16])
def test_gather_flattened(dtype):
    data = np.random.default_rng(1).integers(-9, 9, (4, 3, 5)).astype(np.float32)
    indices = np.random.default_rng(2).integers(0, 15, (4, 2, 7)).astype(np.uint32)
    out = evaluate(lambda: get(nl.gather_flattened(put(data), put(indices), dtype=dtype)))
    expected = np.take_along_axis(data.reshape(4, -1), indices.reshape(4, -1).astype(np.int64), 1).reshape(4, 2, 7)
    assert out.shape == (4, 2, 7)
    np.testing.assert_array_equal(out.astype(np.float32), expected)


REFUSED = {
    "rand of ints": ("NKI048: rand", lambda: nl.rand((4, 8), nl.int32)),
    "rand of a shape": ("NKI003: rand", lambda: nl.rand((129, 8), F32)),
    "seed of an int": ("NKI040: random_seed", lambda: nl.random_seed(42)),
    "dropout of HBM": ("NKI040: dropout", lambda: nl.dropout(hbm(4, 8), 0.5)),
    "gather along 1": ("NKI062: gather_flattened",
     lambda: nl.gather_flattened(sb(4, 8), sb(4, 8, dtype=nl.uint32), axis=1)),
    "gather by floats": ("NKI.*gather_flattened", lambda: nl.gather_flattened(sb(4, 8), sb(4, 8))),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why):
    match, body = REFUSED[why]
    with pytest.raises(NkiError, match=match):
        run(lambda: dropped(body()))
