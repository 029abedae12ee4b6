"""Error bounds of two 1x1 convolutions with an activation between them and a norm before them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .bounds import EPS32, epilogue_bound, error_bound, norm_error
from .reference import AnyArray, ChannelNorm, Float64Array, epilogue_ref, norm_ref


def mlp_bound(
    x: Float64Array,
    filters: tuple[AnyArray, AnyArray],
    out_dtype: str,
    biases: tuple[AnyArray | None, AnyArray | None] = (None, None),
    activation: str | None = None,
    residual: AnyArray | None = None,
    norm: ChannelNorm | None = None,
) -> Float64Array:
    """Return the largest error of w2 act(w1 norm(x) + bias1) + bias2 + residual, for each element, of a kernel that
    rounds the hidden channels to out_dtype: of the first product as `epilogue_bound` has it, which the second
    multiplies by |w2|, and the second's own.

    Args:
        x: float64 [N, C, ...]. filters: [M, C], [K, M]. biases: [M], [K], or None. norm: of x's channels, or None. The
            rest: as for `epilogue_bound`.
    """
    (w1, w2), (bias1, bias2) = (np.asarray(w, np.float64) for w in filters), biases
    terms, abs_sum, sums = w1.shape[1], _of_pixels(np.abs(w1), np.abs(x)), _of_pixels(w1, x)
    inexact = 0 * sums
    if norm is not None:
        abs_sum, inexact = _of_normalized(x, w1, out_dtype, norm)
        terms, sums = 2 * terms, _of_pixels(w1, norm_ref(x, norm))
    error = epilogue_bound(terms, abs_sum, sums, out_dtype, bias1, activation, inexact=inexact)
    hidden = epilogue_ref(sums, bias1, activation)
    abs_sum = _of_pixels(np.abs(w2), np.abs(hidden) + error)
    inexact = _of_pixels(np.abs(w2), error)
    more: dict[str, Any] = {"bias": bias2, "residual": residual, "inexact": inexact}
    return epilogue_bound(w2.shape[1], abs_sum, _of_pixels(w2, hidden), out_dtype, **more)


#: Roundings, each eps32, of a mean that is a sum times the reciprocal of a count, and of filters times two numbers.
MEAN_ROUNDINGS, FOLDED_ROUNDINGS = 2, 3

#: Error of a sum of squares that the array takes as tf32, cut off or rounded, over it, as the root has half of it.
SQUARES_ERROR = 2.0**-10


def _of_normalized(
    x: Float64Array, w: Float64Array, dtype: str, norm: ChannelNorm
) -> tuple[Float64Array, Float64Array]:
    """(sum of the |terms| of w norm(x), their error), for each element; weight and bias of the norm go into w and its
    sums, or, of few pixels, into x: the larger of both.

        w n weight + w bias     n = (x - mean) / s, which errs by e: `norm_error`

    The mean is a sum times 1 / C; the mean square has the error of its squares besides. In w: n, w weight and bias are
    rounded to dtype, so that terms lack |w weight| e + e_w (|n| + e) + |w| e_bias. Rounded are n / f and f w weight, f
    from 2^-1/4 to 2^1/4: only the errors of subnormal numbers are not relative, and doubled for it. In x: n weight +
    bias is rounded once.
    """
    bare = ChannelNorm(norm.kind, eps=norm.eps)
    weight, bias = (np.full(w.shape[1], default) if one is None else np.asarray(one, np.float64)
                    for one, default in ((norm.weight, 1.0), (norm.bias, 0.0)))  # fmt: skip
    of_mean = MEAN_ROUNDINGS * EPS32 * np.abs(x).mean(axis=1, keepdims=True) * np.ones_like(x)
    n = norm_ref(x, bare)
    exact = norm_error(x, of_mean if norm.kind == "layer" else 0 * x, bare, 0.0 if dtype == "fp32" else SQUARES_ERROR)
    error = exact + _rounded(np.abs(n) + exact, dtype) + _rounded(0 * n, dtype)
    folded = np.abs(w * weight)
    of_folded = _rounded(folded, dtype) + _rounded(0 * folded, dtype) + FOLDED_ROUNDINGS * EPS32 * folded
    most = np.abs(n) + error
    of_bias = _by_row(np.abs(w) @ _rounded(bias, dtype), x.ndim)
    abs_sum = _of_pixels(folded + of_folded, most) + _by_row(np.abs(w) @ np.abs(bias), x.ndim)
    in_w = _of_pixels(folded, error) + _of_pixels(of_folded, most) + of_bias
    spread = [one.reshape(1, -1, *[1] * (x.ndim - 2)) for one in (np.abs(weight), np.abs(bias))]
    most = spread[0] * (np.abs(n) + exact) + spread[1]
    error = spread[0] * exact + FOLDED_ROUNDINGS * EPS32 * most
    error = error + _rounded(most + error, dtype)
    in_x = _of_pixels(np.abs(w), error)
    return np.maximum(abs_sum, _of_pixels(np.abs(w), most + error)), np.maximum(in_w, in_x)


def _of_pixels(w: Float64Array, x: Float64Array) -> Float64Array:
    """Sums over the channels of each pixel, [N, K, ...] of w [K, C] and x [N, C, ...]."""
    return np.asarray(np.einsum("kc,nc...->nk...", w, x))


def _by_row(numbers: Float64Array, ndim: int) -> Float64Array:
    """[K] to go with [N, K, ...] of so many axes."""
    return np.asarray(numbers).reshape(-1, *[1] * (ndim - 2))


def _rounded(values: Float64Array, dtype: str) -> Float64Array:
    """The error of one rounding."""
    return error_bound(0, np.abs(values), values, dtype)
