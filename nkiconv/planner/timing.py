"""Times one candidate in the simulator without data, on the whole problem or on a part of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..simulator.iterations import num_compiled
from ..simulator.launch import Execution, execute
from ..simulator.profiling import Phases, Timed, in_time
from ..simulator.profiling.assemble import bound_by
from ..simulator.profiling.path import critical_path
from ..simulator.profiling.profile import phase_list, phases_at
from ..simulator.program import Program
from ..simulator.timeline import ENGINES, times_run
from ..simulator.timing import AnyPrice, DmaPrice, Price, PriceList, Rates, TensorPrice
from .candidates import Candidate
from .clock import RANKED
from .operations import operation_for
from .request import Request


@dataclass(frozen=True, eq=False)
class Traced:
    """A candidate's instructions with their prices; the timeline is computed on demand. Equal only to itself."""

    request: Request
    execution: Execution
    prices: PriceList
    #: instructions of all cores, as recorded, which is the cost of timing; and as compiled
    instructions: int
    compiled: int
    #: work of the busiest engine of each core
    cores_us: tuple[float, ...]

    @property
    def least_us(self) -> float:
        """The busier core's work: a lower bound of any timeline, except for packets with which DMAs overlap."""
        return max(self.cores_us)

    @functools.cached_property
    def timed(self) -> Timed:
        """The timeline at phase 0 of the throttle's grid."""
        name = operation_for(self.request).name
        return in_time(self.execution, self.prices.rates, name, prices=self.prices)

    @functools.cached_property
    def us(self) -> float:
        """First DMA issue to last DMA done, modelled: the mean over `RANKED` phases of the grid."""
        return ranked_us(self.timed)

    @functools.cached_property
    def bound_by(self) -> str:
        """The resource with most of the critical path, as in a profile."""
        timed = self.timed
        return bound_by(timed, critical_path(timed.tasks, timed.prices, timed.line))


def trace(request: Request, candidate: Candidate, rates: Rates, *, most: int | None = None) -> Traced:
    """The Traced of a candidate: runs the kernel's Python on shapes, and prices its instructions.

    Args: most: instructions at which to give up.

    Raises NkiError: the kernel breaks a rule of NKI, or needs more memory than there is; TraceLimitError beyond `most`.
    """
    operation = operation_for(request)
    args, kwargs = operation.launch(request, candidate.algorithm, candidate.config)
    execution = execute(operation.kernel[request.lnc], args, kwargs, trace_only=True, most=most)
    prices = PriceList(rates)
    busiest = tuple(busiest_ns(program, prices) / 1e3 for program in execution.programs)
    compiled = sum(map(num_compiled, execution.programs))
    return Traced(request, execution, prices, len(execution.instructions), compiled, busiest)


def busiest_ns(program: Program, prices: PriceList) -> float:
    """ns of work of the busiest engine of a core, its DMA engines as one, with all iterations of device loops."""
    totals = dict.fromkeys((*ENGINES, "flow"), 0.0)
    times = times_run(program) if program.repeats else None
    for instruction in program.instructions:
        price: AnyPrice = prices(instruction)
        often = 1.0 if times is None else float(times[instruction.index])
        if type(price) is DmaPrice:
            totals["flow"] += often * sum(price.work_ns) / len(price.work_ns)
        elif type(price) is TensorPrice:
            if not price.tiled:
                totals["tensor"] += often * price.stream_ns
        elif isinstance(price, Price):
            totals[instruction.engine] += often * price.issue_ns
    return max(totals.values())


def phases(timed: Timed, most: int) -> Phases:
    """Times at up to `most` of a profile's phases, evenly spread; phase 0 is known."""
    chosen = phase_list(timed)
    while len(chosen) > max(1, most):
        chosen = chosen[::2]
    return phases_at(timed, chosen)


def ranked_us(timed: Timed) -> float:
    """The us that candidates are ranked by: the mean over `RANKED` phases of the throttle's grid."""
    return phases(timed, RANKED).mean_us
