"""How far a correct kernel's result may be from the truth: derived once, for the CLI's verdicts and for the tests."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from .problem import DTYPES
from .reference import Float64Array

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
    accumulation = min(terms, 4 * math.sqrt(terms)) * EPS32 * abs_sum
    subnormal = float(ml_dtypes.finfo(DTYPES[out_dtype]).smallest_subnormal) / 2  # type: ignore[no-untyped-call]
    return accumulation + EPS[out_dtype] * np.abs(y) + subnormal
