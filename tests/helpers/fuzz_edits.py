"""Edits that make a legal program illegal, each with the rules that may be named for it.

An edit is told an instruction of the program and changes it, or puts another in front; None where it has nothing to
change there.
"""

import dataclasses
import random
from collections.abc import Callable

import numpy as np
from fuzz_numpy import DTYPES, INTEGERS, Op, Tile, View
from fuzz_programs import Program

#: (instructions in place of the one that was given, ids of the rules)
Edited = tuple[list[Op], set[str]]
Edit = Callable[[Program, Op, random.Random], "Edited | None"]
#: Instructions whose operands have equal partitions and elements.
ELEMENTWISE = ("tensor_copy", "tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "activation")


def _tile(program: Program, shape: tuple[int, ...], dtype: str, memory: str, value: float | None = 1) -> Tile:
    """A new tile, filled with a number, or nothing where that is None."""
    made = Tile(len(program.tiles), shape, dtype, memory)
    program.tiles.append(made)
    if value is not None:
        program.inputs[made.index] = np.full(shape, value).astype(DTYPES[dtype])
    return made


def _whole(tile: Tile) -> View:
    return View(tile, tuple((0, size, 1) for size in tile.shape), tuple(range(len(tile.shape))))


def _fresh(program: Program, like: View, dtype: str | None = None, memory: str | None = None, more: int = 0) -> View:
    """A filled operand of the same size as another, or with `more` elements a partition."""
    shape = (like.shape[0], like.free + more)
    return _whole(_tile(program, shape, dtype or like.tile.dtype, memory or like.tile.memory))


def _with(op: Op, /, *, dst: View | None = None, src: View | None = None, **params: object) -> Op:
    """The instruction with another destination, first source or parameters."""
    srcs = op.srcs if src is None else (src, *op.srcs[1:])
    return dataclasses.replace(op, dst=dst or op.dst, srcs=srcs, params=op.params | params)


def other_partitions(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """A source with a partition more than the destination."""
    if op.name not in ELEMENTWISE or op.srcs[0].shape[0] == 128:
        return None
    src = op.srcs[0]
    shape = (src.shape[0] + 1, src.free)
    return [_with(op, src=_whole(_tile(program, shape, src.tile.dtype, src.tile.memory)))], {"NKI044"}


def other_elements(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """A source with an element more a partition."""
    if op.name not in ELEMENTWISE:
        return None
    return [_with(op, src=_fresh(program, op.srcs[0], more=1))], {"NKI045"}


def dma_of_other_size(program: Program, op: Op, rng: random.Random) -> Edited | None:
    return ([_with(op, src=_fresh(program, op.srcs[0], more=1))], {"NKI131"}) if op.name == "dma_copy" else None


def odd_partition(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """A source from a partition where no engine starts."""
    if op.name not in ELEMENTWISE or op.srcs[0].shape[0] > 96:
        return None
    src = op.srcs[0]
    start = rng.choice([one for one in (1, 5, 31) if one + src.shape[0] <= 128])
    tile = _tile(program, (start + src.shape[0], src.free), src.tile.dtype, src.tile.memory)
    return [_with(op, src=View(tile, ((start, start + src.shape[0], 1), (0, src.free, 1)), (0, 1)))], {"NKI043"}


def out_of_range(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """A slice of the destination that ends outside of its tile."""
    slices = list(op.dst.slices)
    dim = rng.randrange(len(slices))
    start, _stop, step = slices[dim]
    slices[dim] = (start, op.dst.tile.shape[dim] + rng.randint(1, 3), step)
    return [_with(op, dst=dataclasses.replace(op.dst, slices=tuple(slices)))], {"NKI006"}


def unwritten(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """A source that nothing wrote."""
    if not op.srcs:
        return None
    src = op.srcs[0]
    tile = _tile(program, (src.shape[0], *src.shape[1:]), src.tile.dtype, src.tile.memory, None)
    return [_with(op, src=_whole(tile))], {"NKI016"}


def both_in_psum(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name not in ("tensor_tensor", "scalar_tensor_tensor"):
        return None
    srcs = tuple(_fresh(program, src, memory="psum") for src in op.srcs)
    by_vector = {"engine": "vector"} if "engine" in op.params else {}
    return [dataclasses.replace(op, srcs=srcs, params=op.params | by_vector)], {"NKI047"}


def psum_by_gpsimd(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name not in ("memset", "tensor_copy") or op.dst.free * 4 > 16_384:
        return None
    dst = _whole(_tile(program, (op.dst.shape[0], op.dst.free), op.dst.tile.dtype, "psum"))
    return [_with(op, dst=dst, engine="gpsimd")], {"NKI042", "NKI041"}


def dma_of_psum(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "dma_copy":
        return None
    src = _whole(_tile(program, (2, op.srcs[0].free), op.srcs[0].tile.dtype, "psum"))
    dst = _whole(_tile(program, (2, op.srcs[0].free), op.dst.tile.dtype, "sbuf"))
    return [_with(op, src=src, dst=dst)], {"NKI130"}


def wrong_kind_of_value(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """A float into integers."""
    if op.name != "memset" or op.dst.tile.dtype not in INTEGERS:
        return None
    return [_with(op, value=float(op.params["value"]))], {"NKI060"}


def bits_of_floats(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "tensor_tensor" or op.params["engine"] != "vector":
        return None
    return [_with(op, src=_fresh(program, op.srcs[0], "float32"), op="bitwise_and")], {"NKI050"}


def operand_of_other_dtype(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """A [P, 1] operand that is not fp32."""
    if op.name != "tensor_scalar":
        return None
    operand = _whole(_tile(program, (op.srcs[0].shape[0], 1), rng.choice(("bfloat16", "float16", "int32")), "sbuf"))
    edited = dataclasses.replace(op, srcs=(op.srcs[0], operand), params={**op.params, "operand0": None})
    return [edited], {"NKI051"}


def one_operator_too_few(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """A second operand without an op for it."""
    if op.name != "tensor_scalar":
        return None
    return [_with(op, op1=None, operand1=1.0)], {"NKI076"}


def no_engine(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """What is no member of the enum."""
    return ([_with(op, engine=("vector",))], {"NKI030"}) if "engine" in op.params else None


def two_tensors_by_tensor_engine(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "tensor_tensor":
        return None
    return [_with(op, engine="tensor")], {"NKI041"}


def predicate_of_floats(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "tensor_copy_predicated":
        return None
    return [dataclasses.replace(op, srcs=(op.srcs[0], _fresh(program, op.srcs[1], "float32")))], {"NKI061"}


def matmul_into_sbuf(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "nc_matmul":
        return None
    return [_with(op, dst=_fresh(program, op.dst, memory="sbuf"), accumulate=False)], {"NKI040"}


def matmul_from_psum(program: Program, op: Op, rng: random.Random) -> Edited | None:
    return ([_with(op, src=_fresh(program, op.srcs[0], memory="psum"))], {"NKI040"}) if op.name == "nc_matmul" else None


def matmul_of_unlike_rows(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "nc_matmul" or op.srcs[0].shape[0] == 128:
        return None
    shape = (op.srcs[0].shape[0] + 1, op.srcs[0].free)
    return [_with(op, src=_whole(_tile(program, shape, op.srcs[0].tile.dtype, "sbuf")))], {"NKI101"}


def matmul_of_unlike_result(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "nc_matmul":
        return None
    return [_with(op, dst=_fresh(program, op.dst, more=1), accumulate=False)], {"NKI105"}


def matmul_rounded(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "nc_matmul":
        return None
    return [_with(op, dst=_fresh(program, op.dst, "bfloat16"), accumulate=False)], {"NKI106"}


def matmul_of_mixed_width(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "nc_matmul":
        return None
    other = "bfloat16" if op.srcs[0].tile.dtype == "float32" else "float32"
    return [_with(op, src=_fresh(program, op.srcs[0], other))], {"NKI107"}


def matmul_adds_to_nothing(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """accumulate=True on what no matmul wrote."""
    if op.name != "nc_matmul":
        return None
    return [_with(op, dst=_fresh(program, op.dst), accumulate=True)], {"NKI109"}


def matmul_too_wide(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """129 columns of weights, which do not fit PSUM's partitions either."""
    if op.name != "nc_matmul":
        return None
    wide = _whole(_tile(program, (op.srcs[0].shape[0], 129), op.srcs[0].tile.dtype, "sbuf"))
    return [_with(op, src=wide)], {"NKI103"}


def transpose_casts(program: Program, op: Op, rng: random.Random) -> Edited | None:
    if op.name != "nc_transpose":
        return None
    other = "float16" if op.dst.tile.dtype != "float16" else "bfloat16"
    return [_with(op, dst=_fresh(program, op.dst, other))], {"NKI113", "NKI114", "NKI052"}


def too_many_partitions(program: Program, op: Op, rng: random.Random) -> Edited | None:
    tile = _tile(program, (129, 2), "float32", rng.choice(("sbuf", "psum")), None)
    return [Op("memset", _whole(tile), (), {"value": 0.0, "engine": "vector"}), op], {"NKI003"}


def too_large(program: Program, op: Op, rng: random.Random) -> Edited | None:
    """More than there is a partition."""
    memory, elements, rule = rng.choice((("sbuf", 60_000, "NKI018"), ("psum", 4_200, "NKI019")))
    tile = _tile(program, (2, elements), "float32", memory, None)
    return [Op("memset", _whole(tile), (), {"value": 0.0, "engine": "vector"}), op], {rule}


EDITS: tuple[Edit, ...] = (
    other_partitions, other_elements, dma_of_other_size, odd_partition, out_of_range, unwritten, both_in_psum,
    psum_by_gpsimd, dma_of_psum, wrong_kind_of_value, bits_of_floats, operand_of_other_dtype, one_operator_too_few,
    no_engine, two_tensors_by_tensor_engine, predicate_of_floats, matmul_into_sbuf, matmul_from_psum,
    matmul_of_unlike_rows, matmul_of_unlike_result, matmul_rounded, matmul_of_mixed_width, matmul_adds_to_nothing,
    matmul_too_wide, transpose_casts, too_many_partitions, too_large,
)  # fmt: skip


def illegal(program: Program, seed: int) -> tuple[str, Program, set[str]] | None:
    """(the edit's name, a program with it, ids of the rules that may refuse it); None where none of some tries fits."""
    rng = random.Random(seed)
    for _ in range(8):
        if not program.ops:
            return None
        at, edit = rng.randrange(len(program.ops)), rng.choice(EDITS)
        made = Program(list(program.tiles), dict(program.inputs), list(program.ops))
        edited = edit(made, program.ops[at], rng)
        if edited is not None:
            made.ops[at : at + 1] = edited[0]
            return edit.__name__, made, edited[1]
    return None
