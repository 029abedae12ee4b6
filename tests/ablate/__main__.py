"""What each setting buys: the plans of the golden table, with one setting at a time held at its most frequent value.

    make ablate                               every setting of every algorithm: a table in Markdown
    make ablate OPTIONS="--only stacked"      settings of one algorithm

A row is a setting: the value that it is held at, how many plans have another and how many there are, how many of these
their kernel refuses then, the geometric mean over all plans of the algorithm of their modelled us (phase 0, two cores)
over those with the setting, and the plan that loses most. Plans that are refused are in no mean: they need the setting.
A setting pays that moves the mean by 0.3 % or a plan by 3 %. Nothing here ran on hardware.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import runpy
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Config, Request
from nkiconv.planner.timing import ranked_us
from nkiconv.simulator.launch import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from pooled import each

#: Of a plan that is timed again, instructions at most: the few longer ones would take as long as all others.
MOST = 50_000


@dataclass(frozen=True)
class Plan:
    """A plan of the golden table."""

    name: str
    request: Request
    algorithm: str
    config: tuple[tuple[str, Any], ...]
    us: float


@dataclass(frozen=True)
class Held:
    """A setting that is held at a value, and what that does to the plans that have another: (name, us over the
    plan's), None where the kernel refuses it."""

    algorithm: str
    setting: str
    value: Any
    plans: int
    changed: tuple[tuple[str, float | None], ...]

    @property
    def ratios(self) -> list[float]:
        """Of the plans whose kernel takes the value."""
        return [ratio for _, ratio in self.changed if ratio is not None]

    @property
    def mean(self) -> float:
        """Geometric mean over all plans that are not refused."""
        taken = self.plans - len(self.changed) + len(self.ratios)
        return math.exp(sum(map(math.log, self.ratios)) / max(1, taken))

    @property
    def worst(self) -> tuple[float, str]:
        """The largest ratio, and whose it is."""
        return max(((ratio, name) for name, ratio in self.changed if ratio is not None), default=(1.0, ""))

    def cells(self) -> list[str]:
        """Its row of the table."""
        refused, (worst, name) = len(self.changed) - len(self.ratios), self.worst
        held = str(self.value).replace("|", "/")
        return [
            *(self.algorithm, self.setting, held if len(held) < 30 else f"{held[:27]}..."),
            *(f"{len(self.changed)} of {self.plans}", str(refused), f"{self.mean:.4f}", f"{worst:.3f}", name),
        ]


def plans(only: str) -> list[Plan]:
    """Timed plans of the golden table that have settings, of algorithms whose name contains `only`."""
    table = runpy.run_path(str(Path(__file__).resolve().parents[1] / "golden" / "__main__.py"))
    rows, found = table["read"](), []
    for name, request in table["requests"]():
        row = rows[name, "timed"]
        if row.us and only in row.algorithm and int(row.instructions) <= MOST:
            config = ast.literal_eval(row.config) or ()
            found.append(Plan(name, request, row.algorithm, config, float(row.us)))
    return found


def held_values(every: Sequence[Plan]) -> dict[tuple[str, str], Any]:
    """The most frequent value of each (algorithm, setting)."""
    counts: dict[tuple[str, str], Counter[Any]] = {}
    for plan in every:
        for setting, value in plan.config:
            counts.setdefault((plan.algorithm, setting), Counter())[value] += 1
    return {key: count.most_common(1)[0][0] for key, count in counts.items()}


def ratio_of(plan: Plan, setting: str, value: Any) -> float | None:
    """us of a plan with another value of a setting over its own; None where the kernel refuses it."""
    request, rates, operation = plan.request, Rates(), operation_for(plan.request)
    config: Config = tuple((name, value if name == setting else own) for name, own in plan.config)
    if operation.kernel_reason(plan.algorithm, operation.whole_shape(request, rates), config):
        return None
    args, kwargs = operation.arguments(request, plan.algorithm, config)
    return ranked_us(in_time(execute(operation.kernel[2], args, kwargs, trace_only=True), rates)) / plan.us


def table_lines(held: Sequence[Held]) -> list[str]:
    """A table in Markdown, the settings that buy least first."""
    names = ["algorithm", "setting", "held at", "changes", "refused", "geometric mean", "worst", "of"]
    rows = [one.cells() for one in sorted(held, key=lambda one: (one.mean, one.worst))]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows)]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python tests/ablate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="algorithms whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one a core")
    asked = parser.parse_args()
    every = plans(asked.only)
    if not every:
        parser.error(f"--only={asked.only}: no plan of the golden table is of such an algorithm; drop it")
    values = held_values(every)
    tasks = [
        (plan, setting, values[plan.algorithm, setting])
        for plan in every
        for setting, value in plan.config
        if value != values.get((plan.algorithm, setting), value)
    ]
    ratios = each(ratio_of, tasks, "ablate", asked.jobs)
    changed: dict[tuple[str, str], list[tuple[str, float | None]]] = {key: [] for key in values}
    for (plan, setting, _), ratio in zip(tasks, ratios, strict=True):
        changed[plan.algorithm, setting].append((plan.name, ratio))
    counts = Counter(plan.algorithm for plan in every)
    found = [
        Held(algorithm, setting, value, counts[algorithm], tuple(changed[algorithm, setting]))
        for (algorithm, setting), value in values.items()
    ]
    print(*table_lines(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
