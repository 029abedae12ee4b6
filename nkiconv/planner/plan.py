"""The planner's answers: a `Plan`, or an `Estimate`, which has no time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import FileFormatError, UnsupportedError, refuse
from ..problem import ConvProblem
from ..schedules.settings import form_unsupported
from ..simulator.constants import DEFAULT, modelled
from . import explain
from .explain import Alternative, Rejection, Risk
from .request import Asked, Config, tuples

#: The effort of a plan: the estimate, timed; a shipped plan, timed; a search; a wide search.
ESTIMATED, SHIPPED, TIMED, TUNED = "estimated", "shipped", "timed", "tuned"
#: The efforts in words.
ORIGINS = {
    ESTIMATED: "the estimate, timed; nkiconv plan searches",
    SHIPPED: "comes with nkiconv (shipped)",
    TIMED: "searched for",
    TUNED: "searched for widely (nkiconv tune)",
}


@dataclass(frozen=True)
class Estimate:
    """The best of a few candidates for a problem, without a time: `algorithm` and `config` are arguments of a call."""

    algorithm: str
    config: Config

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of functions and kernels, besides the problem's own."""
        return {"algorithm": self.algorithm, "config": self.config}

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(document: Any) -> Estimate:
        """The estimate of an `as_dict` document, or of its JSON. Raises FileFormatError: it is none."""
        try:
            return Estimate(document["algorithm"], tuples(document["config"]))
        except (KeyError, TypeError) as error:
            raise FileFormatError(f"estimate: is not what was written ({type(error).__name__}: {error})") from None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The algorithm and settings for a problem, and their time; every time is modelled, in us, in program order.

    `algorithm` and `config` are arguments of the function that `operation` names, as `depthwise_conv1d` or `conv2d`.
    `modelled_us`, the time in all tables, is the mean over `phases` phases of the Tensor Engine's throttle grid, as in
    `Profile`; `worst_us` is the longest of them; at `phase0_us` the grid starts with the kernel.
    """

    problem: ConvProblem
    operation: str
    lnc: int
    asked: Asked
    constants: Mapping[str, float]  # overrides of trn2.toml's in the plan's timing
    algorithm: str
    config: Config
    modelled_us: float
    phase0_us: float
    worst_us: float
    phases: int
    copy_floor_us: float
    roofline_us: float
    bound_by: str
    instructions: int  # of all cores, as compiled: the body of a loop on the device counts once
    sbuf_bytes: int  # a partition, at most
    psum_banks: int  # at most
    #: N, C, W, S, Q and the other parameters; the algorithm's tiles and counts; for conv2d also H, K, R, P, and the
    #: extents of its matrix product, rows = N P Q and contraction = R S C / groups
    symbols: Mapping[str, int]
    #: the plan, then the fastest candidates and the best of each slower algorithm, without equal runs
    alternatives: tuple[Alternative, ...]
    rejected: tuple[Rejection, ...]
    #: inferred constants that make the plan slower at an end of their range, the greatest regret first; () if quick
    risks: tuple[Risk, ...] = ()
    #: per cent that the plan may be slower than the fastest to reduce risks; us and worst regret of the fastest, and
    #: where that is, as in "pe.row_tiles_overlap=0"
    robust: float = 0.0
    fastest_us: float = 0.0
    fastest_regret: float = 1.0
    fastest_risk: str = ""
    #: extent (images, channels, rows or columns) of the reduced problem that times and instructions are extrapolated
    #: from, None if the whole was timed; the same in words
    extrapolated_from: int | None = None
    part: str = ""
    effort: str = TIMED
    target: str = DEFAULT  # of the constants: trn2, or the file that NKICONV_TARGET named
    seconds: float = field(default=0.0, compare=False)  # of the search
    cached: bool = field(default=False, compare=False)  # whether the plan was read from memory or disk

    @property
    def whole(self) -> bool:
        """Whether the whole kernel was timed; if not, times are extrapolated, and commands print ~ before them."""
        return self.extrapolated_from is None

    @property
    def roofline_fraction(self) -> float:
        """The roofline's time over the modelled time: 1 is the hardware's limit."""
        return self.roofline_us / self.modelled_us

    @property
    def x_copy_floor(self) -> float:
        """Modelled time over the modelled time of a copy of the same bytes."""
        return self.modelled_us / self.copy_floor_us

    @property
    def worst_regret(self) -> float:
        """The plan's time over that of the fastest timed candidate, under the worst value of an inferred constant."""
        return max((one.regret for one in self.risks), default=1.0)

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of functions and kernels, besides the problem's own."""
        return {"algorithm": self.algorithm, "config": self.config}

    @property
    def settings(self) -> str:
        """The config in words, as in "block=32 shard=channels"; "defaults" for None."""
        return explain.settings_text(self.config)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, derived numbers included."""
        names = ("roofline_fraction", "x_copy_floor", "whole", "worst_regret")
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in names}

    def to_json(self) -> str:
        """A JSON document that `from_json` reads."""
        return json.dumps(self.as_dict())

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan of a `to_json` document.

        Raises FileFormatError: it is none.
        """
        try:
            return Plan.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise FileFormatError(f"plan: is not JSON ({error})") from None

    @staticmethod
    def from_dict(document: Any) -> Plan:
        """The plan of an `as_dict` document, or of its JSON.

        Raises FileFormatError: it is none.
        """
        try:
            values = {name: document[name] for name in _FIELDS}
            values["problem"] = ConvProblem(**tuples(document["problem"]))
            values["asked"] = Asked(**tuples(document["asked"]))
            values["config"] = tuples(document["config"])
            for name, kind in (("alternatives", Alternative), ("rejected", Rejection), ("risks", Risk)):
                values[name] = tuple(kind(**tuples(one)) for one in document[name])
            found = Plan(**values)
            _check_numbers(found, _COUNTS, "from 0")
            _check_numbers(found, _TIMES, "above 0")
            for one in found.alternatives:
                _check_numbers(one, ("us",), "above 0")
            for risk in found.risks:
                _check_numbers(risk, ("us", "least_us", "assumed_us"), "above 0")
            configs = [found.config]
            for several in (found.alternatives, found.rejected, found.risks):
                configs += [one.config for one in several]
            refuse(UnsupportedError, *map(form_unsupported, configs))
            if found.effort not in ORIGINS:
                raise ValueError(f"{found.effort!r:.40} is none of {', '.join(ORIGINS)}")
            for word in (found.algorithm, found.bound_by, found.operation):
                if not isinstance(word, str) or not word.replace("_", " ").replace(" ", "").isalnum():
                    raise ValueError(f"{word!r:.40} is no name")
            return found
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FileFormatError(f"plan: is not what Plan.to_json writes ({type(error).__name__}: {error})") from None

    def __str__(self) -> str:
        """A table of one row, the settings, and the next best algorithm; `explain` prints everything."""
        shape, filters = explain.problem_words(self.problem, self.asked)
        cores = "2 cores" if self.lnc == 2 else "1 core"
        cells = (
            self.algorithm,
            f"{'' if self.whole else '~'}{self.modelled_us:,.1f}",
            f"{self.roofline_fraction:.1%}",
            f"{self.x_copy_floor:.2f}",
            self.bound_by,
            f"{self.instructions:,}",
        )
        us = f"{modelled(self.target)} us"
        headings = "algorithm", us, "of the limit", "x copy floor", "bound by", "instructions"
        notes = [f"settings: {self.settings}", explain.runner_up_text(self.alternatives)]
        notes += [] if self.whole else [f"~ extrapolated from {self.part}"]
        lines = explain.table(headings, [cells], right=(1, 2, 3, 5))
        lines += explain.wrapped(filter(None, notes), explain.SCREEN)
        return "\n".join([f"{self.operation}, {shape}, {filters}, {cores}", *lines])

    def explain(self, width: int = explain.WIDTH) -> str:
        """The plan, its alternatives and the rejected candidates as text, in lines of at most `width` characters."""
        head, symbols = explain.wrapped(self._head(), width), explain.symbols_text(self.symbols, width)
        found = explain.alternatives_text(self.alternatives, width), explain.rejected_text(self.rejected, width)
        return "\n".join([*head, "", *found[0], *found[1], "", "tiles, counts and the problem:", *symbols])

    def _head(self) -> list[str]:
        cores = "2 cores" if self.lnc == 2 else "1 core"
        phases = "phase 0" if self.phases == 1 else f"mean of {self.phases} phases"
        lines = [
            f"{self.algorithm}, {self.settings}",
            f"this plan: {ORIGINS[self.effort]}{', kept in the cache' * self.cached}",
            f"on {cores}: {modelled(self.target)} {self.modelled_us:,.2f} us ({phases}; phase 0 "
            f"{self.phase0_us:,.2f}, worst {self.worst_us:,.2f})",
            f"copy floor {self.copy_floor_us:,.2f} us ({self.x_copy_floor:.2f} x); roofline {self.roofline_us:,.2f} us "
            f"({self.roofline_fraction:.1%}); bound by {self.bound_by}",
            f"{self.instructions:,} instructions; at most {self.sbuf_bytes:,} B of SBUF per partition and "
            f"{self.psum_banks} PSUM banks",
        ]
        if self.worst_regret < self.fastest_regret:
            lines.append(
                f"robust: the fastest takes {self.fastest_us:,.2f} us, but {self.fastest_regret:.2f} times the least "
                f"with {self.fastest_risk}, this one at most {self.worst_regret:.2f} times with any constant"
            )
        if self.robust and self.worst_regret > explain.RUINOUS:
            lines.append(
                f"not hedged: nothing that was timed within {self.robust:g} % of the fastest loses enough less to be "
                f"worth its time"
            )
        lines += [one.text for one in self.risks]
        if self.extrapolated_from is not None:
            lines.append(f"times and instructions are extrapolated from {self.part}; nkiconv tune times the whole")
        if self.constants:
            lines.append("with " + ", ".join(f"{name}={value:g}" for name, value in self.constants.items()))
        return lines


_FIELDS = tuple(one.name for one in dataclasses.fields(Plan))
_TIMES = *(name for name in _FIELDS if name.endswith("_us")), "fastest_regret", "phases"
_COUNTS = ("instructions", "sbuf_bytes", "psum_banks", "seconds")
#: Above every time in us and every count that a plan may have.
_MOST = 1e18


def _check_numbers(of: Any, names: Sequence[str], least: str) -> None:
    """Raise ValueError if a field is no number, or not in the range that `least` names, "from 0" or "above 0"."""
    for name in names:
        value = getattr(of, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name}={value!r} is no number")
        if not 0 <= value < _MOST or (value == 0 and least == "above 0"):
            raise ValueError(f"{name}={value!r:.40} is not {least} to {_MOST:g}")
