"""The operators `nkiconv::conv1d_with_prologue`, `conv2d_with_prologue` and `conv3d_with_prologue`.

    nkiconv::conv2d_with_prologue(
        input, weight, bias, residual, x_scale, x_shift, ..., packed, strict_nonfinite, x_activation
    ) -> Tensor

The rest is as of `nkiconv::conv2d`, whose input is h = x_activation(v) rounded to input's dtype, v = input * x_scale +
x_shift. For derivatives h is computed again, not kept:

    dL/dinput = dL/dh act'(v) x_scale, dL/dx_scale = sum of dL/dh act'(v) input, dL/dx_shift = sum of dL/dh act'(v)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...activations import ACTIVATIONS
from ..computers import dispatch, host
from . import autograd, flop_formulas, sharding
from .calls import ARGUMENTS, asked_of
from .convolution import Convolution
from .custom import batched_call, derivatives, remember_call, tangent_of
from .fakes import fake_kernel
from .prologue import Scales
from .registrar import registrar
from .tensor_kinds import memory_format

#: What follows the name of the operator without a prologue.
SUFFIX = "_with_prologue"
NAMES = ("conv1d", "conv2d", "conv3d")
#: Tensors of an operator before its numbers.
TENSORS = 6


def _define(name: str) -> Any:
    """Register the operator of a name."""

    def forward(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        x_scale: Tensor | None,
        x_shift: Tensor | None,
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
        x_activation: str | None = None,
    ) -> Tensor:
        more = activation, residual_position, layer, None, strict_nonfinite, x_activation
        asked, scales = asked_of(name, stride, padding, dilation, lhs_dilation, groups, *more), (x_scale, x_shift)
        asked.check(input, weight, bias, residual, packed, None, scales)
        y = dispatch.convolve(asked, input, weight, bias, residual, packed, None, scales)
        return y.contiguous(memory_format=memory_format(input, weight))

    def fake(input: Tensor, weight: Tensor, bias: Any, residual: Any, scale: Any, shift: Any, *rest: Any) -> Tensor:
        asked, packed = _asked(name, rest)
        asked.check(input, weight, bias, residual, packed, None, (scale, shift))
        shape, order = asked.shape(input, weight), memory_format(input, weight)
        return torch.empty(shape, dtype=input.dtype, device=input.device, memory_format=order)

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.asked, ctx.num_inputs = _asked(name, inputs[TENSORS:])[0], len(inputs)
        remember_call(ctx, inputs[:4], output, *inputs[4:TENSORS])

    def forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
        x, w, bias, residual, *scales = saved[:TENSORS]
        of_x = _tangent(ctx.asked, x, (scales[0], scales[1]), (tangents[0], *tangents[4:TENSORS]))
        h = host.prologued(ctx.asked, x, (scales[0], scales[1]))
        return tangent_of(ctx.asked, (h, w, bias, residual), (of_x, *tangents[1:4]))

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        asked, packed = _asked(name, args[TENSORS:])
        packed = packed if len(in_dims) > TENSORS + ARGUMENTS and in_dims[TENSORS + ARGUMENTS] is None else None
        scales = args[4:TENSORS], in_dims[4:TENSORS]
        return batched_call(asked, info.batch_size, in_dims[:4], args[:4], packed, *scales)

    def flops(x: Any, w: Any, _bias: Any, _residual: Any, _scale: Any, _shift: Any, *rest: Any, out_shape: Any) -> int:
        return flop_formulas.of_convolution(_asked(name, rest)[0], x, w, out_shape)

    whole = f"{name}{SUFFIX}"
    operator = registrar()(f"nkiconv::{whole}", mutates_args=())(forward)
    operator.register_fake(fake_kernel(whole, fake))
    operator.register_vmap(batched)
    autograd.register(whole, remember, _backward, forward_mode)
    flop_formulas.register(whole, flops)
    sharding.declare(whole, _by_images)
    return operator


def _asked(name: str, rest: Sequence[Any]) -> tuple[Convolution, Any]:
    """(what a call asks for, the packed filter) of its arguments after the tensors."""
    return asked_of(name, *rest), rest[ARGUMENTS] if len(rest) > ARGUMENTS else None


def _backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * (ctx.num_inputs - TENSORS)
    if g is None:
        return (*(None,) * TENSORS, *nothing)
    x, w, bias, residual, scale, shift, y = ctx.saved_tensors
    of_x, of_w, of_bias, of_residual, of_scale, of_shift = ctx.needs_input_grad[1 : 1 + TENSORS]
    scales, before = (scale, shift), (of_x, of_scale, of_shift)
    # values are read where the filters' gradients are wanted, or sums again
    h = host.prologued(ctx.asked, x, scales) if of_w or ctx.again else x
    of_h, *others = derivatives(ctx, (h, w, bias, residual, y), (any(before), of_w, of_bias, of_residual), g)
    found = _of_prologue(ctx.asked, x, scales, of_h, before)
    return (found[0], *others, *found[1:], *nothing)


def _slope(asked: Convolution, argument: Tensor) -> Tensor | None:
    """The slope of x_activation; None of the identity."""
    if asked.x_activation is None:
        return None
    own = ACTIVATIONS[asked.x_activation]
    slope: Tensor = own.slope(host.activate(argument, asked.x_activation) if own.by_result else argument)
    return slope


def _of_prologue(
    asked: Convolution, x: Tensor, scales: Scales, g: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """dL/d input, x_scale and x_shift of g, that of what is convolved; those that are needed."""
    if g is None:
        return None, None, None
    g, wide = host.wide(g), host.wide(x)
    slope = _slope(asked, host.prologue_argument(x, scales))
    g = g if slope is None else g * slope
    scale, shift = scales
    of_x = of_scale = of_shift = None
    if needs[0]:
        of_x = (g if scale is None else g * host.by_channel(scale, x)).to(x.dtype)
    if needs[1] and scale is not None:
        of_scale = _summed(g * wide, scale)
    if needs[2] and shift is not None:
        of_shift = _summed(g, shift)
    return of_x, of_scale, of_shift


def _summed(g: Tensor, numbers: Tensor) -> Tensor:
    """The sum for each of the numbers, [C] or [N, C]."""
    return g.sum([*range(2, g.dim())] if numbers.dim() == 2 else [0, *range(2, g.dim())])


def _tangent(asked: Convolution, x: Tensor, scales: Scales, tangents: Sequence[Tensor | None]) -> Tensor | None:
    """That of what is convolved, of those of input, x_scale and x_shift; None where all are constant."""
    (dx, dscale, dshift), (scale, _) = tangents, scales
    found = None if dx is None else host.wide(dx)
    if found is not None and scale is not None:
        found = found * host.by_channel(scale, x)
    if dscale is not None:
        of_scale = host.wide(x) * host.by_channel(dscale, x)
        found = of_scale if found is None else found + of_scale
    if dshift is not None:
        of_shift = host.by_channel(dshift, x).expand(x.shape)
        found = of_shift if found is None else found + of_shift
    if found is None:
        return None
    slope = _slope(asked, host.prologue_argument(x, scales))
    return (found if slope is None else found * slope).to(x.dtype)


def _by_images(*args: Any) -> tuple[Sequence[int], Sequence[str]]:
    each = [i for i in (4, 5) if args[i] is not None and len(args[i].shape) == 2]
    return (0, 3, *each), [sharding.SHARDED]


OPERATORS = {name: _define(name) for name in NAMES}
