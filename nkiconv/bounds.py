"""How far a correct kernel's result may be from the truth: derived once, for the CLI's verdicts and for the tests."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from .problem import DTYPES
from .reference import AnyArray, Float64Array, epilogue_ref

#: Unit roundoff of fp32, in which every engine accumulates.
EPS32 = 2.0**-24

#: Unit roundoff of each dtype: half the distance from 1 to the next number.
EPS = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": EPS32, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}


def error_bound(terms: int, abs_sum: Float64Array, y: Float64Array, out_dtype: str) -> Float64Array:
    """Return the largest error that a correct kernel makes, for each element.

        min(n, 4 sqrt(n)) * eps32 * sum|w||x|  +  eps_out * |y|  +  half the smallest subnormal of out_dtype

    First term: n products and additions in fp32 err by at most n * eps32 * sum|w||x| to first order, in any order of
    summation (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). Roundings are independent enough that the
    error grows like sqrt(n), and 4 standard deviations cover it; with n = 4093 the worst case would miss one dropped
    tap in most elements. Second and third term: one rounding to out_dtype on the way out, relative for normal numbers
    and absolute for subnormal ones (it matters for fp16 and fp8).

    Args:
        terms: how many products one output sums.
        abs_sum: float64, sum|w||x| of each output, as from `abs_sum_ref`.
        y: float64, the truth; must lie within the range of out_dtype.
        out_dtype: a key of `EPS`.
    """
    return _accumulation(terms, abs_sum) + _rounding(y, out_dtype)


#: Largest slope of each activation, rounded up: how much of an error in its argument it lets through. gelu's derivative
#: is largest at sqrt(2), where its second derivative (2 - z^2) phi(z) is 0; silu's at 2.3994, gelu_tanh's at 1.4185.
SLOPE = {"relu": 1.0, "tanh": 1.0, "sigmoid": 0.25, "silu": 1.0999, "gelu": 1.1290, "gelu_tanh": 1.1290}

#: Roundings, each eps32 of |act|, of an activation but relu: exp, tanh and erfc to 4 ulp (8), and three operations for
#: z / (1 + exp(-z)).
ACTIVATION_ROUNDINGS = 11

#: Roundings, each eps32, of gelu_tanh beside those. v = 1.596 (z + 0.0447 z^3) takes seven; an error of 7 eps32 |v|
#: changes z sigmoid(v) by at most 7 eps32 sup|z v sigmoid'(v)| = 7 * 0.2543 eps32, and not in proportion to the result.
GELU_TANH_ROUNDINGS = 2

#: Smallest normal fp32 number: below it sigmoid(z), and silu and gelu through it, lose their relative accuracy.
SMALLEST_NORMAL = 2.0**-126


def epilogue_bound(
    terms: int,
    abs_sum: Float64Array,
    sums: Float64Array,
    out_dtype: str,
    bias: AnyArray | None = None,
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
) -> Float64Array:
    """Return the largest error that a correct kernel makes with an epilogue, for each element; see `epilogue_ref`.

        argument   = min(n', 4 sqrt(n')) * eps32 * (sum|w||x| + |bias| + |residual|)
        activation = slope * argument + 11 eps32 |act| (+ 2 eps32) + 2^-126 max(1, |z|)
        bound      = activation (+ eps32 |y|) + eps_out * |y| + half the smallest subnormal of out_dtype

    Bias and a residual before the activation are two more terms of the sum, in whatever order a kernel adds them: n' is
    their number more than n. An error of the argument z grows by at most the activation's largest slope (mean value
    theorem). The activation itself is computed in fp32: AWS documents its functions as piecewise polynomials in fp32
    and states no accuracy (nki-act-func, nki.isa.activation), so this is what their plain evaluation in fp32 makes:
    `ACTIVATION_ROUNDINGS` times eps32 of the result, for gelu_tanh `GELU_TANH_ROUNDINGS` times eps32 more, none for
    relu, and the underflow of exp. A device may make more. A residual after the activation is one more addition. With
    none of them it is `error_bound`.

    Args:
        terms, abs_sum, out_dtype: as for `error_bound`.
        sums: float64 [N, K, ...], the convolution's sums.
        bias, activation, residual, residual_position: as for `epilogue_ref`.
    """
    before = residual if residual_position == "pre_activation" else None
    after = None if residual_position == "pre_activation" else residual
    magnitude = epilogue_ref(abs_sum, _magnitude(bias), residual=_magnitude(before))
    error = _accumulation(terms + (bias is not None) + (before is not None), magnitude)
    if activation is not None:
        argument = epilogue_ref(sums, bias, residual=before)
        error = SLOPE[activation] * error + _evaluation(argument, activation)
    y = epilogue_ref(sums, bias, activation, residual, residual_position)
    if after is not None:
        error = error + EPS32 * np.abs(y)
    return error + _rounding(y, out_dtype)


def _accumulation(terms: int, abs_sum: Float64Array) -> Float64Array:
    return min(terms, 4 * math.sqrt(terms)) * EPS32 * abs_sum


def _rounding(y: Float64Array, out_dtype: str) -> Float64Array:
    subnormal = float(ml_dtypes.finfo(DTYPES[out_dtype]).smallest_subnormal) / 2  # type: ignore[no-untyped-call]
    return EPS[out_dtype] * np.abs(y) + subnormal


def _evaluation(argument: Float64Array, activation: str) -> Float64Array:
    """What the activation's own arithmetic adds."""
    if activation == "relu":
        return np.zeros_like(argument)
    absolute = GELU_TANH_ROUNDINGS * EPS32 if activation == "gelu_tanh" else 0.0
    underflow = SMALLEST_NORMAL * np.maximum(1.0, np.abs(argument))
    return ACTIVATION_ROUNDINGS * EPS32 * np.abs(epilogue_ref(argument, activation=activation)) + absolute + underflow


def _magnitude(values: AnyArray | None) -> Float64Array | None:
    return None if values is None else np.abs(np.asarray(values, np.float64))
