"""The cost of launching a model's kernels, beside their time on the device, by how torch runs them on trn2.

Measured by others (`host.` in simulator/trn2.toml): eager, each launch is dispatched by itself; compiled, a graph is
launched as one, and a kernel in it takes a few us more; xla, each launch is recorded on the host. How far host and
device work at the same time nobody has published: sums are without overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...simulator.hardware import CONSTANTS

#: By mode: constants, and how often each counts for so many launches and graphs.
_PARTS: dict[str, tuple[tuple[str, Callable[[int, int], int]], ...]] = {
    "eager": (("host.eager_launch_us", lambda launches, graphs: launches),),
    "compiled": (
        ("host.graph_launch_us", lambda launches, graphs: graphs),
        ("scheduling.call_overhead_us", lambda launches, graphs: launches),
    ),
    "xla": (("host.xla_launch_us", lambda launches, graphs: launches),),
}


@dataclass(frozen=True)
class LaunchCost:
    """Of all launches of one run, in us. low, high: with the ends of the constants' ranges."""

    mode: str
    launches: int
    us: float
    low: float
    high: float
    words: str  # how it is made up

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ends = {"launches_us_low": self.low, "launches_us_high": self.high}
        return {"mode": self.mode, "launches_us": self.us, **ends}


def launch_cost(mode: str, launches: int, graphs: int) -> LaunchCost:
    """The cost of a number of launches in a mode of launches.MODES; graphs: how many the compiled model is cut into."""
    parts = [(CONSTANTS[name], count(launches, graphs)) for name, count in _PARTS[mode]]
    us, low, high = (sum(count * getattr(one, end) for one, count in parts) for end in ("value", "low", "high"))
    said = [f"{count:,} x {one.value:g} ({one.low:g} to {one.high:g}, {one.standing})" for one, count in parts]
    return LaunchCost(mode, launches, us, low, high, " + ".join(said))
