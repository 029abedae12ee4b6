"""Norms over the channels of a pixel, before or after filters: their names, and the rules of their arguments, as in
`rules`.

u * rstd * weight + bias              "rms", rstd = (mean(u^2) + eps)^-0.5
(u - mean(u)) * rstd * weight + bias  "layer", rstd = (variance(u) + eps)^-0.5
"""

from __future__ import annotations

from typing import Any

from .errors import shown
from .rules import accepted

#: Names of the norms that a kernel takes; the default eps, added to a mean square or a variance.
NORMS, NORM_EPS = ("rms", "layer"), 1e-6
#: Numbers of each output channel that a norm of sums may have, as functions and kernels call them.
OF_CHANNELS = ("y_norm_weight", "y_norm_bias")
#: The same of a norm of x.
X_CHANNELS = ("x_norm_weight", "x_norm_bias")
#: Arguments that a call may have only with a norm.
BELONG = (*OF_CHANNELS, "return_before_norm")


#: The tensor that each norm normalises.
_OF = {"x_norm": "x", "y_norm": "the result"}


def kind(value: Any, norm: str = "y_norm") -> str:
    """None, or a norm's name."""
    return accepted(norm, value, (None, *NORMS), f"use one of them, or normalize {_OF[norm]}")


def eps(value: Any, norm: str = "y_norm") -> str:
    """Check eps: it, and sums with it, must be normal and above 0 in fp32."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 2.0**-126 <= value < 2.0**100:
        return ""
    return f"{norm}_eps={shown(value)}: must be a number from 2^-126 to 2^100, normal in fp32; use {NORM_EPS}"


def belongs(name: str, given: bool, norm: Any) -> str:
    """Check that weight, bias and return_before_norm come with a norm."""
    if not given or norm is not None:
        return ""
    owner = "x_norm" if name in X_CHANNELS else "y_norm"
    return f"{name}: there is no norm that it belongs to; name {owner}, one of {NORMS}, or leave it out"
