"""Where the planner changes its mind: plans over a range of one extent, and the values between which they differ.

Each asked value gets a plan. Where two neighbours have different algorithms, values between them are planned by
bisection until the change is known to 1; a stretch whose two ends agree is taken to hold no change. All times are
modelled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import GeometryError, NkiconvError, UnsupportedError, raise_all
from ...planner import Alternative, Config, Plan, Request
from ...planner.entry import answer
from ...planner.explain import settings_text
from ...planner.operations import violations
from ...planner.request import sorted_constants
from ...problem import ConvProblem
from ...simulator.profiling import Advance, ignore

#: Extents that can be varied, and the values that a sweep takes without others.
VARIED: Mapping[str, tuple[int, ...]] = {
    "N": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "C": (1, 16, 64, 128, 256, 512, 1024, 2048, 4096),
    "W": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "S": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "Q": (1, 2, 4, 8, 16, 32, 64),
}
#: The other extents.
N, C, W, S = 1, 1024, 4096, 4
#: Below this much of the fastest time another algorithm is called as fast.
TIE = 1.005
#: The setting that makes two kinds of an algorithm, and how it is told.
_KINDS = {"banded": ("block", "B="), "update": ("engine", "")}
#: Settings that a table shows.
_SHORT = ("block", "engine", "recipes", "shard")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One extent of a depthwise conv1d, the values that it takes, and everything else, which stays."""

    vary: str
    values: tuple[int, ...] = ()  # ascending; none: those of `VARIED`
    N: int = N
    C: int = C
    W: int = W
    S: int = S
    dtype: str = "bf16"
    causal: bool = True  # S - 1 zeros on the left; else no padding, as always where Q is varied: W = Q + S - 1
    lnc: int = 2
    constants: Mapping[str, float] = field(default_factory=dict)  # modelling constants instead of trn2.toml's

    @property
    def asked(self) -> tuple[int, ...]:
        """The values of the table, ascending, each once."""
        return tuple(sorted(set(self.values or VARIED[self.vary])))

    def _fixed(self) -> dict[str, int]:
        """The extents that stay, by name."""
        known = {"N": self.N, "C": self.C, "W": self.W, "S": self.S}
        return {name: value for name, value in known.items() if name != self.vary and (name, self.vary) != ("W", "Q")}

    def request(self, value: int) -> Request:
        """The question to the planner at one value.

        Raises: GeometryError or DtypeError, where it makes no convolution.
        """
        extents = {**self._fixed(), self.vary: value}
        N, C, S = extents["N"], extents["C"], extents["S"]
        W = value + S - 1 if self.vary == "Q" else extents["W"]
        left = S - 1 if self.causal and self.vary != "Q" else 0
        problem = ConvProblem(N=N, C=C, W=W, S=S, groups=C, padding=((0, 0), (left, 0)), dtype=self.dtype)
        constants = sorted_constants(self.constants)
        return Request(problem=problem, lnc=self.lnc, constants=constants, operation="depthwise_conv1d")

    def check(self) -> None:
        """Check the sweep before any work.

        Raises: UnsupportedError, GeometryError or DtypeError, naming every violated rule.
        """
        if self.vary not in VARIED:
            raise UnsupportedError(f"vary={self.vary}: accepted are {', '.join(VARIED)}; use one of them")
        extents = [(f"values={value}", self.vary, value) for value in self.asked]
        extents += [(f"{name}={value}", name, value) for name, value in self._fixed().items()]
        errors = [
            GeometryError(f"{given}: must be at least 1 (it is {name}); use a positive int")
            for given, name, value in extents
            if value < 1
        ]
        raise_all("there is no sweep over these", errors)
        found: dict[str, NkiconvError] = {}
        for value in self.asked:
            try:
                refused = list(violations(self.request(value)))
            except NkiconvError as error:
                refused = [error]
            found.update((one, type(error)(one)) for error in refused for one in error.violations)
        raise_all("there is no sweep over these", found.values())


@dataclass(frozen=True)
class Point:
    """The plan at one value."""

    value: int
    plan: Plan
    between: bool = False  # whether only the search for a change asked for it

    @property
    def runner_up(self) -> Alternative | None:
        """The fastest of the other algorithms, or a lower bound of all of them; None if no other runs."""
        others = [one for one in self.plan.alternatives if one.algorithm != self.plan.algorithm]
        return min(others, key=lambda one: one.us, default=None)

    def times(self, other: Alternative) -> float:
        """An alternative's time over the plan's, as they are ranked."""
        return other.us / self.plan.alternatives[0].us

    def refusal(self, algorithm: str) -> str:
        """Why an algorithm does not run here; "" where it does, or was not asked for."""
        return next((one.reason for one in self.plan.rejected if one.algorithm == algorithm), "")

    def fastest(self, name: str, *, kinds: bool) -> Alternative | None:
        """The fastest alternative of this name; None if it does not run or is not listed."""
        called = [one for one in self.plan.alternatives if label(one.algorithm, one.config, kinds=kinds) == name]
        return min(called, key=lambda one: (one.at_least, one.us), default=None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, a value a column of the CSV."""
        plan, problem, other = self.plan, self.plan.problem, self.runner_up
        return {
            "value": self.value,
            "between": self.between,
            **{letter: getattr(problem, letter) for letter in ("N", "C", "W", "S", "Q")},
            "pad_left": problem.width.lo,
            "dtype": problem.dtype,
            "lnc": plan.lnc,
            **{name: getattr(plan, name) for name in ("algorithm", "settings", "modelled_us")},
            "modelled_phase0_us": plan.phase0_us,
            **{name: getattr(plan, name) for name in ("copy_floor_us", "x_copy_floor", "roofline_fraction")},
            **{name: getattr(plan, name) for name in ("bound_by", "instructions", "extrapolated_from")},
            "runner_up": None if other is None else other.algorithm,
            "x_runner_up": None if other is None else self.times(other),
            "runner_up_at_least": None if other is None else other.at_least,
        }


@dataclass(frozen=True)
class Change:
    """Neighbouring values with different algorithms."""

    last: int  # the largest value known to have `before`
    first: int  # the next one, which has `after`
    before: str
    after: str
    #: time of `before` over that of `after` at `first`; None if it does not run, or was not timed
    x_before: float | None
    at_least: bool = False  # whether `x_before` is only a lower bound
    refusal: str = ""  # why `before` does not run at `first`

    def text(self, vary: str) -> str:
        """The change in words."""
        if self.x_before is None:
            why = f"{self.before} is refused there: {self.refusal}" if self.refusal else f"{self.before} was not timed"
        elif self.x_before < TIE:
            why = f"a tie: {self.before} takes {self.x_before:.3f} x there"
        else:
            why = f"{self.before} takes {'>' if self.at_least else ''}{self.x_before:.2f} x there"
        return f"{self.before} up to {vary}={self.last}, {self.after} from {vary}={self.first} ({why})"


@dataclass(frozen=True)
class Crossover:
    """The plans of a sweep and where they change."""

    sweep: Sweep
    points: tuple[Point, ...]  # ascending by value, those between included
    changes: tuple[Change, ...]

    def as_rows(self) -> list[dict[str, Any]]:
        """Every point, those between included, a value a column of the CSV."""
        return [{"vary": self.sweep.vary, **point.as_dict()} for point in self.points]

    @property
    def table(self) -> tuple[Point, ...]:
        """The points that were asked for."""
        return tuple(point for point in self.points if not point.between)


def crossover(sweep: Sweep, *, kinds: bool = False, use_cache: bool = True, advance: Advance = ignore) -> Crossover:
    """Plan each value of a sweep, and find where the algorithm changes.

    Args:
        kinds: whether another block of `banded` and another engine of `update` count as changes.
        use_cache: whether plans come from the planner's cache and stay there.
        advance: called with the current step, and the share of it that is done.

    Raises: as `Sweep.check`; UnsupportedError where no algorithm runs at a value.
    """
    sweep.check()
    asked = sweep.asked
    found: dict[int, Point] = {}

    def at(value: int, share: float | None) -> Point:
        if value not in found:
            plan = answer(
                sweep.request(value),
                use_cache=use_cache,
                advance=lambda what, _share: advance(f"{sweep.vary}={value}: {what}", share),
            )
            found[value] = Point(value, plan, between=value not in asked)
        return found[value]

    def name(point: Point) -> str:
        return label(point.plan.algorithm, point.plan.config, kinds=kinds)

    def between(low: Point, high: Point) -> Iterator[Change]:
        if name(low) == name(high):
            return
        if high.value - low.value > 1:
            middle = at((low.value + high.value) // 2, None)
            yield from between(low, middle)
            yield from between(middle, high)
            return
        other = high.fastest(name(low), kinds=kinds)
        if other is None:
            why = "" if low.plan.algorithm == high.plan.algorithm else high.refusal(low.plan.algorithm)
            yield Change(low.value, high.value, name(low), name(high), None, refusal=why)
        else:
            yield Change(low.value, high.value, name(low), name(high), high.times(other), other.at_least)

    points = [at(value, i / len(asked)) for i, value in enumerate(asked)]
    changes = [change for low, high in itertools.pairwise(points) for change in between(low, high)]
    return Crossover(sweep, tuple(found[value] for value in sorted(found)), tuple(changes))


def label(algorithm: str, config: Config, *, kinds: bool) -> str:
    """An algorithm's name, with its kind if that is asked for, as in "banded B=32"."""
    setting, sign = _KINDS.get(algorithm, ("", ""))
    value = dict(config or ()).get(setting)
    return f"{algorithm} {sign}{value}" if kinds and value is not None else algorithm


def short_settings(config: Config) -> str:
    """The settings that say most; "..." stands for the others."""
    shown = tuple(pair for pair in config or () if pair[0] in _SHORT)
    text = settings_text(shown) if shown else ""
    if len(shown) < len(config or ()):
        text = f"{text} ...".strip()
    return text or "defaults"
