"""Modules of rows that come in chunks, as neural codecs stream them, with torch's parameters and a state beside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .chunks import check_front, conv1d_chunk, conv_transpose1d_chunk, front_of
from .nn import Conv1d, ConvTranspose1d

__all__ = ["StreamingConv1d", "StreamingConvTranspose1d"]

# torch.fx traces a model with these modules into calls of these functions, which it does not look into.
torch.fx.wrap("conv1d_chunk")
torch.fx.wrap("conv_transpose1d_chunk")
torch.fx.wrap("front_of")


class StreamingConv1d(Conv1d):
    """`Conv1d` of rows that come in chunks: y of chunks one after the other is that of the whole.

        y, state = layer(chunk)  # the first one
        y, state = layer(chunk, state)

    Args:
        front: elements in front of the first chunk; None: window - stride, as causal codecs (EnCodec, Mimi) have it.
        padding_mode: what these are, "zeros" or "replicate", the row's first element. There is no other padding: what
            stands behind the rows is the last chunk's.
        The rest: as of `Conv1d`, stride at most the window, (S - 1) * dilation + 1.

    Raises: UnsupportedError, GeometryError.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        front: int | None = None,
        **fused: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, 0, dilation, groups, bias, "zeros", device, dtype, **fused
        )
        window = (self.kernel_size[0] - 1) * self.dilation[0] + 1
        mode: Any = padding_mode  # "replicate" is of the first chunk here
        self.front, self.padding_mode = check_front(front, window, self.stride[0], padding_mode), mode

    def forward(self, input: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """(y, state) of a chunk [N, C, W]; state: of the chunk before, None for the first. As of `conv1d_chunk`."""
        if state is None and isinstance(input, Tensor):
            state = front_of(input, self.front, self.padding_mode)
        return conv1d_chunk(
            input,
            state,
            self.weight,
            self.bias,
            self.stride,
            self.dilation,
            self.groups,
            activation=self.activation,
            layer=self.layer,
            strict_nonfinite=self.strict_nonfinite,
        )


class StreamingConvTranspose1d(ConvTranspose1d):
    """`ConvTranspose1d` of rows that come in chunks, `stride` outputs for each input, without padding.

        y, state = layer(chunk)  # the first one
        y, state = layer(chunk, state)

    Args: as of `ConvTranspose1d`, padding and output_padding 0.

    Raises: UnsupportedError, GeometryError.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int] = 1,
        device: Any = None,
        dtype: Any = None,
        **fused: Any,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            0,
            0,
            groups,
            bias,
            dilation,
            "zeros",
            device,
            dtype,
            **fused,
        )

    def forward(  # type: ignore[override]
        self, input: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(y, state) of a chunk [N, C, W]; state: of the chunk before. As of `conv_transpose1d_chunk`."""
        return conv_transpose1d_chunk(
            input,
            state,
            self.weight,
            self.bias,
            self.stride,
            self.groups,
            self.dilation,
            activation=self.activation,
            layer=self.layer,
            strict_nonfinite=self.strict_nonfinite,
        )
