"""Blocks of ConvNeXt-T in plain torch.nn: 7 x 7 depthwise convolutions between linear layers.

nkiconv plan-model examples/convnext.py:build_model --input 1x3x224x224 --dtype bf16

With --input 32x3x224x224 and --fuse each block is two launches, the norm, GELU, scale and sum in the second, but for
the norms of the last stage, which cost less apart: 40 launches of 3.9 ms and these, modelled.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A depthwise convolution, then two linear layers at each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.shrink = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] -> the same."""
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.scale * self.shrink(nn.functional.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A stem of patches, and stages of blocks with strided convolutions between them."""

    def __init__(self, widths: tuple[int, ...] = (96, 192, 384, 768), depths: tuple[int, ...] = (3, 3, 9, 3)) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, stride=4)]
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if i > 0:
                layers.append(nn.Conv2d(widths[i - 1], width, 2, stride=2))
            layers += [Block(width) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, widths[-1], H / 32, W / 32]."""
        return self.layers(x)


def build_model() -> nn.Module:
    """The model, with random weights."""
    return ConvNeXt()
