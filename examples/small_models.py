"""Five small networks and the real pictures and recordings that `train_small.py` trains them on.

Pictures are crops of the photograph, labelled by the quarter that a crop's middle is in; recordings are windows of the
EEG, whose next sample is wanted; of both with noise on them the noise. Both come with matplotlib
(`nkiconv.tools.demo`). Everything is fp32. Activations are smooth, for the reason that `train_small.py` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nkiconv.tools.demo import eeg, photograph

BATCH = 8
#: Rows and columns of a crop; samples of a window; standard deviation of the noise on a crop, and on a window.
CROP, WINDOW, CROP_NOISE, WINDOW_NOISE = 32, 128, 0.2, 1.0


class ResNet(nn.Module):
    """A stem, a block, and a block that halves the picture; pictures [N, 3, H, W] to scores [N, 4]."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = _normed(3, width)
        self.first = nn.Sequential(_normed(width, width), nn.SiLU(), _normed(width, width))
        self.second = nn.Sequential(_normed(width, 2 * width, stride=2), nn.SiLU(), _normed(2 * width, 2 * width))
        self.past = nn.Conv2d(width, 2 * width, 1, stride=2, bias=False)
        self.head = nn.Linear(2 * width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem(x))
        x = F.silu(x + self.first(x))
        x = F.silu(self.past(x) + self.second(x))
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


def _normed(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Mamba2(nn.Module):
    """A Mamba2 layer of transformers between two linear ones: [N, electrodes, W] to as many next samples."""

    def __init__(self, electrodes: int = 4, width: int = 16) -> None:
        super().__init__()
        from transformers import Mamba2Config, Mamba2Model

        sizes = {"hidden_size": width, "num_heads": 4, "head_dim": width // 2, "state_size": 8, "n_groups": 1}
        self.stem = nn.Linear(electrodes, width)
        self.body = Mamba2Model(Mamba2Config(vocab_size=4, num_hidden_layers=1, chunk_size=16, **sizes))
        self.head = nn.Linear(width, electrodes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(inputs_embeds=self.stem(x.mT), use_cache=False).last_hidden_state
        following: Tensor = self.head(hidden).mT
        return following


class Conformer(nn.Module):
    """A Conformer's convolution module between two others: noisy recordings [N, electrodes, W] to their noise."""

    def __init__(self, electrodes: int = 4, width: int = 16, taps: int = 31) -> None:
        super().__init__()
        self.stem = nn.Conv1d(electrodes, width, 5, padding=2)
        self.before = nn.LayerNorm(width)
        self.open = nn.Conv1d(width, 2 * width, 1)
        self.along = nn.Conv1d(width, width, taps, padding=taps // 2, groups=width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.close = nn.Conv1d(width, width, 1)
        self.head = nn.Conv1d(width, electrodes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inside = F.glu(self.open(self.before(x.mT).mT), dim=1)
        x = x + self.close(F.silu(self.norm(self.along(inside))))
        noise: Tensor = self.head(x)
        return noise


class UNet(nn.Module):
    """Once down and once up, with a way across: noisy pictures [N, 3, H, W] to their noise."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.head = nn.Conv2d(2 * width, 3, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, channels) for channels in (width, 2 * width, 2 * width)])

    def forward(self, x: Tensor) -> Tensor:
        across = F.silu(self.norms[0](self.stem(x)))
        x = F.silu(self.norms[1](self.down(across)))
        x = F.silu(self.norms[2](self.middle(x)))
        noise: Tensor = self.head(torch.cat([self.up(x), across], 1))
        return noise


class WaveNet(nn.Module):
    """Gated causal convolutions, each twice as far apart as the one before: [N, electrodes, W] to next samples."""

    def __init__(self, electrodes: int = 4, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv1d(electrodes, width, 1)
        self.gated = nn.ModuleList([nn.Conv1d(width, 2 * width, 2, dilation=2**at) for at in range(layers)])
        self.joined = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(layers)])
        self.head = nn.Conv1d(width, electrodes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for gated, joined in zip(self.gated, self.joined, strict=True):
            signal, gate = gated(F.pad(x, (gated.dilation[0], 0))).chunk(2, 1)
            x = x + joined(signal.tanh() * gate.sigmoid())
        following: Tensor = self.head(x)
        return following


#: A batch's input and what is wanted of it, drawn by a generator.
Batch = tuple[Tensor, Tensor]


def quarters(generator: torch.Generator) -> Batch:
    """Crops of the photograph [8, 3, 32, 32], and which quarter of it each is from."""
    crops, tops, lefts, (rows, columns) = _crops(generator)
    middle = CROP // 2
    return crops, 2 * (tops + middle >= rows // 2).long() + (lefts + middle >= columns // 2).long()


def noisy_crops(generator: torch.Generator) -> Batch:
    """Crops with noise on them [8, 3, 32, 32], and the noise."""
    return _noisy(_crops(generator)[0], CROP_NOISE, generator)


def noisy_windows(generator: torch.Generator) -> Batch:
    """Windows of the EEG with noise on them [8, 4, 128], and the noise."""
    return _noisy(_windows(generator, WINDOW), WINDOW_NOISE, generator)


def following(generator: torch.Generator) -> Batch:
    """Windows of the EEG [8, 4, 128], and the same one sample later."""
    windows = _windows(generator, WINDOW + 1)
    return windows[..., :-1], windows[..., 1:]


def _noisy(clean: Tensor, deviation: float, generator: torch.Generator) -> Batch:
    noise = deviation * torch.randn(clean.shape, generator=generator)
    return clean + noise, noise


def _crops(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
    """(crops, their tops, their lefts, the photograph's rows and columns)."""
    picture = torch.from_numpy(photograph.picture()).permute(2, 0, 1) - 0.5
    rows, columns = picture.shape[1:]
    tops, lefts = (torch.randint(size - CROP + 1, (BATCH,), generator=generator) for size in (rows, columns))
    crops = [picture[:, top : top + CROP, left : left + CROP] for top, left in zip(tops, lefts, strict=True)]
    return torch.stack(crops), tops, lefts, (rows, columns)


def _windows(generator: torch.Generator, samples: int) -> Tensor:
    recording = torch.from_numpy(eeg.recording()[0])
    begins = torch.randint(recording.shape[1] - samples + 1, (BATCH,), generator=generator)
    return torch.stack([recording[:, begin : begin + samples] for begin in begins])


@dataclass(frozen=True)
class Task:
    """A network, what it learns from, by which loss, and the step of gradient descent."""

    title: str
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]
    rate: float


TASKS = {
    "resnet": Task("ResNet: which quarter of the photograph", ResNet, quarters, F.cross_entropy, 0.05),
    "mamba2": Task("Mamba2: the EEG's next sample", Mamba2, following, F.mse_loss, 0.1),
    "conformer": Task("Conformer: the noise on the EEG", Conformer, noisy_windows, F.mse_loss, 0.1),
    "unet": Task("UNet: the noise on the photograph", UNet, noisy_crops, F.mse_loss, 0.1),
    "wavenet": Task("WaveNet: the EEG's next sample", WaveNet, following, F.mse_loss, 0.1),
}
