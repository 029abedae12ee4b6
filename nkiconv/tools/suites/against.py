"""A suite's plans and AWS's own kernel, which is loaded from a checkout of nki-library: `nkiconv bench --against`.

Both are timed by the same model, without data, on the same cores. AWS's kernel is written for a compiler that reorders,
so its time in look-ahead order is compared with that of program order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...cases import Case
from ...errors import UnsupportedError
from ...planner import Plan, Request
from ...planner.request import nl_name
from ...problem import ConvProblem
from ...simulator import ArraySpec, execute
from ...simulator.profiling import Advance, profile
from ..verify import case_arrays, compare
from ..verify.launched import in_a_line
from .nki_library import Library, opened
from .suite import SEED, chosen, plan_of, within

#: The suite that their kernel can run.
SUITE = "depthwise"
#: Instructions, all cores, up to which their kernel is traced and timed: some
#: twenty seconds, and half a gigabyte.
INSTRUCTIONS_MAX = 200_000
#: Channels of a core that their results are checked on.
CHECKED_CHANNELS = 2


@dataclass(frozen=True)
class Theirs:
    """Modelled times of their kernel in us, as of a `Profile`; without them the reason."""

    us: float | None = None
    phase0_us: float | None = None
    worst_us: float | None = None
    lookahead_us: float | None = None
    bound_by: str = ""
    instructions: int | None = None
    check: str = ""  # of a few channels on data: "pass", "wrong" or the refusal; "" if not asked for
    reason: str = ""


@dataclass(frozen=True)
class AgainstRow:
    """One case in one dtype."""

    case: str
    dtype: str
    plan: Plan
    theirs: Theirs
    sha256: str

    @property
    def times_faster(self) -> float | None:
        """Their modelled time over ours, means over phases, both in program order."""
        return None if self.theirs.us is None else self.theirs.us / self.plan.modelled_us

    @property
    def times_faster_than_lookahead(self) -> float | None:
        """Theirs in look-ahead order over ours in program order, phase 0."""
        return None if self.theirs.lookahead_us is None else self.theirs.lookahead_us / self.plan.phase0_us

    def as_dict(self) -> dict[str, Any]:
        """Plain data, a value a column of the CSV."""
        plan = self.plan
        return {
            "case": self.case,
            "dtype": self.dtype,
            "lnc": plan.lnc,
            **{f"nki_library_{name}": value for name, value in vars(self.theirs).items()},
            "nki_library_sha256": self.sha256,
            "algorithm": plan.algorithm,
            "settings": plan.settings,
            "modelled_us": plan.modelled_us,
            "modelled_phase0_us": plan.phase0_us,
            "extrapolated_from": plan.extrapolated_from,
            "instructions": plan.instructions,
            "x_nki_library": self.times_faster,
            "x_nki_library_lookahead": self.times_faster_than_lookahead,
        }


def pairs_of(suite: str, only: str | None) -> list[tuple[Case, str]]:
    """(case, dtype) of the headline cases. Raises UnsupportedError: another suite than theirs, or no such case."""
    if suite != SUITE:
        raise UnsupportedError(f"--suite={suite}: --against has a kernel for {SUITE} only; give --suite {SUITE}")
    return chosen(suite, only)


def rows(
    checkout: Path, pairs: Sequence[tuple[Case, str]], *, lnc: int, wide: bool, check: bool, advance: Advance
) -> Iterator[AgainstRow]:
    """A row for each (case, dtype). check: also run their kernel on a few channels against the float64 reference.

    Raises as `nki_library.opened`.
    """
    with opened(checkout) as library:
        for i, (case, dtype) in enumerate(pairs):
            told = within(advance, f"{case.name} {dtype}", i / len(pairs))
            problem = case.problem.replace(dtype=dtype)
            plan = plan_of(Request(problem=problem, lnc=lnc, operation="depthwise_conv1d"), wide, told)
            theirs = time_theirs(library, problem, lnc, told)
            if check and theirs.us is not None:
                told("theirs on data", None)
                theirs = _checked(library, case, dtype, lnc, theirs)
            yield AgainstRow(case.name, dtype, plan, theirs, library.sha256)


def time_theirs(library: Library, problem: ConvProblem, lnc: int, advance: Advance) -> Theirs:
    """Their kernel's modelled time of a problem, or why there is none."""
    if problem.C % lnc:
        return Theirs(reason=f"C={problem.C}: it asks for a multiple of the {lnc} cores")
    try:
        advance("counting theirs", None)
        count = _instructions(library, problem, lnc)
        if count > INSTRUCTIONS_MAX:
            return Theirs(
                instructions=count,
                reason=f"about {count:,} instructions; those above {INSTRUCTIONS_MAX:,} are not timed",
            )
        advance(f"timing theirs, {count:,} instructions", None)
        found = profile(library.kernel[lnc])(*_specs(problem), **_arguments(problem))
    except Exception as error:  # of a kernel that anybody may have changed
        return Theirs(reason=in_a_line(error))
    return Theirs(
        found.modelled_us, found.phases.phase0_us, found.phases.worst_us, found.lookahead_us, found.bound_by,
        found.instructions,
    )  # fmt: skip


def _instructions(library: Library, problem: ConvProblem, lnc: int) -> int:
    """Instructions of the whole, by the line through those of one image of one and of two channels a core."""
    counts = []
    for channels in (lnc, 2 * lnc):
        few = _few(problem, channels).replace(N=1)
        counts.append(len(execute(library.kernel[lnc], _specs(few), _arguments(few), trace_only=True).instructions))
    return counts[0] + (counts[1] - counts[0]) * (problem.N * problem.C // lnc - 1)


def _checked(library: Library, case: Case, dtype: str, lnc: int, theirs: Theirs) -> Theirs:
    few = _few(case.problem.replace(dtype=dtype), min(case.problem.C, CHECKED_CHANNELS * lnc))
    x, w = case_arrays(dataclasses.replace(case, problem=few), SEED)
    try:
        y = execute(library.kernel[lnc], (x[:, :, None], w[:, None, None]), _arguments(few)).outputs
    except Exception as error:
        return dataclasses.replace(theirs, check=in_a_line(error))
    right = compare(y[:, :, 0], x, w, few).num_wrong == 0
    return dataclasses.replace(theirs, check="pass" if right else "wrong")


def _few(problem: ConvProblem, channels: int) -> ConvProblem:
    return problem.replace(C=channels, K=channels, groups=channels)


def _specs(problem: ConvProblem) -> tuple[ArraySpec, ArraySpec]:
    dtype = nl_name(problem.dtype)
    return ArraySpec(problem.input_shape, dtype), ArraySpec(problem.filter_shape, dtype)


def _arguments(problem: ConvProblem) -> dict[str, Any]:
    """The arguments of AWS's signature: nkiconv's without its additions."""
    return {
        "padding": problem.padding,
        "stride": problem.stride,
        "rhs_dilation": problem.rhs_dilation,
        "lhs_dilation": problem.lhs_dilation,
        "feature_group_count": problem.C,
        "batch_group_count": 1,
    }
