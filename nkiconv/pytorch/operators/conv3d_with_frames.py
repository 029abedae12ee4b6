"""The operator `nkiconv::conv3d_with_frames`: conv3d of frames in front of an input, without concatenating them.

    nkiconv::conv3d_with_frames(input, weight, bias, residual, initial_frames, ..., packed, strict_nonfinite)
        -> Tensor

The rest is as in `nkiconv::conv3d`. Derivatives are those of conv3d of both concatenated, split at the boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import flop_formulas, sharding
from .called import Called
from .calls import ARGUMENTS, WITH_FRAMES, asked_of, computed, read, with_batch
from .custom import batched_call, derivatives, remember_call, tangent_of
from .frames import joined, shaped
from .registrar import define

NAME = f"conv3d{WITH_FRAMES}"


def _forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    initial_frames: Tensor,
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
    asked = asked_of("conv3d", *numbers, activation, residual_position, layer, strict_nonfinite=strict_nonfinite)
    y: Tensor = computed(Called(asked, input, weight, bias, residual, packed, initial_frames))
    return y


def _fake(*args: Any) -> Tensor:
    return read(NAME, args).made()


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.asked, ctx.num_inputs = read(NAME, inputs).asked, len(inputs)
    remember_call(ctx, inputs[:4], output, inputs[4])


def _backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * (ctx.num_inputs - 5)
    if g is None:
        return (None, None, None, None, None, *nothing)
    x, w, bias, residual, frames, y = ctx.saved_tensors
    of_x, of_w, of_bias, of_residual, of_frames = ctx.needs_input_grad[1:6]
    needs = of_x or of_frames, of_w, of_bias, of_residual
    # values are read where the filters' gradients are wanted, or sums again
    whole = joined(x, frames) if of_w or ctx.again else shaped(x, frames)
    both, *others = derivatives(ctx, (whole, w, bias, residual, y), needs, g)
    before = after = None
    if both is not None:
        before, after = both.narrow(2, 0, frames.shape[2]), both.narrow(2, frames.shape[2], x.shape[2])
    return (after if of_x else None, *others, before if of_frames else None, *nothing)


def _forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    x, w, bias, residual, frames = saved[:5]
    dx, dw, dbias, dresidual, dframes = tangents[:5]
    both = None
    if dx is not None or dframes is not None:
        both = joined(
            torch.zeros_like(x) if dx is None else dx, torch.zeros_like(frames) if dframes is None else dframes
        )
    return tangent_of(ctx.asked, (joined(x, frames), w, bias, residual), (both, dw, dbias, dresidual))


def _batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    called = read(NAME, args)
    packed = called.packed if len(in_dims) > 5 + ARGUMENTS and in_dims[5 + ARGUMENTS] is None else None
    x, frames = (
        with_batch(one if dim is None else one.movedim(dim, 0), dim, info.batch_size)
        for one, dim in ((args[0], in_dims[0]), (args[4], in_dims[4]))
    )
    both = torch.cat([frames, x], 3)
    return batched_call(called._replace(x=both, packed=packed, frames=None), info.batch_size, (0, *in_dims[1:4]))


def _flops(x: Any, w: Any, _bias: Any, _residual: Any, frames: Any, *rest: Any, out_shape: Any) -> int:
    return flop_formulas.of_convolution(asked_of("conv3d", *rest), [*x[:2], frames[2] + x[2], *x[3:]], w, out_shape)


OPERATOR = define(
    NAME,
    _forward,
    _fake,
    (_remember, _backward, _forward_mode),
    _batched,
    _flops,
    lambda *_: ((0, 3, 4), [sharding.SHARDED]),
)
