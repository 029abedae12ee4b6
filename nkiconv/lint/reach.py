"""Which functions and classes kernels reach: what NKI compiles, and so what the rules judge.

From each kernel (`@nki.jit`, or `nki.jit(function)`) on, every name that the code mentions is followed to its
definition, across files: functions can be passed about, so a mention counts as much as a call. A method counts where
some reached code takes an attribute of its name and its class is reached too. What annotations mention is followed to
classes only, for those arrive as arguments.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from .project import Definition, Project, Value
from .source import FUNCTIONS, Function, Source


@dataclass(eq=False)
class Unit:
    """One reached function or class."""

    source: Source
    node: Function | ast.ClassDef  # the class without its methods
    kernel: str  # the name of the kernel that reached it first
    is_kernel: bool = False
    is_called: bool = False  # whether other reached code mentions it
    #: the functions and classes that it mentions, and a class's methods that are reached
    uses: set[Function | ast.ClassDef] = field(default_factory=set)
    #: what it mentions by a bare name, without the module's before it: name -> function, class or constant
    names: dict[str, Definition | Value] = field(default_factory=dict)

    @cached_property
    def bound(self) -> frozenset[str]:
        """Names that the function binds, which hide the module's; none for a class."""
        return frozenset(local_names(self.node)) if isinstance(self.node, FUNCTIONS) else frozenset()

    @cached_property
    def code(self) -> list[ast.AST]:
        """Every node that is compiled: bodies and bases, without annotations, decorators and (of a class) methods."""
        if isinstance(self.node, ast.ClassDef):
            parts = [statement for statement in self.node.body if not isinstance(statement, FUNCTIONS)]
            return [node for part in (*self.node.bases, *self.node.keywords, *parts) for node in compiled(part)]
        return [node for part in (*self.node.body, *defaults(self.node)) for node in compiled(part)]


def compiled(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, in no order that matters, without annotations and decorators."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                left += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST)]


def own_code(function: Function) -> list[ast.AST]:
    """Every node of a function's body that is not in a function inside it."""
    found = [node for statement in function.body for node in compiled(statement)]
    inner = {below for node in found if isinstance(node, FUNCTIONS) for below in compiled(node)}
    return [node for node in found if node not in inner]


def defaults(function: Function) -> list[ast.expr]:
    """The default values of a function's parameters."""
    return [*function.args.defaults, *(one for one in function.args.kw_defaults if one is not None)]


def parameters(function: Function) -> list[ast.arg]:
    """All parameters of a function, `*args` and `**kwargs` too."""
    args = function.args
    starred = [one for one in (args.vararg, args.kwarg) if one is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *starred]


def local_names(function: Function) -> set[str]:
    """Names that the function, or one inside it, binds: they hide the module's."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, FUNCTIONS):
            found.update(one.arg for one in parameters(node))
            if node is not function:
                found.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            found.difference_update(node.names)
    return found


def jit_calls(project: Project, source: Source) -> Iterator[tuple[ast.expr, Definition]]:
    """Every use of `nki.jit` in a file on a known function: the decorator or call, and that function."""
    for node in ast.walk(source.tree):
        if isinstance(node, FUNCTIONS):
            for decorator in node.decorator_list:
                if _is_jit(project, source, decorator):
                    yield decorator, Definition(source, node)
        elif isinstance(node, ast.Call) and node.args and _is_jit(project, source, node.func):
            found = project.meaning(source, node.args[0], node)
            if isinstance(found, Definition) and isinstance(found.node, FUNCTIONS):
                yield node, found


def _is_jit(project: Project, source: Source, node: ast.expr) -> bool:
    """Whether it is nki.jit, or that with arguments."""
    name = project.external(source, node.func if isinstance(node, ast.Call) else node)
    return name == "nki.jit" or name.endswith(".nki.jit")


class Reached:
    """What the kernels of a project reach."""

    def __init__(self, project: Project) -> None:
        """Follow every kernel of the project."""
        self.units: list[Unit] = []  # kernels, functions, classes and methods, each once
        self.kernels: set[ast.AST] = set()  # their definitions
        self._project = project
        self._known: dict[ast.AST, Unit] = {}
        self._attributes: set[str] = set()
        self._classes: list[Unit] = []
        self._unread: deque[Unit] = deque()
        for source in project.sources:
            for _, kernel in jit_calls(project, source):
                self.kernels.add(kernel.node)
                self._reach(kernel.source, kernel.node, kernel.node.name).is_kernel = True
        self._follow_all()

    def of_kernel(self, kernel: Unit) -> list[Unit]:
        """The units that one kernel reaches, itself among them, in the order in which they were found."""
        seen: set[ast.AST] = {kernel.node}
        left = [kernel]
        while left:
            new = [self._known[node] for node in left.pop().uses if node in self._known and node not in seen]
            seen.update(unit.node for unit in new)
            left += new
        return [unit for unit in self.units if unit.node in seen]

    def _reach(self, source: Source, node: Function | ast.ClassDef, kernel: str) -> Unit:
        if node in self._known:
            return self._known[node]
        unit = self._known[node] = Unit(source, node, kernel)
        self.units.append(unit)
        self._unread.append(unit)
        if isinstance(node, ast.ClassDef):
            self._classes.append(unit)
        return unit

    def _follow(self, unit: Unit) -> None:
        for node in unit.code:
            if isinstance(node, ast.Attribute):
                self._attributes.add(node.attr)
                self._mention(unit, node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._mention(unit, node)
        for annotation in _annotations(unit.node):
            for node in ast.walk(annotation):
                if not isinstance(node, (ast.Name, ast.Attribute)):
                    continue
                found = self._project.meaning(unit.source, node)
                if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef):
                    unit.uses.add(found.node)
                    self._reach(found.source, found.node, unit.kernel)

    def _mention(self, unit: Unit, node: ast.Name | ast.Attribute) -> None:
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in unit.bound:
            return
        found = self._project.meaning(unit.source, node, unit.node)
        if isinstance(found, (Definition, Value)) and isinstance(node, ast.Name):
            unit.names[node.id] = found
        self._expand(unit, found, set())

    def _expand(self, unit: Unit, found: object, seen: set[ast.AST]) -> None:
        if isinstance(found, Definition):
            if found.node is not unit.node:
                unit.uses.add(found.node)
                self._reach(found.source, found.node, unit.kernel).is_called = True
        elif isinstance(found, Value):  # a table of functions, an alias
            for expression in found.expressions:
                if expression in seen:
                    continue
                seen.add(expression)
                called = {node.func for node in ast.walk(expression) if isinstance(node, ast.Call)}
                for node in ast.walk(expression):
                    if not isinstance(node, (ast.Name, ast.Attribute)):
                        continue
                    inner = self._project.meaning(found.source, node)
                    is_function = isinstance(inner, Definition) and isinstance(inner.node, FUNCTIONS)
                    if not (node in called and is_function):  # Python called it, on import
                        self._expand(unit, inner, seen)

    def _follow_all(self) -> None:
        """Follow what is reached until nothing new comes; methods last, for each may mention attributes and classes."""
        while self._unread:
            while self._unread:
                self._follow(self._unread.popleft())
            for unit in list(self._classes):
                for node in unit.node.body:
                    if not isinstance(node, FUNCTIONS) or node in self._known:
                        continue
                    if node.name in self._attributes or (node.name.startswith("__") and node.name.endswith("__")):
                        unit.uses.add(node)
                        self._reach(unit.source, node, unit.kernel).is_called = True


def _annotations(node: Function | ast.ClassDef) -> Iterator[ast.expr]:
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign):
                yield statement.annotation
        return
    for one in parameters(node):
        if one.annotation is not None:
            yield one.annotation
