"""A plan is built once: host, search and kernel share one value, and no kernel changes it."""

import pytest
from core_times import core_us

from nkiconv.planner import Request
from nkiconv.planner.operations import operation_for
from nkiconv.problem import ConvProblem
from nkiconv.schedules.conv_algorithms import built
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
#: Of each algorithm a problem that it takes, beside those at the edges.
TAKEN = {
    "one group": ConvProblem(N=3, C=20, H=20, W=24, K=40, R=3, S=3, padding=((1, 1), (1, 1))),
    "few channels": ConvProblem(N=2, C=3, H=40, W=40, K=64, R=7, S=7, padding=((3, 3), (3, 3)), stride=(2, 2)),
    "groups": ConvProblem(N=2, C=64, H=14, W=14, K=64, R=3, S=3, padding=((1, 1), (1, 1)), groups=16),
    "depthwise": ConvProblem(N=2, C=64, H=14, W=14, K=64, R=7, S=7, padding=((3, 3), (3, 3)), groups=64),
    "transposed": ConvProblem(N=1, C=64, H=12, W=12, K=32, R=4, S=4, padding=((2, 2), (2, 2)), lhs_dilation=(2, 2)),
    "few outputs": ConvProblem(N=1, C=130, H=24, W=24, K=3, R=3, S=3, padding=((1, 1), (1, 1))),
    "NHWC": ConvProblem(N=2, C=40, H=16, W=16, K=48, R=3, S=3, padding=((1, 1), (1, 1)), layout="NHWC"),
}


@pytest.mark.cover(3)
@pytest.mark.parametrize("why", TAKEN)
def test_a_kernel_builds_no_plan_that_the_host_has(why):
    request, rates = Request(problem=TAKEN[why]), Rates()
    operation = operation_for(request)
    shape = operation.shape(request, rates)
    algorithm, config = operation.choice(request, shape)
    assert operation.unsupported_reason(algorithm, shape, config) == ""
    before = built.cache_info().misses
    core_us((operation.kernel[2], *operation.arguments(request, algorithm, config)), rates, 100_000)
    assert built.cache_info().misses == before
