"""What a kernel asks of its program: which core it is on, and that instructions stay in program order."""

from __future__ import annotations

from typing import Any

from ..program import Program, current
from ..rules import fail


def program_id(axis: int = 0) -> int:
    """Which core this is."""
    if axis != 0:
        fail("NKI026", f"program_id({axis}); a launch grid has one axis")
    return current().core


def num_programs(axes: Any = 0) -> int:
    """How many cores run the kernel."""
    if axes not in (0, None, (0,), [0]):
        fail("NKI026", f"num_programs({axes!r}); a launch grid has one axis")
    return current().num_programs


def program_ndim() -> int:
    """Dimensions of the launch grid: 0 without one."""
    return current().launch.grid_dims


class _InOrder:
    """An open block of one program; contextlib's frames would hide the kernel's line from error messages."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __enter__(self) -> None:
        self._program.in_order += 1

    def __exit__(self, *exception: object) -> None:
        self._program.in_order -= 1
        if not self._program.in_order:
            self._program.last_in_order = None


def no_reorder() -> _InOrder:
    """``with nl.no_reorder():`` each instruction that runs inside waits for the one before it there.

    That holds for instructions of called functions too. Nested blocks are one. Device loops go around a block, not
    inside (NKI171).

    Source: isa no_reorder, scheduling guide.
    """
    return _InOrder(current())
