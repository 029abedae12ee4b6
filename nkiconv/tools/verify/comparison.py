"""Outputs against the float64 reference, within the bound that their dtype and number of terms allow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...api.epilogue import Epilogue
from ...bounds import epilogue_bound, error_bound, products_bound
from ...planner.request import X_PERMS
from ...problem import ConvProblem, dtype_name
from ...reference import (
    AnyArray,
    Float64Array,
    abs_sum_ref,
    conv_ref,
    epilogue_ref,
    filter_gradient_ref,
    forwards,
    num_terms,
)

#: Elements of y that the reference makes at once: small enough for the processor's cache.
SLAB_ELEMS = 1 << 18
#: An epilogue of nothing.
PLAIN = Epilogue()


@dataclass(frozen=True)
class Comparison:
    """How far outputs are from the truth, over all elements compared."""

    max_error: float  # largest |y - truth|; infinite where one is finite and the other is not
    bound: float  # allowed at that element
    worst_ratio: float  # largest error / bound; the outputs are right if it is at most 1
    worst: tuple[int, ...]  # n, c, q of that element, n, k, p, q or n, k, z, p, q
    num_elems: int
    num_wrong: int
    letters: str = ""  # of that element; "": n, c, q and so on

    @property
    def place(self) -> str:
        """The worst element in words."""
        letters = self.letters or {3: "ncq", 4: "nkpq", 5: "nkzpq"}[len(self.worst)]
        return " ".join(f"{letter}={index}" for letter, index in zip(letters, self.worst, strict=True))

    def merge(self, other: Comparison) -> Comparison:
        """The comparison over the elements of both."""
        larger = max(self, other, key=lambda one: one.max_error)
        worse = max(self, other, key=lambda one: one.worst_ratio)
        return Comparison(
            larger.max_error,
            larger.bound,
            worse.worst_ratio,
            worse.worst,
            self.num_elems + other.num_elems,
            self.num_wrong + other.num_wrong,
        )


def compare(y: AnyArray, x: AnyArray, w: AnyArray, problem: ConvProblem, epilogue: Epilogue = PLAIN) -> Comparison:
    """Hold y [N, C, Q] against the reference of x [N, C, W], w [C, S], bias [C] and residual [N, C, Q]."""
    residual = None if epilogue.residual is None else epilogue.residual[:, :, np.newaxis]
    y4, x4, w4 = y[:, :, np.newaxis], x[:, :, np.newaxis], w[:, np.newaxis, np.newaxis]
    of_images = dataclasses.replace(epilogue, residual=residual)
    found = compare_channels(y4, x4, w4, problem, range(problem.C), of_images)
    n, c, _, q = found.worst
    return dataclasses.replace(found, worst=(n, c, q))


def compare_images(y: AnyArray, x: AnyArray, w: AnyArray, problem: ConvProblem, epilogue: Epilogue) -> Comparison:
    """Hold y [N, K, P, Q] against the reference of x [N, C, H, W], w [K, C / groups, R, S], bias [K] and residual.

    NaN equals NaN, an infinity itself, and a value that rounds to infinity in y's dtype may be infinite.
    """
    after = epilogue.bias, epilogue.activation, epilogue.residual, epilogue.residual_position
    sums, abs_sum = conv_ref(x, w, problem), abs_sum_ref(x, w, problem)
    with np.errstate(invalid="ignore", over="ignore"):
        truth = epilogue_ref(sums, *after)
        inexact = products_bound(epilogue.precision, x, w, problem)
        limit = epilogue_bound(num_terms(problem), abs_sum, sums, dtype_name(y.dtype), *after, inexact=inexact)
        return _judged(y, truth, limit)


def of_channels(epilogue: Epilogue, part: Any) -> Epilogue:
    """The same for some output channels, an index of their axis, which is the residual's second."""
    bias, residual = epilogue.bias, epilogue.residual
    return dataclasses.replace(
        epilogue,
        bias=None if bias is None else bias[part],
        residual=None if residual is None else np.array(residual[:, part], order="C"),
    )


def compare_filters(dw: AnyArray, x: AnyArray, gy: AnyArray, problem: ConvProblem, chosen: Sequence[int]) -> Comparison:
    """Hold these output channels of a filter gradient dw [K, C / groups, R, S], whole groups where there are several,
    against the reference of x [N, C, H, W] and gy [N, K, P, Q]."""
    ks = list(chosen)
    part, x = _of_outputs(problem, x, ks)
    gy = gy[:, ks]
    truth, abs_sum = (filter_gradient_ref(*arrays, part) for arrays in ((x, gy), (np.abs(x), np.abs(gy))))
    limit = error_bound(gy[:, 0].size, abs_sum, truth, dtype_name(dw.dtype))
    with np.errstate(invalid="ignore", over="ignore"):
        found = _judged(dw[ks], truth, limit)
    k, *place = found.worst
    return dataclasses.replace(found, worst=(ks[k], *place), letters="kctrs" if problem.is_volume else "kcrs")


def _judged(y: AnyArray, truth: Float64Array, limit: Float64Array) -> Comparison:
    """How far y is from the truth, and which of it is further than its limit."""
    got = y.astype(np.float64)
    rounded = truth.astype(y.dtype).astype(np.float64)
    error = np.where(_same(got, truth) | (np.isinf(rounded) & _same(got, rounded)), 0.0, np.abs(got - truth))
    error[np.isnan(error)] = np.inf
    ratio = np.where(error == 0, 0.0, np.where(np.isfinite(error), error / limit, np.inf))
    largest, worst = np.argmax(error), np.unravel_index(np.argmax(ratio), ratio.shape)
    return Comparison(
        float(error.flat[largest]),
        float(limit.flat[largest]),
        float(ratio[worst]),
        tuple(int(i) for i in worst),
        error.size,
        int(np.count_nonzero(~(ratio <= 1))),
    )


def _same(a: Float64Array, b: Float64Array) -> Any:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def merged(parts: Sequence[Comparison]) -> Comparison:
    """The comparison over the elements of all parts."""
    return functools.reduce(Comparison.merge, parts)


def compare_channels(
    y: AnyArray,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    chosen: Sequence[int],
    epilogue: Epilogue = PLAIN,
    told: Callable[[float], None] = lambda _share: None,
) -> Comparison:
    """Hold these output channels of y, whole groups where there are several, against the reference, a few at a time.

    y, x, residual: in the problem's layout. told: is called with the share that is done.
    """
    perm = X_PERMS[problem.layout]
    x, y = x.transpose(perm), y.transpose(perm)
    if epilogue.residual is not None:
        epilogue = dataclasses.replace(epilogue, residual=epilogue.residual.transpose(perm))
    plain = problem.replace(layout=None)
    per_k = problem.K // problem.groups
    outputs = problem.N * problem.Z * problem.P * problem.Q
    at_once = max(1, SLAB_ELEMS // (outputs * (1 if problem.groups == 1 else per_k)))
    step = at_once if problem.groups == 1 else at_once * per_k
    parts = []
    for at in range(0, len(chosen), step):
        told(at / len(chosen))
        ks = list(chosen[at : at + step])
        of_part, x_part = _of_outputs(plain, x, ks)
        found = compare_images(y[:, ks], x_part, w[ks], of_part, of_channels(epilogue, ks))
        n, k, *place = found.worst
        parts.append(dataclasses.replace(found, worst=(n, ks[k], *place)))
    return merged(parts)


def _of_outputs(problem: ConvProblem, x: AnyArray, ks: Sequence[int]) -> tuple[ConvProblem, AnyArray]:
    """The problem of some output channels, whole groups where there are several, and the input channels of those."""
    per_k, per_c = problem.K // problem.groups, problem.C // problem.groups
    groups = sorted({k // per_k for k in ks})
    if problem.groups > 1:
        x = x[:, [g * per_c + c for g in groups for c in range(per_c)]]
    return problem.replace(C=len(groups) * per_c, K=len(ks), groups=len(groups)), x


def as_plain(problem: ConvProblem, w: AnyArray) -> tuple[ConvProblem, AnyArray]:
    """A transposed problem and its w as the same convolution of filters [K, C / groups, ...]; others as they are."""
    return (problem.replace(transposed=False), forwards(w, problem.groups)) if problem.transposed else (problem, w)
