"""`causal_conv1d_fn` and `causal_conv1d_update` with vLLM's signatures: states in the slots of a cache.

    from nkiconv.pytorch.serving import causal_conv1d_fn, causal_conv1d_update

Arguments have the names, order and meaning of `vllm.model_executor.layers.mamba.ops.causal_conv1d`. The convolution is
nkiconv's depthwise kernel, one launch a call; torch's indexing reads states from their slots and writes them back.
States begin at a slot's first column, as in vLLM (in `nkiconv.pytorch.causal_conv1d_update` they end at its last).

Differences from vLLM: y is a new tensor and x does not change; y is 0 for sequences without a slot and for tokens of no
sequence, where vLLM's is undefined; x and states have one dtype; sequences of different lengths need no
num_accepted_tokens; y has derivatives by x, weight and bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .causal import cache
from .causal.cache_checks import PAD_SLOT_ID, check_fn, check_update, flag_of
from .causal.functions import like, of_one_kind
from .causal.operator import convolve
from .causal.states import Call
from .computers import modes
from .function_modes import unscripted
from .places import int_of

__all__ = ["PAD_SLOT_ID", "causal_conv1d_fn", "causal_conv1d_update"]


@unscripted
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int | None = PAD_SLOT_ID,
    block_idx_first_scheduled_token: Tensor | None = None,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    num_computed_tokens: Tensor | None = None,
    block_size_to_align: int = 0,
    metadata: Any = None,
    validate_data: bool = False,
    *,
    layer: str | None = None,
) -> Tensor:
    """Convolve the tokens of several sequences, each after the state in its slot, and move the states on.

    Args:
        x: [C, tokens], sequences one after the other; bf16, fp16 or fp32.
        weight: [C, width]. bias: [C].
        conv_states: [slots, C, state_len], x's dtype, state_len at least width - 1; columns 0 to width - 2 of a slot
            are the state, the inputs before the next token. Changed in place.
        query_start_loc: [sequences + 1], int32 or int64, rising from 0 to the tokens of x: where sequences begin.
        cache_indices: [sequences], int32 or int64: the slot of each; None: 0, 1, ... With blocks [sequences, blocks].
        has_initial_state: [sequences], bool: whether the slot has a state; where not, zeros are in front. None: none.
        activation: None, "silu" or "swish", which is the same; True is "silu", False None.
        pad_slot_id: the number in cache_indices of a sequence that is padding: its y is 0, no state changes. None: no
            sequence is. A sequence without tokens changes no state either.
        block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx, num_computed_tokens,
        block_size_to_align: of prefix caching, all or none. [sequences], int32 or int64, and an int. A sequence has had
            num_computed_tokens; its state is in slot cache_indices[initial_state_idx], the state after its last token
            goes to slot cache_indices[block_idx_last_scheduled_token], and those after the last tokens of the blocks
            of block_size_to_align before, which end in x, to the slots from
            cache_indices[block_idx_first_scheduled_token] on.
        metadata, validate_data: of vLLM's launches; nothing depends on them, all arguments are checked.
        layer: a name for messages.

    Returns: y [C, tokens] of x's dtype, summed in fp32.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work. Numbers
    are checked where they are on the host and torch.compile is not at work.
    """
    where = layer or "causal_conv1d_fn"
    act = flag_of(where, activation)
    pad_slot_id, block_size_to_align = int_of(pad_slot_id), int_of(block_size_to_align)
    blocks = (block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx, num_computed_tokens)
    check_fn(
        where, x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, blocks,
        block_size_to_align, pad_slot_id,
    )  # fmt: skip
    size = weight.shape[1] - 1
    first, last, initial, computed = blocks
    slots = cache.Slots(conv_states, query_start_loc, cache_indices, pad_slot_id, initial)
    before = slots.states(size)
    if has_initial_state is None:
        before = torch.zeros_like(before)
    else:
        given = has_initial_state.to(x.device, torch.bool) & ~slots.idle
        before = torch.where(given[:, None, None], before, 0)
    tokens = torch.where(slots.padding_of(x.shape[1]), 0, x)  # values of padding must not reach y, nor gradients
    rows, filters, state = of_one_kind(tokens[None], weight, before)
    strict = modes.wants_strict_nonfinite(None)
    y, final = convolve(Call(rows, filters, bias, state, query_start_loc, None, True, act, layer, strict))
    y = torch.where(slots.padding_of(x.shape[1]), 0, y[0].to(x.dtype))
    with torch.no_grad():
        if first is not None and last is not None and computed is not None:
            positions, rows_of = slots.ends_of_blocks(block_size_to_align, first, last, computed)
            slots.write(slots.states_at(positions, x.detach(), before), rows_of)
        slots.write(final.detach().to(x.dtype)[:, None], slots.rows(last)[:, None])
    return y


@unscripted
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int = -1,
    pad_slot_id: int | None = PAD_SLOT_ID,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    validate_data: bool = False,
    *,
    layer: str | None = None,
) -> Tensor:
    """A decode step, or a step of several draft tokens: convolve x after the state in each slot, and update the states.

    Args:
        x: [sequences, C], or [sequences, C, L] for L tokens; with query_start_loc [tokens, C]. bf16, fp16 or fp32.
        conv_state: [slots, C, state_len], x's dtype; columns 0 to width - 2 of a slot are the state; with
            num_accepted_tokens it begins later. Changed in place.
        weight, bias, activation, pad_slot_id, validate_data, layer: as in `causal_conv1d_fn`.
        conv_state_indices: [sequences], int32 or int64: the slot of each; None: 0, 1, ... With blocks [sequences,
            blocks].
        num_accepted_tokens: [sequences], int32 or int64, at least 1: how many tokens of the call before are accepted.
            The state then begins at column num_accepted_tokens - 1, which drops the rejected tokens; all of x is
            written after it, so state_len is at least width - 2 + L. 1 after a prefill.
        query_start_loc: [sequences + 1], int32 or int64: where sequences begin in x; later entries are ignored.
        max_query_len: tokens of the longest sequence with query_start_loc; -1 reads it from query_start_loc, which
            waits for its device and is not possible under torch.compile.
        block_idx_last_scheduled_token, initial_state_idx: both or none, [sequences], int32 or int64: the state is in
            slot conv_state_indices[initial_state_idx] and goes to slot
            conv_state_indices[block_idx_last_scheduled_token].

    Returns: y of x's shape and dtype, summed in fp32; 0 for sequences without a slot.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work. Values
    of index tensors are checked if they are on the host and torch.compile does not trace.
    """
    where = layer or "causal_conv1d_update"
    act = flag_of(where, activation)
    pad_slot_id, max_query_len = int_of(pad_slot_id), int_of(max_query_len)
    blocks = block_idx_last_scheduled_token, initial_state_idx
    longest = check_update(
        where, x, conv_state, weight, bias, conv_state_indices, num_accepted_tokens, query_start_loc, max_query_len,
        blocks, pad_slot_id,
    )  # fmt: skip
    if x.shape[0] == 0 or longest == 0:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    size = weight.shape[1] - 1
    steps = x.unsqueeze(-1) if x.dim() == 2 and query_start_loc is None else x
    slots = cache.Slots(conv_state, query_start_loc, conv_state_indices, pad_slot_id, initial_state_idx, steps.shape[0])
    if query_start_loc is not None:
        steps = slots.padded(x, longest)
    kept = None if num_accepted_tokens is None else num_accepted_tokens.to(x.device).long() - 1
    before = torch.where(slots.idle[:, None, None], 0, slots.states(size, kept))
    steps = torch.where(slots.idle[:, None, None], 0, steps)
    rows, filters, state = of_one_kind(steps, weight, before)
    strict = modes.wants_strict_nonfinite(None)
    y, _ = convolve(Call(rows, filters, bias, state, None, None, False, act, layer, strict))
    y = torch.where(slots.idle[:, None, None], 0, y.to(x.dtype))
    with torch.no_grad():
        slots.advance(torch.cat([before, steps], 2).detach(), size, longest, kept is not None, blocks[0])
    if query_start_loc is not None:
        return slots.unpadded(y, x.shape[0])
    return like(x, y.squeeze(-1) if x.dim() == 2 else y)
