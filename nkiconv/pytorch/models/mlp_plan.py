"""What two 1x1 convolutions in one kernel take: their only way, timed, as a `Plan`."""

from __future__ import annotations

import functools
import math

from ...kernels.blocks.pointwise_mlp import pointwise_mlp_fused
from ...planner import Plan, Request
from ...planner.explain import Alternative
from ...planner.floors import floors
from ...planner.plan import TIMED
from ...simulator import ArraySpec
from ...simulator.dtypes import canonical
from ...simulator.profiling import profile
from ...simulator.profiling.roofline import roofline
from ...simulator.timing import Rates

#: The operation and its only algorithm.
NAME = "pointwise_mlp"


@functools.cache
def plan_mlp(request: Request, hidden: int) -> Plan:
    """The plan of a request of C channels to K by 1x1, with so many hidden ones between."""
    problem, asked, lnc = request.problem, request.asked, request.lnc
    dtype = canonical(problem.dtype)
    assert dtype is not None
    extents = tuple(axis.size for axis in problem.axes)
    x, y = (problem.N, problem.C, *extents), (problem.N, problem.K, *extents)
    biases = {"bias1": (hidden,), "bias2": (problem.K,)} if asked.bias else {}
    added = biases | ({"residual": y} if asked.residual else {})
    tensors = {name: ArraySpec(shape, dtype) for name, shape in added.items()}
    filters = ArraySpec((hidden, problem.C), dtype), ArraySpec((problem.K, hidden), dtype)
    found = profile(pointwise_mlp_fused[lnc])(ArraySpec(x, dtype), *filters, **tensors, activation=asked.activation)
    channels, pixels = problem.C + problem.K, problem.N * math.prod(extents)
    flops = 2 * pixels * hidden * channels
    num_bytes = (pixels * (channels + bool(asked.residual) * problem.K) + hidden * channels) * problem.itemsize
    only = Alternative(NAME, None, found.phases.phase0_us, found.bound_by, found.instructions)
    return Plan(
        problem=problem,
        operation=NAME,
        lnc=lnc,
        asked=asked,
        constants={},
        algorithm=NAME,
        config=None,
        modelled_us=found.modelled_us,
        phase0_us=found.phases.phase0_us,
        worst_us=found.phases.worst_us,
        phases=len(found.phases.at_us),
        copy_floor_us=floors(problem, lnc).copy_us,
        roofline_us=roofline(num_bytes, flops, dtype, lnc, Rates({})).us,
        bound_by=found.bound_by,
        instructions=found.instructions,
        sbuf_bytes=found.sbuf_peak_bytes,
        psum_banks=found.psum_peak_banks,
        symbols={"M": hidden},
        alternatives=(only,),
        rejected=(),
        effort=TIMED,
    )
