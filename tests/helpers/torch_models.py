"""Small models of the kinds that convolve, written with torch.nn alone; each with an input of its own."""

import torch
from torch import nn
from torch.nn import functional as F


class ResNetBlock(nn.Module):
    def __init__(self, inputs=4, outputs=8, stride=2):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class VaeDecoderBlock(nn.Module):
    """Group norms and SiLU before each convolution, then twice the size."""

    def __init__(self, inputs=8, outputs=4):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, inputs), nn.GroupNorm(2, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)
        self.upsample = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(outputs, outputs, 3, padding="same"))

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return self.upsample(y + self.shortcut(x))


class ConvNextBlock(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand, self.shrink = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + self.shrink(F.gelu(self.expand(y))).permute(0, 3, 1, 2)


class PatchEmbedding(nn.Module):
    def __init__(self, patch=4, channels=12):
        super().__init__()
        self.projection = nn.Conv2d(3, channels, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, channels))

    def forward(self, x):
        y = self.projection(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(y), -1, -1), y], 1)


class WhisperStem(nn.Module):
    def __init__(self, bands=5, channels=8):
        super().__init__()
        self.conv1 = nn.Conv1d(bands, channels, 3, padding=1)
        self.conv2 = nn.Conv1d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x):
        return F.gelu(self.conv2(F.gelu(self.conv1(x)))).transpose(1, 2)


class ConformerConvolution(nn.Module):
    """Pointwise with GLU, depthwise with batch norm and SiLU, pointwise."""

    def __init__(self, channels=6, taps=5):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.pointwise1 = nn.Conv1d(channels, 2 * channels, 1)
        self.depthwise = nn.Conv1d(channels, channels, taps, padding=taps // 2, groups=channels)
        self.batch_norm = nn.BatchNorm1d(channels)
        self.pointwise2 = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        y = F.glu(self.pointwise1(self.norm(x.transpose(1, 2)).transpose(1, 2)), dim=1)
        return x + self.pointwise2(F.silu(self.batch_norm(self.depthwise(y))))


#: name: (class, shape of its input, the operators that its convolutions become)
MODELS = {
    "resnet": (ResNetBlock, (2, 4, 9, 8), ["conv2d"] * 3),
    "vae": (VaeDecoderBlock, (1, 8, 5, 6), ["conv2d"] * 4),
    "convnext": (ConvNextBlock, (2, 6, 8, 9), ["conv2d"]),
    "vit": (PatchEmbedding, (2, 3, 12, 8), ["conv2d"]),
    "whisper": (WhisperStem, (2, 5, 13), ["conv1d"] * 2),
    "conformer": (ConformerConvolution, (2, 6, 14), ["conv1d", "depthwise_conv1d", "conv1d"]),
}


def build(name, seed=0):
    """(model in eval mode, its input), random; batch norms have statistics that are not the trivial ones."""
    torch.manual_seed(seed)
    kind, shape, _operators = MODELS[name]
    model = kind().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return model, torch.randn(shape)
