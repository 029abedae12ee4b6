"""The faults that the mutation check plants: for a source file, small edits that a good test must notice.

Each is one edit of one place, found in the syntax tree and made in the text, so that all else of the file stays.
In kernels those are the mistakes that people make there: a tile's bound off by one, a sum that is not accumulated, a
wrong halo, swapped strides, a memset or another instruction left out. In the simulator's rules: a refusal left out, and
a limit off by one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Names in an expression that make it one of a halo: what comes before, after or around the data.
HALO = ("halo", "pad", "before", "after", "reach", "overlap", "shift", "first")
#: How names begin of what refuses a call, a launch or what is not as it must be.
REFUSES = ("fail", "check", "_check", "refuse", "_refuse")
#: A comparison and the one that differs from it at the limit only.
LIMITS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@dataclass(frozen=True)
class Fault:
    """One edit: characters `start` to `end` of a file's text become `replacement`."""

    path: Path
    kind: str
    line: int
    start: int
    end: int
    replacement: str

    def planted(self, text: str) -> str:
        return text[: self.start] + self.replacement + text[self.end :]

    def shown(self, text: str) -> str:
        """The edit in one line."""
        before = " ".join(text[self.start : self.end].split())
        return f"{before[:70]} -> {' '.join(self.replacement.split())[:70] or '(nothing)'}"


class _Text:
    """A file's text, with the places of its syntax tree's nodes in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self._starts = [0]
        for line in self.text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def _at(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        row = self.text[start : self._starts[line]]
        return start + len(row.encode()[:column].decode())

    def source(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def fault(self, kind: str, node: ast.expr | ast.stmt, replacement: str) -> Fault:
        start, end = self.span(node)
        return Fault(self.path, kind, node.lineno, start, end, replacement)


def _called(node: ast.AST) -> str:
    """The dotted name of what a call calls, or nothing."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _one_less(text: _Text, kind: str, node: ast.expr) -> Fault:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return text.fault(kind, node, str(node.value - 1))
    return text.fault(kind, node, f"({text.source(node)}) - 1")


def _bounds(text: _Text, node: ast.AST) -> Iterator[Fault]:
    """A loop or a slice that ends one early, a share that takes one less."""
    if _called(node) in ("range", "nl.affine_range", "nl.sequential_range", "nl.static_range") and node.args:
        yield _one_less(text, "tile bound", node.args[1 if len(node.args) > 1 else 0])
    elif _called(node) in ("min", "div_ceil") and len(node.args) == 2:
        yield _one_less(text, "tile bound", node.args[0])
    elif isinstance(node, ast.Slice) and node.upper is not None:
        yield _one_less(text, "tile bound", node.upper)


def _halos(text: _Text, node: ast.AST) -> Iterator[Fault]:
    """A sum with a halo in it that takes it the other way."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
        return
    source = text.source(node)
    if any(name in source for name in HALO):
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        yield text.fault("halo", node, f"{text.source(node.left)} {sign} ({text.source(node.right)})")


def _strides(text: _Text, node: ast.AST) -> Iterator[Fault]:
    """An access pattern with the strides of its last two dimensions swapped."""
    if not isinstance(node, ast.List) or len(node.elts) < 2:
        return
    pairs = node.elts[-2:]
    if all(isinstance(pair, ast.List) and len(pair.elts) == 2 for pair in pairs):
        (outer, many), (inner, few) = ([text.source(one) for one in pair.elts] for pair in pairs)
        if outer != inner:
            kept = [text.source(one) for one in node.elts[:-2]]
            swapped = [*kept, f"[{inner}, {many}]", f"[{outer}, {few}]"]
            yield text.fault("swapped strides", node, f"[{', '.join(swapped)}]")


def _instructions(text: _Text, node: ast.AST) -> Iterator[Fault]:
    """An instruction that is left out."""
    if isinstance(node, ast.Expr) and _called(node.value).startswith("nisa."):
        kind = "missing memset" if _called(node.value) == "nisa.memset" else "missing instruction"
        yield text.fault(kind, node, "pass")


def _accumulation(text: _Text, node: ast.AST) -> Iterator[Fault]:
    """A sum that begins anew where it goes on, and goes on where it begins."""
    if isinstance(node, ast.keyword) and node.arg in ("accumulate", "start"):
        yield text.fault("accumulation", node.value, f"not ({text.source(node.value)})")


def _refusals(text: _Text, node: ast.AST) -> Iterator[Fault]:
    """A rule that is not enforced; a rule whose limit is off by one."""
    if isinstance(node, ast.Expr) and _called(node.value).startswith(REFUSES):
        yield text.fault("missing rule", node, "pass")
    if isinstance(node, ast.If) and any(_called(getattr(one, "value", one)).startswith(REFUSES) for one in node.body):
        for test in ast.walk(node.test):
            if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in LIMITS:
                left, right = text.source(test.left), text.source(test.comparators[0])
                yield text.fault("limit", test, f"({left}) {LIMITS[type(test.ops[0])]} ({right})")


KERNEL = (_bounds, _halos, _strides, _instructions, _accumulation)
RULES = (_refusals,)


def of_file(path: Path, makers: tuple) -> list[Fault]:
    """All faults of these kinds that a file can have, in its order."""
    text = _Text(path)
    found = [fault for node in ast.walk(text.tree) for maker in makers for fault in maker(text, node)]
    return sorted(set(found), key=lambda fault: (fault.start, fault.end, fault.replacement))


def of_kernels(package: Path) -> list[Fault]:
    """Of the files that hold instructions."""
    files = [path for path in sorted((package / "kernels").rglob("*.py")) if "nisa." in path.read_text("utf-8")]
    return [fault for path in files for fault in of_file(path, KERNEL)]


def of_rules(package: Path) -> list[Fault]:
    """Of the simulator's files that refuse something."""
    return [fault for path in sorted((package / "simulator").rglob("*.py")) for fault in of_file(path, RULES)]
