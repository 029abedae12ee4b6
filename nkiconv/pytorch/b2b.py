"""The back-to-back gated convolution of StripedHyena 2 and Evo 2, of the operators of causal and gated convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import b2b, rules
from ..errors import refused
from .causal.functions import causal_conv1d_fn
from .computers import host
from .errors import LayoutError, UnsupportedError, raise_all
from .function_modes import one_call
from .functional import refuse_script
from .gated import gated_short_conv
from .operators.tensor_kinds import tensor_violations


@one_call
def b2b_causal_conv1d(
    x: Tensor,
    weights_proj: Tensor,
    weights_mixer: Tensor,
    skip_bias: Tensor | None = None,
    *,
    interleaved: bool,
    initial_states: tuple[Tensor, Tensor] | None = None,
    return_final_states: bool = False,
    layer: str | None = None,
) -> Any:
    """The short and medium convolutions of StripedHyena 2 and Evo 2; as `nkiconv.b2b_causal_conv1d`, differentiable.

    Args:
        x: [N, 3 * D, W], chunks x2, x1, v of D channels; bf16, fp16 or fp32, and float64 where torch computes. The
            others have x's dtype.
        weights_proj: [3 * D, S]. weights_mixer: [D, S], or [G, S], each for D / G channels in a row. S at least 2.
        skip_bias: [D]; is added to the last tap of weights_mixer in fp32, which is rounded once to x's dtype.
        interleaved: must be False; cuDNN and subquadratic_ops have x2, x1, v of a channel as neighbours, True.
        initial_states: the last S - 1 elements before these, of x, [N, 3 * D, S - 1], and of x1 * v, [N, D, S - 1].
        return_final_states: also return the next initial_states. A step of one token is W = 1 with them.
        layer: a name for messages.

    Returns: [N, D, W] of x's dtype; with return_final_states the pair of it and the states.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    where, last = layer or "b2b_causal_conv1d", return_final_states
    cannot = f"{where} cannot run this call"
    wrong = [
        *refused(LayoutError, b2b.interleaved_violation(interleaved), b2b.states_violation(initial_states)),
        *refused(UnsupportedError, rules.flag("return_final_states", last)),
    ]
    raise_all(cannot, wrong)
    given = {"x": x, "weights_proj": weights_proj, "weights_mixer": weights_mixer}
    if skip_bias is not None:
        given["skip_bias"] = skip_bias
    given |= dict(zip(b2b.STATES, initial_states or (), strict=False))
    raise_all(cannot, [error for name, one in given.items() for error in tensor_violations(name, one)])
    raise_all(cannot, [*b2b.violations(given)])

    filters = weights_mixer.repeat_interleave(x.shape[1] // 3 // weights_mixer.shape[0], 0)
    if skip_bias is not None:
        tap = host.in_dtype(host.wide(filters[:, -1]) + host.wide(skip_bias), x.dtype)
        filters = torch.cat([filters[:, :-1], tap[:, None]], 1)
    of_x, of_gated = initial_states or (None, None)
    first = causal_conv1d_fn(x, weights_proj, initial_states=of_x, return_final_states=last, layer=where)
    rows, of_x = first if last else (first, None)
    found = gated_short_conv(rows, filters, None, of_gated, order=b2b.CHUNKS, return_final_states=last, layer=where)
    return (found[0], (of_x, found[1])) if last else found


vars(b2b_causal_conv1d)["__prepare_scriptable__"] = refuse_script
