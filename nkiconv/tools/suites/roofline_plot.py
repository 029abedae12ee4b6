"""A picture of a suite's rows under the rooflines of trn2: TFLOP/s over flops per byte, one dot per case and dtype."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...problem import ConvProblem
from ...simulator.dtypes import canonical
from ...simulator.profiling.roofline import bytes_per_ns, peak_flops_per_ns
from ...simulator.timing import Rates
from ...whole_file import whole_file

COLOURS = {
    "bf16": "tab:blue",
    "fp16": "tab:cyan",
    "fp32": "tab:orange",
    "fp8_e4m3": "tab:green",
    "fp8_e5m2": "tab:olive",
}

#: Columns of the names of cases, below the plot.
NAME_COLUMNS = 5
#: In pixels of the figure: half a dot's side, a character, a line, and where a number may stand next to its dot.
DOT_PIXELS, CHARACTER_PIXELS, LINE_PIXELS = 3, 8, 13
OFFSETS = ((5, 5), (-5, 5), (5, -5), (-5, -5), (5, 12), (-5, 12), (5, -12), (-5, -12), (14, 0), (-14, 0))


@dataclass(frozen=True)
class Dot:
    """A problem and its modelled time in us."""

    name: str
    problem: ConvProblem
    us: float

    @property
    def intensity(self) -> float:
        """Flops a byte, if x and w are read once and y is written once."""
        return self.problem.flops / self.problem.min_bytes

    @property
    def tflops(self) -> float:
        """TFLOP/s reached, those with padding included."""
        return self.problem.flops / self.us / 1e6


def draw(dots: Sequence[Dot], lnc: int, title: str, path: Path) -> None:
    """Write the picture as PNG: a number a case, whose names stand next to it, and a colour a dtype."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(10, 8), layout="constrained")
    axes = figure.subplots()
    rates = Rates()
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="flops per byte, x and w read once and y written once",
        ylabel="TFLOP/s, modelled",
        title=title,
    )
    _limits(axes, dots, lnc, rates)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(dot.name for dot in dots), 1)}
    for dot in dots:
        axes.scatter(dot.intensity, dot.tflops, color=COLOURS[dot.problem.dtype], s=16, zorder=3)
    each = -(-len(numbers) // NAME_COLUMNS)
    names = [f"{number:>2} {name}" for name, number in numbers.items()]
    for column in range(NAME_COLUMNS):
        part = "\n".join(names[column * each : (column + 1) * each])
        below = {"xycoords": "axes fraction", "textcoords": "offset points", "xytext": (-30, -44)}
        axes.annotate(part, (column / NAME_COLUMNS, 0.0), va="top", fontsize=9, **below)
    axes.legend(loc="lower right", fontsize=10)
    axes.grid(alpha=0.3, which="both")
    figure.canvas.draw()
    _number(axes, dots, numbers)
    with whole_file(path) as part_path:
        figure.savefig(part_path, format="png", dpi=120)


def _limits(axes: Any, dots: Sequence[Dot], lnc: int, rates: Rates) -> None:
    """The slope of HBM, which all dtypes share, once, and each dtype's peak from where that meets it."""
    rate = bytes_per_ns(lnc, rates)
    most = 2 * max(dot.intensity for dot in dots)
    peaks = {}
    for dtype in dict.fromkeys(dot.problem.dtype for dot in dots):
        name = canonical(dtype)
        assert name is not None
        peaks[dtype] = peak_flops_per_ns(name, lnc, rates)
    ends = min(dot.intensity for dot in dots) / 2, max(peaks.values()) / rate
    label = f"limit of HBM: {rate / 1e3:.2f} TB/s"
    axes.plot(ends, [end * rate / 1e3 for end in ends], color="black", linewidth=1, label=label)
    for dtype, peak in peaks.items():
        line = {"color": COLOURS[dtype], "linewidth": 1, "label": f"limit in {dtype}: {peak / 1e3:,.0f} TFLOP/s"}
        axes.plot([peak / rate, max(most, 2 * peak / rate)], [peak / 1e3] * 2, **line)


def _number(axes: Any, dots: Sequence[Dot], numbers: dict[str, int]) -> None:
    """Write each dot's number next to it, where it covers no other dot or number if there is such a place."""
    places = [axes.transData.transform((dot.intensity, dot.tflops)) for dot in dots]
    taken: list[tuple[float, ...]] = [(x, y, DOT_PIXELS, DOT_PIXELS) for x, y in places]
    for dot, (x, y) in zip(dots, places, strict=True):
        text = str(numbers[dot.name])
        width = CHARACTER_PIXELS * len(text)
        crowds: list[tuple[float, int, tuple[float, ...]]] = []
        for right, up in OFFSETS:
            box: tuple[float, ...] = (
                x + right + (width / 2 if right >= 0 else -width / 2),
                y + up,
                width / 2,
                LINE_PIXELS / 2,
            )
            crowds.append((sum(_overlap(box, other) for other in taken), len(crowds), box))
        _, _, chosen = min(crowds)
        taken.append(chosen)
        at = axes.transData.inverted().transform(chosen[:2])
        axes.text(*at, text, fontsize=9, ha="center", va="center", color=COLOURS[dot.problem.dtype])


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Pixels that two boxes (centre, half width and height) share."""
    wide = one[2] + other[2] - abs(one[0] - other[0])
    high = one[3] + other[3] - abs(one[1] - other[1])
    return max(0.0, wide) * max(0.0, high)
