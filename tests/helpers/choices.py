"""What cost models choose for a convolution, held against the modelled times of all algorithms."""

from nkiconv.planner.operations import OPERATIONS
from nkiconv.planner.request import Request
from nkiconv.simulator.launch import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

#: Times that the choice may take of the fastest.
SAME = 1.03
#: Instructions of a kernel that is still timed.
INSTRUCTIONS_MAX = 20_000


def modelled_us(problem, operation):
    """{algorithm: us} of those that take a problem: settled settings, two cores, throttle phase 0, program order; {}
    where one is too long."""
    operation, request, found = OPERATIONS[operation], Request(problem=problem, operation=operation), {}
    shape = operation.shape(request, Rates())
    for name in operation.algorithms:
        if not operation.unsupported_reason(name, shape, None):
            args, kwargs = operation.launch(request, name, None)
            execution = execute(operation.kernel[2], args, kwargs, trace_only=True)
            if len(execution.instructions) > INSTRUCTIONS_MAX:
                return {}
            found[name] = in_time(execution, Rates()).us
    return found


def times_slower(problem, operation):
    """The choice's time over the fastest's; 1 where nothing is timed."""
    found = modelled_us(problem, operation)
    if len(found) < 2:
        return 1.0
    request = Request(problem=problem, operation=operation)
    chosen = OPERATIONS[operation].choice(request, OPERATIONS[operation].shape(request, Rates()))[0]
    return found[chosen] / min(found.values())
