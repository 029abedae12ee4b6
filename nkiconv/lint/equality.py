"""`==` on classes that define none: the fields are compared up to NKI 0.6, which object it is from 0.7 on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, base_names, comparisons, last_name, short
from .reach import parameters
from .source import FUNCTIONS
from .syntax import functions_of


def check(context: Context) -> Iterator[Problem]:
    """Comparisons of a name that the function binds to an instance of such a class."""
    held = _instances(context)
    for node in context.unit.code:
        if not isinstance(node, ast.Compare):
            continue
        for operator, left, right in comparisons(node):
            if isinstance(operator, (ast.Eq, ast.NotEq)) and not _is_constant(left) and not _is_constant(right):
                names = [held[side.id] for side in (left, right) if isinstance(side, ast.Name) and side.id in held]
                if names:
                    yield context.problem("NKL307", node, short(node), names[0])


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _instances(context: Context) -> dict[str, str]:
    """name -> class, of names that are made by calling such a class, or annotated with it."""
    found: dict[str, str] = {}
    for function in functions_of(context):
        for parameter in parameters(function):
            if parameter.annotation is not None:
                _note(context, parameter.arg, parameter.annotation, found)
    for node in context.unit.code:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    _note(context, target.id, node.value.func, found)
    return found


def _note(context: Context, name: str, node: ast.expr, found: dict[str, str]) -> None:
    meaning = context.class_of(node)
    if meaning is not None and not _has_equality(meaning):
        found[name] = meaning.name


def _has_equality(node: ast.ClassDef) -> bool:
    if base_names(node) != ["NKIObject"]:
        return True  # an Enum, or a class that another rule refuses
    if any(isinstance(statement, FUNCTIONS) and statement.name == "__eq__" for statement in node.body):
        return True
    for decorator in node.decorator_list:
        if last_name(decorator) == "dataclass":
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            return not any(one.arg == "eq" and short(one.value) == "False" for one in keywords)
    return False
