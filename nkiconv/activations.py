"""The activations of an epilogue, each as torch.nn.functional defines it: value, slope, error, in one place.

`kernels/_epilogue.py` issues them on the device; everything else about an activation follows from its row here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Roundings, each eps32 of |act|, of exp, tanh and erfc to 4 ulp (8), and three operations for z / (1 + exp(-z)).
ROUNDINGS = 11

#: erfc of float64, element by element: NumPy has none.
_erfc: Callable[[NDArray[np.float64]], Any] = np.frompyfunc(math.erfc, 1, 1)


@dataclass(frozen=True)
class Activation:
    """One activation, act(z)."""

    #: act(z) in float64
    value: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    #: largest |slope|, rounded up: how much of an error in z it lets through
    steepest: float
    #: the slope as a tensor of torch, differentiable (torch's own backward operators are not): of z, or, `by_result`,
    #: of act(z), which need not be computed again in a backward pass
    slope: Callable[[Any], Any]
    by_result: bool = False
    #: its name in torch.nn.functional, if that is another than here, with the arguments it takes besides z
    functional: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    #: its evaluation in fp32 errs by so many eps32 of |act|, and so many eps32 more; 0 and 0: it is exact
    roundings: int = ROUNDINGS
    absolute_roundings: int = 0


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-z))


def _gelu(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """z times the normal distribution's CDF, which erfc gives to full precision in both tails."""
    return 0.5 * z * np.asarray(_erfc(z * -math.sqrt(0.5)), np.float64)


def _gelu_tanh(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """0.5 z (1 + tanh(u)) is z sigmoid(2u), which does not cancel for z < 0."""
    return z * _sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (z + 0.044715 * z * z * z))


def _silu_slope(z: Any) -> Any:
    s = z.sigmoid()
    return s * (1 + z * (1 - s))


def _gelu_slope(z: Any) -> Any:
    return (1 + (z * math.sqrt(0.5)).erf()) / 2 + z * (-z * z / 2).exp() / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(z: Any) -> Any:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    t = (scale * (z + cubic * z * z * z)).tanh()
    return (1 + t + z * (1 - t * t) * scale * (1 + 3 * cubic * z * z)) / 2


#: By the name that a call gives. gelu's slope is largest at sqrt(2), where its second derivative (2 - z^2) phi(z) is 0;
#: silu's at 2.3994, gelu_tanh's at 1.4185. gelu_tanh: v = 1.596 (z + 0.0447 z^3) takes seven roundings; an error of
#: 7 eps32 |v| changes z sigmoid(v) by at most 7 eps32 sup|z v sigmoid'(v)| = 7 * 0.2543 eps32, and not in proportion to
#: the result.
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(  # NaN stays NaN
        lambda z: np.maximum(z, 0.0), 1.0, lambda y: (y > 0).to(y.dtype), by_result=True, roundings=0
    ),
    "silu": Activation(lambda z: z / (1.0 + np.exp(-z)), 1.0999, _silu_slope),
    "gelu": Activation(_gelu, 1.1290, _gelu_slope),
    "gelu_tanh": Activation(
        _gelu_tanh, 1.1290, _gelu_tanh_slope, functional="gelu", options={"approximate": "tanh"}, absolute_roundings=2
    ),
    "tanh": Activation(lambda z: np.asarray(np.tanh(z), np.float64), 1.0, lambda y: 1 - y * y, by_result=True),
    "sigmoid": Activation(_sigmoid, 0.25, lambda y: y * (1 - y), by_result=True),
}
