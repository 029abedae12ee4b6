"""Two targets side by side: the constants in which they differ, and the plans that change from one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...cases import Case
from ...errors import raise_all
from ...planner import Plan, Request
from ...planner.entry import answer
from ...simulator.constants import Constant
from ...simulator.hardware import CONSTANTS
from ...simulator.profiling import Advance, ignore
from ..suites.profiles import profile_case
from ..verify import case_operation, case_refusals

#: A request's overrides of constants.
Overrides = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Difference:
    """A constant that two targets have with another value."""

    name: str
    unit: str
    old: float
    new: float

    @property
    def ratio(self) -> float:
        """New over old; infinite where the old one is 0."""
        return self.new / self.old if self.old else float("inf")


@dataclass(frozen=True)
class Change:
    """A case's plans under both targets; times in us, modelled."""

    case: str
    old: Plan  # under the old constants
    kept_us: float  # its time under the new ones
    new: Plan  # the plan that a search finds under the new constants

    @property
    def is_other(self) -> bool:
        """Whether another algorithm, or other settings, take less under the new constants."""
        return self.new.modelled_us < self.kept_us


@dataclass(frozen=True)
class Comparison:
    """The differences between two targets."""

    constants: tuple[Difference, ...]
    changes: tuple[Change, ...]  # one for each case

    def constant_rows(self) -> Iterator[tuple[str, ...]]:
        """Constant, old and new value, ratio, unit."""
        for one in self.constants:
            yield one.name, f"{one.old:g}", f"{one.new:g}", f"{one.ratio:.3g}", one.unit

    def case_rows(self) -> Iterator[tuple[str, ...]]:
        """Case; us of the old plan under both targets, and of the best under the new one; gain; the plans, the new one
        named where it is another."""
        for one in self.changes:
            times = one.old.modelled_us, one.kept_us, min(one.kept_us, one.new.modelled_us)
            plans = (f"{plan.algorithm}, {plan.settings}" for plan in (one.old, one.new))
            cells = plans if one.is_other else (one.old.algorithm, "the same")
            yield (one.case, *(f"{us:,.2f}" for us in times), f"{times[1] / times[2]:.3f}", *cells)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        constants = [{"constant": one.name, "old": one.old, "new": one.new} for one in self.constants]
        cases = [
            {
                "case": one.case,
                "changes": one.is_other,
                "kept_us": one.kept_us,
                "old": one.old.as_dict(),
                "new": one.new.as_dict(),
            }
            for one in self.changes
        ]
        return {"constants": constants, "cases": cases}


def compare(
    old: Mapping[str, Constant],
    new: Mapping[str, Constant],
    cases: Iterable[Case],
    advance: Advance = ignore,
) -> Comparison:
    """The constants in which two targets differ, and the plans of cases under both; no plans if the targets are equal.

    Args: old, new: every constant of a target, as `load_target` returns them.
    Raises UnsupportedError: a case that cannot be planned, before any work.
    """
    chosen = list(cases)
    raise_all("these cases cannot be planned", [error for case in chosen for error in case_refusals(case)])
    found = tuple(Difference(name, new[name].unit, one.value, new[name].value) for name, one in old.items()
                  if one.value != new[name].value)  # fmt: skip
    changes = []
    for i, case in enumerate(chosen if found else ()):
        advance(case.name, i / len(chosen))
        changes.append(_change(case, _overrides(old), _overrides(new)))
    return Comparison(found, tuple(changes))


def _overrides(target: Mapping[str, Constant]) -> Overrides:
    """A target as changes of the constants in use."""
    return tuple(sorted((name, one.value) for name, one in target.items() if one.value != CONSTANTS[name].value))


def _change(case: Case, old: Overrides, new: Overrides) -> Change:
    before, after = (
        answer(Request(problem=case.problem, lnc=2, constants=constants, operation=case_operation(case).name))
        for constants in (old, new)
    )
    if (before.algorithm, before.config) == (after.algorithm, after.config):
        return Change(case.name, before, after.modelled_us, after)
    kept, _ = profile_case(case, algorithm=before.algorithm, config=before.config, constants=new)
    return Change(case.name, before, kept.profile.modelled_us, after)
