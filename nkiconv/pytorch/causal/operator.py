"""The operator `nkiconv::causal_conv1d`: schema, fake kernel, derivatives and batching rule.

It takes a `states.Call` and returns (y, final states). With xs = initial states, or zeros, followed by x,
z = conv(xs, w) + bias and y = act(z):

    dL/dxs = conv(dL/dz between width - 1 zeros on both sides, flipped w), and dL/d final states on its last columns

with the same kernel; dL/dw and dL/dbias are those of any convolution of xs. Packed sequences have their own operator
for the derivative: the number of sequences in seq_idx is known only when it is read, which torch.compile cannot trace.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..computers import dispatch, host, modes
from ..errors import UnsupportedError
from ..operators import autograd, filter_gradients, gradients, sharding
from ..operators.called import Called
from ..operators.calls import call, own, with_batch
from ..operators.frames import last_of, with_state
from ..operators.registrar import Transforms, arguments_of, define
from . import sequences, states
from .checks import check_call
from .states import Call

_NAME = "causal_conv1d_fn"


def _argument(given: Call, **changed: Any) -> tuple[Tensor, Tensor]:
    """The operator's results without an activation, with other tensors."""
    plain = given._replace(activation=None, cu_seqlens=None, seq_idx=None)
    found: tuple[Tensor, Tensor] = CAUSAL_CONV1D(*plain._replace(**changed))
    return found


#: Tensors among these.
_TENSORS = 6


def _check(given: Call) -> None:
    check_call(given.layer or _NAME, *given[:7])


def _forward(*args: Any) -> tuple[Tensor, Tensor]:
    given = Call(*args)
    _check(given)
    if not given.is_packed:
        return states.convolve(given)
    y, state = sequences.forward(given)
    has_states = given.cu_seqlens is not None or given.return_final_states
    return y, state if has_states else given.x.new_empty(*given.x.shape[:2], 0)


def _fake(*args: Any) -> tuple[Tensor, Tensor]:
    given = Call(*args)
    _check(given)
    x, size = given.x, given.weight.shape[1] - 1 if given.return_final_states else 0
    rows = x.shape[0] if given.cu_seqlens is None else given.cu_seqlens.shape[0] - 1
    return x.new_empty(x.shape), x.new_empty(rows, x.shape[1], size)


def _remember(ctx: Any, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.rest = args[_TENSORS:]
    autograd.save(ctx, *args[:_TENSORS])


def _backward(ctx: Any, g: Tensor | None, g_final: Tensor | None) -> Sequence[Any]:
    given = Call(*ctx.saved_tensors, *ctx.rest)
    if g is None:
        g = torch.zeros_like(given.x, memory_format=torch.contiguous_format)
    return derivatives(given, g, g_final, list(ctx.needs_input_grad[1:5]))


def derivatives(given: Call, g: Tensor, g_final: Tensor | None, needs: list[bool]) -> tuple[Tensor | None, ...]:
    """dL/d x, weight, bias and initial states of dL/dy and dL/d final states, each where it is needed."""
    final = g_final if given.return_final_states else None
    if not given.is_packed:
        return _of_rows(given, g, final, needs)
    each = PACKED_BACKWARD(g, final, *given[:_TENSORS], needs, given.activation, given.layer)
    return tuple(one if needed else None for one, needed in zip(each, needs, strict=True))


def _forward_mode(ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """(dy, d final states) of tangents of x, weight, bias and initial states.

    dz = conv(d xs, w) + conv(xs, dw) + dbias
    """
    given = Call(*saved, *ctx.rest)
    if given.cu_seqlens is not None or given.seq_idx is not None:
        raise UnsupportedError(
            f"{_NAME}: packed sequences (cu_seqlens, seq_idx) have no derivatives in forward mode; use reverse mode, "
            f"or call it for each sequence"
        )
    dx, dweight, dbias, dinitial = tangents[:4]
    if dx is None:
        dx = torch.zeros_like(given.x, memory_format=torch.contiguous_format)
    dz, dfinal = _argument(given, x=dx, bias=dbias, initial_states=dinitial)
    if dweight is not None:
        dz = dz + _argument(given, weight=dweight, bias=None, return_final_states=False)[0]
    if given.activation is not None:
        z, _ = _argument(given, return_final_states=False)
        dz = gradients.of_argument(given.asked, dz, None, z)
    return dz, dfinal


def _of_rows(given: Call, g: Tensor, g_final: Tensor | None, needs: list[bool]) -> tuple[Tensor | None, ...]:
    """`derivatives` without packed sequences."""
    x, initial_states, asked, w = given.x, given.initial_states, given.asked, given.w
    channels, gap, length = w.shape[0], w.shape[2] - 1, x.shape[2]
    of_z = g
    if given.activation is not None:
        of_z = gradients.of_argument(asked, g, None, _argument(given, return_final_states=False)[0])
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
        rows = x if initial_states is None else with_state(x, initial_states, gap)
        plain = states.causal(channels, gap if initial_states is None else 0, None, given.layer)
        of_w, of_bias = filter_gradients.of_filters(plain, of_z, rows, w, needs[2])
        of_w = of_w.squeeze(1)
    elif needs[2]:
        of_bias = gradients.of_bias(of_z)
    if of_bias is not None and given.bias is not None:
        of_bias = of_bias.to(given.bias.dtype)
    return of_x, of_w, of_bias, of_states


class PackedCall(NamedTuple):
    """The arguments of the operator for derivatives of packed sequences."""

    g: Tensor
    g_final: Tensor | None
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    initial_states: Tensor | None
    cu_seqlens: Tensor | None
    seq_idx: Tensor | None
    needs: list[bool]
    activation: str | None
    layer: str | None

    @property
    def given(self) -> Call:
        """Whose derivatives these are."""
        return Call(*self[2:8], False, *self[9:])


def _packed_backward(convolve: sequences.Convolve, *args: Any) -> tuple[Tensor, ...]:
    """dL/d x, weight, bias and initial states, empty where they are not needed. convolve: as of `sequences.backward`;
    with one that autograd knows, elements of other sequences are multiplied by zeros in derivatives, also NaN."""
    packed = PackedCall(*args)
    found = [*sequences.backward(packed.given, packed.g, packed.g_final, packed.needs, convolve)]
    found[1] = None if found[1] is None else found[1].squeeze(1)
    return tuple(packed.x.new_empty(0) if one is None else one for one in found)


def _packed_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    packed = PackedCall(*args)
    each = zip(packed[2:6], packed.needs, strict=True)
    return tuple(packed.x.new_empty(0) if one is None or not need else one.new_empty(one.shape) for one, need in each)


def _batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """((y, final states), their batch axes): batches of rows are more rows, batches of filters more channels."""
    cu_seqlens, seq_idx, *rest = args[4:]
    if cu_seqlens is not None or seq_idx is not None:
        raise UnsupportedError(
            f"{_NAME}: torch.vmap takes no packed sequences (cu_seqlens, seq_idx); concatenate the batches in the row"
        )
    size = info.batch_size
    x, weight, bias, initial = (with_batch(one, dim, size) for one, dim in zip(args[:4], in_dims, strict=False))
    axis = 0 if in_dims[1] is None and in_dims[2] is None else 1
    if axis == 0:
        _, weight, bias, *_ = args
        x, initial = (None if one is None else one.flatten(0, 1) for one in (x, initial))
    else:
        x, initial = (None if one is None else one.transpose(0, 1).flatten(1, 2) for one in (x, initial))
        weight, bias = (None if one is None else one.flatten(0, 1) for one in (weight, bias))
    found = CAUSAL_CONV1D(x, weight, bias, initial, None, None, *rest)
    y, final = (one.unflatten(axis, (size, one.shape[axis] // size)) for one in found)
    return (y, final), (axis, axis)


def convolve(given: Call, *, direct: bool | None = None, lent: bool = False) -> tuple[Tensor, Any]:
    """The operator's result for checked arguments; by torch's own functions for rows without packing on the host.

    direct: `modes.is_torchs`, if the caller knows it. lent: final states may be a view of a tensor that autograd keeps;
    the caller copies them. Without return_final_states the second result is undefined.
    """
    x, weight, bias, initial_states, cu_seqlens, seq_idx, final, activation, layer, _ = given
    if cu_seqlens is None and seq_idx is None and (modes.is_torchs(x) if direct is None else direct):
        (channels, width), w = weight.shape, weight.unsqueeze(1)
        if initial_states is None and not final:
            asked = states.on_hosts(channels, width - 1, activation, layer)
            return host.convolve(Called(asked, x, w, bias)), None
        rows = with_state(x, initial_states, width - 1)
        y = host.convolve(Called(states.on_hosts(channels, 0, activation, layer), rows, w, bias))
        return y, last_of(rows, width - 1, lent) if final else None
    found: tuple[Tensor, Tensor] = CAUSAL_CONV1D(*given)
    return own(found[0]), own(found[1])


def _flops(x: Any, weight: Any, *_: Any, out_shape: Any = None) -> int:
    return states.flops(x[0], x[2], weight)


def _packed_backward_flops(_g: Any, _final: Any, x: Any, weight: Any, *rest: Any, out_shape: Any) -> int:
    """dL/dx and the initial states are one convolution; with an activation the forward's runs again."""
    needs, activation, _ = rest[-3:]
    convolutions = int(needs[0] or needs[3]) + int(activation is not None)
    filters = filter_gradients.flops(x, x, (weight[0], 1, weight[1])) if needs[1] else 0
    return convolutions * _flops(x, weight) + filters


def _by_rows(_x: Any, _w: Any, _bias: Any, _initial: Any, cu_seqlens: Any, *_: Any) -> Any:
    return None if cu_seqlens is not None else ((0, 3, 5), [sharding.SHARDED] * 2)


def _packed_backward_by_rows(*args: Any) -> Any:
    if args[6] is not None:  # cu_seqlens: all sequences are in one row
        return None
    kinds = [sharding.SHARDED, sharding.SUMMAND, sharding.SUMMAND, sharding.SHARDED]
    return (0, 1, 2, 5, 7), [kind if need else sharding.SAME for kind, need in zip(kinds, args[8], strict=True)]


CAUSAL_CONV1D = define(
    "causal_conv1d", arguments_of(Call), tuple[Tensor, Tensor], _forward, _fake,
    autograd.Derivatives(_remember, _backward, _forward_mode), Transforms(_batched, _flops, _by_rows),
)  # fmt: skip
PACKED_BACKWARD = define(
    "causal_conv1d_packed_backward", arguments_of(PackedCall), tuple[Tensor, Tensor, Tensor, Tensor],
    functools.partial(_packed_backward, dispatch.convolve), _packed_backward_fake,
    autograd.running_again(
        functools.partial(_packed_backward, call), 8, lambda _: f"{_NAME}: packed sequences (cu_seqlens, seq_idx)"
    ),
    Transforms(None, _packed_backward_flops, _packed_backward_by_rows),
)  # fmt: skip
