"""How problems and reports look in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ...problem import ConvProblem
from ...simulator.hardware import PSUM_BYTES_PER_PARTITION, SBUF_USABLE_BYTES_PER_PARTITION
from ...simulator.profiling.show import quantity as quantity

if TYPE_CHECKING:
    from ..verify import Report


#: Characters of a line of tiles.
TILES_WIDTH = 22


def extents(problem: ConvProblem) -> str:
    """Extents by their letters, and whatever is not trivial, as in "N=1 C=512 W=5000 S=8 pad=3,0"."""
    letters = "NCWS" if problem.is_depthwise and problem.H == problem.R == 1 else "NCHWKRS"
    parts = [f"{letter}={getattr(problem, letter)}" for letter in letters]
    if not problem.is_depthwise and problem.groups > 1:
        parts.append(f"groups={problem.groups}")
    axes = [problem.width] if problem.H == problem.R == 1 else [problem.height, problem.width]
    for name, values in (
        ("stride", [str(axis.stride) for axis in axes]),
        ("dilation", [str(axis.rhs_dilation) for axis in axes]),
        ("lhs_dilation", [str(axis.lhs_dilation) for axis in axes]),
    ):
        if set(values) != {"1"}:
            parts.append(f"{name}={'x'.join(values)}")
    pads = [f"{axis.lo},{axis.hi}" for axis in axes]
    if set(pads) != {"0,0"}:
        parts.append(f"pad={' x '.join(dict.fromkeys(pads))}")
    if problem.layout != "NCHW":
        parts.append(problem.layout)
    return " ".join(parts)


def outputs(problem: ConvProblem) -> str:
    """Extents of the output's rows and columns."""
    return f"Q={problem.Q}" if problem.H == 1 else f"P={problem.P} Q={problem.Q}"


def kind(dtype: str, precision: str | None) -> str:
    """The dtype, and how products of it are taken where the caller said."""
    return dtype if precision is None else f"{dtype} as {precision}"


def report_table(title: str, reports: list[Report]) -> Table:
    """One row a report: problem, tiles, counts, peaks, error and verdict."""
    table = Table(title=title, show_lines=True, pad_edge=False)
    for heading in ("what", "lnc", "tiles", "instructions", "memory", "check", "verdict"):
        table.add_column(heading, overflow="fold")
    for report in reports:
        table.add_row(
            Text(
                f"{report.name}\n{_in_lines(extents(report.problem))}\n{outputs(report.problem)} "
                f"{kind(report.problem.dtype, report.precision)}"
            ),
            str(report.lnc),
            _tiles(report),
            _instructions(report),
            _memory(report),
            _check(report),
            Text(report.verdict, style="green" if report.ok else "bold red"),
        )
    return table


def _in_lines(text: str, width: int = 24) -> str:
    """Words in lines of up to `width`, so that the table stays narrow."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _tiles(report: Report) -> Text:
    lines = [report.algorithm]
    if report.config is not None:
        lines += [f"{name} {value}" for name, value in report.config]
    tiles = report.tiles or {}
    if report.algorithm == "taps_on_partition" and tiles:
        channels = f"channels {tiles['c_tile']}"
        if tiles["channels_per_group"] > 1:
            channels += f" by {tiles['channels_per_group']}"
        lines += [channels, f"taps {tiles['s_tile']} x {tiles['num_s_tiles']}"]
        lines += [f"columns {tiles['q_tile']} of {tiles['q_load']}"]
    else:
        lines.append(_in_lines(" ".join(f"{name}={size}" for name, size in tiles.items()), TILES_WIDTH))
    return Text("\n".join(lines))


def _instructions(report: Report) -> Text:
    if report.trace is None:
        return Text("not counted\n(AWS's NKI)")
    counts = report.trace.instructions
    return Text("\n".join([f"{report.trace.num_instructions:,}", *(f"{engine} {n:,}" for engine, n in counts.items())]))


def _memory(report: Report) -> Text:
    trace = report.trace
    if trace is None:
        return Text("-")
    sbuf, psum = trace.sbuf_peak_bytes, trace.psum_peak_bytes
    return Text(
        f"DMA {quantity(trace.dma_bytes, 'B')}\n"
        f"SBUF {sbuf:,} B {sbuf / SBUF_USABLE_BYTES_PER_PARTITION:.0%}\n"
        f"PSUM {psum:,} B {psum / PSUM_BYTES_PER_PARTITION:.0%}"
    )


def _check(report: Report) -> Text:
    found, K = report.comparison, report.problem.K
    channels = f"all {K} channels" if report.channels_checked == K else f"{report.channels_checked} of {K} channels"
    if report.num_blocks > 1:
        channels += f"\n  in {report.num_blocks} blocks"
    lines = [
        f"max error {found.max_error:.3g}",
        f"  bound {found.bound:.3g}",
        f"worst ratio {found.worst_ratio:.3g}",
        channels,
    ]
    if found.num_wrong:
        lines.append(f"{found.num_wrong:,} wrong, worst {found.place}")
    if report.identical is not None:
        lines.append(f"{'identical to' if report.identical else 'DIFFERS from'} lnc {report.same_as_lnc}")
    return Text("\n".join(lines))


#: What the columns of `report_table` mean, to print below it.
REPORT_NOTES = (
    "tiles: algorithm, settings, and its tiles; of taps_on_partition: channels in a PSUM tile (by channels a matmul),"
    "\n  taps a tile x tap tiles, columns a matmul of columns loaded"
    "\nmemory: bytes moved by DMA; peaks in bytes a partition, fuller core, and share of the limit"
    "\ncheck: against the float64 reference; bound at the element of max error; worst ratio is the largest error/bound"
    "\ncounts and peaks are of the whole case; rows are traced for them without data, and run in blocks of channels"
)
