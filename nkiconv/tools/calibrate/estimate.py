"""Constants of the timing model from measured slopes.

The slopes of all probes are solved for at once: Gauss-Newton on the logarithms of the constants, weighted by the noise
of each slope, with slopes that the timing model predicts under trial values. The singular values show which constants
the probes cannot determine: one that no slope depends on, or only together with others, is not estimated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...simulator.hardware import CONSTANTS
from ...simulator.profiling import Advance
from ...simulator.timing import SHARES
from .measured import Slope
from .model import Modelled
from .probe import Probe

#: Gauss-Newton steps at most, and the relative change of all constants below which the values stand.
STEPS = 12
SETTLED = 1e-7
#: Relative change of a constant by which its influence is found, downwards, where shares can go too.
_DIFFERENCE = 0.01
#: Relative change of all constants in a step, up to which the next takes the same influences.
_NEAR = 0.02
#: The furthest that one step moves a constant, as a factor.
_FURTHEST = 2.0
#: Singular values below this share of the largest say nothing.
_RANK = 1e-6
#: Relative change, both ways, by which constants are told from bounds; the least share of the larger influence that the
#: smaller one must be; and of the largest that counts.
_BOTH_WAYS = 0.05
_ONE_SIDED = 0.5
_SMALL = 0.1
#: Least change of a slope's logarithm with a constant's that counts as influence.
_INFLUENCE = 1e-3
#: Half of a 95 % confidence interval in standard errors.
INTERVAL = 1.96
#: Half an interval, as a share of the value, above which a constant is too uncertain to replace the old one.
WIDEST = 0.1
#: Slopes that the constants found miss by more than this share contradict the model.
MISFIT = 0.05

FOUND, UNCERTAIN, UNIDENTIFIED = "found", "uncertain", "not identified"


@dataclass(frozen=True)
class Estimate:
    """The estimate of a constant from the slopes; its old value if they do not determine it."""

    name: str
    status: str
    value: float
    half_interval: float  # of 95 %
    old: float
    reason: str = ""


@dataclass(frozen=True)
class Fit:
    """A probe's measured slope, and the modelled one under the constants found."""

    slope: Slope
    before_ns: float  # modelled under the old constants
    after_ns: float

    @property
    def misses(self) -> bool:
        """Whether the model cannot follow the measured slope."""
        return not self.slope.reason and abs(self.after_ns / self.slope.slope_ns - 1) > MISFIT


def estimate(
    probes: Sequence[Probe],
    slopes: Sequence[Slope],
    modelled: Modelled,
    start: Mapping[str, float],
    advance: Advance,
) -> tuple[list[Estimate], list[Fit]]:
    """The constants that the probes are for, and how well the model then fits the slopes.

    Args: slopes: measured, one for each probe. start: values to begin with, else those of trn2.toml.
    """
    names = list(dict.fromkeys(name for probe in probes for name in probe.constants))
    old = {name: CONSTANTS[name].value for name in names}
    used = [(probe, slope) for probe, slope in zip(probes, slopes, strict=True) if not slope.reason]
    logs = np.log([start.get(name, old[name]) for name in names])
    problem = _Problem([probe for probe, _ in used], names, modelled)
    found = _solve(problem, [slope for _, slope in used], logs, advance) if used else _Solution(logs, {})
    estimates = [_told(name, i, old[name], found) for i, name in enumerate(names)]
    values = {one.name: one.value for one in estimates if one.status == FOUND}
    fits = [
        Fit(slope, modelled.slope_ns(probe, {}), modelled.slope_ns(probe, values))
        for probe, slope in zip(probes, slopes, strict=True)
    ]
    missed = {
        name: probe.name for probe, fit in zip(probes, fits, strict=True) if fit.misses for name in probe.constants
    }
    return [_contradicted(one, missed[one.name]) if one.name in missed else one for one in estimates], fits


def _contradicted(one: Estimate, probe: str) -> Estimate:
    """An estimate that a probe of its own contradicts: nobody should rest on it."""
    if one.status != FOUND:
        return one
    reason = f"the model does not follow {probe}, {one.value:.4g} is the nearest"
    return dataclasses.replace(one, status=UNCERTAIN, value=one.old, reason=reason)


@dataclass(frozen=True)
class _Solution:
    """Logarithms of the constants, and of each that is identified its standard error; of others a reason."""

    logs: Any
    errors: dict[int, float]
    reasons: dict[int, str] = dataclasses.field(default_factory=dict)


class _Problem:
    """Logarithms of modelled slopes as a function of the logarithms of constants."""

    def __init__(self, probes: Sequence[Probe], names: Sequence[str], modelled: Modelled) -> None:
        self.probes, self.names, self._modelled = probes, names, modelled
        self._place = {name: i for i, name in enumerate(names)}
        #: of each probe, the constants that may move its slope
        self._rests_on = [sorted(modelled.constants(probe) & set(names)) for probe in probes]
        #: of each probe, those that do, or that it is for, once that is known
        self._moving: list[list[str]] | None = None
        self._known: dict[Any, float] = {}

        self._highest = np.array([0.0 if name in SHARES else np.inf for name in names])

    def within(self, logs: Any) -> Any:
        """With shares of at most 1."""
        return np.minimum(logs, self._highest)

    def values(self, logs: Any) -> dict[str, float]:
        return {name: float(np.exp(log)) for name, log in zip(self.names, logs, strict=True)}

    def slopes(self, logs: Any) -> Any:
        values = self.values(logs)
        return np.array([self._slope(i, values) for i in range(len(self.probes))])

    def _slope(self, i: int, values: Mapping[str, float]) -> float:
        """Logarithm of the slope of the i-th probe, under the values that it rests on."""
        key = i, *(values[name] for name in self._rests_on[i])
        if key not in self._known:
            chosen = {name: values[name] for name in self._rests_on[i]}
            self._known[key] = float(np.log(self._modelled.slope_ns(self.probes[i], chosen)))
        return self._known[key]

    def influence(self, logs: Any, difference: float = -_DIFFERENCE) -> Any:
        """d log(slope) / d log(constant), [probes, constants], by a relative difference of each constant."""
        values, out = self.values(logs), np.zeros((len(self.probes), len(self.names)))
        for i, names in enumerate(self._moving or self._rests_on):
            here = self._slope(i, values)
            for name in names:
                moved = values[name] * (1 + difference)
                if name in SHARES:
                    moved = min(moved, 1.0)
                change = self._slope(i, {**values, name: moved}) - here
                out[i, self._place[name]] = change / np.log(1 + difference)
        out[np.abs(out) < _INFLUENCE] = 0.0
        if self._moving is None:
            self._moving = [
                [name for name in names if out[i, self._place[name]] or name in self.probes[i].constants]
                for i, names in enumerate(self._rests_on)
            ]
        return out


def _solve(problem: _Problem, slopes: Sequence[Slope], logs: Any, advance: Advance) -> _Solution:
    measured = np.log([slope.slope_ns for slope in slopes])
    weights = np.array([slope.slope_ns / slope.error_ns for slope in slopes])
    influence, moved = np.empty(0), np.inf
    for i in range(STEPS):
        advance("solving", i / STEPS)
        if moved > _NEAR:
            influence = problem.influence(logs) * weights[:, None]
        missing = (measured - problem.slopes(logs)) * weights
        change, *_ = np.linalg.lstsq(influence, missing, rcond=_RANK)
        change = np.clip(change, -np.log(_FURTHEST), np.log(_FURTHEST))
        logs = problem.within(logs + change)
        moved = np.abs(change).max(initial=0.0)
        if moved < SETTLED:
            break
    advance("solving", 1.0)
    ways = [problem.influence(logs, way) * weights[:, None] for way in (-_BOTH_WAYS, _BOTH_WAYS)]
    errors, reasons = _identified(problem, ways[0])
    for i, reason in _bounds(problem, logs, *ways).items():
        if errors.pop(i, None) is not None:
            reasons[i] = reason
    return _Solution(logs, errors, reasons)


def _bounds(problem: _Problem, logs: Any, down: Any, up: Any) -> dict[int, str]:
    """Constants that move slopes in one direction only, because another resource binds in the other; with reasons.

    Args: down, up: weighted influences of moves either way. A slope that both move determines a constant if its move is
    at least a tenth of the largest.
    """
    least, most = np.minimum(np.abs(down), np.abs(up)), np.maximum(np.abs(down), np.abs(up))
    tells = (least >= _ONE_SIDED * most) & (most >= _SMALL * most.max(axis=0)) & (most > 0)
    found = {}
    for i, name in enumerate(problem.names):
        at_limit = name in SHARES and logs[i] > np.log(1 - _BOTH_WAYS)
        if not at_limit and not tells[:, i].any():
            found[i] = f"something else binds beyond {np.exp(logs[i]):.4g}"
    return found


def _identified(problem: _Problem, weighted: Any) -> tuple[dict[int, float], dict[int, str]]:
    """By constant: the standard error of its logarithm, or why it has none."""
    lengths = np.linalg.norm(weighted, axis=0)
    scaled = weighted / np.where(lengths > 0, lengths, 1.0)
    _, singular, rows = np.linalg.svd(scaled, full_matrices=True)
    rank = int((singular > _RANK * singular.max(initial=1.0)).sum())
    variances = ((rows[:rank] / singular[:rank, None]) ** 2).sum(axis=0)
    free = rows[rank:]  # directions that no slope tells
    errors, reasons = {}, {}
    for i in range(len(problem.names)):
        if not lengths[i]:
            reasons[i] = "no slope depends on it"
        elif (free[:, i] ** 2).sum() > _RANK:
            together = np.abs(free.T @ free[:, i]) > 1e-3
            others = [other for j, other in enumerate(problem.names) if together[j] and j != i]
            reasons[i] = f"the slopes tell it only together with {', '.join(others)}"
        else:
            errors[i] = float(np.sqrt(variances[i]) / lengths[i])
    return errors, reasons


def _told(name: str, i: int, old: float, found: _Solution) -> Estimate:
    if i not in found.errors:
        return Estimate(name, UNIDENTIFIED, old, float("nan"), old, found.reasons.get(i, "its probes report nothing"))
    value = float(np.exp(found.logs[i]))
    half = INTERVAL * found.errors[i]
    if half > WIDEST:
        return Estimate(name, UNCERTAIN, old, half * value, old, f"{value:.4g} is known to within {half:.0%} only")
    return Estimate(name, FOUND, value, half * value, old)
