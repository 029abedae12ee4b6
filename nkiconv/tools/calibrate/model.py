"""Times of probes under any constants, as the timing model has them; and a device that is the timing model."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ...simulator import ArraySpec
from ...simulator.launch import execute
from ...simulator.profiling.timed import Timed, in_time
from ...simulator.timeline import price_again, run
from ...simulator.timing import DmaPrice, Rates
from ..measure.device import Call
from .probe import LNC, Probe


class Modelled:
    """Kernels that are traced once and timed under many constants."""

    def __init__(self) -> None:
        self._traced: dict[Any, Timed] = {}

    def us(self, launched: Any, spec: ArraySpec, kwargs: dict[str, Any], constants: Mapping[str, float]) -> float:
        """Time of a launch, from its first DMA's issue to its last DMA's end."""
        timed, rates = self._timed(launched, spec, kwargs), Rates(constants)
        return timed.us_of(run(timed.tasks, price_again(timed.tasks, rates), rates))

    def slope_ns(self, probe: Probe, constants: Mapping[str, float]) -> float:
        """Time of a repetition of a probe."""
        short, long = (self.us(*_launch(probe, count), constants) for count in probe.counts)
        return (long - short) / (probe.counts[1] - probe.counts[0]) * 1e3

    def constants(self, probe: Probe) -> frozenset[str]:
        """Names of what the probe's prices rest on, and of hops, which no price says."""
        timed = self._timed(*_launch(probe, probe.counts[1]))
        found = {name for name in timed.rates.read if not name.startswith("scheduling.")}
        for price in timed.prices:
            found |= price.constants
            if isinstance(price, DmaPrice):
                found |= price.issue_constants
        return frozenset(found)

    def _timed(self, launched: Any, spec: ArraySpec, kwargs: dict[str, Any]) -> Timed:
        key = launched.function, spec, repr(sorted(kwargs.items()))
        if key not in self._traced:
            execution = execute(launched, (spec,), kwargs, trace_only=True)
            self._traced[key] = in_time(execution, Rates())
        return self._traced[key]


def _launch(probe: Probe, count: int) -> tuple[Any, ArraySpec, dict[str, Any]]:
    return probe.kernel[LNC], ArraySpec(probe.shape, probe.dtype), probe.arguments(count)


@functools.cache
def shared() -> Modelled:
    """One for the process."""
    return Modelled()


class ModelDevice:
    """A `Device` that is the timing model: of the constants that it is given, with the noise of none."""

    name = description = "the timing model"
    clock = "modelled"

    def __init__(self, constants: Mapping[str, float] | None = None) -> None:
        self._constants = dict(constants or {})
        self._us: dict[Any, float] = {}

    def run(self, launched: Any, args: Call, kwargs: dict[str, Any]) -> Any:
        """The simulator's outputs."""
        return execute(launched, args, kwargs).outputs

    def seconds(self, launched: Any, calls: Sequence[Call], kwargs: dict[str, Any]) -> float:
        """Modelled seconds of the calls one after another; all have arrays of one shape."""
        spec = ArraySpec(calls[0][0].shape, str(calls[0][0].dtype))
        key = launched.function, spec, repr(sorted(kwargs.items()))
        if key not in self._us:
            self._us[key] = shared().us(launched, spec, kwargs, self._constants)
        return self._us[key] * len(calls) * 1e-6

    def forget(self) -> None:
        """Nothing is kept that another call could not use."""
