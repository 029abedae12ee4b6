"""The custom operators `nkiconv::*`: schema, fake kernel, derivative and batching rule of each.

    nkiconv::conv1d, conv2d, conv3d, depthwise_conv1d, depthwise_conv2d,
        conv_transpose1d, conv_transpose2d, conv_transpose3d, depthwise_conv_transpose1d(
        input, weight, bias, residual, ..., packed, strict_nonfinite
    ) -> Tensor

Transposed ones are convolutions of input with zeros between its elements: `lhs_dilation` is torch's stride. Numbers are
given for each axis, padding before and after it; negative padding crops. `packed` is the filter in the kernel's order
(`filters.pack_filter`); torch and derivatives read `weight`. `functional` has torch's own signatures. Others are these
and more:

    conv3d_with_frames(..., residual, initial_frames, ...) -> Tensor
        of frames in front of an input, without concatenating them
    conv*_with_prologue(..., residual, x_scale, x_shift, ..., x_activation, x_upsample) -> Tensor
        of x_activation(input * x_scale + x_shift), rounded to input's dtype and upsampled; backward computes it again
    conv*_with_stats(the same; the prologue is optional) -> (y, stats)
        stats of y before it is rounded, [P, N, K, 3], with the derivatives by y of `nkiconv::channel_stats`
    conv2d_with_norm, conv3d_with_norm(
        ..., residual, initial_frames, norm_weight, norm_bias, ..., y_norm, y_norm_eps, return_before_norm
    ) -> (Tensor, Tensor)
        a norm over the channels of each pixel of y; the second result is the norm's input, empty unless asked for;
        backward computes it again; images have no initial_frames
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count

from ..computers import host
from . import autograd, calls, filter_gradients, gradients, inputs, sharding, statistics
from .called import Called
from .calls import call
from .convolution import Convolution
from .pixel_norm import both, finished
from .prologue import batched_scales
from .registrar import Transforms, define

#: Operators and the axes of their images.
NAMES = {"conv1d": 1, "conv2d": 2, "conv3d": 3, "depthwise_conv1d": 1, "depthwise_conv2d": 2}
NAMES |= {"conv_transpose1d": 1, "conv_transpose2d": 2, "conv_transpose3d": 3, "depthwise_conv_transpose1d": 1}
_DENSE = [name for name in NAMES if "depthwise" not in name]


def _define(name: str) -> Any:
    """Register the operator of a name."""
    suffix = calls.suffix_of(name)
    tensors, has_stats, has_norm = calls.TENSORS[suffix], suffix == calls.WITH_STATS, suffix == calls.WITH_NORM

    def forward(*args: Any) -> Any:
        return calls.computed(calls.read(name, args))

    def fake(*args: Any) -> Any:
        called = calls.read(name, args)
        y = called.made()
        if called.norm is not None:
            return both(called.norm, y, torch.empty_like(y))
        return (y, statistics.empty(y)) if has_stats else y

    def remember(ctx: Any, args: tuple[Any, ...], output: Any) -> None:
        ctx.asked = calls.read(name, args).asked
        y, *more = (output[0], *output) if has_stats else (output,)
        remember_call(ctx, args[:4], y, *args[4:tensors], *more)

    def backward(ctx: Any, g: Tensor | None, of_stats: Tensor | None = None) -> Sequence[Any]:
        *given, y = ctx.saved_tensors
        if of_stats is not None:
            of_y = statistics.gradient(given[tensors], given[tensors + 1], of_stats)
            g = of_y if g is None else g + of_y
        assert g is not None
        called, needs = called_of(ctx, given[:tensors]), ctx.needs_input_grad[1 : 1 + tensors]
        of_input = needs[0], *needs[4:]
        # values are read where the filters' gradients are wanted, or sums again
        h = inputs.convolved(called) if needs[1] or ctx.again else inputs.stand_in(called)
        of_h, *others = derivatives(ctx, (h, *given[1:4], y), (any(of_input), *needs[1:4]), g)
        of_x, *of_more = inputs.gradients(called, of_h, of_input)
        return of_x, *others, *of_more

    def forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Any:
        called = called_of(ctx, saved[:tensors])
        dh = inputs.tangent(called, (tangents[0], *tangents[4:tensors]))
        dy = tangent_of(ctx.asked, (inputs.convolved(called), *saved[1:4]), (dh, *tangents[1:4]))
        return (dy, statistics.tangent(saved[tensors], saved[tensors + 1], dy)) if has_stats else dy

    def again(*args: Any) -> tuple[Tensor, Tensor]:
        called = calls.read(name, args)
        assert called.norm is not None
        u = call(called.plain()._replace(packed=None))
        y = finished(called.asked, host.wide(u), called.residual, called.norm)
        return host.in_dtype(y, called.x.dtype), u

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        at = tensors + calls.PACKED
        if has_norm:
            return calls.batched_images(OPERATORS[name], info.batch_size, in_dims[:tensors], args, (0, 3, 4), at)
        called = calls.read(name, args)
        packed = called.packed if len(args) > at and in_dims[at] is None else None
        return batched_call(called._replace(packed=packed), info.batch_size, in_dims[:tensors])

    def flops(*args: Any, out_shape: Any) -> int:
        called: Any = calls.read(name, args)
        asked, frames, y = called.asked, called.frames, out_shape[0] if has_stats or has_norm else out_shape
        x = called.x if frames is None else [*called.x[:2], frames[2] + called.x[2], *called.x[3:]]
        # each element of x meets all taps where there are zeros between them, else each of y
        spread = asked.transposed or math.prod(asked.lhs_dilation) > 1 == math.prod(asked.stride)
        return conv_flop_count(list(x), list(called.w), list(y), spread)

    def by_images(*args: Any) -> sharding.Split:
        called = calls.read(name, args)
        more = [4] * (called.frames is not None)
        more += [place for place, one in enumerate(called.scales, 4) if one is not None and len(one.shape) == 2]
        second = [sharding.SECOND] * has_stats + [sharding.SHARDED] * has_norm
        return (0, 3, *more), [sharding.SHARDED, *second]

    found = autograd.Derivatives(remember, backward, forward_mode)
    if has_norm:
        found = autograd.running_again(again, tensors, lambda args: f"{calls.read(name, args).asked.where}: y_norm")
    results = tuple[Tensor, Tensor] if has_stats or has_norm else Tensor
    arguments, transforms = calls.arguments_with(suffix), Transforms(batched, flops, by_images)
    return define(name, arguments, results, forward, fake, found, transforms)


def called_of(ctx: Any, given: Sequence[Any]) -> Called:
    """The call that a context has, of its tensors."""
    return calls.with_more(Called(ctx.asked, *given[:4]), given[4:])


def remember_call(ctx: Any, tensors: Sequence[Any], output: Tensor, *more: Tensor | None) -> None:
    """Save the tensors of the call ctx.asked that `derivatives` needs; tensors: input, weight, bias, residual.

    Bias and residual are saved only where the activation's argument is computed again; otherwise they may be changed in
    place, as with torch's convolutions.
    """
    x, w, bias, residual = tensors
    asked: Convolution = ctx.asked
    ctx.dtypes = [None if one is None else one.dtype for one in (bias, residual)]
    ctx.again = gradients.needs_argument(asked, residual is not None)
    y = None if asked.activation is None or ctx.again else output
    if not autograd.is_forward_mode():
        bias = bias if ctx.again else None
        residual = residual if ctx.again and asked.residual_position == "pre_activation" else None
    autograd.save(ctx, x, w, bias, residual, *more, y)


def derivatives(ctx: Any, saved: Sequence[Any], needs: Sequence[bool], g: Tensor) -> tuple[Tensor | None, ...]:
    """dL/d input, weight, bias and residual of dL/dy, those that are needed; ctx, saved: as `remember_call` keeps."""
    x, w, bias, residual, y = saved
    asked: Convolution = ctx.asked
    bias_dtype, residual_dtype = ctx.dtypes
    if x.shape[1] == 0:
        sizes = ((x.shape, x.dtype), (w.shape, w.dtype), (w.shape[:1], bias_dtype), (g.shape, residual_dtype))
        found = (
            x.new_zeros(size, dtype=kind) if need else None for need, (size, kind) in zip(needs, sizes, strict=True)
        )
        return tuple(found)
    before = asked.residual_position == "pre_activation"
    of_x = of_w = of_bias = None
    of_residual = None if before or not needs[3] else g.to(residual_dtype)
    if not any(needs[:3]) and not (before and needs[3]):
        return of_x, of_w, of_bias, of_residual
    of_z = gradients.of_argument(asked, g, y, call(Called(asked, x, w, bias, residual).plain()) if ctx.again else None)
    if needs[0]:
        back, filters = gradients.of_input(asked, x.shape[2:], w)
        of_x = call(Called(back, of_z, filters))
    if needs[1]:
        of_w, of_bias = filter_gradients.of_filters(asked, of_z, x, w, needs[2])
    elif needs[2]:
        of_bias = gradients.of_bias(of_z)
    if of_bias is not None:
        of_bias = of_bias.to(bias_dtype)
    if before and needs[3]:
        of_residual = of_z.to(residual_dtype)
    return of_x, of_w, of_bias, of_residual


def tangent_of(asked: Convolution, tensors: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """dy from tangents of input, weight, bias and residual, None for constant ones.

    dz = conv(dx, w) + conv(x, dw) + dbias + dresidual, dy = act'(z) dz
    """
    x, w, bias, residual = tensors
    dx, dw, dbias, dresidual = tangents
    plain, before = asked.plain(), asked.residual_position == "pre_activation"
    added = dresidual if before else None
    dz: Tensor
    if dx is not None:
        dz = call(Called(plain, dx, w, dbias, added))
        dz = dz if dw is None else call(Called(plain, x, dw, None, dz))
    elif dw is not None:
        dz = call(Called(plain, x, dw, dbias, added))
    else:
        dz = x.new_zeros(plain.shape(x, w))
        dz = dz if added is None else dz + added.to(x.dtype)
        dz = dz if dbias is None else dz + dbias.to(x.dtype).reshape(-1, *[1] * asked.rank)
    if asked.activation is not None:
        dz = gradients.of_argument(asked, dz, None, call(Called(asked, x, w, bias, residual).plain()))
    return dz if before or dresidual is None else dz + dresidual.to(x.dtype)


def batched_call(called: Called, size: int, dims: Sequence[int | None]) -> tuple[Any, Any]:
    """(y, its batch axis) of a call whose input, weight, bias, residual and what comes after them have the batch axes
    `dims`, None for no batch; with return_stats ((y, stats), (axis, axis)).

    Batches of images are more images; batches of filters or biases are more groups, whose filters are plain.
    """
    x, w, bias, residual = (calls.with_batch(one, dim, size) for one, dim in zip(called[1:5], dims, strict=False))
    of_scales = (dims[4], dims[5]) if len(dims) == 6 else (None, None)
    if called.frames is not None:
        x = torch.cat([calls.with_batch(called.frames, dims[4], size), x], 3)
        called = called._replace(frames=None)
    if dims[1] is None and dims[2] is None:
        residual = None if residual is None else residual.flatten(0, 1)
        numbers = batched_scales(called.scales, of_scales, size, x.shape[1], False)
        return _apart(call(called._replace(x=x.flatten(0, 1), residual=residual, scales=numbers)), size, 0)
    x, w = x.transpose(0, 1).flatten(1, 2), w.flatten(0, 1)
    bias = None if bias is None else bias.flatten(0, 1)
    residual = None if residual is None else residual.transpose(0, 1).flatten(1, 2)
    grouped = dataclasses.replace(called.asked, groups=called.asked.groups * size)
    numbers = batched_scales(called.scales, of_scales, size, x.shape[0], True)
    return _apart(call(Called(grouped, x, w, bias, residual, scales=numbers)), size, 1)


def _apart(found: Any, size: int, axis: int) -> tuple[Any, Any]:
    """(a call's results, their batch axes) of batches that are y's images, axis 0, or its channels, axis 1."""
    if isinstance(found, Tensor):
        each = found.shape[axis] // size
        return found.reshape(*found.shape[:axis], size, each, *found.shape[axis + 1 :]), axis
    y, stats = found
    return (_apart(y, size, axis)[0], _apart(stats, size, axis + 1)[0]), (axis, axis + 1)


_DEFINED = [
    *NAMES,
    f"conv3d{calls.WITH_FRAMES}",
    *(f"{name}{suffix}" for name, suffix in itertools.product(_DENSE, (calls.WITH_PROLOGUE, calls.WITH_STATS))),
    f"depthwise_conv1d{calls.WITH_PROLOGUE}",
    *(f"{name}{calls.WITH_NORM}" for name in ("conv2d", "conv3d")),
]
OPERATORS = {name: _define(name) for name in _DEFINED}
