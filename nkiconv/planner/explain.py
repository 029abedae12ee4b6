"""What stands below a plan's first lines: what it was chosen from, what cannot run and why, and the symbols."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence

from .alternatives import Alternative, Rejection, settings_text
from .request import Config

#: Columns of a line of text.
WIDTH = 116
#: Characters of a line of settings.
SETTINGS_WIDTH = 48
#: In front of the settings in which a row differs.
BUT = "but "


def alternatives_text(alternatives: Sequence[Alternative]) -> list[str]:
    """A table of them, the fastest first."""
    first = {one.algorithm: one.config for one in reversed(alternatives)}
    rows = [_row(one, alternatives[0].us, first[one.algorithm]) for one in alternatives]
    found = _table(
        ("algorithm", "settings", "modelled us", "x best", "bound by", "instructions"), rows, right=(2, 3, 5)
    )
    if any(row[1].startswith(BUT) for row in rows):
        found.append(f"{BUT.strip()}: the settings of the algorithm's first row, except for these")
    return found


def _settings(config: Config, first: Config) -> str:
    """A config in words; where it says all that the first one of its algorithm says, only what differs."""
    if config is None or first is None or config == first or dict(config).keys() != dict(first).keys():
        return settings_text(config)
    return BUT + settings_text(tuple(entry for entry in config if entry not in first))


def _row(one: Alternative, best: float, first: Config) -> tuple[str, ...]:
    sign = ">" if one.at_least else "~" if one.extrapolated_from is not None else ""
    us, share = f"{sign}{one.us:,.2f}", f"{sign if one.at_least else ''}{one.us / best:.2f}"
    return (
        one.algorithm,
        _settings(one.config, first),
        us,
        share,
        one.bound_by,
        f"{one.instructions:,}" if one.instructions else "-",
    )


def rejected_text(rejected: Sequence[Rejection]) -> list[str]:
    """Each with its reason, below an empty line; no lines for none."""
    if not rejected:
        return []
    lines = ["", f"{len(rejected)} rejected:"]
    for one in rejected:
        text = f"{one.algorithm}, {settings_text(one.config)}: {one.reason}"
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def symbols_text(symbols: Mapping[str, int]) -> list[str]:
    """Names with values, as many in a line as it holds."""
    lines = [""]
    for name, value in symbols.items():
        entry = f"{name}={value}"
        if lines[-1] and len(lines[-1]) + 2 + len(entry) > WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]}  {entry}" if lines[-1] else entry
    return lines


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Aligned columns, settings in lines of their own width; the marks of approximate times are explained below."""
    split = [[textwrap.wrap(cell, SETTINGS_WIDTH) or [""] for cell in row] for row in rows]
    widths = [
        max(len(text) for row in [[[h] for h in headings], *split] for text in row[i]) for i in range(len(headings))
    ]

    def lines(cells: Sequence[Sequence[str]]) -> list[str]:
        found = []
        for texts in itertools.zip_longest(*cells, fillvalue=""):
            columns = enumerate(zip(texts, widths, strict=True))
            padded = [text.rjust(n) if i in right else text.ljust(n) for i, (text, n) in columns]
            found.append("  ".join(padded).rstrip())
        return found

    notes = []
    if any(row[2].startswith("~") for row in rows):
        notes.append("~ extrapolated from fewer channels, to rank only")
    if any(row[2].startswith(">") for row in rows):
        notes.append("> at least: one engine alone, or the instructions' issue, takes longer than the best")
    body = [line for row in split for line in lines(row)]
    return [*lines([[h] for h in headings]), *lines([["-" * n] for n in widths]), *body, *notes]
