"""A picture of a suite's rows under the rooflines of trn2: TFLOP/s reached over flops a byte, one dot a case."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UnsupportedError
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


def check_matplotlib() -> None:
    """Raises UnsupportedError where there is no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("--plot: needs matplotlib; install nkiconv[plots]")


def draw(dots: Sequence[Dot], lnc: int, title: str, path: Path) -> None:
    """Write the picture as PNG."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(11, 6.6), layout="constrained")
    axes = figure.subplots()
    rates = Rates()
    least, most = min(dot.intensity for dot in dots), max(dot.intensity for dot in dots)
    intensities = np.geomspace(least / 2, most * 2, 200)
    for dtype in dict.fromkeys(dot.problem.dtype for dot in dots):
        name = canonical(dtype)
        assert name is not None
        peak = peak_flops_per_ns(name, lnc, rates) / 1e3
        roof = np.minimum(intensities * bytes_per_ns(lnc, rates) / 1e3, peak)
        axes.plot(intensities, roof, color=COLOURS[dtype], linewidth=1, label=f"limit in {dtype}: {peak:,.0f} TFLOP/s")
        mine = [dot for dot in dots if dot.problem.dtype == dtype]
        axes.scatter([dot.intensity for dot in mine], [dot.tflops for dot in mine], color=COLOURS[dtype], s=16)
        for dot in mine:
            _label(axes, dot)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("flops a byte, x and w read once and y written once")
    axes.set_ylabel("TFLOP/s, modelled")
    axes.set_title(title)
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3, which="both")
    with whole_file(path) as part:
        figure.savefig(part, format="png", dpi=120)


def _label(axes: Any, dot: Dot) -> None:
    axes.annotate(dot.name, (dot.intensity, dot.tflops), xytext=(3, 3), textcoords="offset points", fontsize=6)
