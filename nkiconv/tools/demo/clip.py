"""A clip that pans and zooms over the photograph: conv3d blurs it in chunks, conv_transpose3d adds frames to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...api.conv_problem import conv_problem
from ...problem import DTYPES, ConvProblem
from ...reference import AnyArray, Float64Array
from . import plots

FRAMES = 9
#: Frames of each chunk.
CHUNKS = (1, 4, 4)
#: Rows and columns of the photograph for one of the clip.
SHRINK = 6
#: Share of the photograph's height and width that is seen, and where its middle is, at the first frame and the last.
SEEN, MIDDLE = (0.75, 0.6), ((0.42, 0.47), (0.34, 0.53))
#: Weights along time and along rows and columns: small ints over powers of 2, as pixels are, so that fp32 holds every
#: sum exactly and chunks, whose plans may add in another order, equal one run to the bit.
BLUR_T, BLUR_S = np.array([1, 2, 1]) / 4, np.array([1, 6, 15, 20, 15, 6, 1]) / 64
#: Along time, with a stride of 2: frames, and means of neighbours between them.
BETWEEN = np.array([1, 2, 1]) / 2
BLURRED, INTERPOLATED = "clip, blur", "clip, 9 to 17 frames"
FILE = "clip.png"


def clip(picture: AnyArray) -> AnyArray:
    """Frames of a picture [H, W, 3]: [1, 3, 9, H / 6, W / 6], bf16, of 256 levels of 1/256."""
    frames = [_frame(picture, at) for at in np.linspace(0, 1, FRAMES)]
    levels = np.rint(np.stack(frames).transpose(3, 0, 1, 2)[None] * 255)
    return (levels / 256).astype(DTYPES["bf16"])


def blur() -> AnyArray:
    """One filter for each colour, [3, 1, 3, 7, 7], bf16."""
    return _of_colours(np.einsum("t,r,s->trs", BLUR_T, BLUR_S, BLUR_S))


def blur_problem(x: AnyArray, w: AnyArray) -> ConvProblem:
    """The blur: of each frame and the two before it, without padding."""
    return conv_problem(x, w, groups=3, layout="NCDHW", filter_layout="KCTRS")


def with_still(x: AnyArray) -> AnyArray:
    """The clip after its first frame twice, the cache that the blur starts from."""
    return np.concatenate([x[:, :, :1]] * (len(BLUR_T) - 1) + [x], axis=2)


def between() -> AnyArray:
    """One filter for each colour, [3, 1, 3, 1, 1], bf16."""
    return _of_colours(BETWEEN[:, None, None])


def between_problem(x: AnyArray, w: AnyArray) -> ConvProblem:
    """The transposed convolution that doubles the frames but for the last."""
    N, C, D, H, W = x.shape
    return ConvProblem.transpose(
        N=N,
        C=C,
        D=D,
        H=H,
        W=W,
        K=C,
        groups=C,
        taps=w.shape[2:],
        stride=(2, 1, 1),
        padding=((1, 1), (0, 0), (0, 0)),
        output_padding=(0, 0, 0),
        dilation=(1, 1, 1),
        dtype="bf16",
    )


def draw(x: AnyArray, blurred: AnyArray, interpolated: AnyArray, out: Path) -> Path:
    """Write a sheet with a row of frames for each clip [1, 3, frames, rows, columns]; returns its path."""
    _, _, count, H, W = x.shape
    more = interpolated.shape[2]
    drawn = plots.figure(17, 6.4)
    drawn.suptitle(
        f"a clip, [1, 3, {count}, {H}, {W}], bf16: each frame blurred with the two before it by conv3d, in chunks of "
        f"{', '.join(map(str, CHUNKS))} frames; {more} frames of {count} by conv_transpose3d",
        fontsize=14,
    )
    taps = " x ".join(map(str, blur().shape[2:]))
    grid = drawn.add_gridspec(3, 4 * count, height_ratios=(2, 2, 1))
    _draw_row(drawn, grid[0, :], x, "input")
    _draw_row(drawn, grid[1, :], blurred, f"blurred, {taps}")
    _draw_row(drawn, grid[2, 1:-1], interpolated, "interpolated")
    path = out / FILE
    plots.save_figure(drawn, path)
    return path


def _draw_row(drawn: Any, place: Any, clip: AnyArray, title: str) -> None:
    """Frames side by side, those of the first clip at whole times and new ones, between these, with a border."""
    frames = np.asarray(clip[0], np.float32).transpose(1, 2, 3, 0)
    step = (FRAMES - 1) / (len(frames) - 1)
    for at, (frame, cell) in enumerate(zip(frames, place.subgridspec(1, len(frames)), strict=True)):
        axis = drawn.add_subplot(cell)
        axis.imshow(frame.clip(0, 1))
        axis.set(xticks=[], yticks=[], frame_on=at * step % 1 > 0)
        axis.set_title(f"{1 + at * step:g}", fontsize=9)
        for side in axis.spines.values():
            side.set(color=plots.AFTER, linewidth=3)
        if at == 0:
            axis.set_ylabel(title, fontsize=10)


def _frame(picture: AnyArray, at: float) -> Float64Array:
    """The frame at a time of 0 to 1, [H / 6, W / 6, 3]."""
    H, W, _ = picture.shape
    seen = np.interp(at, (0, 1), SEEN)
    rows, columns = (
        _weights(size, size * (np.interp(at, (0, 1), middle) - seen / 2), size * seen)
        for size, middle in zip((H, W), zip(*MIDDLE, strict=True), strict=True)
    )
    return np.asarray(np.einsum("ph,hwc,qw->pqc", rows, picture, columns, optimize=True))


def _weights(size: int, begin: float, extent: float) -> Float64Array:
    """Weights [size / 6, size] of the pixels from `begin` on, whose sums are 1: a triangle around each new pixel."""
    count = size // SHRINK
    each = extent / count
    middles = begin + each * (np.arange(count) + 0.5)
    weights = np.maximum(0, 1 - np.abs(middles[:, None] - np.arange(size) - 0.5) / max(1.0, each))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _of_colours(w: AnyArray) -> AnyArray:
    return np.tile(w, (3, 1, 1, 1, 1)).astype(DTYPES["bf16"])
