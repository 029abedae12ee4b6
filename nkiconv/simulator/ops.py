"""The operators of `nki.language` that instructions take as ``op``: what each computes and where it is legal.

Arithmetic operators get fp32 operands and give fp32; comparisons and logic give 1.0 or 0.0. Bitvec operators get
integers and work on their bits. Activation functions are exact to fp32 here; hardware approximates them piecewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`nl.<op>(x, ...)` on tiles, as a convenience over the instructions."""
        from .elementwise import apply

        return apply(self, *args, **kwargs)


def _truth(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b: function(a, b).astype(np.float32)


def _shift(function: Callable[..., Array]) -> Callable[..., Array]:
    """Logical shifts on the bit pattern; counts of the type's width or more give 0."""

    def shifted(a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        raw = a.view(f"u{a.dtype.itemsize}")
        count = np.asarray(b).astype(raw.dtype)
        out = np.where(count < bits, function(raw, np.minimum(count, bits - 1)), 0).astype(raw.dtype)
        return out.view(a.dtype)

    return shifted


def _sigmoid(x: Array) -> Array:
    return (0.5 * (1.0 + np.tanh(0.5 * x))).astype(x.dtype)


_erf_elementwise = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return _erf_elementwise(x.astype(np.float64)).astype(np.float64)


def _gelu_dx(x: Array) -> Array:
    return 0.5 * (1.0 + _erf(x / math.sqrt(2.0))) + x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_sigmoid_dx(x: Array) -> Array:
    s = _sigmoid(1.702 * x)
    return s + 1.702 * x * s * (1.0 - s)


def _silu_dx(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _between(low: float, high: float) -> Callable[[Array], Array]:
    return lambda x: (x >= low) & (x <= high)


def _magnitude(low: float, high: float) -> Callable[[Array], Array]:
    return lambda x: (np.abs(x) >= low) & (np.abs(x) <= high)


def _binary(name: str, compute: Any, *, reduces: bool = False, kind: str = ARITHMETIC, gen4: bool = False) -> Op:
    return Op(name, kind, compute, reduces=reduces, gen4=gen4)


def _function(name: str, function: Any, valid: Any = None, text: str = "", compute: Any = None) -> Op:
    """An activation function; with `compute` also a unary operator of tensor_scalar."""
    return Op(name, compute=compute, unary=compute is not None, activation=function, valid=valid, valid_text=text)


_BINARY = (
    _binary("add", np.add, reduces=True),
    _binary("subtract", np.subtract, reduces=True),
    _binary("multiply", np.multiply, reduces=True),
    _binary("maximum", np.maximum, reduces=True),
    _binary("minimum", np.minimum, reduces=True),
    _binary("equal", _truth(np.equal)),
    _binary("not_equal", _truth(np.not_equal)),
    _binary("greater_equal", _truth(np.greater_equal)),
    _binary("greater", _truth(np.greater)),
    _binary("less_equal", _truth(np.less_equal)),
    _binary("less", _truth(np.less)),
    _binary("logical_and", _truth(np.logical_and), reduces=True),
    _binary("logical_or", _truth(np.logical_or), reduces=True),
    _binary("logical_xor", _truth(np.logical_xor), reduces=True),
    _binary("power", np.power),
    _binary("abs_max", lambda a, b: np.where(np.abs(a) > np.abs(b), a, b), gen4=True),
    _binary("abs_min", lambda a, b: np.where(np.abs(a) < np.abs(b), a, b), gen4=True),
    _binary("bitwise_and", np.bitwise_and, reduces=True, kind=BITVEC),
    _binary("bitwise_or", np.bitwise_or, reduces=True, kind=BITVEC),
    _binary("bitwise_xor", np.bitwise_xor, reduces=True, kind=BITVEC),
    _binary("left_shift", _shift(np.left_shift), kind=BITVEC),
    _binary("right_shift", _shift(np.right_shift), kind=BITVEC),
    Op("invert", BITVEC, np.invert, unary=True),
)

_FUNCTIONS = (
    _function("copy", lambda x: x),
    _function("square", np.square, compute=np.square),
    _function("sigmoid", _sigmoid),
    _function("relu", lambda x: np.maximum(x, 0), compute=lambda x: np.maximum(x, 0)),
    _function("gelu", lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))),
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
    _function("sin", np.sin, _between(-float(np.float32(math.pi)), float(np.float32(math.pi))), "[-pi, pi]"),
    _function("arctan", np.arctan, _between(-float(np.float32(math.pi / 2)), float(np.float32(math.pi / 2))), "[-pi/2, pi/2]"),
    _function("sqrt", np.sqrt, _between(2.0**-116, 2.0**118), "[2^-116, 2^118]"),
    _function("rsqrt", lambda x: 1.0 / np.sqrt(x), _between(2.0**-87, 2.0**97), "[2^-87, 2^97]", lambda x: 1.0 / np.sqrt(x)),
    _function("reciprocal", np.reciprocal, _magnitude(2.0**-42, 2.0**42), "+-[2^-42, 2^42]", np.reciprocal),
    _function("sign", np.sign),
    _function("abs", np.abs, compute=np.abs),
)

#: Tokens that need NeuronCore-v4, and `average`, which only tensor_partition_reduce takes.
_SPECIAL = (Op("prelu", gen4=True), Op("bypass", gen4=True), Op("average", compute=np.add))

OPS: dict[str, Op] = {op.name: op for op in (*_BINARY, *_FUNCTIONS, *_SPECIAL)}

#: Unary operators that tensor_scalar has on trn3 only (NKI 0.4 release notes).
UNARY_GEN4 = ("square", "relu")

#: Identity of each reduction that the accumulator registers start from (isa tensor_scalar_reduce).
REDUCE_IDENTITY = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}
