"""Values that NKI does not have: sets, numbers wider than 32 bits, keys that are not strings, ordered enumerations."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from .found import Context, Problem, base_names, short

_BUILTINS = frozenset(dir(builtins))
#: Builtins that documents of NKI or kernels of nki-library call.
_TYPES = {"bool", "dict", "float", "int", "list", "slice", "str", "tuple"}
_KNOWN = _TYPES | {"divmod", "hash", "isinstance", "len", "max", "min", "print", "range"}
#: The largest integer that 32 bits hold; one without a sign reaches it.
_INT_MAX = 2**32 - 1


def check(context: Context) -> Iterator[Problem]:
    """Problems of literals, displays and operators."""
    for node in context.unit.code:
        if isinstance(node, ast.Set):
            yield context.problem("NKL115", node)
        elif isinstance(node, ast.Constant):
            yield from _constant(context, node)
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, (ast.Constant, ast.Tuple)) and not isinstance(getattr(key, "value", None), str):
                    yield context.problem("NKL119", key, short(key))
                elif key is None:
                    yield context.problem("NKL112", node, "** in a dict")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from _builtin(context, node, node.func.id)
        elif isinstance(node, (ast.BinOp, ast.Compare)):
            yield from _enumeration(context, node)


def _constant(context: Context, node: ast.Constant) -> Iterator[Problem]:
    value = node.value
    if isinstance(value, (bytes, complex)):
        yield context.problem("NKL120", node, type(value).__name__)
    elif isinstance(value, int) and value > _INT_MAX:
        yield context.problem("NKL120", node, f"{value} (more than 32 bits)")


def _builtin(context: Context, node: ast.Call, name: str) -> Iterator[Problem]:
    if name in context.unit.source.bindings or name in context.hidden:
        return
    if name in ("set", "frozenset"):
        yield context.problem("NKL115", node)
    elif name in ("min", "max"):
        if len(node.args) != 2:
            yield context.problem("NKL121", node, name)
    elif name in _BUILTINS - _KNOWN:
        yield context.problem("NKL124", node, name)


def _enumeration(context: Context, node: ast.BinOp | ast.Compare) -> Iterator[Problem]:
    if isinstance(node, ast.BinOp):
        sides, fits = [node.left, node.right], False
    else:
        sides = [node.left, *node.comparators]
        fits = all(isinstance(one, (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)) for one in node.ops)
    if not fits and any(_is_member(context, side) for side in sides):
        yield context.problem("NKL123", node, short(node))


def _is_member(context: Context, node: ast.expr) -> bool:
    owner = context.class_of(node.value) if isinstance(node, ast.Attribute) else None
    return owner is not None and base_names(owner) == ["Enum"]
