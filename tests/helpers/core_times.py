"""Modelled times of one core by the clock of estimates."""

from nkiconv.planner import clock
from nkiconv.simulator.profiling import in_time


def core_us(launch, rates, most):
    """Modelled us at phase 0 of core 1, of at most so many instructions; of both cores of a kernel whose cores meet."""
    execution, own = clock.core_trace(launch, rates, most, cut=False)
    return in_time(execution, own).us
