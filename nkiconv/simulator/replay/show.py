"""Comparisons as text: aligned columns for a terminal, or Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .compare import Comparison, Span
from .rows import Row

_SPANS = ("trace", "seen ns", "in order", "%", "overtaking", "%", "first loads seen", "%", "all DMAs seen", "%")
_ROWS = (
    "opcode", "engine", "memory", "dtype", "N", "state", "count", "LAT seen", "LAT", "%", "ISSUE seen", "ISSUE", "%",
)  # fmt: skip
_STEPS = ("predicted ns", "seen ns", "growth ns", "where on the predicted critical path")
#: Growth of predicted minus seen, in ns, from which a step is worth a line.
SHOWN_NS = 50.0


def spans_table(found: Iterable[Comparison], *, markdown: bool) -> str:
    """One line a trace: its span and the replays' spans."""
    lines = []
    for one in found:
        ways: tuple[Span, ...] = (one.in_order, one.overtaking, one.first_loads_seen, one.dmas_seen)
        cells = [text for way in ways for text in (_ns(way.predicted_ns), _percent(way.error))]
        lines.append((one.name, _ns(one.in_order.seen_ns), *cells))
    return _table(_SPANS, lines, markdown)


def rows_table(rows: Iterable[Row], *, markdown: bool) -> str:
    """One line a kind of instruction."""
    lines = [
        (
            row.opcode, row.engine, row.memory, row.dtype, row.n, row.state, str(row.count),
            _ns(row.seen_latency_ns), _ns(row.latency_ns), _percent(row.latency_error),
            _ns(row.seen_issue_ns), _ns(row.issue_ns), _percent(row.issue_error),
        )
        for row in rows
    ]  # fmt: skip
    return _table(_ROWS, lines, markdown)


def steps_table(span: Span, *, markdown: bool) -> str:
    """The steps at which prediction and trace part."""
    lines = [
        (_ns(step.predicted_ns), _ns(step.seen_ns), f"{step.gap_ns:+.0f}", step.what)
        for step in span.steps
        if abs(step.gap_ns) >= SHOWN_NS
    ]
    return _table(_STEPS, lines, markdown)


def _ns(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], markdown: bool) -> str:
    if markdown:
        body = [head, ["---"] * len(head), *lines]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in body)
    widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in (head, *lines)
    )
