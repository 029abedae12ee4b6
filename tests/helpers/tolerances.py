"""How far a result may be from the truth: the only place in the tests with tolerances (derived in `nkiconv.bounds`).

Exact first: for `integer_inputs` every partial sum is an integer far below 2^24, so fp32 accumulation in any order is
exact and the result must equal the truth rounded once (`assert_exact`). Real data needs `assert_within`.
"""

import numpy as np

from nkiconv.bounds import EPS, EPS32, error_bound
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import num_terms


def bound(problem_or_terms, abs_sum, y, out_dtype):
    """Return `error_bound` for a ConvProblem, or for a number of products summed for one output."""
    n = num_terms(problem_or_terms) if isinstance(problem_or_terms, ConvProblem) else problem_or_terms
    return error_bound(n, abs_sum, y, out_dtype)


#: Two float64 sums of n terms of order 1 differ by at most n * n * 2^-53: 1e-12 for 90 terms, and in practice far more
#: terms stay below it. One wrong term is a million million times larger.
FLOAT64_SUMS = 1e-12

#: fp32 sums of some hundred terms in another order, through a few layers: roundings, which grow as their square root,
#: each of 2^-24 of the largest number.
FLOAT32_SUMS = 32 * 2.0**-24

#: rms_norm that computes in bf16: x, its square, their sum, the root, the quotient and the product with w are rounded.
BF16_NORMS = 7 * EPS["bf16"]

#: A float64 number of order 1 that was rounded at most eight times, each by at most 2^-53 of it.
FLOAT64_ROUNDINGS = 8 * 2.0**-53


def sums_share(terms, times):
    """The share of the largest number by which fp32 sums of so many terms may be off, so many times one after another:
    each product off by EPS32 (Higham, 3.1; worst case)."""
    return times * terms * EPS32


def assert_within(actual, ref, abs_sum, terms, out_dtype):
    """Fail, naming the worst element, unless every element of actual is within `bound` of ref.

    NaN equals NaN and an infinity equals itself; against anything else they are wrong.
    """
    with np.errstate(invalid="ignore"):  # 0 * Inf
        limit = bound(terms, abs_sum, ref, out_dtype)
    assert_within_limit(actual, ref, limit)


def assert_within_limit(actual, ref, limit):
    """Fail, naming the worst element, unless every element of actual is within its own limit of ref.

    The limit is one of `nkiconv.bounds`; NaN equals NaN and an infinity equals itself, and anything else is wrong.
    """
    assert actual.shape == ref.shape, f"shape {actual.shape}, expected {ref.shape}"
    got = np.asarray(actual, np.float64)
    with np.errstate(invalid="ignore"):  # Inf - Inf, replaced below
        error = np.where(_same(got, ref), 0.0, np.abs(got - ref))
        excess = np.where(error == 0, 0.0, error / limit)
    if not np.all(excess <= 1):
        worst = np.unravel_index(np.argmax(np.nan_to_num(excess, nan=np.inf, posinf=np.inf)), excess.shape)
        raise AssertionError(
            f"{np.sum(~(excess <= 1))} of {excess.size} elements are off; worst at {_index(worst)}: "
            f"got {got[worst]:.9g}, expected {ref[worst]:.9g}, error {error[worst]:.3g}, bound {limit[worst]:.3g}"
        )


def assert_within_share(found, expected, share):
    """Fail unless tensors are off by at most a share of the largest number of all of expected.

    What is 0 but for rounding has no scale of its own.
    """
    largest = max(float(one.detach().abs().max()) for one in expected)
    off = max(float((one - other).detach().abs().max()) for one, other in zip(found, expected, strict=True))
    assert largest > 0
    assert off <= share * largest, f"off by {off:.3g} of {largest:.3g}, allowed a share of {share:.3g}"


def assert_near(actual, ref, operations, magnitude):
    """Fail unless an fp32 result is within `operations` roundings, each at most eps32 times `magnitude`, of ref.

    Worst case to first order (Higham, 3.1), for results whose partial sums never exceed `magnitude`.
    """
    assert actual.shape == ref.shape, f"shape {actual.shape}, expected {ref.shape}"
    error, limit = float(np.max(np.abs(actual.astype(np.float64) - ref))), operations * EPS32 * float(magnitude)
    assert error <= limit, f"error {error:.3g}, bound {limit:.3g}"


def assert_relative(actual, ref, roundings, floor=0.0):
    """Fail unless every element of an fp32 result is within `roundings` times eps32 of |ref|, or within `floor`.

    For elementary functions: each fp32 operation rounds once, and what follows multiplies that by its condition number
    |x f'(x) / f(x)| (Higham, 1.6), so exp of 20 makes 20 of the one rounding of its argument. `floor` is for results
    that cancel to nothing or fall below the smallest normal number.
    """
    error = np.abs(np.asarray(actual, np.float64) - ref)
    limit = roundings * EPS32 * np.abs(ref) + floor
    same = _same(np.asarray(actual, np.float64), np.asarray(ref, np.float64))
    assert np.all(same | (error <= limit)), f"error up to {np.max(error - limit):.3g} above the bound"


def assert_exact(actual, ref, out_dtype):
    """Fail, naming the first wrong element, unless actual is ref rounded once to out_dtype, bit for bit but for -0."""
    assert actual.dtype == DTYPES[out_dtype], f"dtype {actual.dtype}, expected {DTYPES[out_dtype]}"
    assert actual.shape == ref.shape, f"shape {actual.shape}, expected {ref.shape}"
    got, expected = np.asarray(actual, np.float64), ref.astype(DTYPES[out_dtype]).astype(np.float64)
    wrong = np.argwhere(~_same(got, expected))
    if len(wrong):
        first = tuple(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {got.size} elements differ; first at {_index(first)}: got {got[first]}, "
            f"expected {expected[first]}"
        )


def integer_inputs(rng, shape, dtype):
    """Return random integers from -2..2, exact in every dtype.

    Args:
        rng: a numpy.random.Generator.
        dtype: a key of `bounds.EPS`.
    """
    return rng.integers(-2, 3, shape).astype(DTYPES[dtype])


def _same(a, b):
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _index(index):
    return "[" + ", ".join(str(int(i)) for i in index) + "]"
