"""`depthwise_conv1d` of token-major rows, [N, W, C]: one part of `causal_conv1d_split`, which needs no transposes."""

from __future__ import annotations

from typing import Any

from .. import rules
from ..errors import LayoutError, NkiconvError, UnsupportedError, raise_all, refuse, refused, shown
from ..schedules.split import LAYOUTS, TAPS_MAX
from .calls import shape_of
from .causal_conv1d_split import causal_conv1d_split

#: Arguments that a call must leave at their default.
_LEFT: dict[str, Any] = {
    **dict.fromkeys(("stride", "dilation", "lhs_dilation"), 1),
    **dict.fromkeys(("residual", "out_dtype", "algorithm", "config", "x_scale", "x_shift", "x_activation")),
    **dict.fromkeys(("strict_nonfinite", "flipped"), False),
}
_INSTEAD = "use layout='NCW', or conv1d of this layout with groups"


def convolved_tokens(
    x: Any,
    w: Any,
    *,
    layout: Any,
    padding: Any,
    activation: Any,
    return_final_state: Any,
    residual_position: Any,
    chunks: Any,
    **more: Any,
) -> Any:
    """y, and the state if asked for; arguments and errors are those of `depthwise_conv1d`."""
    refuse(LayoutError, rules.layout("layout", layout, LAYOUTS), rules.residual_position(residual_position))
    wrong: list[NkiconvError] = [
        UnsupportedError(f"layout={layout!r}, {name}={shown(more[name])}: must be {value!r}; {_INSTEAD}")
        for name, value in _LEFT.items()
        if type(more[name]) is not type(value) or more[name] != value
    ]
    if not isinstance(padding, str) or padding != "causal":
        wrong.append(UnsupportedError(f"layout={layout!r}, padding={padding!r}: must be 'causal'; {_INSTEAD}"))
    of_x, of_w = shape_of(x) or (0,), shape_of(w)
    if len(of_w) == 2 and of_w[1] > TAPS_MAX:
        wrong.append(UnsupportedError(f"layout={layout!r}, S={of_w[1]}: must be at most {TAPS_MAX} taps; {_INSTEAD}"))
    wrong += refused(LayoutError, rules.chunks(chunks))
    raise_all("depthwise_conv1d cannot run this call", wrong)
    asked = {name: value for name, value in more.items() if name not in _LEFT}
    found = causal_conv1d_split(
        x,
        w,
        splits=((1, max(1, of_x[-1] // len(chunks or "x")), False),),
        activation=activation,
        layout=layout,
        chunks=chunks,
        return_final_state=return_final_state,
        **asked,
    )
    parts, *states = found if return_final_state else (found,)
    return (parts[0][:, :, 0], *states) if states else parts[0][:, :, 0]
