"""The operators' kernels in the simulator: NKICONV_CPU=simulate, and compare, which holds them against torch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
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
from ..operators.convolution import Convolution, is_empty
from ..operators.frames import joined, shaped
from ..operators.pixel_norm import PixelNorm, by_torch, nothing_like, numbers_of, tensors_of
from ..operators.prologue import NO_SCALES, Scales
from ..operators.tensor_kinds import DTYPES
from . import agreements, host
from .arrays import from_numpy, to_numpy
from .statistics import Norm, agree, moments, stats_by_torch

#: The functions of arrays by axes.
_ARRAYS: dict[int, Any] = {2: conv2d, 3: conv3d}
_TRANSPOSED: dict[int, Any] = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}
_WEIGHT: dict[int, Any] = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}


def convolve(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    packed: torch.Tensor | None = None,
    frames: torch.Tensor | None = None,
    scales: Scales = NO_SCALES,
    norm: PixelNorm | None = None,
) -> Any:
    """y of the kernel that a Neuron device would run, with the packed filter if there is one; with asked.return_stats
    (y, stats), with a norm (y, the norm's input or an empty tensor)."""
    if is_empty(x):
        y = x.new_empty(asked.shape(shaped(x, frames), w))
        if norm is not None:
            return y, y.clone() if norm.before else nothing_like(y)
        return y if asked.return_stats is None else (y, stats_by_torch(y))
    found = _by_arrays(asked, x, w, bias, residual, packed, frames, scales, norm)
    if norm is not None:
        y, *before = map(from_numpy, found if norm.before else (found,))
        return y, before[0] if before else nothing_like(y)
    if asked.return_stats is None:
        return from_numpy(found)
    return tuple(map(from_numpy, found))


def _by_arrays(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    packed: torch.Tensor | None,
    frames: torch.Tensor | None,
    scales: Scales,
    norm: PixelNorm | None,
) -> Any:
    """The result of the array function for a call."""
    arrays = list(map(_array, (x, w, bias, residual)))
    more: dict[str, Any] = {"bias": arrays[2], "residual": arrays[3], "residual_position": asked.residual_position}
    more |= {"activation": asked.activation, "strict_nonfinite": asked.strict_nonfinite}
    if frames is not None:
        more["initial_frames"] = to_numpy(frames)
    if asked.has_prologue(scales):
        more |= {name: _array(one) for name, one in zip(("x_scale", "x_shift"), scales, strict=True)}
        more["x_activation"] = asked.x_activation
        more |= {"x_upsample": asked.x_upsample} if asked.x_upsample != 1 else {}
    if asked.return_stats is not None:
        more["return_stats"] = asked.return_stats
    if norm is not None:
        more |= {**numbers_of(norm), **{name: to_numpy(one) for name, one in tensors_of(norm).items()}}
        filters = arrays[1] if packed is None else to_numpy(packed)
        return _ARRAYS[asked.rank](arrays[0], filters, **_geometry(asked), **more)
    if packed is not None:
        return _by_packed(asked, x, w, to_numpy(packed), more, frames)
    scalars = {name: value[0] for name, value in _geometry(asked).items()}
    if asked.operation == "depthwise_conv1d":
        scalars |= {"flipped": asked.transposed}
        return depthwise_conv1d(arrays[0], arrays[1][:, 0], **scalars, **more)
    if asked.transposed:
        asked.problem(x, w)  # refuses strides, which the functions of arrays do not know
        return _TRANSPOSED[asked.rank](arrays[0], arrays[1], **_transposed(asked, w), **more)
    if asked.rank > 1:
        return _ARRAYS[asked.rank](arrays[0], arrays[1], **_geometry(asked), groups=asked.groups, **more)
    return conv1d(arrays[0], arrays[1], **scalars, groups=asked.groups, **more)


def _array(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else to_numpy(tensor)


def _by_packed(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    packed: Any,
    more: dict[str, Any],
    frames: torch.Tensor | None,
) -> Any:
    """The same of a packed filter; a row is an image of height 1."""
    whole = shaped(x, frames)
    problem = asked.problem(whole, w)
    if more["residual"] is not None:
        more = more | {"residual": more["residual"].reshape(problem.output_shape)}
    found = _ARRAYS[max(2, asked.rank)](
        to_numpy(x) if asked.rank > 1 else to_numpy(x).reshape(problem.input_shape),
        packed,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.rhs_dilation,
        lhs_dilation=problem.lhs_dilation,
        **more,
    )
    shape = asked.shape(whole, w)
    return found.reshape(shape) if asked.return_stats is None else (found[0].reshape(shape), *found[1:])


def _transposed(asked: Convolution, w: torch.Tensor) -> dict[str, Any]:
    """Arguments of the functions of arrays of a transposed convolution."""
    windows = [(taps - 1) * gap for taps, gap in zip(w.shape[2:], asked.dilation, strict=True)]
    taken = [
        (window - before, window - behind) for window, (before, behind) in zip(windows, asked.padding, strict=True)
    ]
    found: dict[str, Any] = {"stride": asked.lhs_dilation, "padding": tuple(taken), "dilation": asked.dilation}
    if asked.rank == 1:
        found = {name: value[0] for name, value in found.items()}
    return found | {"groups": asked.groups}


def _geometry(asked: Convolution) -> dict[str, Any]:
    return {
        "stride": asked.stride,
        "padding": asked.padding,
        "dilation": asked.dilation,
        "lhs_dilation": asked.lhs_dilation,
    }


def compare(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    packed: torch.Tensor | None = None,
    frames: torch.Tensor | None = None,
    scales: Scales = NO_SCALES,
    norm: PixelNorm | None = None,
) -> Any:
    """torch's y, summed in fp32, if the kernel's y agrees within the bounds; with asked.return_stats (y, stats), with a
    norm (y, the norm's input or an empty tensor).

    Each may be off by `bounds.epilogue_bound`, so they may differ by twice that; the kernel's mean and variance are
    compared with float64.

    Raises ComparisonError, naming the layer.
    """
    whole = joined(x, frames)
    if norm is not None:
        results = convolve(asked, x, w, bias, residual, packed, frames, norm=norm)
        return _compared(asked, whole, results, (w, bias, residual), norm)
    unrounded = host.unrounded(asked, host.prologued(asked, whole, scales), w, bias, residual)
    expected = host.in_dtype(unrounded, x.dtype)
    plain = asked.return_stats is None
    if not is_empty(x):
        found = convolve(asked, x, w, bias, residual, packed, frames, scales)
        y, *stats = [found] if plain else found
        require_agreement(asked, whole, w, bias, residual, expected, y, scales)
        for one in stats:
            _require_stats(asked, whole, w, bias, residual, one, scales)
    return expected if plain else (expected, stats_by_torch(unrounded))


def _compared(
    asked: Convolution, x: torch.Tensor, found: Any, tensors: tuple[Any, ...], norm: PixelNorm
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's y and its norm's input, compared as in `compare`; tensors: w, bias, residual."""
    w, bias, residual = tensors
    expected = by_torch(asked, x, w, bias, residual, None, norm)
    if is_empty(x):
        return expected
    require_agreement(asked, x, w, bias, residual, expected[0], found[0], norm=norm)
    if norm.before:
        added = residual if asked.residual_position == "pre_activation" else None
        require_agreement(asked.plain(), x, w, bias, added, expected[1], found[1])
    return expected


def _require_stats(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    stats: torch.Tensor,
    scales: Scales,
) -> None:
    """Raise ComparisonError where mean or variance of y are farther from the truth than they may be."""
    y, error = _truth(asked, x, w, bias, residual, scales, "fp32")
    found = [to_numpy(one) for one in moments(stats.double(), Norm("instance", None, 0.0))]
    right = channel_stats_ref(y)
    limits = returned_stats_bound(y, error, y[0, 0].size)
    agree(asked.where, x, zip(found, (right[..., 1], right[..., 2]), limits, strict=True))


def require_agreement(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    expected: torch.Tensor,
    found: torch.Tensor,
    scales: Scales = NO_SCALES,
    norm: PixelNorm | None = None,
) -> None:
    """Raise ComparisonError where torch's y and the kernel's differ by more than both may be off by."""
    worst = _worst(asked, x, w, bias, residual, expected, found, scales, norm)
    agreements.note(worst <= 1)
    if not worst <= 1:
        raise ComparisonError(
            f"{asked.where}: the kernel and torch differ by {2 * worst:.3g} times what one of them may be off by, on "
            f"input {tuple(x.shape)} {DTYPES[x.dtype]}, weight {tuple(w.shape)}; at most 2 is right. Report it with "
            f"both tensors"
        )


def _worst(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    expected: torch.Tensor,
    found: torch.Tensor,
    scales: Scales,
    norm: PixelNorm | None,
) -> float:
    """The largest difference over twice the bound; where truth is not finite, both must agree."""
    return _over(expected, found, _truth(asked, x, w, bias, residual, scales, DTYPES[x.dtype], norm)[1])


def _truth(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    scales: Scales,
    dtype: str,
    norm: PixelNorm | None = None,
) -> tuple[Any, Any]:
    """(y in float64, how far one that is rounded to dtype may be off)."""
    problem = asked.problem(x, w)
    images, filters = to_numpy(x if asked.rank > 1 else x[:, :, None]), to_numpy(w).reshape(problem.filter_shape)
    inexact: Any = 0.0
    if asked.has_prologue(scales):
        x_scale, x_shift = map(_array, scales)
        of_x = x_scale, x_shift, asked.x_activation
        off = prologue_ref(prologue_bound(images, problem.dtype, *of_x), x_upsample=asked.x_upsample)
        inexact = abs_sum_ref(off, filters, problem)
        images = prologue_ref(images, *of_x, asked.x_upsample)
    sums, abs_sum = conv_ref(images, filters, problem), abs_sum_ref(images, filters, problem)
    shape = sums.shape
    added = None if residual is None else to_numpy(residual).reshape(shape)
    offsets = None if bias is None else to_numpy(bias)
    more = (offsets, asked.activation, added, asked.residual_position)
    asked_norm = None
    if norm is not None:
        asked_norm = ChannelNorm(str(norm.kind), _array(norm.weight), _array(norm.bias), norm.eps)
    bound = epilogue_bound(num_terms(problem), abs_sum, sums, dtype, *more, inexact, asked_norm)
    return epilogue_ref(sums, *more, asked_norm), bound


def _over(expected: torch.Tensor, found: torch.Tensor, bound: Any, spreads: bool = False) -> float:
    """The largest difference over twice a bound; infinite if one value is not finite and they differ. spreads: count
    that only where a found filter is all finite and the expected one is not."""
    one, other = (to_numpy(tensor).astype(np.float64).reshape(bound.shape) for tensor in (expected, found))
    finite = np.isfinite(one) & np.isfinite(other) & np.isfinite(bound)
    if spreads:
        whole, found_whole = (np.isfinite(some).all(axis=tuple(range(1, some.ndim))) for some in (one, other))
        is_lost = bool((found_whole & ~whole).any())
    else:
        is_lost = not np.array_equal(one[~finite], other[~finite], equal_nan=True)
    if is_lost:
        return float("inf")
    return float((np.abs(one[finite] - other[finite]) / (2 * bound[finite])).max(initial=0.0))


def filters_gradient(
    asked: Convolution, x: torch.Tensor, g: torch.Tensor, size: tuple[int, ...], dtype: torch.dtype, bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(dw, with `bias` db) of the kernel that a Neuron device would run."""
    numbers: dict[str, Any] = {"stride": asked.stride, "padding": asked.padding, "dilation": asked.dilation}
    if asked.rank == 1:
        numbers = {name: value[0] for name, value in numbers.items()}
    more = {"groups": asked.groups, "bias_gradient": bias, "out_dtype": DTYPES[dtype]}
    found = _WEIGHT[asked.rank](to_numpy(x), size, to_numpy(g), **numbers, **more)
    dw, db = found if bias else (found, None)
    return from_numpy(dw), None if db is None else from_numpy(db)


def compare_filters_gradient(
    asked: Convolution, x: torch.Tensor, g: torch.Tensor, size: tuple[int, ...], dtype: torch.dtype, bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """torch's (dw, with `bias` db), if the kernel's agree within the bounds.

    Each may be off by `bounds.error_bound`. torch multiplies the zeros of padding too, so that Inf gives NaN there.
    With Inf or NaN in x or g, the kernel may have more non-finite values, in channels that share products, and fewer,
    for taps on padding alone, but not none in a filter where torch has some.

    Raises ComparisonError, naming the layer.
    """
    found = filters_gradient(asked, x, g, size, dtype, bias)
    around = F.pad(x, [zeros for pair in reversed(asked.padding) for zeros in pair])
    bare = dataclasses.replace(asked, padding=((0, 0),) * asked.rank)
    expected = host.filters_gradient(bare, around, g, size, dtype, bias)
    x64, g64 = around.double(), g.double()
    truth = host.filters_gradient(bare, x64, g64, size, torch.float64, bias)
    magnitude = host.filters_gradient(bare, x64.abs(), g64.abs(), size, torch.float64, bias)
    terms = math.prod(g.shape) // g.shape[1]
    spreads = not (x.isfinite().all() and g.isfinite().all())
    for one, other, sums, total in zip(expected, found, truth, magnitude, strict=True):
        if one is None or other is None or sums is None or total is None:
            continue
        bound = error_bound(terms, to_numpy(total), to_numpy(sums), DTYPES[one.dtype])
        worst = _over(one, other, bound, spreads)
        agreements.note(worst <= 1)
        if not worst <= 1:
            raise ComparisonError(
                f"{asked.where}: filters' gradients of the kernel and of torch differ by {2 * worst:.3g} times what "
                f"one of them may be off by, on input {tuple(x.shape)} {DTYPES[x.dtype]}, filters {size}; at most 2 is "
                f"right. Report it with input and gradient"
            )
    return expected


def causal_conv1d_split(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    initial_states: torch.Tensor | None,
    splits: Any,
    activation: str | None,
    eps: float,
    layout: str,
    return_final_states: bool,
    cu_seqlens: tuple[int, ...] | None,
    state_positions: tuple[int, ...] | None,
) -> list[torch.Tensor]:
    """Parts, and states, of the kernel that a Neuron device would run."""
    rows, filters = to_numpy(x), to_numpy(weight)
    added, before = (None if one is None else to_numpy(one) for one in (bias, initial_states))
    asked: dict[str, Any] = {"splits": splits, "activation": activation, "eps": eps, "layout": layout}
    tokens, packed = rows.shape[layout.index("W")], (cu_seqlens or state_positions) is not None
    if before is not None and is_step(tokens, filters.shape[1], True, return_final_states, packed):
        return [from_numpy(one) for one in step_arrays(rows, before, filters, added, **asked)]
    more: dict[str, Any] = {"initial_state": before, "cu_seqlens": cu_seqlens, "state_positions": state_positions}
    found = split_arrays(rows, filters, added, **asked, **more, return_final_state=return_final_states)
    return [from_numpy(one) for one in ((*found[0], *found[1:]) if isinstance(found[0], tuple) else found)]
