"""How problems and reports look in a table."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from ...axis import Axis
from ...problem import ConvProblem
from ...simulator.hardware import PSUM_BYTES_PER_PARTITION, SBUF_USABLE_BYTES_PER_PARTITION
from ...simulator.profiling.show import quantity as quantity
from .grid import Grid
from .shell import say

if TYPE_CHECKING:
    from ...planner import Plan
    from ..demo.curves import Curves
    from ..verify import Report


def extents(problem: ConvProblem) -> str:
    """Extents by their letters, and all other fields that are not trivial, as in "N=1 C=512 W=5000 S=8 pad=3,0"."""
    letters = "NCWS" if problem.is_depthwise and problem.H == problem.R == 1 else "NCHWKRS"
    if problem.is_volume:
        letters = "NCDHWKTRS"
    parts = [f"{letter}={getattr(problem, letter)}" for letter in letters]
    if not problem.is_depthwise and problem.groups > 1:
        parts.append(f"groups={problem.groups}")
    one_row = problem.H == problem.R == 1 and not problem.is_volume
    axes = problem.axes[-1:] if one_row else problem.axes
    between = "stride" if problem.transposed else "lhs_dilation"
    for name, values in (
        ("stride", [str(axis.stride) for axis in axes]),
        ("dilation", [str(axis.rhs_dilation) for axis in axes]),
        (between, [str(axis.lhs_dilation) for axis in axes]),
    ):
        if set(values) != {"1"}:
            parts.append(f"{name}={'x'.join(values)}")
    pads = [_sides(problem, axis) for axis in axes]
    if set(pads) != {"0,0"}:
        parts.append(f"pad={' x '.join(dict.fromkeys(pads) if len(set(pads)) == 1 else pads)}")
    if problem.transposed:
        parts.append("transposed")
    if not problem.channels_first:
        parts.append(problem.layout)
    return " ".join(parts)


def _sides(problem: ConvProblem, axis: Axis) -> str:
    """An axis's padding; for transposed convolutions the elements cut off, without output_padding."""
    window = axis.window - 1
    return f"{window - axis.lo},{window - axis.hi}" if problem.transposed else f"{axis.lo},{axis.hi}"


def outputs(problem: ConvProblem) -> str:
    """Extents of the output's planes, rows and columns."""
    if problem.is_volume:
        return f"Z={problem.Z} P={problem.P} Q={problem.Q}"
    return f"Q={problem.Q}" if problem.H == 1 else f"P={problem.P} Q={problem.Q}"


def this_machine() -> str:
    """Python, NumPy and the system, for times that were taken here."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, NumPy {np.__version__}, {platform.system()} {platform.machine()}"


def modelled(plan: Plan, kind: str = ",.1f") -> str:
    """A plan's time in us, which "~" says is extrapolated."""
    return f"{'' if plan.extrapolated_from is None else '~'}{plan.modelled_us:{kind}}"


def kind(dtype: str, precision: str | None) -> str:
    """The dtype, and how products of it are taken where the caller said."""
    return dtype if precision is None else f"{dtype} as {precision}"


#: Columns of `report_grid` on a screen, those to drop first on a narrow one last.
REPORT_MAIN = ("case", "verdict", "shape", "algorithm", "max error", "bound", "cores")


def verdict(reports: Sequence[Report], training: Sequence[Curves] = ()) -> tuple[str, bool]:
    """One line, "all right" or the errors; and whether all is right."""
    wrong = [f"{one.name} on {cores(one.lnc)} ({_what_is_wrong(one)})" for one in reports if not one.ok]
    wrong += [f"{one.title} (losses differ)" for one in training if not one.ok]
    count = len(reports) + len(training)
    if wrong:
        return f"WRONG: {len(wrong)} of {count} checks failed: {', '.join(wrong)}", False
    results = "the result is" if len(reports) == 1 else f"all {len(reports)} results are"
    same = ", one core and two give the same bits" if any(one.identical for one in reports) else ""
    curves = "".join(f", training follows the losses of {one.by}" for one in training)
    return f"all right: {results} within the error bound of the float64 reference{same}{curves}", True


def _what_is_wrong(one: Report) -> str:
    found = one.comparison
    return f"{one.verdict}: {found.num_wrong:,} wrong, worst {found.place}" if found.num_wrong else one.verdict


def cores(lnc: int) -> str:
    """How many cores, in words."""
    return "2 cores" if lnc == 2 else "1 core"


def show_verdict(screen: Console, found: tuple[str, bool]) -> None:
    """Print the last line of a command that checks."""
    line, right = found
    say(screen, line, "bold green" if right else "bold red")


def report_grid(title: str, reports: list[Report]) -> Grid:
    """One row a report: problem, verdict, error, algorithm, counts, peaks, tiles."""
    numbers = ("max error", "bound", "worst ratio", "instructions")
    text = ("case", "verdict", "shape", "cores", "algorithm", "checked", "engines", "DMA", "SBUF", "PSUM", "tiles")
    grid = Grid(title, (*text[:5], *numbers, *text[5:]), text, REPORT_MAIN)
    for report in reports:
        found = report.comparison
        grid.add(
            report.name,
            report.verdict,
            f"{extents(report.problem)} {outputs(report.problem)} {kind(report.problem.dtype, report.asked.precision)}",
            str(report.lnc),
            report.algorithm,
            f"{found.max_error:.3g}",
            f"{found.bound:.3g}",
            f"{found.worst_ratio:.3g}",
            "not counted (AWS's NKI)" if report.trace is None else f"{report.trace.num_instructions:,}",
            "; ".join(_checked(report)),
            *_counts(report),
            _tiles(report),
            style="" if report.ok else "bold red",
        )
    return grid


def _checked(report: Report) -> Iterator[str]:
    """How much was checked, and other findings besides the largest error."""
    found, K = report.comparison, report.problem.K
    yield f"all {K} channels" if report.channels_checked == K else f"{report.channels_checked} of {K} channels"
    if report.num_blocks > 1:
        yield f"in {report.num_blocks} blocks"
    if found.num_wrong:
        yield f"{found.num_wrong:,} wrong, worst {found.place}"
    if report.identical is not None:
        yield f"{'identical to' if report.identical else 'DIFFERS from'} lnc {report.same_as_lnc}"
    if report.same_as_whole is not None:
        yield f"{'identical to' if report.same_as_whole else 'DIFFERS from'} one run"


def _counts(report: Report) -> Iterator[str]:
    """Instructions an engine, bytes by DMA, peaks of SBUF and PSUM."""
    trace = report.trace
    if trace is None:
        yield from [""] * 4
        return
    yield " ".join(f"{engine} {n:,}" for engine, n in trace.instructions.items())
    yield quantity(trace.dma_bytes, "B")
    for peak, limit in (
        (trace.sbuf_peak_bytes, SBUF_USABLE_BYTES_PER_PARTITION),
        (trace.psum_peak_bytes, PSUM_BYTES_PER_PARTITION),
    ):
        yield f"{peak:,} B ({peak / limit:.0%})"


def _tiles(report: Report) -> str:
    """Settings that were asked for, and tiles."""
    settings = [f"{name}={value}" for name, value in report.config or ()]
    return " ".join([*settings, *(f"{name}={size}" for name, size in (report.tiles or {}).items())])


#: The meaning of the columns of `report_grid`, to print below it.
REPORT_NOTES = (
    "bound: what the error may be at the element of max error",
    "worst ratio: the largest error over its bound",
    "DMA: bytes moved; SBUF, PSUM: peaks in bytes per partition, fuller core, and share of the limit; counts and peaks "
    "are of the whole case",
)


def tour_grid(reports: Sequence[Report], training: Sequence[Curves]) -> Grid:
    """One short row per check: its name, whether it is right, and its error over the bound."""
    grid = Grid("the tour", ("what", "cores", "verdict", "error"), ("what", "cores", "verdict"))
    for one in reports:
        style = "" if one.ok else "bold red"
        error = f"{one.comparison.worst_ratio:.0%} of the bound"
        grid.add(one.name, str(one.lnc), one.verdict, error, style=style)
    for curves in training:
        worst = max(curves.apart(step) / curves.allowed(step) for step in curves.steps)
        said, style = ("pass", "") if curves.ok else ("fail", "bold red")
        grid.add(f"training: {curves.title}", "1, 2", said, f"{worst:.0%} of the bound", style=style)
    return grid


def curves_grid(curves: Curves) -> Grid:
    """One row a step of training: losses, how far they are apart and may be."""
    grid = Grid(f"training: {curves.title}", ("step", curves.by, *curves.found, "apart", "allowed"), ())
    for step in curves.steps:
        losses = (several[step] for several in (curves.expected, *curves.found.values()))
        apart, allowed = curves.apart(step), curves.allowed(step)
        style = "" if apart <= allowed else "bold red"
        numbers = *(f"{loss:.7f}" for loss in losses), f"{apart:.1e}", f"{allowed:.1e}"
        grid.add(str(step + 1), *numbers, style=style)
    return grid


#: The meaning of the columns of `curves_grid`.
CURVES_NOTES = ("apart: the largest difference over the loss; allowed: the roundings of all steps until then",)
