"""Which children a module's forward only ever calls, read from its source, where torch.fx cannot trace it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

#: Modules that hold others; their elements may be called one by one.
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


def called_whole(module: torch.nn.Module) -> Iterator[str]:
    """Names of the children, or of containers' elements, that forward and its methods only call. Empty if there is no
    source, or if the source passes the module itself on.
    """
    try:
        methods = [*_methods(module)]
    except _UnknownError:
        return
    uses: dict[str, set[str]] = {}
    for method in methods:
        for name, use in method.uses(module):
            uses.setdefault(name, set()).add(use)
    for name, child in module.named_children():
        ways = uses.get(name, set())
        if ways <= {"called"}:
            yield name
        elif ways <= {"called", "each"} and isinstance(child, _CONTAINERS):
            yield from (f"{name}.{element}" for element, _ in child.named_children())


#: Attributes through which a module's children can be had.
_PARTS = ("_modules", "_parameters", "_buffers")


class _UnknownError(Exception):
    """The source of forward cannot be read."""


def _methods(module: torch.nn.Module) -> Iterator[_Method]:
    """forward, and the methods of the module that it calls."""
    if "forward" in vars(module):
        raise _UnknownError
    seen, wanted = set[str](), ["forward"]
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        method = _Method(getattr(type(module), name))
        yield method
        for attribute in method.attributes:
            value = inspect.getattr_static(type(module), attribute, None)
            of_torch = hasattr(torch.nn.Module, attribute) and attribute != "training"
            if of_torch or attribute in vars(module) or attribute in _PARTS:
                raise _UnknownError
            if inspect.isfunction(value):
                wanted.append(attribute)
            elif hasattr(value, "__get__") and not isinstance(value, staticmethod):
                raise _UnknownError  # a property, which may do anything


class _Method:
    """The source of one method."""

    def __init__(self, method: Any) -> None:
        try:
            source = textwrap.dedent(inspect.getsource(inspect.unwrap(method)))
            tree: Any = ast.parse(source).body[0]
            self.tree: ast.AST = tree
            self.own = tree.args.args[0].arg
        except (OSError, TypeError, SyntaxError, AttributeError, IndexError) as error:
            raise _UnknownError from error
        self.above = {id(child): node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        names = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name)]
        self.reads: list[Any] = [self.above[id(node)] for node in names if node.id == self.own]
        if any(node.id in ("super", "locals", "vars") for node in names):
            raise _UnknownError
        if not all(isinstance(node, ast.Attribute) for node in self.reads):
            raise _UnknownError  # the module itself goes elsewhere
        self.attributes = {node.attr for node in self.reads}

    def uses(self, module: torch.nn.Module) -> Iterator[tuple[str, str]]:
        """(child, how it is used) of each use: "called", "each" of its elements called, or "read"."""
        for node in self.reads:
            if node.attr in module._modules:
                yield node.attr, self._use(node)

    def _use(self, node: ast.AST) -> str:
        above = self.above[id(node)]
        if isinstance(above, ast.Call) and above.func is node:
            return "called"
        if isinstance(above, ast.Compare) and all(isinstance(one, (ast.Is, ast.IsNot)) for one in above.ops):
            return "called"
        if isinstance(above, ast.If) and above.test is node:
            return "called"
        if isinstance(above, ast.Subscript) and not isinstance(above.slice, ast.Slice):
            return "each" if self._use(above) == "called" else "read"
        target = self._target(node, above)
        return "each" if target is not None and self._is_called(target) else "read"

    def _target(self, node: ast.AST, above: Any) -> str | None:
        """The name that a loop over a child, alone or in enumerate or zip, gives its elements."""
        at = None
        if isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and not above.keywords:
            at = {"enumerate": 1, "zip": above.args.index(node)}.get(above.func.id) if node in above.args else None
            node, above = above, self.above[id(above)]
            if at is None:
                return None
        if not isinstance(above, (ast.For, ast.comprehension)) or above.iter is not node:
            return None
        target: Any = above.target
        if at is not None:
            target = target.elts[at] if isinstance(target, ast.Tuple) and len(target.elts) > at else None
        return target.id if isinstance(target, ast.Name) else None

    def _is_called(self, name: str) -> bool:
        """Whether all that a method does with a name is to call it."""
        names = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id == name)
        loads = [(node, self.above[id(node)]) for node in names if isinstance(node.ctx, ast.Load)]
        return all(isinstance(above, ast.Call) and above.func is node for node, above in loads)
