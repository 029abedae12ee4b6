"""A plan as text: what was chosen, what it was chosen from, what cannot run and why, and the symbols."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

from .operations import OPERATIONS
from .plan import Alternative, Plan, settings_text
from .request import Config

#: Columns of a line of text.
WIDTH = 116
#: Characters of a line of settings.
SETTINGS_WIDTH = 48
#: In front of the settings in which a row differs.
BUT = "but "


def explain(plan: Plan) -> str:
    """The text of `Plan.explain`."""
    return "\n".join([*_head(plan), "", *_alternatives(plan), *_rejected(plan), "", *_symbols(plan)])


def part_of(plan: Plan) -> str:
    """What a plan's times are extrapolated from, as in "256 of 8192 channels"."""
    reduction = OPERATIONS[plan.operation].reduction(plan.problem, plan.asked)
    assert reduction is not None
    return f"{plan.extrapolated_from} of {reduction.units(plan.problem)} {reduction.name}"


def _head(plan: Plan) -> list[str]:
    cores = "2 cores" if plan.lnc == 2 else "1 core"
    phases = "phase 0" if plan.phases == 1 else f"mean of {plan.phases} phases"
    lines = [
        f"{plan.algorithm}, {plan.settings}",
        f"on {cores}: modelled {plan.modelled_us:,.2f} us ({phases}; phase 0 {plan.phase0_us:,.2f}, worst "
        f"{plan.worst_us:,.2f})",
        f"copy floor {plan.copy_floor_us:,.2f} us ({plan.x_copy_floor:.2f} x); roofline {plan.roofline_us:,.2f} us "
        f"({plan.roofline_fraction:.1%}); bound by {plan.bound_by}",
        f"{plan.instructions:,} instructions; at most {plan.sbuf_bytes:,} B of SBUF a partition and {plan.psum_banks} "
        "PSUM banks",
    ]
    if plan.extrapolated_from is not None:
        lines.append(f"times and instructions are extrapolated from {part_of(plan)}; nkiconv tune times the whole")
    if plan.constants:
        lines.append("with " + ", ".join(f"{name}={value:g}" for name, value in plan.constants.items()))
    return lines


def _alternatives(plan: Plan) -> list[str]:
    best = plan.alternatives[0].us if plan.alternatives else plan.phase0_us
    first = {one.algorithm: one.config for one in reversed(plan.alternatives)}
    rows = [_row(one, best, first[one.algorithm]) for one in plan.alternatives]
    found = _table(
        ("algorithm", "settings", "modelled us", "x best", "bound by", "instructions"), rows, right=(2, 3, 5)
    )
    if any(row[1].startswith(BUT) for row in rows):
        found.append(f"{BUT.strip()}: the settings of the algorithm's first row, except for these")
    return found


def _settings(config: Config, first: Config) -> str:
    """A config in words; where it says all that the first one of its algorithm says, only what differs."""
    if (
        config is None
        or first is None
        or config == first
        or {name for name, _ in config} != {name for name, _ in first}
    ):
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


def _rejected(plan: Plan) -> list[str]:
    if not plan.rejected:
        return []
    lines = ["", f"{len(plan.rejected)} rejected:"]
    for one in plan.rejected:
        text = f"{one.algorithm}, {settings_text(one.config)}: {one.reason}"
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _symbols(plan: Plan) -> list[str]:
    lines = [""]
    for name, value in plan.symbols.items():
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
            padded = [
                text.rjust(n) if i in right else text.ljust(n)
                for i, (text, n) in enumerate(zip(texts, widths, strict=True))
            ]
            found.append("  ".join(padded).rstrip())
        return found

    notes = []
    if any(row[2].startswith("~") for row in rows):
        notes.append("~ extrapolated from a part, to rank only")
    if any(row[2].startswith(">") for row in rows):
        notes.append("> at least: one engine alone, or the instructions' issue, takes longer than the best")
    body = [line for row in split for line in lines(row)]
    return [*lines([[h] for h in headings]), *lines([["-" * n] for n in widths]), *body, *notes]
