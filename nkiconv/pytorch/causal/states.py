"""Causal depthwise conv1d with a state in front of the rows: by torch, the simulator or the kernel, as `modes` says.

The kernel reads the state in place and writes the next one; x is not copied.
"""

from __future__ import annotations

import functools

import torch

from ..computers import dispatch
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
    found = dispatch.convolve(Called(asked, x, w, bias, state=state, keeps_state=return_final_state))
    return found if return_final_state else (found, nothing)
