"""The photograph as an image: conv2d blurs it, finds its edges, and runs it through two random layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...api.conv_problem import conv_problem
from ...problem import DTYPES, ConvProblem
from ...reference import AnyArray, Float64Array
from . import filters as fir
from . import plots

BLUR_SIGMA = 1.5
#: Channels between the two random layers, and the seed of their filters.
HIDDEN, SEED = 16, 7
#: Rec. 601: the weights of red, green and blue in brightness.
BRIGHTNESS = (0.299, 0.587, 0.114)
NAMES = ("image, Gaussian blur", "image, Sobel edges", "image, random 3->16", "image, random 16->3")
FILE = "image.png"


@dataclass(frozen=True)
class Layer:
    """One conv2d: w [K, C / groups, R, S], bias [K] or None, and the dtype of x, w and y."""

    name: str
    w: Float64Array
    dtype: str
    groups: int = 1
    bias: AnyArray | None = None
    activation: str | None = None


def layers() -> tuple[Layer, Layer, Layer, Layer]:
    """Blur, edges, and the two random layers, which are to follow each other."""
    bell = fir.gaussian(BLUR_SIGMA)
    blur = np.tile(np.outer(bell, bell), (3, 1, 1, 1))
    rng = np.random.default_rng(SEED)
    first = rng.standard_normal((HIDDEN, 3, 5, 5)) / 5
    second = rng.standard_normal((3, HIDDEN, 3, 3)) / 12
    biases = [rng.standard_normal(count).astype(np.float32) / 4 for count in (HIDDEN, 3)]
    return (
        Layer(NAMES[0], blur, "bf16", groups=3),
        Layer(NAMES[1], sobel(), "fp32"),
        Layer(NAMES[2], first, "bf16", bias=biases[0], activation="relu"),
        Layer(NAMES[3], second, "bf16", bias=biases[1], activation="relu"),
    )


def sobel() -> Float64Array:
    """Slopes of the brightness along rows and along columns, [2, 3, 3, 3], 1 on a ramp that rises by 1 a pixel."""
    smooth, slope = np.array([1.0, 2.0, 1.0]) / 4, np.array([-1.0, 0.0, 1.0]) / 2
    both = np.stack([np.outer(smooth, slope), np.outer(slope, smooth)])
    return np.asarray(np.einsum("krs,c->kcrs", both, BRIGHTNESS))


def arrays(x: AnyArray, layer: Layer) -> tuple[AnyArray, AnyArray, ConvProblem]:
    """x [1, C, H, W] and w in a layer's dtype, and the problem: as large an image, zeros outside."""
    dtype = DTYPES[layer.dtype]
    x, w = x.astype(dtype), layer.w.astype(dtype)
    return x, w, conv_problem(x, w, padding="same", groups=layer.groups)


def as_channels(picture: AnyArray) -> AnyArray:
    """[H, W, 3] as [1, 3, H, W]."""
    return np.ascontiguousarray(picture.transpose(2, 0, 1))[None]


def draw(picture: AnyArray, blurred: AnyArray, slopes: AnyArray, random: AnyArray, out: Path) -> Path:
    """Write one picture of all four, [H, W, 3] and results [1, K, H, W], side by side; returns its path."""
    H, W, _ = picture.shape
    edges = np.hypot(*np.asarray(slopes[0], np.float32))
    layers_out = _picture(random)
    taps = len(fir.gaussian(BLUR_SIGMA))
    top = float(np.percentile(layers_out, 99)) or 1.0
    panels: tuple[tuple[AnyArray, str, dict[str, str]], ...] = (
        (picture, "input", {}),
        (_picture(blurred).clip(0, 1), f"Gaussian blur, {taps} x {taps}, groups=3, bf16", {}),
        (edges, "Sobel edges: length of the slope of brightness, fp32", {"cmap": "gray_r"}),
        ((layers_out / top).clip(0, 1), f"random 3 -> {HIDDEN} -> 3, 5 x 5 and 3 x 3, bias, ReLU, bf16", {}),
    )
    path = out / FILE
    plots.side_by_side(f"conv2d of a photograph, [1, 3, {H}, {W}]", (20, 6.4), panels, "per pixel", path)
    return path


def _picture(channels: AnyArray) -> AnyArray:
    """[1, 3, H, W] as fp32 [H, W, 3]."""
    return np.asarray(channels[0], np.float32).transpose(1, 2, 0)
