"""Timed `Plan`s of kernels with a single algorithm: two 1x1 convolutions, split and gated rows."""

from __future__ import annotations

import functools
import math
import statistics
from typing import Any, NamedTuple

from torch import Tensor

from ...kernels.blocks.b2b_causal_conv1d import b2b_causal_conv1d_fused
from ...kernels.blocks.causal_conv1d_split import causal_conv1d_split_heads
from ...kernels.blocks.pointwise_mlp import pointwise_mlp_fused
from ...pixel_norms import X_CHANNELS
from ...planner import Asked, Plan, Request
from ...planner.clock import RANKED
from ...planner.explain import Alternative
from ...planner.floors import floors
from ...planner.plan import TIMED
from ...planner.request import least_bytes
from ...problem import ConvProblem
from ...schedules.split import Split
from ...simulator import ArraySpec
from ...simulator.dtypes import canonical
from ...simulator.profiling import profile
from ...simulator.profiling.roofline import roofline
from ...simulator.timing import Rates
from ..operators.calls import asked_of


class Mlp(NamedTuple):
    """A call of `pointwise_mlp`: C channels to K by 1x1, so many hidden ones between, and a norm in front."""

    problem: ConvProblem
    asked: Asked
    hidden: int
    x_norm: str | None

    @property
    def apart(self) -> tuple[tuple[ConvProblem, Asked], tuple[ConvProblem, Asked]]:
        """Its two convolutions."""
        bias, residual = self.asked.bias, self.asked.residual
        first = self.problem.replace(K=self.hidden), Asked(bias=bias, activation=self.asked.activation)
        return first, (self.problem.replace(C=self.hidden), Asked(bias=bias, residual=residual))


def mlp_of(
    x: Tensor,
    filters: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    activation: str | None,
    residual: Tensor | None,
    norm: str | None,
) -> Mlp:
    """A call with tensors of these shapes."""
    ones, zeros = [1] * (x.dim() - 2), [0] * 2 * (x.dim() - 2)
    both = x.new_empty((filters[1].shape[0], x.shape[1], *ones), device="meta")
    problem = asked_of(f"conv{x.dim() - 2}d", ones, zeros, ones, ones, 1, None, "pre_activation", None).problem(x, both)
    has_bias = any(one is not None for one in biases)
    asked = Asked(bias=has_bias, activation=activation, residual=None if residual is None else "pre_activation")
    return Mlp(problem, asked, int(filters[0].shape[0]), norm)


@functools.cache
def plan_mlp(request: Request, hidden: int, x_norm: str | None) -> Plan:
    """The plan of a request of C channels to K by 1x1, with so many hidden ones between. x_norm: with both numbers."""
    problem, asked = request.problem, request.asked
    dtype = canonical(problem.dtype) or ""
    extents = tuple(axis.size for axis in problem.axes)
    x, y = (problem.N, problem.C, *extents), (problem.N, problem.K, *extents)
    biases = {"bias1": (hidden,), "bias2": (problem.K,)} if asked.bias else {}
    biases |= {} if x_norm is None else dict.fromkeys(X_CHANNELS, (problem.C,))
    added = biases | ({"residual": y} if asked.residual else {})
    tensors = {name: ArraySpec(shape, dtype) for name, shape in added.items()}
    filters = ArraySpec((hidden, problem.C), dtype), ArraySpec((problem.K, hidden), dtype)
    found = profile(pointwise_mlp_fused[request.lnc])(
        ArraySpec(x, dtype), *filters, **tensors, activation=asked.activation, x_norm=x_norm
    )
    channels, pixels = problem.C + problem.K, problem.N * math.prod(extents)
    num_bytes = (pixels * (channels + bool(asked.residual) * problem.K) + hidden * channels) * problem.itemsize
    return _only_way("pointwise_mlp", request, found, num_bytes, 2 * pixels * hidden * channels, {"M": hidden})


@functools.cache
def plan_split(
    request: Request, splits: tuple[Split, ...], tokens_first: bool, within: tuple[int, int] | None = None
) -> Plan:
    """The plan of a causal convolution of rows that writes parts of heads; within: (the place of the first of x's
    channels that it reads, all of x's), or None."""
    problem, asked = request.problem, request.asked
    dtype = canonical(problem.dtype) or ""
    first, channels = within or (None, problem.C * len(asked.chunks or "x"))
    shape = (problem.N, problem.W, channels) if tokens_first else (problem.N, channels, problem.W)
    tensors = {"bias": ArraySpec((problem.C,), dtype)} if asked.bias else {}
    if asked.initial_state:
        tensors["initial_state"] = ArraySpec((problem.N, problem.C, problem.S - 1), dtype)
    found = profile(causal_conv1d_split_heads[request.lnc])(
        ArraySpec(shape, dtype), ArraySpec((problem.C, problem.S), dtype), splits, **tensors,
        activation=asked.activation, layout="NWC" if tokens_first else "NCW",
        return_final_state=asked.return_final_state, chunks=asked.chunks,
        first_channel=first,
    )  # fmt: skip
    return _only_way("causal_conv1d_split", request, found, least_bytes(problem, asked), problem.flops, {})


@functools.cache
def plan_b2b(request: Request, taps: int) -> Plan:
    """The plan of a causal convolution of 3 * D channels, a gate, filters of so many taps and a gate."""
    problem, asked = request.problem, request.asked
    dtype = canonical(problem.dtype) or ""
    N, channels, W, D = problem.N, problem.C, problem.W, problem.C // 3
    shapes = {"x_state": (N, channels, problem.S - 1), "gated_state": (N, D, taps - 1)} if asked.initial_state else {}
    every = [ArraySpec(shape, dtype) for shape in ((N, channels, W), (channels, problem.S), (D, taps))]
    states = {name: ArraySpec(shape, dtype) for name, shape in shapes.items()}
    more = {"return_final_states": True} if asked.return_final_state else {}
    found = profile(b2b_causal_conv1d_fused[request.lnc])(*every, **states, **more)
    num_bytes, flops = 4 * N * D * W * problem.itemsize, 2 * N * D * W * (3 * problem.S + taps)
    return _only_way("b2b_causal_conv1d", request, found, num_bytes, flops, {"mixer S": taps})


def _only_way(name: str, request: Request, found: Any, num_bytes: int, flops: int, symbols: dict[str, int]) -> Plan:
    """A plan of a kernel's profile."""
    problem, lnc = request.problem, request.lnc
    dtype = canonical(problem.dtype) or ""
    ranked_us = [found.phases.at_us.get(phase / RANKED, found.phases.phase0_us) for phase in range(RANKED)]
    only = Alternative(name, None, statistics.fmean(ranked_us), found.bound_by, found.instructions)
    return Plan(
        problem=problem,
        operation=name,
        lnc=lnc,
        asked=request.asked,
        constants={},
        algorithm=name,
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
        symbols=symbols,
        alternatives=(only,),
        rejected=(),
        effort=TIMED,
    )
