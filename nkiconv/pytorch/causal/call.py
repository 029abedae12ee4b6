"""One call of `nkiconv::causal_conv1d`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..operators.convolution import Convolution
from . import states


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
        return states.causal(self.weight.shape[0], gap, self.activation, self.layer, strict)
