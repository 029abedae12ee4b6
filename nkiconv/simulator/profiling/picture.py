"""One PNG of a profile: the timeline of core 0 above, where the time goes and the roofline below."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..hardware import CONSTANTS
from ..timeline import ENGINES
from ..timing import DmaPrice
from .report import Profile
from .roofline import bytes_per_ns, peak_flops_per_ns
from .timed import Timed
from .usage import own_ns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "tensor": "#4c72b0",
    "vector": "#dd8452",
    "scalar": "#55a868",
    "gpsimd": "#8172b3",
    "sync": "#937860",
    "loads": "#64b5cd",
    "stores": "#c44e52",
    "stall": "#f3dcdc",
}
#: Slices drawn one by one; denser timelines are drawn as shares of equal bins.
_SLICES_MAX = 4000
_BINS = 600
#: Slices that get an edge, and changes of the Tensor Engine's rate that get a line: more of them would hide the rest.
_EDGED_MAX, _CHANGES_MAX = 200, 12
#: Share of the width below which a stall's name does not fit.
_NAMED_SHARE = 0.24
#: Of the axis, a character of such a name: one that is longer than its bar is left out.
_CHARACTER = 0.017


def picture(found: Profile, timed: Timed, path: Path, title: str = "") -> None:
    """Draw a profile.

    Raises ModuleNotFoundError where matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 3, height_ratios=[1.25, 1.0])
    figure.suptitle(title or found.kernel, fontsize=12, fontweight="bold")
    _timeline(figure.add_subplot(grid[0, :]), found, timed)
    _use(figure.add_subplot(grid[1, 0]), found)
    _path(figure.add_subplot(grid[1, 1]), found)
    _roofline(figure.add_subplot(grid[1, 2]), found, timed)
    figure.savefig(path, format="png", dpi=110)


def _rows(timed: Timed) -> dict[str, list[tuple[float, float]]]:
    """(begin, end) in us of the bars in each row of the timeline, of core 0."""
    line, tasks = timed.line, timed.tasks
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in (*ENGINES, "loads", "stores")}
    for task, price in enumerate(timed.prices):
        core, code = divmod(tasks.engine[task], len(ENGINES))
        if core != 0:
            continue
        rows[ENGINES[code]].append((line.start[task], line.start[task] + own_ns(price, line, task)))
        if type(price) is DmaPrice:
            way = "loads" if tasks.source[task].writes[0].info.on_chip else "stores"
            rows[way].append((line.arrival[task], line.visible[task]))
    begin = line.begin_ns
    return {name: sorted(((a - begin) / 1e3, (b - begin) / 1e3) for a, b in spans) for name, spans in rows.items()}


def _timeline(axes: Axes, found: Profile, timed: Timed) -> None:
    rows = {name: spans for name, spans in _rows(timed).items() if spans}
    span_us = timed.line.total_ns / 1e3
    for height, (name, spans) in enumerate(reversed(rows.items())):
        if len(spans) <= _SLICES_MAX:
            bars = [(a, max(b - a, span_us / 4000)) for a, b in _joined(spans)]
            edge = 0.15 if len(bars) <= _EDGED_MAX else 0.0
            axes.broken_barh(bars, (height - 0.38, 0.76), facecolors=_COLOURS[name], edgecolor="white", linewidth=edge)
        else:
            _bins(axes, spans, height, span_us, _COLOURS[name])
    labels = [_label(name, found) for name in reversed(rows)]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_xlim(0, span_us)
    axes.set_xlabel("us from the first DMA issue (modelled, core 0, throttle phase 0)")
    changes = [(time - timed.line.begin_ns) / 1e3 for time, fast in timed.line.throttle_changes[0] if fast]
    shown = [at for at in changes if 0 <= at <= span_us]
    phases = found.phases
    title = f"phase 0: {phases.phase0_us:,.1f} us {CONSTANTS.modelled}, bound by {found.bound_by}; mean of phases "
    title += f"{phases.mean_us:,.1f} us, {found.roofline_fraction:.0%} of roofline"
    if found.full_rate_share is not None:
        title += f"; Tensor Engine at full rate {found.full_rate_share:.0%} of the time"
    if 0 < len(shown) <= _CHANGES_MAX:
        title += " (from the dotted lines on)"
        for at in shown:
            axes.axvline(at, color=_COLOURS["tensor"], linewidth=0.8, linestyle=":")
    axes.set_title(title, fontsize=10)


def _joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Overlapping spans as one."""
    out: list[tuple[float, float]] = []
    for begin, end in spans:
        if out and begin < out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def _bins(axes: Axes, spans: list[tuple[float, float]], height: float, span_us: float, colour: str) -> None:
    """Too many slices to tell apart: the share of each bin that is busy, as height."""
    import numpy as np

    width = span_us / _BINS
    busy = np.zeros(_BINS + 1)
    for begin, end in _joined(spans):
        first, last = min(int(begin / width), _BINS - 1), min(int(end / width), _BINS - 1)
        if first == last:
            busy[first] += end - begin
        else:
            busy[first] += (first + 1) * width - begin
            busy[first + 1 : last] += width
            busy[last] += end - last * width
    shares = np.minimum(busy[:_BINS] / width, 1.0)
    axes.bar(np.arange(_BINS) * width, 0.76 * shares, width, bottom=height - 0.38, align="edge", color=colour)


def _label(name: str, found: Profile) -> str:
    for use in found.engines:
        if use.core == 0 and use.engine == name:
            return f"{name} {use.busy_us / _span_us(found):.0%}"
    return name


def _span_us(found: Profile) -> float:
    use = found.engines[0]
    return use.busy_us + use.stalled_us + use.idle_us


def _use(axes: Axes, found: Profile) -> None:
    """Busy, stalled and idle shares of core 0's engines."""
    uses = [use for use in found.engines if use.core == 0 and use.instructions][::-1]
    span = _span_us(found)
    for height, use in enumerate(uses):
        colour = _COLOURS.get(use.engine, "#64b5cd")
        left = use.busy_us / span
        axes.barh(height, left, color=colour)
        stalls = list(use.stalls_us.items())
        for what, us in stalls[:2]:
            share = us / span
            axes.barh(height, share, left=left, color=_COLOURS["stall"], edgecolor="white")
            if share > max(_NAMED_SHARE, _CHARACTER * len(f"waits for {what}")):
                axes.text(left + share / 2, height, f"waits for {what}", ha="center", va="center", fontsize=7)
            left += share
    axes.set_yticks(range(len(uses)), [use.engine for use in uses])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title("engines of core 0: busy, stalled, idle", fontsize=10)


def _path(axes: Axes, found: Profile) -> None:
    shares = found.path_kinds[:7][::-1]
    colours = [_COLOURS.get(share.what.split()[0], _COLOURS["loads"]) for share in shares]
    axes.barh(range(len(shares)), [share.share for share in shares], color=colours)
    axes.set_yticks(range(len(shares)), [share.what for share in shares], fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title("critical path", fontsize=10)


def _roofline(axes: Axes, found: Profile, timed: Timed) -> None:
    """Useful TFLOP/s against flops per byte, under the limits of the launch's cores; of a kernel without matmuls, whose
    only limit is HBM, times."""
    if not (found.flops or found.matmul_flops):
        axes.barh(["modelled", "limit of HBM"], [found.modelled_us, found.roofline_us], color=["#c44e52", "black"])
        axes.set(xlabel="us")
        axes.set_title(f"no matmuls: {found.roofline_fraction:.0%} of HBM's limit", fontsize=10)
        return
    rates = timed.rates
    peak, slope = peak_flops_per_ns(found.dtype, found.lnc, rates) / 1e3, bytes_per_ns(found.lnc, rates) / 1e3
    flops = found.flops if found.flops else found.matmul_flops
    intensity = flops / max(found.min_bytes, 1)
    xs: list[float] = [min(intensity, 0.1), peak / slope, max(intensity, peak / slope) * 20]
    axes.plot(xs, [min(peak, slope * x) for x in xs], color="black")
    done = flops / (found.modelled_us * 1e6)
    axes.plot([intensity], [done], "o", color="#c44e52")
    axes.plot([intensity, intensity], [done, min(peak, slope * intensity)], color="#c44e52", linestyle=":")
    axes.annotate(f"{found.roofline_fraction:.0%}", (intensity, done), xytext=(6, -10), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="useful flops per byte moved at least", ylabel="TFLOP/s")
    axes.set_title(f"roofline, {found.dtype}, {found.lnc} core{'s' if found.lnc > 1 else ''}", fontsize=10)
