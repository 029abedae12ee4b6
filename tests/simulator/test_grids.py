"""nl.tiles, blocks, alloc_tiles, alloc_blocks: which elements each cell is, against NumPy's slices."""

import itertools

import numpy as np
import pytest
from pairs import run

from nkiconv.simulator import NkiError, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl


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
            np.testing.assert_array_equal(values(one.data), host[expected])
            inner = nl.tiles(one)
            assert inner.tile_shape == tile
            parts = [values(inner[at].data) for at in itertools.product(*map(range, inner.shape))]
            assert sum(part.size for part in parts) == host[expected].size
            np.testing.assert_array_equal(parts[0], host[expected][tuple(slice(0, t) for t in tile)])
        np.testing.assert_array_equal(values(found.data), host)

    jit(kernel)[1](host)


def values(tensor):
    return tensor.storage.read(tensor)


@pytest.mark.parametrize(("grid", "buffer"), [*zip(GRIDS, [nl.sbuf, nl.psum, nl.sbuf], strict=True)])
def test_tiles_of_chips_lie_side_by_side(grid, buffer):
    untiled, extents, tile, block = grid

    def body():
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
            assert (values(data) == number).all()

    run(body)


def test_a_row_of_tiles_is_one_operand():
    def body():
        found = nl.alloc_tiles(tile_shape=(8, 4), element_shape=(16, 10), buffer=nl.sbuf, dtype=nl.float32)
        row = found[1]
        assert row.shape == (3,)
        assert row.element_shape == row.data.shape == (8, 10)
        nisa.memset(row.data, 3.0)
        assert (values(found[1, 1:].data) == 3.0).all()
        assert found[1, -1].element_shape == (8, 2)
        assert not found.is_data_representable
        with pytest.raises(NkiError, match="NKI183"):
            _ = found.data
        assert isinstance(found[0, 0], nl.NkiTileGrid)
        assert isinstance(found, nl.NkiGrid)

    run(body)


X = {"tile_shape": (4, 4)}
REFUSED = [
    (lambda t: nl.tiles(t), "NKI181", "tile_shape=None"),
    (lambda t: nl.tiles(t, tile_shape=(4,)), "NKI181", "has 1 dims"),
    (lambda t: nl.tiles(t, tile_shape=(0, 4)), "NKI181", "no tuple of positive ints"),
    (lambda t: nl.tiles(3, tile_shape=(4, 4)), "NKI181", "no tensor and no grid"),
    (lambda t: nl.blocks(t, tile_shape=(4, 4), block_shape=(1,)), "NKI181", "block_shape"),
    (lambda t: nl.tiles(t.reshape((8, 2, 4)), tile_shape=(2, 4)), "NKI181", "partition dim untiled"),
    (lambda t: nl.tiles(t, **X)[2, 0], "NKI182", "cell 2 of 2"),
    (lambda t: nl.tiles(t, **X)[0, 0, 0], "NKI182", "2 coordinates"),
    (lambda t: nl.tiles(t, **X)[::2], "NKI182", "slice"),
    (lambda t: nl.tiles(t, **X)["a"], "NKI182", "grid index"),
    (lambda t: list(nl.tiles(t, **X)), "NKI182", "iteration"),
    (lambda t: nisa.tensor_copy(nl.tiles(t, **X), t), "NKI040", r"pass its \.data"),
    (lambda t: nl.tiles(alloc(), tile_shape=(2, 4)), "NKI181", "side by side"),
    (lambda t: alloc(tile_shape=(129, 4)), "NKI003", "129"),
    (lambda t: alloc(buffer="sbuf"), "NKI005", "sbuf"),
    (lambda t: alloc(element_shape=(8.0, 8)), "NKI181", "element_shape"),
]


def alloc(**other):
    chosen = {"tile_shape": (4, 4), "element_shape": (8, 8), "buffer": nl.sbuf, "dtype": nl.float32}
    return nl.alloc_tiles(**{**chosen, **other})


@pytest.mark.parametrize(("call", "rule", "words"), REFUSED)
def test_refused(call, rule, words):
    def body():
        t = nl.zeros((8, 8), dtype=nl.float32)
        with pytest.raises(NkiError, match=f"{rule}.*{words}"):
            call(t)

    run(body)
