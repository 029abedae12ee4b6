"""The planner: algorithm and settings of a problem, by cost models or by timing kernels in the simulator without data.

`entry` answers requests: by `estimate`, from the bounds in `cost`, or by `search`, which times the best candidates of
`candidates`. An `operation` is a public kernel, a `Plan` is the answer and has its alternatives; `cache` keeps it.
Under AWS's NKI `child` starts a separate process that searches, `serve`.
"""

from __future__ import annotations

from .explain import Alternative, Rejection
from .plan import Plan
from .request import Asked, Config, Request

__all__ = ["Alternative", "Asked", "Config", "Plan", "Rejection", "Request"]
