"""nl.transpose, matmul, broadcast_to, expand_dims, load_transpose2d, where: against NumPy, and what they refuse."""

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import evaluate, get, hbm, put, same, sample, sb
from pairs import dropped, run

from nkiconv.simulator import NkiError
from nkiconv.simulator import language as nl

F32, BF16, I32, U8 = nl.float32, nl.bfloat16, nl.int32, nl.uint8
RNG = np.random.default_rng(0)


def ops(body):
    return [(i.engine, i.op) for i in run(lambda: dropped(body())).instructions]


@pytest.mark.parametrize(("shape", "dtype"), [((33, 128), F32), ((1, 5), BF16), ((128, 7), I32), ((5, 1), U8)])
def test_transpose(shape, dtype):
    x = sample(RNG, shape, dtype)

    def body():
        out = nl.transpose(put(x))
        assert out.buffer is nl.psum
        return get(out)

    same(evaluate(body), x.T)


def test_transpose_of_psum_and_into_another_dtype():
    x = sample(RNG, (32, 16), F32)
    same(evaluate(lambda: get(nl.transpose(put(x, buffer=nl.psum)))), x.T)
    same(evaluate(lambda: get(nl.transpose(put(x), dtype=BF16))), x.T.astype(ml_dtypes.bfloat16))
    assert ops(lambda: nl.transpose(put(x), dtype=F32)) == [("tensor", "nc_transpose")]
    assert ops(lambda: nl.transpose(put(x, buffer=nl.psum), dtype=BF16)) == [
        ("vector", "nc_transpose"),
        ("vector", "tensor_copy"),
    ]


@pytest.mark.parametrize(("rows", "contraction", "columns", "dtypes"), [
    (128, 128, 512, (F32, F32)), (7, 128, 1, (BF16, BF16)), (128, 1, 5, (BF16, nl.float8_e4m3)),
])  # fmt: skip
def test_matmul(rows, contraction, columns, dtypes):
    x = RNG.integers(-3, 4, (rows, contraction)).astype(np.float32)
    y = RNG.integers(-3, 4, (contraction, columns)).astype(np.float32)

    def body():
        left, right, turned = (tile_of(*one) for one in ((x, dtypes[0]), (y, dtypes[1]), (x.T.copy(), dtypes[0])))
        with pytest.warns(UserWarning, match="without transpose_x=True fails under AWS's NKI 0.4 to 0.6"):
            plain = nl.matmul(left, right)
        transposed = nl.matmul(turned, right, transpose_x=True)
        assert plain.buffer is nl.psum
        return get(plain), get(transposed)

    for out in evaluate(body):
        same(out, x @ y)


def tile_of(values, dtype):
    tile = nl.ndarray(values.shape, dtype)
    tile.storage.write(tile, values)
    return tile


@pytest.mark.parametrize(("shape", "wide", "buffer", "dtype"), [
    ((4, 1), (4, 8), nl.psum, F32), ((1, 8), (128, 8), nl.sbuf, U8), ((1, 1, 3), (40, 2, 3), nl.psum, U8),
    ((4, 1, 3, 1), (4, 2, 3, 5), nl.sbuf, nl.float8_e4m3), ((4, 8), (4, 8), nl.sbuf, F32),
])  # fmt: skip
def test_broadcast_to(shape, wide, buffer, dtype):
    x = sample(RNG, shape, dtype)
    same(evaluate(lambda: get(nl.broadcast_to(put(x, buffer=buffer), wide))), np.broadcast_to(x, wide))
    half = evaluate(lambda: get(nl.broadcast_to(put(x, buffer=buffer), list(wide), dtype=nl.float16)))
    same(half, np.broadcast_to(x, wide).astype(np.float32).astype(np.float16))


@pytest.mark.parametrize("axis", [1, -1])
def test_expand_dims(axis):
    x = sample(RNG, (4, 6), F32)

    def body():
        tile = put(x)
        view = nl.expand_dims(tile, axis)
        assert view.storage is tile.storage
        return get(view)

    same(evaluate(body), np.expand_dims(x, axis))


@pytest.mark.parametrize(("shape", "dtype"), [((5, 128), BF16), ((300, 7), F32)])
def test_load_transpose2d(shape, dtype):
    x = sample(RNG, shape, dtype)

    def body():
        tile = nl.load_transpose2d(put(x, buffer=nl.hbm))
        assert tile.buffer is nl.sbuf
        return get(tile), get(nl.load_transpose2d(put(x, buffer=nl.shared_hbm), dtype=nl.float16))

    plain, cast = evaluate(body)
    same(plain, x.T)
    same(cast, x.T.astype(np.float32).astype(np.float16))


@pytest.mark.parametrize(
    ("shape", "buffer", "condition"), [((4, 8), nl.psum, F32), ((3, 2, 5), nl.sbuf, U8), ((4, 8), nl.sbuf, BF16)]
)
def test_where(shape, buffer, condition):
    x, y = (sample(RNG, shape, F32) for _ in range(2))
    x.flat[0], y.flat[1] = np.nan, np.inf  # what is not chosen leaves no trace
    truth = RNG.integers(0, 2, shape).astype(np.float32)
    truth.flat[:2] = 0, 1
    expected = np.where(truth != 0, x, y)

    def body():
        chosen = tile_of(truth, condition)
        return get(nl.where(chosen, put(x, buffer=buffer), put(y))), get(nl.where(chosen, put(x), put(y), dtype=BF16))

    plain, half = evaluate(body)
    same(plain, expected)
    same(half, expected.astype(ml_dtypes.bfloat16))


def test_where_of_other_dtypes_and_of_conditions_that_are_not_one():
    chosen = np.array([[0.0, 0.25, -3.0, np.nan]], np.float32)
    x, y = np.array([[1, 2, 3, 4]], np.int32), np.array([[9, 9, 9, 9]], np.float32)
    out = evaluate(lambda: get(nl.where(put(chosen), put(x), put(y))))
    same(out, np.array([[9, 2, 3, 4]], np.int32))


REFUSED = {
    "transpose of 3 dims": ("NKI002: transpose", lambda: nl.transpose(sb(4, 2, 3))),
    "transpose of many columns": ("NKI114: transpose", lambda: nl.transpose(sb(4, 129))),
    "transpose of HBM": ("NKI040: transpose", lambda: nl.transpose(hbm(4, 8))),
    "matmul of a number": ("NKI040: matmul", lambda: nl.matmul(2.0, sb(4, 8))),
    "matmul of 3 dims": ("NKI002: matmul: y", lambda: nl.matmul(sb(4, 4), sb(4, 2, 2))),
    "matmul contraction": ("NKI101: matmul", lambda: nl.matmul(sb(4, 8), sb(4, 8))),
    "matmul stationary": ("NKI103: matmul", lambda: nl.matmul(sb(4, 129), sb(4, 8), transpose_x=True)),
    "matmul wide x": ("NKI114: matmul", lambda: nl.matmul(sb(4, 129), sb(4, 8))),
    "broadcast of 2": ("NKI014: broadcast_to", lambda: nl.broadcast_to(sb(4, 2), (4, 8))),
    "broadcast of partitions": ("NKI014: broadcast_to", lambda: nl.broadcast_to(sb(2, 8), (4, 8))),
    "broadcast of rank": ("NKI014: broadcast_to", lambda: nl.broadcast_to(sb(4, 1), (4, 1, 8))),
    "broadcast to 129": ("NKI003: broadcast_to", lambda: nl.broadcast_to(sb(1, 8), (129, 8))),
    "broadcast of HBM": ("NKI040: broadcast_to", lambda: nl.broadcast_to(hbm(1, 8), (4, 8))),
    "expand before partitions": ("NKI008: expand_dims", lambda: nl.expand_dims(sb(4, 8), 0)),
    "expand outside": ("NKI006: expand_dims", lambda: nl.expand_dims(sb(4, 8), 3)),
    "expand of HBM": ("NKI040: expand_dims", lambda: nl.expand_dims(hbm(4, 8), 1)),
    "load of 3 dims": ("NKI002: load_transpose2d", lambda: nl.load_transpose2d(hbm(4, 2, 3))),
    "load of many columns": ("NKI003: load_transpose2d", lambda: nl.load_transpose2d(hbm(4, 129))),
    "load of a tile": ("NKI040: load_transpose2d", lambda: nl.load_transpose2d(sb(4, 8))),
    "where of a number": ("NKI040: where: y", lambda: nl.where(sb(4, 8), sb(4, 8), 0.0)),
    "where of other partitions": ("NKI044: where", lambda: nl.where(sb(2, 8), sb(4, 8), sb(4, 8))),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why):
    match, body = REFUSED[why]
    with pytest.raises(NkiError, match=match):
        run(lambda: dropped(body()))
