"""What a depthwise conv1d is asked for beside its geometry: `Extras` (known from names and shapes) and `Operands`.

An algorithm gets (operands, geometry, extras, config) and writes operands.y; whatever it does not support, its
`refusal` says by name before any instruction, to the kernel and to the planner alike.
"""

from dataclasses import dataclass

from ..._nki import nl
from ...schedules.options import Epilogue


@dataclass
class Extras(nl.NKIObject):
    """Everything asked for beside the geometry that changes what an algorithm does."""

    epilogue: Epilogue
    #: whether the left padding holds an initial state instead of zeros
    state: bool
    #: whether NaN and Inf must stay in their channel
    strict_nonfinite: bool


@dataclass
class Operands(nl.NKIObject):
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
