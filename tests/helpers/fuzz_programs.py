"""Random programs of legal instructions, and how the simulator runs them.

A program never reads what nothing wrote. Matmuls and sums take small integers only, so that every result is the same
bits whatever the order of additions.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fuzz_numpy as judge
import numpy as np
from fuzz_numpy import BITWISE, DTYPES, INTEGERS, Op, Tile, View
from isa_tiles import evaluate, get, put

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

FLOATS = ("float32", "bfloat16", "float16")
PARTITIONS = (1, 2, 3, 5, 16, 31, 32, 33, 64, 65, 100, 128)
#: Largest number that a small tile holds: sums of 128 products stay exact in fp32.
SMALL = 8
_MEMORIES = {"sbuf": nl.sbuf, "psum": nl.psum, "hbm": nl.hbm}
_NL = {"float32": nl.float32, "bfloat16": nl.bfloat16, "float16": nl.float16, "int32": nl.int32, "uint8": nl.uint8}


@dataclass
class Program:
    """Tiles, the numbers that some of them hold from the start, and instructions in order."""

    tiles: list[Tile]
    inputs: dict[int, np.ndarray]
    ops: list[Op]


class Writer:
    """Writes a program, and keeps what is known of each tile: its numbers, what was written, whether they are small."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.program = Program([], {}, [])
        self.arrays: list[np.ndarray] = []
        self.written: list[np.ndarray] = []
        self.small: list[bool] = []

    def tile(self, shape: tuple[int, ...], dtype: str, memory: str) -> Tile:
        """A new tile that nothing has written."""
        made = Tile(len(self.arrays), shape, dtype, memory)
        self.program.tiles.append(made)
        self.arrays.append(np.zeros(shape, DTYPES[dtype]))
        self.written.append(np.zeros(shape, bool))
        self.small.append(True)
        return made

    def filled(self, shape: tuple[int, ...], dtype: str, memory: str) -> Tile:
        """A new tile of small integers."""
        made = self.tile(shape, dtype, memory)
        values = np.random.default_rng(self.rng.getrandbits(32)).integers(0, SMALL + 1, shape)
        if dtype != "uint8":
            values = values - SMALL // 2
        self.arrays[made.index][...] = values.astype(DTYPES[dtype])
        self.written[made.index][...] = True
        self.program.inputs[made.index] = self.arrays[made.index].copy()
        return made

    def dtype(self, integers: bool = True) -> str:
        return self.rng.choice((*FLOATS, *(INTEGERS if integers else ())))

    def view(self, tile: Tile) -> View:
        """A random legal operand of a tile."""
        rng = self.rng
        slices = [self._partitions(tile.shape[0]) if tile.memory != "hbm" else self._some(tile.shape[0])]
        slices += [self._some(size) for size in tile.shape[1:]]
        free = list(range(1, len(tile.shape)))
        rng.shuffle(free)
        return View(tile, tuple(slices), (0, *free))

    def _some(self, size: int) -> tuple[int, int, int]:
        start = self.rng.randrange(size)
        return start, self.rng.randint(start + 1, size), self.rng.choice((1, 1, 1, 2, 3))

    def _partitions(self, size: int) -> tuple[int, int, int]:
        """Partitions from where engines may start: any number from 0, up to 64 from 64, up to 32 from 32 and 96."""
        start = self.rng.choice([one for one in (0, 0, 0, 32, 64, 96) if one < size])
        most = {0: 128, 64: 64}.get(start, 32)
        return start, start + self.rng.randint(1, min(most, size - start)), 1

    def whole(self, tile: Tile) -> View:
        return View(tile, tuple((0, size, 1) for size in tile.shape), tuple(range(len(tile.shape))))

    def free_shape(self, elements: int) -> tuple[int, ...]:
        """Free dims of so many elements."""
        divisors = [one for one in range(1, elements + 1) if elements % one == 0]
        first = self.rng.choice(divisors)
        return (elements,) if self.rng.random() < 0.5 else (first, elements // first)

    def like(self, view: View, dtype: str, memory: str, filled: bool) -> View:
        """An operand of as many partitions and elements as another, in a new tile, perhaps laid out otherwise."""
        shape = (view.shape[0], *self.free_shape(view.free))
        make = self.filled if filled else self.tile
        if self.rng.random() < 0.3:
            # every other element of a wider tile
            made = make((*shape[:-1], 2 * shape[-1]), dtype, memory)
            slices = [*((0, size, 1) for size in shape[:-1]), (1, 2 * shape[-1], 2)]
            return View(made, tuple(slices), tuple(range(len(shape))))
        return self.whole(make(shape, dtype, memory))

    def operand(self, memories: tuple[str, ...] = ("sbuf", "psum"), integers: bool = True) -> View:
        """Something written, of a tile there is or of a new one."""
        rng = self.rng
        for _ in range(4):
            if self.program.tiles and rng.random() < 0.7:
                tile = rng.choice(self.program.tiles)
                view = self.view(tile)
                usable = tile.memory in memories and (integers or tile.dtype in FLOATS)
                if usable and self.is_written(view):
                    return view
        shape = (rng.choice(PARTITIONS), *(rng.randint(1, 9) for _ in range(rng.randint(1, 3))))
        tile = self.filled(shape, self.dtype(integers), rng.choice(memories))
        return self.view(tile)

    def is_written(self, view: View) -> bool:
        return bool(judge.window(self.written, view).all())

    def target(self, like: View, memories: tuple[str, ...] = ("sbuf", "psum"), dtype: str | None = None) -> View:
        """Where a result of that size goes: a new tile, or one that is there."""
        found = [one for one in self.program.tiles if one.memory in memories and (dtype in (None, one.dtype))]
        if found and self.rng.random() < 0.3:
            tile = self.rng.choice(found)
            if tile.shape[0] >= like.shape[0] and int(np.prod(tile.shape[1:])) == like.free:
                slices = ((0, like.shape[0], 1), *((0, size, 1) for size in tile.shape[1:]))
                return View(tile, slices, tuple(range(len(tile.shape))))
        return self.like(like, dtype or self.dtype(), self.rng.choice(memories), False)

    def add(self, op: Op, small: bool = False) -> None:
        """Append an instruction, unless a result is not finite."""
        before = self.arrays[op.dst.tile.index].copy()
        judge.step(self.arrays, op)
        if not np.isfinite(judge.read(self.arrays, op.dst)).all():
            self.arrays[op.dst.tile.index] = before
            return
        judge.window(self.written, op.dst)[...] = True
        found = judge.read(self.arrays, op.dst)
        self.small[op.dst.tile.index] &= small and bool((np.abs(found) <= SMALL).all())
        self.program.ops.append(op)

    def is_small(self, *views: View) -> bool:
        return all(self.small[view.tile.index] for view in views)


def _engine(writer: Writer, *views: View) -> str:
    """Vector or GpSimd, which does not touch PSUM."""
    reach = all(view.tile.memory == "sbuf" for view in views)
    return writer.rng.choice(("vector", "gpsimd") if reach else ("vector",))


def memset(writer: Writer) -> None:
    dst = writer.like(writer.operand(), writer.dtype(), writer.rng.choice(("sbuf", "psum")), False)
    value = writer.rng.randint(0, SMALL)
    writer.add(
        Op("memset", dst, (), {"value": value if dst.tile.dtype in INTEGERS else float(value),
        "engine": _engine(writer, dst)}), small=True,
    )  # fmt: skip


def copy(writer: Writer) -> None:
    src = writer.operand()
    dst = writer.target(src)
    engines = ("vector", "scalar", "gpsimd") if {src.tile.memory, dst.tile.memory} == {"sbuf"} else ("vector", "scalar")
    if dst.tile != src.tile:
        writer.add(Op("tensor_copy", dst, (src,), {"engine": writer.rng.choice(engines)}), small=writer.is_small(src))


def dma(writer: Writer) -> None:
    src = writer.operand(("sbuf", "hbm"))
    dst = writer.target(src, ("sbuf", "hbm"))
    if dst.tile != src.tile:
        writer.add(Op("dma_copy", dst, (src,)), small=writer.is_small(src))


def two_tensors(writer: Writer) -> None:
    rng = writer.rng
    first = writer.operand()
    memory = "sbuf" if first.tile.memory == "psum" else rng.choice(("sbuf", "psum"))
    bitwise = first.tile.dtype in INTEGERS and rng.random() < 0.5
    dtype = first.tile.dtype if bitwise else writer.dtype()
    other = writer.like(first, dtype, memory, True)
    dst = writer.target(first, dtype=dtype if bitwise else None)
    params = {"op": rng.choice(sorted(BITWISE if bitwise else judge.BINARY))}
    engine = "vector" if bitwise else _engine(writer, first, other, dst)
    if dst.tile not in (first.tile, other.tile):
        writer.add(Op("tensor_tensor", dst, (first, other), params | {"engine": engine}))


def scalar(writer: Writer) -> None:
    rng = writer.rng
    src = writer.operand()
    dst = writer.target(src)
    params: dict[str, Any] = {"op0": rng.choice(sorted(judge.BINARY)), "operand0": float(rng.randint(-3, 3))}
    params["reverse0"] = rng.random() < 0.3
    srcs = [src]
    if rng.random() < 0.4:
        srcs.append(writer.whole(writer.filled((src.shape[0], 1), "float32", "sbuf")))
        params["operand0"] = None
    if rng.random() < 0.5:
        params |= {"op1": rng.choice(sorted(judge.BINARY)), "operand1": rng.choice((-2.0, 0.5, 3.0))}
    if dst.tile != src.tile:
        writer.add(Op("tensor_scalar", dst, tuple(srcs), params))


def scalar_and_tensor(writer: Writer) -> None:
    rng = writer.rng
    first = writer.operand()
    other = writer.like(
        first, writer.dtype(), "sbuf" if first.tile.memory == "psum" else rng.choice(("sbuf", "psum")), True
    )
    dst = writer.target(first)
    params = {"op0": rng.choice(sorted(judge.BINARY)), "operand0": float(rng.randint(-3, 3))}
    if dst.tile not in (first.tile, other.tile):
        writer.add(Op("scalar_tensor_tensor", dst, (first, other), params | {"op1": rng.choice(sorted(judge.BINARY))}))


def activation(writer: Writer) -> None:
    rng = writer.rng
    src = writer.operand()
    dst = writer.target(src)
    srcs = [src]
    if rng.random() < 0.5:
        srcs.append(writer.whole(writer.filled((src.shape[0], 1), rng.choice(("float32", "bfloat16")), "sbuf")))
    params = {"op": rng.choice(sorted(judge.FUNCTIONS)), "scale": rng.choice((1.0, 0.5, 2.0, -1.0))}
    if dst.tile != src.tile:
        writer.add(Op("activation", dst, tuple(srcs), params))


def reduce(writer: Writer) -> None:
    src = writer.operand()
    op = writer.rng.choice(("add", "maximum", "minimum") if writer.is_small(src) else ("maximum", "minimum"))
    dtype = writer.dtype()
    dst = writer.whole(writer.tile((src.shape[0], max(1, int(np.prod(src.shape[1:-1])))), dtype, "sbuf"))
    writer.add(Op("tensor_reduce", dst, (src,), {"op": op}))


def predicated(writer: Writer) -> None:
    src = writer.operand(("sbuf",))
    predicate = writer.like(src, "uint8", "sbuf", True)
    dst = writer.like(src, src.tile.dtype, "sbuf", True)
    writer.add(Op("tensor_copy_predicated", dst, (src, predicate)))


def matmul(writer: Writer) -> None:
    rng = writer.rng
    rows, columns, moving = rng.choice(PARTITIONS), rng.choice((1, 3, 17, 64, 128)), rng.randint(1, 40)
    wide = rng.random() < 0.4
    dtypes = ("float32",) if wide else ("bfloat16", "float16")
    srcs = [writer.whole(writer.filled((rows, columns), rng.choice(dtypes), "sbuf"))]
    shape = (rows, *writer.free_shape(moving))
    srcs.append(writer.whole(writer.filled(shape, rng.choice(dtypes), "sbuf")))
    dst = writer.whole(writer.tile((columns, *writer.free_shape(moving)), "float32", "psum"))
    for turn in range(rng.choice((1, 1, 2, 3))):
        writer.add(Op("nc_matmul", dst, tuple(srcs), {"accumulate": turn > 0}))


def transpose(writer: Writer) -> None:
    rng = writer.rng
    tensor = rng.random() < 0.6
    most = 128 if tensor else 32
    rows, columns = (rng.choice([one for one in PARTITIONS if one <= most]) for _ in range(2))
    dtype = rng.choice(FLOATS)
    src = writer.whole(writer.filled((rows, columns), dtype, "sbuf"))
    dst = writer.whole(writer.tile((columns, rows), dtype, "psum" if tensor else "sbuf"))
    writer.add(Op("nc_transpose", dst, (src,), {"engine": "tensor" if tensor else "vector"}))


WRITERS: tuple[Callable[[Writer], None], ...] = (
    memset, copy, dma, two_tensors, scalar, scalar_and_tensor, activation, reduce, predicated, matmul, transpose
)  # fmt: skip


def generate(seed: int) -> tuple[Program, list[np.ndarray]]:
    """(a program, what the destination of each instruction holds at its end)."""
    writer = Writer(seed)
    for _ in range(writer.rng.randint(1, 12)):
        writer.rng.choice(WRITERS)(writer)
    return writer.program, [judge.window(writer.arrays, op.dst) for op in writer.program.ops]


def operand_of(tensors: list[Any], view: View) -> Any:
    """A view of the simulator's."""
    index = tuple(slice(*one) for one in view.slices)
    found = tensors[view.tile.index][index]
    return found if view.order == tuple(range(len(view.order))) else found.permute(view.order)


def issue(tensors: list[Any], op: Op) -> None:
    """Call nki.isa for an instruction."""
    dst, srcs, params = operand_of(tensors, op.dst), [operand_of(tensors, one) for one in op.srcs], dict(op.params)
    if isinstance(params.get("engine"), str):
        params["engine"] = getattr(nisa.engine, params["engine"])
    for name in ("op", "op0", "op1"):
        if params.get(name):
            params[name] = getattr(nl, params[name])
    if op.name == "memset":
        nisa.memset(dst, **params)
    elif op.name in ("tensor_copy", "dma_copy", "tensor_copy_predicated", "nc_transpose"):
        getattr(nisa, op.name)(dst, *srcs, **params)
    elif op.name == "nc_matmul":
        nisa.nc_matmul(dst, stationary=srcs[0], moving=srcs[1], **params)
    elif op.name == "tensor_tensor":
        nisa.tensor_tensor(dst, srcs[0], srcs[1], **params)
    elif op.name == "scalar_tensor_tensor":
        nisa.scalar_tensor_tensor(dst, data=srcs[0], operand1=srcs[1], **params)
    elif op.name == "activation":
        bias = {"bias": srcs[1]} if len(srcs) > 1 else {}
        nisa.activation(dst, data=srcs[0], **params, **bias)
    elif op.name == "tensor_reduce":
        nisa.tensor_reduce(dst, data=srcs[0], axis=len(op.srcs[0].shape) - 1, **params)
    else:
        if len(srcs) > 1:
            params["operand0"] = srcs[1]
        nisa.tensor_scalar(dst, data=srcs[0], **params)


def simulate(program: Program) -> list[np.ndarray]:
    """What the destination of each instruction holds after the simulator has run a program."""

    def body() -> list[np.ndarray]:
        tensors = []
        for tile in program.tiles:
            tensor = nl.ndarray(tile.shape, _NL[tile.dtype], _MEMORIES[tile.memory])
            if tile.index in program.inputs:
                tensor = put(program.inputs[tile.index], _NL[tile.dtype], _MEMORIES[tile.memory])
            tensors.append(tensor)
        for op in program.ops:
            issue(tensors, op)
        return [get(operand_of(tensors, op.dst)) for op in program.ops]

    found: list[np.ndarray] = evaluate(body)
    return found
