"""Slices of lists and tuples that may go too far: Python cuts them off, NKI's parser refuses them (0.3 to 0.6)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, short
from .names import is_builtin, values_of

Values = dict[str, list[ast.expr | None]]


def check(context: Context) -> Iterator[Problem]:
    """Slices of what is seen to be a list or tuple, with an end that nothing seen here bounds."""
    slices = [node for node in context.unit.code if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)]
    slices = [node for node in slices if isinstance(node.slice, ast.Slice) and node.slice.upper is not None]
    if not slices:
        return
    values = values_of(context)
    sequences = _sequences(context, values)
    for node in slices:
        assert isinstance(node.slice, ast.Slice)
        end, name = node.slice.upper, ast.unparse(node.value)
        assert end is not None
        if name in sequences and not _is_bounded(context, end, values, frozenset()):
            yield context.problem("NKL132", node, short(node), short(end), name)


def _sequences(context: Context, values: Values) -> set[str]:
    """Names, and attributes of names, whose length is asked, that grow, or that are only ever bound to sequences."""
    found = {name for name, given in values.items() if all(_is_sequence(context, value) for value in given)}
    for node in context.unit.code:
        if not isinstance(node, ast.Call):
            continue
        if is_builtin(context, node.func, "len"):
            found.update(ast.unparse(value) for value in node.args if _is_chain(value))
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend"):
            found.add(ast.unparse(node.func.value))
    return found


def _is_chain(node: ast.expr) -> bool:
    """Whether it is a name, or attributes of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _is_sequence(context: Context, node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_sequence(context, node.left) or _is_sequence(context, node.right)
    if isinstance(node, ast.Call):
        return is_builtin(context, node.func, "list", "tuple")
    return isinstance(node, (ast.List, ast.Tuple))


def _is_bounded(context: Context, end: ast.expr, values: Values, seen: frozenset[str]) -> bool:
    """Whether the end is a number, hangs on a length or the smaller of two numbers, or on a name of such a value.

    The variable of a loop over `range(len(...))` bounds itself and the next place, no sum of it and anything else.
    """
    if _is_number(end):
        return True
    next_to = end.left if isinstance(end, ast.BinOp) and ast.unparse(end.right) == "1" else end
    for node in ast.walk(end):
        if isinstance(node, ast.Call) and is_builtin(context, node.func, "len", "min"):
            return True
        if isinstance(node, ast.Name) and node.id not in seen:
            given = values.get(node.id, [])
            if node is end and given and all(map(_is_number, given)):
                return True
            for value in given:
                fits = node is next_to or not _is_range(context, value)
                if fits and _is_deeper(context, value, values, seen | {node.id}):
                    return True
    return False


def _is_deeper(context: Context, value: ast.expr | None, values: Values, seen: frozenset[str]) -> bool:
    return value is not None and not _is_number(value) and _is_bounded(context, value, values, seen)


def _is_number(node: ast.expr | None) -> bool:
    """Whether it is written as a number, or as one of two."""
    if isinstance(node, ast.IfExp):
        return _is_number(node.body) and _is_number(node.orelse)
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _is_range(context: Context, value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and is_builtin(context, value.func, "range")
