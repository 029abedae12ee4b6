"""How a case's profile looks on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from ...simulator.profiling.show import short_path as short_path
from ...simulator.profiling.show import show as show_profile
from .show import extents, kind

if TYPE_CHECKING:
    from ..suites.profiles import CaseProfile


def show(screen: Console, one: CaseProfile) -> None:
    """Print one profile: totals, engines, critical path, data movement, what it rests on."""
    floor = f"copy floor {one.floors.copy_us:,.2f} us, {one.x_copy_floor:.2f} x that"
    show_profile(screen, one.profile, title_of(one), [floor])


def title_of(one: CaseProfile) -> str:
    """Case, shape, dtype, algorithm and cores."""
    cores = "2 cores" if one.lnc == 2 else "1 core"
    return f"{one.case}: {extents(one.problem)} {kind(one.problem.dtype, one.precision)}, {one.algorithm} on {cores}"
