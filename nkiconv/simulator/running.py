"""Which program runs in this thread. NKI calls find their core here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .program import Program


class _Running(threading.local):
    program: Program | None = None


_state = _Running()


def running() -> Program | None:
    """The program that runs in this thread, if any."""
    return _state.program


def set_running(program: Program | None) -> None:
    """Make `program` the one that NKI calls of this thread belong to."""
    _state.program = program
