"""The options of a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..dtypes import DTYPES, canonical

#: Called with the current step and the share of it that is done, 0 to 1.
Advance = Callable[[str, "float | None"], None]


def ignore(_what: str, _share: float | None) -> None:
    """An `Advance` that does nothing."""


@dataclass(frozen=True)
class Problem:
    """The kernel's useful work, if the caller knows more than the kernel's arguments show.

    flops: useful ones (a kernel may multiply zeros). min_bytes: least traffic with HBM; None: arguments and results.
    dtype: the dtype of the peak rate; None: the first argument's.
    """

    flops: int | None = None
    min_bytes: int | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in ("flops", "min_bytes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise ValueError(f"problem.{name}={value!r}: must be None or an int of at least 0; count them")
        if self.dtype is not None:
            known = canonical(self.dtype)
            if known is None:
                raise ValueError(f"problem.dtype={self.dtype!r}: must be None or one of {', '.join(DTYPES)}; use one")
            object.__setattr__(self, "dtype", known)


@dataclass(frozen=True)
class Settings:
    """How to profile; see `profile`."""

    trace_only: bool = True
    sensitivity: bool = False
    standalone: bool = False
    problem: Problem = field(default_factory=Problem)
    constants: Mapping[str, float] = field(default_factory=dict)
    advance: Advance = ignore
