"""The back-to-back gated convolution of StripedHyena 2 and Evo 2, and its operator, where one kernel computes it.

Elsewhere, and in derivatives, it is a causal convolution and a gated one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import b2b, rules
from ..bounds import b2b_bound
from ..errors import refused
from ..schedules.b2b import B2bGeometry, pays
from .causal.functions import causal_conv1d_fn
from .computers import agreements, host, modes
from .computers.arrays import to_numpy
from .errors import LayoutError, UnsupportedError, raise_all
from .function_modes import one_call
from .gated import gated_short_conv
from .operators.blocks import Block, define_block
from .operators.calls import own
from .operators.registrar import arguments_of
from .operators.tensor_kinds import DTYPES, tensor_violations

NAME = "b2b_causal_conv1d"


class Call(NamedTuple):
    """The arguments of the operator, which returns y and the states after, empty unless they are asked for.

    weights_mixer: [D, S], the skip in it.
    """

    x: Tensor
    weights_proj: Tensor
    weights_mixer: Tensor
    x_state: Tensor | None
    gated_state: Tensor | None
    return_final_states: bool
    layer: str | None


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
    before = initial_states or (None, None)
    call = Call(x, weights_proj, filters, before[0], before[1], last, where)
    taps = weights_proj.shape[1], filters.shape[1]
    one = pays(B2bGeometry(x.shape[0], filters.shape[0], x.shape[2], *taps, x.dtype.itemsize))
    y, *after = map(own, OPERATOR(*call)) if one and not modes.is_torchs(x) else _in_two(call)
    return (y, tuple(after)) if last else y


def _in_two(given: Call) -> tuple[Tensor, Tensor, Tensor]:
    """(y, states after) by two operators."""
    last, layer = given.return_final_states, given.layer
    more: dict[str, Any] = {"return_final_states": last, "layer": layer}
    first = causal_conv1d_fn(given.x, given.weights_proj, initial_states=given.x_state, **more)
    rows, of_x = first if last else (first, None)
    found = gated_short_conv(rows, given.weights_mixer, None, given.gated_state, order=b2b.CHUNKS, **more)
    y, of_gated = found if last else (found, None)
    empty = _states(given, False)
    return y, empty[0] if of_x is None else of_x, empty[1] if of_gated is None else of_gated


def _states(given: Call, last: bool) -> tuple[Tensor, Tensor]:
    """Of the right shapes, without numbers."""
    x, proj, mixer = given[:3]
    each = (x.shape[1], proj.shape[1]), (mixer.shape[0], mixer.shape[1])
    of_x, of_gated = (x.new_empty(x.shape[0], channels, taps - 1 if last else 0) for channels, taps in each)
    return of_x, of_gated


def _compared(given: Call, found: Sequence[Tensor]) -> Sequence[Tensor]:
    arrays: list[Any] = [None if one is None else to_numpy(one) for one in given[:5]]
    x, proj, mixer, *before = arrays
    truth, limit = b2b_bound(x, proj, mixer, np.zeros(len(mixer)), DTYPES[given.x.dtype], before)
    agreements.require_within(found[0].double().numpy(), truth, limit, given.x, given.layer)
    return _in_two(given)


def _by_kernel(given: Call, backend: Any) -> Sequence[Tensor]:
    from ..kernels.blocks.b2b_causal_conv1d import b2b_causal_conv1d_fused

    named = {name: one for name in ("x_state", "gated_state") if (one := getattr(given, name)) is not None}
    if not given.return_final_states:
        return backend.launch(b2b_causal_conv1d_fused, *given[:3], **named), *_states(given, False)
    found: Sequence[Tensor] = backend.launch(b2b_causal_conv1d_fused, *given[:3], **named, return_final_states=True)
    return found


def _made(given: Call) -> Sequence[Tensor]:
    x = given.x
    return x.new_empty(x.shape[0], given.weights_mixer.shape[0], x.shape[2]), *_states(given, given.return_final_states)


def _flops(x: Sequence[int], proj: Sequence[int], mixer: Sequence[int], *_: Any, out_shape: Any) -> int:
    return 2 * x[0] * x[2] * (math.prod(proj) + math.prod(mixer))


OPERATOR = define_block(
    Block(
        NAME, arguments_of(Call), Call, tuple[Tensor, Tensor, Tensor], lambda _: None, _made, _in_two, _by_kernel,
        _compared, _in_two, _flops, rows=lambda _: (0, 3, 4),
    )
)  # fmt: skip
