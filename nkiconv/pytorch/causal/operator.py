"""The operator `nkiconv::causal_conv1d`: schema, fake kernel, derivatives and batching rule.

    nkiconv::causal_conv1d(x, weight, bias, initial_states, cu_seqlens, seq_idx, return_final_states, activation, layer,
        strict_nonfinite) -> (y, final_states)

With xs = initial states, or zeros, followed by x, z = conv(xs, w) + bias and y = act(z):

    dL/dxs = conv(dL/dz between width - 1 zeros on both sides, flipped w), and dL/d final states on its last columns

with the same kernel; dL/dw and dL/dbias are those of any convolution of xs. Packed sequences have their own operator
for the derivative: the number of sequences in seq_idx is known only when it is read, which torch.compile cannot trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..computers import host, modes
from ..errors import UnsupportedError
from ..operators import autograd, filter_gradients, flop_formulas, gradients, sharding
from ..operators.called import Called
from ..operators.calls import call, own, with_batch
from ..operators.registrar import define
from . import sequences, states
from .checks import check_call

_NAME = "causal_conv1d_fn"


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    cu_seqlens: Tensor | None,
    seq_idx: Tensor | None,
    return_final_states: bool,
    activation: str | None,
    layer: str | None,
    strict_nonfinite: bool = False,
) -> tuple[Tensor, Tensor]:
    check_call(layer or _NAME, x, weight, bias, initial_states, cu_seqlens, seq_idx, return_final_states)
    channels, width = weight.shape
    w = weight[:, None]
    if not _is_packed(x, cu_seqlens, seq_idx):
        asked = states.causal(channels, width - 1, activation, layer, strict_nonfinite)
        y, final = states.convolve(asked, x, w, bias, initial_states, return_final_states)
        return _own(y), final
    packing = sequences.packing_of(x, width, cu_seqlens, seq_idx, initial_states)
    asked = states.causal(channels, 0, activation, layer, strict_nonfinite=True)
    y, final = sequences.forward(packing, x, w, bias, initial_states, return_final_states, asked)
    return _own(y), final if cu_seqlens is not None or return_final_states else x.new_empty(x.shape[0], channels, 0)


def _is_packed(x: Tensor, cu_seqlens: Tensor | None, seq_idx: Tensor | None) -> bool:
    """Whether rows are packed; without rows there are no sequences that seq_idx could number."""
    return cu_seqlens is not None or (seq_idx is not None and x.shape[0] > 0)


def _own(y: Tensor) -> Tensor:
    """y as no view, which torch's convolutions of rows return: of two results autograd forbids changing views."""
    return y.clone() if y._is_view() else y


def _fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    cu_seqlens: Tensor | None,
    seq_idx: Tensor | None,
    return_final_states: bool,
    activation: str | None,
    layer: str | None,
    strict_nonfinite: bool = False,
) -> tuple[Tensor, Tensor]:
    check_call(layer or _NAME, x, weight, bias, initial_states, cu_seqlens, seq_idx, return_final_states)
    rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return x.new_empty(x.shape), x.new_empty(rows, x.shape[1], weight.shape[1] - 1 if return_final_states else 0)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.return_final_states, ctx.activation, ctx.layer = inputs[6:9]
    ctx.strict_nonfinite, ctx.num_inputs = (*inputs[9:], False)[0], len(inputs)
    autograd.save(ctx, *inputs[:6])


def _backward(ctx: Any, g: Tensor | None, g_final: Tensor | None) -> tuple[Tensor | None, ...]:
    if g is None:
        g = torch.zeros_like(ctx.saved_tensors[0], memory_format=torch.contiguous_format)
    return (*derivatives(ctx, g, g_final, list(ctx.needs_input_grad[1:5])), *[None] * (ctx.num_inputs - 4))


def derivatives(ctx: Any, g: Tensor, g_final: Tensor | None, needs: list[bool]) -> tuple[Tensor | None, ...]:
    """dL/d x, weight, bias and initial states of dL/dy and dL/d final states, each where it is needed.

    ctx: autograd's context as `_remember` fills it, without `num_inputs`.
    """
    x, weight, bias, initial_states, cu_seqlens, seq_idx = ctx.saved_tensors
    final = g_final if ctx.return_final_states else None
    if not _is_packed(x, cu_seqlens, seq_idx):
        return _of_rows(ctx, g, final, x, weight, bias, initial_states, needs)
    given = (x, weight, bias, initial_states, cu_seqlens, seq_idx)
    each = PACKED_BACKWARD(g, final, *given, needs, ctx.activation, ctx.layer)
    return tuple(one if needed else None for one, needed in zip(each, needs, strict=True))


def _forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """(dy, d final states) of tangents of x, weight, bias and initial states.

    dz = conv(d xs, w) + conv(xs, dw) + dbias
    """
    x, weight, bias, initial_states, cu_seqlens, seq_idx = saved
    if cu_seqlens is not None or seq_idx is not None:
        raise UnsupportedError(
            f"{_NAME}: packed sequences (cu_seqlens, seq_idx) have no derivatives in forward mode; use reverse mode, "
            f"or call it for each sequence"
        )
    dx, dweight, dbias, dinitial = tangents[:4]
    if dx is None:
        dx = torch.zeros_like(x, memory_format=torch.contiguous_format)
    final, more = ctx.return_final_states, (None, ctx.layer, ctx.strict_nonfinite)
    dz, dfinal = CAUSAL_CONV1D(dx, weight, dbias, dinitial, None, None, final, *more)
    if dweight is not None:
        dz = dz + CAUSAL_CONV1D(x, dweight, None, initial_states, None, None, False, *more)[0]
    if ctx.activation is not None:
        z, _ = CAUSAL_CONV1D(x, weight, bias, initial_states, None, None, False, *more)
        dz = gradients.of_argument(states.causal(weight.shape[0], 0, ctx.activation), dz, None, z)
    return dz, dfinal


def _of_rows(
    ctx: Any,
    g: Tensor,
    g_final: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    needs: list[bool],
) -> tuple[Tensor | None, ...]:
    """`derivatives` without packed sequences."""
    channels, width = weight.shape
    gap, length, w = width - 1, x.shape[2], weight[:, None]
    asked = states.causal(channels, gap, ctx.activation, ctx.layer, ctx.strict_nonfinite)
    of_z = g
    if ctx.activation is not None:
        more = None, ctx.layer, ctx.strict_nonfinite
        z, _ = CAUSAL_CONV1D(x, weight, bias, initial_states, None, None, False, *more)
        of_z = gradients.of_argument(asked, g, None, z)
    of_x = of_w = of_bias = of_states = None
    if needs[0] or needs[3]:
        columns = gap if needs[3] else 0  # of the initial states
        again, filters = gradients.of_input(asked, torch.Size([length]), w)
        again = dataclasses.replace(again, padding=((columns, gap),))
        residual = None
        if g_final is not None and gap:
            # final states are the last columns of xs; those before the columns asked for are zeros or no one's
            reached = min(gap, columns + length)
            residual = F.pad(g_final[..., gap - reached :], (columns + length - reached, 0))
        of_xs = call(Called(again, of_z, filters, residual=residual))
        of_x = of_xs[..., columns:] if needs[0] else None
        of_states = of_xs[..., :columns] if needs[3] else None
    if needs[1]:
        rows = x if initial_states is None else states.with_state(x, initial_states, gap)
        plain = states.causal(channels, gap if initial_states is None else 0, None, ctx.layer)
        of_w, of_bias = filter_gradients.of_filters(plain, of_z, rows, w, needs[2])
        of_w = of_w.squeeze(1)
    elif needs[2]:
        of_bias = gradients.of_bias(of_z)
    if of_bias is not None and bias is not None:
        of_bias = of_bias.to(bias.dtype)
    return of_x, of_w, of_bias, of_states


def _packed_backward(
    g: Tensor,
    g_final: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    cu_seqlens: Tensor | None,
    seq_idx: Tensor | None,
    needs: list[bool],
    activation: str | None,
    layer: str | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    packing = sequences.packing_of(x, weight.shape[1], cu_seqlens, seq_idx, initial_states)
    asked = states.causal(weight.shape[0], 0, activation, layer, strict_nonfinite=True)
    wanted = (needs[0], needs[1], needs[2], needs[3])
    of_x, of_w, of_bias, of_states = sequences.backward(
        packing, g, g_final, x, weight[:, None], bias, initial_states, wanted, asked
    )
    return (
        x.new_empty(0) if of_x is None else of_x,
        weight.new_empty(0) if of_w is None else of_w.squeeze(1),
        x.new_empty(0) if of_bias is None else of_bias,
        x.new_empty(0) if of_states is None else of_states,
    )


def _packed_backward_fake(
    g: Tensor,
    g_final: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    cu_seqlens: Tensor | None,
    seq_idx: Tensor | None,
    needs: list[bool],
    activation: str | None,
    layer: str | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def like(tensor: Tensor | None, needed: bool) -> Tensor:
        return x.new_empty(0) if tensor is None or not needed else tensor.new_empty(tensor.shape)

    of_w = weight.new_empty(weight.shape if needs[1] else 0)
    return like(x, needs[0]), of_w, like(bias, needs[2]), like(initial_states, needs[3])


def _remember_packed(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.needs, ctx.activation, ctx.layer = inputs[8:]
    autograd.save(ctx, *inputs[:8])


def _second_derivatives(ctx: Any, *of_each: Tensor | None) -> tuple[Tensor | None, ...]:
    """Derivatives of `_packed_backward`: it runs again, by operators that autograd knows. Elements of other sequences
    are multiplied by zeros here, also NaN."""
    with torch.enable_grad():
        # aliases: g may depend on x, and gradients that reach x through g must not be counted here too
        saved: list[Any] = [one if one is None else one.view_as(one) for one in ctx.saved_tensors]
        x, weight, *rest = saved[2:]
        packing = sequences.packing_of(x, weight.shape[1], rest[2], rest[3], rest[1])
        asked = states.causal(weight.shape[0], 0, ctx.activation, ctx.layer, strict_nonfinite=True)
        needs: Any = tuple(ctx.needs)
        found = sequences.backward(
            packing, saved[0], saved[1], x, weight[:, None], rest[0], rest[1], needs, asked, convolve=call
        )
        pairs = [(one, of) for one, of in zip(found, of_each, strict=True) if one is not None and of is not None]
        outputs = [one.squeeze(1) if one is found[1] else one for one, _ in pairs]
        wanted = [i for i, one in enumerate(saved[:6]) if one is not None and one.requires_grad]
        of_wanted = torch.autograd.grad(
            outputs, [saved[i] for i in wanted], [of for _, of in pairs], create_graph=True, allow_unused=True
        )
    each = dict(zip(wanted, of_wanted, strict=True))
    return *(each.get(i) for i in range(6)), *[None] * 5


def _no_forward_mode(ctx: Any, *_: Any) -> Any:
    raise UnsupportedError(
        f"{_NAME}: derivatives of packed sequences (cu_seqlens, seq_idx) have none in forward mode; use reverse mode, "
        f"or call it for each sequence"
    )


def _batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """((y, final states), their batch axes): batches of rows are more rows, batches of filters more channels."""
    cu_seqlens, seq_idx, *rest = args[4:]
    if cu_seqlens is not None or seq_idx is not None:
        raise UnsupportedError(
            f"{_NAME}: torch.vmap takes no packed sequences (cu_seqlens, seq_idx); concatenate the batches in the row"
        )
    size = info.batch_size
    x, weight, bias, initial = (
        tensor if tensor is None or dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(args[:4], in_dims[:4], strict=True)
    )
    each = [with_batch(x, in_dims[0], size)]
    each += [] if initial is None else [with_batch(initial, in_dims[3], size)]
    if in_dims[1] is None and in_dims[2] is None:
        rows = [tensor.flatten(0, 1) for tensor in each]
        found = CAUSAL_CONV1D(rows[0], weight, bias, rows[1] if rows[1:] else None, None, None, *rest)
        y, final = (one.unflatten(0, (size, one.shape[0] // size)) for one in found)
        return (y, final), (0, 0)
    rows = [tensor.transpose(0, 1).flatten(1, 2) for tensor in each]
    weight = with_batch(weight, in_dims[1], size).flatten(0, 1)
    bias = None if bias is None else with_batch(bias, in_dims[2], size).flatten()
    found = CAUSAL_CONV1D(rows[0], weight, bias, rows[1] if rows[1:] else None, None, None, *rest)
    channels = rows[0].shape[1] // size
    y, final = (one.reshape(one.shape[0], size, channels, one.shape[2]) for one in found)
    return (y, final), (1, 1)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    cu_seqlens: Tensor | None,
    seq_idx: Tensor | None,
    return_final_states: bool,
    activation: str | None,
    layer: str | None,
    strict_nonfinite: bool = False,
    *,
    direct: bool | None = None,
    lent: bool = False,
) -> tuple[Tensor, Any]:
    """The operator's result for checked arguments; by torch's own functions for rows without packing on the host.

    direct: `modes.is_torchs`, if the caller knows it. lent: final states may be a view of a tensor that autograd keeps;
    the caller copies them. Without return_final_states the second result is undefined.
    """
    if cu_seqlens is None and seq_idx is None and (modes.is_torchs(x) if direct is None else direct):
        (channels, width), w = weight.shape, weight.unsqueeze(1)
        if initial_states is None and not return_final_states:
            asked = states.on_hosts(channels, width - 1, activation, layer)
            return host.convolve(asked, x, w, bias, None), None
        rows = states.with_state(x, initial_states, width - 1)
        y = host.convolve(states.on_hosts(channels, 0, activation, layer), rows, w, bias, None)
        return y, states.last_of(rows, width - 1, lent) if return_final_states else None
    found: tuple[Tensor, Tensor] = CAUSAL_CONV1D(
        x, weight, bias, initial_states, cu_seqlens, seq_idx, return_final_states, activation, layer, strict_nonfinite
    )
    return own(found[0]), own(found[1])


def _flops(x: Any, weight: Any, *_: Any, out_shape: Any) -> int:
    channels, width = weight
    return flop_formulas.of_convolution(states.causal(channels, 0), x, (channels, 1, width), x)


def _packed_backward_flops(_g: Any, _final: Any, x: Any, weight: Any, *rest: Any, out_shape: Any) -> int:
    """dL/dx and the initial states are one convolution; with an activation the forward's runs again."""
    needs, activation, _ = rest[-3:]
    convolutions = int(needs[0] or needs[3]) + int(activation is not None)
    filters = flop_formulas.of_filters(x, x, (weight[0], 1, weight[1])) if needs[1] else 0
    return convolutions * _flops(x, weight, out_shape=x) + filters


def _by_rows(_x: Any, _w: Any, _bias: Any, _initial: Any, cu_seqlens: Any, *_: Any) -> Any:
    return None if cu_seqlens is not None else ((0, 3, 5), [sharding.SHARDED] * 2)


def _packed_backward_by_rows(*args: Any) -> Any:
    if args[6] is not None:  # cu_seqlens: all sequences are in one row
        return None
    kinds = [sharding.SHARDED, sharding.SUMMAND, sharding.SUMMAND, sharding.SHARDED]
    return (0, 1, 2, 5, 7), [kind if need else sharding.SAME for kind, need in zip(kinds, args[8], strict=True)]


CAUSAL_CONV1D = define(
    "causal_conv1d", _forward, _fake, (_remember, _backward, _forward_mode), _batched, _flops, _by_rows
)
PACKED_BACKWARD = define(
    "causal_conv1d_packed_backward",
    _packed_backward,
    _packed_backward_fake,
    (_remember_packed, _second_derivatives, _no_forward_mode),
    flops=_packed_backward_flops,
    by_images=_packed_backward_by_rows,
)
