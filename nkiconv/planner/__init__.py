"""The planner: which algorithm, with which settings, by timing the kernels in the simulator without data.

`entry.plan` answers. An `operation` is a public kernel, with a `family` for each of its algorithms; `candidates` lists
what may run, `search` times and ranks it, `plan` is what comes out, `cache` keeps it. Where AWS's NKI runs the kernels
`child` has a process of its own search, in which `serve` runs.
"""

from __future__ import annotations

from .alternatives import Alternative, Rejection
from .plan import Plan
from .request import Asked, Config, Request

__all__ = ["Alternative", "Asked", "Config", "Plan", "Rejection", "Request"]
