"""The files under the given paths, and what a dotted name in one of them stands for. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import FileFormatError, UnsupportedError
from .source import FUNCTIONS, Binding, Import, Source, read_source

#: What kernels call NKI's modules; any import of them gives them these names.
NKI_NAMES = {"nki": "nki", "nl": "nki.language", "nisa": "nki.isa", "ncc": "nki.collectives"}

#: Folders of other people's code.
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


@dataclass(frozen=True)
class Definition:
    """A function or class, where it is written."""

    source: Source
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Value:
    """A top-level name that is assigned to: the expressions."""

    source: Source
    expressions: tuple[ast.expr, ...]


@dataclass(frozen=True)
class External:
    """A name of code that is not under the given paths, in full: "nki.isa.dma_copy"."""

    name: str


Meaning = Definition | Value | External | Source


class Project:
    """The files to judge."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read every Python file under the paths.

        Raises:
            UnsupportedError: a path that does not exist.
        """
        missing = [f"{path}: no such file or folder; name one that exists" for path in paths if not path.exists()]
        if missing:
            raise UnsupportedError("\n".join(missing), missing)
        self.sources: list[Source] = []  # parsed, in the order of their paths
        self.broken: list[FileFormatError] = []  # an error for each that could not be parsed
        self._by_path: dict[Path, Source] = {}
        self._names: dict[tuple[Path, str], Meaning | None] = {}
        for path in paths:
            for file in _python_files(path):
                self._add(file)

    def _add(self, path: Path) -> None:
        absolute = path.resolve()
        if absolute in self._by_path:
            return
        try:
            source = read_source(absolute, path.as_posix())
        except FileFormatError as error:
            self.broken.append(error)
            return
        self._by_path[absolute] = source
        self.sources.append(source)

    def meaning(self, source: Source, node: ast.expr, scope: ast.AST | None = None) -> Meaning | None:
        """What a name, or a chain of attributes on one, stands for; None where that is not known.

        Args:
            source: the file that it is in.
            node: the expression.
            scope: the function, class or call that it is in, whose enclosing functions may define the name.
        """
        if isinstance(node, ast.Name):
            return self._of_name(source, node.id, scope)
        if not isinstance(node, ast.Attribute):
            return None
        owner = self.meaning(source, node.value, scope)
        if isinstance(owner, External):
            return External(f"{owner.name}.{node.attr}")
        if isinstance(owner, Source):
            return self._member(owner, node.attr)
        return None

    def external(self, source: Source, node: ast.expr, scope: ast.AST | None = None) -> str:
        """The full name of something that is not under the given paths ("nki.language.ndarray"); else ""."""
        found = self.meaning(source, node, scope)
        return found.name if isinstance(found, External) else ""

    def _of_name(self, source: Source, name: str, scope: ast.AST | None) -> Meaning | None:
        for function in source.scopes.get(scope, ()) if scope else ():
            for statement in function.body:
                if isinstance(statement, (*FUNCTIONS, ast.ClassDef)) and statement.name == name:
                    return Definition(source, statement)
        key = source.path, name
        if key not in self._names:
            is_nki = name in NKI_NAMES and name in source.bindings
            found = External(NKI_NAMES[name]) if is_nki else self._bound(source, source.bindings.get(name), frozenset())
            self._names[key] = found
        return self._names[key]

    def _bound(self, source: Source, binding: Binding | None, seen: frozenset[tuple[Path, str]]) -> Meaning | None:
        if binding is None:
            return None
        if isinstance(binding, Import):
            return self._imported(source, binding, seen)
        if isinstance(binding, list):
            return Value(source, tuple(binding))
        return Definition(source, binding)

    def _imported(self, source: Source, bound: Import, seen: frozenset[tuple[Path, str]]) -> Meaning:
        module = self._find_module(source, bound)
        if bound.name is None:
            return module or External(bound.module)
        found = self._member(module, bound.name, seen) if module else None
        if found is not None:
            return found
        inner = self._find_module(source, Import(bound.level, f"{bound.module}.{bound.name}".strip("."), None))
        return inner or External(f"{bound.module}.{bound.name}")

    def _member(self, module: Source, name: str, seen: frozenset[tuple[Path, str]] = frozenset()) -> Meaning | None:
        if (module.path, name) in seen:  # modules that import the name from each other
            return None
        if name in module.bindings:
            return self._bound(module, module.bindings[name], seen | {(module.path, name)})
        if module.path.name == "__init__.py":
            return self._file(module.path.parent / name)
        return None

    def _find_module(self, source: Source, bound: Import) -> Source | None:
        """The file that an import names: from the importer's folder, or from any folder above it that holds it."""
        parts = bound.module.split(".") if bound.module else []
        folder = source.path.parent
        if bound.level:
            for _ in range(bound.level - 1):
                folder = folder.parent
            return self._file(folder.joinpath(*parts))
        for root in (folder, *folder.parents):
            found = self._file(root.joinpath(*parts))
            if found:
                return found
        return None

    def _file(self, stem: Path) -> Source | None:
        return self._by_path.get(stem.with_name(stem.name + ".py")) or self._by_path.get(stem / "__init__.py")


def _python_files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return sorted(_walk(path))


def _walk(folder: Path) -> Iterable[Path]:
    """The Python files in a folder, but for links, hidden folders, environments, caches."""
    for entry in folder.iterdir():
        if entry.is_dir():
            hidden = (
                entry.is_symlink()
                or entry.name.startswith(".")
                or entry.name in _SKIPPED
                or (entry / "pyvenv.cfg").exists()
            )
            if not hidden:
                yield from _walk(entry)
        elif entry.suffix == ".py":
            yield entry
