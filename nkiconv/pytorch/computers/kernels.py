"""The operators' kernels: their arguments, of a call's tensors, and the operator's results, of theirs.

Everything here reads shapes only: tensors that torch.compile traces have no data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from ...api.calls import plain
from ...kernels.blocks.causal_conv1d_split import causal_conv1d_split_heads, causal_conv1d_split_step
from ...planner.depthwise_conv1d import chunked_shape
from ...planner.operations import OPERATIONS, operation_of
from ...planner.request import Asked, Request, kernel_arguments
from ...schedules.split import is_step
from ..operators.called import Called, FilterCall, SplitCall
from ..operators.convolution import filter_like, is_empty
from ..operators.pixel_norm import both, numbers_of, tensors_of
from .host import Filters
from .statistics import of_nothing

#: Operations of filters' gradients.
_OF_FILTERS = ("depthwise_conv1d_weight", "conv2d_weight", "conv3d_weight")


class Backend(ABC):
    """Where kernels run: a Neuron device, or the simulator."""

    @abstractmethod
    def launch(self, kernel: Any, *given: Any, **named: Any) -> Any:
        """A kernel's results, a tensor or a tuple of them, in memory of their own; tensors, and tuples of them, are
        passed as the kernel reads them."""

    @abstractmethod
    def arguments(self, operation: str, problem: Any, asked: Asked) -> dict[str, Any]:
        """The arguments of an operation's kernel besides tensors, by name."""

    def convolve(self, called: Called) -> Any:
        """Results of the kernel: y, with return_stats (y, stats), with a norm (y, the norm's input or an empty tensor),
        with keeps_state (y, the state)."""
        asked, x, w, bias, residual, packed, frames, scales, norm, state, keeps_state, chunks = called
        if is_empty(x):
            return of_nothing(called)
        problem, shape = called.problem, called.shape
        named = {"bias": bias, "initial_frames": frames, "x_scale": scales[0], "x_shift": scales[1]}
        named |= {"initial_state": state} | ({} if norm is None else tensors_of(norm))
        named["residual"] = None if residual is None else residual.reshape(problem.output_shape)
        tensors = {name: tensor for name, tensor in named.items() if tensor is not None}
        filters = w.reshape(problem.filter_shape)
        if packed is not None:  # of volumes, blocks and channels are one axis: NKI's tensors have five at most
            filters = packed.flatten(0, 1) if problem.is_volume else packed
        images = x if x.dim() > 3 else x.reshape(chunked_shape(problem, chunks))
        numbers = self.arguments(asked.operation, problem, called.planned) | ({} if norm is None else numbers_of(norm))
        found = self.launch(OPERATIONS[asked.operation].kernel, images, filters, **tensors, **numbers)
        if norm is not None:
            return both(norm, *(_shaped(one, shape) for one in (found if norm.before else (found,))))
        if asked.return_stats is None and not keeps_state:
            return _shaped(found, shape)
        return _shaped(found[0], shape), found[1]

    def causal_conv1d_split(self, given: SplitCall, chunks: str | None = None) -> tuple[torch.Tensor, ...]:
        """Parts, and states, as the kernel returns them; chunks: of x's channels."""
        x, weight, layout, final = given.x, given.weight, given.layout, given.return_final_states
        named: dict[str, Any] = {"activation": given.activation, "eps": given.eps, "layout": layout}
        named |= {} if given.bias is None else {"bias": given.bias}
        places = given.places if chunks is None else {**given.places, "chunks": chunks}
        state, tokens = given.initial_states, x.shape[layout.index("W")]
        if state is not None and is_step(tokens, weight.shape[1], True, final, bool(places)):
            step = causal_conv1d_split_step  # which changes the state
            return tuple(self.launch(step, x, state.clone(), weight, splits=given.splits, **named))
        named |= places | ({"return_final_state": True} if final else {})
        named |= {} if state is None else {"initial_state": state}
        return tuple(self.launch(causal_conv1d_split_heads, x, weight, splits=given.splits, **named))

    def filters_gradient(self, given: FilterCall) -> Filters:
        """(dw, with `bias` db) by the kernel.

        The kernel returns fp32 sums: rounding would need a dtype of nki.language as an argument, which is no plain
        Python value.
        """
        asked, x, g, size, dtype, bias = given
        problem = asked.problem(x, filter_like(x, size, dtype)).toward("wgrad")
        operation = operation_of(problem)
        found = self.launch(
            operation.kernel,
            x.reshape(problem.input_shape),
            g.reshape(problem.output_shape),
            filter_shape=plain(problem.filter_shape),
            **self.arguments(operation.name, problem, Asked(bias=bias)),
        )
        dw, db = found if bias else (found, None)
        return _shaped(dw, list(size)).to(dtype), db


def _shaped(y: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A kernel's result in the operator's shape; no view, because callers may change it in place."""
    if list(y.shape) == shape:
        return y
    found: torch.Tensor = torch.ops.aten._unsafe_view(y, shape)
    return found


def numbers_of_request(request: Request, algorithm: str | None, config: Any) -> dict[str, Any]:
    """The arguments of a request's kernel besides tensors, by name; algorithm: None leaves both to the kernel."""
    problem, asked, operation = request.problem, request.asked, request.operation
    found = kernel_arguments(problem, algorithm=algorithm, config=config, rows=operation == "depthwise_conv1d")
    same = "activation", "x_activation", "return_stats", "chunks"
    found |= {name: one for name in same if (one := getattr(asked, name)) is not None}
    found |= {} if asked.residual is None else {"residual_position": asked.residual}
    found |= {} if asked.x_upsample == 1 else {"x_upsample": asked.x_upsample}
    flags = {"strict_nonfinite": asked.strict_nonfinite, "return_final_state": asked.return_final_state}
    flags |= {"bias_gradient": asked.bias and operation in _OF_FILTERS, "packed": asked.packed and problem.is_volume}
    found |= {name: True for name, is_asked in flags.items() if is_asked}
    return {name: plain(value) for name, value in found.items()}
