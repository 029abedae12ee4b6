"""causal_conv1d_fn and causal_conv1d_update with the signatures of the package causal-conv1d, by nkiconv's kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import rules
from ...errors import refuse
from ...schedules.split import LAYOUTS, TAPS_MAX
from ..computers import host, modes
from ..errors import LayoutError
from ..function_modes import one_call
from .checks import activation_of, check_call, check_update
from .operator import convolve
from .ring import ConvState
from .split import causal_conv1d_split
from .states import Call


@one_call
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    layout: str = "NCW",
    layer: str | None = None,
    strict_nonfinite: bool | None = None,
) -> Any:
    """Causal depthwise convolution of each row.

        y[n, c, t] = act(bias[c] + sum over s of weight[c, s] * x[n, c, t - (width - 1) + s])

    with initial_states, or zeros, at negative positions of x.

    Args:
        x: [N, C, L] with any strides; bf16, fp16 or fp32, or all float64 where torch computes.
        weight: [C, width], width at least 1. bias: [C]. Of any of these dtypes: if one of x and weight is fp32 and the
            other is not, both are computed as fp32, which moves twice the bytes, and y has x's dtype.
        seq_idx: [N, L], int32 or int64: the sequence of each token, non-decreasing along a row. A token reads tokens of
            its own sequence only. Tokens with a negative number belong to no sequence: no token reads them, and their y
            and derivatives are 0. initial_states precede each row's first sequence, which begins with the row, and
            final states are those of its last: so a sequence may continue over pieces of a row.
        initial_states: [N, C, width - 1], x's dtype: the inputs before each row.
        return_final_states: also return the initial_states of each row's next piece.
        final_states_out: [N, C, width - 1], x's dtype: the final states are written to it, and it is returned.
        activation: None, "silu" or "swish" (the same).
        cu_seqlens: [sequences + 1], int32 or int64: x is one row [1, C, total] of sequences; sequence k has the tokens
            from cu_seqlens[k] up to cu_seqlens[k + 1]; states are then [sequences, C, width - 1].
        layout: "NCW", or "NWC" for token-major x and y, [N, L, C]; states keep their layout. Rows of 2 to 16 taps run
            as one part of `causal_conv1d_split`, without a transpose, and with its derivatives; others are transposed.
        layer: a name for messages.
        strict_nonfinite: True: NaN and Inf of x and states reach exactly the outputs that the definition gives them.
            None: as `set_strict_nonfinite` says. Packed sequences always run so.

    Returns: y of x's shape and dtype, summed in fp32 and rounded once; contiguous, or with adjacent channels if x has
    them so. With return_final_states (y, final states).

    Packed sequences (seq_idx, cu_seqlens) run in one launch, as a row with width - 1 zeros, or the initial state,
    before each sequence; `sequences` gives the reason and the cost. Sequences are independent, forward and backward,
    also for NaN and Inf. seq_idx and cu_seqlens may be on the host; their values are checked, which waits for a device
    that holds them. They have no second derivatives, no forward mode and no torch.vmap. Without them, and without
    strict_nonfinite, the kernel may spread a NaN over other channels and columns of its own row (docs/algorithms.md),
    never to other rows.

    torch.autocast does not cast its arguments.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = layer or "causal_conv1d_fn"
    act, direct = activation_of(where, activation), modes.is_torchs(x)
    refuse(LayoutError, rules.layout("layout", layout, LAYOUTS))
    tokens = layout == "NWC"
    of_rows = x.transpose(1, 2) if tokens and isinstance(x, Tensor) and x.dim() == 3 else x
    given = of_rows, weight, bias, initial_states, cu_seqlens, seq_idx, return_final_states, final_states_out
    check_call(f"{where}, of x as [N, C, L]," if tokens else where, *given, direct=direct)
    rows, filters, state = of_one_kind(of_rows, weight, initial_states)
    strict = modes.wants_strict_nonfinite(strict_nonfinite)
    whole = not direct and not strict and cu_seqlens is None and seq_idx is None and x.numel() > 0
    call = Call(rows, filters, bias, state, cu_seqlens, seq_idx, return_final_states, act, layer, strict)
    if tokens and whole and 2 <= weight.shape[1] <= TAPS_MAX:
        y, final = _of_tokens(call)
    else:
        y, final = convolve(call, direct=direct)
        y = y.transpose(1, 2).contiguous() if tokens else y
    y = host.in_dtype(y, x.dtype)
    y = y if tokens else like(x, y)
    if not return_final_states:
        return y
    final = host.in_dtype(final, x.dtype)  # type: ignore[arg-type]  # it is asked for
    return y, final if final_states_out is None else final_states_out.copy_(final)


@one_call
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    *,
    layer: str | None = None,
    strict_nonfinite: bool | None = None,
) -> Tensor:
    """One decode step, or a few: convolve x after the inputs in conv_state, and append x to it.

    Args:
        x: [N, C], or [N, C, L] for L steps; any strides.
        conv_state: [N, C, state_len], x's dtype, state_len at least width - 1: the inputs before x, the last one at the
            end. Shifted by L in place. It has no derivative; y's reach x, weight and bias.
        weight, bias, activation, layer, strict_nonfinite: as in `causal_conv1d_fn`.
        cache_seqlens: [N], int32 or int64: conv_state is a circular buffer: x is written to positions cache_seqlens,
            cache_seqlens + 1, ... modulo state_len, and the inputs before x precede these.
        conv_state_indices: [N], int32 or int64: the row of conv_state, [rows, C, state_len], for each row of x. A
            negative index marks padding: its y is 0, and no state changes. Indices on the host that are too large or
            repeated are refused, unless torch.compile, torch.jit.trace or a TorchDispatchMode is active; then torch
            refuses those that are too large.

    Returns: y of x's shape and dtype; contiguous, or with adjacent channels if x has them so.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = layer or "causal_conv1d_update"
    act, direct = activation_of(where, activation), modes.is_torchs(x)
    steps = x.unsqueeze(-1) if isinstance(x, Tensor) and x.dim() == 2 else x
    check_update(where, steps, conv_state, weight, bias, cache_seqlens, conv_state_indices, direct)
    if steps.shape[0] == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    buffer = ConvState(conv_state, cache_seqlens, conv_state_indices)
    state = buffer.before(weight.shape[1] - 1)
    if not direct and torch.is_grad_enabled():  # the derivative needs it as it was, which torch's has a copy of
        state = state.clone()
    steps, state = buffer.without_padding(steps, state)
    rows, filters, before = of_one_kind(steps, weight, state)
    fits = cache_seqlens is None and conv_state.shape[2] == weight.shape[1] - 1
    strict = modes.wants_strict_nonfinite(strict_nonfinite)
    given = Call(rows, filters, bias, before, None, None, fits, act, layer, strict)
    y, final = convolve(given, direct=direct, lent=True)
    (y,) = buffer.without_padding(host.in_dtype(y, x.dtype))
    buffer.advance(steps, host.in_dtype(final, x.dtype) if fits else None)
    return like(x, y.squeeze(-1) if x.dim() == 2 else y)


def _of_tokens(given: Call) -> tuple[Tensor, Tensor | None]:
    """y [N, L, C], and the final states if they are asked for, of rows [N, C, L] whose channels are neighbours."""
    rows, weight, bias, state, *_, final, activation, layer, _ = given
    asked: dict[str, Any] = {"splits": ((1, rows.shape[1], False),), "activation": activation, "layout": "NWC"}
    asked |= {"initial_states": state, "return_final_states": final, "layer": layer}
    found = causal_conv1d_split(rows.transpose(1, 2), weight, bias, **asked)
    (y,), last = found if final else (found, None)
    return y.squeeze(2), last


def of_one_kind(x: Tensor, weight: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """(x, weight, state), in fp32 where one of x and weight is: the kernel does not mix fp32 with others."""
    if (x.dtype == torch.float32) == (weight.dtype == torch.float32):
        return x, weight, state
    return x.float(), weight.float(), None if state is None else state.float()


def like(x: Tensor, y: Tensor) -> Tensor:
    """y, contiguous, or with channels next to each other where x has them so: callers take such views of it."""
    if y.dim() != 3 or x.stride(1) != 1 or x.is_contiguous():
        return y
    last = y.transpose(1, 2)  # as it is where one step has both orders: autograd forbids changing views of y in place
    return y if last.is_contiguous() else last.contiguous().transpose(1, 2)
