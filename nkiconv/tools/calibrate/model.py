"""Times of probes under any constants, as the timing model has them; and a device that is the timing model."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...simulator import ArraySpec
from ...simulator.launch import execute
from ...simulator.profiling.timed import Timed, in_time
from ...simulator.program import Instruction
from ...simulator.timeline import run
from ...simulator.timing import DmaPrice, Rates, price, price_key
from ..measure.device import Call
from .probe import LNC, Probe


@dataclass(frozen=True)
class _Traced:
    """A kernel with its timeline, and its instructions by price: one of each, and which one a task's price is of."""

    timed: Timed
    distinct: tuple[Instruction, ...]
    which: tuple[int, ...]

    @staticmethod
    def of(timed: Timed) -> _Traced:
        places: dict[Any, int] = {}
        which = tuple(places.setdefault(price_key(source), len(places)) for source in timed.tasks.source)
        first = dict(zip(reversed(which), reversed(timed.tasks.source), strict=True))
        return _Traced(timed, tuple(first[i] for i in range(len(places))), which)

    def us(self, rates: Rates) -> float:
        """Time from the first DMA's issue to the last DMA's end."""
        prices = [price(one, rates) for one in self.distinct]
        return self.timed.us_of(run(self.timed.tasks, [prices[i] for i in self.which], rates))


class Modelled:
    """Kernels that are traced once and timed under many constants."""

    def __init__(self) -> None:
        self._traced: dict[Any, _Traced] = {}

    def us(self, launched: Any, spec: ArraySpec, kwargs: dict[str, Any], constants: Mapping[str, float]) -> float:
        """Time of a launch, from its first DMA's issue to its last DMA's end."""
        return self._trace(launched, spec, kwargs).us(Rates(constants))

    def slope_ns(self, probe: Probe, constants: Mapping[str, float]) -> float:
        """Time of a repetition of a probe."""
        short, long = (self.us(*_launch(probe, count), constants) for count in probe.counts)
        return (long - short) / (probe.counts[1] - probe.counts[0]) * 1e3

    def constants(self, probe: Probe) -> frozenset[str]:
        """Names of the constants in the probe's prices, and of hops, which no price has."""
        traced, rates = self._trace(*_launch(probe, probe.counts[1])), Rates()
        traced.us(rates)
        found = set(rates.read)
        for one in traced.timed.prices:
            found |= one.constants
            if isinstance(one, DmaPrice):
                found |= one.issue_constants
        return frozenset(found)

    def _trace(self, launched: Any, spec: ArraySpec, kwargs: dict[str, Any]) -> _Traced:
        key = launched.function, spec, repr(sorted(kwargs.items()))
        if key not in self._traced:
            execution = execute(launched, (spec,), kwargs, trace_only=True)
            self._traced[key] = _Traced.of(in_time(execution, Rates()))
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
