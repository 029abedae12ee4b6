"""Loops: those that the compiler unrolls, and those that run on the device, with registers.

The simulator runs the body of a device loop once for each iteration, and records it as often; without data, of a long
loop only its first iterations and its last, which stands for the others (`iterations.Repeat`). Each iteration ends with
a compare and branch on every engine that ran an instruction in it: the documents say that sequencers do that, but not
its cost. Hardware has one copy of the body, so every iteration must do the same (`iterations`), and no dependency may
join two of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import hardware
from ..isa import NkiScalar, VirtualRegister
from ..iterations import DeviceLoop, open_loop
from ..objects import DeviceInteger, DynamicSlice, as_int
from ..program import Instruction, Program, current
from ..rules import fail


def affine_range(start: Any, stop: Any = None, step: int = 1) -> Iterable[int]:
    """`range`; all loops are unrolled."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = static_range = affine_range


def ds(start: Any, size: int) -> DynamicSlice:
    """An index that takes elements start .. start + size - 1."""
    return DynamicSlice(start, size)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """A loop on the device: registers start, start + step, ... below stop, which the body may not write.

    Deprecated in NKI 0.6 and gone in 0.7, for fori_loop: it needs a launch that is told to be for 0.6.

    Args:
        start, stop: ints or registers with a value; one alone is the stop. When only traced, a register that was
            loaded from a tensor has none. step: a positive int.
    Raises NkiError (NKI170, NKI171, NKI172 for a write, NKI184). Source: isa dynamic_range, dynamic loops guide, mig
    0.7.
    """
    if current().launch.traces:
        detail = "nl.dynamic_range is gone in NKI 0.7; write its body as a function and call nl.fori_loop"
        fail("NKI184", f"{detail}(start, stop, body, step)")
    warnings.warn("nl.dynamic_range is deprecated, use nl.fori_loop", DeprecationWarning, stacklevel=2)
    lower, upper = (0, start) if stop is None else (start, stop)
    values, counted = _values(lower, upper, step), on_device(lower, upper)
    return _iterations(open_loop(_opened()), values, counted, lambda value: VirtualRegister(value, frozen=True))


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """A loop on the device: body_fun(i) for i = lower, lower + step, ... below upper.

    i is an NkiScalar, but a register if a bound is one, and in NKI 0.6. The body gets a new one each time: changes to
    it have no effect outside.

    Args: lower, upper: ints, int32 NkiScalars or registers, with a value. body_fun: returns None. step: a positive int.
    Raises NkiError (NKI170, NKI171). Source: isa fori_loop of NKI 0.7.
    """
    if not callable(body_fun):
        fail("NKI170", f"body_fun={body_fun!r} cannot be called")
    values, counted = _values(lower, upper, step), on_device(lower, upper)
    registers = isinstance(lower, VirtualRegister) or isinstance(upper, VirtualRegister) or not current().launch.traces
    for i in _iterations(open_loop(_opened()), values, counted, VirtualRegister if registers else _scalar):
        returned = body_fun(i)
        if returned is not None and not isinstance(returned, Instruction):  # a lambda returns its last call's result
            fail("NKI170", f"body_fun returned {returned!r:.80}, must return None; keep state in SBUF or HBM")


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """A loop on the device: body_fun(r) while the register r is not 0; r is init, then the body's result.

    The body gets a copy of r. It must return a register; documents give no NkiScalar here.

    Raises NkiError (NKI170, NKI171). Source: isa while_loop.
    """
    loop = open_loop(_opened())
    value = _register_value("init", init)
    while value:
        loop.begin()
        given = VirtualRegister(value)
        returned = body_fun(given)
        value = _register_value("what body_fun returned", returned)
        if value and returned.set_by is None:
            fail("NKI170", f"what body_fun returned is {value}, which no instruction of the body sets: it never ends")
        loop.end()
    loop.close()


def _values(lower: Any, upper: Any, step: Any) -> range:
    if type(step) is not int or step < 1:
        fail("NKI170", f"step={step!r} is not a positive compile-time int")
    return range(_bound("lower", lower), _bound("upper", upper), step)


def _bound(name: str, value: Any) -> int:
    if not isinstance(value, DeviceInteger):
        bound = as_int(value, name, "NKI170")
        if not -(2**31) <= bound < 2**31:
            fail("NKI170", f"{name}={bound} does not fit 32 bits")
        return bound
    if value.dtype != "int32":
        fail("NKI170", f"{name} is an NkiScalar of {value.dtype}: a loop compares 32 bits")
    return _known(name, value)


def _register_value(name: str, register: Any) -> int:
    if not isinstance(register, VirtualRegister):
        fail("NKI170", f"{name} is {register!r}, not a register")
    return _known(name, register)


def _known(name: str, bound: DeviceInteger) -> int:
    if bound.value is None:
        fail("NKI170", f"{name} is {bound.kind} without a value; one loaded from a tensor has none when only traced")
    return bound.value


def _scalar(value: int) -> NkiScalar:
    return NkiScalar(value, "int32")


def _opened() -> Program:
    program = current()
    if program.in_order:
        fail("NKI171", "a dynamic loop inside nl.no_reorder")
    return program


def on_device(lower: Any, upper: Any) -> bool:
    """Whether a bound is a register or a scalar, which cores may have different values in."""
    return isinstance(lower, DeviceInteger) or isinstance(upper, DeviceInteger)


def _iterations(loop: DeviceLoop, values: range, counted: bool, make: Callable[[int], Any]) -> Iterator[Any]:
    if counted:
        loop.program.counted.append((loop.location, len(values)))
        for outer in loop.program.loops:
            outer.varies = True
    place = 0
    while place < len(values):
        if place == 1 and loop.program.numeric:
            _require_room(loop, len(values))
        loop.begin()
        try:
            yield make(values[place])
        except GeneratorExit:  # by a break or return, or an error in the body
            loop.program.left = loop.location
            raise
        loop.end()
        left = len(values) - 1 - place
        loop.skipped = left - 1 if left > 1 and loop.is_known() else loop.skipped
        place = len(values) - 1 if left > 1 and loop.skipped else place + 1
    loop.close()


def _require_room(loop: DeviceLoop, count: int) -> None:
    """NKI034 after the first of `count` iterations, which are all recorded, where the others would reach its limit."""
    recorded = len(loop.program.instructions)
    body = max(1, recorded - loop.began)
    if recorded + (count - 1) * body >= hardware.INSTRUCTIONS_MAX:
        fail(
            "NKI034",
            f"a loop of {count:,} iterations of {body:,} instructions: the simulator records each of them, at most "
            f"{hardware.INSTRUCTIONS_MAX:,} on a core",
        )
