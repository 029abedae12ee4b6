"""Modules of fused blocks: a convolution with the steps before and after it, in one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import norms, rules
from ..errors import refused, shown
from ..schedules.split import LAYOUTS, Split, splits_unsupported, taps_unsupported
from .causal.split import as_tuples, causal_conv1d_split
from .errors import GeometryError, LayoutError, UnsupportedError, raise_all
from .function_modes import refuse_script
from .places import int_of, number_of

torch.fx.wrap("causal_conv1d_split")


class GatedDeltaConv(torch.nn.Module):
    """The convolution stage of Gated DeltaNet (Qwen3-Next), KDA (Kimi Linear) or Mamba2: causal depthwise convolution,
    SiLU, split into parts of heads, l2norm of the parts marked so.

        stage = GatedDeltaConv(((16, 128, True), (16, 128, True), (32, 128, False)), 4)
        q, k, v = stage(x)  # x [N, L, C], parts [N, L, heads, dim]

    `weight` [C, 1, width] and `bias` [C] have the names, shapes and initial values of a depthwise torch.nn.Conv1d, so
    that a state_dict of either loads into the other.

    Args:
        splits: ((heads, dim, normalised), ...) in order of the channels, as in `causal_conv1d_split`.
        kernel_size: taps, width, at most 16. bias: whether there is one.
        activation, eps, layout: as in `causal_conv1d_split`; layout is "NWC" by default.
        layer: a name for messages. device, dtype: of the parameters.

    Raises: GeometryError, LayoutError, UnsupportedError.
    """

    bias: torch.nn.Parameter | None
    __prepare_scriptable__ = refuse_script

    def __init__(
        self,
        splits: Sequence[Split],
        kernel_size: int,
        bias: bool = False,
        *,
        activation: str | None = "silu",
        eps: float = 1e-6,
        layout: str = "NWC",
        layer: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        parts: Any = as_tuples(splits)
        eps, kernel_size = number_of(eps), int_of(kernel_size)
        sizes = splits_unsupported(parts), rules.number("kernel_size", kernel_size)
        wrong: list[Any] = [*refused(GeometryError, *sizes)]
        wrong += refused(LayoutError, rules.layout("layout", layout, LAYOUTS))
        wrong += refused(UnsupportedError, rules.activation(activation), norms.eps(eps))
        raise_all("GatedDeltaConv cannot be built", wrong)
        raise_all("GatedDeltaConv cannot be built", list(refused(UnsupportedError, taps_unsupported(kernel_size))))
        self.splits: tuple[Split, ...] = parts
        self.activation, self.eps, self.layout, self.layer = activation, eps, layout, layer
        channels = sum(heads * dim for heads, dim, _ in parts)
        self.weight = torch.nn.Parameter(torch.empty(channels, 1, kernel_size, device=device, dtype=dtype))
        empty = torch.nn.Parameter(torch.empty(channels, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", empty)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch.nn.Conv1d: uniform, up to 1 / sqrt(width)."""
        bound = 1 / math.sqrt(self.weight.shape[2])
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self,
        x: Tensor,
        initial_states: Tensor | None = None,
        return_final_states: bool = False,
        cu_seqlens: Sequence[int] | Tensor | None = None,
        state_positions: Sequence[int] | Tensor | None = None,
    ) -> Any:
        """Parts [N, L, heads, dim], and states where asked for; arguments and errors as of
        `causal_conv1d_split`."""
        return causal_conv1d_split(
            x, self.weight.squeeze(1), self.bias, splits=self.splits, activation=self.activation, eps=self.eps,
            layout=self.layout, initial_states=initial_states, return_final_states=return_final_states,
            cu_seqlens=cu_seqlens, state_positions=state_positions, layer=self.layer,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Its arguments."""
        bias, named = self.bias is not None, f"activation={self.activation}, eps={self.eps}, layout={self.layout}"
        return f"{shown(self.splits)}, kernel_size={self.weight.shape[2]}, bias={bias}, {named}"
