"""Loops on the device: tensors in HBM that a register moves, so that one body does for all of its iterations."""

from ...schedules.device_loops import Register as Register
from ...schedules.device_loops import register_of as register_of
from ...schedules.tiles import size_of
from .call import operands_of


def moved_operands(operands, precision, register, at):
    """Operands whose x, frames, y and residual the register `at` moves."""
    x, frames = in_rows(operands.x, register.x), in_rows(operands.frames, register.x)
    y, residual = in_rows(operands.y, register.y), in_rows(operands.residual, register.y)
    prologue = operands.prologue
    found = operands_of(x, operands.w, y, operands.bias, residual, operands.beta, precision, frames, prologue)
    found.moved = at
    return found


def in_rows(hbm, each):
    """A tensor in HBM as rows of so many elements; None where there is none."""
    return None if hbm == None else hbm.reshape((size_of(hbm.shape) // each, each))
