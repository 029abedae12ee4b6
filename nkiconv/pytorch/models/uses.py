"""How the methods of a module's class use a child: whether they call it, or only read its tensors and convolve by it.

Read from the class's source, since a model is converted without being run.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

#: Attributes of a child that run it.
_RUN = ("forward", "__call__", "_conv_forward")
#: Methods that make a child and give it its values.
_MAKE = ("__init__", "_init_weights", "reset_parameters", "extra_repr")


def reads_only(parent: torch.nn.Module, child: str) -> bool:
    """Whether the class of `parent` reads attributes of `self.child` and does nothing else with it.

    False also where its source says nothing of the child, or cannot be had.
    """
    kind: Any = type(parent)
    return _uses(kind).get(child, True) is False


@functools.cache
def _uses(kind: type) -> dict[str, bool]:
    """The attributes of self that a class's methods use: whether for more than attributes of theirs."""
    found: dict[str, bool] = {}
    for base in kind.__mro__:
        if base is torch.nn.Module:
            break
        for name, more in _uses_in_class(base):
            found[name] = found.get(name, False) or more
    return found


def _uses_in_class(kind: type) -> Iterator[tuple[str, bool]]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):  # written in a console, or not in Python
        return
    for method in ast.walk(tree):
        if isinstance(method, ast.FunctionDef) and method.args.args:
            yield from _uses_in_method(method, method.args.args[0].arg)


def _uses_in_method(method: ast.FunctionDef, own: str) -> Iterator[tuple[str, bool]]:
    inner = {id(node.value): node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
    for node in ast.walk(method):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own):
            continue
        attribute = inner.get(id(node))
        if method.name not in _MAKE:
            yield node.attr, attribute is None or attribute in _RUN
        elif attribute is None and isinstance(node.ctx, ast.Load):  # given to something that may call it
            yield node.attr, True
