"""The custom operators `nkiconv::*`: schema, fake kernel, derivative and batching rule of each.

    nkiconv::conv1d, conv2d, conv3d, depthwise_conv1d, depthwise_conv2d,
        conv_transpose1d, conv_transpose2d, conv_transpose3d, depthwise_conv_transpose1d(
        input, weight, bias, residual, ..., packed, strict_nonfinite
    ) -> Tensor

Transposed ones are convolutions of input with zeros between its elements: `lhs_dilation` is torch's stride. Numbers are
given for each axis, padding before and after it; negative padding crops. `packed` is the filter in the kernel's order
(`filters.pack_filter`); torch and derivatives read `weight`. `functional` has torch's own signatures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from . import autograd, filter_gradients, flop_formulas, gradients, sharding
from .called import Called
from .calls import ARGUMENTS, asked_of, call, computed, read, with_batch
from .convolution import Convolution
from .prologue import batched_scales
from .registrar import define

#: Operators and the axes of their images.
NAMES = {"conv1d": 1, "conv2d": 2, "conv3d": 3, "depthwise_conv1d": 1, "depthwise_conv2d": 2}
NAMES |= {"conv_transpose1d": 1, "conv_transpose2d": 2, "conv_transpose3d": 3, "depthwise_conv_transpose1d": 1}


def _define(name: str) -> Any:
    """Register the operator of a name."""

    def forward(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        lhs_dilation: Sequence[int],
        groups: int,
        activation: str | None,
        residual_position: str,
        layer: str | None,
        packed: Tensor | None = None,
        strict_nonfinite: bool = False,
    ) -> Tensor:
        numbers = stride, padding, dilation, lhs_dilation, groups
        asked = asked_of(name, *numbers, activation, residual_position, layer, strict_nonfinite=strict_nonfinite)
        y: Tensor = computed(Called(asked, input, weight, bias, residual, packed))
        return y

    def fake(*args: Any) -> Tensor:
        return read(name, args).made()

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.asked, ctx.num_inputs = read(name, inputs).asked, len(inputs)
        remember_call(ctx, inputs[:4], output)

    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * (ctx.num_inputs - 4)
        if g is None:
            return (None, None, None, None, *nothing)
        return (*derivatives(ctx, ctx.saved_tensors, ctx.needs_input_grad[1:5], g), *nothing)

    def forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
        return tangent_of(ctx.asked, saved[:4], tangents[:4])

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        called = read(name, args)
        packed = called.packed if len(args) > 4 + ARGUMENTS and in_dims[4 + ARGUMENTS] is None else None
        return batched_call(called._replace(packed=packed), info.batch_size, in_dims[:4])

    def flops(x: Any, w: Any, _bias: Any, _residual: Any, *rest: Any, out_shape: Any) -> int:
        return flop_formulas.of_convolution(asked_of(name, *rest[:ARGUMENTS]), x, w, out_shape)

    return define(
        name, forward, fake, (remember, backward, forward_mode), batched, flops, lambda *_: ((0, 3), [sharding.SHARDED])
    )


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


def batched_call(
    called: Called, size: int, dims: tuple[int | None, ...], of_scales: tuple[int | None, ...] = (None, None)
) -> tuple[Any, Any]:
    """(y, its batch axis) of a call whose input, weight, bias and residual have the batch axes `dims`, None for no
    batch; with return_stats ((y, stats), (axis, axis)); of_scales: the batch axes of scales.

    Batches of images are more images; batches of filters or biases are more groups, whose filters are plain.
    """
    asked = called.asked
    x, w, bias, residual = (
        tensor if tensor is None or dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(called[1:5], dims, strict=True)
    )
    assert x is not None
    assert w is not None
    if dims[1] is None and dims[2] is None:
        x = with_batch(x, dims[0], size)
        residual = None if residual is None else with_batch(residual, dims[3], size).flatten(0, 1)
        numbers = batched_scales(called.scales, of_scales, size, x.shape[1], False)
        return _apart(call(called._replace(x=x.flatten(0, 1), residual=residual, scales=numbers)), size, 0)
    x = with_batch(x, dims[0], size).transpose(0, 1).flatten(1, 2)
    w = with_batch(w, dims[1], size).flatten(0, 1)
    bias = None if bias is None else with_batch(bias, dims[2], size).flatten(0, 1)
    if residual is not None:
        residual = with_batch(residual, dims[3], size).transpose(0, 1).flatten(1, 2)
    grouped = dataclasses.replace(asked, groups=asked.groups * size)
    numbers = batched_scales(called.scales, of_scales, size, x.shape[0], True)
    return _apart(call(Called(grouped, x, w, bias, residual, scales=numbers)), size, 1)


def _apart(found: Any, size: int, axis: int) -> tuple[Any, Any]:
    """(a call's results, their batch axes) of batches that are y's images, axis 0, or its channels, axis 1."""
    if isinstance(found, Tensor):
        each = found.shape[axis] // size
        return found.reshape(*found.shape[:axis], size, each, *found.shape[axis + 1 :]), axis
    y, stats = found
    return (_apart(y, size, axis)[0], _apart(stats, size, axis + 1)[0]), (axis, axis + 1)


OPERATORS = {name: _define(name) for name in NAMES}
