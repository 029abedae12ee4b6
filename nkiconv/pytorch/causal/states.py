"""Causal depthwise conv1d with a state in front of the rows: by torch, the simulator or the kernel, as `modes` says.

The kernel reads the state in place and writes the next one; x is not copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..computers import dispatch, host, modes
from ..computers.arrays import from_numpy, to_numpy
from ..errors import ComparisonError
from ..operators.called import Called
from ..operators.convolution import Convolution


def causal(
    channels: int, zeros: int, activation: str | None = None, layer: str | None = None, strict_nonfinite: bool = False
) -> Convolution:
    """The depthwise convolution of so many channels, with `zeros` before each row and none after."""
    return Convolution(
        name="depthwise_conv1d",
        stride=(1,),
        padding=((zeros, 0),),
        dilation=(1,),
        lhs_dilation=(1,),
        groups=channels,
        activation=activation,
        layer=layer or "causal_conv1d",
        strict_nonfinite=strict_nonfinite,
    )


@functools.lru_cache
def on_hosts(channels: int, zeros: int, activation: str | None, layer: str | None) -> Convolution:
    """`causal`, kept: making one takes as long as a small sum."""
    return causal(channels, zeros, activation, layer)


def convolve(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor | None,
    return_final_state: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y [N, C, L], final state [N, C, width - 1]) of rows that follow `state`, or zeros.

    Args:
        asked: as `causal` makes it, with width - 1 zeros.
        x: [N, C, L]. w: [C, 1, width]. bias: [C]. state: [N, C, width - 1], x's dtype.
        return_final_state: without it the final state is [N, C, 0].
    """
    nothing = x.new_empty(*x.shape[:2], 0)
    if w.shape[2] == 1 or x.shape[0] == 0:  # one tap has no state; no rows have no kernel
        y = dispatch.convolve(Called(asked, x, w, bias))
        return y, (x.new_empty(*x.shape[:2], w.shape[2] - 1) if return_final_state else nothing)
    if state is None and not return_final_state:
        return dispatch.convolve(Called(asked, x, w, bias)), nothing
    y, final = _compute(asked, x, w, bias, state, return_final_state)
    return y, (final if final is not None and return_final_state else nothing)


def _compute(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor | None,
    return_final_state: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(y, final state), wherever x is; a device computes a final state only where asked."""
    given = asked, x, w, bias, state
    found: tuple[torch.Tensor, torch.Tensor | None] = modes.results(
        x,
        lambda: on_host(host.convolve, *given),
        lambda: modes.lazy("device").convolve_with_states(*given, return_final_state),
        lambda: simulated(*given),
        lambda found: _compared(*given, found),
    )
    return found


def on_host(
    convolve: Callable[..., torch.Tensor],
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, final state) by one of `host`'s functions."""
    size = w.shape[2] - 1
    rows = with_state(x, state, size)
    bare = on_hosts(x.shape[1], 0, asked.activation, asked.layer)
    return convolve(bare, rows, w, bias, None), last_of(rows, size)


def last_of(rows: torch.Tensor, size: int, lent: bool = False) -> torch.Tensor:
    """The last columns of rows [N, C, ...], a copy unless they are lent."""
    last = rows.narrow(2, rows.shape[2] - size, size)
    return last if lent else last.clone(memory_format=torch.contiguous_format)


def with_state(x: torch.Tensor, state: torch.Tensor | None, size: int) -> torch.Tensor:
    """[N, C, size + L]: x after its state, or after zeros."""
    return torch.cat([x.new_zeros(*x.shape[:2], size) if state is None else state, x], dim=2)


def simulated(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor | None,
    return_final_state: bool = True,
    padding: Any = "causal",
    chunks: str | None = None,
) -> tuple[torch.Tensor, Any]:
    """(y, final state or None) of the kernel in the simulator; chunks: of a gated one."""
    from ...api.depthwise_conv1d import depthwise_conv1d

    found = depthwise_conv1d(
        to_numpy(x),
        to_numpy(w)[:, 0],
        padding=padding,
        bias=None if bias is None else to_numpy(bias),
        activation=asked.activation,
        initial_state=None if state is None else to_numpy(state),
        return_final_state=return_final_state,
        strict_nonfinite=asked.strict_nonfinite,
        chunks=chunks,
    )
    y, final = found if return_final_state else (found, None)
    return from_numpy(y), None if final is None else from_numpy(final)


def _compared(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor | None,
    found: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's results, where the kernel's y is near enough and its final state has the same bits."""
    from ..computers.simulated import require_agreement

    y, final = on_host(host.reference, asked, x, w, bias, state)
    bare = causal(x.shape[1], 0, asked.activation, asked.layer)
    require_agreement(Called(bare, with_state(x, state, w.shape[2] - 1), w, bias), y, found[0])
    if to_numpy(final).tobytes() != to_numpy(found[1]).tobytes():
        raise ComparisonError(
            f"{asked.where}: the kernel's final state is not the last {final.shape[2]} columns of initial_states and "
            f"x, on x {tuple(x.shape)}; report it with x and initial_states"
        )
    return y, final
