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

from ..computers import dispatch, host
from . import autograd, gradients, sharding
from .called import Called, FilterCall
from .calls import call, with_batch
from .convolution import Convolution, filter_like
from .registrar import Arguments, Transforms, define

_ARGUMENTS: Arguments = {
    "input": Tensor,
    "grad": Tensor,
    **dict.fromkeys(("size", "stride", "padding", "dilation"), Sequence[int]),
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
    of_w, of_bias = _call(FilterCall(asked, x, of_z, w.shape, w.dtype, bias))
    return of_w, of_bias if bias else None


def _call(given: FilterCall) -> tuple[Tensor, Tensor]:
    """(dw, db) by the operator of so many axes."""
    asked, x, g, size, dtype, bias = given
    operator = getattr(torch.ops.nkiconv, f"conv{asked.rank}d_weight").default
    padding = [zeros for pair in asked.padding for zeros in pair]
    numbers = list(asked.stride), padding, list(asked.dilation), asked.groups
    dw, db = operator(x, g, list(size), *numbers, bias, dtype, asked.layer)
    return dw, db


def read(x: Tensor, g: Tensor, *rest: Any) -> FilterCall:
    """The call of an operator with these arguments."""
    size, stride, padding, dilation, groups, bias, dtype, layer = rest
    rank, pairs = len(stride), tuple(zip(padding[::2], padding[1::2], strict=True))
    asked = Convolution(f"conv{rank}d", tuple(stride), pairs, tuple(dilation), (1,) * rank, groups, layer=layer)
    return FilterCall(asked, x, g, tuple(size), dtype, bias)


def _forward(*args: Any) -> tuple[Tensor, Tensor]:
    given = read(*args)
    given.check()
    dw, db = dispatch.filters_gradient(given)
    return dw, given.empty_bias if db is None else db


def _fake(*args: Any) -> tuple[Tensor, Tensor]:
    given = read(*args)
    given.check()
    return given.x.new_empty(given.size, dtype=given.dtype), given.empty_bias


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.rest = inputs[2:]
    autograd.save(ctx, *inputs[:2])


def _backward(ctx: Any, v: Tensor | None, u: Tensor | None) -> Sequence[Any]:
    asked, x, g, *_, bias = read(*ctx.saved_tensors, *ctx.rest)
    u = u if bias else None
    of_x = of_g = None
    v = None if v is None else v.to(x.dtype)
    if v is not None and ctx.needs_input_grad[1]:
        back, filters = gradients.of_input(asked, x.shape[2:], v)
        of_x = call(Called(back, g, filters))
    if ctx.needs_input_grad[2]:
        if v is not None:
            of_g = call(Called(asked, x, v, u))
        elif u is not None:
            of_g = u.to(g.dtype).reshape(-1, *[1] * asked.rank).expand(g.shape)
    return of_x, of_g


def _forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tensor, Tensor]:
    given, (dx, dg) = read(*saved, *ctx.rest), tangents[:2]
    if dg is None:
        return _call(given._replace(x=dx, bias=False))[0], torch.zeros_like(given.empty_bias)
    of_w, of_bias = _call(given._replace(g=dg))
    return of_w if dx is None else of_w + _call(given._replace(x=dx, bias=False))[0], of_bias


def _batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """((dw, db), their batch axes): batches are more groups where x has them, and else more output channels of each."""
    (asked, x, g, size, dtype, bias), (of_x, of_g), count = read(*args), in_dims[:2], info.batch_size
    g, order = with_batch(g, of_g, count), (count, asked.groups, size[0] // asked.groups)
    if of_x is None:
        order = (asked.groups, count, order[2])
        g = g.reshape(*g.shape[:2], asked.groups, order[2], *g.shape[3:]).movedim(0, 2).flatten(1, 3)
    else:
        x, g = (one.transpose(0, 1).flatten(1, 2) for one in (x.movedim(of_x, 0), g))
        asked = dataclasses.replace(asked, groups=asked.groups * count)
    dw, db = _call(FilterCall(asked, x, g, (count * size[0], *size[1:]), dtype, bias))
    dw, db = dw.reshape(*order, *size[1:]), db.reshape(order if bias else (*order[:2], 0))
    if of_x is None:
        dw, db = dw.transpose(0, 1), db.transpose(0, 1)
    return (dw.flatten(1, 2), db.flatten(1, 2)), (0, 0)


def flops(x: Sequence[int], g: Sequence[int], size: Sequence[int], *_: Any, out_shape: Any = None) -> int:
    """Of gradients of filters of `size`, as torch counts them, which ignores groups."""
    of_x, of_g, of_size = ([shape[1], shape[0], *shape[2:]] for shape in (x, g, size))
    return conv_flop_count(of_x, of_g, of_size)


_DERIVATIVES = autograd.Derivatives(_remember, _backward, _forward_mode)
_TRANSFORMS = Transforms(_batched, flops, lambda *_: ((0, 1), [sharding.SUMMAND] * 2))
OPERATORS = {
    rank: define(f"conv{rank}d_weight", _ARGUMENTS, tuple[Tensor, Tensor], _forward, _fake, _DERIVATIVES, _TRANSFORMS)
    for rank in (1, 2, 3)
}
