"""How a profile looks on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...simulator.hardware import PSUM_BANKS, SBUF_USABLE_BYTES_PER_PARTITION
from .show import extents, kind, quantity

if TYPE_CHECKING:
    from ...simulator.profiling import EngineUse, Profile, Share
    from ..suites.profiles import CaseProfile

#: Rows of the critical path, and element sizes, that are printed.
_ROWS = 6


def show(screen: Console, one: CaseProfile) -> None:
    """Print one profile: totals, engines, critical path, data movement, what it rests on."""
    cores = "2 cores" if one.lnc == 2 else "1 core"
    title = f"{one.case}: {extents(one.problem)} {kind(one.problem.dtype, one.precision)}, {one.algorithm} on {cores}"
    screen.print(Text(title, style="bold"))
    screen.print(_totals(one))
    screen.print(_engines(one.profile))
    screen.print(_path(one.profile))
    for line in _notes(one):
        screen.print(Text(line), soft_wrap=True)
    if one.profile.sensitivity:
        screen.print(_sensitivity(one.profile))
    screen.print()


def _totals(one: CaseProfile) -> Table:
    found = one.profile
    table = Table(title="modelled us (trn2; first DMA issue to last DMA done)", title_justify="left")
    times = ("mean", "phase 0", "worst", "look-ahead")
    for heading in (*times, "bound by", "copy floor", "x floor", "roofline", "of roofline"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{found.modelled_us:,.2f}",
        f"{found.phases.phase0_us:,.2f}",
        f"{found.phases.worst_us:,.2f}",
        f"{found.lookahead_us:,.2f}",
        found.bound_by,
        f"{one.floors.copy_us:,.2f}",
        f"{one.x_copy_floor:.2f}",
        f"{found.roofline_us:,.2f} ({found.roofline_limit})",
        f"{found.roofline_fraction:.1%}",
    )
    return table


def _engines(found: Profile) -> Table:
    table = Table(title="engines: share of the time, mean of the cores", title_justify="left")
    for heading in ("engine", "instructions", "busy", "stalled", "idle", "stalled on"):
        table.add_column(heading, justify="left" if heading in ("engine", "stalled on") else "right")
    names = list(dict.fromkeys(use.engine for use in found.engines))
    for name in names:
        uses = [use for use in found.engines if use.engine == name]
        count = sum(use.instructions for use in uses)
        if count:
            table.add_row(name, f"{count:,}", *_shares(uses))
    return table


def _shares(uses: Sequence[EngineUse]) -> Iterator[str]:
    span = sum(use.busy_us + use.stalled_us + use.idle_us for use in uses)
    for part in (
        sum(use.busy_us for use in uses),
        sum(use.stalled_us for use in uses),
        sum(use.idle_us for use in uses),
    ):
        yield f"{part / span:.0%}"
    causes: dict[str, float] = {}
    for use in uses:
        for what, us in use.stalls_us.items():
            causes[what] = causes.get(what, 0.0) + us
    top = sorted(causes.items(), key=lambda item: -item[1])[:3]
    yield ", ".join(f"{what} {us / span:.0%}" for what, us in top if us / span >= 0.005)


def _path(found: Profile) -> Table:
    table = Table(title="critical path", title_justify="left")
    for heading in ("what", "us", "share", "source line", "us", "share"):
        table.add_column(heading, justify="right" if heading in ("us", "share") else "left")
    rows = max(len(found.path_kinds[:_ROWS]), len(found.path_lines[:_ROWS]))
    for i in range(rows):
        table.add_row(*_share(found.path_kinds, i), *_share(found.path_lines, i))
    return table


def _share(shares: Sequence[Share], i: int) -> tuple[str, str, str]:
    if i >= len(shares[:_ROWS]):
        return "", "", ""
    one = shares[i]
    return short_path(one.what), f"{one.us:,.2f}", f"{one.share:.0%}"


def short_path(what: str) -> str:
    """A source line by its file and that file's folder."""
    path, colon, line = what.rpartition(":")
    if not colon or not os.path.isabs(path):
        return what
    return f"{Path(*Path(path).parts[-2:])}:{line}"


def _notes(one: CaseProfile) -> Iterator[str]:
    found = one.profile
    if found.leans_on_compiler:
        yield (
            f"look-ahead order is {found.order_gap:.0%} shorter: above 5 %, the kernel leaves its scheduling to the "
            "compiler, and the time depends on how well that does it"
        )
    sizes = sorted(found.dma_elements, key=lambda item: -item[0] * item[1])[:_ROWS]
    elements = ", ".join(f"{count:,} x {size:,} B" for size, count in sizes)
    yield (
        f"DMA: {quantity(found.dma_bytes, 'B')} in {found.dma_transfers:,} transfers, engines "
        f"{found.dma_efficiency:.0%} efficient; HBM {quantity(found.hbm_bytes, 'B')}, "
        f"{found.hbm_bytes / found.min_bytes:.2f} x the least, {found.hbm_fraction:.0%} of its rate; "
        f"elements {elements}"
    )
    yield (
        f"memory: SBUF {found.sbuf_peak_bytes:,} B a partition "
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
    if found.standalone:
        yield f"standalone: totals include {found.launch_us:.2f} us of preamble and postamble; floors and shares do not"
    if found.before_us or found.after_us:
        yield (
            f"outside the totals: {found.before_us:,.2f} us of work before the first DMA, {found.after_us:,.2f} us "
            "after the last"
        )


def _sensitivity(found: Profile) -> Table:
    low, high = found.sensitivity_range_us()
    base = found.phases.phase0_us
    most = found.sensitivity[0]
    title = f"sensitivity: {low:,.2f} to {high:,.2f} us (phase 0: {base:,.2f}); {most.constant} matters most"
    if most.spread_us(base) == 0.0:
        title = f"sensitivity: none of the inferred constants moves the {base:,.2f} us of phase 0"
    table = Table(title=title, title_justify="left")
    for heading in ("inferred constant", "low", "high", "us at low", "us at high"):
        table.add_column(heading, justify="left" if heading == "inferred constant" else "right")
    for one in found.sensitivity:
        table.add_row(one.constant, f"{one.low:g}", f"{one.high:g}", f"{one.low_us:,.2f}", f"{one.high_us:,.2f}")
    return table
