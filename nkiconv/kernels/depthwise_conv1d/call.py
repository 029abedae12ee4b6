"""Tensors of a depthwise conv1d, and the parts of its work that a core does.

An algorithm gets (operands, geometry, options, config) and writes operands.y; whatever it does not support, its
`refusal` says by name before any instruction, to the kernel and to the planner alike.
"""

from dataclasses import dataclass

from ..._nki import nl


@dataclass
class Operands:
    """Tensors in HBM; None where there is none. x, w, y as the geometry's strides say; bias [C]; residual as y.

    state: [N, C, pad_left], what precedes each row; sums: [C] fp32, to be the sums of each filter's taps.
    """

    x: object
    w: object
    y: object
    bias: object
    residual: object
    state: object
    sums: object = None


def parts_of_core():
    """The PARTS that this core does, in order."""
    return (0, 1) if nl.num_programs() == 1 else (nl.program_id(0),)
