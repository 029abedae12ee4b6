"""Interleaved timing: every round times every variant once, in rotated order, as a slope over chains of calls.

    us a call = slope of (seconds of n calls in one graph) over n

The slope excludes the cost of one launch; rotating favours no variant's place; timing the kernel twice (A/A) shows how
much two equal kernels differ here, and so which differences are significant. The host's cost of each call stays in
every variant's slope: the launch floor bounds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ...simulator.profiling import Advance
from .device import Call, Device

THIS, AGAIN, COPY_FLOOR, LAUNCH_FLOOR = "this", "this again", "copy floor", "launch floor"
#: Calls in the chains whose times make a slope.
CHAIN_CALLS = (4, 20)
ROUNDS = 40
#: A/A medians that differ by more than this share of the first make a result noisy.
NOISY_ABOVE = 0.03
PERCENTILES = (10.0, 50.0, 90.0)

_Any = TypeVar("_Any")


@dataclass(frozen=True)
class Variant:
    """A launched kernel with the arrays of as many calls as the longest chain makes."""

    name: str
    launched: Any
    calls: Sequence[Call]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """Percentiles over the rounds, us a call."""

    p10_us: float
    p50_us: float
    p90_us: float


@dataclass(frozen=True)
class Timing:
    """The measured times of one case over all rounds."""

    rounds: int
    chain_calls: tuple[int, ...]
    this: Spread
    again: Spread
    copy_floor: Spread
    launch_floor: Spread

    @property
    def aa_difference(self) -> float:
        """Difference of the A/A medians, as a share of the first."""
        return abs(self.again.p50_us - self.this.p50_us) / self.this.p50_us

    @property
    def noisy(self) -> bool:
        """Whether equal things differ by more than `NOISY_ABOVE` here."""
        return self.aa_difference > NOISY_ABOVE

    @property
    def x_copy_floor(self) -> float:
        """Median over that of moving the same bytes."""
        return self.this.p50_us / self.copy_floor.p50_us

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        derived = ("aa_difference", "noisy", "x_copy_floor")
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in derived}}


def interleave(
    device: Device, variants: Sequence[Variant], rounds: int, chain_calls: tuple[int, ...], advance: Advance
) -> dict[str, list[float]]:
    """The slope of every variant in every round, us a call, by the variant's name.

    Args: chain_calls: at least two different lengths, none longer than a variant has calls. rounds: at least 1.
    """
    slopes: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for i in range(rounds):
        advance("timing", i / rounds)
        for variant in rotated(variants, i):
            seconds = [device.seconds(variant.launched, variant.calls[:n], variant.kwargs) for n in chain_calls]
            slopes[variant.name].append(slope(chain_calls, seconds) * 1e6)
    return slopes


def rotated(variants: Sequence[_Any], by: int) -> list[_Any]:
    """The variants from the `by`-th on, and then those before it."""
    first = by % len(variants)
    return [*variants[first:], *variants[:first]]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of the least-squares line through the points; for two points, of the line through both."""
    x, y = np.asarray(xs, np.float64), np.asarray(ys, np.float64)
    deviation = x - x.mean()
    return float(deviation @ (y - y.mean()) / (deviation @ deviation))


def spread(slopes_us: Sequence[float]) -> Spread:
    """Percentiles of the slopes of one variant."""
    return Spread(*(float(value) for value in np.percentile(slopes_us, PERCENTILES)))


def timing(slopes_us: dict[str, list[float]], chain_calls: tuple[int, ...]) -> Timing:
    """Percentiles of all four variants.

    Raises ArithmeticError where a median is not above zero: the chains are too short for this machine's noise.
    """
    spreads = {name: spread(slopes) for name, slopes in slopes_us.items()}
    for name, one in spreads.items():
        if one.p50_us <= 0:
            raise ArithmeticError(f"{name}: median slope {one.p50_us:.3g} us a call is not above zero; use more rounds")
    return Timing(
        len(slopes_us[THIS]), chain_calls, *(spreads[name] for name in (THIS, AGAIN, COPY_FLOOR, LAUNCH_FLOOR))
    )
