"""Slices of lists and tuples that may end past the end: Python cuts them off, NKI's parser (0.3 to 0.6) refuses them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, short
from .names import assignments, is_builtin

Values = dict[str, list[ast.expr | None]]


def check(context: Context) -> Iterator[Problem]:
    """Slices of what is seen to be a list or tuple, with an end that nothing seen here bounds."""
    slices = [node for node in context.unit.code if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)]
    if not slices:
        return
    values: Values = {}
    for name, value in assignments(context):
        values.setdefault(name, []).append(value)
    sequences = _sequences(context, values)
    for node in slices:
        assert isinstance(node.slice, ast.Slice)
        end = node.slice.upper
        if isinstance(node.value, ast.Name) and node.value.id in sequences and isinstance(node.ctx, ast.Load):
            if end is not None and not _is_bounded(context, end, values, frozenset()):
                yield context.problem("NKL132", node, short(node), short(end), node.value.id)


def _sequences(context: Context, values: Values) -> set[str]:
    """Names whose length is asked, that are appended to, or that are only ever bound to lists and tuples."""
    found = {name for name, given in values.items() if all(_is_sequence(context, value) for value in given)}
    for node in context.unit.code:
        if not isinstance(node, ast.Call):
            continue
        if is_builtin(context, node.func, "len") and node.args and isinstance(node.args[0], ast.Name):
            found.add(node.args[0].id)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend"):
            if isinstance(node.func.value, ast.Name):
                found.add(node.func.value.id)
    return found


def _is_sequence(context: Context, node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_sequence(context, node.left) or _is_sequence(context, node.right)
    if isinstance(node, ast.Call):
        return is_builtin(context, node.func, "list", "tuple")
    return isinstance(node, (ast.List, ast.Tuple))


def _is_bounded(context: Context, end: ast.expr, values: Values, seen: frozenset[str]) -> bool:
    """Whether the end is a number, hangs on a length or the smaller of two numbers, or is a name of such a value."""
    if isinstance(end, ast.Constant) or (isinstance(end, ast.UnaryOp) and isinstance(end.operand, ast.Constant)):
        return True
    for node in ast.walk(end):
        if isinstance(node, ast.Call) and is_builtin(context, node.func, "len", "min"):
            return True
        if isinstance(node, ast.Name) and node.id not in seen:
            given = values.get(node.id, [])
            deeper = seen | {node.id}
            if any(value is not None and _is_bounded(context, value, values, deeper) for value in given):
                return not all(isinstance(value, ast.Constant) for value in given)
    return False
