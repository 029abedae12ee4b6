"""Two layers that learn the noise on the photograph: forward and all gradients by kernels, and the same in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...api.conv import conv2d
from ...api.gradients import conv2d_input, conv2d_weight
from ...reference import AnyArray
from ...simulator.profiling import Advance
from . import plots
from .curves import Curves

STEPS, RATE = 20, 0.8
#: Crops of a step, their rows and columns, the standard deviation of their noise; channels between the layers.
BATCH, CROP, NOISE, HIDDEN = 4, 32, 0.2, 16
SEED = 3
#: Rows and columns of the photograph that the layers are shown on.
SHOWN = 128
TITLE, FILE = "two layers learn the noise on the photograph", "training.png"


@dataclass(frozen=True)
class Layer:
    """w [K, C, 3, 3] and bias [K] of a convolution with padding 1."""

    w: AnyArray
    bias: AnyArray

    def stepped(self, dw: AnyArray, db: AnyArray) -> Layer:
        """The layer after a step of gradient descent."""
        return Layer(self.w - self.w.dtype.type(RATE) * dw, self.bias - self.bias.dtype.type(RATE) * db)


@dataclass(frozen=True)
class Arithmetic:
    """Who computes: y of (x, layer, activation), (dw, db) of (x, size of w, dy), dx of (size of x, w, dy)."""

    dtype: type[np.floating]
    forward: Callable[[AnyArray, Layer, str | None], AnyArray]
    toward_layer: Callable[[AnyArray, tuple[int, ...], AnyArray], tuple[AnyArray, AnyArray]]
    toward_input: Callable[[tuple[int, ...], AnyArray, AnyArray], AnyArray]


KERNELS = Arithmetic(
    np.float32,
    lambda x, layer, activation: conv2d(x, layer.w, padding=1, bias=layer.bias, activation=activation),
    lambda x, size, dy: conv2d_weight(x, size, dy, padding=1, bias_gradient=True),
    lambda size, w, dy: conv2d_input(size, w, dy, padding=1),
)


def _windows(x: AnyArray) -> AnyArray:
    """[N, C, H, W, 3, 3]: the window of each output."""
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(2, 3))


def _sums(x: AnyArray, w: AnyArray) -> AnyArray:
    return np.asarray(np.einsum("nchwrs,kcrs->nkhw", _windows(x), w, optimize=True))


def _forward(x: AnyArray, layer: Layer, activation: str | None) -> AnyArray:
    y = _sums(x, layer.w) + layer.bias[:, None, None]
    return np.tanh(y) if activation == "tanh" else y


#: NumPy in float64.
FLOAT64 = Arithmetic(
    np.float64,
    _forward,
    lambda x, size, dy: (np.einsum("nchwrs,nkhw->kcrs", _windows(x), dy, optimize=True), dy.sum((0, 2, 3))),
    lambda size, w, dy: _sums(dy, w[:, :, ::-1, ::-1].swapaxes(0, 1)),
)


def train(
    picture: AnyArray, by: Arithmetic, told: Callable[[float], None] = lambda _share: None
) -> tuple[list[float], list[Layer]]:
    """Losses by step, and the trained layers, from a picture [H, W, 3]; told: called with the share done."""
    first, second = (Layer(layer.w.astype(by.dtype), layer.bias.astype(by.dtype)) for layer in _layers())
    losses = []
    for step, (clean, noise) in enumerate(_batches(picture)):
        told(step / STEPS)
        x, wanted = (clean + noise).astype(by.dtype), noise.astype(by.dtype)
        hidden = by.forward(x, first, "tanh")
        error = by.forward(hidden, second, None) - wanted
        losses.append(float(np.mean(np.square(error, dtype=np.float64))))
        slope = error * by.dtype(2 / error.size)
        before = by.toward_input(hidden.shape, second.w, slope) * (1 - hidden**2)
        second = second.stepped(*by.toward_layer(hidden, second.w.shape, slope))
        first = first.stepped(*by.toward_layer(x, first.w.shape, before))
    return losses, [first, second]


def run(picture: AnyArray, out: Path, advance: Advance) -> tuple[Curves, Path]:
    """Train twice and draw; returns losses by step, and the picture's path."""
    what = f"training, {STEPS} steps"
    losses, layers = train(picture, KERNELS, lambda share: advance(what, share))
    curves = Curves(TITLE, "float64", train(picture, FLOAT64)[0], {"kernels": losses})
    advance("drawing the training", None)
    H, W, _ = picture.shape
    top, left = H // 5, (W - SHOWN) // 2
    clean = picture[top : top + SHOWN, max(0, left) : left + SHOWN].transpose(2, 0, 1)[None] - np.float32(0.5)
    x = clean + _noise(np.random.default_rng(SEED + 1), clean.shape)
    found = KERNELS.forward(KERNELS.forward(x, layers[0], "tanh"), layers[1], None)
    return curves, _draw(curves, clean, x, x - found, out / FILE)


def _layers() -> tuple[Layer, Layer]:
    rng = np.random.default_rng(SEED)
    sizes = ((HIDDEN, 3), (3, HIDDEN))
    first, second = (
        Layer(rng.standard_normal((K, C, 3, 3), np.float32) / np.float32(6 * C**0.5), np.zeros(K)) for K, C in sizes
    )
    return first, second


def _batches(picture: AnyArray) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Crops around 0, and noise for them, [4, 3, 32, 32] each, fp32."""
    rng = np.random.default_rng(SEED)
    H, W, _ = picture.shape
    for _ in range(STEPS):
        places = zip(rng.integers(0, H - CROP + 1, BATCH), rng.integers(0, W - CROP + 1, BATCH), strict=True)
        crops = np.stack([picture[top : top + CROP, left : left + CROP] for top, left in places]).transpose(0, 3, 1, 2)
        yield crops - np.float32(0.5), _noise(rng, crops.shape)


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> AnyArray:
    return rng.normal(0, NOISE, shape).astype(np.float32)


def _draw(curves: Curves, clean: AnyArray, noisy: AnyArray, cleaned: AnyArray, path: Path) -> Path:
    drawn = plots.figure(16, 4)
    axes = drawn.subplots(1, 4, width_ratios=(1.6, 1, 1, 1))
    curves.draw(axes[0])
    shown = {"the photograph": clean, "with noise": noisy, f"less the noise found, after {STEPS} steps": cleaned}
    for axis, (title, crops) in zip(axes[1:], shown.items(), strict=True):
        error = np.sqrt(np.mean(np.square(crops - clean)))
        axis.imshow((crops[0].transpose(1, 2, 0) + 0.5).clip(0, 1))
        axis.set_title(f"{title}\nerror {error:.3f} (black 0, white 1)", fontsize=10)
        axis.set(xticks=[], yticks=[])
    plots.save_figure(drawn, path)
    return path
