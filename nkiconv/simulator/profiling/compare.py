"""Two profiles side by side: their differences in us and counts. All times are modelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from .show import ROWS, plain_text, short_path, table

if TYPE_CHECKING:
    from .report import Profile

#: Numbers of a profile that are compared besides its times: their words, and which.
_COUNTS = (
    ("instructions", "instructions"),
    ("DMA transfers", "dma_transfers"),
    ("DMA bytes", "dma_bytes"),
    ("HBM bytes", "hbm_bytes"),
    ("flops issued", "matmul_flops"),
    ("SBUF bytes per partition", "sbuf_peak_bytes"),
    ("PSUM banks", "psum_peak_banks"),
)


@dataclass(frozen=True)
class Row:
    """One number of both profiles; us: whether it is a time."""

    what: str
    before: float
    after: float
    us: bool

    @property
    def change(self) -> str:
        """The second over the first."""
        if self.before == 0.0:
            return "" if self.after == 0.0 else "new"
        return f"{self.after / self.before - 1.0:+.1%}"

    def cells(self) -> tuple[str, ...]:
        """A table's row."""
        numbers = (f"{value:,.2f}" if self.us else f"{value:,.0f}" for value in (self.before, self.after))
        return self.what, *numbers, self.change


@dataclass(frozen=True)
class Comparison:
    """The differences between two profiles: `print` it, or take its rows."""

    before: Profile
    after: Profile

    def rows(self) -> list[Row]:
        """Totals, engines' busy time, counts."""
        return [*self._times(), *self._engines(), *self._counts()]

    def path_rows(self) -> list[Row]:
        """Kinds of work on the critical paths, and source lines where either has much of its time, most moved first."""
        found = []
        for name in ("path_kinds", "path_lines"):
            shares = [{one.what: one.us for one in getattr(side, name)} for side in (self.before, self.after)]
            whats = dict.fromkeys([*shares[0], *shares[1]])
            rows = [Row(short_path(what), shares[0].get(what, 0.0), shares[1].get(what, 0.0), True) for what in whats]
            found += sorted(rows, key=lambda row: -abs(row.after - row.before))[:ROWS]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = {row.what: {"before": row.before, "after": row.after} for row in self.rows()}
        return {"before": self.before.as_dict(), "after": self.after.as_dict(), "rows": rows}

    def show(self, screen: Console) -> None:
        """Print it."""
        before, after = self.before, self.after
        screen.print(Text(f"{before.kernel} -> {after.kernel}", style="bold"))
        speed = before.modelled_us / after.modelled_us
        told = f"{speed:.3f} times as fast" if speed >= 1.0 else f"{1.0 / speed:.3f} times as long"
        screen.print(Text(f"modelled {before.modelled_us:,.2f} -> {after.modelled_us:,.2f} us: {told}"))
        if before.bound_by != after.bound_by:
            screen.print(Text(f"bound by {before.bound_by} -> {after.bound_by}"))
        for title, rows in (
            ("totals, engines, counts", self.rows()),
            ("critical path, what moved most", self.path_rows()),
        ):
            screen.print(table(title, ("before", "after", "change"), (row.cells() for row in rows)))

    def __str__(self) -> str:
        return plain_text(self.show)

    def _times(self) -> Iterator[Row]:
        for what, name in (("mean", "mean_us"), ("phase 0", "phase0_us"), ("worst phase", "worst_us")):
            yield Row(f"{what}, us", getattr(self.before.phases, name), getattr(self.after.phases, name), True)
        yield Row("look-ahead, us", self.before.lookahead_us, self.after.lookahead_us, True)
        yield Row("roofline, us", self.before.roofline_us, self.after.roofline_us, True)

    def _engines(self) -> Iterator[Row]:
        sides = (self.before, self.after)
        for name in dict.fromkeys(use.engine for side in sides for use in side.engines):
            busy = [sum(use.busy_us for use in side.engines if use.engine == name) / side.lnc for side in sides]
            if any(busy):
                yield Row(f"{name} busy, us", busy[0], busy[1], True)

    def _counts(self) -> Iterator[Row]:
        for what, name in _COUNTS:
            yield Row(what, getattr(self.before, name), getattr(self.after, name), False)
