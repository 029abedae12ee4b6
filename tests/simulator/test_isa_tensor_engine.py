"""nc_matmul and nc_transpose against float64 products: dtypes, windows, accumulation, double_row, NaN payloads."""

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, get, laid, put, result, results, same, sample
from isa_tiles import out as made

from nkiconv.simulator import OverwriteWarning
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.dtypes import DTYPES

DOUBLE_ROW = nisa.matmul_perf_mode.double_row


def integers(rng, shape, dtype="float32"):
    """Integers from -3..3: products and sums are exact in fp32, so results must be equal."""
    return rng.integers(-3, 4, size=shape).astype(DTYPES[dtype].numpy)


def product(stationary, moving):
    """[M, N] in float64, then fp32; free dims are flattened."""
    lhs = stationary.astype(np.float64).reshape(len(stationary), -1)
    return (lhs.T @ moving.astype(np.float64).reshape(len(moving), -1)).astype(np.float32)


def multiply(stationary, moving, shape, dtypes=(None, None), **settings):
    tiles = a_tile(stationary, dtypes[0]), a_tile(moving, dtypes[1])
    return result(nisa.nc_matmul, shape, nl.float32, *tiles, to=nl.psum, **settings)


@pytest.mark.parametrize(("k", "m", "n", "left", "right"), [
    (1, 1, 1, "bfloat16", "float8_e5m2"), (5, 128, 3, "float16", "float8_e4m3"), (128, 33, 512, "bfloat16", "bfloat16"),
    (33, 7, 20, "float32", "tfloat32"), (33, 7, 20, "tfloat32", "float32"),
])  # fmt: skip
def test_sizes_and_dtypes(k, m, n, left, right, rng):
    a, b = integers(rng, (k, m), left), integers(rng, (k, n), right)
    same(multiply(a, b, (m, n), (left, right)), product(a, b))


def test_products_are_exact_and_sums_fp32(rng):
    a = rng.normal(size=(128, 16)).astype(ml_dtypes.bfloat16)
    b = rng.normal(size=(128, 64)).astype(ml_dtypes.bfloat16)
    magnitude = product(np.abs(a), np.abs(b))
    error = np.abs(multiply(a, b, (16, 64)).astype(np.float64) - a.astype(np.float64).T @ b.astype(np.float64))
    assert np.all(error <= 12 * 2.0**-24 * magnitude)


def test_tfloat32_operands_have_ten_mantissa_bits():
    fine = np.array([[1 + 2.0**-12]], np.float32)

    def body():
        one, dst = put(np.ones((1, 1), np.float32)), nl.ndarray((1, 2), nl.float32, nl.psum)
        nisa.nc_matmul(dst[:, 0:1], one, put(fine))
        nisa.nc_matmul(dst[:, 1:2], one, put(fine).view(nl.tfloat32))
        return get(dst).tolist()

    assert evaluate(body) == [[1 + 2.0**-12, 1.0]]


def test_layouts(rng):
    a, b = integers(rng, (20, 2, 4), "bfloat16"), integers(rng, (20, 3, 5), "bfloat16")

    dst = made((8, 3, 5), nl.float32, nl.psum, "shifted")
    [found] = results(nisa.nc_matmul, dst, laid("strided", a), laid("permuted", b))
    same(found, product(a, b).reshape(8, 3, 5))


#: Matmuls of a number into six columns from the first one, and what they leave; of 0: a memset of two columns.
ACCUMULATED = {
    "by default": ([(1, 0, None), (10, 0, None), (100, 0, None)], [111] * 6),
    "told at first": ([(1, 0, False), (10, 0, None), (100, 0, True)], [111] * 6),
    "told once": ([(1, 0, None), (10, 0, True), (100, 0, None)], [111] * 6),
    "false overwrites": ([(1, 0, False), (10, 0, False)], [10] * 6),
    "overlapping": ([(1, 0, None), (10, 6, None), (100, 3, None)], [1] * 3 + [101] * 3 + [110] * 3 + [10] * 3),
    "a part after a memset": ([(1, 0, None), (0, 0, None), (10, 2, None)], [0] * 2 + [11] * 4 + [10] * 2),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ACCUMULATED)
def test_accumulation(name):
    """A matmul adds where others wrote, and begins where none has."""
    steps, expected = ACCUMULATED[name]

    def body():
        dst = nl.ndarray((1, 12), nl.float32, nl.psum)
        for number, first, accumulate in steps:
            if number == 0:
                nisa.memset(dst[:, first : first + 2], 0.0)
            else:
                moving = put(np.full((1, 6), number, np.float32))
                nisa.nc_matmul(
                    dst[:, first : first + 6], put(np.ones((1, 1), np.float32)), moving, accumulate=accumulate
                )
        return get(dst[:, : len(expected)])

    assert evaluate(body).tolist() == [expected]


ONES = np.ones((4, 6), np.float32)
WRITES = {
    "memset": lambda dst: nisa.memset(dst, 9.0),
    "tensor_copy": lambda dst: nisa.tensor_copy(dst, put(ONES)),
    "activation": lambda dst: nisa.activation(dst, nl.exp, put(ONES)),
    "predicated": lambda dst: nisa.tensor_copy_predicated(dst, 1.0, put(ONES.astype(np.uint8))),
    "nc_transpose": lambda dst: nisa.nc_transpose(dst, put(ONES.T.copy())),
}


@pytest.mark.parametrize("how", WRITES)
def test_what_no_matmul_wrote_is_overwritten(how, rng):
    a, b = integers(rng, (5, 4)), integers(rng, (5, 6))

    def matmuls(dst):
        nisa.nc_matmul(dst, put(a), put(b))
        WRITES[how](dst)
        with pytest.warns(OverwriteWarning, match=r"accumulate=None overwrites .* \[4, 6\]") as told:
            nisa.nc_matmul(dst, put(a), put(b))
        assert told[0].filename == __file__

    same(result(matmuls, (4, 6), nl.float32, to=nl.psum), product(a, b))


@pytest.mark.parametrize(
    ("left", "right", "k"), [("float8_e4m3", "float8_e5m2", 128), ("float8_e5m2", "float8_e5m2", 1)]
)
def test_double_row(left, right, k, rng):
    a, b = integers(rng, (2, k, 2, 7), left), integers(rng, (2, k, 2, 3, 4), right)
    expected = [sum(product(lhs[:, i], rhs[:, i]) for i in range(2)) for lhs, rhs in zip(a, b, strict=True)]
    same(multiply(a[0], b[0], (7, 3, 4), perf_mode=DOUBLE_ROW), expected[0].reshape(7, 3, 4))

    def twice(dst):
        for lhs, rhs in zip(a, b, strict=True):
            nisa.nc_matmul(dst, put(lhs), put(rhs), perf_mode=DOUBLE_ROW)

    same(result(twice, (7, 3, 4), nl.float32, to=nl.psum), sum(expected).reshape(7, 3, 4))


@pytest.mark.parametrize("size", [32, 64, 128])
def test_tiles_of_the_array(size, rng):
    for start in range(0, 128, size):
        a, b = integers(rng, (size, 7)), integers(rng, (size, 20))
        same(multiply(a, b, (7, 20), tile_position=(start, 0), tile_size=(size, 128)), product(a, b))
        a, b = integers(rng, (9, 20)), integers(rng, (9, 7))
        same(multiply(a, b, (20, 7), tile_position=(0, start), tile_size=(32, size)), product(a, b))


#: Bit patterns that a multiplication would change: NaN payloads, infinities, -0, denormals.
ODD_BITS = {
    "float32": np.array([0x7FC01234, 0xFF800000, 0x7F800001, 0x80000000, 0x00000001, 0x3F800000], np.uint32),
    "bfloat16": np.array([0x7FC1, 0xFF80, 0x7F81, 0x8000, 0x0001, 0x3F80], np.uint16),
    "float16": np.array([0x7E01, 0xFC00, 0x7C01, 0x8000, 0x0001, 0x3C00], np.uint16),
}


@pytest.mark.parametrize(
    ("dtype", "how"), [("bfloat16", "matmul"), ("float32", nisa.engine.tensor), ("float16", nisa.engine.vector)]
)
def test_transposes_keep_every_bit(dtype, how):
    bits = ODD_BITS[dtype].reshape(2, 3)
    values, one = bits.view(DTYPES[dtype].numpy), np.eye(2).astype(DTYPES[dtype].numpy)
    call, *given = (nisa.nc_matmul, values, one) if how == "matmul" else (nisa.nc_transpose, values, how)
    found = result(call, (3, 2), dtype, *given, to=nl.psum, **({"is_transpose": True} if how == "matmul" else {}))
    same(found.view(bits.dtype), bits.T.copy())


@pytest.mark.parametrize(("dtype", "engine", "shape", "src", "dst", "runs"), [
    ("bfloat16", "tensor", (5, 3, 4), "sbuf", "psum", "tensor"),
    ("int32", "tensor", (32, 32), "sbuf", "psum", "tensor"),
    ("float8_e4m3", "vector", (32, 2, 2, 8), "sbuf", "psum", "vector"),
    ("tfloat32", "unknown", (33, 128), "sbuf", "psum", "tensor"),
    ("uint8", "unknown", (5, 8), "sbuf", "sbuf", "vector"),
    ("bool_", "unknown", (5, 8), "psum", "psum", "vector"), ("float16", "unknown", (5, 8), "psum", "sbuf", "vector"),
])  # fmt: skip
def test_nc_transpose(dtype, engine, shape, src, dst, runs, rng):
    """The default: Tensor up to 128, from SBUF to PSUM; Vector between memories."""
    values, made = sample(rng, shape, dtype), []

    def transpose(out, data):
        made.append(nisa.nc_transpose(out, data, nisa.engine[engine]))

    data = a_tile(values, dtype, getattr(nl, src))
    found = result(transpose, (values[0].size, shape[0]), dtype, data, to=getattr(nl, dst))
    same(found, values.reshape(shape[0], -1).T.copy())
    assert made[0].engine == runs
