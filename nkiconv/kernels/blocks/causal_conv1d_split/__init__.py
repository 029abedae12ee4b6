"""Causal depthwise conv1d, SiLU, split into parts of heads, l2norm: the public kernels."""

from dataclasses import dataclass

from .... import norms, rules
from ...._nki import nki, nl
from ....axis import Axis
from ....schedules.packed_rows import shares_blocks
from ....schedules.split import (
    LAYOUTS,
    SplitGeometry,
    channels_unsupported,
    chunks_unsupported,
    is_on_vector,
    positions_unsupported,
    rows_of,
    sequences_unsupported,
    splits_unsupported,
    step_unsupported,
    taps_unsupported,
    tokens_unsupported,
)
from ....schedules.tiles import dense_strides
from ..._arguments import check_bias, check_given, refuse
from ..._engines import itemsize_of
from ..._epilogue import read_epilogue
from ...depthwise_conv1d.state import check_state
from .kernel import convolve_heads, new_states, step_heads, store_final_states, store_states
from .packed import convolve_packed
from .row_step import step_rows


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


def read_geometry(x_ref, w_ref, splits, layout, cu_seqlens, states, channels):
    """Check all arguments that determine shapes and return a SplitGeometry.

    states: (initial_state, return_final_state, state_positions). channels: (chunks, first_channel).
    """
    (x_n, x_c, x_t), (N, C, T), S = read_arrays(x_ref, w_ref, splits, layout, *channels)
    refuse(sequences_unsupported(cu_seqlens, N, T), positions_unsupported(states[2], T))
    sizes, item = (N, C, T, S, splits, x_n, x_c, x_t), itemsize_of(x_ref.dtype)
    geometry = SplitGeometry(*sizes, item, rows_of(N, T, cu_seqlens), channels[0] or "x", channels[1] or 0)
    refuse(tokens_unsupported(geometry))
    if states[0] is not None or states[1] or states[2] is not None:
        axis = Axis(T, geometry.S, 1, geometry.S - 1, 0, 1, 1)
        check_state(states[0], x_ref, axis, len(geometry.rows), geometry.C)
    return geometry


def read_arrays(x_ref, w_ref, splits, layout, chunks=None, first_channel=None):
    """Check x, w, splits, chunks and first_channel; returns (strides of x along n, c, t, (N, C, T), S)."""
    names = ("x_ref", "w_ref")
    refuse(rules.layout("layout", layout, LAYOUTS))
    refuse(rules.rank("x_ref", x_ref.shape, ", ".join(layout)), rules.rank("w_ref", w_ref.shape, "C, S"))
    dtypes = (x_ref.dtype, w_ref.dtype)
    refuse(*(rules.array_dtype(name, dtype) for name, dtype in zip(names, dtypes)))
    refuse(rules.dtypes_together(*dtypes, names))
    (N, C, T), steps = (
        [one[layout.index(axis)] for axis in "NCW"] for one in (x_ref.shape, dense_strides(x_ref.shape))
    )
    steps = steps if T > 1 else (C, 1, C)  # a token's channels are in a run
    refuse(rules.chunks(chunks), chunks_unsupported(chunks, layout))
    times = len(chunks or "x")
    refuse(channels_unsupported(first_channel, times * w_ref.shape[0], C))
    C = C if first_channel is None else times * w_ref.shape[0]
    refuse(rules.chunks(chunks, C))
    C, S = C // times, w_ref.shape[1]
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
    epilogue = read_epilogue(activation, bias, None, "pre_activation", geometry.itemsize, geometry.chunks)
    shapes = [(geometry.N, T, heads, dim) for heads, dim, _ in geometry.splits]
    return epilogue, tuple(nl.ndarray(shape, dtype=x_ref.dtype, buffer=nl.shared_hbm) for shape in shapes)


@nki.jit
def causal_conv1d_split_heads(
    x_ref,
    w_ref,
    splits,
    bias=None,
    activation="silu",
    eps=1e-6,
    layout="NCW",
    initial_state=None,
    return_final_state=False,
    cu_seqlens=None,
    state_positions=None,
    chunks=None,
    first_channel=None,
):
    """Convolve each channel with its own causal filter, apply an activation, split the channels into parts of heads.

        z[n, t, c] = act(sum over s of w[c, s] * x[n, c, t - (S - 1) + s] + bias[c])
        part i: heads * dim channels after those of part i - 1, as y_i[n, t, h, d]
        normalised part: y_i[n, t, h, :] = z / sqrt(sum over d of z^2 + eps)

    The convolution stage of Gated DeltaNet (Qwen3-Next), KDA (Kimi Linear) and Mamba2. Call as ``kernel[2](...)`` on
    Neuron, ``nkiconv.simulate(kernel[2])(...)`` anywhere; one and two cores return the same bits.

    Dimensions: N images, C channels, T tokens, S taps.

    Args:
        x_ref: [N, C, T] in HBM, or [N, T, C] with layout="NWC"; bf16, fp16 or fp32.
        w_ref: [C, S] in HBM; fp32 with fp32 x, bf16 or fp16 with either of them; at most 16 taps.
        splits: ((heads, dim, normalised), ...) of all channels, in order; dim of normalised heads is 2 to 512.
        bias: [C] in HBM, fp32, bf16 or fp16. activation: None or a name of `nkiconv.rules.ACTIVATIONS`.
        eps: added to the sum of squares; with 0 a head of zeros is NaN.
        initial_state: [N, C, S - 1] in HBM, x's dtype: the S - 1 tokens before x; None: zeros.
        return_final_state: also return the next initial_state.
        cu_seqlens: a tuple of ints: x is one row of several independent sequences, the k-th of tokens cu_seqlens[k] ..
            cu_seqlens[k + 1] - 1; states are then [sequences, C, S - 1].
        state_positions: a tuple of ints: also return the states after these numbers of tokens of x's rows.
        chunks: None, or kinds of the chunks of C channels in x [N, T, chunks * C], as in `nkiconv.depthwise_conv1d`:
            x's factor is multiplied as x arrives, rounded to x's dtype, and states hold products; z's factor before
            the norm.
        first_channel: None, or the place of the first of x's channels that are convolved, as many as w has; x may have
            more, of a projection that others read too.

    Returns: a tuple of tensors in HBM, x's dtype: [N, T, heads, dim] for each part; with return_final_state then
        [N, C, S - 1]; with state_positions then [N, positions, C, S - 1]. Sums, activation and norm are fp32, rounded
        once.

    Raises: an assertion with argument, value, rule and remedy, before any instruction; simulated, KernelAssertionError.
    """
    check_given(locals(), ("return_final_state",))
    states = (initial_state, return_final_state, state_positions)
    geometry = read_geometry(x_ref, w_ref, splits, layout, cu_seqlens, states, (chunks, first_channel))
    epilogue, parts = read_results(x_ref, geometry, geometry.T, bias, activation, eps)
    operands = Operands(x=x_ref, w=w_ref, parts=parts, bias=bias, state=initial_state)
    final_hbm = new_states(operands, geometry) if return_final_state else None
    packed = shares_blocks(geometry, initial_state is not None or return_final_state)
    if packed:
        convolve_packed(operands, geometry, epilogue, eps, final_hbm)
    else:
        convolve_heads(operands, geometry, epilogue, eps)
    if return_final_state:
        store_final_states(operands, geometry, final_hbm, packed)
        parts += (final_hbm,)
    return parts if state_positions is None else (*parts, store_states(operands, geometry, state_positions))


@nki.jit
def causal_conv1d_split_step(
    x_ref, state_ref, w_ref, splits, bias=None, activation="silu", eps=1e-6, layout="NCW", state_indices=None
):
    """A decode step of `causal_conv1d_split_heads`: one or a few tokens of each of N sequences after its state.

    Args:
        x_ref: [N, C, T] in HBM, or [N, T, C] with layout="NWC"; T + S - 1 at most 16, S from 2 to 8.
        state_ref: [slots, C, S - 1] in HBM, x's dtype: the S - 1 tokens before each sequence's. Updated in place.
        state_indices: [N] in HBM, int32 or uint32: the slot of each sequence, each slot at most once. A sequence whose
            index is no slot, such as -1, starts from zeros, and its state is not stored. None: sequence n has slot n.
        The rest: as in `causal_conv1d_split_heads`.

    Returns: a tuple of [N, T, heads, dim] in HBM, one a part, x's dtype.

    Raises: an assertion with argument, value, rule and remedy, before any instruction; simulated, KernelAssertionError.
    """
    check_given(locals())
    geometry, tokens = read_step(x_ref, state_ref, w_ref, splits, layout, state_indices)
    epilogue, parts = read_results(x_ref, geometry, tokens[0], bias, activation, eps)
    operands = Operands(x=x_ref, w=w_ref, parts=parts, bias=bias, state=state_ref, indices=state_indices)
    slots = 0 if state_indices == None else state_ref.shape[0]
    step = step_rows if is_on_vector(geometry, tokens[0], slots) else step_heads
    step(operands, geometry, epilogue, eps, tokens)
    return parts
