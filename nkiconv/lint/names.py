"""What a function gives its names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context

DYNAMIC_RANGE = "nki.language.dynamic_range"


def assignments(context: Context) -> Iterator[tuple[str, ast.expr | None]]:
    """(name, value) of every assignment to a name, augmented ones and targets in tuples too.

    The value is None where it is not one expression; for the variable of a loop over `range` or `nl.dynamic_range`,
    it is the call of that.
    """
    seen: set[ast.AST] = set()
    for node in context.unit.code:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    seen.add(target)
                    yield target.id, node.value
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            seen.add(node.target)
            yield node.target.id, node.iter if _is_range(context, node.iter) else None
    for node in context.unit.code:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in seen:
            yield node.id, None


def values_of(context: Context) -> dict[str, list[ast.expr | None]]:
    """name -> the values of its assignments, as `assignments` has them."""
    found: dict[str, list[ast.expr | None]] = {}
    for name, value in assignments(context):
        found.setdefault(name, []).append(value)
    return found


def is_builtin(context: Context, node: ast.expr, *names: str) -> bool:
    """Whether the expression is one of these names, and neither the file nor the function binds it."""
    hidden = context.unit.source.bindings.keys() | context.hidden
    return isinstance(node, ast.Name) and node.id in names and node.id not in hidden


def _is_range(context: Context, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return is_builtin(context, node.func, "range") or context.external(node.func) == DYNAMIC_RANGE
