"""Causal depthwise conv1d: a call of `nkiconv::causal_conv1d`, and rows with a state in front of them.

By torch, the simulator or the kernel, as `modes` says. The kernel reads the state in place and writes the next one; x
is not copied.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..computers import dispatch
from ..operators.called import Called
from ..operators.convolution import Convolution


class Call(NamedTuple):
    """The arguments of the operator."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    initial_states: Tensor | None
    cu_seqlens: Tensor | None
    seq_idx: Tensor | None
    return_final_states: bool
    activation: str | None
    layer: str | None
    strict_nonfinite: bool = False

    @property
    def w(self) -> Tensor:
        """The filter, [C, 1, width]."""
        return self.weight[:, None]

    @property
    def is_packed(self) -> bool:
        """Whether rows are packed; without rows there are no sequences that seq_idx could number."""
        return self.cu_seqlens is not None or (self.seq_idx is not None and self.x.shape[0] > 0)

    @property
    def asked(self) -> Convolution:
        """The convolution of rows, or of the row that sequences are packed in."""
        gap, strict = (0, True) if self.is_packed else (self.weight.shape[1] - 1, self.strict_nonfinite)
        return causal(self.weight.shape[0], gap, self.activation, self.layer, strict)


def causal(
    channels: int, zeros: int, activation: str | None = None, layer: str | None = None, strict_nonfinite: bool = False
) -> Convolution:
    """The depthwise convolution of so many channels, with `zeros` before each row and none after."""
    numbers, layer = ((1,), ((zeros, 0),), (1,), (1,), channels), layer or "causal_conv1d"
    return Convolution("depthwise_conv1d", *numbers, activation, layer=layer, strict_nonfinite=strict_nonfinite)


@functools.lru_cache
def on_hosts(channels: int, zeros: int, activation: str | None, layer: str | None) -> Convolution:
    """`causal`, kept: making one takes as long as a small sum."""
    return causal(channels, zeros, activation, layer)


def flops(rows: Any, positions: Any, weight: Sequence[Any]) -> int:
    """Of a depthwise convolution by a weight [C, width], two for each multiplication, as torch counts its own."""
    return 2 * int(rows * positions * math.prod(weight))


def convolve(given: Call) -> tuple[Tensor, Tensor]:
    """(y [N, C, L], final states [N, C, width - 1], or [N, C, 0] unless they are asked for) of rows that follow their
    states, or zeros."""
    x, w, keeps_state = given.x, given.w, given.return_final_states
    called, empty = Called(given.asked, x, w, given.bias), x.new_empty(*x.shape[:2], keeps_state * (w.shape[2] - 1))
    if w.shape[2] == 1 or x.shape[0] == 0:  # one tap has no state; no rows have no kernel
        return dispatch.convolve(called), empty
    found = dispatch.convolve(called._replace(state=given.initial_states, keeps_state=keeps_state))
    return found if keeps_state else (found, empty)
