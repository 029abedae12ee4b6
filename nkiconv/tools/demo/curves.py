"""Losses of training by step, by kernels and by others: how much they differ and may, and how they look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...bounds import EPS32
from . import plots

#: By which a step's loss and gradients are off at most, each of EPS32: those of fp32 sums of some thousand terms,
#: which grow as their square root, through a few layers.
ROUNDINGS = 32


@dataclass(frozen=True)
class Curves:
    """Losses by step: those expected, by whom, and those of kernels, by how they ran."""

    title: str
    by: str
    expected: Sequence[float]
    found: Mapping[str, Sequence[float]]

    @property
    def steps(self) -> range:
        """Of training, from 0 on."""
        return range(len(self.expected))

    def apart(self, step: int) -> float:
        """The largest difference at a step, over the loss expected; NaN where one is."""
        return float(np.max([abs(losses[step] / self.expected[step] - 1) for losses in self.found.values()]))

    def allowed(self, step: int) -> float:
        """The bound of `apart`.

        Stable gradient descent does not amplify an error of the weights, so the errors of all steps add up. That needs
        smooth networks: at relu's kink a rounding switches a unit on or off.
        """
        return (step + 1) * ROUNDINGS * EPS32

    @property
    def most(self) -> float:
        """`apart` at its largest."""
        return float(np.max([self.apart(step) for step in self.steps]))

    @property
    def ok(self) -> bool:
        """Whether curves are equal within rounding."""
        return all(self.apart(step) <= self.allowed(step) for step in self.steps)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "title": self.title,
            self.by: list(self.expected),
            **{name: list(losses) for name, losses in self.found.items()},
            "apart": [self.apart(step) for step in self.steps],
            "allowed": [self.allowed(step) for step in self.steps],
            "ok": self.ok,
        }

    def draw(self, axis: Any) -> None:
        """Draw them on a matplotlib Axes."""
        axis.plot([step + 1 for step in self.steps], self.expected, color=plots.BEFORE, linewidth=5, label=self.by)
        for (name, losses), (style, colour) in zip(self.found.items(), (("-", plots.AFTER), (":", "k")), strict=False):
            axis.plot([step + 1 for step in self.steps], losses, style, color=colour, label=name)
        axis.set_title(f"{self.title}\napart by {self.most:.0e} of the loss at most", fontsize=10)
        axis.set(xlabel="step", ylabel="loss", xticks=range(0, len(self.expected) + 1, 5))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, fontsize=8, frameon=False)
        axis.grid(alpha=0.3)
