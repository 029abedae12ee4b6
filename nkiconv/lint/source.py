"""One file of Python: its tree, what its top-level names are bound to, and which lines excuse which rules."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import FileFormatError

#: A function, in the sense of what may be a kernel or a helper of one.
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_EXCUSE = re.compile(r"#\s*nki:\s*noqa\[([A-Z0-9,\s]+)\]")


@dataclass(frozen=True)
class Import:
    """A name that an import binds."""

    level: int  # leading dots; 0 for an absolute import
    module: str  # the dotted name after them
    name: str | None  # what is taken from that module; None where the name is bound to the module itself
    node: ast.stmt | None = None  # the statement


#: What a top-level name can be bound to: a definition, an import, or the expressions that are assigned to it.
Binding = Function | ast.ClassDef | Import | list[ast.expr]


@dataclass(eq=False)
class Source:
    """A parsed file."""

    path: Path
    label: str  # the path as findings show it
    lines: list[str]
    tree: ast.Module
    bindings: dict[str, Binding] = field(default_factory=dict)  # of top-level names, and of imports inside functions
    changing: set[str] = field(default_factory=set)  # top-level names that some function rebinds by `global`
    #: for each function, class and call, the functions that it is in, innermost first
    scopes: dict[ast.AST, tuple[Function, ...]] = field(default_factory=dict)
    excused: dict[int, frozenset[str]] = field(default_factory=dict)  # line -> rules that a comment there excuses

    def place(self, node: ast.AST) -> tuple[int, int]:
        """The line and column of a node, both from 1, in characters."""
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)  # a module has none
        before = self.lines[line - 1].encode()[:offset]  # trees count bytes
        return line, len(before.decode()) + 1


def read_source(path: Path, label: str) -> Source:
    """Parse one file.

    Raises:
        FileFormatError: it is not Python, or cannot be read; names the line where that shows.
    """
    try:
        with tokenize.open(path) as file:  # honours an encoding cookie
            text = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # escapes in strings are not ours to judge
            tree = ast.parse(text, str(path))
    except SyntaxError as error:
        raise FileFormatError(f"{label}:{error.lineno or 1}: not Python ({error.msg}); correct it") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, NUL bytes, nested too deeply to parse
        raise FileFormatError(f"{label}: not Python ({error}); correct it") from error
    except OSError as error:
        raise FileFormatError(f"{label}: cannot be read ({error.strerror})") from error
    source = Source(path, label, text.split("\n"), tree, excused=_excuses(text))
    for statement, is_fallback in _top_level(tree.body):
        _bind(source, statement, is_fallback)
    _note_scopes(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            source.changing.update(node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            _bind_import(source, node, override=False)
    return source


def _excuses(text: str) -> dict[int, frozenset[str]]:
    found = {}
    if "noqa" not in text:
        return {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        matched = _EXCUSE.search(token.string) if token.type == tokenize.COMMENT else None
        if matched:
            found[token.start[0]] = frozenset(matched[1].replace(",", " ").split())
    return found


def _top_level(body: list[ast.stmt], is_fallback: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Statements that bind names of the module, also under `if`, `try` and so on; and whether it is for an `except`."""
    for statement in body:
        yield statement, is_fallback
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _top_level(getattr(statement, name, []), is_fallback)
        for handler in getattr(statement, "handlers", []):
            yield from _top_level(handler.body, True)


def _bind(source: Source, statement: ast.stmt, is_fallback: bool) -> None:
    """Note what a statement binds; what stands in after an `except` is not what kernels use."""
    bindings = source.bindings
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        _bind_import(source, statement, override=not is_fallback)
    elif isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        if not (is_fallback and statement.name in bindings):
            bindings[statement.name] = statement
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            for name, value in _assigned(target, statement.value):
                earlier = bindings.setdefault(name, [])
                if isinstance(earlier, list):
                    earlier.append(value)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of an assignment, element by element where a tuple is written out; else each with the whole."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for inner, part in zip(target.elts, value.elts, strict=True):
            yield from _assigned(inner, part)
        return
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, value


def _bind_import(source: Source, statement: ast.Import | ast.ImportFrom, *, override: bool) -> None:
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            name = alias.asname or alias.name
            bound = Import(statement.level, statement.module or "", alias.name, statement)
        elif alias.asname:
            name, bound = alias.asname, Import(0, alias.name, None, statement)
        else:  # `import a.b` binds a
            name = alias.name.partition(".")[0]
            bound = Import(0, name, None, statement)
        if override or name not in source.bindings:
            source.bindings[name] = bound


def _note_scopes(source: Source) -> None:
    left: list[tuple[ast.AST, tuple[Function, ...]]] = [(source.tree, ())]
    while left:
        node, scopes = left.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Call)):
                source.scopes[child] = scopes
            left.append((child, (child, *scopes) if isinstance(child, FUNCTIONS) else scopes))
