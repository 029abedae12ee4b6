"""The convolution stage of linear-attention and state-space layers on arrays: check the call, launch the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import norms, rules
from ..axis import Axis
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all, refused, shown
from ..integers import is_int, takes_ints
from ..kernels.blocks.causal_conv1d_split import causal_conv1d_split_heads, causal_conv1d_split_step
from ..problem import DTYPES, dtype_name
from ..reference import AnyArray
from ..schedules.split import (
    LAYOUTS,
    Split,
    channels_unsupported,
    chunks_unsupported,
    positions_unsupported,
    rows_of,
    sequences_unsupported,
    splits_unsupported,
    step_unsupported,
    taps_unsupported,
)
from .calls import has_no_images, launch, one_array, one_image

_CANNOT = "causal_conv1d_split cannot run this call"
_CANNOT_STEP = "causal_conv1d_split_update cannot run this call"


@takes_ints
def causal_conv1d_split(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    splits: tuple[Split, ...],
    activation: str | None = "silu",
    eps: float = 1e-6,
    layout: str = "NCW",
    initial_state: AnyArray | None = None,
    return_final_state: bool = False,
    cu_seqlens: tuple[int, ...] | None = None,
    state_positions: tuple[int, ...] | None = None,
    chunks: str | None = None,
    first_channel: int | None = None,
    lnc: int = 2,
) -> Any:
    """Causal depthwise convolution, activation (SiLU), split of the channels into parts of heads, l2norm.

        z[n, t, c] = act(sum over s of w[c, s] * x[n, c, t - (S - 1) + s] + bias[c])
        part i: the heads * dim channels after those of part i - 1, as [N, W, heads, dim]
        of a normalised part each head is z / sqrt(sum of z^2 + eps)

    The convolution stage of Gated DeltaNet (Qwen3-Next) and KDA (Kimi Linear), with q, k and v of one x and fla's
    l2norm, and of Mamba2, with x, B and C and no norm. One kernel reads x once and writes each part once, in the layout
    that the next operator reads.

    Args:
        x: [N, C, W], or token-major [N, W, C] with layout="NWC"; bf16 (ml_dtypes), fp16 or fp32. N may be 0.
        w: [C, S], S at most 16; fp32 with fp32 x, bf16 or fp16 with either of them.
        bias: [C]; bf16, fp16 or fp32.
        splits: ((heads, dim, normalised), ...) in order of the channels, all of them; normalised heads have 2 to 512
            channels.
        activation: None or a name of `nkiconv.rules.ACTIVATIONS`, as torch defines it.
        eps: added to the sum of squares; with 0 a head of zeros is NaN.
        layout: "NCW" or "NWC".
        initial_state: [N, C, S - 1], x's dtype: the inputs before the tokens; None is zeros.
        return_final_state: also return the initial_state of the next tokens.
        cu_seqlens: packed sequences: x has one row, N = 1; sequence k has the tokens from cu_seqlens[k] up to
            cu_seqlens[k + 1]. Sequences are independent, also for NaN. States are then [sequences, C, S - 1]. Each
            value of cu_seqlens compiles a kernel.
        state_positions: also return the state after each of these numbers of tokens, 1 to W, for prefix caches and
            speculative decoding.
        chunks: None, or the kinds of the chunks of C channels in x [N, W, chunks * C] with layout="NWC", as in
            `depthwise_conv1d`: x times B, or the sigmoid of G, is convolved and kept by states; z times C is split.
        first_channel: None, or the place of the first of x's channels that are convolved, as many as w has: x may be a
            whole projection, as of Mamba2.
        lnc: cores that share the work, 1 or 2.

    Returns: parts, a tuple of [N, W, heads, dim] of x's dtype; sums, activation and norm are fp32, rounded once. With
        return_final_state and state_positions a tuple: parts, the state [N, C, S - 1] if asked for, the states
        [N, positions, C, S - 1] if asked for. NaN or Inf in x reaches at most the 128 channels of its tile, at the
        tokens that read it, and all of a normalised head.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    empty, one, state = has_no_images(x), x, initial_state
    if empty:
        one = one_image("x", x)
        state = one_image("initial_state", state) if isinstance(state, np.ndarray) and state.ndim else state
    names = {"layout": layout, "activation": activation, "eps": eps, "lnc": lnc}
    raise_all(_CANNOT, _violations(one, w, bias, state, **names, return_final_state=return_final_state))
    N, C, W = (x.shape[layout.index(axis)] for axis in "NCW")
    has_states = state is not None or return_final_state or state_positions is not None
    C = _channels_of(C, w.shape[0], chunks, first_channel, layout)
    wrong = [*_shape_violations(w, bias, splits, C), *refused(UnsupportedError, taps_unsupported(w.shape[1]))]
    wrong += refused(GeometryError, sequences_unsupported(cu_seqlens, N, W), positions_unsupported(state_positions, W))
    raise_all(_CANNOT, wrong)
    rows = len(rows_of(one.shape[0], W, cu_seqlens))
    raise_all(_CANNOT, _state_violations(one, state, (rows, C, w.shape[1] - 1), W) if has_states else ())
    if empty:
        return _without_images(x, splits, (C, w.shape[1] - 1), W, return_final_state, state_positions)
    kwargs: dict[str, Any] = {"activation": activation, "eps": float(eps), "layout": layout}
    asked: dict[str, Any] = {"bias": bias, "initial_state": initial_state, "cu_seqlens": cu_seqlens, "chunks": chunks}
    asked |= {"return_final_state": return_final_state or None, "state_positions": state_positions}
    asked |= {"first_channel": first_channel}
    kwargs |= {name: value for name, value in asked.items() if value is not None}
    found = tuple(launch(causal_conv1d_split_heads, (x, w, splits), kwargs, lnc, False).y)
    more = found[len(splits) :]
    return (found[: len(splits)], *more) if more else found


@takes_ints
def causal_conv1d_split_update(
    x: AnyArray,
    state: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    splits: tuple[Split, ...],
    activation: str | None = "silu",
    eps: float = 1e-6,
    layout: str = "NCW",
    state_indices: AnyArray | None = None,
    pad_slot: int = -1,
    lnc: int = 2,
) -> tuple[AnyArray, ...]:
    """A decode step of `causal_conv1d_split`: one or a few tokens of each of N sequences, after its state.

    Args:
        x: [N, C], or [N, C, W], or [N, W, C] with layout="NWC"; W + S - 1 at most 16; bf16, fp16 or fp32. N may be 0.
        state: [slots, C, S - 1], x's dtype: the inputs before each sequence's tokens; updated in place for the next
            ones. C-contiguous.
        w, bias, splits, activation, eps, layout, lnc: as in `causal_conv1d_split`; S from 2 to 8.
        state_indices: [N], int32 or int64: the slot of each sequence, without repeats; None: slot n, of N slots.
        pad_slot: the index that marks padding: no state changes, and y is computed from a state of zeros.

    Returns: a tuple of [N, W, heads, dim], or [N, heads, dim] for x [N, C], one a part, x's dtype.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    single = getattr(x, "ndim", 0) == 2
    rows = x[:, :, None] if single else x
    order = "NCW" if single else layout
    one = one_image("x", rows) if has_no_images(rows) else rows
    names = {"layout": layout, "activation": activation, "eps": eps, "lnc": lnc, "return_final_state": False}
    wrong = [*_violations(one, w, bias, None, **names), *one_array("state", state, "slots, C, S - 1", empty="s")]
    if not is_int(pad_slot):
        wrong.append(UnsupportedError(f"pad_slot={shown(pad_slot)}: must be an int; pass the number of padding's slot"))
    raise_all(_CANNOT_STEP, wrong)
    N, C, W = (rows.shape[order.index(axis)] for axis in "NCW")
    raise_all(_CANNOT_STEP, _shape_violations(w, bias, splits, C))
    wrong = [*refused(UnsupportedError, step_unsupported(W, w.shape[1]))]
    raise_all(_CANNOT_STEP, [*wrong, *_slot_violations(x, state, state_indices, pad_slot, (N, C, w.shape[1] - 1))])
    if N == 0:
        found = tuple(np.empty((0, W, heads, dim), x.dtype) for heads, dim, _ in splits)
    else:
        kwargs: dict[str, Any] = {"activation": activation, "eps": float(eps), "layout": order}
        if bias is not None:
            kwargs["bias"] = bias
        if state_indices is not None:
            kwargs["state_indices"] = np.where(state_indices == pad_slot, -1, state_indices).astype(np.int32)
        found = tuple(launch(causal_conv1d_split_step, (rows, state, w, splits), kwargs, lnc, False).y)
    return tuple(part[:, 0] for part in found) if single else found


def _channels_of(channels: int, filters: int, chunks: Any, first_channel: Any, layout: str) -> int:
    """Channels of each chunk of x's channels, those from first_channel on; raises where there are no such."""
    raise_all(_CANNOT, refused(LayoutError, rules.chunks(chunks), chunks_unsupported(chunks, layout)))
    times = len(chunks or "x")
    raise_all(_CANNOT, refused(GeometryError, channels_unsupported(first_channel, times * filters, channels)))
    channels = channels if first_channel is None else times * filters
    raise_all(_CANNOT, refused(LayoutError, rules.chunks(chunks, channels)))
    return channels // times


def _slot_violations(
    x: Any, state: Any, indices: Any, pad_slot: int, wanted: tuple[int, int, int]
) -> Iterator[NkiconvError]:
    """Errors of the states and of the slots that sequences have; wanted: (N, C, S - 1)."""
    slots = state.shape[0] if indices is not None else wanted[0]
    words = "[slots, C, S - 1]" if indices is not None else "[N, C, S - 1]"
    yield from refused(GeometryError, rules.shape("state", state.shape, (slots, *wanted[1:]), words))
    yield from refused(DtypeError, rules.same("state", "dtype", state.dtype, "x", x.dtype))
    if not (state.flags.c_contiguous and state.flags.writeable):
        yield LayoutError("state: is changed in place, so it must be C-contiguous and writable; pass such an array")
    if indices is None:
        return
    if not isinstance(indices, np.ndarray) or str(indices.dtype) not in ("int32", "int64"):
        kind = getattr(indices, "dtype", type(indices).__name__)
        yield DtypeError(f"state_indices: must be a NumPy array of int32 or int64, is {kind}; cast it")
        return
    yield from refused(GeometryError, rules.shape("state_indices", indices.shape, wanted[:1], "[N]"))
    own = indices[indices != pad_slot]
    outside = own[(own < 0) | (own >= slots)]
    if outside.size:
        yield GeometryError(
            f"state_indices: {outside[0]} is no slot of {slots}, and not pad_slot={pad_slot}; pass 0 to {slots - 1}"
        )
    found, counts = np.unique(own, return_counts=True)
    if np.any(counts > 1):
        twice = found[counts > 1][0]
        yield GeometryError(f"state_indices: {twice} comes twice, a slot is of one sequence; pass each slot once")


def _without_images(
    x: Any, splits: tuple[Split, ...], state: tuple[int, int], W: int, final: bool, positions: tuple[int, ...] | None
) -> Any:
    """The result of a call with N = 0; state: (C, S - 1)."""
    dtype = DTYPES[dtype_name(x.dtype)]
    parts = tuple(np.empty((0, W, heads, dim), dtype) for heads, dim, _ in splits)
    more = [np.empty((0, *state), dtype)] if final else []
    more += [] if positions is None else [np.empty((0, len(positions), *state), dtype)]
    return (parts, *more) if more else parts


def _violations(
    x: Any,
    w: Any,
    bias: Any,
    state: Any,
    *,
    layout: Any,
    activation: Any,
    eps: Any,
    return_final_state: Any,
    lnc: Any,
) -> Iterator[NkiconvError]:
    """Errors of the arrays and of the other arguments, each by itself."""
    yield from refused(LayoutError, rules.layout("layout", layout, LAYOUTS))
    of_x = layout if layout in LAYOUTS else LAYOUTS[0]
    wrong = [*one_array("x", x, ", ".join(of_x)), *one_array("w", w, "C, S")]
    yield from wrong
    if not wrong:
        yield from refused(DtypeError, rules.dtypes_together(x.dtype, w.dtype))
    for name, array, letters in (("bias", bias, "C"), ("initial_state", state, "N, C, S - 1")):
        if array is not None:
            yield from one_array(name, array, letters)
    yield from refused(UnsupportedError, rules.activation(activation), norms.eps(eps))
    yield from refused(UnsupportedError, rules.flag("return_final_state", return_final_state), rules.lnc(lnc))


def _shape_violations(w: Any, bias: Any, splits: Any, C: int) -> Iterator[NkiconvError]:
    """Errors of channels that do not go together."""
    wanted = (C, w.shape[1])
    yield from refused(GeometryError, rules.shape("w", w.shape, wanted, "[C, S]"), splits_unsupported(splits, C))
    if bias is not None:
        yield from refused(GeometryError, rules.shape("bias", bias.shape, (C,), "[C]"))


def _state_violations(x: Any, state: Any, wanted: tuple[int, int, int], W: int) -> Iterator[NkiconvError]:
    """Errors of states, where there are some."""
    size = wanted[2]
    yield from refused(GeometryError, *rules.state(Axis(W, size + 1, 1, size, 0, 1, 1)))
    if state is not None:
        words = "[N, C, S - 1], or of N sequences"
        yield from refused(GeometryError, rules.shape("initial_state", state.shape, wanted, words))
        yield from refused(DtypeError, rules.same("initial_state", "dtype", state.dtype, "x", x.dtype))
