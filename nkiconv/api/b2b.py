"""The back-to-back gated convolution of StripedHyena 2 and Evo 2: one launch, or two of `depthwise_conv1d`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import b2b, rules
from ..errors import LayoutError, UnsupportedError, raise_all, refused
from ..integers import takes_ints
from ..kernels.blocks.b2b_causal_conv1d import b2b_causal_conv1d_fused
from ..reference import AnyArray
from ..rules import KERNEL_DTYPES
from ..schedules.b2b import B2bGeometry, pays
from .calls import launch, one_array
from .depthwise_conv1d import depthwise_conv1d
from .gated import gated_short_conv


@takes_ints
def b2b_causal_conv1d(
    x: AnyArray,
    weights_proj: AnyArray,
    weights_mixer: AnyArray,
    skip_bias: AnyArray | None = None,
    *,
    interleaved: bool,
    initial_states: tuple[AnyArray, AnyArray] | None = None,
    return_final_states: bool = False,
    lnc: int = 2,
) -> Any:
    """The short and medium convolutions of StripedHyena 2 and Evo 2 (hyena-se, hyena-mr), with cuDNN's arguments.

        x2, x1, v = chunks of causal(x, weights_proj)
        y = x2 * (causal(x1 * v, weights_mixer) + skip_bias * x1 * v)

    One kernel of bf16 or fp16 x with few taps and many tokens, where it takes less time; else two: the projection
    filters, and a convolution with both gates in it, which reads x2, x1 and v once more.

    Args:
        x: [N, 3 * D, W], chunks x2, x1, v of D channels; bf16 (ml_dtypes), fp16 or fp32. The others have x's dtype.
        weights_proj: [3 * D, S], S at least 2.
        weights_mixer: [D, S], or [G, S], each for D / G channels in a row; S at least 2.
        skip_bias: [D]; is added to the last tap of weights_mixer in fp32, which is rounded once to x's dtype.
        interleaved: must be False; cuDNN and subquadratic_ops have x2, x1, v of a channel as neighbours, True.
        initial_states: the last S - 1 elements before these, of x, [N, 3 * D, S - 1], and of x1 * v, [N, D, S - 1].
        return_final_states: also return the next initial_states. A step of one token is W = 1 with them.
        lnc: cores that share the work, 1 or 2.

    Returns: [N, D, W]; with return_final_states the pair of it and the states, all of x's dtype. x1 * v is rounded to
        x's dtype, and so are x2, x1 and v between two kernels; sums and the product with x2 are fp32, rounded once. NaN
        and Inf as in `gated_short_conv`.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    given = _checked(locals())
    filters = np.repeat(weights_mixer, x.shape[1] // 3 // len(weights_mixer), axis=0)
    if skip_bias is not None:
        filters[:, -1] = filters[:, -1].astype(np.float32) + skip_bias.astype(np.float32)
    before = [given.get(name) for name in b2b.STATES]
    taps = weights_proj.shape[1], filters.shape[1]
    if pays(B2bGeometry(x.shape[0], len(filters), x.shape[2], *taps, x.dtype.itemsize)):
        kwargs = {name: one for name, one in zip(("x_state", "gated_state"), before, strict=True) if one is not None}
        kwargs |= {"return_final_states": True} if return_final_states else {}
        y = launch(b2b_causal_conv1d_fused, (x, weights_proj, filters), kwargs, lnc, False).y
        return (y[0], tuple(y[1:])) if return_final_states else y
    more: dict[str, Any] = {"return_final_state": return_final_states, "lnc": lnc}
    first = depthwise_conv1d(x, weights_proj, padding="causal", initial_state=before[0], **more)
    rows, of_x = first if return_final_states else (first, None)
    second = gated_short_conv(rows, filters, order=b2b.CHUNKS, initial_state=before[1], **more)
    return (second[0], (of_x, second[1])) if return_final_states else second


def _checked(call: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a call by name, all checked."""
    cannot, states = "b2b_causal_conv1d cannot run this call", call["initial_states"]
    wrong = [
        *refused(LayoutError, b2b.interleaved_violation(call["interleaved"]), b2b.states_violation(states)),
        *refused(
            UnsupportedError, rules.lnc(call["lnc"]), rules.flag("return_final_states", call["return_final_states"])
        ),
    ]
    raise_all(cannot, wrong)
    given = {name: call[name] for name in b2b.AXES if name != "skip_bias" or call[name] is not None}
    given |= dict(zip(b2b.STATES, states or (), strict=False))
    letters = b2b.AXES | dict.fromkeys(b2b.STATES, "N, C, S - 1")
    empty = {"x": "N"} | dict.fromkeys(b2b.STATES, "N")
    wrong = [
        e
        for name, one in given.items()
        for e in one_array(name, one, letters[name], KERNEL_DTYPES, empty.get(name, ""))
    ]
    raise_all(cannot, wrong)
    raise_all(cannot, [*b2b.violations(given)])
    return given
