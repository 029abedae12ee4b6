"""A report as text, as annotations of GitHub's workflows, or as a document for JSON."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ..errors import FileFormatError
from . import RULES, Finding, Report, Rule

#: The values of `--format`.
FORMATS = ("text", "github", "json")


def text_lines(report: Report) -> list[str]:
    """One line a finding: `path:line:column: ID message; remedy`."""
    return [f"{f.path}:{f.line}:{f.column}: {f.rule} {f.message}; {f.remedy}" for f in report.findings]


def github_lines(report: Report) -> list[str]:
    """One workflow command a finding, and one for each file that is not Python."""
    return [*map(_annotation, report.findings), *map(_broken, report.broken)]


def summary(report: Report, nki: str, *, strict: bool) -> str:
    """One sentence: what was judged, by which rules, and how many findings there are."""
    if not report.kernels:
        return f"no @nki.jit in {_count(report.files, 'file')}: nothing to judge"
    found = _count(len(report.findings), "finding") if report.findings else "no findings"
    judged = f"{_count(report.kernels, 'kernel')} and what they call, {_count(report.functions, 'function')} in all,"
    versions = "NKI 0.3 to 0.6" if nki == "0.6" else f"NKI {nki}"
    return f"{judged} in {_count(report.files, 'file')}: {found} ({versions}{', strict' if strict else ''})"


def document(report: Report, nki: str, *, strict: bool) -> dict[str, Any]:
    """The report as JSON takes it."""
    return {
        "nki": nki,
        "strict": strict,
        "files": report.files,
        "kernels": report.kernels,
        "functions": report.functions,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "broken": [str(error) for error in report.broken],
    }


def rule_lines() -> list[str]:
    """Every rule in a few lines: id and message, versions, remedy, source."""
    found = []
    for rule in RULES.values():
        found.append(f"{rule.id} {plain(rule.message)}")
        found += [f"    {standing(rule)}", f"    remedy: {plain(rule.remedy)}", f"    source: {rule.source}"]
    return found


def rules_document() -> list[dict[str, Any]]:
    """Every rule as JSON takes it."""
    return [
        {**dataclasses.asdict(rule), "message": plain(rule.message), "remedy": plain(rule.remedy)}
        for rule in RULES.values()
    ]


def standing(rule: Rule) -> str:
    """For which versions a rule is reported: "--nki 0.7; 0.6 with --strict"."""
    parts = [" and ".join(rule.versions)] if rule.versions else []
    if rule.strict:
        parts.append(" and ".join(rule.strict) + " with --strict")
    return "--nki " + "; ".join(parts)


def plain(template: str) -> str:
    """A message without its holes."""
    return re.sub(r"\{\d?\}", "...", template)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _annotation(finding: Finding) -> str:
    where = f"file={_property(finding.path)},line={finding.line},col={finding.column}"
    return f"::error {where},title={finding.rule}::{_data(f'{finding.message}; {finding.remedy}')}"


def _broken(error: FileFormatError) -> str:
    path, line = re.match(r"(.*?)(?::(\d+))?: ", str(error)).groups()  # type: ignore[union-attr]  # our own message
    return f"::error file={_property(path)},line={line or 1},title=syntax::{_data(str(error))}"


def _data(text: str) -> str:
    """As GitHub's workflow commands want the text of a message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
