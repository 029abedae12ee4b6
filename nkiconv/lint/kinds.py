"""Integers compared with floats: up to NKI 0.6 a 2 is no 2.0, so that neither == nor <= finds them equal.

A name counts as one or the other only if all that its function gives it is, or its annotation says so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, comparisons, short
from .names import assignments, is_builtin
from .reach import parameters
from .syntax import functions_of

#: Comparisons whose outcome hangs on whether equal numbers are equal.
_OPERATORS = (ast.Eq, ast.NotEq, ast.LtE, ast.Gt)
#: What calls of builtins are; that of a range stands for the variable of its loop.
_CALLS = {"len": "int", "int": "int", "float": "float", "range": "int"}

Kinds = dict[str, str]


def check(context: Context) -> Iterator[Problem]:
    """Comparisons of what is an integer with what is a float."""
    compared = [node for node in context.unit.code if isinstance(node, ast.Compare)]
    if not compared:
        return
    kinds = _kinds(context)
    for node in compared:
        for operator, left, right in comparisons(node):
            if isinstance(operator, _OPERATORS):
                found = {kind_of(context, left, kinds), kind_of(context, right, kinds)}
                if found == {"int", "float"}:
                    yield context.problem("NKL133", node, short(node))
                    break


def kind_of(context: Context, node: ast.expr, kinds: Kinds) -> str:
    """Which of the two an expression is: "int", "float", or "" for what cannot be told."""
    if isinstance(node, ast.Constant):
        return type(node.value).__name__ if type(node.value) in (int, float) else ""
    if isinstance(node, ast.Name):
        return kinds.get(node.id, "")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return kind_of(context, node.operand, kinds)
    if isinstance(node, ast.BinOp):
        return _of_operation(context, node, kinds)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and is_builtin(context, node.func, *_CALLS):
        return _CALLS[node.func.id]
    return ""


def _of_operation(context: Context, node: ast.BinOp, kinds: Kinds) -> str:
    found = {kind_of(context, node.left, kinds), kind_of(context, node.right, kinds)}
    if "" in found or not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)):
        return ""
    return "float" if "float" in found or isinstance(node.op, ast.Div) else "int"


def _kinds(context: Context) -> Kinds:
    """name -> kind, of names whose kind is the same wherever the function binds them."""
    given: dict[str, set[str]] = {}
    for function in functions_of(context):
        for parameter in parameters(function):
            given.setdefault(parameter.arg, set()).add(_of_annotation(parameter.annotation))
    values = list(assignments(context))
    names = {name for name, _ in values} | set(given)
    found: Kinds = {}
    while True:
        seen = {name: set(given.get(name, ())) for name in names}
        for name, value in values:
            seen[name].add(kind_of(context, value, found) if value is not None else "")
        grown = {name: kinds.pop() for name, kinds in seen.items() if len(kinds) == 1 and "" not in kinds}
        if grown == found:
            return found
        found = grown


def _of_annotation(node: ast.expr | None) -> str:
    return node.id if isinstance(node, ast.Name) and node.id in ("int", "float") else ""
