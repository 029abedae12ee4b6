"""One bare name for two things in a kernel's reach: NKI's parser (0.3 to 0.6) knows what it reads by that name alone.

What two modules call by one name, it keeps once, whichever module it meets first. Equal constants are no clash, nor is
what is taken from its module (`bands.load`), which has its full name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Problem
from .project import Definition, Value
from .reach import Reached

Thing = Definition | Value


def check(reached: Reached) -> Iterator[Problem]:
    """Names that mean one thing here and another there, at all places but the first, each place once."""
    told: set[ast.AST] = set()
    for kernel in reached.units:
        if not kernel.is_kernel:
            continue
        things: dict[str, list[Thing]] = {}
        for unit in reached.of_kernel(kernel):
            for name, thing in unit.names.items():
                things.setdefault(name, []).append(thing)
        for name in sorted(things):
            first, *others = sorted(things[name], key=_place)
            for other in others:
                node = _node(other)
                if node not in told and _differ(first, other):
                    told.add(node)
                    both_values = isinstance(first, Value) and isinstance(other, Value)
                    rule = "NKL134" if both_values else "NKL135"
                    yield Problem(other.source, rule, node, (name, _where(first)), kernel.node.name)


def _differ(one: Thing, other: Thing) -> bool:
    """Whether they are two things: another definition, or a constant of another value."""
    if isinstance(one, Value) and isinstance(other, Value):
        return _text(one) != _text(other)
    return _node(one) is not _node(other)


def _node(thing: Thing) -> ast.AST:
    return thing.node if isinstance(thing, Definition) else thing.expressions[0]


def _place(thing: Thing) -> tuple[str, int]:
    return thing.source.label, thing.source.place(_node(thing))[0]


def _where(thing: Thing) -> str:
    return "{}:{}".format(*_place(thing))


def _text(value: Value) -> list[str]:
    return [ast.unparse(one) for one in value.expressions]
