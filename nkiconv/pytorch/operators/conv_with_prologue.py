"""Operators with a prologue, `nkiconv::conv1d_with_prologue` to `conv3d_with_prologue` and
`depthwise_conv1d_with_prologue`; operators with statistics as a second result, `nkiconv::conv1d_with_stats` to
`conv3d_with_stats`; and both for transposed convolutions, such as `conv_transpose1d_with_stats`.

    nkiconv::conv2d_with_prologue(
        input, weight, bias, residual, x_scale, x_shift, ..., packed, strict_nonfinite, x_activation, x_upsample
    ) -> Tensor
    nkiconv::conv2d_with_stats(the same; the prologue is optional) -> (y, stats)

The rest is as in `nkiconv::conv2d`, applied to h: x_activation(v) rounded to input's dtype, upsampled by x_upsample,
with v = input * x_scale + x_shift. The backward pass computes h again; with g the sum of dL/dh over the copies of each
pixel of input:

    dL/dinput = g act'(v) x_scale, dL/dx_scale = sum of g act'(v) input, dL/dx_shift = sum of g act'(v)

stats are those of y before it is rounded, [P, N, K, 3], with the derivatives by y of `nkiconv::channel_stats`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...activations import ACTIVATIONS
from ..computers import host
from . import calls, flop_formulas, sharding, statistics
from .called import Called
from .calls import ARGUMENTS, WITH_PROLOGUE, WITH_STATS, asked_of, computed, read
from .convolution import Convolution, filter_like
from .custom import batched_call, derivatives, remember_call, tangent_of
from .prologue import Scales
from .registrar import define

NAMES = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
#: The `return_stats` of the operators, by their names' suffix.
SUFFIXES = {WITH_PROLOGUE: None, WITH_STATS: "channel"}
#: Tensors of an operator before its numbers.
TENSORS = calls.TENSORS[WITH_STATS]


def _define(name: str, suffix: str) -> Any:
    """Register the operator of a name."""
    full, stats = f"{name}{suffix}", SUFFIXES[suffix]

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
        x_upsample: int = 1,
    ) -> Any:
        more = activation, residual_position, layer, None, strict_nonfinite, x_activation, x_upsample
        asked = asked_of(name, stride, padding, dilation, lhs_dilation, groups, *more, return_stats=stats)
        return computed(Called(asked, input, weight, bias, residual, packed, None, (x_scale, x_shift)))

    def fake(*args: Any) -> Any:
        y = read(full, args).made()
        return y if stats is None else (y, statistics.empty(y))

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.asked, ctx.num_inputs = read(full, inputs).asked, len(inputs)
        y, *more = [output] if stats is None else (output[0], *output)
        remember_call(ctx, inputs[:4], y, *inputs[4:TENSORS], *more)

    def forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Any:
        x, w, bias, residual, *scales = saved[:TENSORS]
        of_x = _tangent(ctx.asked, x, (scales[0], scales[1]), (tangents[0], *tangents[4:TENSORS]))
        h = host.prologued(ctx.asked, x, (scales[0], scales[1]))
        dy = tangent_of(ctx.asked, (h, w, bias, residual), (of_x, *tangents[1:4]))
        return dy if stats is None else (dy, statistics.tangent(saved[TENSORS], saved[TENSORS + 1], dy))

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        called = read(full, args)
        packed = called.packed if len(in_dims) > TENSORS + ARGUMENTS and in_dims[TENSORS + ARGUMENTS] is None else None
        return batched_call(called._replace(packed=packed), info.batch_size, in_dims[:4], in_dims[4:TENSORS])

    def flops(*args: Any, out_shape: Any) -> int:
        y = out_shape if stats is None else out_shape[0]
        return flop_formulas.of_convolution(read(full, args).asked, args[0], args[1], y)

    def by_images(*args: Any) -> tuple[Sequence[int], Sequence[str]]:
        each = [i for i in (4, 5) if args[i] is not None and len(args[i].shape) == 2]
        return (0, 3, *each), [sharding.SHARDED] if stats is None else [sharding.SHARDED, sharding.SECOND]

    forward.__annotations__["return"] = "Tensor" if stats is None else "tuple[Tensor, Tensor]"
    return define(full, forward, fake, (remember, _backward, forward_mode), batched, flops, by_images)


def _backward(ctx: Any, g: Tensor | None, of_stats: Tensor | None = None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * (ctx.num_inputs - TENSORS)
    x, w, bias, residual, scale, shift, *results, y = ctx.saved_tensors
    if of_stats is not None:
        more = statistics.gradient(results[0], results[1], of_stats)
        g = more if g is None else g + more
    if g is None:
        return (*(None,) * TENSORS, *nothing)
    of_x, of_w, of_bias, of_residual, of_scale, of_shift = ctx.needs_input_grad[1 : 1 + TENSORS]
    scales, before = (scale, shift), (of_x, of_scale, of_shift)
    # values are read where the filters' gradients are wanted, or sums again
    shape = *x.shape[:2], *ctx.asked.convolved(x)
    h = host.prologued(ctx.asked, x, scales) if of_w or ctx.again else filter_like(x, shape, x.dtype)
    of_h, *others = derivatives(ctx, (h, w, bias, residual, y), (any(before), of_w, of_bias, of_residual), g)
    found = _of_prologue(ctx.asked, x, scales, of_h, before)
    return (found[0], *others, *found[1:], *nothing)


def _slope(asked: Convolution, argument: Tensor) -> Tensor | None:
    """The derivative of x_activation; None for the identity."""
    if asked.x_activation is None:
        return None
    own = ACTIVATIONS[asked.x_activation]
    slope: Tensor = own.slope(host.activate(argument, asked.x_activation) if own.by_result else argument)
    return slope


def _of_prologue(
    asked: Convolution, x: Tensor, scales: Scales, g: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """dL/d input, x_scale and x_shift, as needed, from g = dL/dh."""
    if g is None:
        return None, None, None
    g, wide = _gathered(host.wide(g), asked.x_upsample), host.wide(x)
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


def _gathered(g: Tensor, times: int) -> Tensor:
    """The sum over the pixels that are one of input."""
    if times == 1:
        return g
    rows, columns = g.shape[2:]
    return g.reshape(*g.shape[:2], rows // times, times, columns // times, times).sum((3, 5))


def _summed(g: Tensor, numbers: Tensor) -> Tensor:
    """The sum for each of the numbers, [C] or [N, C]."""
    return g.sum([*range(2, g.dim())] if numbers.dim() == 2 else [0, *range(2, g.dim())])


def _tangent(asked: Convolution, x: Tensor, scales: Scales, tangents: Sequence[Tensor | None]) -> Tensor | None:
    """The tangent of h from tangents of input, x_scale and x_shift; None if all are constant."""
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
    return host.upsampled(found if slope is None else found * slope, asked.x_upsample).to(x.dtype)


DEFINED = [*itertools.product(NAMES, SUFFIXES), ("depthwise_conv1d", WITH_PROLOGUE)]
OPERATORS = {f"{name}{suffix}": _define(name, suffix) for name, suffix in DEFINED}
