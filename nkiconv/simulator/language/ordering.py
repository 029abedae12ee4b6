"""`nl.no_reorder`: instructions that the scheduler leaves in program order."""

from __future__ import annotations

from ..program import Program, current


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
