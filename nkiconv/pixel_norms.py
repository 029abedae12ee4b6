"""Norms over the output channels of a pixel: their names, and what their arguments must be, as `rules` has it.

u * rstd * weight + bias              "rms", rstd = (mean(u^2) + eps)^-0.5
(u - mean(u)) * rstd * weight + bias  "layer", rstd = (variance(u) + eps)^-0.5
"""

from __future__ import annotations

from typing import Any

from .errors import shown
from .rules import accepted

#: Names of the norms that a kernel takes; what is added to a mean square or a variance if nothing else is said.
NORMS, NORM_EPS = ("rms", "layer"), 1e-6
#: Numbers of each output channel that a norm may have, as functions and kernels call them.
OF_CHANNELS = ("y_norm_weight", "y_norm_bias")
#: What a call may have only with a norm.
BELONG = (*OF_CHANNELS, "return_before_norm")


def kind(value: Any) -> str:
    """None, or a norm's name."""
    return accepted("y_norm", value, (None, *NORMS), "use one of them, or normalize the result")


def eps(value: Any) -> str:
    """What is added to a mean square or a variance: a number that is normal and above 0 in fp32."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 2.0**-126 <= value < 2.0**128:
        return ""
    return f"y_norm_eps={shown(value)}: must be a number from 2^-126 to 2^128, normal in fp32; use {NORM_EPS}"


def belongs(name: str, given: bool, norm: Any) -> str:
    """A norm's weight, its bias and what comes before it go with a norm."""
    if not given or norm is not None:
        return ""
    return f"{name}: there is no norm that it belongs to; name y_norm, one of {NORMS}, or leave it out"
