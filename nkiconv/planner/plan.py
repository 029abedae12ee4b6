"""What a planner answers: `Plan`, the alternatives it was chosen from, and the rejected ones with their reasons."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import FileFormatError
from ..problem import ConvProblem
from .request import Asked, Config, tuples

#: How hard a plan was looked for: the best few of what cost models say on the timeline, or many more.
TIMED, TUNED = "timed", "tuned"


@dataclass(frozen=True)
class Alternative:
    """An algorithm with settings that was timed. All modelled, program order, throttle phase 0."""

    algorithm: str
    config: Config
    us: float
    bound_by: str  # of the part that was timed
    instructions: int  # all cores
    #: channels (or rows, `Operation.reduction`) of the part that `us` is extrapolated from; None: all was timed
    extrapolated_from: int | None = None
    #: whether `us` is only a lower bound, already above the best: the engine with most work, without any waiting
    at_least: bool = False


@dataclass(frozen=True)
class Rejection:
    """An algorithm with settings that cannot run the problem, and why."""

    algorithm: str
    config: Config
    reason: str


@dataclass(frozen=True)
class Estimate:
    """How to run a problem, by cost models: `algorithm` and `config` are arguments as those of a `Plan` are."""

    algorithm: str
    config: Config

    @property
    def arguments(self) -> dict[str, Any]:
        """What functions and kernels are called with, beside the problem's own arguments."""
        return {"algorithm": self.algorithm, "config": self.config}

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"algorithm": self.algorithm, "config": self.config}

    @staticmethod
    def from_dict(document: Any) -> Estimate:
        """The estimate of an `as_dict` document, or of its JSON. Raises FileFormatError: it is none."""
        try:
            found = Estimate(document["algorithm"], tuples(document["config"]))
        except (KeyError, TypeError) as error:
            raise FileFormatError(f"estimate: is not what was written ({type(error).__name__}: {error})") from None
        if not isinstance(found.algorithm, str):
            raise FileFormatError(f"estimate: algorithm={found.algorithm!r} is no name")
        return found


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to run a problem, and what that would take: every time is modelled, in us, program order.

    `algorithm` and `config` are arguments of the function that `operation` names, `depthwise_conv1d` or `conv2d`.
    `phase0_us` (the throttle's grid starts with the kernel) is what alternatives are ranked by; `modelled_us` is the
    mean and `worst_us` the worst over `phases` phases of that grid, as in `Profile`.
    """

    problem: ConvProblem
    operation: str
    lnc: int
    asked: Asked
    constants: Mapping[str, float]  # overrides of trn2.toml's that the plan was made under
    algorithm: str
    config: Config
    modelled_us: float
    phase0_us: float
    worst_us: float
    phases: int
    copy_floor_us: float
    roofline_us: float
    bound_by: str
    instructions: int  # all cores
    sbuf_bytes: int  # a partition, at most
    psum_banks: int  # at most
    #: N, C, W, S, Q and the other parameters; tiles and counts of the algorithm. Of conv2d also H, K, R, P, and of the
    #: matrix product that it is, rows = N P Q and contraction = R S C / groups
    symbols: Mapping[str, int]
    #: the fastest first, which is the plan; those alike are told once, and slow ones only as the best of an algorithm
    alternatives: tuple[Alternative, ...]
    rejected: tuple[Rejection, ...]
    #: channels of the reduced problem that times and instructions are extrapolated from, or rows or columns where a
    #: long kernel is not cut along channels; None: all is of the whole
    extrapolated_from: int | None = None
    effort: str = TIMED
    seconds: float = field(default=0.0, compare=False)  # the search took
    cached: bool = field(default=False, compare=False)  # whether this came from memory or disk

    @property
    def whole(self) -> bool:
        """Whether the whole kernel was timed; if not, times are extrapolated, and commands print them with a ~."""
        return self.extrapolated_from is None

    @property
    def roofline_fraction(self) -> float:
        """The hardware's limit over the modelled time: 1 is as fast as can be."""
        return self.roofline_us / self.modelled_us

    @property
    def x_copy_floor(self) -> float:
        """Modelled time over that of moving the same bytes."""
        return self.modelled_us / self.copy_floor_us

    @property
    def arguments(self) -> dict[str, Any]:
        """What functions and kernels are called with, beside the problem's own arguments."""
        return {"algorithm": self.algorithm, "config": self.config}

    @property
    def settings(self) -> str:
        """The config in words, as in "block=32 shard=channels"; "defaults" for None."""
        return settings_text(self.config)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, derived numbers included."""
        plain = dataclasses.asdict(self)
        derived = {
            "roofline_fraction": self.roofline_fraction,
            "x_copy_floor": self.x_copy_floor,
            "whole": self.whole,
        }
        return {**plain, **derived}

    def to_json(self) -> str:
        """One JSON document that `from_json` reads back."""
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
            for name, kind in (("alternatives", Alternative), ("rejected", Rejection)):
                values[name] = tuple(kind(**tuples(one)) for one in document[name])
            found = Plan(**values)
            for one, names in ((found, _NUMBERS), *((alternative, ("us",)) for alternative in found.alternatives)):
                for name in names:
                    _check_number(name, getattr(one, name))
            return found
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"plan: is not what Plan.to_json writes ({type(error).__name__}: {error})") from None

    def explain(self) -> str:
        """The plan, its alternatives and the rejected ones as text."""
        from .explain import explain  # it needs this module

        return explain(self)


_FIELDS = tuple(one.name for one in dataclasses.fields(Plan))
_NUMBERS = ("modelled_us", "phase0_us", "worst_us", "phases", "copy_floor_us", "roofline_us", "instructions",
            "sbuf_bytes", "psum_banks", "seconds")  # fmt: skip


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r} is no number")


def settings_text(config: Config) -> str:
    """A config in words."""
    if config is None:
        return "defaults"
    return " ".join(f"{name}={_value_text(value)}" for name, value in config)


def _value_text(value: Any) -> str:
    """Of a tuple of tuples, those that follow each other and are equal are said once, as in "(3,1,0,0)x4"."""
    if not isinstance(value, tuple):
        return str(value)
    texts = []
    for one, alike in itertools.groupby(value):
        text, count = _value_text(one), len(list(alike))
        texts += [f"{text}x{count}"] if count > 1 and isinstance(one, tuple) else [text] * count
    return "(" + ",".join(texts) + ")"
