"""dma_copy, dma_compute and dma_transpose against plain NumPy: shapes, casts, memories, overlapping sources."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, get, put, result, rounded, same, sample

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "tfloat32")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
ALL = (*FLOATS, *INTEGERS, "bool_")
DGE = nisa.dge_mode


def copied(values, shape, dtype=None, src=nl.hbm, dst=nl.sbuf, **settings):
    return result(nisa.dma_copy, shape, dtype or str(values.dtype), a_tile(values, buffer=src), to=dst, **settings)


@pytest.mark.parametrize(("src", "dst"), [*itertools.product(("hbm", "sbuf", "shared_hbm"), repeat=2)])
def test_memories(src, dst, rng):
    values = rng.normal(size=(33, 7)).astype(np.float32)
    same(copied(values, (33, 7), src=getattr(nl, src), dst=getattr(nl, dst)), values)


@pytest.mark.parametrize("shape", [(24, 5), (5, 24), (120, 1), (2, 3, 4, 5), (1, 120)])
def test_copies_may_change_the_shape(shape, rng):
    values = rng.normal(size=(4, 6, 5)).astype(np.float16)
    same(copied(values, shape), values.reshape(shape))


@pytest.mark.parametrize(("src", "dst"), [*itertools.product(ALL, ALL)])
def test_casts_go_through_fp32(src, dst, rng):
    values = sample(rng, (5, 7), src)
    expected = values if src == dst else rounded(values.astype(np.float32), dst)
    same(result(nisa.dma_copy, (7, 5), dst, a_tile(values, src), to=nl.hbm), expected.reshape(7, 5))


def test_fp32_to_integers_rounds_to_even_and_saturates():
    values = np.array([[0.5, 1.5, -2.5, 127.5, -1e9, 1e9]], np.float32)
    assert copied(values, (1, 6), "int8").tolist() == [[0, 2, -2, 127, -128, 127]]
    assert copied(values, (1, 6), "uint16").tolist() == [[0, 2, 0, 128, 0, 65535]]


def test_integers_lose_bits_on_the_way_to_others_but_not_to_themselves():
    values = np.array([[2**24 + 1, -(2**31), 2**31 - 1]], np.int32)
    same(copied(values, (1, 3)), values)
    assert copied(values, (1, 3), "uint32").tolist() == [[2**24, 0, 2**31]]


@pytest.mark.parametrize("settings", [{"dge_mode": mode} for mode in DGE], ids=lambda row: row["dge_mode"].name)
def test_the_way_descriptors_are_made_does_not_matter(settings, rng):
    values = rng.normal(size=(5, 7)).astype(np.float16)
    same(copied(values, (7, 5), **settings), values.reshape(7, 5))


def test_nan_payloads_survive():
    bits = np.array([[0x7FC1, 0xFF81, 0x7F80, 0x8000]], np.uint16)
    same(result(lambda out: nisa.dma_copy(out, put(bits).view(nl.bfloat16)), (1, 4), nl.bfloat16).view(np.uint16), bits)


@pytest.mark.parametrize("buffer", [nl.hbm, nl.sbuf], ids=["hbm", "sbuf"])
def test_overlapping_reads_make_windows(buffer, rng):
    values = rng.normal(size=(1, 16)).astype(np.float32)

    def body():
        out = nl.ndarray((5, 12), nl.float32)
        data = put(values, buffer=buffer)
        pattern = [[1, 5], [1, 12]] if buffer is nl.hbm else [[16, 1], [1, 5], [1, 12]]
        nisa.dma_copy(out, data.ap(pattern))
        return get(out)

    same(evaluate(body), np.stack([values[0, k : k + 12] for k in range(5)]))


def test_strided_sides_and_a_broadcast_source(rng):
    values = rng.normal(size=(6, 10)).astype(np.float32)

    def body():
        out = nl.ndarray((3, 2, 10), nl.float32)
        data = put(values, buffer=nl.hbm)
        nisa.dma_copy(out[:, 1, 0:10:2], data[0:6:2, 1:10:2])
        nisa.dma_copy(out[:, 1, 1:10:2], data[0:1, 0:5].expand_dim(1).broadcast(1, 3)[0])
        return get(out[:, 1])

    expected = np.empty((3, 10), np.float32)
    expected[:, 0::2], expected[:, 1::2] = values[0::2, 1::2], values[0, 0:5]
    same(evaluate(body).reshape(3, 10), expected)


# dma_compute.


@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("scales", ["none", "ones"])
def test_dma_compute_adds_in_fp32(count, scales, rng):
    dtypes = [ALL[i % len(FLOATS)] for i in range(count)]
    parts = [sample(rng, (4, 6), dtype) for dtype in dtypes]

    def body():
        out = nl.ndarray((6, 4), nl.bfloat16, nl.hbm)
        srcs = [put(v, d, nl.hbm if i % 2 else nl.sbuf) for i, (v, d) in enumerate(zip(parts, dtypes, strict=True))]
        nisa.dma_compute(out, srcs, nl.add, [1.0] * count if scales == "ones" else None)
        return get(out)

    total = np.float32(0)
    for part in parts:
        total = total + part.astype(np.float32)
    same(evaluate(body), rounded(total, "bfloat16").reshape(6, 4))


def test_dma_compute_accumulates_in_place(rng):
    a, b = rng.normal(size=(2, 4, 6)).astype(np.float32)

    def body():
        out = put(a)
        nisa.dma_compute(out, [put(b, buffer=nl.hbm), out], nl.add)
        return get(out)

    same(evaluate(body), b + a)


# dma_transpose.

TRANSPOSES = [((4, 6), (1, 0)), ((128, 3), (1, 0)), ((2, 3, 5), (2, 1, 0)), ((2, 3, 4, 5), (3, 1, 2, 0))]


@pytest.mark.parametrize(("shape", "axes"), TRANSPOSES)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("src", ["hbm", "sbuf"])
def test_dma_transpose(shape, axes, given, dtype, src, rng):
    values = sample(rng, shape, dtype)
    found = result(
        nisa.dma_transpose,
        tuple(shape[a] for a in axes),
        dtype,
        a_tile(values, buffer=getattr(nl, src)),
        axes if given else None,
    )
    same(found, values.transpose(axes).copy())


@pytest.mark.parametrize(
    ("shape", "axes"), [((16, 8), (1, 0)), ((8, 4, 128), (2, 1, 0)), ((1, 2, 16, 5), (3, 1, 2, 0))]
)
def test_hardware_dma_transpose_keeps_nan_payloads(shape, axes, rng):
    bits = rng.integers(0, 2**16, size=shape).astype(np.uint16)

    def body():
        out = nl.ndarray(tuple(shape[a] for a in axes), nl.bfloat16)
        nisa.dma_transpose(out, put(bits, buffer=nl.hbm).view(nl.bfloat16), axes, dge_mode=DGE.hwdge)
        return get(out)

    same(evaluate(body).view(np.uint16), bits.transpose(axes).copy())


def test_skipping_what_is_out_of_bounds_without_an_index_copies_all(rng):
    values = rng.standard_normal((4, 6)).astype(np.float32)
    same(result(nisa.dma_copy, (4, 6), nl.float32, a_tile(values, buffer=nl.hbm), oob_mode=nisa.oob_mode.skip), values)
