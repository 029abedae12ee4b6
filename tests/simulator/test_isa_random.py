"""Random bits, dropout and their seeds: range, distribution, and that a seed decides everything."""

import numpy as np
import pytest
from isa_tiles import a_tile, evaluate, get, put, result, same
from pairs import run

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

ENGINE = nisa.engine
ENGINES = [ENGINE.vector, ENGINE.gpsimd]
on_each = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)


def bits(shape, dtype="uint32", engine=ENGINE.vector):
    dst = nl.ndarray(shape, dtype)
    nisa.rng(dst, engine)
    return get(dst)


def seed(value=7, dtype="uint32"):
    nisa.set_rng_seed(put(np.array([[value]], dtype)))


@on_each
@pytest.mark.parametrize("dtype", ["int8", "uint32"])
def test_bits_are_uniform(engine, dtype):
    values = evaluate(lambda: bits((128, 4, 128), dtype, engine))
    width = 8 * values.itemsize
    raw = values.view(f"u{values.itemsize}")
    for bit in range(width):
        share = ((raw >> raw.dtype.type(bit)) & raw.dtype.type(1)).mean()
        assert abs(share - 0.5) < 0.01, f"bit {bit} of {width}"
    counts = np.bincount((raw & raw.dtype.type(15)).reshape(-1), minlength=16)
    assert abs(counts / raw.size - 1 / 16).max() < 0.005


@on_each
def test_runs_repeat_and_numbers_do_not(engine):
    first, second = (evaluate(lambda: (bits((4, 8), engine=engine), bits((4, 8), engine=engine))) for _ in range(2))
    same(np.stack(first), np.stack(second))
    assert (first[0] != first[1]).all()
    assert len(np.unique(first[0])) == 32, "no two lanes or steps agree"


def test_the_cores_of_a_launch_differ():
    seen = {}

    def body():
        seen[int(nl.program_id(0))] = bits((4, 8)), bits((4, 8), engine=ENGINE.gpsimd)

    run(body, lnc=2)
    for mine, other in zip(seen[0], seen[1], strict=True):
        assert (mine != other).all()


def mask():
    dst = nl.ndarray((4, 64), nl.float32)
    nisa.dropout(dst, put(np.ones((4, 64), np.float32)), 0.5)
    return get(dst)


@pytest.mark.parametrize(
    ("draw", "dtype"), [(lambda: bits((4, 64)), "float32"), (mask, "int32")], ids=["rng", "dropout"]
)
def test_a_seed_decides_what_follows_on_vector(draw, dtype):
    def body():
        return [(bits((3, 5)), seed(value, dtype), draw())[2] for value in (7, 7, 8)]

    first, again, other = evaluate(body)
    same(first, again)
    assert (first != other).mean() > 0.4


def state(first=0, lanes=128):
    """GpSimd's state in a tile that starts at partition `first`."""
    tile = nl.ndarray((first + lanes, 6), nl.uint32)[first : first + lanes]
    nisa.rand_get_state(tile)
    return tile


def test_a_saved_state_goes_on_where_it_was():
    def body():
        saved = state()
        first = bits((128, 9), engine=ENGINE.gpsimd)
        nisa.rand_set_state(saved)
        return first, bits((128, 9), engine=ENGINE.gpsimd), get(saved), get(state())

    first, again, before, after = evaluate(body)
    same(first, again)
    assert (before != after).all()


def test_the_lanes_step_by_xorwow():
    x, y, z, w, v, d = words = [1, 20, 300, 4000, 50000, 600000]

    def body():
        nisa.rand_set_state(put(np.array([words], np.uint32)))
        return bits((1, 4), engine=ENGINE.gpsimd).tolist()[0]

    expected = []
    for _ in range(4):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) ^ t ^ (t << 1)) % 2**32
        d = (d + 362437) % 2**32
        expected.append((v + d) % 2**32)
    assert evaluate(body) == expected


@pytest.mark.parametrize(("dtype", "tile"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("int32", "float32")])
def test_dropout_drops_its_share_and_keeps_the_rest(dtype, tile):
    values = np.arange(1, 1 + 128 * 500).reshape(128, 500) % 100 + 1
    chances = (np.arange(128) % 5 / 4).reshape(128, 1)
    given = a_tile(values.astype(np.float32), dtype), a_tile(chances.astype(np.float32), tile)
    out = result(nisa.dropout, values.shape, dtype, *given).astype(np.float32)
    assert set(np.unique(out / values)) == {0.0, 1.0}
    for chance in (0, 0.25, 0.5, 0.75, 1):
        share = (out[chances[:, 0] == chance] == 0).mean()
        assert share == pytest.approx(chance, abs=0.02 if 0 < chance < 1 else 0)
