"""Checks of the arguments of `nkiconv.pytorch.serving`, by name and before any work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ... import rules
from ...errors import refuse, refused, shown
from ..errors import DtypeError, GeometryError, KindError, LayoutError, NkiconvError, UnsupportedError, raise_all
from .checks import INTEGERS, activation_of, bounds, cumulated, has_values, kinds, of_each, overwritten, shapes

#: The slot of a sequence that is padding, unless a call says another.
PAD_SLOT_ID = -1
_BLOCKS = (
    "block_idx_first_scheduled_token", "block_idx_last_scheduled_token", "initial_state_idx", "num_computed_tokens"
)  # fmt: skip


def flag_of(where: str, activation: Any) -> str | None:
    """Our name of an activation, True for silu. Raises UnsupportedError."""
    if isinstance(activation, bool):
        return "silu" if activation else None
    return activation_of(where, activation)


def check_fn(
    where: str, x: Any, weight: Any, bias: Any, conv_states: Any, query_start_loc: Any, cache_indices: Any,
    has_initial_state: Any, blocks: tuple[Any, ...], block_size: Any, pad_slot_id: Any,
) -> None:  # fmt: skip
    """Refuse arguments of causal_conv1d_fn that do not go together, naming all violated rules.

    blocks: in the order of _BLOCKS. Raises: DtypeError, GeometryError, LayoutError, UnsupportedError.
    """
    summary = f"{where} cannot run this call"
    named = dict(zip(_BLOCKS, blocks, strict=True))
    numbers = {"query_start_loc": query_start_loc, "cache_indices": cache_indices, **named}
    given = {"x": x, "weight": weight, "bias": bias, "conv_states": conv_states}
    begins = "query_start_loc=None: must be a torch.Tensor, [sequences + 1]; pass where sequences begin"
    wrong = [*kinds(given, numbers), *refused(DtypeError, begins * (query_start_loc is None)), *_pad(pad_slot_id)]
    raise_all(summary, wrong)
    refuse(LayoutError, rules.rank("x", x.shape, "C, tokens"))
    raise_all(summary, list(shapes(x[None], weight, bias)))
    raise_all(summary, [*_offsets(query_start_loc, x.shape[1], whole=True), *_missing(named, block_size)])
    count, several = query_start_loc.shape[0] - 1, blocks[0] is not None
    raise_all(
        summary,
        [
            *_slots("conv_states", conv_states, x, x.shape[0], weight.shape[1] - 1),
            *_indices("cache_indices", cache_indices, count, conv_states.shape[0], several),
            *of_each({**named, "has_initial_state": has_initial_state}, count, "sequences"),
            *_flags(has_initial_state),
        ],
    )
    raise_all(summary, list(_named_once("cache_indices", cache_indices, conv_states, pad_slot_id, blocks[1:3])))


def check_update(
    where: str, x: Any, conv_state: Any, weight: Any, bias: Any, conv_state_indices: Any, num_accepted_tokens: Any,
    query_start_loc: Any, max_query_len: Any, blocks: tuple[Any, ...], pad_slot_id: Any,
) -> int:  # fmt: skip
    """The same for causal_conv1d_update; the tokens of the longest sequence. blocks: the last, and the initial one."""
    summary = f"{where} cannot run this call"
    named = dict(zip(_BLOCKS[1:3], blocks, strict=True))
    numbers = {"conv_state_indices": conv_state_indices, "num_accepted_tokens": num_accepted_tokens, **named}
    numbers["query_start_loc"] = query_start_loc
    given = {"x": x, "weight": weight, "bias": bias, "conv_state": conv_state}
    is_int = isinstance(max_query_len, (int, torch.SymInt)) and not isinstance(max_query_len, bool)
    told = f"max_query_len={shown(max_query_len)}: must be an int; pass the longest sequence's tokens, or -1"
    raise_all(summary, [*kinds(given, numbers), *_pad(pad_slot_id), *refused(KindError, "" if is_int else told)])
    packed = query_start_loc is not None
    letters = "[tokens, C] with query_start_loc" if packed else "[sequences, C] or [sequences, C, L]"
    if x.dim() not in ((2,) if packed else (2, 3)):
        raise_all(summary, [LayoutError(f"x.shape={tuple(x.shape)}: must be {letters}; reshape it")])
    raise_all(summary, list(shapes(x if x.dim() == 3 else x.unsqueeze(-1), weight, bias)))
    offsets = _offsets(query_start_loc, x.shape[0], whole=False) if packed else ()
    raise_all(summary, [*offsets, *_missing(named, 1)])
    count = query_start_loc.shape[0] - 1 if packed else x.shape[0]
    longest = _longest(summary, query_start_loc, max_query_len) if packed else (x.shape[2] if x.dim() == 3 else 1)
    size = weight.shape[1] - 1
    columns = size if num_accepted_tokens is None or size == 0 else max(size, size - 1 + longest)
    raise_all(
        summary,
        [
            *_slots("conv_state", conv_state, x, x.shape[1], columns, size),
            *_indices("conv_state_indices", conv_state_indices, count, conv_state.shape[0], blocks[0] is not None),
            *of_each({"num_accepted_tokens": num_accepted_tokens, **named}, count, "sequences"),
        ],
    )
    indices = conv_state_indices
    raise_all(summary, list(_named_once("conv_state_indices", indices, conv_state, pad_slot_id, blocks)))
    if size > 0:  # one tap has no state to take back
        raise_all(summary, list(_accepted(num_accepted_tokens, indices, pad_slot_id, conv_state.shape[2] - size + 1)))
    return longest


def _pad(pad_slot_id: Any) -> Iterator[NkiconvError]:
    if pad_slot_id is not None and type(pad_slot_id) is not int:
        yield KindError(f"pad_slot_id={shown(pad_slot_id)}: must be an int or None; pass the number of padding's slot")


def _offsets(starts: Tensor, tokens: int, whole: bool) -> Iterator[NkiconvError]:
    """Errors of query_start_loc; whole: whether it ends with the tokens."""
    told = bounds("query_start_loc", starts)
    if not told and has_values(starts):
        told = cumulated("query_start_loc", starts.long(), tokens, whole)
    yield from refused(GeometryError, told)


def _longest(summary: str, starts: Tensor, max_query_len: int) -> int:
    """Tokens of the longest sequence. Raises GeometryError, UnsupportedError."""
    if max_query_len >= 0:
        most = int(starts.diff().max()) if has_values(starts) else 0
        if most > max_query_len:
            raise GeometryError(
                f"max_query_len={max_query_len}: query_start_loc={starts.tolist()} has a sequence of {most} tokens; "
                f"pass the tokens of the longest, or -1"
            )
        return max_query_len
    if torch.compiler.is_compiling():
        raise UnsupportedError(
            f"{summary}: max_query_len={max_query_len}: torch.compile cannot read it in query_start_loc; pass it"
        )
    return int(starts.diff().max())


def _missing(named: dict[str, Any], block_size: Any) -> Iterator[NkiconvError]:
    """Errors of arguments of blocks: all must be given, or none."""
    given = [name for name, one in named.items() if one is not None]
    if given and len(given) < len(named):
        others = ", ".join(name for name in named if name not in given)
        yield UnsupportedError(f"{', '.join(given)}: given without {others}; pass all of them, or none")
    if given and (type(block_size) is not int or block_size < 1):
        yield KindError(f"block_size_to_align={shown(block_size)}: must be an int of at least 1 with blocks; pass it")


def _slots(
    name: str, states: Tensor, x: Tensor, channels: int, columns: int, size: int | None = None
) -> Iterator[NkiconvError]:
    """Errors of the cache; columns: that it needs, more than a state's `size` where tokens are kept."""
    shape = tuple(states.shape)
    if len(shape) == 3 and (shape[1] != channels or shape[0] < 1):
        yield GeometryError(f"{name}.shape={shape}: must be [slots, C, state_len] for C={channels}; pass such a cache")
    why = "width - 1" if size in (None, columns) else "width - 2 + the longest sequence's tokens"
    yield from overwritten(name, states, x, "slots, C, state_len", columns, why)


def _indices(name: str, indices: Tensor | None, count: int, slots: int, several: bool) -> Iterator[NkiconvError]:
    """Errors of the shape of slots' numbers; several: whether each sequence has blocks."""
    if indices is None:
        if several:
            yield UnsupportedError(f"{name}=None: blocks of a sequence are numbered by it; pass [sequences, blocks]")
        elif slots < count:
            yield GeometryError(f"{name}=None: {count} sequences have {slots} slots; pass it, or as many slots")
        return
    shape = tuple(indices.shape)
    if several and (indices.dim() != 2 or shape[0] != count or shape[1] < 1):
        yield GeometryError(f"{name}.shape={shape}: must be [sequences, blocks], {count} of them; pass such numbers")
    if not several:
        yield from refused(GeometryError, rules.shape(name, shape, (count,), "[sequences]"))


def _flags(has_initial_state: Any) -> Iterator[NkiconvError]:
    if has_initial_state is None:
        return
    if not isinstance(has_initial_state, Tensor) or has_initial_state.dtype not in (torch.bool, *INTEGERS):
        told = getattr(has_initial_state, "dtype", type(has_initial_state).__name__)
        yield DtypeError(f"has_initial_state: must be a torch.Tensor of torch.bool, not {told}; cast it")


def _named_once(
    name: str, indices: Tensor | None, states: Tensor, pad_slot_id: int | None, blocks: tuple[Any, ...]
) -> Iterator[NkiconvError]:
    """Errors of slot numbers and of block numbers (written, read), if their values are readable.

    Sequences may share the slot that they read, as shared prefixes do, but not the one that they write.
    """
    numbers = [one for one in blocks if one is not None]
    if indices is None or not all(map(has_values, (indices, *numbers))):
        return
    table = indices.long().reshape(indices.shape[0], -1)
    for one in numbers:
        if bool(((one < 0) | (one >= table.shape[1])).any()):
            yield GeometryError(f"{name}: blocks {one.tolist()} are not all among its {table.shape[1]}; pass such")
            return
    used = [table.gather(1, one.long()[:, None])[:, 0] for one in numbers] if numbers else [table[:, 0]]
    idle = used[-1] == pad_slot_id if pad_slot_id is not None else torch.zeros(len(table), dtype=torch.bool)
    for place, one in enumerate(used):
        own = one[~idle]
        if bool(((own < 0) | (own >= states.shape[0])).any()):
            yield GeometryError(
                f"{name}={indices.tolist()}: must be from 0 to below the cache's {states.shape[0]} slots, or "
                f"pad_slot_id={pad_slot_id} for padding; pass such numbers"
            )
        elif place == 0 and bool((own.sort().values.diff() == 0).any()):
            yield GeometryError(f"{name}={indices.tolist()}: must name each slot once; two sequences would write it")


def _accepted(
    accepted: Tensor | None, indices: Tensor | None, pad_slot_id: int | None, most: int
) -> Iterator[NkiconvError]:
    """Errors of the numbers of accepted tokens of sequences that are no padding."""
    if accepted is None or not has_values(accepted) or (indices is not None and not has_values(indices)):
        return
    own = accepted
    if indices is not None and pad_slot_id is not None:
        own = accepted[indices.reshape(indices.shape[0], -1)[:, 0] != pad_slot_id]
    if bool(((own < 1) | (own > most)).any()):
        yield GeometryError(
            f"num_accepted_tokens={accepted.tolist()}: must be from 1, the token of a step, to the {most} that the "
            f"cache can hold; pass such numbers"
        )
