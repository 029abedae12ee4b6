"""What nki.language computes of tiles, against NumPy: rounding, angles, reductions, norms, random numbers, gathers, and
how it lays them out.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import a_tile, by_language, evaluate, get, hbm, laid, put, row, same, sb
from pairs import dropped, inside, run
from tolerances import BF16_NORMS, assert_relative, assert_within_limit

from nkiconv.bounds import EPS, EPS32
from nkiconv.simulator import NkiError, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

F32, BF16 = nl.float32, nl.bfloat16
ROUNDING = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}
CALLS = {**ROUNDING, "cos": np.cos, "tan": np.tan, "negative": np.negative, "logical_not": np.logical_not}

#: Ties, neighbours of whole numbers, what has no fraction, what int32 does not hold, and what is no number
AWKWARD = row(
    0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.2, -3.7, 0.99999994, -0.99999994, 1e-30, -1e-30, 8388607.5, -8388607.5,
    2.0**23, -(2.0**23), 2.0**24 + 2, 2.0**31, -(2.0**31), 3e9, -3e38, np.inf, -np.inf, np.nan,
)  # fmt: skip
SIXTEENTHS = np.arange(-40, 41, dtype=np.float32).reshape(3, 27) / 16
NUMBERS = {
    "fp32": AWKWARD, "bf16": SIXTEENTHS.astype(ml_dtypes.bfloat16), "fp16": SIXTEENTHS.astype(np.float16),
    "fp8": SIXTEENTHS.astype(ml_dtypes.float8_e4m3), "int32": row(2**31 - 1, -5, 7, dtype=np.int32),
}  # fmt: skip


@pytest.mark.parametrize("x", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("name", ROUNDING)
def test_rounding(name, x):
    out = by_language(name, a_tile(x, buffer=nl.psum))
    assert out.dtype == x.dtype
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(out.astype(np.float64), ROUNDING[name](wide))


@pytest.mark.parametrize("name", CALLS)
def test_views_and_dtypes_of_results(name):
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    out = by_language(name, laid("strided", x))
    roundings, floor = (4, EPS32) if name in ("cos", "tan") else (0, 0)
    assert_relative(out, CALLS[name](x.astype(np.float64)), roundings, floor)
    half = by_language(name, x, dtype=nl.float16)
    assert (out.dtype, half.dtype) == (np.float32, np.float16)
    np.testing.assert_array_equal(half, out.astype(np.float16))


P = np.array([[[1, -2], [3, 0]], [[2, 4], [-1, 1]]], np.float32)
#: A call, its operands and settings, and what it gives.
VALUES = [
    ("negative", (row(5, -3, 0, dtype=np.int32),), {}, [[-5, 3, 0]]),
    ("negative", (row(5, -3, 0, dtype=ml_dtypes.bfloat16),), {}, [[-5, 3, 0]]),
    ("logical_not", (row(0, 1, 1, dtype=np.uint8),), {}, [[1, 0, 0]]),
    ("sum", (P, 2), {}, [[-1, 3], [6, 0]]),
    ("sum", (P, (1, 2)), {}, [[2], [6]]),
    ("sum", (P, [1, 2]), {"keepdims": True}, [[[2]], [[6]]]),
    ("max", (P, -1), {}, [[1, 3], [4, 1]]),
    ("min", (P, (-1,)), {}, [[-2, 0], [2, -1]]),
    ("prod", (P, 2), {}, [[-2, 0], [8, -1]]),
    ("all", (P, 2), {}, [[1, 0], [1, 1]]),
    ("mean", (P, 2), {}, [[-0.5, 1.5], [3, 0]]),
    ("mean", (P, (1, 2)), {"keepdims": True, "dtype": BF16}, [[[0.5]], [[1.5]]]),
    # fp32 until it is written
    ("mean", (row(3, *[1] * 511, dtype=ml_dtypes.bfloat16), 1), {"dtype": F32}, [[514 / 512]]),
    # keeps dims whatever it is told
    ("var", (P, (1, 2)), {"keepdims": False}, [[[3.25]], [[3.25]]]),
    ("var", (row(4096, 4097, 4098, 4099), 1), {}, [[1.25]]),
    ("softmax", (np.array([[1000, 1000], [-1000, 0]], np.float32),), {"dtype": BF16}, [[0.5, 0.5], [0, 1]]),
    ("dropout", (np.ones((2, 3), np.float32), row(0, 1).T.copy()), {}, [[1, 1, 1], [0, 0, 0]]),
    ("dropout", (P, 0.0), {"dtype": BF16}, P.tolist()),
    ("dropout", (P, 1.0), {}, (0 * P).tolist()),
    ("gather_flattened", (P, np.array([[3], [0]], np.uint32)), {}, [[0], [2]]),
    ("gather_flattened", (P, np.array([[3, 0, 1], [1, 1, 2]], np.uint32)), {"dtype": BF16}, [[0, 1, -2], [4, 4, -1]]),
]
X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
ONE = np.arange(1, 7, dtype=np.float32).reshape(2, 1, 3, 1)
TALL = np.arange(300 * 7, dtype=np.float32).reshape(300, 7)
LAID_OUT = [
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


@pytest.mark.parametrize(("name", "operands", "settings", "expected"), [*VALUES, *LAID_OUT])
def test_values(name, operands, settings, expected):
    out = by_language(name, *operands, **settings)
    of = expected if isinstance(expected, np.ndarray) else operands[0]
    assert str(out.dtype) == settings.get("dtype", str(of.dtype))
    np.testing.assert_array_equal(out.astype(np.float64), np.asarray(expected, np.float64), strict=True)


#: Shapes, and the axes that are reduced.
CASES = [((4, 8), 1), ((3, 4, 5), [1, 2]), ((2, 3, 4, 5), -1)]
of_each_shape = pytest.mark.parametrize(("shape", "axis"), CASES)


def axes_of(x, axis):
    return tuple(a % x.ndim for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))


def softmax(x, axes):
    powers = np.exp(x - x.max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


@of_each_shape
def test_softmax(shape, axis):
    x = np.random.default_rng(1).normal(scale=20, size=shape).astype(np.float32)
    out = by_language("softmax", a_tile(x, buffer=nl.psum), axis)
    # exp makes as many roundings of the one of its argument as that is large, which is here at most 150
    assert_relative(out, softmax(x.astype(np.float64), axes_of(x, axis)), 160, 1e-30)


@pytest.mark.parametrize("compute", [None, BF16])
@of_each_shape
def test_rms_norm(shape, axis, compute):
    rng = np.random.default_rng(2)
    x, w = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    axes, n = axes_of(x, axis), 7
    out = by_language("rms_norm", x, w, axis, n, epsilon=0.25, compute_dtype=compute)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).sum(axes, keepdims=True) / n + 0.25) * w
    fine = 16 * EPS32 * (np.abs(expected) + 1)
    assert_within_limit(out, expected, fine if compute is None else BF16_NORMS * np.abs(expected) + fine)
    if compute is not None:
        with pytest.raises(AssertionError, match="are off"):
            assert_within_limit(out, expected, 10 * fine)


def test_epsilon_of_rms_norm_is_a_millionth():
    out = by_language("rms_norm", row(1e-3, 0, 0, 0), np.ones((1, 4), np.float32), 1, 1, dtype=nl.float16)
    assert out.dtype == np.float16
    assert_within_limit(out[0, 0], np.sqrt(0.5), 2 * EPS["fp16"])


@pytest.mark.parametrize("buffer", [nl.psum, nl.hbm], ids=lambda b: b.name)
def test_rand_is_uniform_and_its_seed_decides(buffer):
    def body():
        nl.random_seed(nl.full((1, 1), 42, nl.int32))
        tensor = nl.rand((128, 400), F32, buffer, name="noise")
        assert (tensor.shape, tensor.dtype, tensor.buffer, tensor.name) == ((128, 400), F32, buffer, "noise")
        return get(tensor)

    x, again = evaluate(body), evaluate(lambda: (nl.rand((4, 4), F32), body())[1])
    np.testing.assert_array_equal(x, again)
    assert 0 <= x.min() <= x.max() < 1
    counts, _ = np.histogram(x, bins=16, range=(0, 1))
    assert np.all(np.abs(counts - x.size / 16) < 6 * np.sqrt(x.size / 16))
    np.testing.assert_array_equal(x * 2**24, np.rint(x * 2**24))


@inside
def test_where_results_are():
    tile = sb(4, 6)
    assert nl.transpose(tile).buffer is nl.psum
    assert nl.load_transpose2d(hbm(4, 6)).buffer is nl.sbuf
    assert nl.expand_dims(tile, 1).storage is tile.storage


def test_matmul_of_what_is_not_transposed():
    def body():
        with pytest.warns(UserWarning, match="without transpose_x=True fails under AWS's NKI 0.4 to 0.6"):
            product = nl.matmul(put(X, BF16), put(X.T.copy(), BF16))
        assert product.buffer is nl.psum
        return get(product)

    same(evaluate(body), X @ X.T)


REDUCTIONS = ("sum", "max", "min", "prod", "all", "mean", "var", "softmax")
REFUSED = [
    *((f"NKI040: {name}: ", name, (hbm,)) for name in CALLS),
    ("NKI040: negative: x=3.0 is not a tile", "negative", (3.0,)),
    *((f"NKI040: {name}: x is not a tile", name, (hbm, 1)) for name in REDUCTIONS),
    *((f"NKI062: {name}: axis=", name, (P, 1)) for name in REDUCTIONS),
    *(("NKI062: sum: axis=", "sum", (P, axis)) for axis in (0, (0, 1), 3, (), 1.0, True, "x")),
    ("NKI040: rms_norm: w is not a tile", "rms_norm", (sb, 1.0, 1, 8)),
    ("NKI044: rms_norm", "rms_norm", (sb, np.ones((1, 8), np.float32), 1, 8)),
    (r"NKI051: rms_norm: n=0, epsilon=1e-06: must be numbers, n above 0", "rms_norm", (sb, sb, 1, 0)),
    ("NKI051: rms_norm: n=8, epsilon='small'", "rms_norm", (sb, sb, 1, 8, "small")),
    ("NKI062: rms_norm", "rms_norm", (sb, sb, 0, 8)),
    ("NKI069: rms_norm", "rms_norm", (np.zeros((4, 8), np.float32), sb, 1, 8, 0.0)),
    ("NKI048: rand", "rand", ((4, 8), nl.int32)),
    ("NKI003: rand", "rand", ((129, 8), F32)),
    ("NKI040: random_seed", "random_seed", (42,)),
    ("NKI040: dropout", "dropout", (hbm, 0.5)),
    ("NKI062: gather_flattened", "gather_flattened", (sb, np.ones((4, 8), np.uint32), 1)),
    ("NKI.*gather_flattened", "gather_flattened", (sb, sb)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("match", "name", "operands"), REFUSED, ids=[f"{row[1]} {number}" for number, row in enumerate(REFUSED)]
)
def test_refused(match, name, operands):
    def operand(one):
        return one(4, 8) if callable(one) else put(one) if isinstance(one, np.ndarray) else one

    with pytest.raises(NkiError, match=match):
        run(lambda: dropped(getattr(nl, name)(*map(operand, operands))))


def cells(extent, step):
    return [(start, min(start + step, extent)) for start in range(0, extent, step)]


#: Dims that are not tiled, extents of those that are, tiles, and tiles in a block.
GRIDS = [((), (5, 7), (2, 3), (2, 1)), ((2,), (6, 4, 5), (3, 2, 4), (1, 2, 1)), ((3, 1), (4, 4), (4, 2), (1, 3))]


@pytest.mark.parametrize("grid", GRIDS)
def test_cells_of_hbm_are_slices(grid):
    untiled, extents, tile, block = grid
    host = np.arange(np.prod(untiled + extents), dtype=np.float32).reshape(untiled + extents)
    steps = [t * b for t, b in zip(tile, block, strict=True)]

    def kernel(x):
        found = nl.blocks(x, tile_shape=tile, block_shape=block)
        counts = [len(cells(n, step)) for n, step in zip(extents, steps, strict=True)]
        assert found.shape == (*untiled, *counts)
        assert found.index_step_elements == ((1,) * len(untiled) + tuple(steps))
        assert (found.tile_shape, found.block_shape, found.dtype, found.buffer) == (tile, block, "float32", x.buffer)
        for key in itertools.product(*map(range, found.shape)):
            one = found[key]
            where = [cells(n, step)[k] for n, step, k in zip(extents, steps, key[len(untiled) :], strict=True)]
            expected = (*key[: len(untiled)], *(slice(*ends) for ends in where))
            assert one.shape == ()
            assert one.element_shape == one.data.shape
            assert one.is_remainder == any((b - a) % step for (a, b), step in zip(where, steps, strict=True))
            np.testing.assert_array_equal(get(one.data), host[expected])
            inner = nl.tiles(one)
            assert inner.tile_shape == tile
            parts = [get(inner[at].data) for at in itertools.product(*map(range, inner.shape))]
            assert sum(part.size for part in parts) == host[expected].size
            np.testing.assert_array_equal(parts[0], host[expected][tuple(slice(0, t) for t in tile)])
        np.testing.assert_array_equal(get(found.data), host)

    jit(kernel)[1](host)


@pytest.mark.parametrize(("grid", "buffer"), [*zip(GRIDS, [nl.sbuf, nl.psum, nl.sbuf], strict=True)])
@inside
def test_tiles_of_chips_lie_side_by_side(grid, buffer):
    untiled, extents, tile, block = grid
    found = nl.alloc_blocks(
        tile_shape=tile, block_shape=block, element_shape=untiled + extents, buffer=buffer, dtype=nl.float32
    )
    small = nl.tiles(found)
    places = []
    for number, key in enumerate(itertools.product(*map(range, small.shape))):
        one = small[key]
        assert one.is_data_representable
        nisa.memset(one.data, float(number))
        places.append((one.data.offset, one.data.shape))
    storage = small[(0,) * len(small.shape)].data.storage
    count = np.prod(small.shape)
    free = int(np.prod(tile[1:]))
    assert storage.info.shape == (tile[0], count * free)
    assert [offset for offset, _ in places] == [number * free for number in range(count)]
    for number, key in enumerate(itertools.product(*map(range, small.shape))):
        data = small[key].data
        expected = [min(t, n - k * t) for n, t, k in zip(extents, tile, key[len(untiled) :], strict=True)]
        assert list(data.shape) == expected
        assert (get(data) == number).all()


@inside
def test_a_row_of_tiles_is_one_operand():
    found = nl.alloc_tiles(tile_shape=(8, 4), element_shape=(16, 10), buffer=nl.sbuf, dtype=nl.float32)
    row = found[1]
    assert row.shape == (3,)
    assert row.element_shape == row.data.shape == (8, 10)
    nisa.memset(row.data, 3.0)
    assert (get(found[1, 1:].data) == 3.0).all()
    assert found[1, -1].element_shape == (8, 2)
    assert not found.is_data_representable
    with pytest.raises(NkiError, match="NKI183"):
        _ = found.data
    assert isinstance(found[0, 0], nl.NkiTileGrid)
    assert isinstance(found, nl.NkiGrid)


def alloc(**other):
    chosen = {"tile_shape": (4, 4), "element_shape": (8, 8), "buffer": nl.sbuf, "dtype": nl.float32}
    return nl.alloc_tiles(**{**chosen, **other})


BY_4 = {"tile_shape": (4, 4)}
REFUSED_GRIDS = [
    (lambda t: nl.tiles(t), "NKI181", "tile_shape=None"),
    (lambda t: nl.tiles(t, tile_shape=(4,)), "NKI181", "has 1 dims"),
    (lambda t: nl.tiles(t, tile_shape=(0, 4)), "NKI181", "no tuple of positive ints"),
    (lambda t: nl.tiles(3, tile_shape=(4, 4)), "NKI181", "no tensor and no grid"),
    (lambda t: nl.blocks(t, tile_shape=(4, 4), block_shape=(1,)), "NKI181", "block_shape"),
    (lambda t: nl.tiles(t.reshape((8, 2, 4)), tile_shape=(2, 4)), "NKI181", "partition dim untiled"),
    (lambda t: nl.tiles(t, **BY_4)[2, 0], "NKI182", "cell 2 of 2"),
    (lambda t: nl.tiles(t, **BY_4)[0, 0, 0], "NKI182", "2 coordinates"),
    (lambda t: nl.tiles(t, **BY_4)[::2], "NKI182", "slice"),
    (lambda t: nl.tiles(t, **BY_4)["a"], "NKI182", "grid index"),
    (lambda t: list(nl.tiles(t, **BY_4)), "NKI182", "iteration"),
    (lambda t: nisa.tensor_copy(nl.tiles(t, **BY_4), t), "NKI040", r"pass its \.data"),
    (lambda t: nl.tiles(alloc(), tile_shape=(2, 4)), "NKI181", "side by side"),
    (lambda t: alloc(tile_shape=(129, 4)), "NKI003", "129"),
    (lambda t: alloc(buffer="sbuf"), "NKI005", "sbuf"),
    (lambda t: alloc(element_shape=(8.0, 8)), "NKI181", "element_shape"),
]
REFUSED_LAYOUTS = {
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


REFUSED_LAYOUTS |= {
    f"grids {number}": (f"{rule}.*{words}", lambda call=call: call(sb(8, 8)))
    for number, (call, rule, words) in enumerate(REFUSED_GRIDS)
}


@pytest.mark.parametrize(("match", "body"), REFUSED_LAYOUTS.values(), ids=REFUSED_LAYOUTS)
def test_refused_layouts(match, body):
    with pytest.raises(NkiError, match=match):
        run(lambda: dropped(body()))
