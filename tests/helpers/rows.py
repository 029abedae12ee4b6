"""What the tests of `mixed` and `vector` share: what the records of a launch say of time and of DMAs."""

from typing import Any

from nkiconv.planner.floors import floors
from nkiconv.problem import ConvProblem
from nkiconv.simulator.memory import SBUF
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates


def times_floor(execution: Any, problem: ConvProblem, lnc: int = 2) -> float:
    """Modelled time, static DMA, program order, as a multiple of the time that moving x, w and y takes."""
    return in_time(execution, Rates()).us / floors(problem, lnc).copy_us


def staged(execution: Any) -> list[Any]:
    """DMAs that bring something from on chip to on chip, or from HBM to HBM."""
    found = [i for i in execution.instructions if i.op == "dma_copy"]
    return [i for i in found if (i.reads[0].info.buffer is SBUF) == (i.writes[0].info.buffer is SBUF)]
