"""Random bits, dropout, and the state of the generators behind them.

See `simulator.randomness` for the numbers' differences from hardware's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import DTYPES, FLOATS, Array
from ..program import Instruction, current
from ..randomness import STATE_WORDS
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .enums import engine
from .values import first_partition, free_size, rows, scalar_values, write

_Engine = engine
#: Dtypes of random bits.
_BITS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


def rng(dst: NkiTensor, engine: engine = engine.vector, name: str | None = None) -> Instruction:
    """dst = random bits: the low ones of 32 an element. Vector's follow set_rng_seed, GpSimd's rand_set_state.

    Args: dst: [P, F...] of an integer dtype, SBUF, or PSUM on Vector. engine: vector or gpsimd.
    Raises NkiError (NKI040-NKI043, NKI090). Source: isa rng.
    """
    program = current()
    check.on_chip(dst=dst)
    chosen = check.pick_engine(engine, (_Engine.vector, _Engine.gpsimd), _Engine.vector, dst=dst)
    check.dtypes("NKI090", _BITS, dst=dst)
    check.writable(dst=dst)
    if program.numeric:
        shape = (dst.shape[0], free_size(dst))
        if chosen is _Engine.gpsimd:
            bits = program.random.lane_bits(first_partition(dst), *shape)
        else:
            bits = program.random.vector().integers(0, 1 << 32, shape, dtype=np.uint32)
        low = bits.astype(f"u{dst.itemsize}").view(DTYPES[dst.dtype].numpy)
        write(dst, low)
    return program.record(chosen.name, "rng", (dst,), (), None, name)


def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> Instruction:
    """dst = data, each element replaced by 0 with probability `prob`; the others keep their bits, unscaled.

    Draws from the Vector Engine's generator, which set_rng_seed seeds (no document names its generator).

    Args:
        dst, data: same dtype, partitions and elements. prob: a number from 0 to 1, or a [P, 1] tile of them, of fp32
            for integer data and of any float dtype for float data.
    Raises NkiError (NKI044, NKI045, NKI051, NKI052, NKI091). Source: isa dropout.
    """
    program = current()
    check.on_chip(dst=dst, data=data)
    check.same_dtype(dst=dst, data=data)
    check.alike(dst=dst, data=data)
    accepted = FLOATS if DTYPES[data.dtype].is_float else ("float32",)
    reads = (data, *check.scalar_operand("prob", prob, data, accepted))
    if check.is_number(prob):
        _check_probabilities(np.asarray(prob), data)
    check.writable(dst=dst)
    if program.numeric:
        values = rows(data.storage.read(data))
        chances = scalar_values(prob, 2)
        _check_probabilities(chances, data)
        kept = program.random.vector().random(values.shape, dtype=np.float32) >= chances
        write(dst, np.where(kept, values, np.zeros((), values.dtype)))
    return program.record("vector", "dropout", (dst,), reads, None, name)


def _check_probabilities(chances: Array, data: NkiTensor) -> None:
    if not ((chances >= 0) & (chances <= 1)).all():
        fail("NKI091", f"prob={chances.reshape(-1).tolist()[:8]} leaves 0..1", data=data)


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> Instruction:
    """Start the Vector Engine's generator from the 32 bits of a [1, 1] tensor in SBUF or PSUM.

    Raises NkiError (NKI040, NKI090). Source: isa set_rng_seed.
    """
    program = current()
    check.on_chip(src_seeds=src_seeds)
    if src_seeds.shape[0] != 1 or src_seeds.size != 1 or src_seeds.itemsize != np.dtype(np.uint32).itemsize:
        what = f"{list(src_seeds.shape)} of {src_seeds.dtype}"
        fail("NKI090", f"src_seeds is {what}, expected [1, 1] of a 32-bit dtype", src_seeds=src_seeds)
    if program.numeric:
        bits = np.array(src_seeds.storage.read(src_seeds)).view(np.uint32)
        program.random.seed_vector(int(bits.reshape(-1)[0]))
    return program.record("vector", "set_rng_seed", (), (src_seeds,), None, name)


def _check_state(label: str, tensor: NkiTensor, asked: Any) -> None:
    """State calls of trn2: uint32 [lanes, 6] in SBUF, on GpSimd (NKI041, NKI042, NKI049, NKI090)."""
    check.on_chip(hw.FREE_DIMS_MAX, **{label: tensor})
    if asked is _Engine.vector:
        fail("NKI049", "engine.vector needs NeuronCore-v4 (trn3)", **{label: tensor})
    check.pick_engine(asked, (_Engine.gpsimd,), _Engine.gpsimd, **{label: tensor})
    if tensor.ndim != 2 or tensor.shape[1] != STATE_WORDS or tensor.dtype != "uint32":
        what = f"{list(tensor.shape)} of {tensor.dtype}"
        fail("NKI090", f"{label} is {what}, expected [P, {STATE_WORDS}] of uint32", **{label: tensor})


def rand_set_state(src_seeds: NkiTensor, engine: engine = engine.gpsimd, name: str | None = None) -> Instruction:
    """Set the state of GpSimd's lanes, a partition each, from src_seeds: uint32 [P, 6] in SBUF.

    Lanes of other partitions keep theirs. A lane whose first 5 words are all 0 only counts.
    Raises NkiError (NKI041, NKI042, NKI049, NKI090). Source: isa rand_set_state.
    """
    program = current()
    _check_state("src_seeds", src_seeds, engine)
    if program.numeric:
        first = first_partition(src_seeds)
        program.random.lanes()[first : first + src_seeds.shape[0]] = src_seeds.storage.read(src_seeds)
    return program.record("gpsimd", "rand_set_state", (), (src_seeds,), None, name)


def rand_get_state(dst: NkiTensor, engine: engine = engine.gpsimd, name: str | None = None) -> Instruction:
    """dst = the state of GpSimd's lanes, a partition each: uint32 [P, 6] in SBUF; rand_set_state takes it back.

    Raises NkiError (NKI041, NKI042, NKI049, NKI090). Source: isa rand_get_state.
    """
    program = current()
    _check_state("dst", dst, engine)
    check.writable(dst=dst)
    if program.numeric:
        first = first_partition(dst)
        dst.storage.write(dst, program.random.lanes()[first : first + dst.shape[0]])
    return program.record("gpsimd", "rand_get_state", (dst,), (), None, name)
