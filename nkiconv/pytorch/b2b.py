"""The back-to-back gated convolution of StripedHyena 2 and Evo 2, and its operator, where one kernel computes it:

    nkiconv::b2b_causal_conv1d(x, weights_proj, weights_mixer, x_state, gated_state, return_final_states, layer)
        -> (y, and the states after, which are empty unless they are asked for)

weights_mixer is [D, S], the skip in it. Elsewhere, and in derivatives, it is a causal convolution and a gated one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import b2b, rules
from ..bounds import b2b_bound
from ..errors import refused
from ..schedules.b2b import B2bGeometry, pays
from .causal.functions import causal_conv1d_fn
from .causal.split import require_within
from .computers import host, modes
from .computers.arrays import from_numpy, to_numpy
from .errors import LayoutError, UnsupportedError, as_torchs, raise_all
from .function_modes import one_call
from .functional import refuse_script
from .gated import gated_short_conv
from .operators import autograd, sharding
from .operators.calls import batched_images, own
from .operators.registrar import define
from .operators.tensor_kinds import DTYPES, tensor_violations

NAME = "b2b_causal_conv1d"
#: Places of its tensors that have rows each: x and the states in front.
ROWS = (0, 3, 4)


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
    call = (x, weights_proj, filters, *(initial_states or (None, None)), last, where)
    taps = weights_proj.shape[1], filters.shape[1]
    one = pays(B2bGeometry(x.shape[0], filters.shape[0], x.shape[2], *taps, x.dtype.itemsize))
    y, *after = map(own, OPERATOR(*call)) if one and not modes.is_torchs(x) else _in_two(*call)
    return (y, tuple(after)) if last else y


def _in_two(
    x: Tensor, proj: Tensor, mixer: Tensor, of_x: Tensor | None, of_gated: Tensor | None, last: bool, layer: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, states after) by two operators."""
    first = causal_conv1d_fn(x, proj, initial_states=of_x, return_final_states=last, layer=layer)
    rows, of_x = first if last else (first, None)
    found: Any = gated_short_conv(rows, mixer, None, of_gated, order=b2b.CHUNKS, return_final_states=last, layer=layer)
    y, of_gated = found if last else (found, None)
    empty = _states(x, proj, mixer, False)
    return y, empty[0] if of_x is None else of_x, empty[1] if of_gated is None else of_gated


def _states(x: Tensor, proj: Tensor, mixer: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """Of the right shapes, without numbers."""
    each = (x.shape[1], proj.shape[1]), (mixer.shape[0], mixer.shape[1])
    of_x, of_gated = (x.new_empty(x.shape[0], channels, taps - 1 if last else 0) for channels, taps in each)
    return of_x, of_gated


def _forward(
    x: Tensor,
    proj: Tensor,
    mixer: Tensor,
    of_x: Tensor | None,
    of_gated: Tensor | None,
    last: bool,
    layer: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    who, given = modes.computer(x), (x, proj, mixer, of_x, of_gated)
    if who == "torch":
        return _in_two(*given, last, layer)
    with as_torchs():
        if who == "device":
            found = _on_device(given, last)
        else:
            from ..api.b2b import fused

            arrays: list[Any] = [None if one is None else to_numpy(one) for one in given]
            found = [from_numpy(one) for one in fused(tuple(arrays[:3]), arrays[3:], last)]
            if who == "compare":
                skip = np.zeros(len(mixer))
                truth, limit = b2b_bound(arrays[0], arrays[1], arrays[2], skip, DTYPES[x.dtype], arrays[3:])
                require_within(found[0].double().numpy(), truth, limit, x, layer)
                return _in_two(*given, last, layer)
    of_x, of_gated = found[1:] or _states(x, proj, mixer, False)
    return found[0], of_x, of_gated


def _on_device(given: Sequence[Tensor | None], last: bool) -> Sequence[Tensor]:
    from ..kernels.blocks.b2b_causal_conv1d import b2b_causal_conv1d_fused
    from .computers.device import cores, launched

    x, proj, mixer, *before = (None if one is None else one.contiguous() for one in given)
    named = {name: one for name, one in zip(("x_state", "gated_state"), before, strict=True) if one is not None}
    more: dict[str, Any] = {"return_final_states": True} if last else {}
    found = launched(b2b_causal_conv1d_fused, cores())(x, proj, mixer, **named, **more)
    return tuple(found) if last else (found,)


def _fake(x: Tensor, proj: Tensor, mixer: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (x.new_empty(x.shape[0], mixer.shape[0], x.shape[2]), *_states(x, proj, mixer, rest[2]))


def _batched(info: Any, in_dims: Any, *args: Any) -> Any:
    return batched_images(OPERATOR, info.batch_size, in_dims[:5], args, ROWS)


def _flops(x: Sequence[int], proj: Sequence[int], mixer: Sequence[int], *_: Any, out_shape: Any) -> int:
    return 2 * x[0] * x[2] * (math.prod(proj) + math.prod(mixer))


OPERATOR = define(
    NAME,
    _forward,
    _fake,
    autograd.running_again(_in_two, 5, NAME),
    _batched,
    _flops,
    lambda *_: (ROWS, [sharding.SHARDED] * 3),
)

vars(b2b_causal_conv1d)["__prepare_scriptable__"] = refuse_script
