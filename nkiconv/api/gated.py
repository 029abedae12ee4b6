"""Gated depthwise convolutions of rows, as models have them: `depthwise_conv1d` with chunks of x's channels by name."""

from __future__ import annotations

from typing import Any

from .. import rules
from ..chunks import ORDERS
from ..errors import LayoutError, refuse
from ..integers import takes_ints
from ..planner.request import Config
from ..reference import AnyArray
from ..schedules.split import LAYOUTS
from .calls import shape_of
from .depthwise_conv1d import depthwise_conv1d


@takes_ints
def gated_short_conv(
    bcx: AnyArray,
    w: AnyArray,
    *,
    order: str = "BCx",
    layout: str = "NCW",
    bias: AnyArray | None = None,
    initial_state: AnyArray | None = None,
    return_final_state: bool = False,
    out_dtype: Any = None,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """The convolution of LFM2's short convolution blocks, between its two projections: y = C * (causal(B * x) + bias).

    One kernel reads B, C and x once and writes y once. A step of one token is W = 1 with the states.

    Args:
        bcx: [N, 3 * D, W], chunks of D channels in `order`, as a projection gives them; bf16 (ml_dtypes), fp16 or fp32.
        w: [D, S]; as in `depthwise_conv1d`.
        order: of the chunks: "BCx" as transformers' Lfm2ShortConv has them, or another.
        layout: "NCW", or "NWC": bcx and y are token-major, [N, W, 3 * D] and [N, W, D], as projections give and take
            them, and nothing is transposed; at most 16 taps, out_dtype, algorithm and config None. One token, W = 1, is
            the same memory in both layouts and runs as "NCW".
        bias: [D]. initial_state: [N, D, S - 1], bcx's dtype, the last S - 1 elements of B * x before these, as
            transformers' cache has them (whose S columns are one more, the oldest); None: zeros.
        return_final_state: also return the next initial_state.
        out_dtype: of y; None: bcx's. lnc, algorithm, config: as in `depthwise_conv1d`.

    Returns: [N, D, W], or [N, W, D]; with return_final_state the pair of it and [N, D, S - 1], bcx's dtype. B * x is
        rounded once to bcx's dtype; sums, bias and the product with C are fp32, rounded once. NaN or Inf in B or x may
        reach other channels and tokens of its tile, at most 128 outputs for each that the definition spoils, but with
        algorithm="vector"; in C it reaches its own element alone.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    more = {name: value for name, value in locals().items() if name not in ("bcx", "order", "layout")}
    refuse(LayoutError, rules.accepted("order", order, ORDERS), rules.layout("layout", layout, LAYOUTS))
    is_token = layout == "NWC" and len(shape_of(bcx)) == 3 and bcx.shape[1] == 1
    x = bcx.swapaxes(1, 2) if is_token else bcx
    found = depthwise_conv1d(x, **more, layout="NCW" if is_token else layout, chunks=order, padding="causal")
    if not is_token:
        return found
    return (found[0].swapaxes(1, 2), found[1]) if return_final_state else found.swapaxes(1, 2)


@takes_ints
def glu_conv1d(
    x: AnyArray,
    w: AnyArray,
    *,
    bias: AnyArray | None = None,
    activation: str | None = "silu",
    padding: Any = "same",
    initial_state: AnyArray | None = None,
    return_final_state: bool = False,
    out_dtype: Any = None,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """The middle of a Conformer's convolution module: y = act(conv(a * sigmoid(b)) + bias), a and b the halves of x.

    Equals ``act(conv1d(glu(x, dim=1), w[:, None], bias, groups=D, padding=...))`` of torch; a BatchNorm after the
    convolution is folded into w and bias by the caller. One kernel reads x once and writes y once.

    Args:
        x: [N, 2 * D, W]; bf16 (ml_dtypes), fp16 or fp32. w: [D, S]; as in `depthwise_conv1d`.
        bias: [D]. activation: None or a name of `nkiconv.rules.ACTIVATIONS`.
        padding: as in `depthwise_conv1d`; zeros in front of the GLU's result.
        initial_state: [N, D, S - 1], x's dtype: the GLU's last results before these, with padding="causal".
        return_final_state: also return the next initial_state.
        out_dtype: of y; None: x's. lnc, algorithm, config: as in `depthwise_conv1d`.

    Returns: [N, D, Q]; with return_final_state the pair of it and [N, D, S - 1], x's dtype. The sigmoid is fp32, the
        GLU's result rounded once to x's dtype, as torch's is. NaN or Inf that the GLU gives reaches other channels as
        of `gated_short_conv`; Inf in b alone gives none, its sigmoid is 0 or 1.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return depthwise_conv1d(**locals(), chunks="xG")
