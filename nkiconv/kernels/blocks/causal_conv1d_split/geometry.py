"""Checks the public kernel's arguments and describes them; its tensors."""

from dataclasses import dataclass

from .... import rules
from ...._nki import nl
from ....schedules.depthwise import RowGeometry
from ....schedules.split import (
    LAYOUTS,
    SplitGeometry,
    instructions_unsupported,
    positions_unsupported,
    rows_of,
    sequences_unsupported,
    splits_unsupported,
    taps_unsupported,
)
from ....schedules.tiles import dense_strides
from ..._arguments import refuse
from ...depthwise_conv1d.state import check_state


@dataclass
class Operands:
    """Tensors in HBM; None where there is none. parts: [N, T, heads, dim] each; state: [N, C, S - 1]."""

    x: object
    w: object
    parts: tuple
    bias: object
    state: object


def read_geometry(x_ref, w_ref, splits, layout, cu_seqlens, states):
    """Check all arguments that have to do with shapes and return a SplitGeometry.

    states: (initial_state, return_final_state, state_positions).
    """
    names = ("x_ref", "w_ref")
    refuse(rules.layout("layout", layout, LAYOUTS))
    refuse(rules.rank("x_ref", x_ref.shape, ", ".join(layout)), rules.rank("w_ref", w_ref.shape, "C, S"))
    dtypes = (x_ref.dtype, w_ref.dtype)
    refuse(*(rules.array_dtype(name, dtype) for name, dtype in zip(names, dtypes)))
    refuse(rules.dtypes_together(*dtypes, names))
    strides = dense_strides(x_ref.shape)
    N, C, T = (x_ref.shape[layout.index(axis)] for axis in "NCW")
    S = w_ref.shape[1]
    refuse(rules.shape("w_ref", w_ref.shape, (C, S), "[C, S]"), taps_unsupported(S), splits_unsupported(splits, C))
    refuse(sequences_unsupported(cu_seqlens, N, T), positions_unsupported(states[2], T))
    geometry = SplitGeometry(
        N=N,
        C=C,
        T=T,
        S=S,
        splits=splits,
        x_n=strides[0],
        x_c=strides[layout.index("C")],
        x_t=strides[layout.index("W")],
        w_c=S,
        w_s=1,
        itemsize=4 if x_ref.dtype == nl.float32 else 2,
        rows=rows_of(N, T, cu_seqlens),
    )
    refuse(instructions_unsupported(geometry))
    if states[0] is not None or states[1] or states[2] is not None:
        check_state(states[0], x_ref, row_geometry(geometry, len(geometry.rows), T))
    return geometry


def row_geometry(geometry, N, W):
    """The convolution as one of N rows of W tokens, for what deals with their states; y is nowhere read."""
    return RowGeometry(
        N=N,
        C=geometry.C,
        W=W,
        S=geometry.S,
        Q=W,
        stride=1,
        dilation=1,
        lhs_dilation=1,
        pad_left=geometry.S - 1,
        pad_right=0,
        x_n=geometry.x_n,
        x_c=geometry.x_c,
        x_w=geometry.x_t,
        w_c=geometry.w_c,
        w_s=geometry.w_s,
        y_n=0,
        y_c=0,
        y_q=0,
        itemsize=geometry.itemsize,
    )
