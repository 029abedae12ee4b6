"""DeepBench's convolution training list, planned in three directions, and a V100: `nkiconv bench --suite deepbench`.

Problems and times are those of github.com/baidu-research/DeepBench, code/kernels/conv_problems.h (training set) and
results/train/DeepBench_NV_V100.xlsx, the sheet of fp16 inputs with mixed math (CUDA 10.1, cuDNN 7.6.2), both kept in
data/deepbench.csv. Of ten first layers no gradient of x is published. Ours is modelled and theirs measured, so each
is held against its own hardware's limit, by one rule: flops of the definition, each element moved once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import __version__, cases
from ...cases import Case
from ...errors import UnsupportedError
from ...planner import Plan, Request
from ...planner.cache import sources_hash
from ...rules import DIRECTIONS
from ...simulator.dtypes import canonical
from ...simulator.profiling import Advance
from ...simulator.profiling.roofline import roofline
from ...simulator.timing import Rates
from ..verify import case_operation
from .csv_rows import measured
from .suite import geometric_mean, plan_of, within

SUITE = "deepbench"
#: Of x and y in memory, where no other is asked for.
LAYOUT = "NHWC"
#: Of one V100 SXM2: tensor cores on fp16, and HBM2. Flops and bytes a us.
V100_FLOPS, V100_BYTES = 125e6, 900e3


@functools.cache
def published() -> dict[tuple[str, str], float]:
    """(case, direction) -> us on a V100. Measured, by others."""
    return {
        (row["name"], direction): float(us)
        for row in measured(f"{SUITE}.csv")
        for direction in DIRECTIONS
        if (us := row[f"v100_{direction}_us"])
    }


@dataclass(frozen=True)
class DeepBenchRow:
    """A problem in one direction: a plan, modelled, and a V100's published time, if there is one."""

    case: Case  # the convolution, in any direction
    direction: str
    plan: Plan

    @property
    def limit(self) -> str:
        """The problem's limit on trn2: "hbm" or "array"."""
        problem, lnc = self.plan.problem, self.plan.lnc
        found = roofline(problem.min_bytes, problem.flops, canonical(problem.dtype) or "", lnc, Rates())
        return "array" if found.limit == "flops" else "hbm"

    @property
    def v100_us(self) -> float | None:
        """Measured time."""
        return published().get((self.case.name, self.direction))

    @property
    def v100_fraction(self) -> float | None:
        """Share of its own limit that the V100 reaches; its gradient of w is fp16: the bytes are those of forward."""
        problem = self.case.problem if self.direction == "wgrad" else self.plan.problem
        return None if self.v100_us is None else v100_limit_us(problem.flops, problem.min_bytes) / self.v100_us

    @property
    def v100_of_peak(self) -> float | None:
        """Share of its peak that the V100 reaches."""
        return None if self.v100_us is None else v100_limit_us(self.case.problem.flops, 0) / self.v100_us

    @property
    def behind(self) -> str:
        """Why ours reaches a smaller share of its limit than the V100; empty where it does not."""
        theirs = self.v100_fraction
        if theirs is None or self.plan.roofline_fraction >= theirs:
            return ""
        return f"yes: {self.plan.bound_by} busy, limit {self.limit}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, a value a column of the CSV."""
        plan, problem = self.plan, self.case.problem
        return {
            "case": self.case.name,
            "source": self.case.source,
            "direction": self.direction,
            "x": f"{problem.N} {problem.C} {problem.H} {problem.W}",
            "w": f"{problem.K} {problem.C} {problem.R} {problem.S}",
            "stride": "x".join(map(str, problem.stride)),
            "layout": problem.layout,
            "dtype": problem.dtype,
            "lnc": plan.lnc,
            **{name: getattr(plan, name) for name in ("algorithm", "settings", "modelled_us", "extrapolated_from")},
            "roofline_us": plan.roofline_us,
            "roofline_fraction": plan.roofline_fraction,
            "limit": self.limit,
            "bound_by": plan.bound_by,
            "instructions": plan.instructions,
            **{name: getattr(self, name) for name in ("v100_us", "v100_fraction", "v100_of_peak", "behind")},
            "version": __version__,
            "sources": sources_hash(),
        }


def v100_limit_us(flops: int, moved: int) -> float:
    """The least time on a V100 for these flops and bytes."""
    return max(flops / V100_FLOPS, moved / V100_BYTES)


def chosen(only: str | None, layout: str | None) -> list[Case]:
    """The problems, or those with `only` in their name. Raises UnsupportedError, LayoutError: none, or no such."""
    found = [case for case in cases.load(SUITE) if only is None or only in case.name]
    if not found:
        raise UnsupportedError(f"--only={only}: no case has this in its name; they are {', '.join(cases.names(SUITE))}")
    return [dataclasses.replace(case, problem=case.problem.replace(layout=layout or LAYOUT)) for case in found]


def rows(found: Sequence[Case], *, lnc: int, wide: bool, advance: Advance) -> Iterator[DeepBenchRow]:
    """A row for each direction and problem. wide: plans are those of `nkiconv tune`."""
    whole = [(direction, case) for direction in DIRECTIONS for case in found]
    for i, (direction, case) in enumerate(whole):
        turned = case.toward(direction)
        told = within(advance, f"{case.name} {direction}", i / len(whole))
        request = Request(problem=turned.problem, lnc=lnc, operation=case_operation(turned).name)
        yield DeepBenchRow(case, direction, plan_of(request, wide, told))


def means(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of rows as dictionaries: geometric means of each direction, over all, and over those that a V100 has, too."""
    told = []
    for direction in dict.fromkeys(row["direction"] for row in found):
        some = [row for row in found if row["direction"] == direction]
        matched = [row for row in some if row["v100_fraction"] is not None]
        told.append(
            {
                "direction": direction,
                "rows": len(some),
                "roofline_fraction": geometric_mean(row["roofline_fraction"] for row in some)[0],
                "v100_rows": len(matched),
                "matched_fraction": geometric_mean(row["roofline_fraction"] for row in matched)[0],
                "v100_fraction": geometric_mean(row["v100_fraction"] for row in matched)[0],
                "v100_of_peak": geometric_mean(row["v100_of_peak"] for row in matched)[0],
                "behind": sum(bool(row["behind"]) for row in some),
            }
        )
    return told
