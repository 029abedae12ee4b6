"""What a conv2d is asked for beside its geometry: `Extras` (known from names and shapes) and `Operands`.

An algorithm gets (operands, geometry, options, config) and writes operands.y; whatever it does not support, its
`refusal` says by name before any instruction, to the kernel and to the planner alike.
"""

from dataclasses import dataclass

from ..._nki import nisa, nl
from ...schedules.options import either_reads
from ...schedules.tiles import share, some_of
from .._engines import SCALAR_WORK, VECTOR_WORK, pick
from .._epilogue import finish, finish_in_steps


@dataclass
class Operands(nl.NKIObject):
    """Tensors in HBM, None where there is none, the residual's factor, and what x and w are on chip."""

    x: object
    w: object
    y: object
    bias: object
    residual: object
    beta: float
    x_dtype: object
    w_dtype: object
    #: whether the array takes fp32 as tf32
    tf32: bool
    #: planes in front of x's
    frames: object
    #: None, or in a loop on the device the register that moves x, y and residual, which are [rows, what it counts] then
    moved: object = None


def operands_of(x_hbm, w_hbm, y_hbm, bias_hbm, residual_hbm, beta, precision, frames_hbm):
    """Operands of these tensors at a precision."""
    return Operands(
        x=x_hbm,
        w=w_hbm,
        y=y_hbm,
        bias=bias_hbm,
        residual=residual_hbm,
        beta=beta,
        x_dtype=nl.bfloat16 if precision == "bf16" else x_hbm.dtype,
        w_dtype=nl.bfloat16 if precision == "bf16" else w_hbm.dtype,
        tf32=precision == "tf32",
        frames=frames_hbm,
    )


def of_array(tile, operands):
    """A tile as the array is to take it; None stays None."""
    return tile.view(nl.tfloat32) if tile != None and operands.tf32 else tile


def finish_shared(y_sbuf, acc, bias_sbuf, residual_sbuf, epilogue, ledger, elements, strict_nonfinite=False):
    """`finish` by Vector or Scalar, whichever has had less to do; elements: a partition."""
    engine = nisa.engine.scalar
    if either_reads(epilogue, strict_nonfinite):
        engine = pick(ledger, elements, False)
    else:
        ledger.scalar = ledger.scalar + elements * SCALAR_WORK
    if engine == nisa.engine.scalar or epilogue.activation == "":
        finish(y_sbuf, acc, bias_sbuf, residual_sbuf, epilogue, engine)
    elif epilogue.bias:
        nisa.tensor_scalar(
            dst=y_sbuf, data=acc, op0=nl.add, operand0=bias_sbuf, op1=nl.maximum, operand1=0.0, engine=engine
        )
    else:
        nisa.tensor_scalar(dst=y_sbuf, data=acc, op0=nl.maximum, operand0=0.0, engine=engine)


def finish_rows(y_sbuf, acc_psum, bias_sbuf, residual_sbuf, epilogue, ledger, strict_nonfinite):
    """Sums [pixels, tiles, k] with their epilogue, in the order of `_epilogue.finish`, so that the last bits do not
    depend on the algorithm's sides: the bias [pixels, k] is a row here, None without one, as the residual, [pixels,
    tiles, k]."""
    _, tn, kn = acc_psum.shape
    if bias_sbuf != None:
        bias_sbuf = bias_sbuf.expand_dim(1).broadcast(1, tn)
    finish_views(y_sbuf, acc_psum, bias_sbuf, residual_sbuf, epilogue, ledger, tn * kn, strict_nonfinite)


def finish_views(y_sbuf, acc, bias, residual_sbuf, epilogue, ledger, elements, strict_nonfinite=False):
    """The same of sums, bias and residual of one shape, None where there is none; elements: a partition."""
    if bias == None and residual_sbuf == None:
        finish_shared(y_sbuf, acc, None, None, epilogue, ledger, elements, strict_nonfinite)
        return
    ledger.vector = ledger.vector + elements * VECTOR_WORK
    finish_in_steps(y_sbuf, acc, bias, residual_sbuf, epilogue, nisa.engine.vector)


def scale_residual(residual_sbuf, beta):
    """A residual in SBUF times beta, fp32 if that is not 1."""
    if beta == 1.0:
        return residual_sbuf
    scaled_sbuf = nl.ndarray(residual_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled_sbuf, data=residual_sbuf, op0=nl.multiply, operand0=beta)
    return scaled_sbuf


def part_of_core(things):
    """(index of the first, the things) of this core's part of some."""
    mine = share(len(things), nl.num_programs(), nl.program_id(0))
    return mine[0], some_of(things, mine)
