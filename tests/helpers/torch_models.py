"""Small models of the kinds that convolve, written with torch.nn alone; each with an input of its own."""

import torch
from chained import made
from torch import nn
from torch.nn import functional as F


def resnet():
    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))

    convs = {"conv1": nn.Conv2d(4, 8, 3, 2, 1, bias=False), "conv2": nn.Conv2d(8, 8, 3, padding=1, bias=False)}
    down = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2), nn.BatchNorm2d(8))
    return made(forward, **convs, bn1=nn.BatchNorm2d(8), bn2=nn.BatchNorm2d(8), downsample=down)


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


def convnext():
    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + self.shrink(F.gelu(self.expand(y))).permute(0, 3, 1, 2)

    layers = {"norm": nn.LayerNorm(6), "expand": nn.Linear(6, 24), "shrink": nn.Linear(24, 6)}
    return made(forward, dwconv=nn.Conv2d(6, 6, 7, padding=3, groups=6), **layers)


def patches():
    def forward(self, x):
        y = self.projection(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(y), -1, -1), y], 1)

    return made(forward, projection=nn.Conv2d(3, 12, 4, stride=4), token=nn.Parameter(torch.zeros(1, 1, 12)))


def whisper():
    def forward(self, x):
        return F.gelu(self.conv2(F.gelu(self.conv1(x)))).transpose(1, 2)

    return made(forward, conv1=nn.Conv1d(5, 8, 3, padding=1), conv2=nn.Conv1d(8, 8, 3, stride=2, padding=1))


def conformer():
    """Pointwise with GLU, depthwise with batch norm and SiLU, pointwise."""

    def forward(self, x):
        y = F.glu(self.pointwise1(self.norm(x.transpose(1, 2)).transpose(1, 2)), dim=1)
        return x + self.pointwise2(F.silu(self.batch_norm(self.depthwise(y))))

    convs = {
        "pointwise1": nn.Conv1d(6, 12, 1), "depthwise": nn.Conv1d(6, 6, 5, padding=2, groups=6),
        "pointwise2": nn.Conv1d(6, 6, 1),
    }  # fmt: skip
    return made(forward, norm=nn.LayerNorm(6), **convs, batch_norm=nn.BatchNorm1d(6))


#: name: (what makes it, shape of its input, the operators that its convolutions become)
MODELS = {
    "resnet": (resnet, (2, 4, 9, 8), ["conv2d"] * 3),
    "vae": (VaeDecoderBlock, (1, 8, 5, 6), ["conv2d"] * 4),
    "convnext": (convnext, (2, 6, 8, 9), ["conv2d"]),
    "vit": (patches, (2, 3, 12, 8), ["conv2d"]),
    "whisper": (whisper, (2, 5, 13), ["conv1d"] * 2),
    "conformer": (conformer, (2, 6, 14), ["conv1d", "depthwise_conv1d", "conv1d"]),
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
