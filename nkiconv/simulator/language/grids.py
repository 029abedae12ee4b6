"""Tensors as grids of tiles, and of blocks of tiles: coordinates instead of element offsets (NKI 0.7).

A grid is a view: making, indexing and regrouping one emits nothing. Ints consume coordinates, slices keep them; tiles
at the edge are as small as the tensor leaves them. `nl.alloc_tiles` on chip lays tiles side by side, each in full, in
row-major order of the tiles: [tile partitions, tiles * elements of a tile a partition].

Sources: AWS's pages of nl.tiles, blocks, alloc_tiles, alloc_blocks, NkiGrid. They leave open how untiled dims count in
`element_shape` (here: while their coordinate is kept, as the dims of `.data`), and what an aggregate of on-chip tiles
is (here: tiles side by side in one row of a 2-d grid, and any single tile).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

from ..memory import MemoryRegion
from ..objects import NKIObject, as_int
from ..rules import fail
from ..tensor import NkiTensor
from .creation import ndarray
from .memories import is_on_chip

#: Dims of the least tile.
_LEAST_DIMS = 2


@dataclass(frozen=True)
class _Axis:
    """Elements begin .. end - 1 of one dim of a source, in cells of `block` tiles of `tile` elements.

    is_open: whether it has a coordinate left. is_tiled: whether tiles cut it.
    """

    begin: int
    end: int
    tile: int
    block: int = 1
    is_open: bool = True
    is_tiled: bool = True

    @property
    def step(self) -> int:
        return self.tile * self.block

    @property
    def cells(self) -> int:
        return -(-(self.end - self.begin) // self.step)

    @property
    def elements(self) -> int:
        return self.end - self.begin

    def chosen(self, first: int, count: int, *, is_open: bool) -> _Axis:
        """Some of its cells."""
        begin = self.begin + first * self.step
        return replace(self, begin=begin, end=min(self.end, begin + count * self.step), is_open=is_open)


class NkiGrid(NKIObject):
    """A tensor, or a part of one, in cells; made by `nl.tiles`, `blocks`, `alloc_tiles` and `alloc_blocks`."""

    __slots__ = ("_axes", "_source", "_tiles")

    def __init__(self, source: NkiTensor, axes: tuple[_Axis, ...], tiles: tuple[int, ...] | None) -> None:
        #: the tensor of the elements; the number of tiles along each axis if they lie side by side, else None
        self._source, self._axes, self._tiles = source, axes, tiles

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each coordinate that is left."""
        return tuple(one.cells for one in self._axes if one.is_open)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """Elements chosen, as `data` has them: edges as small as they are, consumed untiled dims left out."""
        return tuple(one.elements for one in self._axes if one.is_tiled or one.is_open)

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements of a full tile."""
        return tuple(one.tile for one in self._axes if one.is_tiled)

    @property
    def index_step_elements(self) -> tuple[int, ...]:
        """Elements from a cell to the next, along each coordinate that is left."""
        return tuple(one.step for one in self._axes if one.is_open)

    @property
    def is_remainder(self) -> bool:
        """Whether an edge cuts a cell of it."""
        return any(one.elements % one.step for one in self._axes)

    @property
    def dtype(self) -> str:
        """Of its elements."""
        return self._source.dtype

    @property
    def buffer(self) -> MemoryRegion:
        """The memory it is in."""
        return self._source.buffer

    @property
    def is_data_representable(self) -> bool:
        """Whether `data` is one tensor."""
        if self._tiles is None:
            return True
        *outer, last = self._axes
        alone = all(one.elements <= one.tile for one in outer)
        return alone and (last.elements <= last.tile or len(self.tile_shape) == _LEAST_DIMS)

    @property
    def data(self) -> NkiTensor:
        """All that is chosen as one tensor, for instructions (NKI183: on-chip tiles of several rows are none)."""
        if not self.is_data_representable:
            what = f"{list(self.shape)} cells of {list(self.tile_shape)} tiles"
            fail("NKI183", f"{what} are no one operand where tiles lie side by side", source=self._source)
        if self._tiles is not None:
            return self._side_by_side(self._tiles)
        keys = [slice(one.begin, one.end) if one.is_tiled or one.is_open else one.begin for one in self._axes]
        return self._source[tuple(keys)]

    def _side_by_side(self, tiles: tuple[int, ...]) -> NkiTensor:
        number = 0
        for one, count in zip(self._axes, tiles, strict=True):
            number = number * count + one.begin // one.tile
        rows, *free = self._axes[-len(self.tile_shape) :]
        first = number * prod(one.tile for one in free)
        if len(free) == 1:
            return self._source[0 : rows.elements, first : first + free[0].elements]
        whole = self._source[0 : rows.elements, first : first + prod(one.tile for one in free)]
        shaped = whole.reshape_dim(1, tuple(one.tile for one in free))
        return shaped[(slice(None), *(slice(0, one.elements) for one in free))]

    def __getitem__(self, key: Any) -> Any:
        """Ints consume coordinates, slices keep them; axes without a key are kept whole (NKI182)."""
        keys = key if type(key) is tuple else (key,)
        left = [i for i, one in enumerate(self._axes) if one.is_open]
        if len(keys) > len(left):
            fail("NKI182", f"index {key!r} of a grid with {len(left)} coordinates")
        axes = list(self._axes)
        for i, one in zip(left, keys, strict=False):
            axes[i] = _chosen(axes[i], one)
        return type(self)(self._source, tuple(axes), self._tiles)

    def __iter__(self) -> NoReturn:
        fail("NKI182", "iteration over a grid; loop over range(grid.shape[0])")

    def describe(self) -> str:
        """One line for error messages."""
        return f"a grid of {list(self.shape)} cells of {list(self.tile_shape)} tiles of {self._source.describe()}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()}); pass its .data"


class NkiTileGrid(NkiGrid):
    """A grid whose cells are tiles."""

    __slots__ = ()


class NkiBlockGrid(NkiGrid):
    """A grid whose cells are blocks of tiles."""

    __slots__ = ()

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Tiles of a full block."""
        return tuple(one.block for one in self._axes if one.is_tiled)


def tiles(source: NkiTensor | NkiGrid, *, tile_shape: tuple[int, ...] | None = None) -> NkiTileGrid:
    """A tensor, or a part of a grid, as a grid of tiles over its last dims.

    Args: tile_shape: elements of a tile, a tuple of at least 2 ints; None: a grid's own.
    Raises NkiError (NKI181).
    """
    return NkiTileGrid(*_grid(source, tile_shape, None))


def blocks(
    source: NkiTensor | NkiGrid, *, tile_shape: tuple[int, ...] | None = None, block_shape: tuple[int, ...]
) -> NkiBlockGrid:
    """As `tiles`, with a block of tiles a cell.

    Args: block_shape: tiles of a block along each dim of a tile.
    Raises NkiError (NKI181).
    """
    return NkiBlockGrid(*_grid(source, tile_shape, block_shape))


def alloc_tiles(
    *,
    tile_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: MemoryRegion,
    dtype: Any,
    address: Any = None,
    name: str = "",
) -> NkiTileGrid:
    """New uninitialised memory as a grid of tiles.

    Args:
        tile_shape: as in `tiles`; on chip its first dim is the partition dim. element_shape: elements in all; dims
        before the tile's are untiled. The others: as in `nl.ndarray`.
    Raises NkiError (NKI181, and those of `nl.ndarray`).
    """
    return NkiTileGrid(*_allocated(tile_shape, None, element_shape, (dtype, buffer, name, address)))


def alloc_blocks(
    *,
    tile_shape: tuple[int, ...],
    block_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: MemoryRegion,
    dtype: Any,
    address: Any = None,
    name: str = "",
) -> NkiBlockGrid:
    """As `alloc_tiles`, with a block of tiles a cell; tiles lie as they do there.

    Raises NkiError (NKI181, and those of `nl.ndarray`).
    """
    return NkiBlockGrid(*_allocated(tile_shape, block_shape, element_shape, (dtype, buffer, name, address)))


_Parts = tuple[NkiTensor, tuple[_Axis, ...], "tuple[int, ...] | None"]


def _grid(source: Any, tile_shape: Any, block_shape: Any) -> _Parts:
    if isinstance(source, NkiGrid):
        shape = source.tile_shape if tile_shape is None else tile_shape
        if source._tiles is not None and shape != source.tile_shape:
            fail("NKI181", f"tile_shape={shape!r} of tiles that lie side by side as {list(source.tile_shape)}")
        return source._source, _cut(source._axes, shape, block_shape), source._tiles
    if type(source) is not NkiTensor:
        fail("NKI181", f"source={source!r} is no tensor and no grid")
    axes = _cut(tuple(_Axis(0, count, 1, is_tiled=False) for count in source.shape), tile_shape, block_shape)
    if source.on_chip and not axes[0].is_tiled:
        fail("NKI181", f"tile_shape={tile_shape!r} leaves the partition dim untiled", source=source)
    return source, axes, None


def _allocated(tile_shape: Any, block_shape: Any, element_shape: Any, made: tuple[Any, Any, str, Any]) -> _Parts:
    extents = _sizes("element_shape", element_shape)
    dtype, buffer, name, address = made
    axes = _cut(tuple(_Axis(0, count, 1, is_tiled=False) for count in extents), tile_shape, block_shape)
    if type(buffer) is not MemoryRegion or not is_on_chip(buffer):
        return ndarray(extents, dtype, buffer, name, address), axes, None
    counts = tuple(-(-one.elements // one.tile) for one in axes)
    shape = tile_shape[0], prod(counts) * prod(tile_shape[1:])
    return ndarray(shape, dtype, buffer, name, address), axes, counts


def _cut(axes: tuple[_Axis, ...], tile_shape: Any, block_shape: Any) -> tuple[_Axis, ...]:
    """Axes whose last ones are cut into tiles of a shape, or blocks of these, with all coordinates."""
    sizes = _sizes("tile_shape", tile_shape)
    grouped = (1,) * len(sizes) if block_shape is None else _sizes("block_shape", block_shape)
    if not _LEAST_DIMS <= len(sizes) <= len(axes):
        fail("NKI181", f"tile_shape={tile_shape!r} has {len(sizes)} dims, at least {_LEAST_DIMS}, at most {len(axes)}")
    if len(grouped) != len(sizes):
        fail("NKI181", f"block_shape={block_shape!r} has {len(grouped)} dims, tile_shape {len(sizes)}")
    untiled, tiled = axes[: -len(sizes)], axes[-len(sizes) :]
    return (
        *(replace(one, tile=1, block=1, is_open=one.is_open or one.is_tiled, is_tiled=False) for one in untiled),
        *(_Axis(one.begin, one.end, size, count) for one, size, count in zip(tiled, sizes, grouped, strict=True)),
    )


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or any(type(one) is not int or one < 1 for one in value):
        fail("NKI181", f"{name}={value!r} is no tuple of positive ints")
    return value


def _chosen(axis: _Axis, key: Any) -> _Axis:
    """Cells of an axis by an int or a slice."""
    if type(key) is not slice:
        number = as_int(key, "grid index", "NKI182")
        if not -axis.cells <= number < axis.cells:
            fail("NKI182", f"cell {number} of {axis.cells}")
        return axis.chosen(number % axis.cells, 1, is_open=False)
    ends = [None if one is None else as_int(one, "grid slice", "NKI182") for one in (key.start, key.stop)]
    first, last = ((one + axis.cells if one is not None and one < 0 else one) for one in ends)
    first, last = first or 0, axis.cells if last is None else last
    if key.step not in (None, 1) or not 0 <= first < last <= axis.cells:
        fail("NKI182", f"slice {key.start}:{key.stop}:{key.step} of {axis.cells} cells")
    return axis.chosen(first, last - first, is_open=True)
