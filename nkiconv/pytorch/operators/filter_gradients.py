"""The operators `nkiconv::conv1d_weight`, `conv2d_weight`, `conv3d_weight`: gradients by filters and biases.

    nkiconv::conv2d_weight(input, grad, size, stride, padding, dilation, groups, bias, dtype, layer) -> (Tensor, Tensor)

(dw, db) from an input x and g, the gradient of its convolution. dw has the filter's `size`, and x's dtype or fp32; db
is [K], fp32, or float64 if x is, and [0] without `bias`. Both are linear in x and in g, which gives their own
derivatives. With v (in x's dtype) and u the gradients of dw and db:

    dL/dg = conv(x, v) + u, dL/dx = the input gradient of g and v, d(dw) = dw(dx, g) + dw(x, dg), d(db) = db(dg)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count

from ... import rules
from ...errors import refused
from ..computers import dispatch, host
from ..errors import GeometryError, NkiconvError
from . import autograd, gradients, sharding
from .called import Called
from .calls import call, with_batch
from .convolution import Convolution, filter_like
from .registrar import Arguments, Transforms, define
from .tensor_kinds import are_positive, beside_violations, tensor_violations

_ARGUMENTS: Arguments = {
    "input": Tensor,
    "grad": Tensor,
    "size": Sequence[int],
    "stride": Sequence[int],
    "padding": Sequence[int],
    "dilation": Sequence[int],
    "groups": int,
    "bias": bool,
    "dtype": torch.dtype,
    "layer": str | None,
}


def of_filters(
    asked: Convolution, of_z: Tensor, x: Tensor, w: Tensor, bias: bool = False
) -> tuple[Tensor, Tensor | None]:
    """(dL/dw from dL/dz; with `bias` dL/dbias, fp32), in one pass unless x and dL/dz are exchanged. w: only its shape
    and dtype are read.

    They are exchanged if there are zeros between the elements of x, so that no zero is multiplied: dL/dx is a
    convolution of dL/dz by w, and dL/dw is that convolution's filter gradient with x as the gradient of its result.
    """
    spread = max(asked.lhs_dilation) > 1
    if asked.transposed or (spread and max(asked.stride) == 1):
        back, size = gradients.backwards(asked, x.shape[2:], w), w.shape
        if not asked.transposed:
            size = torch.Size([x.shape[1], w.shape[0] // asked.groups, *w.shape[2:]])
        exchanged, _ = of_filters(back, x, of_z, filter_like(w, size, w.dtype))
        of_w = exchanged if asked.transposed else host.forwards(exchanged, asked.groups)
        return of_w, gradients.of_bias(of_z) if bias else None
    if spread:  # and strides, which no function of ours has: torch puts the zeros between, and the kernel meets them
        x, asked = host.spread(x, asked.lhs_dilation), dataclasses.replace(asked, lhs_dilation=(1,) * asked.rank)
    of_w, of_bias = _call(asked, x, of_z, w.shape, w.dtype, bias)
    return of_w, of_bias if bias else None


def _call(
    asked: Convolution, x: Tensor, g: Tensor, size: Sequence[int], dtype: torch.dtype, bias: bool
) -> tuple[Tensor, Tensor]:
    """(dw, db) by the operator of so many axes."""
    operator = getattr(torch.ops.nkiconv, f"conv{asked.rank}d_weight").default
    padding = [zeros for pair in asked.padding for zeros in pair]
    numbers = list(asked.stride), padding, list(asked.dilation), asked.groups
    dw, db = operator(x, g, list(size), *numbers, bias, dtype, asked.layer)
    return dw, db


def weight_asked(rank: int, rest: Sequence[Any]) -> tuple[Convolution, tuple[int, ...], bool, torch.dtype]:
    """(the convolution, size, bias, dtype) of an operator's arguments after its tensors."""
    size, stride, padding, dilation, groups, bias, dtype, layer = rest
    pairs = tuple(zip(padding[::2], padding[1::2], strict=True))
    name = f"conv{rank}d"
    asked = Convolution(name, tuple(stride), pairs, tuple(dilation), (1,) * rank, groups, layer=layer)
    return asked, tuple(size), bias, dtype


def _check(asked: Convolution, x: Tensor, g: Tensor, size: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse tensors that do not fit together, naming all violated rules."""
    errors: list[NkiconvError] = [*tensor_violations("input", x), *tensor_violations("grad", g)]
    if len(size) != asked.rank + 2 or not are_positive(size):
        errors.append(GeometryError(f"size={size}: must be {asked.rank + 2} ints of at least 1; pass the filter's"))
    asked.refuse(errors)
    # sums are fp32, so an fp32 gradient may belong to a filter of any dtype
    like = filter_like(x, size, x.dtype if dtype == torch.float32 else dtype)
    Called(asked, x, like).check()
    errors += beside_violations("grad", g, x)
    errors += refused(GeometryError, rules.shape("grad", g.shape, asked.shape(x, like), "y's"))
    asked.refuse(errors)


def _define(rank: int) -> Any:
    """Register the operator of so many axes."""

    def forward(input: Tensor, grad: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        asked, size, bias, dtype = weight_asked(rank, rest)
        _check(asked, input, grad, size, dtype)
        dw, db = dispatch.filters_gradient(asked, input, grad, size, dtype, bias)
        return dw, input.new_empty(0, dtype=host.wide_dtype(input)) if db is None else db

    def fake(input: Tensor, grad: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        asked, size, bias, dtype = weight_asked(rank, rest)
        _check(asked, input, grad, size, dtype)
        db = input.new_empty(size[0] if bias else 0, dtype=host.wide_dtype(input))
        return input.new_empty(size, dtype=dtype), db

    def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.asked, ctx.size, ctx.bias, ctx.dtype = weight_asked(rank, inputs[2:])
        autograd.save(ctx, *inputs[:2])

    def backward(ctx: Any, v: Tensor | None, u: Tensor | None) -> Sequence[Any]:
        x, g = ctx.saved_tensors
        asked, u = ctx.asked, u if ctx.bias else None
        of_x = of_g = None
        v = None if v is None else v.to(x.dtype)
        if v is not None and ctx.needs_input_grad[1]:
            back, filters = gradients.of_input(asked, x.shape[2:], v)
            of_x = call(Called(back, g, filters))
        if ctx.needs_input_grad[2]:
            if v is not None:
                of_g = call(Called(asked, x, v, u))
            elif u is not None:
                of_g = u.to(g.dtype).reshape(-1, *[1] * rank).expand(g.shape)
        return of_x, of_g

    def forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tensor, Tensor]:
        x, g = saved
        dx, dg = tangents[:2]
        numbers = ctx.size, ctx.dtype
        if dg is None:
            of_w, _ = _call(ctx.asked, dx, g, *numbers, False)
            return of_w, x.new_zeros(ctx.size[0] if ctx.bias else 0, dtype=host.wide_dtype(x))
        of_w, of_bias = _call(ctx.asked, x, dg, *numbers, ctx.bias)
        return of_w if dx is None else of_w + _call(ctx.asked, dx, g, *numbers, False)[0], of_bias

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        size, (of_x, of_g) = info.batch_size, in_dims[:2]
        x, g = args[0] if of_x is None else args[0].movedim(of_x, 0), with_batch(args[1], of_g, size)
        return _batched(weight_asked(rank, args[2:]), size, x, of_x is not None, g), (0, 0)

    derivatives = autograd.Derivatives(remember, backward, forward_mode)
    rules = Transforms(batched, flops, lambda *_: ((0, 1), [sharding.SUMMAND] * 2))
    return define(f"conv{rank}d_weight", _ARGUMENTS, tuple[Tensor, Tensor], forward, fake, derivatives, rules)


def flops(x: Sequence[int], g: Sequence[int], size: Sequence[int], *_: Any, out_shape: Any = None) -> int:
    """Of gradients of filters of `size`, as torch counts them, which ignores groups."""
    of_x, of_g, of_size = ([shape[1], shape[0], *shape[2:]] for shape in (x, g, size))
    return conv_flop_count(of_x, of_g, of_size)


def _batched(
    numbers: tuple[Convolution, tuple[int, ...], bool, torch.dtype], count: int, x: Tensor, several: bool, g: Tensor
) -> tuple[Tensor, Tensor]:
    """(dw, db) of so many batches, the first axis of g, and of x where it has `several`; they are more groups then,
    and else more output channels of each."""
    asked, size, bias, dtype = numbers
    order = (count, asked.groups, size[0] // asked.groups)
    if several:
        x, g = x.transpose(0, 1).flatten(1, 2), g.transpose(0, 1).flatten(1, 2)
        asked = dataclasses.replace(asked, groups=asked.groups * count)
    else:
        order = (asked.groups, count, order[2])
        g = g.reshape(*g.shape[:2], asked.groups, order[2], *g.shape[3:]).movedim(0, 2).flatten(1, 3)
    dw, db = _call(asked, x, g, (count * size[0], *size[1:]), dtype, bias)
    dw, db = dw.reshape(*order, *size[1:]), db.reshape(order if bias else (*order[:2], 0))
    if not several:
        dw, db = dw.transpose(0, 1), db.transpose(0, 1)
    return dw.flatten(1, 2), db.flatten(1, 2)


OPERATORS = {rank: _define(rank) for rank in (1, 2, 3)}
