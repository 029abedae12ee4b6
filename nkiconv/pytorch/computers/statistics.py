"""Statistics of channels and the norms of them, from the backend that computes them.

On the host all of it is differentiable functions of torch, in fp32, or float64 where x is: a variance is the mean of
squared differences, never a difference of squares.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...bounds import moments_bound, scale_shift_bound
from ...launches import degree
from ...norms import NUM_GROUPS, STATS
from ..operators.called import Called
from ..operators.frames import joined, last_of
from ..operators.pixel_norm import both, finished
from . import agreements, host, modes
from .arrays import to_numpy

#: Cores of a launch in the simulator.
SIMULATED = 2


class Norm(NamedTuple):
    """A norm's kind, its number of groups, and the eps added to a variance; see `nkiconv.norm_scale_shift`."""

    norm: str
    num_groups: int | None
    eps: float

    def groups(self, channels: int) -> int:
        """The number of groups of channels with one mean; norm "batch" also shares it among images."""
        return (self.num_groups or NUM_GROUPS) if self.norm == "group" else channels


class ScaleShift(NamedTuple):
    """A norm as x * scale + shift, and the mean and biased variance that it rests on; fp32, float64 where x is.

    Of norm "group" scale and shift are [N, C], mean and variance [N, num_groups]; of "instance" all are [N, C], of
    "batch" [C].
    """

    scale: Tensor
    shift: Tensor
    mean: Tensor
    variance: Tensor


def parts_of(x: Tensor) -> int:
    """Parts of statistics of x: one of torch, one a core of a kernel."""
    if x.device.type in modes.NEURON:
        return degree()
    return SIMULATED if modes.mode() == "simulate" else 1


def channel_stats(x: Tensor) -> Tensor:
    """[P, N, C, 3] of a checked x [N, C, ...], wherever it is: count, mean and biased variance of each part."""
    if modes.computer(x) and x.numel() == 0:
        return stats_by_torch(x)

    def by_kernel(backend: Any) -> Tensor:
        from ...kernels.statistics import channel_statistics

        found: Tensor = backend.launch(channel_statistics, x)
        return found

    by_torch, compared = functools.partial(stats_by_torch, x), functools.partial(_compared_stats, x)
    stats: Tensor = modes.results(x, by_torch, by_kernel, compared)
    return stats


def stats_by_torch(x: Tensor) -> Tensor:
    """The same by torch, in one part; of no images or channels anywhere."""
    if x.numel() == 0:
        return x.new_zeros((parts_of(x), *x.shape[:2], STATS), dtype=host.wide_dtype(x))
    values = host.wide(x).flatten(2)
    variance, mean = torch.var_mean(values, 2, correction=0)
    return torch.stack([torch.full_like(mean, values.shape[2]), mean, variance], -1)[None]


def by_torch(called: Called) -> Any:
    """A checked call's results by torch: y, with return_stats (y, statistics of it before it is rounded), with a norm
    (y, the norm's input or an empty tensor), with keeps_state (y, the state)."""
    asked, norm, x = called.asked, called.norm, joined(called.x, called.frames)
    if norm is not None:
        u = host.unrounded(called.plain()._replace(x=x))
        y = host.in_dtype(finished(asked, u, called.residual, norm), x.dtype)
        return both(norm, y, host.in_dtype(u, x.dtype))
    if called.state is not None or called.keeps_state:
        rows = called.behind_state
        y = host.convolve(rows)
        return (y, last_of(rows.x, called.w.shape[2] - 1)) if called.keeps_state else y
    given = called._replace(x=host.prologued(asked, x, called.scales))
    if asked.return_stats is None:
        return host.convolve(given)
    y = host.unrounded(given)
    return host.in_dtype(y, x.dtype), stats_by_torch(y)


def of_nothing(called: Called) -> Any:
    """The results of a call without images or input channels, where y has no elements."""
    y = called.x.new_empty(called.shape)
    if called.norm is not None:
        return both(called.norm, y, y.clone())
    return y if called.asked.return_stats is None else (y, stats_by_torch(y))


def norm_scale_shift(stats: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> ScaleShift:
    """Of checked stats [P, N, C, 3], wherever they are."""
    given = stats, weight, bias, norm
    if modes.computer(stats) and 0 in stats.shape[1:3]:
        return norm_by_torch(*given)

    def by_kernel(backend: Any) -> ScaleShift:
        from ...kernels.statistics import norm_scale_and_shift

        named = {"weight": weight, "bias": bias, **norm._asdict()}
        asked = {name: value for name, value in named.items() if value is not None}
        return ScaleShift(*backend.launch(norm_scale_and_shift, (stats,), **asked))

    by_torch, compared = functools.partial(norm_by_torch, *given), functools.partial(_compared_norm, *given)
    found: ScaleShift = modes.results(stats, by_torch, by_kernel, compared)
    return found


def norm_by_torch(stats: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> ScaleShift:
    """The same by torch."""
    channels = stats.shape[2]
    mean, variance = moments(stats, norm)
    scale = spread((variance + norm.eps).rsqrt(), channels)
    scale = scale if weight is None else scale * weight.to(stats.dtype)
    shift = spread(mean, channels) * -scale
    return ScaleShift(scale, shift if bias is None else shift + bias.to(stats.dtype), mean, variance)


def moments(stats: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """(mean, biased variance) of all that shares one, by Chan's formula."""
    mean, variance = stats[..., 1], stats[..., 2]  # the derivative of unbind takes no DTensors
    share = shares(stats, norm)
    average = summed(mean * share, norm)
    apart = mean - spread(average, mean.shape[2])
    return average, summed((variance + apart * apart) * share, norm)


def shares(stats: Tensor, norm: Norm) -> Tensor:
    """[P, N, C], the share of each part in the count of all that shares its mean."""
    count = stats[..., 0]
    return count / spread(summed(count, norm), count.shape[2])


def summed(parts: Tensor, norm: Norm) -> Tensor:
    """Sums of [P, N, C] of all that shares a mean."""
    return gathered(parts.sum((0, 1) if norm.norm == "batch" else 0), norm)


def gathered(values: Tensor, norm: Norm) -> Tensor:
    """Sums of [..., C] over the channels that share a mean."""
    channels = values.shape[-1]
    groups = norm.groups(channels)
    return values if groups == channels else values.reshape(*values.shape[:-1], groups, channels // groups).sum(-1)


def spread(values: Tensor, channels: int) -> Tensor:
    """Values per group as [..., C]."""
    groups = values.shape[-1]
    if groups == channels:
        return values
    return values[..., None].expand(*values.shape, channels // groups).flatten(-2)


def _compared_stats(x: Tensor, found: Tensor) -> Tensor:
    """torch's statistics, if the kernel's agree. Raises ComparisonError."""
    expected = stats_by_torch(x)
    each = Norm("instance", None, 0.0)
    pairs = zip(moments(found.double(), each), moments(stats_by_torch(x.double()), each), strict=True)
    values = [(to_numpy(one), to_numpy(right)) for one, right in pairs]
    # two of each bn_stats, which, except at the ends, have at least a hundred values
    triples = 2 * (x[0, 0].numel() // 100 + 2 * STATS)
    limits = moments_bound(values[0][1], values[1][1], triples)
    agree("channel_stats", x, ((*pair, limit) for pair, limit in zip(values, limits, strict=True)))
    return expected


def _compared_norm(
    stats: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm, found: ScaleShift
) -> ScaleShift:
    """torch's scale, shift, mean and variance, if the kernel's agree. Raises ComparisonError."""
    right = norm_by_torch(stats.double(), weight, bias, norm)
    channels, parts = stats.shape[2], stats.shape[0] * (stats.shape[1] if norm.norm == "batch" else 1)
    errors = moments_bound(to_numpy(right.mean), to_numpy(right.variance), parts * channels // norm.groups(channels))
    shared = *right[2:], *map(torch.from_numpy, errors)
    mean, variance, *off = (to_numpy(spread(one, channels)) for one in shared)
    affine = (to_numpy(weight) if weight is not None else 1.0, to_numpy(bias) if bias is not None else 0.0)
    limits = (*scale_shift_bound(mean, variance, (off[0], off[1]), *affine, norm.eps), *errors)
    values = (map(to_numpy, one) for one in (found, right))
    agree("norm_scale_shift", stats, zip(*values, limits, strict=True))
    return norm_by_torch(stats, weight, bias, norm)


def agree(name: str, x: Tensor, results: Iterable[tuple[Any, Any, Any]]) -> None:
    """Raise ComparisonError if results differ from the truth by more than their bounds; NaN and Inf must be equal."""
    for found, right, limit in results:
        same = np.isclose(found, right, rtol=0, atol=0, equal_nan=True)
        agrees = bool(np.all(same | (np.abs(found - right) <= limit)))
        farthest = 0.0 if agrees else np.nanmax(np.abs(found - right))
        on = f"{tuple(x.shape)} {x.dtype}; report it with the tensors"
        agreements.require(agrees, f"{name}: the kernel is up to {farthest:.3g} from the truth, on {on}")
