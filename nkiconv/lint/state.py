"""Globals that change: a kernel is compiled once for its arguments, so what it reads or writes elsewhere goes stale."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Context, Problem, last_name, root_of, short
from .kernels import MUTABLE
from .loops import CHANGING
from .project import Definition, Value
from .source import Source

_MAKERS = ("list", "dict", "set", "defaultdict", "OrderedDict", "deque", "Counter")


def check(context: Context) -> Iterator[Problem]:
    """Writes to what is bound at the top of a file, and reads of what functions there rebind."""
    for node in context.unit.code:
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield from _change(context, node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            yield from _change(context, node.func.value)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _is_rebound(context, node.id):
            yield context.problem("NKL110", node, node.id)


def _is_rebound(context: Context, name: str) -> bool:
    return name in context.unit.source.changing and name not in context.hidden


def _change(context: Context, node: ast.expr) -> Iterator[Problem]:
    """A problem if what is changed hangs on a class, a module, or a top-level name that holds something mutable."""
    root = root_of(node)
    if not isinstance(root, ast.Name) or root.id in context.hidden:
        return
    found = context.project.meaning(context.unit.source, root, context.unit.node)
    is_shared = isinstance(found, Source) or (isinstance(found, Definition) and isinstance(found.node, ast.ClassDef))
    if is_shared or (isinstance(found, Value) and any(map(_is_mutable, found.expressions))):
        yield context.problem("NKL110", node, short(node))


def _is_mutable(node: ast.expr) -> bool:
    return last_name(node) in _MAKERS if isinstance(node, ast.Call) else type(node) in MUTABLE
