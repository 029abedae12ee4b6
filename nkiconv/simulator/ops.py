"""The operators of `nki.language` that instructions take as ``op``: their functions and where each is legal.

Arithmetic operators get fp32 operands and give fp32; comparisons and logic give 1.0 or 0.0. Bitvec operators get
integers and work on their bits. Activation functions are exact to fp32 here; hardware approximates them piecewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .dtypes import Array

ARITHMETIC, BITVEC = "arithmetic", "bitvec"


@dataclass(frozen=True, eq=False)
class Op:
    """An operator token.

    `compute` takes (a, b) for binary ops and (a,) for unary ones; `reduces` says whether reductions take it;
    `activation` is the function of `nki.isa.activation`, valid for inputs in `valid` (None: everywhere).
    """

    name: str
    kind: str = ARITHMETIC
    compute: Callable[..., Array] | None = None
    unary: bool = False
    reduces: bool = False
    gen4: bool = False
    activation: Callable[[Array], Array] | None = None
    valid: Callable[[Array], Array] | None = None
    valid_text: str = ""

    #: the call of a token on tiles: `elementwise.apply`, set by `language` to avoid a circular import
    lower: ClassVar[Callable[..., Any]]

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`nl.<op>(x, ...)` on tiles, as a convenience over the instructions."""
        return Op.lower(self, *args, **kwargs)


def _truth(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b: function(a, b).astype(np.float32)


def _shift(function: Callable[..., Array]) -> Callable[..., Array]:
    """Logical shifts on the bit pattern of `a`; counts of its width or more (and negative ones) give 0."""

    def shifted(a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        raw = a.view(f"u{a.dtype.itemsize}")
        count = np.asarray(b).astype(np.int64)
        inside = (count >= 0) & (count < bits)
        out = np.where(inside, function(raw, np.where(inside, count, 0).astype(raw.dtype)), 0).astype(raw.dtype)
        return out.view(a.dtype)

    return shifted


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


#: erfc(z) = t * exp(P(t) - z^2) with t = 2 / (2 + z), as in Numerical Recipes; P is interpolated here from `math.erfc`
#: for z in [0, 10.5], past which erfc is 0 in fp32.
_ERFC_T_MIN = 2.0 / 12.5
_erfc_exponent = np.polynomial.Chebyshev.interpolate(
    lambda t: np.array([math.log(math.erfc(2.0 / u - 2.0) / u) + (2.0 / u - 2.0) ** 2 for u in t]),
    deg=18,
    domain=[_ERFC_T_MIN, 1.0],
)


def _erfc(x: Array) -> Array:
    """Complementary error function in float64, good to 1e-13: vectorised, which `math.erfc` is not."""
    z = np.abs(x.astype(np.float64))
    t = np.maximum(2.0 / (2.0 + z), _ERFC_T_MIN)
    exponent: Array = _erfc_exponent(t)
    tail = t * np.exp(exponent - z * z)
    return np.asarray(np.where(x < 0, 2.0 - tail, tail))


def _normal_cdf(x: Array) -> Array:
    return 0.5 * _erfc(x.astype(np.float64) / -math.sqrt(2.0))


def _erf(x: Array) -> Array:
    near_zero = 2.0 / math.sqrt(math.pi) * (x - x * x * x / 3.0)
    return np.where(np.abs(x) < 1e-3, near_zero, 1.0 - _erfc(x))


def _gelu_dx(x: Array) -> Array:
    return _normal_cdf(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def _gelu_tanh(x: Array) -> Array:
    return x * _sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * (x * x * x)))


def _gelu_sigmoid_dx(x: Array) -> Array:
    s = _sigmoid(1.702 * x)
    return s + 1.702 * x * s * (1.0 - s)


def _silu_dx(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


#: The fp32 numbers nearest to pi and pi/2: bounds of sin and arctan (nki-act-func).
_PI, _HALF_PI = float(np.float32(math.pi)), float(np.float32(math.pi / 2))


def _between(low: float, high: float) -> Callable[[Array], Array]:
    return lambda x: (x >= low) & (x <= high)


def _magnitude(low: float, high: float) -> Callable[[Array], Array]:
    return lambda x: (np.abs(x) >= low) & (np.abs(x) <= high)


def _function(name: str, function: Any, valid: Any = None, text: str = "", compute: Any = None) -> Op:
    """An activation function; with `compute` also a unary operator of tensor_scalar."""
    return Op(name, compute=compute, unary=compute is not None, activation=function, valid=valid, valid_text=text)


_BINARY = (
    Op("add", compute=np.add, reduces=True),
    Op("subtract", compute=np.subtract, reduces=True),
    Op("multiply", compute=np.multiply, reduces=True),
    Op("maximum", compute=np.maximum, reduces=True),
    Op("minimum", compute=np.minimum, reduces=True),
    Op("equal", compute=_truth(np.equal)),
    Op("not_equal", compute=_truth(np.not_equal)),
    Op("greater_equal", compute=_truth(np.greater_equal)),
    Op("greater", compute=_truth(np.greater)),
    Op("less_equal", compute=_truth(np.less_equal)),
    Op("less", compute=_truth(np.less)),
    Op("logical_and", compute=_truth(np.logical_and), reduces=True),
    Op("logical_or", compute=_truth(np.logical_or), reduces=True),
    Op("logical_xor", compute=_truth(np.logical_xor), reduces=True),
    Op("power", compute=np.power),
    Op("bitwise_and", BITVEC, np.bitwise_and, reduces=True),
    Op("bitwise_or", BITVEC, np.bitwise_or, reduces=True),
    Op("bitwise_xor", BITVEC, np.bitwise_xor, reduces=True),
    Op("left_shift", BITVEC, _shift(np.left_shift)),
    Op("right_shift", BITVEC, _shift(np.right_shift)),
    Op("invert", BITVEC, np.invert, unary=True),
)

_FUNCTIONS = (
    _function("copy", lambda x: x),
    _function("square", np.square, compute=np.square),
    _function("sigmoid", _sigmoid),
    _function("relu", lambda x: np.maximum(x, 0), compute=lambda x: np.maximum(x, 0)),
    _function("gelu", lambda x: x * _normal_cdf(x)),
    _function("gelu_dx", _gelu_dx),
    _function("gelu_apprx_tanh", _gelu_tanh),
    _function("gelu_apprx_sigmoid", lambda x: x * _sigmoid(1.702 * x)),
    _function("gelu_apprx_sigmoid_dx", _gelu_sigmoid_dx),
    _function("silu", lambda x: x * _sigmoid(x)),
    _function("silu_dx", _silu_dx),
    _function("tanh", np.tanh),
    _function("softplus", _softplus),
    _function("mish", lambda x: x * np.tanh(_softplus(x))),
    _function("erf", _erf),
    _function("erf_dx", lambda x: 2.0 / math.sqrt(math.pi) * np.exp(-x * x)),
    _function("exp", np.exp),
    _function("log", np.log, _between(2.0**-64, 2.0**64), "[2^-64, 2^64]"),
    _function("sin", np.sin, _between(-_PI, _PI), "[-pi, pi]"),
    _function("arctan", np.arctan, _between(-_HALF_PI, _HALF_PI), "[-pi/2, pi/2]"),
    _function("sqrt", np.sqrt, _between(2.0**-116, 2.0**118), "[2^-116, 2^118]"),
    _function("rsqrt", _rsqrt, _between(2.0**-87, 2.0**97), "[2^-87, 2^97]", _rsqrt),
    _function("reciprocal", np.reciprocal, _magnitude(2.0**-42, 2.0**42), "+-[2^-42, 2^42]", np.reciprocal),
    _function("sign", np.sign),
    _function("abs", np.abs, compute=np.abs),
)

#: Tokens that need NeuronCore-v4, and `average`, which only tensor_partition_reduce takes.
_SPECIAL = (
    *(Op(name, gen4=True) for name in ("abs_max", "abs_min", "prelu", "bypass")),
    Op("average", compute=np.add),
)

OPS: dict[str, Op] = {op.name: op for op in (*_BINARY, *_FUNCTIONS, *_SPECIAL)}

#: Unary operators that tensor_scalar has on trn3 only (NKI 0.4 release notes).
UNARY_GEN4 = ("square", "relu")

#: Identity of each reduction that the accumulator registers start from (isa tensor_scalar_reduce).
REDUCE_IDENTITY = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}
