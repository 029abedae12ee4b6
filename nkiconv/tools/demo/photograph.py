"""A photograph: every row of every colour is a channel of a depthwise convolution along the rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...api.depthwise_conv1d import depthwise_problem
from ...problem import DTYPES, ConvProblem
from ...reference import AnyArray, Float64Array
from . import filters as fir
from . import plots

BLUR_SIGMA, SLOPE_SIGMA = 5.0, 1.0
#: Brightness, of 1, that a slope of 1 (black to white in one pixel) gets in the picture of slopes, around mid-grey.
SLOPE_GAIN = 2.0


@dataclass(frozen=True)
class Effect:
    """A filter that all rows share, and the dtype it runs in."""

    name: str
    w: Float64Array
    dtype: str


EFFECTS = (
    Effect("blur", fir.gaussian(BLUR_SIGMA), "bf16"),
    Effect("derivative", fir.gaussian_derivative(SLOPE_SIGMA), "fp32"),
)


def picture() -> AnyArray:
    """Grace Hopper, 0 to 1, fp32 [H, W, 3]. Raises UnsupportedError."""
    pixels = plots.read_picture(plots.sample_data("grace_hopper.jpg"))
    return np.asarray(pixels, np.float32) / 255


def arrays(image: AnyArray, effect: Effect) -> tuple[AnyArray, AnyArray]:
    """x [1, 3 H, W], row by row and in each row colour by colour, and w [3 H, S], in the effect's dtype."""
    H, W, colours = image.shape
    dtype = DTYPES[effect.dtype]
    x = np.ascontiguousarray(image.transpose(0, 2, 1)).reshape(1, H * colours, W).astype(dtype)
    return x, np.tile(effect.w, (H * colours, 1)).astype(dtype)


def problem(x: AnyArray, w: AnyArray) -> ConvProblem:
    """The convolution: as wide a picture, zeros outside."""
    return depthwise_problem(x, w, padding="same")


def as_picture(y: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    """y [1, 3 H, W] as fp32 [H, W, 3] again."""
    H, W, colours = shape
    return np.asarray(y, np.float32).reshape(H, colours, W).transpose(0, 2, 1)


def draw(image: AnyArray, blurred: AnyArray, slope: AnyArray, out: Path) -> tuple[Path, ...]:
    """Write the three pictures [H, W, 3] and one with all of them side by side; returns the paths."""
    paths = tuple(
        out / name for name in ("photograph.png", "photograph-blur.png", "photograph-derivative.png", "photographs.png")
    )
    for values, path in zip((image, blurred, 0.5 + SLOPE_GAIN * slope), paths, strict=False):
        plots.save_picture(values, path)
    _draw_side_by_side(image, blurred, slope, paths[-1])
    return paths


def _draw_side_by_side(image: AnyArray, blurred: AnyArray, slope: AnyArray, path: Path) -> None:
    H, W, _ = image.shape
    taps = {effect.name: len(effect.w) for effect in EFFECTS}
    grey = slope.mean(axis=2)
    limit = float(np.percentile(np.abs(grey), 99.5))
    blur = f"Gaussian blur, sigma {BLUR_SIGMA:g} pixels, {taps['blur']} taps, bf16\n(zeros outside: dark edges)"
    of_slope = f"slope, derivative of a Gaussian, {taps['derivative']} taps, fp32\n(mean of the colours)"
    panels: tuple[tuple[AnyArray, str, dict[str, Any]], ...] = (
        (image, "input", {}),
        (blurred.clip(0, 1), blur, {}),
        (grey, of_slope, {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}),
    )
    title = f"{H} rows x 3 colours = {3 * H} channels of {W} pixels, filtered along the rows"
    plots.side_by_side(title, (16, 6.6), panels, "change of brightness per pixel", path)
