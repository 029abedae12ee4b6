"""What a plan was chosen from: algorithms with settings, timed or rejected, and settings in words."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from .request import Config


@dataclass(frozen=True)
class Alternative:
    """An algorithm with settings that was timed. All modelled, program order, throttle phase 0."""

    algorithm: str
    config: Config
    us: float
    bound_by: str  # of the part that was timed
    instructions: int  # all cores, as a compiler sees them
    #: channels of the reduced problems that `us` is extrapolated from; None: the whole problem was timed
    extrapolated_from: int | None = None
    #: whether `us` is only a lower bound, already above the best: the engine with most work, without any waiting
    at_least: bool = False


@dataclass(frozen=True)
class Rejection:
    """An algorithm with settings that cannot run the problem, and why."""

    algorithm: str
    config: Config
    reason: str


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
