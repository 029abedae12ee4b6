"""How far a correct kernel's result may be from the truth: derived once, for the CLI's verdicts and for the tests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .activations import ACTIVATIONS
from .problem import DTYPES, ConvProblem
from .reference import (
    AnyArray,
    ChannelNorm,
    Float64Array,
    abs_sum_ref,
    b2b_ref,
    causal_ref,
    chunks_ref,
    epilogue_ref,
    norm_ref,
    num_terms,
    prologue_ref,
)

#: Unit roundoff of fp32, in which every engine accumulates.
EPS32 = 2.0**-24

#: Unit roundoff of each dtype: half the distance from 1 to the next number.
EPS = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": EPS32, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}


def error_bound(
    terms: int, abs_sum: Float64Array, y: Float64Array, out_dtype: str, additions: int | None = None
) -> Float64Array:
    """Return the largest error that a correct kernel makes, for each element.

        min(n, 4 sqrt(n), d) * eps32 * sum|w||x|  +  eps_out * |y|  +  half the smallest subnormal of out_dtype

    First term: n products and additions in fp32 err by at most n * eps32 * sum|w||x| to first order, in any order of
    summation (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). Roundings are independent enough that the
    error grows like sqrt(n), and 4 standard deviations cover it; with n = 4093 the worst case would miss one dropped
    tap in most elements. Where sums are added in several chains, a product passes d additions at most, and errs by d *
    eps32 (the same, 4.2): a filter gradient of N * P * Q = 10^8 positions takes chains of 4,096 matmuls, each a sum of
    128, and adds 191 of them, 4,415 additions; by diagonals a product passes some 6,400, and skewed takes no more than
    SBUF holds, 6 * 10^6 positions a channel. Second and third term: one rounding to out_dtype on the way out, relative
    for normal numbers and absolute for subnormal ones (it matters for fp16 and fp8).

    Args:
        terms: how many products one output sums.
        abs_sum: float64, sum|w||x| of each output, as from `abs_sum_ref`.
        y: float64, the truth; must lie within the range of out_dtype.
        out_dtype: a key of `EPS`.
        additions: d, or None for one chain.
    """
    return _accumulation(terms, abs_sum, additions) + _rounding(y, out_dtype)


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
    inexact: Float64Array | float = 0.0,
    norm: ChannelNorm | None = None,
) -> Float64Array:
    """Return the largest error that a correct kernel makes with an epilogue, for each element; see `epilogue_ref`.

        argument   = min(n', 4 sqrt(n')) * eps32 * (sum|w||x| + |bias| + |residual|) (+ inexact)
        argument   = norm_error(argument), of a norm
        activation = slope * argument + roundings eps32 |act| + absolute eps32 + 2^-126 max(1, |z|)
        bound      = activation (+ eps32 |y|) + eps_out * |y| + half the smallest subnormal of out_dtype

    Bias and a residual before the activation are two more terms of the sum, in whatever order a kernel adds them: n' is
    their number more than n. An error of the argument z grows by at most the activation's largest slope (mean value
    theorem). The activation itself is computed in fp32: AWS documents its functions as piecewise polynomials in fp32
    and states no accuracy (nki-act-func, nki.isa.activation), so this is what their plain evaluation in fp32 makes:
    `Activation.roundings` times eps32 of the result, `absolute_roundings` times eps32 more, and the underflow of exp;
    nothing for relu. A device may make more. A residual after the activation is one more addition. With none of them
    it is `error_bound`.

    Args:
        terms, abs_sum, out_dtype: as for `error_bound`.
        sums: float64 [N, K, ...], the convolution's sums.
        bias, activation, residual, residual_position: as for `epilogue_ref`.
        inexact: what products that are not taken exactly add, from `products_bound`. norm: as for `epilogue_ref`.
    """
    before = residual if residual_position == "pre_activation" else None
    after = None if residual_position == "pre_activation" else residual
    magnitude = epilogue_ref(abs_sum, _magnitude(bias), residual=_magnitude(before))
    error = _accumulation(terms + (bias is not None) + (before is not None), magnitude) + inexact
    if norm is not None:
        error = norm_error(epilogue_ref(sums, bias, residual=before), error, norm)
    if activation is not None:
        argument = epilogue_ref(sums, bias, residual=before, norm=norm)
        error = ACTIVATIONS[activation].steepest * error + _evaluation(argument, activation)
    y = epilogue_ref(sums, bias, activation, residual, residual_position, norm)
    if after is not None:
        error = error + EPS32 * np.abs(y)
    return error + _rounding(y, out_dtype)


#: Roundings, each eps32, of a root of a mean square, of two halves, with eps, by a power to 4 ulp; and of what is
#: multiplied by it and by a weight.
RSTD_ROUNDINGS, NORM_ROUNDINGS = 8, 3


def norm_error(u: Float64Array, error: Float64Array, norm: ChannelNorm, squares: float = 0.0) -> Float64Array:
    """Return how far the norm of u, [N, K, ...] known within `error`, may be from `norm_ref`, for each element.

        spread = rms(error) + 3 g mean|u|       g = min(K, 4 sqrt(K)) * eps32
        q      = spread / s + g + squares + 8 eps32       s = (mean(d^2) + eps)^0.5
        bound  = |weight| (c + |d| q) / (s (1 - q)) + 3 eps32 |normalized| + eps32 |result|

    "rms": d = u, c = error. "layer": d = u - mean(u), c = error + mean(error) + g mean|u| + eps32 |d|.

    A mean of K numbers in fp32 errs by g mean|u|, in any order of summation (`error_bound`). Mean and variance come
    from halves whose means err so each, which enter the squares of the halves and the square of their difference; the
    root of a mean square is a norm, so that by the triangle inequality all of that changes it by at most `spread`. The
    sum of squares, all of them positive, errs by g of itself. A mean of 1000 s costs `layer` 1000 g, some 0.5 % for K =
    512, in c and in spread; one that subtracts a mean's square from a mean of squares would lose 10^6 g, everything.
    Infinite where q is 1 or more: nothing is known of such a pixel. squares: error of the mean square over itself.
    """
    K = u.shape[1]
    growth = min(K, 4 * math.sqrt(K)) * EPS32

    def mean(values: Float64Array) -> Float64Array:
        return np.asarray(values.mean(axis=1, keepdims=True))

    shift, d, c = growth * mean(np.abs(u)), u, error
    if norm.kind == "layer":
        d = u - mean(u)
        c = error + mean(error) + shift + EPS32 * np.abs(d)
    s = np.sqrt(mean(d * d) + norm.eps)
    q = (np.sqrt(mean(np.square(error))) + 3 * shift) / s + growth + squares + RSTD_ROUNDINGS * EPS32
    with np.errstate(divide="ignore"):
        found = np.where(q < 1, (c + np.abs(d) * q) / (s * np.maximum(0.0, 1 - q)), np.inf)
    scaled = norm_ref(u, dataclasses.replace(norm, bias=None))
    if norm.weight is not None:
        found = found * np.abs(np.asarray(norm.weight, np.float64)).reshape(-1, *[1] * (u.ndim - 2))
    return found + EPS32 * (NORM_ROUNDINGS * np.abs(scaled) + np.abs(norm_ref(u, norm)))


def prologue_bound(
    x: AnyArray,
    dtype: str,
    x_scale: AnyArray | None = None,
    x_shift: AnyArray | None = None,
    x_activation: str | None = None,
) -> Float64Array:
    """Return how far what a kernel with a prologue convolves may be from `prologue_ref`, for each element of x.

        z     = x * x_scale + x_shift
        bound = slope * (eps32 (|x * x_scale| + |z|) + 2^-149) + (roundings eps32 |act| + ...) + eps |x'| + subnormal

    A product and a sum, each rounded to fp32 (the last term is their underflow), the activation in fp32 as
    `epilogue_bound` has it, and one rounding to what the array takes. What that adds to sums, for the `inexact` of
    `epilogue_bound`, is `abs_sum_ref(bound, w, problem)`. On trn2 numbers of partitions are said to act at some 2^-18
    relative, not 2^-24 (nki-library, experimental batch norm): a device may err by so much more of |x * x_scale|.

    Args:
        x, x_scale, x_shift, x_activation: as for `prologue_ref`.
        dtype: that the array takes, a key of `EPS`; "fp32" where `products_bound` says what a precision rounds.
    """
    product, argument = (prologue_ref(x, x_scale, shift) for shift in (None, x_shift))
    found = prologue_ref(x, x_scale, x_shift, x_activation)
    error: Float64Array = np.full(found.shape, 2.0**-149)
    error += EPS32 * np.abs(product) if x_scale is not None else 0.0
    error += EPS32 * np.abs(argument) if x_shift is not None else 0.0
    if x_activation is not None:
        error = ACTIVATIONS[x_activation].steepest * error + _evaluation(argument, x_activation)
    return error + _rounding(found, dtype)


def gated_bound(x: AnyArray, chunks: str, dtype: str) -> Float64Array:
    """Return the largest error of an input that is a product of two of x's chunks, for each element; see `chunks_ref`.

        eps_dtype * |x B| + half the smallest subnormal, and where B is sigmoid(G), |x| * its evaluation + 2 eps32 |x B|

    The product of two numbers is rounded once to x's dtype; sigmoid(G) is evaluated in fp32 and rounded, and so is its
    product with x before that. Convolved with |w| it is what inexact inputs add to sums: `inexact` of `epilogue_bound`.
    """
    product, _ = chunks_ref(x, chunks)
    if not {"B", "G"} & set(chunks):
        return np.zeros_like(product)
    error = np.zeros_like(product)
    if "G" in chunks:
        parts = dict(zip(chunks, np.split(np.asarray(x, np.float64), len(chunks), axis=1), strict=True))
        error = np.abs(parts["x"]) * _evaluation(parts["G"], "sigmoid") + 2 * EPS32 * np.abs(product)
    return error + _rounding(np.abs(product) + error, dtype)


def factor_bound(error: Float64Array, factor: Float64Array, y: Float64Array, out_dtype: str) -> Float64Array:
    """The bound of y = factor * z of the bound of z in fp32: an fp32 product more, and the rounding to out_dtype."""
    return np.abs(factor) * error + EPS32 * np.abs(y) + _rounding(y, out_dtype)


def b2b_bound(
    x: AnyArray,
    weights_proj: AnyArray,
    weights_mixer: AnyArray,
    skip_bias: AnyArray,
    dtype: str,
    before: Sequence[Any] = (None, None),
) -> tuple[Float64Array, Float64Array]:
    """(y, its largest error) of a back-to-back causal convolution, for each element; see `b2b_ref`.

    Projections p err as any convolution that is rounded to dtype, e_p. The product u = x1 v errs by
    e_u = |x1| e_v + |v| e_x1 + e_x1 e_v + eps_dtype |u|, and the last tap, w + skip_bias, by eps32 + eps_dtype of it.
    The mixer's sums err by their roundings and by the convolution of e_u with |w|, and of that tap's error with |u|;
    y = x2 z by |x2| e_z + |z| e_x2 + e_x2 e_z and its rounding.

    Args:
        x: [N, 3 * D, W]. weights_proj: [3 * D, S]. weights_mixer: [D, S]. skip_bias: [D]. dtype: a key of `EPS`.
        before: of x, and of u, as in `b2b_ref`.
    """
    wide = [np.asarray(one, np.float64) for one in (x, weights_proj, weights_mixer, skip_bias)]
    of_x, of_u = (None if one is None else np.asarray(one, np.float64) for one in before)
    y, rows, z = b2b_ref(wide[0], wide[1], wide[2], wide[3], (of_x, of_u))
    sums = causal_ref(np.abs(wide[0]), np.abs(wide[1]), None if of_x is None else np.abs(of_x))
    of_rows = error_bound(weights_proj.shape[1], sums, rows, dtype)
    (x2, x1, v), (e_x2, e_x1, e_v) = (np.split(one, 3, axis=1) for one in (rows, of_rows))
    u = np.abs(x1 * v)
    e_u = np.abs(x1) * e_v + np.abs(v) * e_x1 + e_x1 * e_v
    e_u += _rounding(u + e_u, dtype)
    filters = np.abs(wide[2])
    tap = (wide[2][:, -1] + wide[3])[:, None]
    filters[:, -1:] = np.abs(tap)
    of_tap = _rounding(tap, dtype) + EPS32 * np.abs(tap)
    filters[:, -1:] += of_tap
    inexact = causal_ref(e_u, filters) + of_tap * u
    sums = causal_ref(u + e_u, filters, None if of_u is None else np.abs(of_u))
    e_z = epilogue_bound(filters.shape[1], sums, z, "fp32", inexact=inexact)
    return y, factor_bound(e_z, x2, y, dtype) + (1 + 2 * EPS[dtype]) * (np.abs(z) + e_z) * e_x2


#: Error of a product over |w| |x| where both fp32 factors are rounded to bf16, or to tf32 by the array: twice a unit
#: roundoff, of 2^-8 and of 2^-11, and twice that for an array that cuts tf32 off where it should round.
PRODUCT_ERROR = {"bf16": 2.0**-7 + 2.0**-16, "tf32": 2.0**-9}

#: Smallest normal fp16 number: below it a rounding errs by up to 2^-25, and not in proportion.
SMALLEST_NORMAL_FP16 = 2.0**-14

#: Error of an fp16 pair over |v|' of the number that it stands for; derived in `products_bound`.
PAIR_ROUNDING = 2.0**-22

#: Error of a product by fp16 pairs over |w|' |x|', |v|' = max(|v|, 2^-14), |0|' = 0; derived in `products_bound`.
PAIR_ERROR = 3 * PAIR_ROUNDING * (1 + 2.0**-10)

#: Error of a product of two sums that are rounded to fp16, over the sums of |v|'; derived in `products_bound`.
SUMS_ERROR = 2.0**-10 + 2.0**-21

#: Roundings, each eps32, that join four sums to two planes of y.
PAIR_ROUNDINGS = 3


def pair_magnitude(values: AnyArray) -> Float64Array:
    """|v|' of each number: what the errors of its fp16 pair are in proportion to."""
    magnitude = np.abs(np.asarray(values, np.float64))
    return np.where(magnitude == 0, 0.0, np.maximum(magnitude, SMALLEST_NORMAL_FP16))


def products_bound(precision: str | None, x: AnyArray, w: AnyArray, problem: ConvProblem) -> Float64Array | float:
    """Return how far sums of products that are taken at a precision may be from those of fp32, for each element.

    "bf16" and "tf32": `PRODUCT_ERROR` times sum|w||x|.

    "fp16x3" takes v as high + 2^-11 low, high = fp16(v), low = fp16(2^11 (v - high)), and w x as

        w_high x_high + 2^-11 (w_high x_low + w_low x_high)

    With |v|' = max(|v|, 2^-14) and u = 2^-11, fp16's unit roundoff: high is off by at most u |v|', which is 2^-25 where
    v is subnormal. The difference is exact in fp32, and 2^11 times it is at most |v|' again, so that low errs by u |v|'
    and high + 2^-11 low by u^2 |v|': 2^-22 |v|, and 2^-36 below 2^-14. A product then lacks what is cut off each factor
    times the other's high part, 2 u^2 (1 + u) |w|'|x|', and the product of the low parts, u^2 |w|'|x|': `PAIR_ERROR`.

    Products of fp16 numbers are exact in fp32. The sums of the second kind are 2n terms of up to 2^-11 (1 + u) |w|'|x|'
    after scaling, in a sum of their own; what their rounding adds to that of n products is less than 2^-8 of it, with
    the n products themselves up to (1 + u)^2 as large. Adding both sums rounds once more.

    All of that holds for |v| < 65520, which fp16 rounds to a finite number: beyond, results are NaN. It takes subnormal
    numbers of fp16 as they are, as the simulator does; AWS does not say what the array does. One that took them for
    zero would lose factors below 2^-14, and up to 2^-25 of others.

    "winograd" makes two planes of y of frames d0 .. d3 and planes of taps g0, g1, g2 of bf16 or fp16, over all
    channels, rows and columns of taps, as

        y0 = m0 + (m1 + m2) / 2     m0 = g0 (d0 - d2)     m1 = (g0 + g2 + g1) (d1 + d2)
        y1 = m3 + (m1 - m2) / 2     m3 = g2 (d3 - d1)     m2 = (g0 + g2 - g1) (d2 - d1)

    A sum of frames is rounded to fp32 and then to fp16, which costs (u + e + u e) of the |d|' added, e = 2^-24; one of
    planes of taps is rounded once more before, (u + 2 e + ...) of G = |g0|' + |g1|' + |g2|'. A product errs by at most
    2 u + u^2 + 3 e + ... of both, `SUMS_ERROR`. With |d1 + d2|' + |d2 - d1|' at most 2 (|d1|' + |d2|'), the products of
    an output err by that of

        even planes    |g0|' |d0|' + G |d1|' + (|g0|' + G) |d2|'
        odd planes     (|g2|' + G) |d1|' + G |d2|' + |g2|' |d3|'

    which are convolutions of |x|' as y is one of x, `pairs_magnitude`. Products are exact in fp32; each m sums n / 3,
    so what their rounding adds is no more than that of a sum of n terms of this size, and joining four of them rounds
    `PAIR_ROUNDINGS` times more. A bias goes through these too, which an n of 3 or more covers.

    All of that holds where sums of two frames and of three planes of taps are below 65520: beyond they are infinite,
    and what sees them is Inf or NaN; planes of y that do not see a frame never meet it. fp16's subnormal numbers are
    taken as above.

    Args:
        precision: None, products of fp32, or one of the kernel's.
        x, w, problem: as for `conv_ref`.

    Returns: float64 [N, K, P, Q], for `epilogue_bound`'s inexact; 0.0 for None.
    """
    if precision is None:
        return 0.0
    if precision in PRODUCT_ERROR:
        return PRODUCT_ERROR[precision] * abs_sum_ref(x, w, problem)
    if precision == "winograd":
        sums = pairs_magnitude(x, w, problem)
        return (SUMS_ERROR + PAIR_ROUNDINGS * EPS32) * sums + (1 + 2.0**-9) * _accumulation(num_terms(problem), sums)
    sums = abs_sum_ref(pair_magnitude(x), pair_magnitude(w), problem)
    return (PAIR_ERROR + EPS32) * sums + 2.0**-8 * _accumulation(num_terms(problem), sums)


def pairs_magnitude(x: AnyArray, w: AnyArray, problem: ConvProblem) -> Float64Array:
    """What the errors of pairs of planes of y are in proportion to, for each element; see `products_bound`."""
    frames, taps = pair_magnitude(x), pair_magnitude(w)
    first, last, every = taps[:, :, 0], taps[:, :, 2], taps.sum(2)
    even = abs_sum_ref(frames, np.stack([first, every, first + every], 2), problem)
    odd = abs_sum_ref(frames, np.stack([last + every, every, last], 2), problem)
    even[:, :, 1::2] = odd[:, :, 1::2]
    return even


def _accumulation(terms: int, abs_sum: Float64Array, additions: int | None = None) -> Float64Array:
    depth = terms if additions is None else min(terms, additions)
    return min(depth, _random_walk(terms)) * EPS32 * abs_sum


def _rounding(y: Float64Array, out_dtype: str) -> Float64Array:
    subnormal = float(ml_dtypes.finfo(DTYPES[out_dtype]).smallest_subnormal) / 2  # type: ignore[no-untyped-call]
    return EPS[out_dtype] * np.abs(y) + subnormal


def _evaluation(argument: Float64Array, activation: str) -> Float64Array:
    """What the activation's own arithmetic adds."""
    own = ACTIVATIONS[activation]
    if not own.roundings:
        return np.zeros_like(argument)
    underflow = SMALLEST_NORMAL * np.maximum(1.0, np.abs(argument))
    relative = own.roundings * EPS32 * np.abs(epilogue_ref(argument, activation=activation))
    return relative + own.absolute_roundings * EPS32 + underflow


def _magnitude(values: AnyArray | None) -> Float64Array | None:
    return None if values is None else np.abs(np.asarray(values, np.float64))


#: Values of one part of a bn_stats, whose even and odd ones are summed apart (nl.tile_size.bn_stats_fmax / 2).
STATS_VALUES = 256


def moments_bound(mean: Float64Array, variance: Float64Array, triples: int) -> tuple[Float64Array, Float64Array]:
    """Return how far a mean and a biased variance of several (count, mean, variance) may be, for each element.

        a = f(256) + f(triples) + 4, f(n) = min(n, 4 sqrt(n))     D = a * eps32 * sqrt(mean^2 + variance)
        mean: D     variance: V + (a + 4) * eps32 * (variance + V), V = 2 D sqrt(variance) + 5 D^2

    A value passes the sum of at most 256 of a bn_stats, in any order, and that of the triples; a quotient each, a
    product with a count and the last rounding make four more. Part j's mean m_j so errs by d_j, |d_j| <= a * eps32 *
    mean of |x| over it, which is at most that of its root mean square: the mean of d_j^2, weighted by counts n_j, is at
    most D^2, and the whole mean errs by |d| <= D. Squares about m_j + d_j exceed those about m_j by n_j d_j^2 exactly.
    Of the squares between parts, n_j (m_j + d_j - m - d)^2, the sum of n_j (m_j - m) d is 0, that of 2 n_j (m_j - m)
    d_j at most 2 n D sqrt(variance) (Cauchy and Schwarz), and that of n_j (d_j - d)^2 at most 4 n D^2. Every
    difference, square, product and sum of them rounds once more, relative to terms that are all positive. The squares
    of the mean themselves do not occur.

    Args:
        mean, variance: float64, the truth. triples: how many are combined, of all pieces and parts.
    """
    a = _random_walk(STATS_VALUES) + _random_walk(triples) + 4
    of_mean = a * EPS32 * np.hypot(mean, np.sqrt(variance))
    of_squares = 2 * of_mean * np.sqrt(variance) + 5 * of_mean**2
    return of_mean, of_squares + (a + 4) * EPS32 * (variance + of_squares)


def returned_stats_bound(y: Float64Array, error: Float64Array, triples: int) -> tuple[Float64Array, Float64Array]:
    """Return how far mean and variance by image and channel of a convolution's y may be, [N, K] each.

    They are those of y before it is rounded to its dtype, which errs itself by e, |e| <= `error`: that moves a mean by
    at most the mean of |e|, and a variance by 2 cov(y, e) + var(e), at most 2 s r + r^2, s the standard deviation of y
    and r the root mean square of e (Cauchy and Schwarz); `moments_bound` of such values comes on top.

    Args:
        y: float64 [N, K, ...], the truth. error: of its shape, as from `epilogue_bound` with out_dtype "fp32". triples:
            (count, mean, variance) that are combined.
    """
    values, errors = (one.reshape(*y.shape[:2], -1) for one in (y, error))
    of_y, of_square = errors.mean(2), np.sqrt((errors**2).mean(2))
    variance = values.var(2)
    moved = 2 * np.sqrt(variance) * of_square + of_square**2
    bounds = moments_bound(np.abs(values.mean(2)) + of_y, variance + moved, triples)
    return of_y + bounds[0], moved + bounds[1]


#: Roundings of weight * (variance + eps)^-1/2: half that of the sum, 4 of the power, one of the product; and one more.
SCALE_ROUNDINGS = 6.5


def scale_shift_bound(
    mean: Float64Array,
    variance: Float64Array,
    errors: tuple[Float64Array, Float64Array],
    weight: AnyArray | float = 1.0,
    bias: AnyArray | float = 0.0,
    eps: float = 1e-5,
) -> tuple[Float64Array, Float64Array]:
    """Return how far scale = weight / sqrt(variance + eps) and shift = bias - mean * scale may be, for each element.

    The power grows as its argument falls, so that the smallest variance within its error bounds what that makes. AWS
    states no accuracy of a power; 4 eps32 are taken, and a device may make more.

    Args:
        mean, variance: float64, the truth. errors: of both, as from `moments_bound`. weight, bias: as they are.
        eps: added to the variance.
    """
    weight, bias = np.asarray(weight, np.float64), np.asarray(bias, np.float64)
    scale = weight / np.sqrt(variance + eps)
    least = np.maximum(variance - errors[1], 0.0) + eps
    of_scale = np.abs(weight) / np.sqrt(least) - np.abs(scale)
    of_scale = of_scale + SCALE_ROUNDINGS * EPS32 * (np.abs(scale) + of_scale)
    of_product = np.abs(mean) * of_scale + errors[0] * (np.abs(scale) + of_scale)
    return of_scale, of_product + 3 * EPS32 * (np.abs(bias) + np.abs(mean * scale) + of_product)


#: Roundings of (sum + eps)^-1/2: half that of the sum, 4 of the power, and one more.
ROOT_ROUNDINGS = 5.5


def l2norm_bound(z: Float64Array, z_error: Float64Array, eps: float, out_dtype: str) -> Float64Array:
    """Return how far y = z / sqrt(sum of z^2 + eps) over the last axis may be, for each element.

        a = f(ceil(dim / 2)) + 2, f(n) = min(n, 4 sqrt(n))
        E = sum of (2 |z| e + e^2) + (3 a + 6) * eps32 * sum of (|z| + e)^2

    e is the error of z, which changes the sum of squares by at most the first term. That is taken, by even and by odd
    elements, as squares about a mean and count * mean^2: a mean of n elements errs by d <= a * eps32 * their root mean
    square, which changes the two together by at most 2 n |mean d| + 2 n d^2, and squares about a mean pass as many
    additions; every other step rounds terms that are all positive. The root grows as its argument falls. AWS states no
    accuracy of a power; 4 eps32 are taken, and a device may make more.

    Args:
        z: float64, the truth. z_error: of z, as from `epilogue_bound` of fp32. eps: added to the sum of squares.
        out_dtype: a key of `EPS`.
    """
    most = np.abs(z) + z_error
    a = _random_walk(-(-z.shape[-1] // 2)) + 2
    squares, largest = np.square(z).sum(-1, keepdims=True), np.square(most).sum(-1, keepdims=True)
    error = largest - squares + (3 * a + 6) * EPS32 * largest
    factor = 1 / np.sqrt(squares + eps)
    of_factor = 1 / np.sqrt(np.maximum(squares - error, 0.0) + eps) - factor
    of_factor = of_factor + ROOT_ROUNDINGS * EPS32 * (factor + of_factor)
    y, largest_y = z * factor, most * (factor + of_factor)
    error = largest_y * (1 + EPS32) - np.abs(y)
    return np.asarray(error + _rounding(y, out_dtype), np.float64)


def _random_walk(count: int) -> float:
    """Roundings of a sum of so many terms: all of them, or 4 standard deviations; see `error_bound`."""
    return min(count, 4 * math.sqrt(count))
