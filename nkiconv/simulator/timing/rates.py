"""The constants of one timing: their values, overrides, and the names that were read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..constants import Constant, unknown_name, value_unsupported
from ..hardware import CONSTANTS


class UnknownConstantError(ValueError):
    """A constant was given that trn2.toml does not have, or with a value that no timing could use."""


class Rates:
    """Values by name. `read` collects the names that were read, so that a price can list its constants.

    Args:
        overrides: values to use instead of those of trn2.toml, or of the target in use.
    Raises: UnknownConstantError.
    """

    def __init__(self, overrides: Mapping[str, float] | None = None) -> None:
        self._values = dict(CONSTANTS.numbers)
        for name, value in (overrides or {}).items():
            if name not in self._values:
                raise UnknownConstantError(f"constants[{name!r}]: {unknown_name(name)}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UnknownConstantError(f"constants[{name!r}]={value!r}: must be a finite number; pass one")
            reason = value_unsupported(name, value)
            if reason:
                raise UnknownConstantError(f"constants[{name!r}]={value!r}: {reason}")
            self._values[name] = float(value)
        self.overrides = dict(overrides or {})
        self.read: set[str] = set()

    def __call__(self, name: str) -> float:
        self.read.add(name)
        return self._values[name]

    def cycle_ns(self, engine: str) -> float:
        """Nanoseconds of one clock cycle of "pe", "vector", "scalar" or "gpsimd"."""
        return 1.0 / self(f"clock.{engine}_ghz")

    def take_read(self) -> frozenset[str]:
        """The names read since the last call."""
        names = frozenset(self.read)
        self.read.clear()
        return names


def inferred(names: Iterable[str]) -> list[Constant]:
    """Those of the named constants that are neither measured nor documented."""
    return [CONSTANTS[name] for name in sorted(names) if CONSTANTS[name].standing == "inferred"]
