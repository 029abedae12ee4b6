"""Constants of one name and several values: NKI's parser (0.3 to 0.6) keeps one, whichever module it meets first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Problem
from .project import Value
from .reach import Reached


def check(reached: Reached) -> Iterator[Problem]:
    """Top-level names that modules of one kernel's reach give different values, at all places but the first."""
    for kernel in reached.units:
        if not kernel.is_kernel:
            continue
        first: dict[str, Value] = {}
        for unit in reached.of_kernel(kernel):
            for name, value in sorted(unit.constants.items()):
                other = first.setdefault(name, value)
                if _text(value) != _text(other):
                    node, source = value.expressions[0], value.source
                    yield Problem(source, "NKL134", node, (name, other.source.label), kernel.node.name)


def _text(value: Value) -> list[str]:
    return [ast.unparse(one) for one in value.expressions]
