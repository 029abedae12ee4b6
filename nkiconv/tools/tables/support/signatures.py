"""One signature object of each public function: names, types and defaults from the function itself, meanings from the
one docstring that has them.

A docstring gives the differences from another function's, and "The rest: as in `conv2d`"; `arguments` follows these
words. So each sentence stands once, where editors show it; the site's pages have all of them, and tests hold all
functions to one type and default of each argument.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Where functions are looked up that a docstring names, and the functions.
ARRAYS, TENSORS = "nkiconv", "nkiconv.pytorch"
#: Another function whose words hold too: "as in `conv2d`", "as in `conv1d`".
_LIKE = re.compile(r"\bas (?:in|of) `(\w+)`")
_ARGS = re.compile(r"^Args:(.*?)(?=^\S|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Argument:
    """One argument: its type as annotated, its default as written, "" if it has none, and its meaning."""

    name: str
    kind: str
    default: str
    meaning: str


def functions(where: str) -> dict[str, Callable[..., Any]]:
    """The public functions of convolutions of a package by name."""
    package = importlib.import_module(where)
    named = {name: getattr(package, name) for name in package.__all__ if re.match(r"(depthwise_)?conv\w*\d?d", name)}
    return {name: one for name, one in named.items() if inspect.isfunction(one)}


def arguments(function: Callable[..., Any], where: str = ARRAYS) -> dict[str, Argument]:
    """The arguments of a function, in its order, without those of **more, which another function takes.

    Raises KeyError: its docstring, and those that it names, say nothing of one.
    """
    parameters = {
        name: one for name, one in inspect.signature(function).parameters.items() if one.kind is not one.VAR_KEYWORD
    }
    told = meanings(function, where)
    return {
        name: Argument(name, str(one.annotation), "" if one.default is one.empty else repr(one.default), told[name])
        for name, one in parameters.items()
    }


def meanings(function: Callable[..., Any], where: str) -> dict[str, str]:
    """The meaning of each argument, from a docstring and from those that it names."""
    names = inspect.signature(function).parameters
    own: dict[str, str] = {}
    rest: Mapping[str, str] = {}
    for entry in _entries(inspect.getdoc(function) or "", names):
        head, _, text = entry.partition(": ")
        like = _LIKE.search(text)
        others = meanings(functions(where)[like[1]], where) if like and like[1] in functions(where) else {}
        if head.startswith("The rest"):
            rest = others
            continue
        for name in head.split(", "):
            own[name] = text
            if like and text.startswith(like[0]) and name in others:
                more = text.removeprefix(like[0]).strip(";., ")
                own[name] = f"{others[name].rstrip('.')}; here {more}." if more else others[name]
    return {name: own.get(name, rest.get(name, "")) for name in names if name in own or name in rest}


def _entries(docstring: str, names: Mapping[str, Any]) -> Iterator[str]:
    """Parts of `Args:` that begin with names of arguments, "stride, padding: ...", or with the rest."""
    found = _ARGS.search(docstring)
    text = " ".join((found[1] if found else "").split())
    name = "|".join(map(re.escape, names))
    begins = re.compile(rf"(?:^|(?<=[.;] ))(?=(?:(?:{name})(?:, (?:{name}))*|The rest\b[^:]*): )")
    yield from (part.strip() for part in begins.split(text) if part.strip())


def in_full(function: Callable[..., Any], where: str) -> str:
    """A function's docstring with the meaning of each of its arguments, where its own names another function's."""
    alike: dict[str, list[str]] = {}
    for name, meaning in meanings(function, where).items():
        alike.setdefault(meaning, []).append(name)
    said = "\n".join(f"    {', '.join(names)}: {meaning}" for meaning, names in alike.items())
    return _ARGS.sub(lambda _: f"Args:\n{said}\n\n", inspect.getdoc(function) or "")
