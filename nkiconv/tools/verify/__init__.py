"""Convolutions compared with the float64 reference, for `nkiconv run`, `bench` and `demo`."""

from __future__ import annotations

from typing import Any

from ...cases import Case
from ...reference import AnyArray
from .choice import case_arrays, case_operation, case_refusals, name_violations
from .chunks import verify_chunks
from .comparison import Comparison, compare, compare_channels
from .conv import verify_conv
from .depthwise_conv1d import verify_depthwise_conv1d
from .report import Channels, Report

__all__ = [
    "Channels",
    "Comparison",
    "Report",
    "case_arrays",
    "case_operation",
    "case_refusals",
    "compare",
    "compare_channels",
    "name_violations",
    "verify_case",
    "verify_chunks",
    "verify_conv",
    "verify_depthwise_conv1d",
]


def verify_case(case: Case, x: AnyArray, w: AnyArray, **how: Any) -> list[Report]:
    """A report for each LNC degree of a case with its arrays; how: as `verify_depthwise_conv1d` or `verify_conv`."""
    verify = verify_depthwise_conv1d if case.suite == "depthwise_conv1d" else verify_conv
    return verify(case.name, x, w, case.problem, **how)[0]
