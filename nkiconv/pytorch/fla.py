"""`causal_conv1d` and `causal_conv1d_update` with flash-linear-attention's signatures: tokens before channels.

    from nkiconv.pytorch.fla import causal_conv1d, causal_conv1d_update

Arguments have the names and meaning of `fla.modules.convolution`. States have `width` columns; the convolution reads
the last width - 1. It runs on nkiconv's depthwise kernel. Differences: no `backend`, weight is required, and a residual
is added to y after y is rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import rules
from ..errors import refuse, refused
from .causal.functions import causal_conv1d_fn
from .causal.functions import causal_conv1d_update as of_steps
from .errors import DtypeError, GeometryError, LayoutError, UnsupportedError, raise_all
from .function_modes import unscripted
from .operators.tensor_kinds import tensor_violations

__all__ = ["causal_conv1d", "causal_conv1d_update"]


@unscripted
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    activation: str | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    layer: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Causal depthwise convolution of each row.

    Args:
        x: [N, L, C]; bf16, fp16 or fp32. weight: [C, width]. bias: [C].
        residual: of x's shape and dtype, added after the activation.
        initial_state: [N, C, width], x's dtype, the inputs before each row, whose last width - 1 are read; with
            cu_seqlens [sequences, C, width].
        output_final_state: whether to return the last `width` inputs too, counting the initial state.
        activation: None, "silu" or "swish" (the same).
        cu_seqlens: [sequences + 1], int32 or int64: x is one row [1, total, C] of sequences, as in `causal_conv1d_fn`.
        layer: a name for messages.

    Returns: (y, final state). y: [N, L, C] of x's dtype. final state: like initial_state; None unless asked for. Both
    have derivatives by x, weight, bias, residual and initial_state.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = layer or "causal_conv1d"
    refuse(UnsupportedError, rules.flag("output_final_state", output_final_state))
    _check(where, x, weight, {"residual": residual, "initial_state": initial_state})
    before = None if initial_state is None else initial_state[..., 1:]
    more: dict[str, Any] = {"activation": activation, "cu_seqlens": cu_seqlens, "layout": "NWC", "layer": where}
    found: Tensor = causal_conv1d_fn(x, weight, bias, None, before, **more)
    final = _final(x.transpose(1, 2), weight.shape[1], initial_state, cu_seqlens) if output_final_state else None
    return found if residual is None else found + residual, final


@unscripted
def causal_conv1d_update(
    x: Tensor,
    cache: Tensor,
    residual: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    layer: str | None = None,
) -> tuple[Tensor, Tensor]:
    """One decode step: convolve x after the inputs in the cache, and append x to the cache.

    Args:
        x: [N, C], [N, 1, C] or [1, N, C]; bf16, fp16 or fp32.
        cache: [N, C, width], x's dtype: the last inputs. Moved on by one in place.
        residual: of x's shape and dtype, added after the activation. weight: [C, width]. bias: [C].
        activation, layer: as in `causal_conv1d`.

    Returns: (y of x's shape and dtype, cache).

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where = layer or "causal_conv1d_update"
    _check(where, x, weight, {"residual": residual}, steps=True)
    steps = x.reshape(-1, x.shape[-1])
    y = of_steps(steps, cache, weight, bias, activation, layer=where).reshape(x.shape)  # type: ignore[arg-type]
    return y if residual is None else y + residual, cache


def _check(where: str, x: Any, weight: Any, more: dict[str, Any], steps: bool = False) -> None:
    """Check the arguments under their names here, before `causal_conv1d_fn`; more: residual and initial_state by name.

    Raises: DtypeError, GeometryError, LayoutError.
    """
    more = {name: one for name, one in more.items() if one is not None}
    given = {"x": x, "weight": weight, **more}
    wrong = [error for name, one in given.items() for error in tensor_violations(name, one)]
    raise_all(f"{where} cannot run this call", wrong)
    shapes = ((2, 3), "[N, C], [N, 1, C] or [1, N, C]") if steps else ((3,), "[N, L, C]")
    if x.dim() not in shapes[0] or (steps and x.dim() == 3 and 1 not in x.shape[:2]):
        wrong.append(LayoutError(f"x.shape={tuple(x.shape)}: must be {shapes[1]}; reshape it"))
    for name, one in more.items() if weight.dim() == 2 else ():
        of_state = (*one.shape[:1], x.shape[-1], weight.shape[1]), "[N, C, width]"
        wanted, words = (tuple(x.shape), "x's") if name == "residual" else of_state
        wrong += refused(GeometryError, rules.shape(name, one.shape, wanted, words))
        wrong += refused(DtypeError, rules.same(name, "dtype", one.dtype, "x", x.dtype))
    raise_all(f"{where} cannot run this call", wrong)


def _final(rows: Tensor, width: int, initial_state: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """[N, C, width], or of sequences: the last inputs of rows [N, C, L] after their states."""
    if cu_seqlens is None:
        before = rows.new_zeros(*rows.shape[:2], width) if initial_state is None else initial_state
        whole = torch.cat([before, rows], 2)
        return whole[..., whole.shape[2] - width :].clone(memory_format=torch.contiguous_format)
    offsets = cu_seqlens.to(rows.device).long()
    numbers = torch.arange(width, device=rows.device)
    places = offsets[1:, None] - width + numbers  # of the last tokens of each sequence in the row
    own = places >= offsets[:-1, None]
    last = rows[0][:, places.clamp(min=0)].transpose(0, 1)
    if initial_state is None:
        return torch.where(own[:, None], last, 0)
    columns = (offsets[1:] - offsets[:-1])[:, None] + numbers  # of the state, moved on by as many
    kept = initial_state.gather(2, columns.clamp(max=width - 1)[:, None].expand(-1, rows.shape[1], -1))
    return torch.where(own[:, None], last, kept)
