"""The operators' kernels on a Neuron device, through torch-neuronx. They have never run on one; see the README.

torch-neuronx's native backend takes a kernel through `wrap_nki`, which is one node of torch.compile's graph; under
torch_xla a `@nki.jit` kernel is called directly. Either way the algorithm and settings of a plan are compile-time
arguments. Everything here reads shapes only: tensors that torch.compile traces have no data.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from typing import Any

import torch

from ..._nki import CHOICE
from ...api.calls import plain
from ...errors import NkiconvError, PlanWarning, UnsupportedError
from ...kernels.blocks.causal_conv1d_split import causal_conv1d_split_heads, causal_conv1d_split_step
from ...launches import advise_target, degree, on_cores
from ...planner.depthwise_conv1d import chunked_shape
from ...planner.entry import answer, estimated
from ...planner.operations import OPERATIONS, operation_of
from ...planner.request import Asked, Request, kernel_arguments
from ...problem import ConvProblem
from ...schedules.split import is_step
from ..operators.called import Called, FilterCall, SplitCall
from ..operators.convolution import filter_like, is_empty
from ..operators.pixel_norm import both, numbers_of, tensors_of
from .host import Filters
from .statistics import of_nothing

#: Who chooses: "estimate", a plan that is in the cache, else cost models, in milliseconds; "timed", the planner, which
#: searches where its cache has none; "kernel", the kernel, by the least bound.
PLAN_VARIABLE, EFFORTS = "NKICONV_PLAN", ("estimate", "timed", "kernel")
#: Operations of filters' gradients.
_OF_FILTERS = ("depthwise_conv1d_weight", "conv2d_weight", "conv3d_weight")


def convolve(called: Called) -> Any:
    """Results of the kernel on the device of the tensors: y, with return_stats (y, stats), with a norm (y, the norm's
    input or an empty tensor), with keeps_state (y, the state).

    If there is no plan, a PlanWarning says so once for each shape, and the kernel runs the algorithm of the least
    bound, or refuses.
    """
    asked, x, w, bias, residual, packed, frames, scales, norm, state, keeps_state, chunks = called
    if is_empty(x):
        return of_nothing(called)
    problem, shape = called.problem, called.shape
    named = {"bias": bias, "initial_frames": frames, "x_scale": scales[0], "x_shift": scales[1]}
    named |= {"initial_state": state} | ({} if norm is None else tensors_of(norm))
    named["residual"] = None if residual is None else residual.reshape(problem.output_shape)
    tensors = {name: tensor.contiguous() for name, tensor in named.items() if tensor is not None}
    filters = w.reshape(problem.filter_shape)
    if packed is not None:  # of volumes, blocks and channels are one axis: NKI's tensors have five at most
        filters = packed.flatten(0, 1) if problem.is_volume else packed
    images, lnc = x if x.dim() > 3 else x.reshape(chunked_shape(problem, chunks)), cores()
    numbers = dict(_arguments(problem, asked.operation, called.planned, lnc, effort()))
    numbers |= {} if norm is None else numbers_of(norm)
    found = launcher(asked.operation, lnc)(images.contiguous(), filters.contiguous(), **tensors, **numbers)
    if norm is not None:
        return both(norm, *(_shaped(one, shape) for one in (found if norm.before else (found,))))
    if asked.return_stats is None and not keeps_state:
        return _shaped(found, shape)
    return _shaped(found[0], shape), found[1]


def causal_conv1d_split(given: SplitCall, chunks: str | None = None) -> tuple[torch.Tensor, ...]:
    """Parts, and states, as the kernel returns them; chunks: of x's channels."""
    x, weight, layout, final = given.x, given.weight, given.layout, given.return_final_states
    named = {"bias": given.bias, "initial_state": given.initial_states}
    tensors = {name: tensor.contiguous() for name, tensor in named.items() if tensor is not None}
    numbers: dict[str, Any] = {"activation": given.activation, "eps": given.eps, "layout": layout}
    numbers |= {"return_final_state": True} if final else {}
    places = given.places if chunks is None else {**given.places, "chunks": chunks}
    numbers |= places
    kernel, operands = causal_conv1d_split_heads, [x.contiguous(), weight.contiguous()]
    if is_step(x.shape[layout.index("W")], weight.shape[1], given.initial_states is not None, final, bool(places)):
        kernel = causal_conv1d_split_step
        operands.insert(1, tensors.pop("initial_state").clone())  # which it changes
    found: tuple[torch.Tensor, ...] = launched(kernel, cores())(*operands, splits=given.splits, **tensors, **numbers)
    return tuple(found)


def filters_gradient(given: FilterCall) -> Filters:
    """(dw, with `bias` db) by the kernel on the device of the tensors.

    The kernel returns fp32 sums: rounding would need a dtype of nki.language as an argument, which is no plain Python
    value.
    """
    asked, x, g, size, dtype, bias = given
    problem, lnc = asked.problem(x, filter_like(x, size, dtype)).toward("wgrad"), cores()
    operation = operation_of(problem).name
    arguments = dict(_arguments(problem, operation, Asked(bias=bias), lnc, effort()))
    found = launcher(operation, lnc)(
        x.reshape(problem.input_shape).contiguous(),
        g.reshape(problem.output_shape).contiguous(),
        filter_shape=plain(problem.filter_shape),
        **arguments,
    )
    dw, db = found if bias else (found, None)
    return _shaped(dw, list(size)).to(dtype), db


def _shaped(y: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A kernel's result in the operator's shape; no view, because callers may change it in place."""
    if list(y.shape) == shape:
        return y
    found: torch.Tensor = torch.ops.aten._unsafe_view(y, shape)
    return found


def cores() -> int:
    """The cores of a launch: those of a logical NeuronCore. Raises UnsupportedError as `launches.degree` does."""
    return degree()


@functools.cache
def launcher(operation: str, lnc: int) -> Any:
    """The kernel of an operation on so many cores, as torch-neuronx of this machine calls it."""
    return launched(OPERATIONS[operation].kernel, lnc)


def launched(kernel: Any, lnc: int) -> Any:
    """A kernel on `lnc` cores, by torch-neuronx or torch_xla; a LaunchWarning names once a setting that makes launches
    under torch_xla slow."""
    wrap = getattr(importlib.import_module("torch_neuronx"), "wrap_nki", None)
    if wrap is None and CHOICE.provider == "aws":
        advise_target()
    return on_cores(kernel if wrap is None else wrap(kernel), lnc)


@functools.cache
def _arguments(
    problem: ConvProblem, operation: str, asked: Asked, lnc: int, effort: str
) -> tuple[tuple[str, Any], ...]:
    """The kernel's arguments besides tensors, by name. They are kept for the process, so plans made later hold from the
    next process on."""
    request = Request(problem=problem, lnc=lnc, asked=asked, operation=operation)
    algorithm, config = (None, None) if effort == "kernel" else _choice(request, effort)
    rows = operation == "depthwise_conv1d"
    found = kernel_arguments(problem, algorithm=algorithm, config=config, rows=rows)
    same = "activation", "x_activation", "return_stats", "chunks"
    found |= {name: one for name in same if (one := getattr(asked, name)) is not None}
    found |= {} if asked.residual is None else {"residual_position": asked.residual}
    found |= {} if asked.x_upsample == 1 else {"x_upsample": asked.x_upsample}
    flags = {"strict_nonfinite": asked.strict_nonfinite, "return_final_state": asked.return_final_state}
    flags |= {"bias_gradient": asked.bias and operation in _OF_FILTERS, "packed": asked.packed and problem.is_volume}
    found |= {name: True for name, is_asked in flags.items() if is_asked}
    return tuple((name, plain(value)) for name, value in found.items())


def effort() -> str:
    """The value of NKICONV_PLAN. Raises UnsupportedError if it is not one of EFFORTS."""
    wanted = os.environ.get(PLAN_VARIABLE, EFFORTS[0])
    if wanted not in EFFORTS:
        raise UnsupportedError(f"{PLAN_VARIABLE}={wanted!r}: accepted are {', '.join(EFFORTS)}; set one, or unset it")
    return wanted


def _choice(request: Request, effort: str) -> tuple[str | None, Any]:
    """(algorithm, config) of the planner's answer; (None, None) if it has none, so that the kernel chooses."""
    problem = request.problem
    try:
        found = answer(request) if effort == "timed" else estimated(request)
    except NkiconvError as error:
        warnings.warn(
            f"{request.operation} of x {problem.input_shape} and w {problem.filter_shape}, {problem.dtype}: there is "
            f"no plan, and the kernel takes the algorithm of the least bound ({error}); NKICONV_PLAN=kernel asks for "
            f"none",
            PlanWarning,
            stacklevel=2,
        )
        return None, None
    return found.algorithm, found.config
