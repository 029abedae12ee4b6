"""Random programs give what NumPy gives, bit by bit.

A program never reads what nothing wrote. Matmuls and sums take small integers only, so that every result is the same
bits whatever the order of additions. What an instruction means is written here from the documents, in NumPy alone.
"""

import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 NumPy knows bfloat16
import numpy as np
import pytest
from isa_tiles import evaluate, get, put

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int32", "uint8")
PARTITIONS = (1, 2, 3, 5, 16, 31, 32, 33, 64, 65, 100, 128)
#: Largest number that a small tile holds: sums of 128 products stay exact in fp32.
SMALL = 8
BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
BITWISE = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
FUNCTIONS = {"copy": lambda x: x, "relu": lambda x: np.maximum(x, np.float32(0)), "square": np.square}


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """fp32 values as an engine writes them: rounded to nearest even; integers saturate."""
    wanted = np.dtype(dtype)
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            return values.astype(wanted)
    limits = np.iinfo(wanted)
    return np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max).astype(wanted)


@dataclass(eq=False)
class Tile:
    """A tensor of the simulator and what NumPy says of it: numbers, which are written, whether they are small."""

    tensor: Any
    array: np.ndarray
    written: np.ndarray
    dtype: str
    memory: str
    small: bool = True


@dataclass(frozen=True)
class View:
    """A slice of a tile, free dims in another order."""

    tile: Tile
    index: tuple[slice, ...]
    order: tuple[int, ...]

    def of(self, array: np.ndarray) -> np.ndarray:
        return array[self.index].transpose(self.order)

    @property
    def tensor(self) -> Any:
        return self.tile.tensor[self.index].permute(self.order)

    @property
    def held(self) -> np.ndarray:
        """[P, F] of the tile's dtype."""
        values = self.of(self.tile.array)
        return values.reshape(len(values), -1)

    @property
    def values(self) -> np.ndarray:
        return self.held.astype(np.float32)


def whole(tile: Tile) -> View:
    return View(tile, (slice(None),) * tile.array.ndim, tuple(range(tile.array.ndim)))


class Program:
    """Issues random instructions to the simulator and to NumPy, and holds each destination against the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tiles: list[Tile] = []

    def tile(self, shape: tuple[int, ...], dtype: str, memory: str, filled: bool = False) -> Tile:
        """A new tile that nothing has written, or of small integers."""
        array = np.zeros(shape, np.dtype(dtype))
        if filled:
            values = np.random.default_rng(self.rng.getrandbits(32)).integers(0, SMALL + 1, shape)
            array[...] = values if dtype == "uint8" else values - SMALL // 2
        kind, buffer = getattr(nl, dtype), getattr(nl, memory)
        tensor = put(array, kind, buffer) if filled else nl.ndarray(shape, kind, buffer)
        made = Tile(tensor, array, np.full(shape, filled), dtype, memory)
        self.tiles.append(made)
        return made

    def dtype(self, integers: bool = True) -> str:
        return self.rng.choice((*FLOATS, *(INTEGERS if integers else ())))

    def view(self, tile: Tile) -> View:
        """A random legal operand of a tile."""
        shape = tile.array.shape
        first = self._some(shape[0]) if tile.memory == "hbm" else self._partitions(shape[0])
        free = list(range(1, len(shape)))
        self.rng.shuffle(free)
        return View(tile, (first, *map(self._some, shape[1:])), (0, *free))

    def _some(self, size: int) -> slice:
        start = self.rng.randrange(size)
        return slice(start, self.rng.randint(start + 1, size), self.rng.choice((1, 1, 1, 2, 3)))

    def _partitions(self, size: int) -> slice:
        """Partitions from where engines may start: any number from 0, up to 64 from 64, up to 32 from 32 and 96."""
        start = self.rng.choice([one for one in (0, 0, 0, 32, 64, 96) if one < size])
        return slice(start, start + self.rng.randint(1, min({0: 128, 64: 64}.get(start, 32), size - start)))

    def free_shape(self, elements: int) -> tuple[int, ...]:
        """Free dims of so many elements."""
        first = self.rng.choice([one for one in range(1, elements + 1) if elements % one == 0])
        return (elements,) if self.rng.random() < 0.5 else (first, elements // first)

    def like(self, view: View, dtype: str, memory: str, filled: bool) -> View:
        """An operand of as many partitions and elements as another, in a new tile, perhaps laid out otherwise."""
        rows, elements = view.held.shape
        shape = (rows, *self.free_shape(elements))
        if self.rng.random() < 0.3:
            made = whole(self.tile((*shape[:-1], 2 * shape[-1]), dtype, memory, filled))
            return View(made.tile, (*made.index[:-1], slice(1, None, 2)), made.order)
        return whole(self.tile(shape, dtype, memory, filled))

    def operand(self, memories: tuple[str, ...] = ("sbuf", "psum")) -> View:
        """Something written, of a tile there is or of a new one."""
        for _ in range(4):
            if self.tiles and self.rng.random() < 0.7:
                view = self.view(self.rng.choice(self.tiles))
                if view.tile.memory in memories and view.of(view.tile.written).all():
                    return view
        shape = (self.rng.choice(PARTITIONS), *(self.rng.randint(1, 9) for _ in range(self.rng.randint(1, 3))))
        return self.view(self.tile(shape, self.dtype(), self.rng.choice(memories), True))

    def target(self, src: View, memories: tuple[str, ...] = ("sbuf", "psum"), dtype: str | None = None) -> View:
        """Where a result of that size goes: a tile that is there, not the source's, or a new one."""
        rows, elements = src.held.shape
        found = [one for one in self.tiles if one.memory in memories and dtype in (None, one.dtype)]
        if found and self.rng.random() < 0.3:
            view = whole(self.rng.choice(found))
            if view.held.shape[0] >= rows and view.held.shape[1] == elements and view.tile is not src.tile:
                return View(view.tile, (slice(rows), *view.index[1:]), view.order)
        return self.like(src, dtype or self.dtype(), self.rng.choice(memories), False)

    def engine(self, *views: View) -> nisa.engine:
        """Vector or GpSimd, which does not touch PSUM."""
        reach = all(view.tile.memory == "sbuf" for view in views)
        return self.rng.choice((nisa.engine.vector, nisa.engine.gpsimd) if reach else (nisa.engine.vector,))

    def issue(self, call: Any, dst: View, result: np.ndarray, *operands: Any, small: bool = False, **settings: Any):
        """Run an instruction, unless a result is not finite."""
        held = cast(result, dst.tile.dtype) if result.dtype == np.float32 else result
        if not np.isfinite(held.astype(np.float64)).all():
            return
        place = dst.of(dst.tile.array)
        place[...] = held.reshape(place.shape)
        dst.of(dst.tile.written)[...] = True
        dst.tile.small &= small and bool((np.abs(dst.values) <= SMALL).all())
        call(dst.tensor, *operands, **settings)
        assert np.array_equal(get(dst.tensor).astype(np.float64), place.astype(np.float64)), call


def memset(program: Program) -> None:
    dst = program.like(program.operand(), program.dtype(), program.rng.choice(("sbuf", "psum")), False)
    value = program.rng.randint(0, SMALL)
    settings = {"value": value if dst.tile.dtype in INTEGERS else float(value), "engine": program.engine(dst)}
    program.issue(nisa.memset, dst, np.full(dst.held.shape, value, np.float32), small=True, **settings)


def copied(src: View, dst: View) -> np.ndarray:
    return src.held if src.tile.dtype == dst.tile.dtype else src.values


def copy(program: Program) -> None:
    src = program.operand()
    dst = program.target(src)
    engine = program.rng.choice((program.engine(src, dst), nisa.engine.scalar))
    program.issue(nisa.tensor_copy, dst, copied(src, dst), src.tensor, engine=engine, small=src.tile.small)


def dma(program: Program) -> None:
    src = program.operand(("sbuf", "hbm"))
    dst = program.target(src, ("sbuf", "hbm"))
    program.issue(nisa.dma_copy, dst, copied(src, dst), src.tensor, small=src.tile.small)


def two_tensors(program: Program) -> None:
    first = program.operand()
    memory = "sbuf" if first.tile.memory == "psum" else program.rng.choice(("sbuf", "psum"))
    bitwise = first.tile.dtype in INTEGERS and program.rng.random() < 0.5
    other = program.like(first, first.tile.dtype if bitwise else program.dtype(), memory, True)
    dst = program.target(first, dtype=first.tile.dtype if bitwise else None)
    op = program.rng.choice(sorted(BITWISE if bitwise else BINARY))
    result = BITWISE[op](first.held, other.held) if bitwise else BINARY[op](first.values, other.values)
    engine = nisa.engine.vector if bitwise else program.engine(first, other, dst)
    program.issue(nisa.tensor_tensor, dst, result, first.tensor, other.tensor, op=getattr(nl, op), engine=engine)


def scalar(program: Program) -> None:
    rng = program.rng
    src = program.operand()
    dst = program.target(src)
    op, reverse, number = rng.choice(sorted(BINARY)), rng.random() < 0.3, float(rng.randint(-3, 3))
    column = whole(program.tile((len(src.held), 1), "float32", "sbuf", True)) if rng.random() < 0.4 else None
    pair = (src.values, column.values if column else np.float32(number))
    result = BINARY[op](*pair[::-1] if reverse else pair)
    settings = {"op0": getattr(nl, op), "operand0": column.tensor if column else number, "reverse0": reverse}
    if rng.random() < 0.5:
        op, number = rng.choice(sorted(BINARY)), rng.choice((-2.0, 0.5, 3.0))
        result = BINARY[op](result, np.float32(number))
        settings |= {"op1": getattr(nl, op), "operand1": number}
    program.issue(nisa.tensor_scalar, dst, result, src.tensor, **settings)


def scalar_and_tensor(program: Program) -> None:
    rng = program.rng
    first = program.operand()
    memory = "sbuf" if first.tile.memory == "psum" else rng.choice(("sbuf", "psum"))
    other = program.like(first, program.dtype(), memory, True)
    dst = program.target(first)
    inner, outer, number = rng.choice(sorted(BINARY)), rng.choice(sorted(BINARY)), float(rng.randint(-3, 3))
    result = BINARY[outer](BINARY[inner](first.values, np.float32(number)), other.values)
    settings = {"op0": getattr(nl, inner), "operand0": number, "op1": getattr(nl, outer), "operand1": other.tensor}
    program.issue(nisa.scalar_tensor_tensor, dst, result, first.tensor, **settings)


def activation(program: Program) -> None:
    rng = program.rng
    src = program.operand()
    dst = program.target(src)
    op, scale = rng.choice(sorted(FUNCTIONS)), rng.choice((1.0, 0.5, 2.0, -1.0))
    shifted, settings = src.values * np.float32(scale), {}
    if rng.random() < 0.5:
        bias = whole(program.tile((len(src.held), 1), rng.choice(("float32", "bfloat16")), "sbuf", True))
        shifted, settings = shifted + bias.values, {"bias": bias.tensor}
    program.issue(nisa.activation, dst, FUNCTIONS[op](shifted), getattr(nl, op), src.tensor, scale=scale, **settings)


def reduce(program: Program) -> None:
    src = program.operand()
    op = program.rng.choice(("add", "maximum", "minimum") if src.tile.small else ("maximum", "minimum"))
    values = src.of(src.tile.array).astype(np.float32)
    result = BINARY[op].reduce(values, axis=-1).reshape(len(values), -1)
    dst = whole(program.tile(result.shape, program.dtype(), "sbuf"))
    program.issue(nisa.tensor_reduce, dst, result, getattr(nl, op), src.tensor, axis=values.ndim - 1)


def predicated(program: Program) -> None:
    src = program.operand(("sbuf",))
    predicate = program.like(src, "uint8", "sbuf", True)
    dst = program.like(src, src.tile.dtype, "sbuf", True)
    result = np.where(predicate.held != 0, src.held, dst.held)
    program.issue(nisa.tensor_copy_predicated, dst, result, src.tensor, predicate.tensor)


def matmul(program: Program) -> None:
    rng = program.rng
    rows, columns, moving = rng.choice(PARTITIONS), rng.choice((1, 3, 17, 64, 128)), rng.randint(1, 40)
    dtypes = ("float32",) if rng.random() < 0.4 else ("bfloat16", "float16")
    first = whole(program.tile((rows, columns), rng.choice(dtypes), "sbuf", True))
    other = whole(program.tile((rows, *program.free_shape(moving)), rng.choice(dtypes), "sbuf", True))
    dst = whole(program.tile((columns, *program.free_shape(moving)), "float32", "psum"))
    product = first.values.T @ other.values
    for turn in range(rng.choice((1, 1, 2, 3))):
        result = product + dst.values if turn else product
        program.issue(nisa.nc_matmul, dst, result, first.tensor, other.tensor, accumulate=turn > 0)


def transpose(program: Program) -> None:
    tensor = program.rng.random() < 0.6
    sizes = [one for one in PARTITIONS if one <= (128 if tensor else 32)]
    rows, columns, dtype = program.rng.choice(sizes), program.rng.choice(sizes), program.rng.choice(FLOATS)
    src = whole(program.tile((rows, columns), dtype, "sbuf", True))
    dst = whole(program.tile((columns, rows), dtype, "psum" if tensor else "sbuf"))
    engine = nisa.engine.tensor if tensor else nisa.engine.vector
    program.issue(nisa.nc_transpose, dst, src.held.T, src.tensor, engine=engine)


INSTRUCTIONS = (
    memset, copy, dma, two_tensors, scalar, scalar_and_tensor, activation, reduce, predicated, matmul, transpose
)  # fmt: skip
SLOW = pytest.param(range(10_000, 30_000), marks=[pytest.mark.slow, pytest.mark.timeout(1800)], id="many")


@pytest.mark.parametrize("seeds", [pytest.param(range(40), id="few"), SLOW])
def test_legal_programs_compute_what_numpy_computes(seeds):
    def body(seed: int) -> None:
        program = Program(seed)
        for _ in range(program.rng.randint(1, 12)):
            program.rng.choice(INSTRUCTIONS)(program)
        for tile in program.tiles:
            if tile.written.all():
                assert np.array_equal(get(tile.tensor).astype(np.float64), tile.array.astype(np.float64)), tile

    for seed in seeds:
        evaluate(lambda seed=seed: body(seed))
