"""nl.transpose, matmul, broadcast_to, expand_dims, load_transpose2d, where: what they give, and what they refuse."""

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import a_tile, by_language, evaluate, get, hbm, put, row, same, sb
from pairs import dropped, run

from nkiconv.simulator import NkiError
from nkiconv.simulator import language as nl

F32, BF16 = nl.float32, nl.bfloat16
RNG = np.random.default_rng(0)
X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
ONE = np.arange(1, 7, dtype=np.float32).reshape(2, 1, 3, 1)
TALL = np.arange(300 * 7, dtype=np.float32).reshape(300, 7)
#: A call, its operands and settings, and what it gives.
VALUES = [
    ("transpose", (X.astype(ml_dtypes.bfloat16),), {}, X.T.astype(ml_dtypes.bfloat16)),
    ("transpose", (row(*range(128), dtype=np.int32),), {}, row(*range(128), dtype=np.int32).T),
    ("transpose", (row(1, 2, dtype=np.uint8).T.copy(),), {}, row(1, 2, dtype=np.uint8)),
    ("transpose", (a_tile(X, buffer=nl.psum),), {"dtype": BF16}, X.T.astype(ml_dtypes.bfloat16)),
    ("broadcast_to", (a_tile(X[:, :1], buffer=nl.psum), (2, 8)), {}, np.broadcast_to(X[:, :1], (2, 8))),
    ("broadcast_to", (X[:1].astype(np.uint8), (128, 3)), {}, np.broadcast_to(X[:1].astype(np.uint8), (128, 3))),
    ("broadcast_to", (X[:1].reshape(1, 1, 3), [40, 2, 3]), {"dtype": nl.float16},
     np.broadcast_to(X[:1].astype(np.float16), (40, 2, 3))),
    ("broadcast_to", (ONE, (2, 2, 3, 5)), {}, np.broadcast_to(ONE, (2, 2, 3, 5))),
    ("broadcast_to", (X, (2, 3)), {}, X),
    ("expand_dims", (X, 1), {}, X[:, None]),
    ("expand_dims", (X, -1), {}, X[..., None]),
    ("load_transpose2d", (a_tile(TALL, buffer=nl.hbm),), {}, TALL.T),
    ("load_transpose2d", (a_tile(X, buffer=nl.shared_hbm),), {"dtype": nl.float16}, X.T.astype(np.float16)),
    ("matmul", (X, X[:, ::-1].copy()), {"transpose_x": True}, X.T @ X[:, ::-1]),
    ("matmul", (a_tile(TALL[:128], BF16), a_tile(TALL[:128, :1] % 8, nl.float8_e4m3)), {"transpose_x": True},
     TALL[:128].astype(ml_dtypes.bfloat16).astype(np.float32).T @ (TALL[:128, :1] % 8)),
    # what is not chosen leaves no trace
    ("where", (row(0, 1, 0), a_tile(row(np.nan, 2, 3), buffer=nl.psum), row(9, np.inf, 7)), {}, row(9, 2, 7)),
    ("where", (row(0, 1, dtype=np.uint8), row(1, 2), row(9, 8)), {"dtype": BF16}, row(9, 2, dtype=ml_dtypes.bfloat16)),
    ("where", (row(0, 0.25, -3, np.nan), row(1, 2, 3, 4, dtype=np.int32), row(9, 9, 9, 9)), {},
     row(9, 2, 3, 4, dtype=np.int32)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "settings", "expected"), VALUES)
def test_values(name, operands, settings, expected):
    same(by_language(name, *operands, **settings), np.ascontiguousarray(expected))


def test_where_results_are():
    def body():
        tile = sb(4, 6)
        assert nl.transpose(tile).buffer is nl.psum
        assert nl.load_transpose2d(hbm(4, 6)).buffer is nl.sbuf
        assert nl.expand_dims(tile, 1).storage is tile.storage

    run(body)


def test_matmul_of_what_is_not_transposed():
    def body():
        with pytest.warns(UserWarning, match="without transpose_x=True fails under AWS's NKI 0.4 to 0.6"):
            product = nl.matmul(put(X, BF16), put(X.T.copy(), BF16))
        assert product.buffer is nl.psum
        return get(product)

    same(evaluate(body), X @ X.T)


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
