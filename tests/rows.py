"""What the tests of `mixed` and `vector` share: a trace of the public kernel, and what its records say of DMAs."""

from __future__ import annotations

from typing import Any

from depthwise import arguments

from nkiconv import depthwise_conv1d_implicit_gemm, simulator, spec
from nkiconv.floors import floors
from nkiconv.problem import ConvProblem
from nkiconv.simulator.memory import SBUF
from nkiconv.simulator.timeline import build, run
from nkiconv.simulator.timing import PriceList, Rates


def trace(problem: ConvProblem, algorithm: str, lnc: int = 2, **more: Any) -> Any:
    """The records of a launch without data."""
    args = spec(problem.input_shape, problem.dtype), spec(problem.filter_shape, problem.dtype)
    kwargs = arguments(problem) | {"algorithm": algorithm} | more
    return simulator.execute(depthwise_conv1d_implicit_gemm[lnc], args, kwargs, trace_only=True)


def times_floor(execution: Any, problem: ConvProblem, lnc: int = 2) -> float:
    """Modelled time, static DMA, program order, as a multiple of the time that moving x, w and y takes."""
    rates = Rates()
    tasks, prices = build(execution.programs, PriceList(rates))
    return float(run(tasks, prices, rates).total_ns / 1e3 / floors(problem, lnc).copy_us)


def dmas(execution: Any, name: str) -> list[Any]:
    """The DMAs that read a tensor of this name."""
    return [i for i in execution.instructions if i.op == "dma_copy" and i.reads[0].info.name == name]


def staged(execution: Any) -> list[Any]:
    """DMAs that bring something from on chip to on chip, or from HBM to HBM."""
    found = [i for i in execution.instructions if i.op == "dma_copy"]
    return [i for i in found if (i.reads[0].info.buffer is SBUF) == (i.writes[0].info.buffer is SBUF)]


def shortest_run(instructions: list[Any]) -> int:
    """Bytes of the shortest contiguous run of these loads, all of whose innermost dims are contiguous."""
    assert all(i.reads[0].strides[-1] == 1 for i in instructions)
    return min(i.reads[0].shape[-1] * i.reads[0].itemsize for i in instructions)
