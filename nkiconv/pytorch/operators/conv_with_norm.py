"""The operators `nkiconv::conv2d_with_norm` and `conv3d_with_norm`: a norm over the channels of each pixel of y.

    nkiconv::conv3d_with_norm(
        input, weight, bias, residual, initial_frames, norm_weight, norm_bias, ..., packed, strict_nonfinite,
        y_norm, y_norm_eps, return_before_norm
    ) -> (Tensor, Tensor)

The rest is as in `nkiconv::conv3d`; images have no initial_frames. The second result is the norm's input, empty unless
asked for. The backward pass computes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..computers import dispatch, host
from ..errors import UnsupportedError
from . import autograd, flop_formulas, sharding
from .calls import ARGUMENTS, WITH_NORM, arguments_of, asked_of, batched_images, call, own
from .convolution import Convolution
from .frames import shaped
from .pixel_norm import PixelNorm, by_torch, finished, nothing_like, violations
from .prologue import NO_SCALES
from .registrar import define
from .tensor_kinds import memory_format

NAMES = ("conv2d", "conv3d")
#: Tensors of an operator before its numbers.
TENSORS = 7
#: Places of those that have an image each: input, residual and initial_frames.
IMAGES = (0, 3, 4)


def run(
    asked: Convolution,
    direct: bool,
    tensors: tuple[Any, ...],
    norm: PixelNorm,
) -> tuple[Tensor, Tensor]:
    """(y, the norm's input) of a checked call: by torch's functions if `direct`, else by the operator. tensors:
    input, weight, bias, residual, packed, initial_frames."""
    x, w, bias, residual, packed, frames = tensors
    if direct:
        return by_torch(asked, x, w, bias, residual, frames, norm)
    operator = getattr(torch.ops.nkiconv, f"{asked.name}{WITH_NORM}").default
    tensors = x, w, bias, residual, frames, norm.weight, norm.bias
    y, before = operator(*tensors, *arguments_of(asked, packed), norm.kind, norm.eps, norm.before)
    return own(y), own(before)


def read(name: str, args: Sequence[Any]) -> tuple[Convolution, PixelNorm, Any]:
    """(Convolution, norm, packed filter) of an operator's arguments."""
    rest = args[TENSORS:]
    kind, eps, before = rest[ARGUMENTS + 2 :]
    return (
        asked_of(name, *rest[: ARGUMENTS + 2]),
        PixelNorm(kind, args[TENSORS - 2], args[TENSORS - 1], eps, before),
        rest[ARGUMENTS],
    )


def _check(asked: Convolution, norm: PixelNorm, packed: Any, args: Sequence[Any]) -> None:
    x, w, bias, residual, frames = args[: TENSORS - 2]
    asked.check(x, w, bias, residual, packed, frames)
    asked.refuse(list(violations(norm, asked, x, w, NO_SCALES)))


def _backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    def again(x: Tensor, w: Tensor, bias: Any, residual: Any, frames: Any, *affine: Any) -> tuple[Tensor, Tensor]:
        asked: Convolution = ctx.asked
        added = residual if asked.residual_position == "pre_activation" else None
        u = call(asked.plain(), x, w, bias, added, frames=frames)
        norm = PixelNorm(ctx.norm.kind, affine[0], affine[1], ctx.norm.eps, ctx.norm.before)
        return host.in_dtype(finished(asked, host.wide(u), residual, norm), x.dtype), u

    found = autograd.by_running_again(again, ctx.saved_tensors, gradients)
    return *found, *(None,) * (ctx.num_inputs - TENSORS)


def _forward_mode(ctx: Any, *_: Any) -> Any:
    raise UnsupportedError(
        f"{ctx.asked.where}: y_norm has no derivatives in forward mode where a kernel computes; use reverse mode, or "
        f"torch on cpu"
    )


def _define(name: str) -> Any:
    """Register the operator of a name."""

    def forward(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        initial_frames: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        lhs_dilation: Sequence[int],
        groups: int,
        activation: str | None,
        residual_position: str,
        layer: str | None,
        packed: Tensor | None,
        strict_nonfinite: bool,
        y_norm: str,
        y_norm_eps: float,
        return_before_norm: bool,
    ) -> tuple[Tensor, Tensor]:
        numbers = stride, padding, dilation, lhs_dilation, groups
        more = activation, residual_position, layer, None, strict_nonfinite
        asked, tensors = asked_of(name, *numbers, *more), (input, weight, bias, residual)
        norm = PixelNorm(y_norm, norm_weight, norm_bias, y_norm_eps, return_before_norm)
        _check(asked, norm, packed, (*tensors, initial_frames))
        y, before = dispatch.convolve(asked, *tensors, packed, initial_frames, norm=norm)
        order = memory_format(input, weight)
        y = y.contiguous(memory_format=order)
        return y, before.contiguous(memory_format=order) if return_before_norm else before

    def fake(*args: Any) -> tuple[Tensor, Tensor]:
        asked, norm, packed = read(name, args)
        _check(asked, norm, packed, args)
        x, w, frames = args[0], args[1], args[4]
        shape, order = asked.shape(shaped(x, frames), w), memory_format(x, w)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)
        return y, torch.empty_like(y) if norm.before else nothing_like(y)

    def remember(ctx: Any, inputs: tuple[Any, ...], _output: Any) -> None:
        ctx.asked, ctx.norm, _ = read(name, inputs)
        ctx.norm, ctx.num_inputs = ctx.norm._replace(weight=None, bias=None), len(inputs)
        autograd.save(ctx, *inputs[:TENSORS])

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, tuple[int, ...]]:
        dims, packed = in_dims[:TENSORS], TENSORS + ARGUMENTS
        return batched_images(OPERATORS[name], info.batch_size, dims, args, IMAGES, packed)

    def flops(x: Any, w: Any, _bias: Any, _residual: Any, frames: Any, *rest: Any, out_shape: Any) -> int:
        x = x if frames is None else [*x[:2], frames[2] + x[2], *x[3:]]
        return flop_formulas.of_convolution(asked_of(name, *rest[2 : 2 + ARGUMENTS]), x, w, out_shape[0])

    return define(
        f"{name}{WITH_NORM}",
        forward,
        fake,
        (remember, _backward, _forward_mode),
        batched,
        flops,
        lambda *_: (IMAGES, [sharding.SHARDED] * 2),
    )


OPERATORS = {name: _define(name) for name in NAMES}
