"""What a conv2d is asked for besides its geometry: tensors and what they are on chip.

An algorithm gets (operands, geometry, options, config) and writes operands.y; what it does not support, its
unsupported reason names before any instruction, to the kernel and to the planner alike.
"""

from dataclasses import dataclass

from ..._nki import nisa, nl
from ...schedules.tiles import share, some_of


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
    #: None, or what happens to x as it arrives
    prologue: object = None
    #: None, or where statistics of y go, [P, N, K, 3] fp32, and planes of y that an image has
    stats: object = None
    image_planes: int = 1
    #: NormOperands in HBM, or None; where what a norm reads goes, as y, or None
    norm: object = None
    kept: object = None
    #: None, or in a loop on the device the register that moves x, y and residual, which are [rows, what it counts] then
    moved: object = None


def operands_of(x_hbm, w_hbm, y_hbm, bias_hbm, residual_hbm, beta, precision, frames_hbm, prologue=None, norm=None):
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
        prologue=prologue,
        norm=norm,
    )


def of_array(tile, operands):
    """A tile as the array is to take it; None stays None."""
    return tile.view(nl.tfloat32) if tile != None and operands.tf32 else tile


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
