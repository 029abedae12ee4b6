"""The least time that the hardware allows over that of estimates, for convolutions as models have them.

    make limits
    python tests/limits --count 20 --seed 8    other problems, on stdout

Problems are drawn at random (`practical_problems`), bf16, forward and both gradients, two cores. The limit is the
longer of flops at the Tensor Engines' rate and bytes at HBM's. A call takes the plan that nkiconv ships for a problem,
else its estimate. All times are modelled; nothing here ran on hardware.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nkiconv import ConvProblem
from nkiconv.planner.estimate import completed
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.planner.search import array_work, least_bytes
from nkiconv.simulator.dtypes import canonical
from nkiconv.simulator.launch import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.profiling.roofline import roofline
from nkiconv.simulator.timing import Rates
from nkiconv.whole_file import write_page

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from pooled import each
from practical_problems import KINDS, problems
from random_problems import text_of

DIRECTIONS = ("forward", "dgrad", "wgrad")
#: us of limits from which a fraction below `LOW` is told of, us from which times count as long, and worst rows.
LIMIT_US, LOW, LONG_US, WORST = 3, 0.15, 20, 20
#: Instructions of a kernel, all cores, that is still timed.
MOST = 100_000


@dataclass(frozen=True)
class Found:
    """A problem's limit and modelled time in us."""

    kind: str
    direction: str
    problem: ConvProblem
    algorithm: str
    limit_us: float
    us: float

    @property
    def fraction(self) -> float:
        """The limit over the time."""
        return self.limit_us / self.us


def found_of(kind: str, problem: ConvProblem, direction: str) -> Found | None:
    """What comes of a problem; None of one whose kernel is too long to time."""
    whole = problem.toward(direction) if direction != "forward" else problem
    request, rates = Request(problem=whole), Rates()
    algorithm, config = completed(request, None, None)
    operation = operation_for(request)
    args, kwargs = operation.launch(request, algorithm, config)
    execution = execute(operation.kernel[request.lnc], args, kwargs, trace_only=True)
    if len(execution.instructions) > MOST:
        return None
    flops, dtype = array_work(whole, request.asked)
    limit = roofline(least_bytes(whole, request.asked), flops, canonical(dtype) or "", request.lnc, rates)
    return Found(kind, direction, problem, algorithm, limit.us, in_time(execution, rates).us)


def middle(found: Sequence[Found]) -> str:
    """The median of their fractions; of none nothing."""
    return f"{statistics.median(one.fraction for one in found):.2f}" if found else ""


def page(found: Sequence[Found], left_out: int, count: int, seed: int) -> Iterator[str]:
    """The page's lines."""
    yield from ("# Limits over times", "", "Written by `make limits`; all times are modelled.", "")
    yield f"{count} problems, seed {seed}, three directions; left out: {left_out} of over {MOST:,} instructions."
    yield f"Low: fractions below {LOW} of limits of over {LIMIT_US} us."
    yield ""
    yield f"| | problems | median | above {LONG_US} us | sums | low |"
    yield "|---|---:|---:|---:|---:|---:|"
    for direction in DIRECTIONS:
        own = [one for one in found if one.direction == direction]
        long = [one for one in own if one.us > LONG_US]
        sums = sum(one.limit_us for one in own) / sum(one.us for one in own) if own else 0
        low = sum(one.limit_us > LIMIT_US and one.fraction < LOW for one in own)
        yield f"| {direction} | {len(own)} | {middle(own)} | {middle(long)} | {sums:.2f} | {low} |"
    yield from ("", f"| median | {' | '.join(DIRECTIONS)} |", f"|---|{'---:|' * len(DIRECTIONS)}")
    for kind in KINDS:
        cells = [[one for one in found if (one.kind, one.direction) == (kind, way)] for way in DIRECTIONS]
        yield f"| {kind} | {' | '.join(map(middle, cells))} |"
    yield from ("", "| fraction | limit, us | us | | algorithm | problem |", "|---:|---:|---:|---|---|---|")
    for one in sorted((one for one in found if one.limit_us > LIMIT_US), key=lambda one: one.fraction)[:WORST]:
        numbers = f"{one.fraction:.2f} | {one.limit_us:,.1f} | {one.us:,.1f}"
        yield f"| {numbers} | {one.direction} | {one.algorithm} | {text_of(one.problem)} |"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python tests/limits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=150, help="problems; default: 150")
    parser.add_argument("--seed", type=int, default=7, help="default: 7")
    parser.add_argument("--out", type=Path, help="the page to write; default: print it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one a core")
    asked = parser.parse_args()
    given = [(kind, one, way) for kind, one in problems(asked.count, asked.seed) for way in DIRECTIONS]
    every = each(found_of, given, "limits", asked.jobs)
    found = [one for one in every if one is not None]
    write_page(list(page(found, len(every) - len(found), asked.count, asked.seed)), asked.out)


if __name__ == "__main__":
    main()
