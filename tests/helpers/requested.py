"""What a problem is to the planner, and how long its clock says that a launch takes."""

from nkiconv.planner import clock
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Asked, Request
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates


def requested(problem, **asked):
    """(Request, the operation that it is for, what that makes of it)."""
    request = Request(problem=problem, asked=Asked(**asked))
    operation = operation_for(request)
    return request, operation, operation.shape(request, Rates())


def core_us(launch, rates, most):
    """Modelled us at phase 0 of core 1, of at most so many instructions; of both cores of a kernel whose cores meet."""
    execution, own = clock.core_trace(launch, rates, most, cut=False)
    return in_time(execution, own).us
