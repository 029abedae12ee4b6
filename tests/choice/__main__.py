"""Estimates against plans, on random problems: writes what it found, the worst first.

    make choice COUNT=500 SEED=47
    python tests/choice --clock     how near the clock of estimates is to the timeline of both cores, nothing else

Each problem is modelled whole, on two cores, the mean over the throttle's phases, as the estimate has it run and as
`nkiconv.plan` would. Those whose kernel has more than --most instructions either way are left out, and counted. Nothing
here ran on hardware.
"""

import argparse
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

import nkiconv
from nkiconv import ConvProblem, cases
from nkiconv.planner.estimate import chosen
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.planner.timing import phases
from nkiconv.simulator.errors import NkiError, TraceLimitError
from nkiconv.simulator.launch import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates
from nkiconv.whole_file import write_page

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
import random_problems
from requested import core_us

#: Instructions of a kernel, all cores, that is still timed.
MOST = 40_000
#: What shares are told of, and how many of the worst problems.
LIMITS, WORST = (1.05, 1.1, 1.3), 10


@dataclass(frozen=True)
class Found:
    """One problem: modelled us of the choice and of the plan, which algorithms they are, and the choice's ms of CPU."""

    problem: ConvProblem
    own: str
    own_us: float
    planned: str
    planned_us: float
    choosing_ms: float

    @property
    def times(self) -> float:
        """The choice's time over the plan's."""
        return self.own_us / self.planned_us


def found_of(problem: ConvProblem, most: int) -> Found | str:
    """What comes of a problem, or why it is left out."""
    request = Request(problem=problem)
    operation, rates = operation_for(request), Rates()
    shape = operation.shape(request, rates)
    began = time.process_time()
    algorithm, config = operation.choice(request, shape)
    choosing_ms = 1000 * (time.process_time() - began)
    args, kwargs = operation.launch(request, algorithm, config)
    execution = execute(operation.kernel[2], args, kwargs, trace_only=True)
    if len(execution.instructions) > most:
        return "the choice is too long"
    plan = nkiconv.plan(problem, use_cache=False)
    if not plan.whole:
        return "the plan is too long"
    own_us = phases(in_time(execution, rates), plan.phases).mean_us
    return Found(problem, algorithm, own_us, plan.algorithm, plan.modelled_us, choosing_ms)


def summary(found: Sequence[Found]) -> str:
    """The mean, the worst, shares beyond `LIMITS`, and what the choice takes of the host, in words."""
    times = [one.times for one in found]
    if not times:
        return "No problem was timed."
    mean = statistics.geometric_mean(times)
    shares = ", ".join(f"{sum(one > limit for one in times)} above {limit} x" for limit in LIMITS)
    took = sorted(one.choosing_ms for one in found)
    middle, most = took[len(took) // 2], took[math.ceil(0.95 * len(took)) - 1]
    return (
        f"Of {len(times)} problems, choice over plan: geometric mean {mean:.4f}, worst {max(times):.3f}; {shares}. "
        f"Choosing took {middle:.0f} ms of the host in the median, {most:.0f} ms at most for 95 %."
    )


def section(operation: str, count: int, seed: int, most: int, seconds: float) -> Iterator[str]:
    """One operation's results, as lines of Markdown; the first problems only, where all take more seconds."""
    found: list[Found] = []
    left_out: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for problem in track(random_problems.OF[operation](count, seed), description=operation):
        if time.monotonic() > end:
            break
        one = found_of(problem, most)
        if isinstance(one, str):
            left_out[one] += 1
        else:
            found.append(one)
    yield f"## {operation}: the first {len(found) + left_out.total()} of {count} problems, seed {seed}"
    yield ""
    yield summary(found)
    for reason, number in left_out.items():
        yield f"Left out: {number}, where {reason} (more than {most:,} instructions)."
    yield ""
    yield "| x | choice | modelled us | plan | modelled us | problem |"
    yield "|---:|---|---:|---|---:|---|"
    for one in sorted(found, key=lambda one: -one.times)[:WORST]:
        own, planned = f"{one.own} | {one.own_us:,.1f}", f"{one.planned} | {one.planned_us:,.1f}"
        yield f"| {one.times:.3f} | {own} | {planned} | {random_problems.text_of(one.problem)} |"
    yield ""


def clocked(problem: ConvProblem, most: int) -> tuple[str, float] | None:
    """(algorithm of the estimate, modelled us of core 1 alone over those of both cores); None of a long kernel."""
    request, rates = Request(problem=problem), Rates()
    found, operation = chosen(request), operation_for(request)
    kernel, args, kwargs = launch = operation.kernel[2], *operation.launch(request, found.algorithm, found.config)
    try:
        both = in_time(execute(kernel, args, kwargs, trace_only=True, most=most), rates).us
        return found.algorithm, core_us(launch, rates, most) / both
    except (TraceLimitError, NkiError):
        return None


def clocks(problems: Sequence[ConvProblem], most: int) -> Iterator[str]:
    """How far core 1 alone is from both cores, as lines of Markdown, by algorithm."""
    ratios: dict[str, list[float]] = {}
    for problem in track(problems, description="clock"):
        found = clocked(problem, most)
        if found is not None:
            ratios.setdefault(found[0], []).append(found[1])
    yield "Modelled us of core 1 alone over those of both cores, kernels of estimates."
    yield ""
    yield "| algorithm | kernels | median error | 90th percentile | least | most |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name in ["all", *sorted(ratios)]:
        found = sorted(ratios[name] if name != "all" else [one for every in ratios.values() for one in every])
        errors = sorted(abs(one - 1) for one in found)
        at = [errors[len(errors) // 2], errors[len(errors) * 9 // 10]]
        yield f"| {name} | {len(found)} | {at[0]:.1%} | {at[1]:.1%} | {found[0]:.2f} | {found[-1]:.2f} |"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python tests/choice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500, help="depthwise problems; conv2d has three tenths of it")
    parser.add_argument("--seed", type=int, default=47, help="decides the problems; default: 47")
    parser.add_argument("--most", type=int, default=MOST, help=f"instructions of a kernel; default: {MOST}")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for an operation, at most; default: no limit")
    parser.add_argument("--operation", choices=[*random_problems.OF], action="append", help="only this one")
    parser.add_argument("--clock", action="store_true", help="only how near the clock is to the timeline")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of stdout")
    asked = parser.parse_args()
    if asked.clock:
        named = [case.problem for suite in cases.SUITES for case in cases.load(suite)]
        drawn = [one for draw in random_problems.OF.values() for one in draw(asked.count * 3 // 10, asked.seed)]
        write_page(list(clocks([*named, *drawn], asked.most)), asked.out)
        return
    lines = ["# Estimates against plans", "", "Written by `make choice`; all times are modelled.", ""]
    for operation in asked.operation or random_problems.OF:
        count = asked.count if operation == "depthwise_conv1d" else max(1, asked.count * 3 // 10)
        lines += section(operation, count, asked.seed, asked.most, 60 * asked.minutes)
    write_page(lines, asked.out)


if __name__ == "__main__":
    main()
