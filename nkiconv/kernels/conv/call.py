"""Operands of a convolution kernel: its tensors in HBM and their dtypes on chip.

An algorithm takes (operands, geometry, options, schedule) and writes operands.y; the kernel and the planner get its
unsupported reason before any instruction.
"""

from dataclasses import dataclass, replace
from typing import Any

from ..._nki import nisa, nl
from ...schedules.tiles import share, size_of, some_of


@dataclass
class Operands(nl.NKIObject):
    """Tensors in HBM, None if absent; the residual's factor; the precision of products."""

    x: Any
    w: Any
    y: Any
    bias: Any = None
    residual: Any = None
    beta: float = 1.0
    precision: Any = None
    #: planes in front of x's
    frames: object = None
    #: None, or the PrologueOperands of x
    prologue: object = None
    #: None, or statistics of y, [P, N, K, 3] fp32; planes of y of an image
    stats: object = None
    image_planes: int = 1
    #: NormOperands in HBM, or None; the norm's stored input, shaped as y, or None
    norm: object = None
    kept: object = None
    #: None, or in a device loop the register that moves x, y, residual and kept, as [rows, elements that it counts]
    moved: object = None

    @property
    def x_dtype(self):
        """x's dtype on chip."""
        return nl.bfloat16 if self.precision == "bf16" else self.x.dtype

    @property
    def w_dtype(self):
        """w's dtype on chip."""
        return nl.bfloat16 if self.precision == "bf16" else self.w.dtype


def moved_operands(operands, register, at):
    """Operands of a device loop: its register `at` moves x, frames, y, residual and kept."""

    def in_rows(hbm, each):
        return None if hbm == None else hbm.reshape((size_of(hbm.shape) // each, each))

    x, frames = in_rows(operands.x, register.x), in_rows(operands.frames, register.x)
    y, residual, kept = (in_rows(one, register.y) for one in (operands.y, operands.residual, operands.kept))
    return replace(operands, x=x, frames=frames, y=y, residual=residual, kept=kept, moved=at)


def of_array(tile, operands):
    """A tile in the dtype that the Tensor Engine reads: tf32 asks for fp32 tiles as such; None stays None."""
    is_tf32 = tile != None and operands.precision == "tf32" and tile.dtype == nl.float32
    return tile.view(nl.tfloat32) if is_tf32 else tile


def scale_residual(residual_sbuf, beta):
    """A residual in SBUF times beta, fp32 if beta is not 1."""
    if beta == 1.0:
        return residual_sbuf
    scaled_sbuf = nl.ndarray(residual_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled_sbuf, data=residual_sbuf, op0=nl.multiply, operand0=beta)
    return scaled_sbuf


def part_of_core(things):
    """This core's share of a sequence."""
    return some_of(things, share(len(things), nl.num_programs(), nl.program_id(0)))
