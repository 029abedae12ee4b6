"""How much of the critical path rests on constants without a measurement.

A link's time rests on a constant as far as it moves with it: its elasticity, the relative change of the link's price
for a relative change of the constant. A memset of 2,000 elements whose fixed part is inferred rests on it by 3 %.
"""

from __future__ import annotations

from ..hardware import CONSTANTS
from ..timing import SHARES, AnyPrice, DmaPrice, MeetPrice, Rates, TensorPrice, inferred, price, price_key
from .path import DMA_FLOW, DMA_ISSUE, DMA_START, HOP, ISSUE, Link
from .timed import Timed

#: Relative change of a constant by which elasticities are found.
_STEP = 0.01


def link_ns(kind: str, of: AnyPrice) -> float:
    """The part of a price that a link of the critical path spends."""
    if isinstance(of, DmaPrice):
        parts = {DMA_FLOW: sum(of.work_ns), DMA_START: of.first_packet_ns, DMA_ISSUE: of.issue_ns}
        return parts.get(kind, 0.0)
    if isinstance(of, MeetPrice):
        return of.seam_ns
    if isinstance(of, TensorPrice):
        return of.interval_ns + of.gap_ns if kind == ISSUE else of.stream_ns
    return of.issue_ns if kind == ISSUE else of.latency_ns


class Rests:
    """Finds the inferred share of links of one timed kernel; equal instructions are looked at once."""

    def __init__(self, timed: Timed) -> None:
        self._timed = timed
        self._known: dict[object, float] = {}

    def names(self, link: Link) -> list[str]:
        """The inferred constants that a link's price was made from."""
        return [constant.name for constant in inferred(link.constants)]

    def share(self, link: Link) -> float:
        """0 (measured, traced or documented) to 1 (proportional to inferred constants)."""
        names = self.names(link)
        if not names:
            return 0.0
        if link.kind == HOP:
            return 1.0
        source = self._timed.tasks.source[link.task]
        key = (link.kind, price_key(source))
        if key not in self._known:
            base = link_ns(link.kind, self._timed.prices[link.task])
            total = sum(abs(self._moved(link, name) - base) for name in names)
            self._known[key] = min(1.0, total / (base * _STEP)) if base > 0.0 else 0.0
        return self._known[key]

    def _moved(self, link: Link, name: str) -> float:
        """The link's price with one constant a little larger, or smaller where it is a share and nearly all."""
        overrides = {**self._timed.rates.overrides}
        value = overrides.get(name, CONSTANTS[name].value)
        larger = value * (1.0 + _STEP)
        overrides[name] = value * (1.0 - _STEP) if name in SHARES and larger > 1.0 else larger
        return link_ns(link.kind, price(self._timed.tasks.source[link.task], Rates(overrides)))
