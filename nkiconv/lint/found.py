"""What a check finds, and what it is given to look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .project import Definition, Project
from .reach import Unit
from .source import Function, Source


@dataclass(frozen=True)
class Problem:
    """A place where a rule is broken, before it is known whether the run reports it."""

    source: Source
    rule: str  # its id
    node: ast.AST
    words: tuple[str, ...] = ()  # what fills the holes of the rule's message and remedy
    kernel: str = ""  # through which the place is reached; "" for code that launches one


@dataclass(frozen=True)
class Context:
    """What checks look at: one unit, and where it stands."""

    project: Project
    unit: Unit
    #: functions that reached code passes to loops on the device -> "fori_loop" or "while_loop"
    bodies: dict[Function, str]

    @property
    def hidden(self) -> frozenset[str]:
        """Names that the unit binds itself, so that they are not the module's or Python's."""
        return self.unit.bound

    def problem(self, rule: str, node: ast.AST, *words: str) -> Problem:
        """A problem in this unit."""
        return Problem(self.unit.source, rule, node, words, self.unit.kernel)

    def external(self, node: ast.expr) -> str:
        """The full name of something of NKI or another library ("nki.language.ndarray"); else ""."""
        return self.project.external(self.unit.source, node, self.unit.node)

    def class_of(self, node: ast.expr) -> ast.ClassDef | None:
        """The class that an expression names, if it is one of the given files."""
        found = self.project.meaning(self.unit.source, node, self.unit.node)
        return found.node if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef) else None


def short(node: ast.AST, limit: int = 40) -> str:
    """Source text of a node for a message: one line, cut off where it is long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name; of a call that of what is called, as of a decorator with arguments."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]


def base_names(node: ast.ClassDef) -> list[str]:
    """What a class inherits from, without the modules' names."""
    return [ast.unparse(base).rpartition(".")[2] for base in node.bases]


def root_of(node: ast.expr) -> ast.expr:
    """What a chain of attributes and subscripts hangs on."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node


def comparisons(node: ast.Compare) -> Iterator[tuple[ast.cmpop, ast.expr, ast.expr]]:
    """(operator, left, right) of each comparison in a chain."""
    return zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False)


def argument(node: ast.Call, name: str, place: int | None) -> ast.expr | None:
    """The value that a call gives a parameter, by name or at its place; None where it gives none."""
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    return node.args[place] if place is not None and place < len(node.args) else None
