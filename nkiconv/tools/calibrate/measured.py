"""Slopes of probes on a device, with the noise of equal runs (A/A).

In every round each of a probe's two kernels runs twice, in rotated order, so that there are two slopes that nothing
tells apart. Where their medians differ by more than 3 %, the probe reports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...simulator.profiling import Advance
from ..measure.interleave import NOISY_ABOVE, rotated
from ..verify.launched import in_a_line
from .clocks import Clock
from .probe import Probe

#: Standard error of a median over that of a mean, of normal noise; its standard deviation over its median deviation.
_MEDIAN_ERROR = 1.2533
_MEDIAN_DEVIATION = 1.4826
#: The least share of a slope that its standard error is taken to be.
_LEAST_ERROR = 1e-4


@dataclass(frozen=True)
class Slope:
    """Measured ns of a repetition; with a reason, nobody should rest on it."""

    probe: str
    clock: str  # the kind of the device's seconds
    rounds: int
    slope_ns: float
    error_ns: float  # standard error
    aa_difference: float  # of the two medians, as a share of the slope
    reason: str = ""


def measure(clock: Clock, probe: Probe, advance: Advance, rounds: int) -> Slope:
    """The slope of a probe; one that the device fails to run, or that is noisy, has its reason.

    Args: rounds: at least 1, of a probe that asks for no more.
    """
    rounds *= probe.rounds
    try:
        halves = _halves(clock, probe, advance, rounds)
    except Exception as error:  # the row stays, with its reason, as in measure.one_case
        return Slope(probe.name, clock.name, rounds, np.nan, np.nan, np.nan, in_a_line(error))
    finally:
        clock.forget()
    medians, both = np.median(halves, axis=1), halves.reshape(-1)
    slope = float(np.median(both))
    deviation = _MEDIAN_DEVIATION * float(np.median(np.abs(both - slope)))
    uncertainty = max(_MEDIAN_ERROR * deviation / np.sqrt(len(both)), _LEAST_ERROR * abs(slope))
    difference = float(abs(medians[1] - medians[0]) / abs(slope)) if slope else np.inf
    reason = f"noisy: equal runs differ by {difference:.1%}" if difference > NOISY_ABOVE else ""
    if slope <= 0:
        reason = f"the slope is {slope:.3g} ns: the machine's noise is larger than the probe's time"
    return Slope(probe.name, clock.name, rounds, slope, uncertainty, difference, reason)


def _halves(clock: Clock, probe: Probe, advance: Advance, rounds: int) -> Any:
    """ns of a repetition, [2, rounds]: of the runs of either half."""
    runs = [(half, count) for half in range(2) for count in probe.counts]
    seconds: dict[tuple[int, int], list[float]] = {run: [] for run in runs}
    for i in range(rounds):
        advance(f"timing {probe.name}", i / rounds)
        for run in rotated(runs, i):
            seconds[run].append(clock.seconds(probe, run[1]))
    short, long = probe.counts
    differences = [np.subtract(seconds[half, long], seconds[half, short]) for half in range(2)]
    return np.array(differences) / (long - short) * 1e9
