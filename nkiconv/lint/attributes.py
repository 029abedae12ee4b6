"""Attributes that NKI's parser (0.3 to 0.6) binds in statements of their own, and stores that it does not take.

It makes `jobs[i].kn` a name: `x = jobs[i]` before the statement, and `x.kn` in it. In the header of a block "before"
is inside the block; on the right of `and` and `or` and in a branch of `a if c else b` it is before what guards it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, short

_DISPLAYS = (ast.Tuple, ast.List)


def check(context: Context) -> Iterator[Problem]:
    """Problems of attributes in headers and in guarded places, and of targets of assignments."""
    in_headers = set()
    for node in context.unit.code:
        for keyword, header in _headers(node):
            for attribute in _bound_before(header):
                in_headers.add(attribute)
                yield context.problem("NKL128", attribute, short(attribute), keyword)
    guarded = {one for node in context.unit.code for place in _guarded(node) for one in _bound_before(place)}
    for attribute in guarded - in_headers:
        yield context.problem("NKL129", attribute, short(attribute))
    for node in context.unit.code:
        if isinstance(node, ast.Assign):
            yield from _targets(context, node)
        elif isinstance(node, ast.Attribute):
            yield from _store(context, node)


def _headers(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.If):
        yield "if", node.test
    elif isinstance(node, ast.While):
        yield "while", node.test
    elif isinstance(node, ast.For):
        yield "for", node.iter


def _guarded(node: ast.AST) -> list[ast.expr]:
    """Expressions that are evaluated, or not, by what another one is."""
    if isinstance(node, ast.BoolOp):
        return node.values[1:]
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else []


def _bound_before(node: ast.expr) -> Iterator[ast.Attribute]:
    """Attributes of anything but names and their attributes: of subscripts, calls, sums and so on."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and not isinstance(one.value, (ast.Name, ast.Attribute)):
            yield one


def _targets(context: Context, node: ast.Assign) -> Iterator[Problem]:
    """Tuples with elements that are no names; chains of targets with attributes or subscripts."""
    stores = []
    for target in node.targets:
        if isinstance(target, _DISPLAYS):
            for one in ast.walk(target):
                if isinstance(getattr(one, "ctx", None), ast.Store) and isinstance(one, (ast.Attribute, ast.Subscript)):
                    yield context.problem("NKL130", one, short(one))
        elif not isinstance(target, ast.Name):
            stores.append(target)
    if stores and len(node.targets) > 1:
        yield context.problem("NKL130", stores[0], short(stores[0]))


def _store(context: Context, node: ast.Attribute) -> Iterator[Problem]:
    if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Attribute):
        yield context.problem("NKL131", node, short(node), short(node.value), node.attr)
