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

from ..computers import host
from ..errors import UnsupportedError
from . import autograd, flop_formulas, sharding
from .called import Called
from .calls import ARGUMENTS, TENSORS, WITH_NORM, asked_of, batched_images, call, computed, read
from .convolution import Convolution
from .pixel_norm import PixelNorm, both, finished
from .registrar import define

NAMES = ("conv2d", "conv3d")
#: Places of tensors that have an image each: input, residual and initial_frames.
IMAGES = (0, 3, 4)


def _backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    def again(x: Tensor, w: Tensor, bias: Any, residual: Any, frames: Any, *affine: Any) -> tuple[Tensor, Tensor]:
        asked: Convolution = ctx.asked
        u = call(Called(asked, x, w, bias, residual, frames=frames).plain())
        norm = PixelNorm(ctx.norm.kind, affine[0], affine[1], ctx.norm.eps, ctx.norm.before)
        return host.in_dtype(finished(asked, host.wide(u), residual, norm), x.dtype), u

    found = autograd.by_running_again(again, ctx.saved_tensors, gradients)
    return *found, *(None,) * (ctx.num_inputs - TENSORS[WITH_NORM])


def _forward_mode(ctx: Any, *_: Any) -> Any:
    raise UnsupportedError(
        f"{ctx.asked.where}: y_norm has no derivatives in forward mode where a kernel computes; use reverse mode, or "
        f"torch on cpu"
    )


def _norm(called: Called) -> PixelNorm:
    assert called.norm is not None
    return called.norm


def _define(name: str) -> Any:
    """Register the operator of a name."""
    full, tensors = f"{name}{WITH_NORM}", TENSORS[WITH_NORM]

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
        asked = asked_of(name, *numbers, activation, residual_position, layer, None, strict_nonfinite)
        norm = PixelNorm(y_norm, norm_weight, norm_bias, y_norm_eps, return_before_norm)
        found: tuple[Tensor, Tensor] = computed(
            Called(asked, input, weight, bias, residual, packed, initial_frames, norm=norm)
        )
        return found

    def fake(*args: Any) -> tuple[Tensor, Tensor]:
        called = read(full, args)
        y = called.made()
        return both(_norm(called), y, torch.empty_like(y))

    def remember(ctx: Any, inputs: tuple[Any, ...], _output: Any) -> None:
        called = read(full, inputs)
        ctx.asked, ctx.num_inputs = called.asked, len(inputs)
        ctx.norm = _norm(called)._replace(weight=None, bias=None)
        autograd.save(ctx, *inputs[:tensors])

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, tuple[int, ...]]:
        return batched_images(OPERATORS[name], info.batch_size, in_dims[:tensors], args, IMAGES, tensors + ARGUMENTS)

    def flops(x: Any, w: Any, _bias: Any, _residual: Any, frames: Any, *rest: Any, out_shape: Any) -> int:
        x = x if frames is None else [*x[:2], frames[2] + x[2], *x[3:]]
        return flop_formulas.of_convolution(asked_of(name, *rest[2 : 2 + ARGUMENTS]), x, w, out_shape[0])

    derivatives = remember, _backward, _forward_mode
    return define(full, forward, fake, derivatives, batched, flops, lambda *_: (IMAGES, [sharding.SHARDED] * 2))


OPERATORS = {name: _define(name) for name in NAMES}
