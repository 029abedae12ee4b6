"""Constructs of Python that NKI's parser does not compile, each seen at one node of the tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, base_names, comparisons, last_name, short
from .source import FUNCTIONS, Function

_COMPREHENSIONS: dict[type[ast.AST], str] = {
    ast.ListComp: "list comprehension",
    ast.SetComp: "set comprehension",
    ast.DictComp: "dict comprehension",
    ast.GeneratorExp: "generator expression",
}
_PLAIN: dict[type[ast.AST], str] = {
    ast.Lambda: "NKL107",
    ast.NamedExpr: "NKL111",
    ast.Match: "NKL113",
    ast.Raise: "NKL114",
    ast.Delete: "NKL116",
}
_TRIES = (ast.Try, ast.TryStar) if hasattr(ast, "TryStar") else (ast.Try,)  # except* came with Python 3.11
_IDENTITY = {ast.Is: "is", ast.IsNot: "is not"}


def check(context: Context) -> Iterator[Problem]:
    """Problems of single nodes."""
    unit = context.unit
    if isinstance(unit.node, ast.AsyncFunctionDef):
        yield context.problem("NKL106", unit.node, "async def")
    for node in unit.code:
        kind = type(node)
        if kind in _PLAIN:
            yield context.problem(_PLAIN[kind], node)
        elif kind in _COMPREHENSIONS:
            yield context.problem("NKL108", node, _COMPREHENSIONS[kind])
        elif isinstance(node, _TRIES):
            yield context.problem("NKL103", node)
        elif isinstance(node, ast.With):
            yield from _with(context, node)
        elif isinstance(node, (ast.Yield, ast.YieldFrom)):
            yield context.problem("NKL105", node, "yield" if isinstance(node, ast.Yield) else "yield from")
        elif isinstance(node, (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)):
            words = {ast.AsyncFor: "async for", ast.AsyncWith: "async with", ast.Await: "await"}
            yield context.problem("NKL106", node, words.get(kind, "async def"))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield context.problem("NKL109" if isinstance(node, ast.Global) else "NKL127", node, short(node))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield context.problem("NKL122", node, short(node))
        elif isinstance(node, ast.Starred):
            yield context.problem("NKL112", node, short(node))
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg is None:
                    yield context.problem("NKL112", keyword, "**" + short(keyword.value))
        elif isinstance(node, (ast.For, ast.While)):
            yield from _loop(context, node)
        elif isinstance(node, ast.Compare):
            yield from _identity(context, node)
        elif isinstance(node, ast.ClassDef):  # one inside a function
            yield from class_bases(context, node)


def _with(context: Context, node: ast.With) -> Iterator[Problem]:
    for item in node.items:
        called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else None
        if called is None or context.external(called).rpartition(".")[2] != "no_reorder":
            yield context.problem("NKL104", node, short(item.context_expr))


def _loop(context: Context, node: ast.For | ast.While) -> Iterator[Problem]:
    if isinstance(node, ast.For) and not isinstance(node.target, ast.Name):
        yield context.problem("NKL117", node.target, short(node.target))
    if node.orelse:
        yield context.problem("NKL125", node)


def _identity(context: Context, node: ast.Compare) -> Iterator[Problem]:
    for operator, left, right in comparisons(node):
        if type(operator) in _IDENTITY:
            of_none = any(isinstance(side, ast.Constant) and side.value is None for side in (left, right))
            words = f"{short(left, 20)} {_IDENTITY[type(operator)]} {short(right, 20)}"
            yield context.problem("NKL102" if of_none else "NKL101", left, words)


def check_decorators(context: Context) -> Iterator[Problem]:
    """Decorators of helpers and methods; nki.jit may stand on a kernel that another kernel calls."""
    for function in functions_of(context):
        for decorator in function.decorator_list:
            if last_name(decorator) not in ("staticmethod", "jit"):
                yield context.problem("NKL126", decorator, short(decorator))


def check_class(context: Context) -> Iterator[Problem]:
    """The bases of a reached class."""
    if isinstance(context.unit.node, ast.ClassDef):
        yield from class_bases(context, context.unit.node)


def class_bases(context: Context, node: ast.ClassDef) -> Iterator[Problem]:
    """A problem unless the class inherits from NKIObject alone, or from Enum alone."""
    if base_names(node) not in (["NKIObject"], ["Enum"]) or node.keywords:
        yield context.problem("NKL118", node, node.name)


def functions_of(context: Context) -> Iterator[Function]:
    """The unit, if it is a function, and the functions inside it."""
    if isinstance(context.unit.node, FUNCTIONS):
        yield context.unit.node
    for node in context.unit.code:
        if isinstance(node, FUNCTIONS):
            yield node
