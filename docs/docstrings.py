"""Docstrings as the house writes them, for Sphinx: Markdown's backticks, `Args:`, `Returns:` and `Raises:`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType

from sphinx.pycode import ModuleAnalyzer

from nkiconv.tools.tables.support import signatures

_SECTION = re.compile(r"(Args|Returns|Raises|Yields):\s*(.*)")
#: What names an argument or an error in front of what is said of it.
_NAMES = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): ?(.*)")
_LITERAL = re.compile(r"(``.+?``|`.+?`)")
_MARKUP = re.compile(r"([\\*_|`])")


def process(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Rewrite a docstring's lines in place, as autodoc asks for it; those of functions with all arguments in full."""
    where = next((one for one in (signatures.TENSORS, signatures.ARRAYS) if name.startswith(f"{one}.")), "")
    whole = value in signatures.functions(where).values() if where and what == "function" else False
    lines[:] = to_rst(signatures.in_full(value, where) if whole else "\n".join(lines))


def to_rst(text: str) -> list[str]:
    """Lines of reStructuredText that show a docstring; nothing in it is markup but backticks."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.expandtabs().strip("\n")):
        found += [*_paragraph(paragraph.splitlines()), ""]
    return found


def _paragraph(lines: list[str]) -> Iterator[str]:
    while lines and (section := _SECTION.fullmatch(lines[0])):
        size = next((i for i, line in enumerate(lines[1:], 1) if not line.startswith(" ")), len(lines))
        yield from (*_section(section[1], section[2], lines[1:size]), "")
        lines = lines[size:]
    if lines and lines[0].startswith(" "):
        yield from ("::", "", *textwrap.indent(textwrap.dedent("\n".join(lines)), "    ").splitlines())
        return
    size = next((i for i, line in enumerate(lines) if _SECTION.fullmatch(line)), len(lines))
    item = next((i for i, line in enumerate(lines[:size]) if line.startswith("- ")), size)
    if item:
        yield _escaped(" ".join(lines[:item]))
    if item < size:
        yield ""
        for text in re.split(r"^- ", "\n".join(lines[item:size]), flags=re.MULTILINE)[1:]:
            yield "- " + _escaped(" ".join(text.split()))
    if size < len(lines):
        yield ""
        yield from _paragraph(lines[size:])


def _section(name: str, first: str, rest: list[str]) -> Iterator[str]:
    """A heading; after it one sentence, or a list of what has names."""
    rest = textwrap.dedent("\n".join(rest)).splitlines()
    if first or not rest or not _NAMES.fullmatch(rest[0]):
        yield f"**{name}:** " + _escaped(" ".join([first, *(line.strip() for line in rest)]).strip())
        return
    yield from (f"**{name}:**", "")
    items: list[str] = []
    for line in rest:
        if _NAMES.fullmatch(line):
            items.append(line)
        else:
            items[-1] += " " + line.strip()
    for one in items:
        names, told = _NAMES.fullmatch(one).groups()
        yield f"- ``{names}``: {_escaped(told)}".rstrip()


def _escaped(text: str) -> str:
    parts = _LITERAL.split(text)
    found = ""
    for i, part in enumerate(parts):
        if i % 2:
            joined = "\\ " if found[-1:].isalnum() else ""
            found += f"{joined}``{part.strip('`').strip()}``" + ("\\ " if parts[i + 1][:1].isalnum() else "")
        else:
            found += _MARKUP.sub(r"\\\1", part)
    return found


def note_data(module: ModuleType) -> None:
    """Give autodoc what is said of a module's public constants: by comments where they are made, or by their type."""
    told: dict[str, list[str]] = {}
    for name in module.__all__:
        value = getattr(module, name)
        if not inspect.isroutine(value) and not inspect.isclass(value) and not inspect.ismodule(value):
            comments = (
                ModuleAnalyzer.for_module(one).find_attr_docs().get(("", name))
                for one, made in list(sys.modules.items())
                if one.startswith(f"{module.__name__}.") and vars(made).get(name) is value
            )
            of_type = (
                ["A data type."]
                if isinstance(value, str)
                else [(type(value).__doc__ or "").strip().partition("\n")[0], ""]
            )
            told[name] = next((lines for lines in comments if lines), of_type)
    analyzer = ModuleAnalyzer.for_module(module.__name__)
    analyzer.analyze()
    analyzer.attr_docs.update({("", name): lines for name, lines in told.items()})


def note_fields(kind: object) -> None:
    """Give autodoc what comments say of a dataclass's fields."""
    if inspect.isclass(kind) and dataclasses.is_dataclass(kind):
        analyzer = ModuleAnalyzer.for_module(kind.__module__)
        analyzer.analyze()
        for name, text in field_comments(kind).items():
            analyzer.attr_docs[kind.__qualname__, name] = [text, ""]


def field_comments(kind: type) -> dict[str, str]:
    """What comments say of a dataclass's fields: `#:` lines above one, or the end of its own line."""
    lines = inspect.getsource(kind).splitlines()
    found: dict[str, str] = {}
    for node in ast.parse("\n".join(lines)).body[0].body:
        if isinstance(node, ast.AnnAssign):
            first, last = node.lineno - 1, node.end_lineno - 1
            above = first
            while lines[above - 1].strip().startswith("#:"):
                above -= 1
            told = [line.strip().removeprefix("#:").strip() for line in lines[above:first]]
            behind = [part for part in lines[last][node.end_col_offset :].split("# ")[1:] if "type:" not in part]
            found[node.target.id] = " ".join([*told, *behind]).strip()
    return {name: text for name, text in found.items() if text}
