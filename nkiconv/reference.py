"""Convolution in float64 straight from the definition in `nkiconv.problem`: the truth that kernels are tested against.

    y[n, k, p, q] = sum over c, r, s of
        w[k, c, r, s] * x_pad[n, g*C/groups + c, p*stride_h + r*dilation_h, q*stride_w + s*dilation_w]

Volumes have an axis of planes before the rows. Each step of the loop adds one tap to all outputs; the tap reads a
strided view of x_pad. The zeros of padding and of lhs_dilation are in memory and take part in the sums, as in XLA: Inf
or NaN times such a zero is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nkiconv import pixel_norms, rules
from nkiconv.activations import ACTIVATIONS
from nkiconv.axis import Axis
from nkiconv.errors import GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all, refused
from nkiconv.problem import ConvProblem

#: Arrays of float64, and arrays of anything that converts to it (ml_dtypes included).
Float64Array = NDArray[np.float64]
AnyArray = NDArray[Any]
Pair = tuple[int, int]
Perm = Sequence[int]


def conv_ref(x: AnyArray, w: AnyArray, problem: ConvProblem, channels: Sequence[int] | None = None) -> Float64Array:
    """Convolve x with w in float64.

    Args:
        x: [N, C, H, W], or [N, C, D, H, W], for any `problem.layout`; any dtype that converts to float64.
        w: [K, C/groups, R, S], or [K, C/groups, T, R, S], of transposed problems [C, K/groups, ...]; any such dtype.
        problem: the geometry; its dtype and layout are not read.
        channels: depthwise problems only: compute just these channels, in this order.

    Returns: [N, K, P, Q], or [N, len(channels), P, Q]; of volumes with Z before P.

    Raises:
        GeometryError: x or w has another shape than the problem.
        UnsupportedError: channels are given and the problem is not depthwise.
    """
    _check(x, w, problem, channels)
    if channels is not None:
        chosen = list(channels)  # a tuple would index several axes
        x, w, problem = x[:, chosen], w[chosen], problem.replace(C=len(chosen), K=len(chosen), groups=len(chosen))
    w64 = np.asarray(forwards(w, problem.groups) if problem.transposed else w, np.float64)
    add_tap = _add_depthwise_tap if problem.is_depthwise else _add_grouped_tap
    y = np.zeros((problem.N, problem.K, *(axis.out for axis in problem.axes)))
    with np.errstate(invalid="ignore"):  # 0 * Inf
        for tap, window in _windows(x, problem):
            add_tap(y, window, w64[(slice(None), slice(None), *tap)])
    return y


def filter_gradient_ref(x: AnyArray, gy: AnyArray, problem: ConvProblem) -> Float64Array:
    """The gradient of w in float64: the sum over n, p and q of gy[n, k, p, q] times the element of x at tap r, s.

    Args: x, gy: [N, C, H, W] and [N, K, P, Q], or of volumes. problem: as in `conv_ref`, and not transposed.
    Returns: [K, C/groups, R, S], or [K, C/groups, T, R, S].
    """
    gy64 = np.asarray(gy, np.float64).reshape(problem.N, problem.groups, problem.K // problem.groups, -1)
    dw = np.zeros(problem.filter_shape)
    for tap, window in _windows(x, problem):
        columns = window.reshape(problem.N, problem.groups, problem.C // problem.groups, -1)
        sums = (gy64 @ columns.swapaxes(-1, -2)).sum(0)  # [groups, K / groups, C / groups]
        dw[(slice(None), slice(None), *tap)] = sums.reshape(problem.filter_shape[:2])
    return dw


def abs_sum_ref(x: AnyArray, w: AnyArray, problem: ConvProblem, channels: Sequence[int] | None = None) -> Float64Array:
    """Return the sum of |w| |x| of each output, which its rounding errors are proportional to.

    Arguments, shape of the result and errors are those of `conv_ref`.
    """
    return conv_ref(np.abs(x), np.abs(w), problem, channels)


def prologue_ref(
    x: AnyArray,
    x_scale: AnyArray | None = None,
    x_shift: AnyArray | None = None,
    x_activation: str | None = None,
    x_upsample: int = 1,
) -> Float64Array:
    """The input of a convolution after its prologue, in float64: act(x * x_scale + x_shift), upsampled.

    Args:
        x: [N, C, ...], canonical. x_scale, x_shift: [C] or [N, C], or None. All of any dtype that converts to float64.
        x_activation: None or one of `rules.ACTIVATIONS`. x_upsample: how often each row and column is repeated.

    Raises:
        UnsupportedError: x_activation has another name.
        GeometryError: x_scale or x_shift has another shape.
    """
    errors = list(refused(UnsupportedError, rules.activation(x_activation, "x_activation", "x")))
    for name, numbers in (("x_scale", x_scale), ("x_shift", x_shift)):
        if numbers is not None:
            errors += refused(GeometryError, rules.of_channels(name, np.shape(numbers), *x.shape[:2]))
    raise_all("the reference has no such prologue", errors)
    found = np.array(x, np.float64)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # Inf - Inf, 0 * Inf, exp of large numbers
        if x_scale is not None:
            found *= _by_channel(x_scale, x.ndim)
        if x_shift is not None:
            found += _by_channel(x_shift, x.ndim)
        found = _activate(found, x_activation)
    return found if x_upsample == 1 else found.repeat(x_upsample, -1).repeat(x_upsample, -2)


def _by_channel(numbers: AnyArray, ndim: int) -> Float64Array:
    """[C] or [N, C] to go with [N, C, ...] of so many axes."""
    found = np.asarray(numbers, np.float64)
    return found.reshape(*found.shape, *[1] * (ndim - 2))


@dataclass(frozen=True)
class ChannelNorm:
    """A norm over the channels of each pixel, as `conv2d` has it with y_norm. kind: of `pixel_norms.NORMS`; weight,
    bias: [K] or None."""

    kind: str
    weight: AnyArray | None = None
    bias: AnyArray | None = None
    eps: float = pixel_norms.NORM_EPS


def norm_ref(u: AnyArray, norm: ChannelNorm) -> Float64Array:
    """Normalize [N, K, ...] over K in float64.

    Raises UnsupportedError: the norm has another name.
    """
    raise_all("the reference has no such norm", list(refused(UnsupportedError, pixel_norms.kind(norm.kind))))
    found: Float64Array = np.array(u, np.float64)
    if norm.kind == "layer":
        found = found - found.mean(axis=1, keepdims=True)
    found = found / np.sqrt(np.square(found).mean(axis=1, keepdims=True) + norm.eps)
    found = found if norm.weight is None else found * _by_channel(norm.weight, found.ndim)
    return found if norm.bias is None else found + _by_channel(norm.bias, found.ndim)


def epilogue_ref(
    sums: AnyArray,
    bias: AnyArray | None = None,
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    norm: ChannelNorm | None = None,
) -> Float64Array:
    """Apply an epilogue to a convolution's sums in float64.

        act(norm(sums + bias + residual))    residual_position "pre_activation"
        act(norm(sums + bias)) + residual    residual_position "post_activation"

    Args:
        sums: [N, K, ...], canonical. bias: [K]. residual: shape of sums. All of any dtype that converts to float64.
        activation: None or one of `rules.ACTIVATIONS`. norm: None for none.

    Raises:
        UnsupportedError: activation or residual_position has another name.
        GeometryError: bias or residual has another shape.
    """
    _check_epilogue(sums, bias, activation, residual, residual_position)
    argument = np.array(sums, np.float64)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # Inf - Inf, 0 * Inf, exp of large numbers
        if bias is not None:
            argument += np.asarray(bias, np.float64).reshape(-1, *[1] * (argument.ndim - 2))
        added = None if residual is None else np.asarray(residual, np.float64)
        if added is not None and residual_position == "pre_activation":
            argument, added = argument + added, None
        y = _activate(argument if norm is None else norm_ref(argument, norm), activation)
        return y if added is None else y + added


def chunks_ref(x: AnyArray, chunks: str) -> tuple[Float64Array, Float64Array | None]:
    """(input of the convolution, y's factor or None) of x's chunks, unrounded: the input is x, x * B or x * sigmoid(G).

    Args:
        x: [N, len(chunks) * C, ...], any dtype that converts to float64. chunks: as in `depthwise_conv1d`.

    Raises:
        LayoutError: chunks are malformed, or not of as many channels each.
    """
    raise_all("the reference has no such chunks", list(refused(LayoutError, rules.chunks(chunks, x.shape[1]))))
    parts = dict(zip(chunks, np.split(np.asarray(x, np.float64), len(chunks), axis=1), strict=True))
    found = parts["x"]
    if "B" in parts:
        found = found * parts["B"]
    if "G" in parts:
        found = found * ACTIVATIONS["sigmoid"].value(parts["G"])
    return found, parts.get("C")


def causal_ref(x: Float64Array, w: Float64Array, before: Float64Array | None = None) -> Float64Array:
    """Causal depthwise convolution [N, C, W] of x [N, C, W] and w [C, S]; before: the inputs before x, None: zeros."""
    W, S = x.shape[2], w.shape[1]
    padded = np.pad(x, ((0, 0), (0, 0), (S - 1, 0))) if before is None else np.concatenate([before, x], 2)
    found = np.zeros_like(x)
    for tap in range(S):
        found += w[:, tap, None] * padded[:, :, tap : tap + W]
    return found


def b2b_ref(
    x: Float64Array,
    weights_proj: Float64Array,
    weights_mixer: Float64Array,
    skip_bias: Float64Array,
    before: Sequence[Any] = (None, None),
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """(y, projections [N, 3 * D, W], mixer's sums with the skip) of a back-to-back causal convolution, unrounded.

    x2, x1, v = chunks of causal(x, weights_proj);  y = x2 * (causal(x1 * v, weights_mixer) + skip_bias * x1 * v)

    before: the inputs before x, and before x1 * v; None: zeros.
    """
    rows = causal_ref(x, weights_proj, before[0])
    x2, x1, v = np.split(rows, 3, axis=1)
    sums = causal_ref(x1 * v, weights_mixer, before[1]) + skip_bias[:, None] * x1 * v
    return x2 * sums, rows, sums


def num_terms(problem: ConvProblem) -> int:
    """Return how many products are summed for one output: C/groups * R * S, of volumes times T."""
    return problem.terms


def forwards(w: AnyArray, groups: int) -> AnyArray:
    """A filter of a transposed convolution, [C, K/groups, ...], as [K, C/groups, ...] with its taps forwards."""
    C, each, *taps = w.shape
    swapped = w.reshape(groups, C // groups, each, *taps).swapaxes(1, 2).reshape(groups * each, C // groups, *taps)
    return np.flip(swapped, tuple(range(2, w.ndim)))


def apply_in_perm(storage: AnyArray, perm: Perm | None) -> AnyArray:
    """Return the canonical view of an input or filter as stored in memory: canonical = transpose(storage, perm).

    So `canonical.shape[i] == storage.shape[perm[i]]`, and (0, 3, 1, 2) reads NHWC as NCHW. None: canonical already.
    """
    return storage if perm is None else np.transpose(storage, perm)


def apply_out_perm(canonical: AnyArray, perm: Perm | None) -> AnyArray:
    """Return a canonical output in its memory order: storage = transpose(canonical, perm).

    So `storage.shape[i] == canonical.shape[perm[i]]`, and (0, 2, 3, 1) writes NCHW as NHWC: from canonical to
    storage, as in AWS's kernels; JAX's out_spec is the inverse. None: the canonical order.
    """
    return canonical if perm is None else np.transpose(canonical, perm)


def depthwise_conv1d_ref(
    x: AnyArray,
    w: AnyArray,
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0)),
    stride: Pair = (1, 1),
    rhs_dilation: Pair = (1, 1),
    lhs_dilation: Pair = (1, 1),
    in_perm: Perm | None = None,
    kern_perm: Perm | None = None,
    out_perm: Perm | None = None,
) -> AnyArray:
    """Convolve each channel with its own filter, under the conventions of the public kernel.

    Args:
        x: [N, C, 1, W] after `apply_in_perm` with in_perm.
        w: [C, 1, 1, S] after `apply_in_perm` with kern_perm.
        padding, stride, rhs_dilation, lhs_dilation: as in `ConvProblem`.

    Returns: float64 [N, C, P, Q] put through `apply_out_perm` with out_perm; P is 1 unless the height is padded.

    Raises:
        GeometryError: the shapes do not belong together, or there is no output.
    """
    x, w = apply_in_perm(x, in_perm), apply_in_perm(w, kern_perm)
    N, C, _, W = x.shape
    problem = ConvProblem(
        N=N,
        C=C,
        W=W,
        S=w.shape[-1],
        groups=C,
        padding=padding,
        stride=stride,
        rhs_dilation=rhs_dilation,
        lhs_dilation=lhs_dilation,
    )
    return apply_out_perm(conv_ref(x, w, problem), out_perm)


def _activate(z: Float64Array, activation: str | None) -> Float64Array:
    return z if activation is None else ACTIVATIONS[activation].value(z)


def _check_epilogue(
    sums: AnyArray, bias: AnyArray | None, activation: str | None, residual: AnyArray | None, position: str
) -> None:
    errors = list(refused(UnsupportedError, rules.activation(activation), rules.residual_position(position)))
    for name, array, letters, wanted in (
        ("bias", bias, "[K]", sums.shape[1:2]),
        ("residual", residual, "[N, K, P, Q]", sums.shape),
    ):
        if array is not None:
            errors += refused(GeometryError, rules.shape(name, np.shape(array), wanted, letters))
    raise_all("the reference has no such epilogue", errors)


def _check(x: AnyArray, w: AnyArray, problem: ConvProblem, channels: Sequence[int] | None) -> None:
    x_shape = (problem.N, problem.C, *(axis.size for axis in problem.axes))
    errors: list[NkiconvError] = []
    channels_of_w = "C, K / groups" if problem.transposed else "K, C / groups"
    letters = f"[N, C, {'D, ' * problem.is_volume}H, W]", f"[{channels_of_w}, {'T, ' * problem.is_volume}R, S]"
    errors += refused(GeometryError, rules.shape("x", x.shape, x_shape, letters[0]))
    errors += refused(GeometryError, rules.shape("w", w.shape, problem.filter_shape, letters[1]))
    if channels is not None and not problem.is_depthwise:
        counts = f"groups={problem.groups}, C={problem.C}, K={problem.K}"
        errors.append(UnsupportedError(f"channels={channels}: need a depthwise problem ({counts}); leave them out"))
    raise_all("the reference cannot convolve these", errors)


def _pad(x: AnyArray, problem: ConvProblem) -> Float64Array:
    """Return x in float64 with lhs_dilation and padding applied: [N, C, padded H, padded W]."""
    x_pad = np.zeros((problem.N, problem.C, *(axis.padded for axis in problem.axes)))
    kept = [_kept(axis) for axis in problem.axes]
    every = slice(None), slice(None)
    x_pad[(*every, *(to for _, to in kept))] = x[(*every, *(source for source, _ in kept))]
    return x_pad


def _windows(x: AnyArray, problem: ConvProblem) -> Iterator[tuple[Any, Float64Array]]:
    """Each tap, and the elements of x that it reads for all outputs: [N, C, P, Q], a view."""
    x_pad = _pad(x, problem)
    for tap in np.ndindex(*(axis.taps for axis in problem.axes)):
        places = (_window(axis, index) for axis, index in zip(problem.axes, tap, strict=True))
        yield tap, x_pad[(slice(None), slice(None), *places)]


def _kept(axis: Axis) -> tuple[slice, slice]:
    """Return which inputs survive the crop, and where on the padded axis: input i goes to lo + i*lhs_dilation."""
    step = axis.lhs_dilation
    first = max(0, -(axis.lo // step))  # the smallest i with lo + i*step >= 0
    end = min(axis.size, -((axis.lo - axis.padded) // step))  # the smallest i with lo + i*step >= padded
    if first >= end:
        return slice(0), slice(0)
    start = axis.lo + first * step
    return slice(first, end), slice(start, start + (end - first - 1) * step + 1, step)


def _window(axis: Axis, tap: int) -> slice:
    """Return the elements of the padded axis that one tap reads for outputs 0, 1, ..., axis.out - 1."""
    start = tap * axis.rhs_dilation
    return slice(start, start + (axis.out - 1) * axis.stride + 1, axis.stride)


def _add_depthwise_tap(y: Float64Array, window: Float64Array, w_tap: Float64Array) -> None:
    """Add window [N, C, P, Q] times w_tap [C, 1] to y [N, C, P, Q]."""
    y += window * w_tap.reshape(-1, *[1] * (window.ndim - 2))


def _add_grouped_tap(y: Float64Array, window: Float64Array, w_tap: Float64Array) -> None:
    """Add the contraction of window [N, C, P, Q] with w_tap [K, C/groups] within each group to y [N, K, P, Q]."""
    N, C = window.shape[:2]
    K, depth = w_tap.shape
    groups = C // depth
    columns = window.reshape(N, groups, depth, -1)
    y += (w_tap.reshape(groups, K // groups, depth) @ columns).reshape(y.shape)


def channel_stats_ref(x: AnyArray) -> Float64Array:
    """Return [N, C, 3], count, mean and biased variance of each image and channel of x [N, C, ...], in float64."""
    values = np.asarray(x, np.float64).reshape(*x.shape[:2], -1)
    count = np.full(x.shape[:2], float(values.shape[2]))
    return np.stack([count, values.mean(2), values.var(2)], 2)


def norm_scale_shift_ref(
    x: AnyArray,
    weight: AnyArray | None = None,
    bias: AnyArray | None = None,
    norm: str = "group",
    num_groups: int = 32,
    eps: float = 1e-5,
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """Return scale, shift, mean and biased variance of a norm of x [N, C, ...], in float64, from x itself.

    Args: as in `nkiconv.norm_scale_shift`. Returns: of its shapes.
    """
    N, C = x.shape[:2]
    values = np.asarray(x, np.float64).reshape(N, C, -1)
    if norm == "batch":
        mean, variance = values.mean((0, 2)), values.var((0, 2))
    else:
        grouped = values.reshape(N, num_groups if norm == "group" else C, -1)
        mean, variance = grouped.mean(2), grouped.var(2)
    times = C // mean.shape[-1]
    scale = np.repeat(1 / np.sqrt(variance + eps), times, -1)
    scale = scale if weight is None else scale * np.asarray(weight, np.float64)
    shift = -np.repeat(mean, times, -1) * scale
    return scale, shift if bias is None else shift + np.asarray(bias, np.float64), mean, variance


def split_heads_ref(z: AnyArray, splits: Sequence[tuple[int, int, bool]], eps: float = 1e-6) -> list[Float64Array]:
    """Split z [N, C, T] into parts [N, T, heads, dim], in float64; heads of normalised ones are v / sqrt(v.v + eps).

    splits: (heads, dim, normalised) of each part, in order of the channels.
    """
    found, first = [], 0
    for heads, dim, normalised in splits:
        part = np.asarray(z[:, first : first + heads * dim], np.float64).transpose(0, 2, 1)
        part = part.reshape(*part.shape[:2], heads, dim)
        if normalised:
            with np.errstate(invalid="ignore", divide="ignore"):
                part = part / np.sqrt(np.square(part).sum(-1, keepdims=True) + eps)
        found.append(part)
        first += heads * dim
    return found
