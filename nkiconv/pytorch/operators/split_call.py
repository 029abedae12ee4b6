"""One call of `causal_conv1d_split`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ...schedules.split import Split

NAME = "causal_conv1d_split"


class SplitCall(NamedTuple):
    """The arguments of `causal_conv1d_split`, splits and places as tuples."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    initial_states: Tensor | None
    splits: tuple[Split, ...]
    activation: str | None
    eps: float
    layout: str
    return_final_states: bool
    cu_seqlens: tuple[int, ...] | None
    state_positions: tuple[int, ...] | None
    first_channel: int | None
    layer: str | None

    @property
    def where(self) -> str:
        """Who calls, as messages begin."""
        return self.layer or NAME

    @property
    def rows(self) -> Tensor:
        """What is convolved of x, as [N, C, L]."""
        rows = self.x if self.layout == "NCW" else self.x.transpose(1, 2)
        return rows if self.first_channel is None else rows.narrow(1, self.first_channel, self.weight.shape[0])

    @property
    def num_states(self) -> int:
        """Rows that have states: images or sequences."""
        return self.x.shape[0] if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def places(self) -> dict[str, Any]:
        """The kernel's arguments of sequences, positions and channels, as far as they are asked for."""
        named = {name: getattr(self, name) for name in ("cu_seqlens", "state_positions", "first_channel")}
        return {name: one for name, one in named.items() if one is not None}

    def mapped(self, function: Callable[[Tensor], Tensor]) -> SplitCall:
        """The same of other tensors."""
        bias, before = (None if one is None else function(one) for one in (self.bias, self.initial_states))
        return self._replace(x=function(self.x), weight=function(self.weight), bias=bias, initial_states=before)
