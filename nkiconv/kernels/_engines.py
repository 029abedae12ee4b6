"""Balances work that several engines can do, such as PSUM evacuation: the least loaded engine runs it.

A compile-time ledger of each engine's work keeps engines from waiting for another's backlog. It decides only the
engine, never the result. Work is in whole numbers, in proportion to the engines' published rates: 0.96 GHz of Vector to
1.2 of Scalar and 0.6 of GpSimd, one column per cycle (trn2.toml).
"""

from dataclasses import dataclass

from .._nki import nisa, nl
from ..schedules.tiles import size_of

#: Work of an element: Vector's, with operands of 16 bits, for copies of 16 bits inside SBUF, and for memsets; Scalar's;
#: GpSimd's, and for selects.
VECTOR_WORK = 20
VECTOR_WORK_16BIT = 10
VECTOR_WORK_COPY_16BIT = 5
VECTOR_WORK_MEMSET = 16
SCALAR_WORK = 16
GPSIMD_WORK = 32
GPSIMD_WORK_SELECT = 16
#: Fixed work of an instruction; of instructions on PSUM that do more than copy; of GpSimd's instructions.
START_WORK = 1152
VECTOR_START_WORK_PSUM = 1248
SCALAR_START_WORK_PSUM = 2752
GPSIMD_START_WORK = 2436


@dataclass
class Ledger(nl.NKIObject):
    """Work given to each engine."""

    vector: int
    scalar: int
    gpsimd: int


def new_ledger():
    """An empty ledger."""
    return Ledger(vector=0, scalar=0, gpsimd=0)


def is_16bit(dtype):
    """Whether Vector has a fast mode for the dtype."""
    return dtype == nl.bfloat16 or dtype == nl.float16


def itemsize_of(dtype):
    """Bytes of an element of 16 or 32 bits."""
    return 4 if dtype == nl.float32 else 2


def book_vector(ledger, elements):
    """Book work of `elements` a partition that only Vector can do."""
    ledger.vector = ledger.vector + START_WORK + elements * VECTOR_WORK


def pick(ledger, elements, fast):
    """The engine, Vector or Scalar, that would first finish an evacuation of `elements` a partition; books it there.

    fast: whether all operands have 16 bits.
    """
    vector_work = START_WORK + elements * (VECTOR_WORK_16BIT if fast else VECTOR_WORK)
    return book_least(ledger, vector=vector_work, scalar=START_WORK + elements * SCALAR_WORK)


def book_least(ledger, **works):
    """The first of the engines with this work that would finish it first; books it there."""
    name = min(works, key=lambda one: getattr(ledger, one) + works[one])
    setattr(ledger, name, getattr(ledger, name) + works[name])
    return getattr(nisa.engine, name)


def copy_balanced(dst, src, ledger):
    """Copy or evacuate a view by the engine that `pick` finds."""
    engine = pick(ledger, size_of(dst.shape[1:]), is_16bit(src.dtype))
    nisa.tensor_copy(dst=dst, src=src, engine=engine)


def pick_sum(ledger, elements, fast, in_psum=False):
    """As `pick`, between Vector and GpSimd for a sum of two tensors; GpSimd cannot read PSUM."""
    works = {"vector": START_WORK + elements * (VECTOR_WORK_16BIT if fast else VECTOR_WORK)}
    if not in_psum:
        works["gpsimd"] = GPSIMD_START_WORK + elements * GPSIMD_WORK
    return book_least(ledger, **works)


def pick_select(ledger, elements, fast):
    """As `pick`, between a select by GpSimd and the same as Vector's product with a mask."""
    vector_work = START_WORK + elements * (VECTOR_WORK_16BIT if fast else VECTOR_WORK)
    return book_least(ledger, vector=vector_work, gpsimd=GPSIMD_START_WORK + elements * GPSIMD_WORK_SELECT)


def pick_memset(ledger, elements):
    """As `pick`, between Vector and GpSimd for a memset."""
    gpsimd_work = GPSIMD_START_WORK + elements * GPSIMD_WORK
    return book_least(ledger, vector=START_WORK + elements * VECTOR_WORK_MEMSET, gpsimd=gpsimd_work)


def copy_in_sbuf(dst, src, ledger):
    """Copy a view inside SBUF by the engine that would first finish it."""
    elements = size_of(dst.shape[1:])
    works = {"vector": START_WORK + elements * copy_work(dst.dtype), "scalar": START_WORK + elements * SCALAR_WORK}
    engine = book_least(ledger, **works, gpsimd=GPSIMD_START_WORK + elements * GPSIMD_WORK)
    nisa.tensor_copy(dst=dst, src=src, engine=engine)


def copy_by_vector(dst, src, ledger):
    """Copy a view inside SBUF by Vector."""
    ledger.vector += START_WORK + size_of(dst.shape[1:]) * copy_work(dst.dtype)
    nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)


def scaled(dst, data, factor, op, other):
    """dst = (data * factor) op other, by Vector; factor: a number, or [P, 1] fp32."""
    nisa.scalar_tensor_tensor(dst=dst, data=data, op0=nl.multiply, operand0=factor, op1=op, operand1=other)


def copy_work(dtype):
    """Work of an element that Vector copies inside SBUF."""
    return VECTOR_WORK_COPY_16BIT if is_16bit(dtype) else VECTOR_WORK_16BIT
