"""`nl.add(x, y)` and its siblings: elementwise calls on tiles, lowered to one instruction each or a few.

Operator tokens do so when they are called; cos, tan, negative and logical_not are no operators of any instruction.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import isa
from .dtypes import from_fp32
from .isa import check
from .memory import SBUF
from .objects import dtype_name
from .ops import OPS, Op
from .program import current
from .rules import fail
from .tensor import NkiTensor


def apply(op: Op, *args: Any, dtype: Any = None) -> NkiTensor:
    """`op` on one or two tiles (or a tile and a number), into a fresh SBUF tile of `dtype` (default: the tile's).

    Binary ops run as tensor_tensor or tensor_scalar, functions as activation. Raises NkiError as those do.
    """
    check.operator("op", op)
    tiles = [a for a in args if type(a) is NkiTensor]
    if not tiles or len(args) != (1 if op.compute is None or op.unary or op.activation else 2):
        fail("NKI048", f"nl.{op.name} called with {len(args)} arguments, {len(tiles)} of them tiles")
    dst = _new(tiles[0], dtype)
    _emit(op, dst, args)
    return dst


def _new(x: NkiTensor, dtype: Any) -> NkiTensor:
    return current().allocate(x.shape, x.dtype if dtype is None else dtype_name(dtype), SBUF, "", None)


def _emit(op: Op, dst: NkiTensor, args: tuple[Any, ...]) -> None:
    if op.name == "copy":
        isa.tensor_copy(dst, args[0])
    elif op.name == "rsqrt":  # on GpSimd, for its precision (NKI 0.5 release notes)
        isa.tensor_scalar(dst, args[0], op, None)
    elif op.name == "sin":
        _sine(dst, args[0], 0.0)
    elif op.activation is not None:
        isa.activation(dst, op, args[0])
    elif op.unary:
        isa.tensor_scalar(dst, args[0], op, None)
    elif all(type(a) is NkiTensor for a in args):
        isa.tensor_tensor(dst, args[0], args[1], op)
    elif op.name == "power":  # a known issue since NKI 0.4, and of its release notes on
        fail("NKI048", "nl.power of a tile and a number; make a tile of the number, or use nki.isa.tensor_scalar")
    elif type(args[0]) is NkiTensor:
        isa.tensor_scalar(dst, args[0], op, args[1])
    else:
        isa.tensor_scalar(dst, args[1], op, args[0], reverse0=True)


def _sine(dst: NkiTensor, x: NkiTensor, lead: float) -> None:
    """sin(x + lead turns) over the whole domain: the activation's range is [-pi, pi], so whole turns are taken off.

    AWS documents an accurate result at any angle, but not the instructions: these stand for the time, and the result is
    that of fp64.
    """
    turns, angle = _new(x, "int32"), _new(x, "float32")
    per_turn = 0.5 / math.pi
    if lead:
        isa.tensor_scalar(turns, x, OPS["multiply"], per_turn, op1=OPS["add"], operand1=lead)
    else:
        isa.tensor_scalar(turns, x, OPS["multiply"], per_turn)
    isa.scalar_tensor_tensor(angle, turns, OPS["multiply"], -2.0 * math.pi, OPS["add"], x)
    if lead:
        isa.tensor_scalar(angle, angle, OPS["add"], lead * 2.0 * math.pi)
    isa.tensor_scalar(angle, angle, OPS["minimum"], math.pi, op1=OPS["maximum"], operand1=-math.pi)
    isa.activation(dst, OPS["sin"], angle)
    if current().numeric:
        exact = (np.cos if lead else np.sin)(x.storage.read(x).astype(np.float64))  # lead: 0 or a quarter
        dst.storage.write(dst, from_fp32(exact.astype(np.float32), dst.dtype))


def _tile(x: Any) -> NkiTensor:
    if type(x) is not NkiTensor:
        fail("NKI040", f"x={x!r} is not a tile")
    return x


def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Cosine over the whole domain: the sine a quarter turn ahead, five instructions.

    Args: x: [P, F...] in SBUF or PSUM. dtype: of the result; default x's. Returns: a tile of x's shape in SBUF.
    Raises NkiError (NKI040, NKI043, NKI046). Source: isa cos.
    """
    dst = _new(_tile(x), dtype)
    _sine(dst, x, 0.25)
    return dst


def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Tangent over the whole domain: sine times the reciprocal of the cosine, eleven instructions.

    No activation function is a tangent, and which instructions AWS takes is not documented. Arguments and errors of
    `cos`. Source: isa tan.
    """
    dst, sine, cosine = _new(_tile(x), dtype), _new(x, "float32"), _new(x, "float32")
    _sine(sine, x, 0.0)
    _sine(cosine, x, 0.25)
    isa.reciprocal(cosine, cosine)
    isa.tensor_tensor(dst, sine, cosine, OPS["multiply"])
    return dst


def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """-x, as a multiplication by -1 in fp32: one tensor_scalar. Arguments and errors of `cos`. Source: isa negative."""
    dst = _new(_tile(x), dtype)
    isa.tensor_scalar(dst, x, OPS["multiply"], -1.0)
    return dst


def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 where x is 0, else 0: a logical xor with 1, one tensor_scalar.

    AWS documents an xor with 1 for inputs of 0 or 1 and says nothing of others. Arguments and errors of `cos`.
    Source: isa logical_not.
    """
    dst = _new(_tile(x), dtype)
    isa.tensor_scalar(dst, x, OPS["logical_xor"], 1.0)
    return dst
