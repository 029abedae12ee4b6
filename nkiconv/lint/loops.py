"""Bodies of loops on the device: compiled once, so Python changes nothing in them, and nothing leaves them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .found import Context, Problem, root_of, short
from .names import DYNAMIC_RANGE
from .reach import compiled, own_code, parameters
from .source import FUNCTIONS

#: Methods that change a list, dict or set.
CHANGING = (
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault",
    "sort", "update",
)  # fmt: skip


def check(context: Context) -> Iterator[Problem]:
    """Problems of what the bodies of fori_loop, while_loop and dynamic_range do in one unit."""
    own = [context.unit.node, *context.unit.code]
    for node in own:
        if isinstance(node, FUNCTIONS) and node in context.bodies:
            inside = list(own_code(node))
            yield from _changes(context, inside, {one.arg for one in parameters(node)})
        elif isinstance(node, ast.For) and _is_dynamic(context, node.iter):
            inside = [one for statement in node.body for one in compiled(statement)]
            yield from _changes(context, inside, _stored([node.target]))
            yield from _counts(context, inside)
            yield from _leaves(context, node.body)


def _is_dynamic(context: Context, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and context.external(node.func) == DYNAMIC_RANGE


def _stored(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that assignments among these nodes bind."""
    return {
        one.id
        for node in nodes
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }


def _changes(context: Context, inside: list[ast.AST], known: set[str]) -> Iterator[Problem]:
    """Elements, fields and names of outside that are set, and containers of outside that are changed."""
    mine = known | _stored([node for node in inside if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For))])
    for node in inside:
        if isinstance(node, (ast.Nonlocal, ast.Global)):
            yield context.problem("NKL308", node, ast.unparse(node))
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, (ast.Subscript, ast.Attribute)) and _is_outside(target.value, mine):
                    yield context.problem("NKL308", node, short(node))
        elif isinstance(node, ast.Call) and _changes_a_container(context, node.func, mine):
            yield context.problem("NKL308", node, short(node))


def _changes_a_container(context: Context, called: ast.expr, mine: set[str]) -> bool:
    if not isinstance(called, ast.Attribute) or called.attr not in CHANGING or context.external(called):
        return False
    return _is_outside(called.value, mine)


def _counts(context: Context, inside: list[ast.AST]) -> Iterator[Problem]:
    """Names that a dynamic_range loop adds to, and nothing in it sets: `n += 1`."""
    fresh = _stored([node for node in inside if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For))])
    for node in inside:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in fresh:
            yield context.problem("NKL308", node, short(node))


def _is_outside(node: ast.expr, mine: set[str]) -> bool:
    """Whether an object is one that the body did not make."""
    root = root_of(node)
    return isinstance(root, ast.Name) and root.id not in mine


def _leaves(context: Context, statements: Sequence[ast.stmt]) -> Iterator[Problem]:
    """Each break of this loop, and each return."""
    for statement in statements:
        if isinstance(statement, (ast.Break, ast.Return)):
            yield context.problem("NKL309", statement, short(statement))
        elif isinstance(statement, (ast.For, ast.While)):
            returns = [one for one in compiled(statement) if isinstance(one, ast.Return)]
            yield from (context.problem("NKL309", one, short(one)) for one in returns)
        elif not isinstance(statement, FUNCTIONS):
            for field in ("body", "orelse", "finalbody"):
                yield from _leaves(context, getattr(statement, field, []))
