"""The operators' kernels in the simulator: NKICONV_CPU=simulate, and compare, which holds them against torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from ...api.causal_conv1d_split import causal_conv1d_split as split_arrays
from ...api.causal_conv1d_split import causal_conv1d_split_update as step_arrays
from ...api.conv import conv2d, conv3d
from ...api.conv1d import conv1d
from ...api.conv_transpose import conv_transpose1d, conv_transpose2d, conv_transpose3d
from ...api.depthwise_conv1d import depthwise_conv1d
from ...api.gradients import conv1d_weight, conv2d_weight, conv3d_weight
from ...bounds import epilogue_bound, error_bound, prologue_bound, returned_stats_bound
from ...reference import ChannelNorm, abs_sum_ref, channel_stats_ref, conv_ref, epilogue_ref, num_terms, prologue_ref
from ...schedules.split import is_step
from ..errors import ComparisonError
from ..operators.called import Called, FilterCall, SplitCall
from ..operators.convolution import Convolution, is_empty
from ..operators.frames import joined, last_of
from ..operators.pixel_norm import both, numbers_of, tensors_of
from ..operators.tensor_kinds import DTYPES
from . import agreements, host
from .arrays import from_numpy, to_numpy
from .statistics import Norm, agree, by_torch, moments, of_nothing, stats_by_torch

#: The functions of arrays by axes.
_ARRAYS: dict[int, Any] = {1: conv1d, 2: conv2d, 3: conv3d}
_TRANSPOSED: dict[int, Any] = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}
_WEIGHT: dict[int, Any] = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}


def convolve(called: Called) -> Any:
    """Results of the kernel that a Neuron device would run, with the packed filter if there is one: y, with
    return_stats (y, stats), with a norm (y, the norm's input or an empty tensor)."""
    if is_empty(called.x):
        return of_nothing(called)
    found, norm = _by_arrays(called), called.norm
    if norm is not None:
        return both(norm, *map(from_numpy, found if norm.before else (found,)))
    return tuple(map(from_numpy, found)) if isinstance(found, tuple) else from_numpy(found)


def _by_arrays(called: Called) -> Any:
    """The result of the array function for a call."""
    asked, norm = called.asked, called.norm
    x, w, bias, residual, packed, frames = map(_array, called[1:7])
    more: dict[str, Any] = {"bias": bias, "residual": residual, "residual_position": asked.residual_position}
    more |= {"activation": asked.activation, "strict_nonfinite": asked.strict_nonfinite}
    if frames is not None:
        more["initial_frames"] = frames
    if called.has_prologue:
        more |= {name: _array(one) for name, one in zip(("x_scale", "x_shift"), called.scales, strict=True)}
        more["x_activation"] = asked.x_activation
        more |= {"x_upsample": asked.x_upsample} if asked.x_upsample != 1 else {}
    if asked.return_stats is not None:
        more["return_stats"] = asked.return_stats
    if norm is not None:
        more |= {**numbers_of(norm), **{name: to_numpy(one) for name, one in tensors_of(norm).items()}}
    if packed is not None and asked.rank == 1:
        return _by_packed(called, x, packed, more)
    if asked.transposed and asked.operation != "depthwise_conv1d":
        asked.problem(called.x, called.w)  # refuses strides, which the functions of arrays do not know
        return _TRANSPOSED[asked.rank](x, w, **_transposed(asked, called.w), **more)
    numbers = _numbers(asked, ("stride", "padding", "dilation", "lhs_dilation"))
    if asked.operation == "depthwise_conv1d":
        states = {"initial_state": _array(called.state), "return_final_state": called.keeps_state}
        more |= {**states, "chunks": called.chunks}
        return depthwise_conv1d(x, w[:, 0], **numbers, flipped=asked.transposed, **more)
    return _ARRAYS[asked.rank](x, w if packed is None else packed, **numbers, groups=asked.groups, **more)


def _array(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else to_numpy(tensor)


def _by_packed(called: Called, x: Any, packed: Any, more: dict[str, Any]) -> Any:
    """The same of rows and a packed filter: a row is an image of height 1."""
    problem, shape = called.problem, called.shape
    if more["residual"] is not None:
        more = more | {"residual": more["residual"].reshape(problem.output_shape)}
    numbers: dict[str, Any] = {"stride": problem.stride, "padding": problem.padding}
    numbers |= {"dilation": problem.rhs_dilation, "lhs_dilation": problem.lhs_dilation}
    found = conv2d(x.reshape(problem.input_shape), packed, **numbers, **more)
    return found.reshape(shape) if called.asked.return_stats is None else (found[0].reshape(shape), *found[1:])


def _transposed(asked: Convolution, w: torch.Tensor) -> dict[str, Any]:
    """Arguments of the functions of arrays of a transposed convolution."""
    windows = [(taps - 1) * gap for taps, gap in zip(w.shape[2:], asked.dilation, strict=True)]
    each = zip(windows, asked.padding, strict=True)
    taken = tuple((window - before, window - behind) for window, (before, behind) in each)
    own = dataclasses.replace(asked, stride=asked.lhs_dilation, padding=taken)
    return {**_numbers(own, ("stride", "padding", "dilation")), "groups": asked.groups}


def _numbers(asked: Convolution, names: Sequence[str]) -> dict[str, Any]:
    """Numbers of each axis as the functions of arrays take them, those of rows by themselves."""
    each = {name: getattr(asked, name) for name in names}
    return each if asked.rank > 1 else {name: value for name, (value,) in each.items()}


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


def filters_gradient(given: FilterCall) -> host.Filters:
    """(dw, with `bias` db) of the kernel that a Neuron device would run."""
    asked, x, g, size, dtype, bias = given
    numbers = _numbers(asked, ("stride", "padding", "dilation"))
    more = {"groups": asked.groups, "bias_gradient": bias, "out_dtype": DTYPES[dtype]}
    found = _WEIGHT[asked.rank](to_numpy(x), size, to_numpy(g), **numbers, **more)
    dw, db = found if bias else (found, None)
    return from_numpy(dw), None if db is None else from_numpy(db)


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


def causal_conv1d_split(given: SplitCall, chunks: str | None = None) -> list[torch.Tensor]:
    """Parts, and states, of the kernel that a Neuron device would run; chunks: of x's channels."""
    rows, filters, added, before = map(_array, given[:4])
    layout, final = given.layout, given.return_final_states
    places = given.places if chunks is None else {**given.places, "chunks": chunks}
    asked: dict[str, Any] = {"splits": given.splits, "activation": given.activation, "eps": given.eps, "layout": layout}
    if is_step(rows.shape[layout.index("W")], filters.shape[1], before is not None, final, bool(places)):
        return [from_numpy(one) for one in step_arrays(rows, before, filters, added, **asked)]
    found = split_arrays(rows, filters, added, **asked, **places, initial_state=before, return_final_state=final)
    return [from_numpy(one) for one in ((*found[0], *found[1:]) if isinstance(found[0], tuple) else found)]
