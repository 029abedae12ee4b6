"""Outputs against the float64 reference, within the bound that their dtype and number of terms allow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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


def compare(
    y: AnyArray,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    bias: AnyArray | None = None,
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
) -> Comparison:
    """Hold y [N, C, Q] against the reference of x [N, C, W] and w [C, S]; slab by slab, so that temporaries stay small.

    NaN equals NaN, an infinity itself, and a value that rounds to infinity in y's dtype may be infinite. bias,
    activation, residual, residual_position: as in `nkiconv.depthwise_conv1d`.
    """
    slab = max(1, SLAB_ELEMS // (problem.N * problem.Q))
    parts = []
    for c0 in range(0, problem.C, slab):
        part = slice(c0, min(problem.C, c0 + slab))
        count = part.stop - c0
        x4, w4 = x[:, part, np.newaxis], w[part, np.newaxis, np.newaxis]
        found = compare_images(
            y[:, part, np.newaxis],
            x4,
            w4,
            problem.replace(C=count, K=count, groups=count),
            None if bias is None else bias[part],
            activation,
            residual=None if residual is None else residual[:, part, np.newaxis],
            residual_position=residual_position,
        )
        n, c, _, q = found.worst
        parts.append(dataclasses.replace(found, worst=(n, c0 + c, q)))
    return merged(parts)


def compare_images(
    y: AnyArray,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    bias: AnyArray | None = None,
    activation: str | None = None,
    precision: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
) -> Comparison:
    """Hold y [N, K, P, Q] against the reference of x [N, C, H, W], w [K, C / groups, R, S], bias [K] and residual.

    residual: [N, K, P, Q]. precision: as in `nkiconv.conv2d`, which the bound allows for.
    """
    epilogue = bias, activation, residual, residual_position
    sums, abs_sum = conv_ref(x, w, problem), abs_sum_ref(x, w, problem)
    with np.errstate(invalid="ignore", over="ignore"):
        truth = epilogue_ref(sums, *epilogue)
        inexact = products_bound(precision, x, w, problem)
        limit = epilogue_bound(num_terms(problem), abs_sum, sums, dtype_name(y.dtype), *epilogue, inexact=inexact)
        return _judged(y, truth, limit)


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
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    return whole


def compare_channels(
    y: AnyArray,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    chosen: Sequence[int],
    *,
    bias: AnyArray | None = None,
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    precision: str | None = None,
    told: Callable[[float], None] = lambda _share: None,
) -> Comparison:
    """Hold these output channels of y, whole groups where there are several, against the reference, a few at a time.

    y, x, residual: in the problem's layout. told: is called with the share that is done.
    """
    perm = X_PERMS[problem.layout]
    x, y = x.transpose(perm), y.transpose(perm)
    added = None if residual is None else residual.transpose(perm)
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
        own_bias = None if bias is None else bias[ks]
        found = compare_images(
            y[:, ks],
            x_part,
            w[ks],
            of_part,
            own_bias,
            activation,
            precision,
            residual=None if added is None else added[:, ks],
            residual_position=residual_position,
        )
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
