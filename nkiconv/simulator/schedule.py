"""`kernel.with_schedule(edges)`: dependencies between named instructions, given apart from the kernel.

Edges are pairs (later, earlier) or (later, [earlier, ...]) of instruction names.
"""

from __future__ import annotations

from typing import Any

from .errors import NkiError
from .program import Instruction, Program
from .rules import broken

#: (name of the later instruction, names of the earlier ones)
Edges = tuple[tuple[str, tuple[str, ...]], ...]


def _refuse(detail: str) -> NkiError:
    return broken("NKI174", "with_schedule", detail)


def checked(edges: Any) -> Edges:
    """Edges as tuples of names, or NKI174."""
    found = []
    for edge in edges:
        if not isinstance(edge, (tuple, list)) or len(edge) != 2:
            raise _refuse(f"{edge!r} is not a pair")
        later, earlier = edge
        names = tuple(earlier) if isinstance(earlier, (tuple, list)) else (earlier,)
        if not names or not all(isinstance(name, str) for name in (later, *names)):
            raise _refuse(f"{edge!r} does not hold names")
        found.append((later, names))
    return tuple(found)


def apply(edges: Edges, program: Program) -> None:
    """Add the edges to a program that has run (NKI173, NKI174).

    The compiler may turn instructions around that the simulator keeps in program order: an edge against that order is
    refused, although AWS's compiler might take it.
    """
    named: dict[str, list[Instruction]] = {}
    for instruction in program.instructions if edges else ():
        if instruction.name is not None:
            named.setdefault(instruction.name, []).append(instruction)
    for later, names in edges:
        consumer = _one(later, named)
        for name in names:
            producer = _one(name, named)
            if producer.index >= consumer.index:
                raise _refuse(f"{later!r} does not come after {name!r} in the program")
            consumer.depends_on(producer)


def _one(name: str, named: dict[str, list[Instruction]]) -> Instruction:
    found = named.get(name, [])
    if len(found) != 1:
        raise _refuse(f"{len(found)} instructions are named {name!r}")
    return found[0]
