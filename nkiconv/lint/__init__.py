"""A linter of the Python that NKI compiles, by the syntax tree: code is read, never imported.

It starts at kernels (`@nki.jit`), follows the functions and classes that they use through the files under the given
paths, and judges what they reach, no other code. Rules hold for NKI 0.3 to 0.6, which parse kernels ("0.6"), or for
0.7, which traces them. The package imports nothing of nkiconv but its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import FileFormatError, UnsupportedError
from . import attributes, clashes, equality, kernels, kinds, loops, registers, removed, slices, state, syntax, values
from .found import Context, Problem
from .project import Project
from .reach import Reached
from .rules import DEFAULT_VERSION, RULES, VERSIONS, Rule
from .source import FUNCTIONS

__all__ = ["DEFAULT_VERSION", "RULES", "VERSIONS", "Finding", "Report", "Rule", "lint"]

_CHECKS = (
    syntax.check,
    syntax.check_class,
    syntax.check_decorators,
    values.check,
    kernels.check,
    state.check,
    registers.check,
    loops.check,
    equality.check,
    attributes.check,
    slices.check,
    kinds.check,
)


@dataclass(frozen=True, order=True)
class Finding:
    """A rule broken at one place.

    Attributes:
        path: the file, as the given path leads to it.
        line, column: from 1.
        rule: the rule's id.
        message: what is wrong.
        remedy: what to write instead.
        kernel: one kernel through which the place is reached; "" for code that launches one.
    """

    path: str
    line: int
    column: int
    rule: str
    message: str
    remedy: str
    kernel: str = field(compare=False)


@dataclass(frozen=True)
class Report:
    """What a run found.

    Attributes:
        findings: in the order of files and lines.
        broken: files that are no Python, or cannot be read; all others are judged all the same.
        files: how many files were read.
        kernels: how many kernels there are in them.
        functions: how many functions and methods those reach, themselves among them.
    """

    findings: tuple[Finding, ...]
    broken: tuple[FileFormatError, ...]
    files: int
    kernels: int
    functions: int


def lint(
    paths: Path | str | Sequence[Path | str],
    *,
    nki: str = DEFAULT_VERSION,
    strict: bool = False,
    ignore: str | Sequence[str] = (),
) -> Report:
    """Judge every kernel under the paths, and all that they reach there.

    Args:
        paths: a file or folder, or several; hidden folders, caches and environments in them are left out.
        nki: "0.7" for what 0.7 traces, "0.6" for what the parser of 0.3 to 0.6 compiles.
        strict: report also what is deprecated, doubtful, or refused on paper only.
        ignore: the id of a rule to leave out, or several.

    Raises:
        UnsupportedError: a path that does not exist, an unknown version, or an unknown rule.
    """
    if nki not in VERSIONS:
        raise UnsupportedError(f"nki={nki!r}: must be {' or '.join(VERSIONS)} (0.6 stands for 0.3 to 0.6)")
    files, left_out = ([one] if isinstance(one, (str, Path)) else one for one in (paths, ignore))
    unknown = [one for one in left_out if one not in RULES]
    wrong = [f"ignore={one!r}: no rule has this id; `nkiconv lint --rules` lists them" for one in unknown]
    if wrong:
        raise UnsupportedError("\n".join(wrong), wrong)
    project = Project([Path(path) for path in files])
    reached = Reached(project)
    found = set()
    for problem in _problems(project, reached):
        rule = RULES[problem.rule]
        finding = _finding(problem, rule)
        excused = problem.source.excused.get(finding.line, frozenset())
        if rule.holds(nki, strict=strict) and rule.id not in excused and rule.id not in left_out:
            found.add(finding)
    functions = sum(isinstance(unit.node, FUNCTIONS) for unit in reached.units)
    return Report(tuple(sorted(found)), tuple(project.broken), len(project.sources), len(reached.kernels), functions)


def _problems(project: Project, reached: Reached) -> Iterator[Problem]:
    bodies = registers.loop_bodies(project, reached)
    for unit in reached.units:
        context = Context(project, unit, bodies)
        for check in _CHECKS:
            yield from check(context)
    yield from clashes.check(reached)
    for source in project.sources:
        yield from kernels.check_decorators(project, source)
        yield from kernels.check_launches(project, reached, source)
        yield from removed.check(project, source)


def _finding(problem: Problem, rule: Rule) -> Finding:
    line, column = problem.source.place(problem.node)
    message, remedy = rule.message.format(*problem.words), rule.remedy.format(*problem.words)
    return Finding(problem.source.label, line, column, rule.id, message, remedy, problem.kernel)
