"""The operators' kernels in the simulator: NKICONV_CPU=simulate, and compare, which holds them against torch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from ...api.calls import launch
from ...bounds import epilogue_bound, error_bound, prologue_bound, returned_stats_bound
from ...planner.entry import estimated
from ...planner.request import Asked, Request
from ...problem import ConvProblem
from ...reference import ChannelNorm, abs_sum_ref, channel_stats_ref, conv_ref, epilogue_ref, num_terms, prologue_ref
from ..errors import ComparisonError
from ..operators.called import Called, FilterCall
from ..operators.convolution import is_empty
from ..operators.frames import joined, last_of
from ..operators.tensor_kinds import DTYPES
from . import agreements, host
from .arrays import from_numpy, to_numpy
from .kernels import Backend, numbers_of_request
from .statistics import SIMULATED, Norm, agree, by_torch, moments, stats_by_torch


class Simulated(Backend):
    """nkiconv's simulator, or AWS's: the launches that a Neuron device would have."""

    def launch(self, kernel: Any, *given: Any, **named: Any) -> Any:
        given, named = tree_map_only(Tensor, to_numpy, (given, named))
        return tree_map_only(np.ndarray, from_numpy, launch(kernel, given, named, SIMULATED, False).y)

    def arguments(self, operation: str, problem: ConvProblem, asked: Asked) -> dict[str, Any]:
        request = Request(problem=problem, lnc=SIMULATED, asked=asked, operation=operation)
        found = estimated(request)
        return numbers_of_request(request, found.algorithm, found.config)


BACKEND = Simulated()


def compared(called: Called, found: Any) -> Any:
    """torch's results, summed in fp32, if the kernel's, `found`, agree within the bounds; as `convolve` returns them.

    Each y may be off by `bounds.epilogue_bound`, so they may differ by twice that; the kernel's mean and variance are
    compared with float64.

    Raises ComparisonError, naming the layer.
    """
    whole = called._replace(x=joined(called.x, called.frames), packed=None, frames=None)
    expected: Any
    if called.state is not None or called.keeps_state:
        return _compared_rows(called, found)
    if called.norm is not None:
        expected = by_torch(whole)
    else:
        unrounded = host.unrounded(whole._replace(x=host.prologued(called.asked, whole.x, called.scales)))
        expected = host.in_dtype(unrounded, called.x.dtype)
        if called.asked.return_stats is not None:
            expected = expected, stats_by_torch(unrounded)
    if not is_empty(called.x):
        _require(whole, expected, found)
    return expected


def _compared_rows(called: Called, found: Any) -> Any:
    """The same of rows with a state, whose last columns must have the same bits."""
    whole = called.behind_state
    y = host.reference(whole)
    require_agreement(whole, y, found[0] if called.keeps_state else found)
    if not called.keeps_state:
        return y
    final = last_of(whole.x, called.w.shape[2] - 1)
    if to_numpy(final).tobytes() != to_numpy(found[1]).tobytes():
        raise ComparisonError(
            f"{called.asked.where}: the kernel's final state is not the last {final.shape[2]} columns of "
            f"initial_states and x, on x {tuple(called.x.shape)}; report it with x and initial_states"
        )
    return y, final


def _require(called: Called, expected: Any, found: Any) -> None:
    """Raise ComparisonError where results of a call without frames are farther apart than they may be."""
    if isinstance(expected, torch.Tensor):
        require_agreement(called, expected, found)
        return
    require_agreement(called, expected[0], found[0])
    if called.norm is None:
        _require_stats(called, found[1])
    elif called.norm.before:
        require_agreement(called.plain(), expected[1], found[1])


def _require_stats(called: Called, stats: torch.Tensor) -> None:
    """Raise ComparisonError where mean or variance of y are farther from the truth than they may be."""
    y, error = _truth(called, "fp32")
    found = [to_numpy(one) for one in moments(stats.double(), Norm("instance", None, 0.0))]
    right = channel_stats_ref(y)
    limits = returned_stats_bound(y, error, y[0, 0].size)
    agree(called.asked.where, called.x, zip(found, (right[..., 1], right[..., 2]), limits, strict=True))


def require_agreement(called: Called, expected: torch.Tensor, found: torch.Tensor) -> None:
    """Raise ComparisonError where torch's y and the kernel's differ by more than both may be off by."""
    kind = DTYPES[called.x.dtype]
    given = f"input {tuple(called.x.shape)} {kind}, weight {tuple(called.w.shape)}"
    bound = _truth(called, kind)[1]
    agreements.require_near(expected, found, bound, f"{called.asked.where}: the kernel and torch", given)


def _truth(called: Called, dtype: str) -> tuple[Any, Any]:
    """(y in float64, how far one that is rounded to dtype may be off) of a call without frames."""
    asked, x, problem, norm = called.asked, called.x, called.problem, called.norm
    images, filters = to_numpy(x if asked.rank > 1 else x[:, :, None]), to_numpy(called.w).reshape(problem.filter_shape)
    inexact: Any = 0.0
    if called.has_prologue:
        x_scale, x_shift = map(_array, called.scales)
        of_x = x_scale, x_shift, asked.x_activation
        off = prologue_ref(prologue_bound(images, problem.dtype, *of_x), x_upsample=asked.x_upsample)
        inexact = abs_sum_ref(off, filters, problem)
        images = prologue_ref(images, *of_x, asked.x_upsample)
    sums, abs_sum = conv_ref(images, filters, problem), abs_sum_ref(images, filters, problem)
    bias, added = map(_array, (called.bias, called.residual))
    more = (bias, asked.activation, None if added is None else added.reshape(sums.shape), asked.residual_position)
    asked_norm = None
    if norm is not None:
        asked_norm = ChannelNorm(str(norm.kind), _array(norm.weight), _array(norm.bias), norm.eps)
    bound = epilogue_bound(num_terms(problem), abs_sum, sums, dtype, *more, inexact, asked_norm)
    return epilogue_ref(sums, *more, asked_norm), bound


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else to_numpy(tensor)


def compared_filters_gradient(given: FilterCall, found: host.Filters) -> host.Filters:
    """torch's (dw, with `bias` db), if the kernel's, `found`, agree within the bounds.

    Each may be off by `bounds.error_bound`. torch multiplies the zeros of padding too, so that Inf gives NaN there.
    With Inf or NaN in x or g, the kernel may have more non-finite values, in channels that share products, and fewer,
    for taps on padding alone, but not none in a filter where torch has some.

    Raises ComparisonError, naming the layer.
    """
    asked, x, g, size, *_ = given
    around = F.pad(x, [zeros for pair in reversed(asked.padding) for zeros in pair])
    bare = given._replace(asked=dataclasses.replace(asked, padding=((0, 0),) * asked.rank), x=around)
    wide = bare._replace(x=around.double(), g=g.double(), dtype=torch.float64)
    positive = wide._replace(x=wide.x.abs(), g=wide.g.abs())
    expected, truth, magnitude = map(host.filters_gradient, (bare, wide, positive))
    terms = math.prod(g.shape) // g.shape[1]
    spreads = not (x.isfinite().all() and g.isfinite().all())
    for one, other, sums, total in zip(expected, found, truth, magnitude, strict=True):
        if one is None or other is None or sums is None or total is None:
            continue
        bound = error_bound(terms, to_numpy(total), to_numpy(sums), DTYPES[one.dtype])
        which = f"{asked.where}: filters' gradients of the kernel and of torch"
        on = f"input {tuple(x.shape)} {DTYPES[x.dtype]}, filters {size}"
        agreements.require_near(one, other, bound, which, on, spreads)
    return expected
