"""The operators' kernels on a Neuron device, through torch-neuronx. They have never run on one; see the README.

torch-neuronx's native backend takes a kernel through `wrap_nki`; under torch_xla a `@nki.jit` kernel is called as it
is. Either way the algorithm and settings of a plan go along as compile-time arguments.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import torch

from ..errors import NkiconvError, UnsupportedError
from ..kernels.conv2d import conv2d_implicit_gemm
from ..kernels.depthwise_conv1d import depthwise_conv1d_implicit_gemm
from ..planner.conv2d.kernel import kernel_arguments as conv2d_arguments
from ..planner.depthwise_conv1d.kernel import kernel_arguments as depthwise_arguments
from ..planner.entry import plan
from ..problem import ConvProblem
from .convolution import Convolution

#: Cores of a launch: those of a logical NeuronCore, which AWS's runtime reads from the same variable.
LNC_VARIABLE, LNC = "NEURON_LOGICAL_NC_CONFIG", "2"
#: "plan": the planner's algorithm and settings, from its cache where it knows the shape; "kernel": the kernel's choice.
PLAN_VARIABLE, PLANS = "NKICONV_PLAN", ("plan", "kernel")


def convolve(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """y of the kernel on the device of the tensors."""
    problem, depthwise = asked.problem(x, w), asked.name == "depthwise_conv1d"
    images, filters = x.reshape(problem.input_shape).contiguous(), w.reshape(problem.filter_shape).contiguous()
    arguments = _arguments(
        problem,
        depthwise,
        bias is not None,
        asked.activation,
        None if residual is None else asked.residual_position,
    )
    tensors: dict[str, Any] = {}
    if bias is not None:
        tensors["bias"] = bias
    if residual is not None:
        tensors["residual"] = residual.reshape(problem.output_shape).contiguous()
    kernel = depthwise_conv1d_implicit_gemm if depthwise else conv2d_implicit_gemm
    y: torch.Tensor = launcher(kernel, cores())(images, filters, **tensors, **dict(arguments))
    return y.reshape(asked.shape(x, w))


def cores() -> int:
    """Cores of a launch. Raises UnsupportedError where NEURON_LOGICAL_NC_CONFIG is neither 1 nor 2."""
    wanted = os.environ.get(LNC_VARIABLE, LNC)
    if wanted not in ("1", "2"):
        raise UnsupportedError(f"{LNC_VARIABLE}={wanted!r}: must be 1 or 2 (LNC degrees of trn2)")
    return int(wanted)


@functools.cache
def launcher(kernel: Any, lnc: int) -> Any:
    """The kernel on so many cores, as torch-neuronx of this machine calls it."""
    wrap = getattr(importlib.import_module("torch_neuronx"), "wrap_nki", None)
    return (kernel if wrap is None else wrap(kernel))[lnc]


@functools.cache
def _arguments(
    problem: ConvProblem, depthwise: bool, bias: bool, activation: str | None, residual: str | None
) -> tuple[tuple[str, Any], ...]:
    """The kernel's arguments that are no tensors, by name."""
    algorithm, config = _choice(problem, depthwise, bias, activation, residual)
    make = depthwise_arguments if depthwise else conv2d_arguments
    found = make(problem, algorithm=algorithm, config=config)
    if activation is not None:
        found["activation"] = activation
    if residual is not None:
        found["residual_position"] = residual
    return tuple(found.items())


def _choice(
    problem: ConvProblem, depthwise: bool, bias: bool, activation: str | None, residual: str | None
) -> tuple[str | None, Any]:
    """(algorithm, config) of the planner's answer; (None, None), the kernel's own, where that is wanted."""
    wanted = os.environ.get(PLAN_VARIABLE, PLANS[0])
    if wanted not in PLANS:
        raise UnsupportedError(f"{PLAN_VARIABLE}={wanted!r}: accepted are {', '.join(PLANS)}; set one, or unset it")
    if wanted == "kernel":
        return None, None
    operation = "depthwise_conv1d" if depthwise else "conv2d"
    try:
        found = plan(problem, cores(), bias=bias, activation=activation, residual=residual, operation=operation)
    except NkiconvError:  # the kernel says why better than its planner
        return None, None
    return found.algorithm, found.config
