"""`nl.add(x, y)` and its siblings: operator tokens called on tiles, lowered to one instruction each (sin to four)."""

from __future__ import annotations

import math
from typing import Any

from . import isa
from .memory import SBUF
from .ops import OPS, Op
from .program import current
from .rules import fail
from .tensor import NkiTensor, dtype_name


def apply(op: Op, *args: Any, dtype: Any = None) -> NkiTensor:
    """`op` on one or two tiles (or a tile and a number), into a fresh SBUF tile of `dtype` (default: the tile's).

    Binary ops run as tensor_tensor or tensor_scalar, functions as activation. Raises NkiError as those do.
    """
    tiles = [a for a in args if type(a) is NkiTensor]
    if not tiles or len(args) != (1 if op.compute is None or op.unary or op.activation else 2):
        fail("NKI048", f"nl.{op.name} called with {len(args)} arguments, {len(tiles)} of them tiles")
    out_dtype = tiles[0].dtype if dtype is None else dtype_name(dtype)
    dst = current().allocate(tiles[0].shape, out_dtype, SBUF, "", None)
    _emit(op, dst, args)
    return dst


def _emit(op: Op, dst: NkiTensor, args: tuple[Any, ...]) -> None:
    if op.name == "copy":
        isa.tensor_copy(dst, args[0])
    elif op.name == "rsqrt":  # on GpSimd, for its precision (NKI 0.5 release notes)
        isa.tensor_scalar(dst, args[0], op, None)
    elif op.name == "sin":
        _sine(op, dst, args[0])
    elif op.activation is not None:
        isa.activation(dst, op, args[0])
    elif op.unary:
        isa.tensor_scalar(dst, args[0], op, None)
    elif all(type(a) is NkiTensor for a in args):
        isa.tensor_tensor(dst, args[0], args[1], op)
    elif type(args[0]) is NkiTensor:
        isa.tensor_scalar(dst, args[0], op, args[1])
    else:
        isa.tensor_scalar(dst, args[1], op, args[0], reverse0=True)


def _sine(op: Op, dst: NkiTensor, x: NkiTensor) -> None:
    """sin over the whole domain: the activation's range is [-pi, pi], so whole turns are taken off first.

    Turns are counted by a cast to int32, which rounds to nearest; fp32 loses what it loses when x is large.
    """
    program = current()
    turns, angle = (program.allocate(x.shape, dtype, SBUF, "", None) for dtype in ("int32", "float32"))
    isa.tensor_scalar(turns, x, OPS["multiply"], 0.5 / math.pi)
    isa.scalar_tensor_tensor(angle, turns, OPS["multiply"], -2.0 * math.pi, OPS["add"], x)
    isa.tensor_scalar(angle, angle, OPS["minimum"], math.pi, op1=OPS["maximum"], operand1=-math.pi)
    isa.activation(dst, op, angle)
