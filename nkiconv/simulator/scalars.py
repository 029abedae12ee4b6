"""`nki.isa.NkiScalar`: one integer that the device computes, which NKI 0.7 has instead of registers.

Documented (nki.isa.NkiScalar, nki.isa.scalar_load, NKI Scalar Values; SDK 2.33): it is int32 or int64 as loaded, and
never widened; + - * take ints and scalars of its dtype, and wrap; it is the scalar_offset of an access pattern, on chip
as int32 alone; as int32 it bounds nl.fori_loop. AWS traces comparisons of int32, whose result no call takes: here they
are refused. The cost of arithmetic is undocumented: each operation is recorded, and timed as a register_move.
"""

from __future__ import annotations

from typing import Any

from .dtypes import DTYPES
from .objects import DeviceInteger
from .program import Instruction, current
from .rules import fail

#: Dtypes of scalars.
SCALAR_DTYPES = ("int32", "int64")


class NkiScalar(DeviceInteger):
    """An int32 or int64 on the device; each operation gives a new one."""

    __slots__ = ("dtype",)
    kind = "an NkiScalar"
    advice = "it has + - *, and nothing takes the result of a comparison"

    def __init__(self, value: int | None, dtype: str) -> None:
        super().__init__(value)
        self.dtype = dtype

    def _computed(self, op: str, one: Any, other: Any) -> NkiScalar:
        """`one op other`, of which one is this scalar and the other an int or a scalar of its dtype (NKI161)."""
        bits = 8 * DTYPES[self.dtype].itemsize
        program = current()
        values: list[int | None] = []
        earlier: list[Instruction] = []
        for operand in (one, other):
            if isinstance(operand, NkiScalar) and operand.dtype == self.dtype:
                values.append(operand.value)
                earlier += [] if operand.set_by is None else [operand.set_by]
            elif type(operand) is int and -(2 ** (bits - 1)) <= operand < 2 ** (bits - 1):
                values.append(operand)
            else:
                what = f"an NkiScalar of {operand.dtype}" if isinstance(operand, NkiScalar) else repr(operand)
                fail("NKI161", f"{op} of an {self.dtype} scalar and {what}")
        found = NkiScalar(None, self.dtype)
        first, second = values
        if first is not None and second is not None:
            exact = {"add": first + second, "subtract": first - second, "multiply": first * second}[op]
            found.value = (exact + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        found.set_by = program.record("sync", "scalar_arithmetic", (), (), {"op": op})
        found.set_by.after.extend(earlier)
        return found

    def __add__(self, other: Any) -> NkiScalar:
        return self._computed("add", self, other)

    def __radd__(self, other: Any) -> NkiScalar:
        return self._computed("add", other, self)

    def __sub__(self, other: Any) -> NkiScalar:
        return self._computed("subtract", self, other)

    def __rsub__(self, other: Any) -> NkiScalar:
        return self._computed("subtract", other, self)

    def __mul__(self, other: Any) -> NkiScalar:
        return self._computed("multiply", self, other)

    def __rmul__(self, other: Any) -> NkiScalar:
        return self._computed("multiply", other, self)

    def __neg__(self) -> NkiScalar:
        return self._computed("subtract", 0, self)
