"""Modules of rows that come in chunks, as neural codecs stream them, with torch's parameters and a state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .chunks import FRONTS, check_front, conv1d_chunk, conv_transpose1d_chunk, front_of
from .nn import Conv1d, ConvTranspose1d

__all__ = ["StreamingConv1d", "StreamingConvTranspose1d"]

# torch.fx traces a model with these modules into calls of these functions, which it does not look into.
torch.fx.wrap("conv1d_chunk")
torch.fx.wrap("conv_transpose1d_chunk")
torch.fx.wrap("front_of")


class StreamingConv1d(Conv1d):
    """`Conv1d` of rows in chunks: the concatenated results of chunks equal the result of the whole rows.

        y, state = layer(chunk)  # the first one
        y, state = layer(chunk, state)

    Args:
        in_channels, ..., dtype: as in `Conv1d`, in its order, without padding; stride at most the window,
            (S - 1) * dilation + 1.
        padding_mode: the elements in front of the first chunk, "zeros" or "replicate", the row's first element. Put
            padding after the rows into the last chunk.
        front: the number of these elements; None: window - stride, as in causal codecs (EnCodec, Mimi).
        The rest: as in `Conv1d`.

    Raises: UnsupportedError, GeometryError.
    """

    padding_modes = FRONTS

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        *numbers: Any,
        front: int | None = None,
        **named: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, 0, *numbers, **named)
        window = (self.kernel_size[0] - 1) * self.dilation[0] + 1
        self.front = check_front(front, window, self.stride[0])

    def forward(self, input: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """(y, state) of a chunk [N, C, W], as in `conv1d_chunk`; state: of the chunk before, None for the first."""
        if state is None and isinstance(input, Tensor):
            state = front_of(input, self.front, self.padding_mode)
        weight, packed = self._filters(input)
        return conv1d_chunk(
            input, state, weight, self.bias, self.stride, self.dilation, self.groups, packed=packed, **self._fused()
        )


class StreamingConvTranspose1d(ConvTranspose1d):
    """`ConvTranspose1d` of rows in chunks, `stride` outputs for each input, without padding.

        y, state = layer(chunk)  # the first one
        y, state = layer(chunk, state)

    Args: as in `ConvTranspose1d`, in its order, without padding and output_padding.

    Raises: UnsupportedError, GeometryError.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        *numbers: Any,
        **named: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, 0, 0, *numbers, **named)

    def forward(self, input: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """(y, state) of a chunk [N, C, W]; state: of the chunk before. As of `conv_transpose1d_chunk`."""
        return conv_transpose1d_chunk(
            input, state, self.weight, self.bias, self.stride, self.groups, self.dilation, **self._fused()
        )
