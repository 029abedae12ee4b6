"""The rest of the package causal-conv1d besides causal_conv1d_fn and causal_conv1d_update, by its modules' names.

References in plain torch, states of packed sequences, and the functions below its autograd, which mamba_ssm calls from
its own fused derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import rules
from ...errors import refused
from ..computers import modes
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, raise_all
from ..operators.frames import with_state
from ..places import int_of
from .checks import activation_of, not_integers
from .functions import causal_conv1d_fn, causal_conv1d_update, like, of_one_kind
from .operator import derivatives
from .states import Call

#: Of causal-conv1d: whose arguments and results these are.
VERSION = "1.6.1"


def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """`causal_conv1d_fn` of rows, in torch alone and in weight's dtype: something to hold results against.

    Args: as in `causal_conv1d_fn`, any floating dtypes.

    Returns: y [N, C, L] of x's dtype; with return_final_states the pair of it and [N, C, width - 1].
    """
    size = weight.shape[1] - 1
    rows = with_state(x, None if initial_states is None else initial_states.to(x.dtype), size)
    y = _convolved(rows, weight, bias, activation).to(x.dtype)
    if not return_final_states:
        return y
    final = rows[..., rows.shape[2] - size :].clone()
    return y, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update_ref(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
) -> Tensor:
    """`causal_conv1d_update` in torch alone and in weight's dtype; conv_state, a row for each of x's, is moved on.

    Args: as in `causal_conv1d_update`, any floating dtypes.

    Returns: y of x's shape and dtype.
    """
    steps = x.unsqueeze(-1) if x.dim() == 2 else x
    size, length = weight.shape[1] - 1, conv_state.shape[2]
    rows = torch.arange(x.shape[0], device=x.device)
    with torch.no_grad():
        if cache_seqlens is None:
            held = torch.cat([conv_state, steps], dim=2)
            before = conv_state[..., length - size :].clone()
            conv_state.copy_(held[..., steps.shape[2] :])
        else:
            begins = cache_seqlens.long()
            places = [(begins + t).remainder(length) for t in range(-size, steps.shape[2])]
            before = steps.new_empty(*steps.shape[:2], size)
            for t in range(size):
                before[..., t] = conv_state[rows, :, places[t]]
            for t in range(steps.shape[2]):
                conv_state[rows, :, places[size + t]] = steps[..., t]
    y = _convolved(torch.cat([before, steps], dim=2), weight, bias, activation).to(x.dtype)
    return y.squeeze(-1) if x.dim() == 2 else y


def _convolved(rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """In weight's dtype, of rows that begin width - 1 columns early."""
    name = activation_of("causal_conv1d", activation)
    y = F.conv1d(rows.to(weight.dtype), weight[:, None], bias, groups=weight.shape[0])
    return y if name is None else F.silu(y)


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last inputs of each of several sequences that follow each other; without a derivative.

    Args:
        x: [total, C]. cu_seqlens: [sequences + 1], int32 or int64, rising: the k-th sequence is
            x[cu_seqlens[k] : cu_seqlens[k + 1]]. state_len: how many of its last inputs, at least 0.

    Returns: [sequences, C, state_len] of x's dtype, channels next to each other; zeros before a shorter sequence.

    Raises: DtypeError, GeometryError, LayoutError.
    """
    state_len = int_of(state_len)
    raise_all("causal_conv1d_varlen_states cannot run this call", _violations(x, cu_seqlens, state_len))
    with torch.no_grad():
        ends = cu_seqlens.to(x.device).long()
        places = ends[1:, None] + torch.arange(-state_len, 0, device=x.device)
        own = (places >= ends[:-1, None])[..., None]
        rows = x if x.shape[0] else x.new_zeros(1, x.shape[1])
        return torch.where(own, rows[places.clamp(min=0)], 0).transpose(1, 2)


def _violations(x: Tensor, cu_seqlens: Tensor, state_len: int) -> list[NkiconvError]:
    if not isinstance(x, Tensor):
        return [DtypeError(f"x: must be a torch.Tensor, not {type(x).__name__}; convert it")]
    if told := not_integers("cu_seqlens", cu_seqlens):
        return [DtypeError(told)]
    shape = tuple(cu_seqlens.shape)
    ends = "" if len(shape) == 1 and shape[0] else f"cu_seqlens.shape={shape}: must be [sequences + 1]; pass 0 and ends"
    geometry = refused(GeometryError, ends, rules.number("state_len", state_len, least=0))
    return [*refused(LayoutError, rules.rank("x", x.shape, "total, C")), *geometry]


def causal_conv1d_varlen_states_ref(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """`causal_conv1d_varlen_states`, one sequence after the other."""
    states = []
    for begin, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        last = x[max(begin, end - state_len) : end]
        states.append(torch.cat([x.new_zeros(state_len - last.shape[0], x.shape[1]), last]).T)
    return torch.stack(states) if states else x.new_zeros(0, x.shape[1], state_len)


@torch.no_grad()
def causal_conv1d_fwd_function(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    final_states_out: Tensor | None,
    silu_activation: bool,
) -> Tensor:
    """y of `causal_conv1d_fn` without a derivative; final_states_out, where given, is overwritten."""
    wanted = final_states_out is not None
    name = "silu" if silu_activation else None
    found = causal_conv1d_fn(x, weight, bias, seq_idx, initial_states, wanted, final_states_out, name)
    y: Tensor = found[0] if wanted else found
    return y


@torch.no_grad()
def causal_conv1d_bwd_function(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dout: Tensor,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    dfinal_states: Tensor | None,
    dx: Tensor | None,
    return_dinitial_states: bool,
    silu_activation: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """dL/d x, weight, bias and initial states of dL/dy (dout) and dL/d final states.

    Args: dx: [N, C, L]: dL/dx is written to it, and it is returned. The rest: as in `causal_conv1d_fn`.

    Returns: each of the dtype of its argument; None for a bias that is None, and for initial states unless
    return_dinitial_states.
    """
    rows, filters, state = of_one_kind(x, weight, initial_states)
    if return_dinitial_states and state is None:
        state = rows.new_zeros(*rows.shape[:2], weight.shape[1] - 1)
    name, strict = "silu" if silu_activation else None, modes.wants_strict_nonfinite(None)
    call = Call(rows, filters, bias, state, None, seq_idx, dfinal_states is not None, name, None, strict)
    needs = [True, True, bias is not None, return_dinitial_states]
    final = None if dfinal_states is None else dfinal_states.to(rows.dtype)
    of_x, of_w, of_bias, of_states = derivatives(call, dout.to(rows.dtype), final, needs)
    assert of_x is not None
    assert of_w is not None
    found = like(x, of_x.to(x.dtype)) if dx is None else dx.copy_(of_x)
    of_states = None if of_states is None else of_states.to(x.dtype)
    return found, of_w.to(weight.dtype), of_bias, of_states


@torch.no_grad()
def causal_conv1d_update_function(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu_activation: bool,
    cache_seqlens: Tensor | None,
    conv_state_indices: Tensor | None,
) -> Tensor:
    """`causal_conv1d_update` of x [N, C, L] without a derivative."""
    name = "silu" if silu_activation else None
    return causal_conv1d_update(x, conv_state, weight, bias, name, cache_seqlens, conv_state_indices)


_PUBLIC = {"causal_conv1d_fn": causal_conv1d_fn, "causal_conv1d_update": causal_conv1d_update}
_BELOW = {
    "causal_conv1d_fwd_function": causal_conv1d_fwd_function,
    "causal_conv1d_bwd_function": causal_conv1d_bwd_function,
    "causal_conv1d_update_function": causal_conv1d_update_function,
}
_REFERENCES = {"causal_conv1d_ref": causal_conv1d_ref, "causal_conv1d_update_ref": causal_conv1d_update_ref}
_VARLEN = {
    "causal_conv1d_varlen_states": causal_conv1d_varlen_states,
    "causal_conv1d_varlen_states_ref": causal_conv1d_varlen_states_ref,
}
#: Contents of each of the package's modules; "" is the package itself.
MODULES: dict[str, dict[str, Any]] = {
    "": {**_PUBLIC, "__version__": VERSION},
    "causal_conv1d_interface": {**_PUBLIC, **_BELOW, **_REFERENCES},
    "causal_conv1d_varlen": _VARLEN,
    "cpp_functions": _BELOW,
}
