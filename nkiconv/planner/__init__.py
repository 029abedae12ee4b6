"""The planner: which algorithm, with which settings, by cost models or by timing kernels in the simulator without data.

`entry` answers: by `estimate`, from the prices in `cost`, or by `search`, which times the best of what `candidates`
lists. An `operation` is a public kernel, `plan` is what comes out, `alternatives` what it was chosen from; `cache`
keeps it. Where AWS's NKI runs the kernels `child` has a process of its own search, in which `serve` runs.
"""

from __future__ import annotations

from .explain import Alternative, Rejection
from .plan import Plan
from .request import Asked, Config, Request

__all__ = ["Alternative", "Asked", "Config", "Plan", "Rejection", "Request"]
