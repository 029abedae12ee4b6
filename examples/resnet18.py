"""ResNet-18 in plain torch.nn, to try `nkiconv plan-model` on.

nkiconv plan-model examples/resnet18.py:build_model --input 1x3x224x224 --dtype bf16 --fold-batchnorm
"""

import itertools

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions, and a way past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.downsample.append(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False))
            self.downsample.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H / stride, W / stride]."""
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, and a classifier; `width`: channels of the first stage."""

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(*(self._stage(*pair) for pair in itertools.pairwise(widths)))
        self.head = nn.Linear(widths[-1], classes)

    @staticmethod
    def _stage(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            BasicBlock(inputs, outputs, stride=1 if inputs == outputs else 2), BasicBlock(outputs, outputs, stride=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def build_model() -> nn.Module:
    """The model, with random weights."""
    return ResNet18()
