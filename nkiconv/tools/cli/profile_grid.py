"""Profiles as one table, for Markdown and CSV: a row a number that the terminal's tables show."""

from __future__ import annotations

from collections.abc import Sequence

from ...simulator.profiling import Comparison, Profile
from ...simulator.profiling.show import short_path
from .grid import Grid


def profiles_grid(found: Sequence[Profile]) -> Grid:
    """Totals, engines, critical paths by kind and by source line, of one profile after another."""
    text = "profile", "of", "what"
    grid = Grid("profiles (modelled)", (*text, "us", "share", "instructions"), text)
    for one in found:
        for what, us in _totals(one):
            grid.add(one.kernel, "total", what, f"{us:.3f}", "", f"{one.instructions}" if what == "mean" else "")
        for name in dict.fromkeys(use.engine for use in one.engines):
            uses = [use for use in one.engines if use.engine == name]
            span = sum(use.busy_us + use.stalled_us + use.idle_us for use in uses)
            count = sum(use.instructions for use in uses)
            for what in ("busy", "stalled", "idle") if count else ():
                us = sum(getattr(use, f"{what}_us") for use in uses)
                counted = f"{count}" if what == "busy" else ""
                grid.add(one.kernel, name, what, f"{us / one.lnc:.3f}", f"{us / span:.4f}", counted)
        for part, shares in (("critical path", one.path_kinds), ("source lines", one.path_lines)):
            for share in shares:
                grid.add(one.kernel, part, short_path(share.what), f"{share.us:.3f}", f"{share.share:.4f}", "")
    return grid


def _totals(one: Profile) -> list[tuple[str, float]]:
    phases = one.phases
    return [
        ("mean", phases.mean_us),
        ("phase 0", phases.phase0_us),
        ("worst phase", phases.worst_us),
        ("look-ahead", one.lookahead_us),
        ("roofline", one.roofline_us),
    ]


def moved_grid(moved: Comparison) -> Grid:
    """The changes from one profile to another."""
    text = ("what",)
    grid = Grid(f"{moved.before.kernel} -> {moved.after.kernel}", (*text, "before", "after", "change"), text)
    for row in (*moved.rows(), *moved.path_rows()):
        before, after = (f"{value:.3f}" if row.us else f"{value:.0f}" for value in (row.before, row.after))
        grid.add(row.what, before, after, row.change)
    return grid
