"""The operators `nkiconv::channel_stats` and `nkiconv::norm_scale_shift`: statistics of channels, and norms from them.

    nkiconv::channel_stats(input) -> Tensor
    nkiconv::known_stats(input, stats) -> Tensor
        the same, which a kernel has counted already, by images first; derivatives by input, as of channel_stats
    nkiconv::norm_scale_shift(stats, weight, bias, norm, num_groups, eps) -> (scale, shift, mean, variance)

Statistics come in parts, and the kernel decides which part has which element. Derivatives of channel_stats are those of
the mean M and variance V of all n elements, as norm_scale_shift reads them. Counts have no derivative.

    dL/dx = dL/dM / n + 2 dL/dV (x - M) / n
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import norms, rules
from ...errors import refused
from ..computers import host, statistics
from ..computers.statistics import Norm, ScaleShift, moments, shares, spread, summed
from ..errors import DtypeError, GeometryError, LayoutError, UnsupportedError, raise_all
from . import autograd, sharding
from .calls import own, with_batch
from .registrar import Transforms, arguments_of, define
from .tensor_kinds import are_positive, channel_violations, tensor_violations

_CANNOT = "cannot run this call"


def check_input(x: Any) -> None:
    """Check that x is a tensor [N, C, ...] with elements in each channel. Raises DtypeError, LayoutError,
    GeometryError."""
    errors = list(tensor_violations("input", x))
    if not errors and x.dim() not in (3, 4, 5):
        errors.append(LayoutError(f"input.shape={tuple(x.shape)}: must have 3 to 5 axes, [N, C, ...]; reshape it"))
    if not errors and not are_positive(x.shape[2:]):
        errors.append(
            GeometryError(f"input.shape={tuple(x.shape)}: every extent but N and C must be at least 1; give it values")
        )
    raise_all(f"channel_stats {_CANNOT}", errors)


def check_norm(
    norm: Norm, channels: int, weight: Any, bias: Any, like: Tensor, names: tuple[str, str] = ("weight", "bias")
) -> None:
    """Check a norm of a number of channels, its weight and its bias; like: a tensor with the statistics' dtype, device.

    Raises: UnsupportedError, GeometryError, DtypeError."""
    wrong = [*refused(UnsupportedError, norms.norm(norm.norm)), *refused(UnsupportedError, norms.eps(norm.eps))]
    if not wrong:
        wrong += refused(GeometryError, *norms.num_groups(norm.num_groups, norm.norm, channels))
    for name, one in zip(names, (weight, bias), strict=True):
        wrong += channel_violations(name, one, channels, like)
    raise_all(f"norm_scale_shift {_CANNOT}", wrong)


def check_stats(name: str, stats: Any, like: Tensor | None = None) -> None:
    """Check that stats are statistics [P, N, C, 3]; like: the x that they must belong to.

    Raises: DtypeError, LayoutError, GeometryError, UnsupportedError.
    """
    errors = list(tensor_violations(name, stats))
    if not errors:
        errors += refused(LayoutError, rules.rank(name, stats.shape, "P, N, C, 3"))
    if not errors:
        of_x = stats.shape[1:3] if like is None else like.shape[:2]
        wanted = (stats.shape[0], *of_x, norms.STATS)
        errors += refused(GeometryError, rules.shape(name, stats.shape, wanted, "[P, N, C, 3]"))
        wide = host.wide_dtype(stats if like is None else like)
        if stats.dtype != wide:
            errors.append(DtypeError(f"{name}.dtype={stats.dtype}: must be {wide}, as of channel_stats; pass these"))
        if like is not None:
            errors += refused(UnsupportedError, rules.same(name, "device", stats.device, "input", like.device))
    raise_all(f"norm_scale_shift {_CANNOT}", errors)


def channel_stats(x: Tensor) -> Tensor:
    """[P, N, C, 3] of a checked x."""
    return own(torch.ops.nkiconv.channel_stats.default(x))


def norm_scale_shift(stats: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> ScaleShift:
    """Of checked statistics."""
    return ScaleShift(*map(own, torch.ops.nkiconv.norm_scale_shift.default(stats, weight, bias, *norm)))


def _stats_forward(input: Tensor) -> Tensor:
    check_input(input)
    return statistics.channel_stats(input)


def _stats_fake(x: Tensor) -> Tensor:
    check_input(x)
    return empty(x)


def empty(x: Tensor) -> Tensor:
    """Statistics of x that are only their shape."""
    return x.new_empty((statistics.parts_of(x), *x.shape[:2], norms.STATS), dtype=host.wide_dtype(x))


def gradient(x: Tensor, stats: Tensor, g: Tensor) -> Tensor:
    """dL/dx of dL/dstats."""
    apart, count = _apart(x, stats)
    _, of_mean, of_variance = (g.sum(0) / count).unbind(-1)
    return (host.by_channel(of_mean, x) + 2 * host.by_channel(of_variance, x) * apart).to(x.dtype)


def tangent(x: Tensor, stats: Tensor, dx: Tensor) -> Tensor:
    """dstats of dx."""
    dx = host.wide(dx)
    apart, _ = _apart(x, stats)
    each = [*range(2, x.dim())]
    of_mean, of_variance = dx.mean(each), 2 * (apart * dx).mean(each)
    return torch.stack([torch.zeros_like(of_mean), of_mean, of_variance], -1).expand(stats.shape).clone()


def _apart(x: Tensor, stats: Tensor) -> tuple[Tensor, int]:
    """(x less the mean of its channel, how many elements that has)."""
    mean, _ = moments(stats, Norm("instance", None, 0.0))
    return host.wide(x) - host.by_channel(mean, x), x[0, 0].numel() if x.shape[0] * x.shape[1] else 1


def _derivatives(by_parts: Callable[[Tensor], Tensor]) -> autograd.Derivatives:
    """Of an operator whose result is statistics of its first argument; by_parts: from the result's order of axes to
    [P, N, C, 3], and back."""

    def remember(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
        autograd.save(ctx, args[0], output)

    def backward(ctx: Any, g: Tensor) -> Sequence[Any]:
        x, stats = ctx.saved_tensors
        return (gradient(x, by_parts(stats), by_parts(g)),)

    def forward_mode(_ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
        x, stats = saved
        return by_parts(tangent(x, by_parts(stats), tangents[0]))

    return autograd.Derivatives(remember, backward, forward_mode)


def _stats_batched(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int]:
    x = with_batch(x, in_dims[0], info.batch_size)
    stats = channel_stats(x.flatten(0, 1))
    return stats.reshape(stats.shape[0], *x.shape[:3], norms.STATS), 1


def known_stats(x: Tensor, stats: Tensor) -> Tensor:
    """The statistics of x, [P, N, C, 3], counted already, as a function of x alone."""
    return own(torch.ops.nkiconv.known_stats.default(x, stats.detach().transpose(0, 1))).transpose(0, 1)


def _known_forward(x: Tensor, stats: Tensor) -> Tensor:
    check_stats("stats", stats.transpose(0, 1), x)
    return stats.clone()


def _known_batched(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> tuple[Tensor, int]:
    x, stats = (with_batch(one, dim, info.batch_size) for one, dim in zip(args, in_dims, strict=True))
    found = torch.ops.nkiconv.known_stats.default(x.flatten(0, 1), stats.flatten(0, 1))
    return own(found).reshape(stats.shape), 0


def _norm_checked(function: Callable[..., ScaleShift]) -> Callable[..., tuple[Tensor, ...]]:
    """A function of statistics, weight, bias and a Norm after checks, of the operator's arguments."""

    def checked(stats: Tensor, weight: Tensor | None, bias: Tensor | None, *numbers: Any) -> tuple[Tensor, ...]:
        norm = Norm(*numbers)
        check_stats("stats", stats)
        check_norm(norm, stats.shape[2], weight, bias, stats)
        return tuple(function(stats, weight, bias, norm))

    return checked


def _norm_remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.norm = Norm(*inputs[3:])
    autograd.save(ctx, *inputs[:3])


def _norm_backward(ctx: Any, *of_results: Tensor | None) -> Sequence[Any]:
    def again(stats: Tensor, weight: Tensor | None, bias: Tensor | None) -> ScaleShift:
        counted = torch.cat([stats[..., :1].detach(), stats[..., 1:]], -1)
        return statistics.norm_by_torch(counted, weight, bias, ctx.norm)

    return autograd.by_running_again(again, ctx.saved_tensors, of_results)


def _norm_forward_mode(
    ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    stats, weight, _ = saved
    of_stats, of_weight, of_bias = tangents[:3]
    norm, channels = ctx.norm, stats.shape[2]
    mean, variance = moments(stats, norm)
    of_mean, of_variance = torch.zeros_like(mean), torch.zeros_like(mean)
    if of_stats is not None:
        share, (_, dmean, dvariance) = shares(stats, norm), of_stats.unbind(-1)
        apart = stats[..., 1] - spread(mean, channels)
        of_mean, of_variance = summed(share * dmean, norm), summed(share * (dvariance + 2 * apart * dmean), norm)
    root = (variance + norm.eps).rsqrt()
    wide = 1 if weight is None else weight.to(stats.dtype)
    of_scale = spread(of_variance * root**3 / -2, channels) * wide
    if of_weight is not None:
        of_scale = of_scale + spread(root, channels) * of_weight.to(stats.dtype)
    of_shift = -spread(of_mean, channels) * spread(root, channels) * wide - spread(mean, channels) * of_scale
    of_shift = of_shift if of_bias is None else of_shift + of_bias.to(stats.dtype)
    return of_scale, of_shift, of_mean, of_variance


def _norm_batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Batches are more channels, and more groups of them."""
    size, (stats, weight, bias, norm, num_groups, eps) = info.batch_size, args
    moved, *affine = (with_batch(one, dim, size) for one, dim in zip((stats, weight, bias), in_dims, strict=False))
    together = moved.movedim(0, 2).flatten(2, 3)
    of_weight, of_bias = (None if one is None else one.flatten() for one in affine)
    groups = None if norm != "group" else size * Norm(norm, num_groups, eps).groups(moved.shape[-2])
    found = norm_scale_shift(together, of_weight, of_bias, Norm(norm, groups, eps))
    return tuple(one.reshape(*one.shape[:-1], size, -1) for one in found), (found[0].dim() - 1,) * 4


define(
    "channel_stats", {"input": Tensor}, Tensor, _stats_forward, _stats_fake, _derivatives(lambda stats: stats),
    Transforms(_stats_batched, None, lambda *_: ((0,), [sharding.SECOND])),
)  # fmt: skip
define(
    "known_stats", {"input": Tensor, "stats": Tensor}, Tensor, _known_forward, _known_forward,
    _derivatives(lambda stats: stats.transpose(0, 1)),
    Transforms(_known_batched, None, lambda *_: ((0, 1), [sharding.SHARDED])),
)  # fmt: skip
_AFFINE = {"weight": Tensor | None, "bias": Tensor | None}
define(
    "norm_scale_shift", {"stats": Tensor, **_AFFINE, **arguments_of(Norm)}, tuple[Tensor, Tensor, Tensor, Tensor],
    _norm_checked(statistics.norm_scale_shift), _norm_checked(statistics.norm_by_torch),
    autograd.Derivatives(_norm_remember, _norm_backward, _norm_forward_mode),
    Transforms(_norm_batched, None, lambda *_: None),
)  # fmt: skip
