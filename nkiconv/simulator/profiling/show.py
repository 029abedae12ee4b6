"""How a profile looks on a terminal of any width: lines that wrap, and tables of few columns with whole numbers."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..hardware import CONSTANTS, PSUM_BANKS, SBUF_USABLE_BYTES_PER_PARTITION

if TYPE_CHECKING:
    from .report import Profile, Share
    from .usage import EngineUse

#: Rows of the critical path, and element sizes, that are printed.
ROWS = 6
#: Columns of plain text.
WIDTH = 80


def quantity(value: float, unit: str = "") -> str:
    """Three digits and a decimal prefix, as in "4.35 MB"."""
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}".strip()
        value /= 1000
    return f"{value:.3g} T{unit}"


def plain_text(show_on: Callable[[Console], None]) -> str:
    """What is shown on a screen, as plain text."""
    file = io.StringIO()
    show_on(Console(file=file, width=WIDTH, highlight=False, color_system=None))
    return file.getvalue().rstrip() + "\n"


def table(title: str, numbers: Sequence[str], rows: Iterable[Iterable[str]], *, what: str = "what") -> Table:
    """A first column of text that wraps, and columns of numbers."""
    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    found.add_column(what, overflow="fold")
    for heading in numbers:
        found.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        found.add_row(*row)
    return found


def text_of(found: Profile) -> str:
    """A profile as plain text."""
    cores = "2 cores" if found.lnc == 2 else "1 core"
    return plain_text(lambda screen: show(screen, found, f"{found.kernel} on {cores}", []))


def show(screen: Console, found: Profile, title: str, floors: Sequence[str]) -> None:
    """Print a profile: totals, engines, critical path, data movement, inferred constants; floors: more totals."""
    screen.print(Text(title, style="bold"))
    for line in (*totals(found), *floors):
        screen.print(Text(line))
    screen.print(engines(found))
    for heading, shares in (("critical path by kind", found.path_kinds), ("by source line", found.path_lines)):
        screen.print(path(heading, shares))
    for line in notes(found):
        screen.print(Text(line))
    if found.sensitivity:
        screen.print(sensitivity(found))
    screen.print()


def totals(found: Profile) -> Iterator[str]:
    """Modelled times, and their limiting resource."""
    phases = found.phases
    yield (
        f"modelled {found.modelled_us:,.2f} us ({CONSTANTS.target}; first DMA issue to last DMA done), mean of the "
        f"throttle's phases: phase 0 {phases.phase0_us:,.2f}, worst {phases.worst_us:,.2f}, look-ahead "
        f"{found.lookahead_us:,.2f}"
    )
    yield (
        f"bound by {found.bound_by}; roofline {found.roofline_us:,.2f} us ({found.roofline_limit}), "
        f"{found.roofline_fraction:.1%} of it reached"
    )


def engines(found: Profile) -> Table:
    """How each engine spent its time."""
    numbers = ("instructions", "busy", "stalled", "idle")
    shown = table("engines: share of the time, mean of the cores", numbers, (), what="engine")
    shown.add_column("stalled on", overflow="fold")
    for name in dict.fromkeys(use.engine for use in found.engines):
        uses = [use for use in found.engines if use.engine == name]
        count = sum(use.instructions for use in uses)
        if count:
            shown.add_row(name, f"{count:,}", *_shares(uses))
    return shown


def _shares(uses: Sequence[EngineUse]) -> Iterator[str]:
    span = sum(use.busy_us + use.stalled_us + use.idle_us for use in uses)
    for part in ("busy_us", "stalled_us", "idle_us"):
        yield f"{sum(getattr(use, part) for use in uses) / span:.0%}"
    causes: dict[str, float] = {}
    for use in uses:
        for what, us in use.stalls_us.items():
            causes[what] = causes.get(what, 0.0) + us
    top = sorted(causes.items(), key=lambda item: -item[1])[:3]
    yield ", ".join(f"{what} {us / span:.0%}" for what, us in top if us / span >= 0.005)


def path(heading: str, shares: Sequence[Share]) -> Table:
    """The largest shares of the critical path."""
    rows = ((short_path(one.what), f"{one.us:,.2f}", f"{one.share:.0%}") for one in shares[:ROWS])
    return table(heading, ("us", "share"), rows)


def short_path(what: str) -> str:
    """A source line by its file and that file's folder."""
    path, colon, line = what.rpartition(":")
    if not colon or not os.path.isabs(path):
        return what
    return f"{Path(*Path(path).parts[-2:])}:{line}"


def notes(found: Profile) -> Iterator[str]:
    """Data movement, memory, the Tensor Engine, and the inferred constants of the times."""
    if found.leans_on_compiler:
        yield (
            f"look-ahead order is {found.order_gap:.0%} shorter: above 5 %, the kernel leaves its scheduling to the "
            "compiler, and the time depends on how well that does it"
        )
    sizes = sorted(found.dma_elements, key=lambda item: -item[0] * item[1])[:ROWS]
    elements = ", ".join(f"{count:,} x {size:,} B" for size, count in sizes)
    yield (
        f"DMA: {quantity(found.dma_bytes, 'B')} in {found.dma_transfers:,} transfers, engines "
        f"{found.dma_efficiency:.0%} efficient; HBM {quantity(found.hbm_bytes, 'B')}, "
        f"{found.hbm_bytes / max(1, found.min_bytes):.2f} x the least, {found.hbm_fraction:.0%} of its rate; "
        f"elements {elements}"
    )
    yield (
        f"memory: SBUF {found.sbuf_peak_bytes:,} B per partition "
        f"({found.sbuf_peak_bytes / SBUF_USABLE_BYTES_PER_PARTITION:.0%}), PSUM {found.psum_peak_banks} of "
        f"{PSUM_BANKS} banks; stalled for space {found.space_stall_us:,.2f} us"
    )
    rate = "" if found.full_rate_share is None else f", at full rate {found.full_rate_share:.0%} of the time"
    yield (
        f"Tensor Engine: {quantity(found.matmul_flops)} flops issued, MFU {found.mfu:.2%} of useful ones{rate}; "
        f"{found.instructions:,} instructions"
    )
    names = ", ".join(found.inferred_constants) or "none"
    yield f"{found.inferred_share:.1%} of the critical path rests on inferred constants ({names})"
    if found.extrapolated_us:
        yield (
            f"{found.extrapolated_us:,.2f} us are iterations of device loops that were not recorded, as long as the "
            "last ones that were; shares of engines and of the critical path are of what was recorded"
        )
    if found.standalone:
        yield f"standalone: totals include {found.launch_us:.2f} us of preamble and postamble; floors and shares do not"
    if found.before_us or found.after_us:
        yield (
            f"outside the totals: {found.before_us:,.2f} us of work before the first DMA, {found.after_us:,.2f} us "
            "after the last"
        )


def sensitivity(found: Profile) -> Table:
    """Totals with each inferred constant at the ends of its range."""
    low, high = found.sensitivity_range_us()
    base = found.phases.phase0_us
    most = found.sensitivity[0]
    title = f"sensitivity: {low:,.2f} to {high:,.2f} us (phase 0: {base:,.2f}); {most.constant} matters most"
    if most.spread_us(base) == 0.0:
        title = f"sensitivity: none of the inferred constants moves the {base:,.2f} us of phase 0"
    rows = (
        (one.constant, f"{one.low:g}", f"{one.high:g}", f"{one.low_us:,.2f}", f"{one.high_us:,.2f}")
        for one in found.sensitivity
    )
    return table(title, ("low", "high", "us at low", "us at high"), rows, what="inferred constant")
