"""The headline cases of a suite, planned, checked, modelled, and held against the baselines: `nkiconv bench --suite`.

A row is made in three steps. The planner chooses; the choice runs on data and is compared with the float64 reference,
on all channels or, of big problems, on a sample that keeps its tiles whole; then the whole problem is profiled, and
each baseline algorithm is modelled on the same problem.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import __version__
from ...cases import Case
from ...errors import UnsupportedError
from ...planner import Plan, Request
from ...planner.cache import sources_hash
from ...planner.entry import answer
from ...planner.plan import TIMED, TUNED
from ...simulator.profiling import Advance
from ..verify import Channels, Report, case_arrays, case_operation, verify_case
from .csv_rows import measured
from .profile_table import headline
from .profiles import CaseProfile, profile_case

#: Suites that have a bench, by the name that --suite takes: the suite of cases, and the algorithms that its plans are
#: held against.
SUITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "depthwise": ("depthwise_conv1d", ()),
    "conv2d": ("conv2d", ("implicit_gemm",)),
    "conv3d": ("conv3d", ("implicit_gemm",)),
    "conv_transpose": ("conv_transpose", ("implicit_gemm",)),
}
#: Decides the data of the check.
SEED = 0
#: Elements of x and y of a depthwise conv1d up to which every channel is checked, and the channels that are of larger
#: ones.
CHECKED_ELEMS, CHECKED_CHANNELS = 1 << 23, 256


@functools.cache
def h200_fractions() -> dict[tuple[str, str], float]:
    """(case, dtype) -> share of an H200's own limit that cuDNN reaches there, measured elsewhere. Of fp32 arrays it was
    timed with products in tf32 where it has such a kernel."""
    return {
        (name, row["dtype"].replace("tf32", "fp32")): float(row["fraction"])
        for row in measured("h200_cudnn.csv")
        for name in row["cases"].split()
    }


@dataclass(frozen=True)
class Baseline:
    """A baseline's modelled us, mean over phases; None with the reason where it does not run."""

    us: float | None
    extrapolated_from: int | None = None  # channels; None: modelled on the whole problem
    reason: str = ""


@dataclass(frozen=True)
class SuiteRow:
    """One case in one dtype; every time is modelled."""

    case: str
    dtype: str
    plan: Plan
    report: Report
    profile: CaseProfile
    baselines: dict[str, Baseline]

    @property
    def us(self) -> float:
        """Modelled time of the plan, mean over the phases that a profile tries."""
        return self.profile.profile.modelled_us

    def times_faster_than(self, baseline: str) -> float | None:
        """The baseline's time over the plan's."""
        other = self.baselines[baseline].us
        return None if other is None else other / self.us

    @property
    def reload(self) -> float:
        """Bytes that all DMAs move over the least: x and w read once, y written once."""
        return self.profile.profile.hbm_bytes / self.profile.problem.min_bytes

    @property
    def h200_fraction(self) -> float | None:
        """Share of its own limit that cuDNN reaches on an H200; None where the shape is not measured."""
        return h200_fractions().get((self.case, self.dtype))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, a value a column of the CSV."""
        found, check = self.profile.profile, self.report.comparison
        return {
            "case": self.case,
            "dtype": self.dtype,
            "lnc": self.profile.lnc,
            "algorithm": self.plan.algorithm,
            "settings": self.plan.settings,
            "verdict": self.report.verdict,
            "channels_checked": self.report.channels_checked,
            "worst_ratio": check.worst_ratio,
            "modelled_us": self.us,
            "modelled_phase0_us": found.phases.phase0_us,
            "modelled_worst_us": found.phases.worst_us,
            "modelled_lookahead_us": found.lookahead_us,
            **{f"{name}_us": one.us for name, one in self.baselines.items()},
            **{f"x_{name}": self.times_faster_than(name) for name in self.baselines},
            "copy_floor_us": self.profile.floors.copy_us,
            "x_copy_floor": self.profile.x_copy_floor,
            "roofline_us": found.roofline_us,
            "roofline_fraction": found.roofline_fraction,
            "h200_cudnn_fraction": self.h200_fraction,
            "bound_by": found.bound_by,
            "instructions": found.instructions,
            "reload": self.reload,
            "sbuf_bytes_per_partition": found.sbuf_peak_bytes,
            "psum_banks": found.psum_peak_banks,
            "version": __version__,
            "sources": sources_hash(),
        }


def chosen(suite: str, only: str | None = None) -> list[tuple[Case, str]]:
    """(case, dtype) of a suite's headline cases; `only` those with this in their name.

    Raises UnsupportedError: there is no such suite, or no such case.
    """
    if suite not in SUITES:
        raise UnsupportedError(f"--suite={suite}: unknown name; use one of {', '.join(SUITES)}")
    every = [(case, dtype) for case, dtype in headline() if case.suite == SUITES[suite][0]]
    found = [(case, dtype) for case, dtype in every if only is None or only in case.name]
    if not found:
        names = ", ".join(dict.fromkeys(case.name for case, _ in every))
        raise UnsupportedError(f"--only={only}: no headline case has this in its name; they are {names}")
    return found


def rows(
    pairs: Sequence[tuple[Case, str]], *, lnc: int = 2, wide: bool = False, advance: Advance
) -> Iterator[SuiteRow]:
    """A row for each (case, dtype). wide: plans are those of `nkiconv tune`."""
    for i, (case, dtype) in enumerate(pairs):
        yield row(case, dtype, lnc, wide=wide, advance=within(advance, f"{case.name} {dtype}", i / len(pairs)))


def row(case: Case, dtype: str, lnc: int, *, wide: bool, advance: Advance) -> SuiteRow:
    """Plan, check, profile and compare one case."""
    problem = case.problem.replace(dtype=dtype)
    operation = case_operation(case).name
    plan = plan_of(Request(problem=problem, lnc=lnc, operation=operation), wide, advance)
    of_dtype = dataclasses.replace(case, problem=problem)
    x, w = case_arrays(of_dtype, SEED)
    [report] = verify_case(
        of_dtype, x, w, degrees=(lnc,), algorithm=plan.algorithm, config=plan.config, channels=_checked(of_dtype),
        advance=advance,
    )  # fmt: skip
    profile, _ = profile_case(case, dtype=dtype, lnc=lnc, algorithm=plan.algorithm, config=plan.config, advance=advance)
    baselines = {}
    for name in next(names for of, names in SUITES.values() if of == case.suite):
        request = Request(problem=problem, lnc=lnc, operation=operation, algorithms=(name,))
        baselines[name] = _baseline(request, advance)
    return SuiteRow(case.name, dtype, plan, report, profile, baselines)


def _checked(case: Case) -> Channels:
    """How many channels are checked; of others, which run as a whole, as many as its check thinks fit."""
    problem = case.problem
    if case.suite != "depthwise_conv1d":
        return "auto"
    return "all" if problem.N * problem.C * (problem.W + problem.Q) <= CHECKED_ELEMS else CHECKED_CHANNELS


def plan_of(request: Request, wide: bool, advance: Advance) -> Plan:
    """The plan of a quick or a wide search, without this user's tuned plans: rows depend on kernels and model alone."""
    found = answer(request, wide=wide, advance=advance)
    if found.effort != (TUNED if wide else TIMED):
        found = answer(request, use_cache=False, advance=advance)
    return found


def _baseline(request: Request, advance: Advance) -> Baseline:
    try:
        found = plan_of(request, False, advance)
    except UnsupportedError as error:
        return Baseline(None, reason=error.violations[0])
    return Baseline(found.modelled_us, found.extrapolated_from)


def within(advance: Advance, name: str, share: float) -> Advance:
    """The progress of one of several rows: its name, and the share of the rows before it."""
    return lambda what, _share: advance(f"{name}: {what}", share)


def geometric_mean(values: Iterable[float | None]) -> tuple[float, int]:
    """The geometric mean of the values that there are, and how many those are; (nan, 0) of none."""
    known = [math.log(value) for value in values if value is not None]
    return (math.exp(sum(known) / len(known)) if known else math.nan), len(known)


def means(found: Sequence[SuiteRow]) -> dict[str, tuple[float, int]]:
    """Geometric means over the rows, by column, and of how many rows."""
    return {
        **{f"x_{name}": geometric_mean(one.times_faster_than(name) for one in found) for name in found[0].baselines},
        "x_copy_floor": geometric_mean(one.profile.x_copy_floor for one in found),
        "roofline_fraction": geometric_mean(one.profile.profile.roofline_fraction for one in found),
    }
