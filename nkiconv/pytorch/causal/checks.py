"""Checks of the arguments of causal_conv1d_fn and causal_conv1d_update, by name and before any work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ... import rules
from ...errors import refused, shown
from ..computers import modes
from ..computers.passed import once
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all
from ..operators.tensor_kinds import are_positive, float64_violations, tensor_violations

#: Activations by their names there, and by ours.
ACTIVATIONS = {None: None, "silu": "silu", "swish": "silu"}
#: Arguments that may not be left out.
_NEEDED = ("x", "weight", "conv_state", "conv_states")
#: Dtypes of numbers of tokens, sequences and rows.
INTEGERS = (torch.int32, torch.int64)


@once
def check_call(
    where: str, x: Any, weight: Any, bias: Any, initial_states: Any, cu_seqlens: Any, seq_idx: Any,
    return_final_states: bool, final_states_out: Any = None,
) -> None:  # fmt: skip
    """Refuse arguments of causal_conv1d_fn that do not go together, naming all violated rules.

    Raises: DtypeError, GeometryError, LayoutError, UnsupportedError.
    """
    summary = f"{where} cannot run this call"
    states = {"initial_states": initial_states, "final_states_out": final_states_out}
    given = {"x": x, "weight": weight, "bias": bias, **states}
    numbers = {"cu_seqlens": cu_seqlens, "seq_idx": seq_idx}
    flag = rules.flag("return_final_states", return_final_states)
    raise_all(summary, [*kinds(given, numbers), *refused(UnsupportedError, flag)])
    raise_all(summary, [*shapes(x, weight, bias), *_excluded(numbers, states, return_final_states)])
    raise_all(summary, [*_sequences(x, cu_seqlens, seq_idx), *_states(x, weight, states, cu_seqlens)])


def check_update(
    where: str, x: Any, conv_state: Any, weight: Any, bias: Any, cache_seqlens: Any, conv_state_indices: Any,
    direct: bool = False,
) -> None:  # fmt: skip
    """The same for causal_conv1d_update; x: [N, C, L]; direct: as `once` has it."""
    _check_update(where, x, conv_state, weight, bias, cache_seqlens, conv_state_indices, direct=direct)
    if conv_state_indices is not None and has_values(conv_state_indices):
        raise_all(f"{where} cannot run this call", list(_rows(conv_state_indices, conv_state)))


@once
def _check_update(
    where: str, x: Any, conv_state: Any, weight: Any, bias: Any, cache_seqlens: Any, conv_state_indices: Any
) -> None:
    summary = f"{where} cannot run this call"
    numbers = {"cache_seqlens": cache_seqlens, "conv_state_indices": conv_state_indices}
    raise_all(summary, list(kinds({"x": x, "weight": weight, "bias": bias, "conv_state": conv_state}, numbers)))
    raise_all(summary, list(shapes(x, weight, bias)))
    raise_all(summary, [*_buffer(x, conv_state, weight, conv_state_indices), *of_each(numbers, x.shape[0], "N")])


def activation_of(where: str, activation: Any) -> str | None:
    """Our name of an activation. Raises UnsupportedError."""
    if not (activation is None or isinstance(activation, str)) or activation not in ACTIVATIONS:
        raise UnsupportedError(
            f"activation={shown(activation)}: {where} accepts None, 'silu' and 'swish'; apply others to the result"
        )
    return ACTIVATIONS[activation]


def kinds(given: dict[str, Any], numbers: dict[str, Any]) -> Iterator[NkiconvError]:
    """Errors of kinds, dtypes and devices."""
    given = {name: one for name, one in given.items() if one is not None or name in _NEEDED}
    numbers = {name: one for name, one in numbers.items() if one is not None}
    wrong = [error for name, tensor in given.items() for error in tensor_violations(name, tensor)]
    yield from wrong
    for name, tensor in given.items() if not wrong else ():
        yield from float64_violations(name, tensor, given["x"], "x")
    for name, tensor in numbers.items():
        if told := not_integers(name, tensor):
            yield DtypeError(told)
        elif tensor.layout != torch.strided:
            yield LayoutError(f"{name}.layout={tensor.layout}: accepted is torch.strided; call .to_dense()")
    if wrong or not all(isinstance(one, torch.Tensor) for one in numbers.values()):
        return
    device = given["x"].device
    for name, tensor in {**given, **numbers}.items():
        if tensor.device != device and not (name in numbers and tensor.device.type == "cpu"):
            where = f"{device}{', or cpu' * (name in numbers)}"
            yield UnsupportedError(f"{name}.device={tensor.device}: must be that of x, {where}; move one of them")


def not_integers(name: str, one: Any) -> str:
    """Why this is no tensor of integers, or ""."""
    if not isinstance(one, torch.Tensor):
        return f"{name}: must be a torch.Tensor, not {type(one).__name__}; convert it"
    return "" if one.dtype in INTEGERS else f"{name}.dtype={one.dtype}: must be torch.int32 or torch.int64; cast it"


def shapes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Iterator[NkiconvError]:
    """Errors of the arguments that both functions take."""
    yield from refused(LayoutError, rules.rank("x", x.shape, "N, C, L"))
    if x.dim() == 3 and not are_positive(x.shape[1:]):
        yield GeometryError(f"x.shape={tuple(x.shape)}: C and L must be at least 1; only N may be 0")
    if weight.dim() != 2:
        remedy = "call .squeeze(1) on filters [C, 1, width]" if weight.dim() == 3 else "reshape it"
        yield LayoutError(f"weight.shape={tuple(weight.shape)}: must have 2 axes, [C, width]; {remedy}")
        return
    if weight.shape[1] < 1:
        yield GeometryError(f"weight.shape={tuple(weight.shape)}: width must be at least 1; pass such filters")
    if x.dim() == 3 and weight.shape[0] != x.shape[1]:
        yield GeometryError(
            f"weight.shape={tuple(weight.shape)}: must be [C, width] for x's C={x.shape[1]} channels; pass one for each"
        )
    if bias is not None:
        yield from refused(GeometryError, rules.shape("bias", bias.shape, weight.shape[:1], "[C]"))


def _excluded(numbers: dict[str, Any], states: dict[str, Any], return_final_states: bool) -> Iterator[NkiconvError]:
    """Errors of arguments that exclude or need each other."""
    if numbers["seq_idx"] is not None and numbers["cu_seqlens"] is not None:
        yield UnsupportedError("seq_idx: given together with cu_seqlens, which says the same; pass one of them")
    if states["final_states_out"] is not None and not return_final_states:
        yield UnsupportedError("final_states_out: is written with return_final_states=True only; pass that too")


def _sequences(
    x: torch.Tensor, cu_seqlens: torch.Tensor | None, seq_idx: torch.Tensor | None
) -> Iterator[NkiconvError]:
    """Errors of the shapes of cu_seqlens and seq_idx; `sequences` checks their values."""
    if seq_idx is not None:
        yield from refused(GeometryError, rules.shape("seq_idx", seq_idx.shape, (x.shape[0], x.shape[2]), "[N, L]"))
    if cu_seqlens is not None:
        yield from refused(GeometryError, bounds("cu_seqlens", cu_seqlens))
        rows = (
            f"x.shape={tuple(x.shape)}: with cu_seqlens all sequences are in one row, [1, C, total]; concatenate rows"
        )
        yield from refused(GeometryError, rows if x.shape[0] != 1 else "")


def bounds(name: str, starts: torch.Tensor) -> str:
    """Where one sequence or more begin, and their end."""
    if starts.dim() == 1 and starts.shape[0] >= 2:
        return ""
    return f"{name}.shape={tuple(starts.shape)}: must be [sequences + 1], 2 or more; pass 0 and their ends"


def cumulated(name: str, starts: torch.Tensor, tokens: int, whole: bool = True) -> str:
    """int64 numbers of tokens before each sequence, and of all of them: as many as x has, or, unless `whole`, fewer."""
    rises, end = bool((starts[1:] >= starts[:-1]).all()), int(starts[-1])
    if int(starts[0]) == 0 and rises and (end == tokens or (end < tokens and not whole)):
        return ""
    return (
        f"{name}={shown(starts[:13].tolist())}: must begin with 0, never fall, and end {'' if whole else 'at most '}"
        f"with x's {tokens} tokens; pass the cumulated lengths of the sequences"
    )


def _states(
    x: torch.Tensor, weight: torch.Tensor, states: dict[str, Any], cu_seqlens: torch.Tensor | None
) -> Iterator[NkiconvError]:
    """Errors of states."""
    rows, letter = (x.shape[0], "N") if cu_seqlens is None else (cu_seqlens.numel() - 1, "sequences")
    wanted = (rows, x.shape[1], weight.shape[1] - 1)
    for name, state in states.items():
        if state is None:
            continue
        words = f"[{letter}, C, width - 1]"
        yield from refused(GeometryError, rules.shape(name, state.shape, wanted, words))
        if torch.float64 not in (state.dtype, x.dtype):
            yield from refused(DtypeError, rules.same(name, "dtype", state.dtype, "x", x.dtype))


def _buffer(
    x: torch.Tensor, conv_state: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor | None
) -> Iterator[NkiconvError]:
    """Errors of causal_conv1d_update's buffer."""
    letters = f"{'N' if indices is None else 'rows'}, C, state_len"
    shape = tuple(conv_state.shape)
    if len(shape) == 3 and ((indices is None and shape[0] != x.shape[0]) or shape[1] != x.shape[1]):
        yield GeometryError(
            f"conv_state.shape={shape}: must be [{letters}] for x.shape={tuple(x.shape)}; pass a row for each of x's, "
            f"or conv_state_indices"
        )
    yield from overwritten("conv_state", conv_state, x, letters, weight.shape[1] - 1)


def overwritten(
    name: str, states: torch.Tensor, x: torch.Tensor, letters: str, columns: int, why: str = "width - 1"
) -> Iterator[NkiconvError]:
    """Errors of states that a call overwrites, with such axes; columns: that it needs, and why so many."""
    yield from refused(LayoutError, rules.rank(name, states.shape, letters))
    if states.dim() == 3 and states.shape[2] < columns:
        shape = tuple(states.shape)
        yield GeometryError(f"{name}.shape={shape}: state_len must be at least {why} = {columns}; pass a longer one")
    yield from refused(DtypeError, rules.same(name, "dtype", states.dtype, "x", x.dtype))
    if states.requires_grad and torch.is_grad_enabled():
        yield UnsupportedError(
            f"{name}.requires_grad=True: it is overwritten, and has no derivative; pass {name}.detach(), or use "
            f"nkiconv.pytorch.causal_conv1d_fn with initial_states"
        )


def of_each(numbers: dict[str, Any], count: int, letter: str) -> Iterator[NkiconvError]:
    """Errors of tensors without a number for each row or sequence."""
    for name, one in numbers.items():
        if isinstance(one, torch.Tensor):
            yield from refused(GeometryError, rules.shape(name, one.shape, (count,), f"[{letter}]"))


def has_values(tensor: torch.Tensor) -> bool:
    """Whether numbers can be read without waiting for a device, and without a tracer that does not tell them."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and not modes.is_recorded()


def _rows(indices: torch.Tensor, conv_state: torch.Tensor) -> Iterator[NkiconvError]:
    """Errors of the numbers in conv_state_indices."""
    used = indices[indices >= 0]
    if used.numel() and int(used.max()) >= conv_state.shape[0]:
        yield GeometryError(
            f"conv_state_indices={indices.tolist()}: must be below conv_state's {conv_state.shape[0]} rows, or "
            f"negative for rows of x that are padding"
        )
    if bool((used.sort().values.diff() == 0).any()):
        yield GeometryError(
            f"conv_state_indices={indices.tolist()}: must name each row of conv_state once; both would write it"
        )
