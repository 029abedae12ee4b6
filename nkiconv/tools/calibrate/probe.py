"""`Probe`: a kernel at two counts of repetitions, with no other difference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Cores that every probe is launched on, as a trn2 has them by default; most probes give the second nothing to do.
LNC = 2


@dataclass(frozen=True)
class Probe:
    """A kernel whose time grows by `slope` ns with each repetition, which a few constants of trn2.toml decide.

    The slope is (time at the long count - time at the short one) / (difference of counts): launch, first load, last
    store and all other common costs cancel.
    """

    name: str
    design: str  # how it isolates its constants
    kernel: Any  # takes x_ref, the settings and `count`
    shape: tuple[int, ...]  # of x_ref
    counts: tuple[int, int]  # repetitions, short and long
    constants: tuple[str, ...]  # that it determines; empty: its slope is compared with the modelled one
    settings: dict[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"  # of x_ref, NKI's name
    rounds: int = 1  # times as many rounds as others: its constant is a small part of its slope

    def arguments(self, count: int) -> dict[str, Any]:
        """Keyword arguments of the kernel."""
        return {**self.settings, "count": count}
