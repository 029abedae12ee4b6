"""`causal_conv1d_split` on tensors, and its operator: the convolution stage of Gated DeltaNet, KDA and Mamba2.

The operator takes a `SplitCall` with flat splits, and returns parts, final states, and those after positions. The
forward keeps only its arguments; the backward pass computes z = act(conv(x)) again, by `causal_conv1d`, and the norm by
torch, from z rounded to x's dtype.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import norms, rules
from ...bounds import epilogue_bound, l2norm_bound
from ...errors import refused
from ...schedules.split import (
    LAYOUTS,
    Split,
    channels_unsupported,
    positions_unsupported,
    sequences_unsupported,
    splits_unsupported,
    taps_unsupported,
)
from ..computers import agreements, host, modes
from ..errors import ComparisonError, DtypeError, GeometryError, LayoutError, UnsupportedError, raise_all
from ..function_modes import one_call
from ..operators.blocks import Block, define_block
from ..operators.called import SPLIT, Called, SplitCall
from ..operators.calls import own
from ..operators.frames import last_of, with_state
from ..operators.registrar import arguments_of
from ..operators.tensor_kinds import DTYPES
from ..places import int_of, number_of
from . import operator, states
from .checks import check_update, kinds, shapes
from .ring import ConvState
from .states import Call

#: dtypes of tensors of places.
_INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@one_call
def causal_conv1d_split(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    splits: Sequence[Split],
    activation: str | None = "silu",
    eps: float = 1e-6,
    layout: str = "NCW",
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    state_positions: Sequence[int] | Tensor | None = None,
    first_channel: int | None = None,
    layer: str | None = None,
) -> Any:
    """Causal depthwise convolution, activation (SiLU), split of the channels into parts of heads, l2norm.

    Args:
        x: [N, C, L], or token-major [N, L, C] with layout="NWC"; bf16, fp16 or fp32, or all float64 where torch
            computes.
        weight: [C, width], width at most 16. bias: [C]. fp32 if x is; otherwise bf16 or fp16.
        splits: ((heads, dim, normalised), ...) in order of the channels; each head v of a normalised part, dim 2 to
            512, becomes v / sqrt(sum of v^2 + eps), as in fla's l2norm.
        activation: None or a name of `nkiconv.rules.ACTIVATIONS`. eps: added to the sum of squares.
        layout: "NCW" or "NWC".
        initial_states: [N, C, width - 1], x's dtype: the inputs before each row; None is zeros.
        return_final_states: also return the initial_states of each row's next piece.
        cu_seqlens: x is one row of sequences; sequence k has the tokens from cu_seqlens[k] up to cu_seqlens[k + 1];
            states are then [sequences, C, width - 1]. Ints, or a tensor, which is read: each value compiles a kernel,
            and a tensor breaks the graph of torch.compile.
        state_positions: also return the state after each of these numbers of tokens, 1 to L, for prefix caches. Ints,
            or a tensor, as for cu_seqlens.
        first_channel: None, or the place of the first of x's channels that are convolved, as many as weight has: x may
            be a whole projection, as of Mamba2.
        layer: a name for messages.

    Returns: parts, a tuple of [N, L, heads, dim] of x's dtype, summed and normalised in fp32, rounded once. With
    return_final_states and state_positions a tuple: parts, the final states if asked for, the states [N, positions, C,
    width - 1] if asked for. It has first and second derivatives in reverse mode.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = _as_ints(cu_seqlens), _as_ints(state_positions), int_of(first_channel)
    parts, eps = as_tuples(splits), number_of(eps)
    given = SplitCall(
        x, weight, bias, initial_states, parts, activation, eps, layout, return_final_states, *where, layer
    )
    _check(given)
    if modes.is_torchs(x):
        found = _on_host(given)
    else:
        flat: Any = [int(number) for part in parts for number in part]
        made = CAUSAL_CONV1D_SPLIT(*given._replace(splits=flat))
        found = tuple(map(own, made))
    count = len(parts)
    return (found[:count], *found[count:]) if found[count:] else found


@one_call
def causal_conv1d_split_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    splits: Sequence[Split],
    activation: str | None = "silu",
    eps: float = 1e-6,
    conv_state_indices: Tensor | None = None,
    layer: str | None = None,
) -> tuple[Tensor, ...]:
    """A decode step of `causal_conv1d_split`, or a few tokens: convolve x after conv_state, and append x to it.

    Args:
        x: [N, C], or [N, C, L] for L tokens.
        conv_state: [N, C, state_len], x's dtype, state_len at least width - 1: the inputs before x, the last one at the
            end. Shifted by L in place. It has no derivative.
        weight, bias, splits, activation, eps, layer: as in `causal_conv1d_split`; width at least 2.
        conv_state_indices: [N], int32 or int64: the row of conv_state, [rows, C, state_len], for each row of x, without
            repeats. A negative index marks padding: its parts are 0, and no state changes.

    Returns: parts, a tuple of [N, heads, dim], or [N, L, heads, dim] for x [N, C, L], of x's dtype.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = layer or "causal_conv1d_split_update"
    steps = x.unsqueeze(-1) if isinstance(x, Tensor) and x.dim() == 2 else x
    check_update(where, steps, conv_state, weight, bias, None, conv_state_indices, modes.is_torchs(x))
    if weight.shape[1] == 1:
        raise GeometryError("weight: one tap needs no state; use causal_conv1d_split")
    buffer = ConvState(conv_state, None, conv_state_indices)
    state = buffer.before(weight.shape[1] - 1).clone()  # the derivative needs it as it was
    tokens, state = buffer.without_padding(steps, state)
    found: tuple[Tensor, ...] = causal_conv1d_split(
        tokens, weight, bias, splits=splits, activation=activation, eps=eps, initial_states=state, layer=where
    )
    found = buffer.without_padding(*found)
    if x.shape[0] > 0:
        with torch.no_grad():
            buffer.advance(steps.detach(), None)
    return tuple(one.squeeze(1) for one in found) if x.dim() == 2 else found


def _as_ints(given: Any) -> Any:
    """The values of a sequence or a tensor as a tuple; others, and tensors without integers to read, unchanged."""
    readable = isinstance(given, Tensor) and given.dtype in _INTS and given.layout == torch.strided
    listed = given.tolist() if readable and not (given.is_meta or given.is_nested) else given
    is_listed = isinstance(listed, (Sequence, torch.Size)) and not isinstance(listed, str)
    return int_of(tuple(listed)) if is_listed else listed


def as_tuples(splits: Any) -> Any:
    """Splits as tuples of ints where they are lists, or of other numbers."""
    if not isinstance(splits, (list, tuple)):
        return splits
    return int_of(tuple(tuple(one) if isinstance(one, list) else one for one in splits))


def _check(given: SplitCall) -> None:
    """Refuse arguments that do not go together, naming all violated rules."""
    x, weight, bias, initial, layout = given.x, given.weight, given.bias, given.initial_states, given.layout
    summary = f"{given.where} cannot run this call"
    tensors = {"x": x, "weight": weight, "bias": bias, "initial_states": initial}
    wrong: list[Any] = [*kinds(tensors, {}), *refused(LayoutError, rules.layout("layout", layout, LAYOUTS))]
    wrong += refused(UnsupportedError, rules.activation(given.activation), norms.eps(given.eps))
    wrong += refused(UnsupportedError, rules.flag("return_final_states", given.return_final_states))
    raise_all(summary, wrong)
    raise_all(summary, list(refused(LayoutError, rules.rank("x", x.shape, ", ".join(layout).replace("W", "L")))))
    if given.first_channel is not None:
        raise_all(summary, list(refused(LayoutError, rules.rank("weight", weight.shape, "C, width"))))
    told = channels_unsupported(given.first_channel, weight.shape[:1].numel(), x.shape[layout.index("C")])
    raise_all(summary, list(refused(GeometryError, told)))
    rows = given.rows
    raise_all(summary, list(shapes(rows, weight, bias)))
    (N, _, L), numbered = rows.shape, (given.cu_seqlens, given.state_positions)
    places = sequences_unsupported(numbered[0], N, L), positions_unsupported(numbered[1], L)
    raise_all(summary, list(refused(GeometryError, *places)))
    raise_all(summary, list(_related(given, rows)))


def _related(given: SplitCall, rows: Tensor) -> Iterator[Any]:
    x, weight, initial = given.x, given.weight, given.initial_states
    C, width = rows.shape[1], weight.shape[1]
    yield from refused(DtypeError, "" if x.dtype == torch.float64 else rules.dtypes_together(x.dtype, weight.dtype))
    yield from refused(GeometryError, splits_unsupported(given.splits, C))
    yield from refused(UnsupportedError, taps_unsupported(width))
    if width == 1 and (initial is not None or given.return_final_states or given.state_positions is not None):
        yield GeometryError(
            "weight: one tap needs no state; leave out initial_states, return_final_states and state_positions"
        )
    if initial is not None:
        wanted, words = (given.num_states, C, width - 1), "[N, C, width - 1], or of N sequences"
        yield from refused(GeometryError, rules.shape("initial_states", initial.shape, wanted, words))
        yield from refused(DtypeError, rules.same("initial_states", "dtype", initial.dtype, "x", x.dtype))


def _normalised(z: Tensor, splits: Sequence[Split], eps: float) -> list[Tensor]:
    """Parts [N, L, heads, dim] of z [N, C, L]."""
    found, first = [], 0
    for heads, dim, normalised in splits:
        part = z[:, first : first + heads * dim].transpose(1, 2)
        part = part.reshape(*part.shape[:2], heads, dim)
        found.append(part * torch.rsqrt((part * part).sum(-1, keepdim=True) + eps) if normalised else part)
        first += heads * dim
    return found


def _torch_convolved(given: SplitCall) -> tuple[Tensor, Tensor | None]:
    """(z [N, C, L], final states or None) by torch in every mode."""
    rows, initial, cu_seqlens = given.rows, given.initial_states, given.cu_seqlens
    size, first = given.weight.shape[1] - 1, 0
    asked = states.on_hosts(given.weight.shape[0], 0, given.activation, given.layer)
    ends = (rows.shape[2],) if cu_seqlens is None else cu_seqlens[1:]
    found, last = [], []
    for number, end in enumerate(ends):
        before = initial if initial is None or cu_seqlens is None else initial[number : number + 1]
        piece = with_state(rows[..., first:end], before, size)
        if end > first:
            found.append(host.convolve(Called(asked, piece, given.weight[:, None], given.bias)))
        if given.return_final_states:
            last.append(last_of(piece, size))
        first = end
    return torch.cat(found, 2), torch.cat(last) if given.return_final_states else None


def _states_after(given: SplitCall) -> list[Tensor]:
    """[N, positions, C, width - 1] if asked for: the inputs before each position, in the preceding token's sequence."""
    if not given.state_positions:
        return []
    rows, initial, size = given.rows, given.initial_states, given.weight.shape[1] - 1
    starts, found = (0,) if given.cu_seqlens is None else given.cu_seqlens, []
    for position in given.state_positions:
        number = bisect_left(starts, position) - 1
        before = initial if initial is None or given.cu_seqlens is None else initial[number : number + 1]
        found.append(last_of(with_state(rows[..., starts[number] : position], before, size), size))
    return [torch.stack(found, 1)]


def _on_host(given: SplitCall) -> tuple[Tensor, ...]:
    """Parts, and states, by torch, in fp32, or float64 where x is, and rounded once."""
    wide, dtype = given.mapped(host.wide), given.x.dtype
    z, last = _torch_convolved(wide)
    parts = [host.in_dtype(part, dtype).contiguous() for part in _normalised(z, given.splits, given.eps)]
    kept = ([] if last is None else [last]) + _states_after(wide)
    return *parts, *(host.in_dtype(one, dtype) for one in kept)


_ARGUMENTS = arguments_of(SplitCall) | {"splits": Sequence[int]}
_ARGUMENTS |= {"cu_seqlens": Sequence[int] | None, "state_positions": Sequence[int] | None}


def _of_own_memory(given: SplitCall) -> list[Tensor]:
    """`_on_host` without parts that share memory, as those of one token of one image do; no tensor says here, below
    autograd, that it is a view."""
    return [one.clone() if one.untyped_storage().nbytes() > one.nbytes else one for one in _on_host(given)]


def called(*args: Any) -> SplitCall:
    """The call of the operator with these arguments, whose splits are flat numbers."""
    given: Any = SplitCall(*args)
    flat, places = given.splits, (given.cu_seqlens, given.state_positions)
    parts = tuple((h, d, bool(n)) for h, d, n in zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    cu_seqlens, positions = (None if one is None else tuple(one) for one in places)
    return SplitCall(*given._replace(splits=parts, cu_seqlens=cu_seqlens, state_positions=positions))


def _compared(given: SplitCall, found: Sequence[Tensor]) -> Sequence[Tensor]:
    """torch's results, if the kernel's parts are within their bounds of float64's, its states alike. Raises
    ComparisonError."""
    x, splits, eps, activation = given.x, given.splits, given.eps, given.activation
    wide = given.mapped(Tensor.double)
    plain = wide._replace(bias=None, activation=None)
    with torch.no_grad():
        sums, last = _torch_convolved(plain)
        magnitude, _ = _torch_convolved(plain.mapped(Tensor.abs))
    kind, added = DTYPES[x.dtype], wide.bias
    bias = None if added is None else added.numpy()
    limits = (
        torch.from_numpy(epilogue_bound(given.weight.shape[1], magnitude.numpy(), sums.numpy(), one, bias, activation))
        for one in ("fp32", kind)
    )
    z = sums if added is None else sums + added[:, None]
    z = z if activation is None else host.activate(z, activation)
    bare = [(heads, dim, False) for heads, dim, _ in splits]
    each = zip(splits, found, *(_normalised(one, bare, eps) for one in (z, *limits)), strict=False)
    for (_, _, normalised), part, own_z, own_wide, own_rounded in each:
        (truth,) = _normalised(own_z.flatten(2).transpose(1, 2), [(*own_z.shape[2:], normalised)], eps)
        limit = l2norm_bound(own_z.numpy(), own_wide.numpy(), eps, kind) if normalised else own_rounded.numpy()
        agreements.require_within(part.double().numpy(), truth.numpy(), limit, x, given.where)
    kept = ([] if last is None else [last]) + _states_after(wide)
    if not all(torch.equal(one, right.to(x.dtype)) for one, right in zip(found[len(splits) :], kept, strict=True)):
        raise ComparisonError(f"{given.where}: the kernel's states are not the last inputs; report it with x")
    return _of_own_memory(given)


def _made(given: SplitCall) -> list[Tensor]:
    """Results without values."""
    x, size = given.x, (given.weight.shape[0], given.weight.shape[1] - 1)
    N, L = x.shape[0], x.shape[given.layout.index("W")]
    found = [x.new_empty(N, L, heads, dim) for heads, dim, _ in given.splits]
    if given.return_final_states:
        found.append(x.new_empty(given.num_states, *size))
    if given.state_positions is not None:
        found.append(x.new_empty(N, len(given.state_positions), *size))
    return found


def _again(given: SplitCall) -> list[Tensor]:
    """The results, by operators that autograd knows."""
    offsets = None if given.cu_seqlens is None else torch.tensor(given.cu_seqlens)
    final, tensors = given.return_final_states, (given.rows, *given[1:4], offsets, None)
    z, last = operator.convolve(Call(*tensors, final, given.activation, given.where))
    parts = _normalised(host.wide(z), given.splits, given.eps)
    outputs = [host.in_dtype(one, given.x.dtype) for one in parts]
    return outputs + [last] * final + _states_after(given)


def _flops(x: Any, weight: Any, *rest: Any, out_shape: Any) -> int:
    return states.flops(x[0], x[rest[5].index("W")], weight)


CAUSAL_CONV1D_SPLIT = define_block(
    Block(
        SPLIT, _ARGUMENTS, called, list[Tensor], _check, _made, _of_own_memory,
        lambda given, backend: backend.causal_conv1d_split(given),
        _compared, _again, _flops, rows=lambda given: (0, 3) if given.cu_seqlens is None else (),
    )
)  # fmt: skip
