"""The convolutions in front of Whisper's encoder (small) in plain torch.nn.

nkiconv plan-model examples/whisper_stem.py:build_model --input 1x80x3000 --dtype bf16
"""

from torch import Tensor, nn


class Stem(nn.Module):
    """Two convolutions over a spectrogram, the second of which halves its length."""

    def __init__(self, bands: int = 80, channels: int = 768) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(bands, channels, 3, padding=1)
        self.conv2 = nn.Conv1d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, bands, W] -> [N, W / 2, channels]."""
        y = nn.functional.gelu(self.conv1(x))
        return nn.functional.gelu(self.conv2(y)).transpose(1, 2)


def build_model() -> nn.Module:
    """The model, with random weights."""
    return Stem()
