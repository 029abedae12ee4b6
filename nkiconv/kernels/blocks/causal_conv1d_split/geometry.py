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
    step_unsupported,
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
    strides, (N, C, T), S = read_arrays(x_ref, w_ref, splits, layout)
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


def read_arrays(x_ref, w_ref, splits, layout):
    """Check x, w and splits; returns strides of x, its (N, C, T), taps."""
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
    return strides, (N, C, T), S


def read_step(x_ref, state_ref, w_ref, splits, layout, state_indices):
    """Check all arguments of a decode step that have to do with shapes and return a SplitGeometry of sequences in the
    place of tokens, and (tokens, elements of x from one to the next)."""
    strides, (N, C, T), S = read_arrays(x_ref, w_ref, splits, layout)
    slots = state_ref.shape[0]
    refuse(step_unsupported(T, S))
    refuse(rules.shape("state_ref", state_ref.shape, (slots, C, S - 1), "[slots, C, S - 1]"))
    refuse(rules.same("state_ref", "dtype", state_ref.dtype, "x_ref", x_ref.dtype))
    if state_indices == None:
        refuse("" if slots == N else rules.shape("state_ref", state_ref.shape, (N, C, S - 1), "[N, C, S - 1]"))
    else:
        refuse(rules.shape("state_indices", state_indices.shape, (N,), "[N]"))
        refuse(rules.accepted("state_indices.dtype", state_indices.dtype, (nl.int32, nl.uint32), "cast it"))
    itemsize = 4 if x_ref.dtype == nl.float32 else 2
    rows = rows_of(1, N)
    geometry = SplitGeometry(N, C, N, S, splits, strides[0], strides[layout.index("C")], 1, S, 1, itemsize, rows)
    return geometry, (T, strides[layout.index("W")])
