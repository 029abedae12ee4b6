"""Checks of the public kernels' arguments, their geometry and their tensors."""

from dataclasses import dataclass

from .... import norms, rules
from ...._nki import nl
from ....axis import Axis
from ....schedules.split import (
    LAYOUTS,
    SplitGeometry,
    positions_unsupported,
    rows_of,
    sequences_unsupported,
    splits_unsupported,
    step_unsupported,
    taps_unsupported,
    tokens_unsupported,
)
from ....schedules.tiles import dense_strides
from ..._arguments import check_bias, refuse
from ..._engines import itemsize_of
from ..._epilogue import read_epilogue
from ...depthwise_conv1d.state import check_state


@dataclass
class Operands:
    """Tensors in HBM; optional ones may be None. parts: [N, T, heads, dim] each; state: [N, C, S - 1], for a decode
    step [slots, C, S - 1]; indices: the slots of its sequences, [N]."""

    x: object
    w: object
    parts: tuple
    bias: object
    state: object
    indices: object = None


def read_geometry(x_ref, w_ref, splits, layout, cu_seqlens, states):
    """Check all arguments that determine shapes and return a SplitGeometry.

    states: (initial_state, return_final_state, state_positions).
    """
    (x_n, x_c, x_t), (N, C, T), S = read_arrays(x_ref, w_ref, splits, layout)
    refuse(sequences_unsupported(cu_seqlens, N, T), positions_unsupported(states[2], T))
    geometry = SplitGeometry(N, C, T, S, splits, x_n, x_c, x_t, itemsize_of(x_ref.dtype), rows_of(N, T, cu_seqlens))
    refuse(tokens_unsupported(geometry))
    if states[0] is not None or states[1] or states[2] is not None:
        axis = Axis(T, geometry.S, 1, geometry.S - 1, 0, 1, 1)
        check_state(states[0], x_ref, axis, len(geometry.rows), geometry.C)
    return geometry


def read_arrays(x_ref, w_ref, splits, layout):
    """Check x, w and splits; returns (strides of x along n, c, t, (N, C, T), S)."""
    names = ("x_ref", "w_ref")
    refuse(rules.layout("layout", layout, LAYOUTS))
    refuse(rules.rank("x_ref", x_ref.shape, ", ".join(layout)), rules.rank("w_ref", w_ref.shape, "C, S"))
    dtypes = (x_ref.dtype, w_ref.dtype)
    refuse(*(rules.array_dtype(name, dtype) for name, dtype in zip(names, dtypes)))
    refuse(rules.dtypes_together(*dtypes, names))
    (N, C, T), steps = (
        [one[layout.index(axis)] for axis in "NCW"] for one in (x_ref.shape, dense_strides(x_ref.shape))
    )
    S = w_ref.shape[1]
    refuse(rules.shape("w_ref", w_ref.shape, (C, S), "[C, S]"), taps_unsupported(S), splits_unsupported(splits, C))
    return steps, (N, C, T), S


def read_step(x_ref, state_ref, w_ref, splits, layout, state_indices):
    """Check all arguments of a decode step that determine shapes and return a SplitGeometry with sequences as its
    tokens, and (tokens, x's stride along tokens)."""
    (x_n, x_c, x_t), (N, C, T), S = read_arrays(x_ref, w_ref, splits, layout)
    slots = state_ref.shape[0]
    refuse(step_unsupported(T, S))
    refuse(rules.shape("state_ref", state_ref.shape, (slots, C, S - 1), "[slots, C, S - 1]"))
    refuse(rules.same("state_ref", "dtype", state_ref.dtype, "x_ref", x_ref.dtype))
    if state_indices == None:
        refuse("" if slots == N else rules.shape("state_ref", state_ref.shape, (N, C, S - 1), "[N, C, S - 1]"))
    else:
        refuse(rules.shape("state_indices", state_indices.shape, (N,), "[N]"))
        refuse(rules.accepted("state_indices.dtype", state_indices.dtype, (nl.int32, nl.uint32), "cast it"))
    return SplitGeometry(N, C, N, S, splits, x_n, x_c, 1, itemsize_of(x_ref.dtype), rows_of(1, N)), (T, x_t)


def read_results(x_ref, geometry, T, bias, activation, eps):
    """Check bias, activation and eps; returns the Epilogue and the parts of y, with T tokens of each image, in HBM."""
    check_bias(bias, "C", geometry.C)
    refuse(norms.eps(eps))
    epilogue = read_epilogue(activation, bias, None, "pre_activation", geometry.itemsize)
    shapes = [(geometry.N, T, heads, dim) for heads, dim, _ in geometry.splits]
    return epilogue, tuple(nl.ndarray(shape, dtype=x_ref.dtype, buffer=nl.shared_hbm) for shape in shapes)
