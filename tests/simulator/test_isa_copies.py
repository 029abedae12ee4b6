"""Copies, fills and casts against plain NumPy: every pair of dtypes, layouts, memories, predicates."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import LAYOUTS, a_tile, evaluate, fill, get, place, put, result, rounded, same, sample

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.dtypes import DTYPES

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "tfloat32")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
ALL = (*FLOATS, *INTEGERS, "bool_")
PARTITIONS = (1, 5, 32, 33, 128)


# tensor_copy and memset.


@pytest.mark.parametrize(("src", "dst"), [*itertools.product(ALL, ALL)])
def test_copies_cast_through_fp32(src, dst, rng):
    values = sample(rng, (5, 7), src)
    found = result(nisa.tensor_copy, (5, 7), dst, a_tile(values, src))
    same(found, values if src == dst else rounded(values.astype(np.float32), dst))


CASTS = [
    ("int8", [0.5, 1.5, -0.5, -2.5, 127.5, 300.0, -1e9, np.inf, -np.inf], [0, 2, 0, -2, 127, 127, -128, 127, -128]),
    ("uint8", [0.5, 2.5, 254.5, 255.5, -1.0, 1e9], [0, 2, 254, 255, 0, 255]),
    ("int16", [32767.5, -32768.5, 12.5], [32767, -32768, 12]),
    ("int32", [3e9, -3e9, 2.0**24 + 2], [2**31 - 1, -(2**31), 2**24 + 2]),
    ("uint32", [5e9, -5.0, 2.0**31], [2**32 - 1, 0, 2**31]),
    ("bool_", [0.0, -0.0, 0.25, -3.0], [0, 0, 1, 1]),
    ("bfloat16", [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e39], [1.0, 1 + 2.0**-6, np.inf]),
    ("float16", [2049.0, 2051.0, 65520.0], [2048.0, 2052.0, np.inf]),
    ("tfloat32", [1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 3 * 2.0**-11], [1.0, 1 + 2.0**-9, -1 - 2.0**-9]),
    ("float8_e4m3", [1.0625, 1.1875, 1000.0], [1.0, 1.25, np.inf]),
    ("float8_e5m2", [1.125, 1.375, 1e6], [1.0, 1.5, np.inf]),
]


@pytest.mark.parametrize(("dtype", "values", "expected"), CASTS, ids=[row[0] for row in CASTS])
def test_casts_round_to_even_and_integers_saturate(dtype, values, expected):
    found = result(nisa.tensor_copy, (1, len(values)), dtype, np.array([values], np.float32))
    assert found.astype(np.float64).tolist() == [expected]


@pytest.mark.parametrize("engine", ["vector", "scalar", "gpsimd"])
def test_copies_of_one_dtype_keep_every_bit(engine):
    bits = np.array([[0x7FC12345, 0x7F800001, 0xFFFFFFFF, 0x80000000, 0x00000001]], np.uint32)

    def body():
        out, whole = nl.ndarray((1, 5), nl.float32), nl.ndarray((1, 5), nl.int32)
        nisa.tensor_copy(out, put(bits.view(np.float32)), getattr(nisa.engine, engine))
        nisa.tensor_copy(whole, put(bits.view(np.int32)), getattr(nisa.engine, engine))
        return get(out), get(whole)

    for values in evaluate(body):
        same(values.view(np.uint32), bits)


def test_int32_goes_through_fp32_to_other_integers():
    found = result(nisa.tensor_copy, (1, 2), nl.uint32, np.array([[2**24 + 1, 2**24 + 3]], np.int32))
    assert found.tolist() == [[2**24, 2**24 + 4]]


@pytest.mark.parametrize("partitions", PARTITIONS)
@pytest.mark.parametrize(("src", "dst"), [*itertools.product(LAYOUTS, LAYOUTS)])
def test_copies_between_layouts(src, dst, partitions, rng):
    values = rng.normal(size=(partitions, 3, 4)).astype(ml_dtypes.bfloat16)

    def body():
        data = fill(place(src, values.shape, "bfloat16", nl.psum), values)
        out = place(dst, values.shape, "bfloat16")
        nisa.tensor_copy(out, data)
        return get(out)

    same(evaluate(body), values)


def test_copies_between_shapes_keep_the_order(rng):
    values = rng.normal(size=(3, 4, 6)).astype(np.float32)
    same(result(nisa.tensor_copy, (3, 8, 3), nl.float32, values), values.reshape(3, 8, 3))


def test_a_broadcast_source_repeats(rng):
    values = rng.normal(size=(3, 4, 1)).astype(np.float32)
    found = result(lambda out: nisa.tensor_copy(out, put(values).broadcast(2, 5)), (3, 4, 5), nl.float32)
    same(found, np.repeat(values, 5, axis=2))


def test_a_copy_onto_itself_reads_before_it_writes():
    values = np.arange(8, dtype=np.float32)[None]

    def body():
        data = put(values)
        nisa.tensor_copy(data[:, 1:8], data[:, 0:7])
        return get(data)

    assert evaluate(body).tolist() == [[0, 0, 1, 2, 3, 4, 5, 6]]


FILLS = [
    *[(dtype, 1.5, 1.5) for dtype in ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")],
    ("tfloat32", 1 + 3 * 2.0**-11, 1 + 2.0**-9),
    ("bfloat16", 1 + 3 * 2.0**-8, 1 + 2.0**-6),
    ("float32", 3, 3.0),
    *[(dtype, 7, 7) for dtype in INTEGERS],
    ("int8", -128, -128),
    ("uint32", 2**32 - 1, 2**32 - 1),
    ("bool_", True, 1),
]


@pytest.mark.parametrize(("dtype", "value", "expected"), FILLS)
@pytest.mark.parametrize("engine", ["unknown", "gpsimd"])
def test_memset(dtype, value, expected, engine):
    def body():
        out = place("strided", (5, 3), dtype)
        nisa.memset(out, value, getattr(nisa.engine, engine))
        return get(out)

    out = evaluate(body)
    assert out.dtype == DTYPES[dtype].numpy
    assert np.all(out.astype(np.float64) == expected)


# tensor_copy_predicated.


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("predicate", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("source", ["tile", "number"])
def test_predicated_copy(reverse, predicate, source, rng):
    old, new = rng.normal(size=(2, 33, 4, 6)).astype(np.float16)
    mask = rng.integers(0, 3, size=(33, 24)).astype(predicate)

    def body():
        dst = fill(place("permuted", old.shape, "float16"), old)
        src = put(new, buffer=nl.psum) if source == "tile" else 2.5
        nisa.tensor_copy_predicated(dst, src, put(mask), reverse_pred=reverse)
        return get(dst)

    chosen = (mask != 0).reshape(old.shape) != reverse
    same(evaluate(body), np.where(chosen, new if source == "tile" else np.float16(2.5), old))


def test_a_predicated_copy_leaves_the_rest_unwritten():
    def body():
        dst = nl.ndarray((1, 4), nl.float32)
        nisa.tensor_copy_predicated(dst, 1.0, put(np.array([[0, 1, 1, 0]], np.uint8)))
        return get(dst[:, 1:3]), dst.storage.written.view(dst).copy()

    values, written = evaluate(body)
    assert values.tolist() == [[1.0, 1.0]]
    assert written.tolist() == [[0, 1, 1, 0]]
