"""nl.transpose, matmul, broadcast_to, expand_dims, load_transpose2d, where: against NumPy, and what they refuse."""

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from isa_tiles import evaluate, get, hbm, ps, put, same, sample, sb
from pairs import dropped, run

from nkiconv.simulator import NkiError
from nkiconv.simulator import language as nl

F32, BF16, I32, U8 = nl.float32, nl.bfloat16, nl.int32, nl.uint8
RNG = np.random.default_rng(0)


def ops(body):
    return [(i.engine, i.op) for i in run(lambda: dropped(body())).instructions]


@pytest.mark.cover(8)
@pytest.mark.parametrize("shape", [(128, 128), (1, 5), (5, 1), (33, 128), (128, 7)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, I32, U8])
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


@pytest.mark.parametrize("dtypes", [(F32, F32), (BF16, BF16), (BF16, nl.float8_e4m3)], ids=str)
@pytest.mark.parametrize(("rows", "contraction", "columns"), [(128, 128, 512), (1, 3, 2), (7, 128, 1), (128, 1, 5)])
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


def test_instructions_of_matmul():
    assert ops(lambda: nl.matmul(sb(4, 8), sb(4, 5), transpose_x=True))[2:] == [("tensor", "nc_matmul")]
    assert ops(lambda: nl.matmul(sb(4, 8), sb(8, 5)))[2:] == [
        ("tensor", "nc_transpose"), ("vector", "tensor_copy"), ("tensor", "nc_matmul"),
    ]  # fmt: skip


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", [F32, U8, nl.float8_e4m3])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=["sbuf", "psum"])
@pytest.mark.parametrize(
    ("shape", "wide"),
    [((4, 1), (4, 8)), ((1, 8), (128, 8)), ((1, 8), (33, 8)), ((1, 1, 3), (40, 2, 3)), ((4, 1, 3, 1), (4, 2, 3, 5)),
     ((1, 1), (128, 1)), ((4, 8), (4, 8))],
    ids=str,
)  # fmt: skip
def test_broadcast_to(shape, wide, buffer, dtype):
    x = sample(RNG, shape, dtype)
    same(evaluate(lambda: get(nl.broadcast_to(put(x, buffer=buffer), wide))), np.broadcast_to(x, wide))
    half = evaluate(lambda: get(nl.broadcast_to(put(x, buffer=buffer), list(wide), dtype=nl.float16)))
    same(half, np.broadcast_to(x, wide).astype(np.float32).astype(np.float16))


@draws(40)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=2, max_size=4), st.integers(1, 128))
def test_broadcast_of_any_dims(dims, partitions):
    wide = (partitions, *(n for n, _ in dims[1:]))
    x = sample(RNG, tuple(1 if once else n for n, (_, once) in zip(wide, dims, strict=True)), I32)
    same(evaluate(lambda: get(nl.broadcast_to(put(x), wide))), np.broadcast_to(x, wide))


def test_what_broadcast_to_runs():
    def itself():
        tile = sb(4, 8)
        assert nl.broadcast_to(tile, (4, 8)) is tile
        return tile

    assert ops(itself)[1:] == []
    assert ops(lambda: nl.broadcast_to(sb(4, 8), (4, 8), dtype=BF16))[1:] == [("vector", "tensor_copy")]
    assert ops(lambda: nl.broadcast_to(sb(4, 1), (4, 8)))[1:] == [("vector", "tensor_copy")]
    assert ops(lambda: nl.broadcast_to(sb(1, 1), (65, 8)))[1:] == [("vector", "nc_stream_shuffle")] * 3


@pytest.mark.parametrize("axis", [1, 2, -1, -2])
def test_expand_dims(axis):
    x = sample(RNG, (4, 6), F32)

    def body():
        tile = put(x)
        view = nl.expand_dims(tile, axis)
        assert view.storage is tile.storage
        return get(view)

    same(evaluate(body), np.expand_dims(x, axis))


@pytest.mark.parametrize("shape", [(5, 128), (300, 7), (1, 1), (128, 128)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_load_transpose2d(shape, dtype):
    x = sample(RNG, shape, dtype)

    def body():
        tile = nl.load_transpose2d(put(x, buffer=nl.hbm))
        assert tile.buffer is nl.sbuf
        return get(tile), get(nl.load_transpose2d(put(x, buffer=nl.shared_hbm), dtype=nl.float16))

    plain, cast = evaluate(body)
    same(plain, x.T)
    same(cast, x.T.astype(np.float32).astype(np.float16))


def test_instructions_of_load_transpose2d():
    assert ops(lambda: nl.load_transpose2d(hbm(4, 8)))[-1:] == [("dma", "dma_transpose")]
    assert ops(lambda: nl.load_transpose2d(hbm(4, 8), dtype=BF16))[-2:] == [
        ("dma", "dma_transpose"),
        ("vector", "tensor_copy"),
    ]


@pytest.mark.parametrize("condition", [F32, U8, BF16])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=["sbuf", "psum"])
@pytest.mark.parametrize("shape", [(4, 8), (3, 2, 5)], ids=str)
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
    "transpose in PSUM": ("NKI114: transpose.*vector", lambda: nl.transpose(ps(33, 8))),
    "transpose of HBM": ("NKI040: transpose", lambda: nl.transpose(hbm(4, 8))),
    "matmul of a number": ("NKI040: matmul", lambda: nl.matmul(2.0, sb(4, 8))),
    "matmul of 3 dims": ("NKI002: matmul: y", lambda: nl.matmul(sb(4, 4), sb(4, 2, 2))),
    "matmul of PSUM": ("NKI040: matmul", lambda: nl.matmul(sb(4, 8), ps(4, 8), transpose_x=True)),
    "matmul contraction": ("NKI101: matmul", lambda: nl.matmul(sb(4, 8), sb(4, 8))),
    "matmul transposed contraction": ("NKI101: matmul", lambda: nl.matmul(sb(4, 8), sb(8, 8), transpose_x=True)),
    "matmul stationary": ("NKI103: matmul", lambda: nl.matmul(sb(4, 129), sb(4, 8), transpose_x=True)),
    "matmul moving": ("NKI104: matmul", lambda: nl.matmul(sb(4, 8), sb(4, 513), transpose_x=True)),
    "matmul wide x": ("NKI114: matmul", lambda: nl.matmul(sb(4, 129), sb(4, 8))),
    "matmul dtypes": ("NKI107: matmul", lambda: nl.matmul(sb(4, 8), sb(4, 8, dtype=BF16), transpose_x=True)),
    "broadcast of 2": ("NKI014: broadcast_to", lambda: nl.broadcast_to(sb(4, 2), (4, 8))),
    "broadcast of partitions": ("NKI014: broadcast_to", lambda: nl.broadcast_to(sb(2, 8), (4, 8))),
    "broadcast of rank": ("NKI014: broadcast_to", lambda: nl.broadcast_to(sb(4, 1), (4, 1, 8))),
    "broadcast to one": ("NKI014: broadcast_to", lambda: nl.broadcast_to(sb(4, 8), (4, 1))),
    "broadcast to 129": ("NKI003: broadcast_to", lambda: nl.broadcast_to(sb(1, 8), (129, 8))),
    "broadcast of HBM": ("NKI040: broadcast_to", lambda: nl.broadcast_to(hbm(1, 8), (4, 8))),
    "expand before partitions": ("NKI008: expand_dims", lambda: nl.expand_dims(sb(4, 8), 0)),
    "expand before them, from the end": ("NKI008: expand_dims", lambda: nl.expand_dims(sb(4, 8), -3)),
    "expand outside": ("NKI006: expand_dims", lambda: nl.expand_dims(sb(4, 8), 3)),
    "expand far outside": ("NKI006: expand_dims", lambda: nl.expand_dims(sb(4, 8), -4)),
    "expand of HBM": ("NKI040: expand_dims", lambda: nl.expand_dims(hbm(4, 8), 1)),
    "load of 3 dims": ("NKI002: load_transpose2d", lambda: nl.load_transpose2d(hbm(4, 2, 3))),
    "load of many columns": ("NKI003: load_transpose2d", lambda: nl.load_transpose2d(hbm(4, 129))),
    "load of a tile": ("NKI040: load_transpose2d", lambda: nl.load_transpose2d(sb(4, 8))),
    "where of a number": ("NKI040: where: y", lambda: nl.where(sb(4, 8), sb(4, 8), 0.0)),
    "where of other partitions": ("NKI044: where", lambda: nl.where(sb(2, 8), sb(4, 8), sb(4, 8))),
    "where of other columns": ("NKI045: where", lambda: nl.where(sb(4, 8), sb(4, 8), sb(4, 7))),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why):
    match, body = REFUSED[why]
    with pytest.raises(NkiError, match=match):
        run(lambda: dropped(body()))
