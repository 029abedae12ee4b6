"""The constants of one timing: their values, what was changed for the sake of a question, and which were read."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping

from ..hardware import CONSTANTS, Constant

#: Constants that times are divided by, or that count something there must be one of.
_DIVISORS = (
    "clock.", "peak.", "dma.engines", "dma.rows_per_engine", "dma.engine_bytes_per_ns", "dma.hbm_stack_gbps",
    "dma.hbm_shared_gbps", "dma.hbm_run_least_bytes", "dma.steady_core_gbps", "dma.max_element_bytes_packet",
    "dma.hwdge_queue_depth", "dma.dma_transpose_frac", "throttle.window_ns", "throttle.half_rate",
    "scheduling.lookahead_window", "pe.fp32_passes", "pe.cyc_per_row", "pe.onezero_speedup_fp32",
    "gpsimd.local_gather_t", "gpsimd.local_gather_lane_bytes", "gpsimd.n_gather_group_elems",
)  # fmt: skip

#: Constants that are shares of something.
SHARES = ("pe.row_tiles_overlap",)


#: How many times trn2.toml's value, or 1 where that is less, a constant may be: beyond it no timeline ends.
FAR = 1000


class UnknownConstantError(ValueError):
    """A constant was given that trn2.toml does not have, or with a value that no timing could use."""


class Rates:
    """Values by name. `read` collects the names that were asked for, so that a price can say what it rests on.

    Args:
        overrides: values to use instead of trn2.toml's.
    Raises: UnknownConstantError.
    """

    def __init__(self, overrides: Mapping[str, float] | None = None) -> None:
        self._values = {name: constant.value for name, constant in CONSTANTS.items()}
        for name, value in (overrides or {}).items():
            if name not in self._values:
                close = difflib.get_close_matches(name, self._values, n=3, cutoff=0.4)
                remedy = f"did you mean {', '.join(close)}?" if close else "see simulator/trn2.toml"
                raise UnknownConstantError(f"constants[{name!r}]: unknown name; {remedy}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UnknownConstantError(f"constants[{name!r}]={value!r}: must be a finite number; pass one")
            if value < 0 <= self._values[name] or (value == 0 and name.startswith(_DIVISORS)):
                least = "above 0" if name.startswith(_DIVISORS) else "at least 0"
                raise UnknownConstantError(f"constants[{name!r}]={value!r}: must be {least}; pass a larger number")
            if value > 1 and name in SHARES:
                raise UnknownConstantError(f"constants[{name!r}]={value!r}: must be at most 1, a share; pass 0 to 1")
            most = FAR * max(abs(self._values[name]), 1.0)
            if abs(value) > most:
                rule = f"must be at most {most:g}, {FAR} times trn2.toml's {self._values[name]:g}"
                raise UnknownConstantError(f"constants[{name!r}]={value!r}: {rule}; pass less")
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
