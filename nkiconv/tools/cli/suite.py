"""`nkiconv bench --suite`: the headline cases of a suite in one table, checked first."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import rules
from ...cases import SUITE_ALIASES
from ...errors import UnsupportedError, raise_all, refuse
from ...simulator.profiling import Advance
from ..suites import csv_rows
from ..tables.readme import Columns, find_between, markdown, markers, put_between
from .grid import Grid
from .options import Force
from .paths import idle_force, undrawable, unwritable
from .shell import console, fail_unless, notes, plain_warnings, print_json, progress, wrote
from .show import cores

if TYPE_CHECKING:
    from ..suites.suite import SuiteRow

NOTES = (
    "modelled us on trn2, program order: mean over phases of the throttle's grid, phase 0, worst phase; look-ahead is "
    "phase 0 in look-ahead order",
    "x: how many times faster than the algorithm; ~ its time is extrapolated linearly from parts; - it takes "
    "more instructions than the compiler does",
    "reload: bytes moved over x, w and y once each",
    "of the limit: share of the time that bytes or flops need at least; cuDNN: the same of cuDNN on one H200 "
    "(measured elsewhere; products of fp32 in tf32 for conv2d), where that shape was measured",
)


@dataclass(frozen=True, kw_only=True)
class OfSuite:
    """The options of `nkiconv bench` with --suite."""

    suite: Annotated[
        str | None,
        typer.Option(
            help="Plan, check and model the headline cases of this suite: depthwise, conv2d, conv3d or conv_transpose; "
            "or plan deepbench in three directions."
        ),
    ] = None
    against: Annotated[
        Path | None,
        typer.Option(
            help="With --suite depthwise: model AWS's kernel of this checkout of nki-library next to the plans."
        ),
    ] = None
    check: Annotated[
        bool, typer.Option("--check", help="With --against: run AWS's kernel on a few channels of data, too.")
    ] = False
    only: Annotated[str | None, typer.Option(help="Of --suite only cases whose name contains this.")] = None
    tuned: Annotated[bool, typer.Option("--tuned", help="With --suite: plans of nkiconv tune (minutes).")] = False
    csv: Annotated[Path | None, typer.Option(help="Write the rows of --suite to this file.")] = None
    force: Force = False
    readme: Annotated[Path | None, typer.Option(help="Put the table of --suite between this file's markers.")] = None
    plot: Annotated[Path | None, typer.Option(help="Draw --suite under the rooflines, as a .png file.")] = None

    @property
    def name(self) -> str:
        """The suite, by its short name."""
        short = {name: short for short, name in SUITE_ALIASES.items()}
        return short.get(self.suite or "", self.suite or "")


def bench_suite(of: OfSuite, lnc: int, as_json: bool) -> None:
    """Print the table of a suite; exit status 1 if a result is wrong."""
    check_files(of, lnc)
    tables = importlib.import_module("nkiconv.tools.suites.suite")
    pairs = tables.chosen(of.name, of.only)
    found: list[SuiteRow] = made(
        of, markers(of.name), markdown, as_json,
        lambda advance: tables.rows(pairs, lnc=lnc, wide=of.tuned, advance=advance),
    )  # fmt: skip
    right = all(one.report.ok for one in found)
    if of.plot is not None:
        _draw(of.name, lnc, found, of.plot)
    means = tables.means(found)
    if as_json:
        plain = {name: {"mean": mean, "rows": count} for name, (mean, count) in means.items()}
        document = {"suite": of.name, "ok": right, "geometric_means": plain}
        print_json({**document, "rows": [one.as_dict() for one in found]})
    else:
        _show(of.name, lnc, found, means)
        wrote(console(), of.csv, of.plot)
    fail_unless(right)


def made(
    of: OfSuite,
    around: tuple[str, str],
    page: Callable[[list[dict[str, Any]]], str],
    as_json: bool,
    rows: Callable[[Advance], Iterable[Any]],
) -> list[Any]:
    """The rows of a suite, written to its CSV file and, as a page has them, between the markers of another file."""
    if of.readme is not None:
        find_between(of.readme, around)
    with progress(show=not as_json) as advance, plain_warnings():
        found = list(rows(advance))
    if of.csv is not None:
        csv_rows.write(of.csv, [one.as_dict() for one in found])
    if of.readme is not None:
        put_between(of.readme, around, page([csv_rows.from_text(csv_rows.as_text(one.as_dict())) for one in found]))
    return found


def check_files(of: OfSuite, lnc: int, plots: str = "") -> None:
    """Refuse, before any work, cores that trn2 has not and files that cannot be written or are of all cases; plots:
    the option that draws nothing."""
    if plots and of.plot is not None:
        raise UnsupportedError(f"--plot={of.plot}: cannot be combined with {plots}; drop one of the two")
    refuse(UnsupportedError, rules.lnc(lnc, "--lnc"))
    files = [*idle_force(of.force, {"--csv": of.csv, "--plot": of.plot}), *undrawable(of.plot, force=of.force)]
    raise_all(
        "nkiconv bench cannot run this call", [*files, *unwritable("--csv", of.csv, "a .csv file", force=of.force)]
    )
    for option, path in (("--csv", of.csv), ("--readme", of.readme)):
        if path is not None and of.only is not None:
            raise UnsupportedError(f"--only={of.only}: {option}={path} is of every case; drop one of the two")
    if of.readme is not None and lnc != 2:
        raise UnsupportedError(f"--lnc={lnc}: --readme={of.readme} has the table of two cores; drop one of the two")


def _draw(suite: str, lnc: int, found: list[SuiteRow], path: Path) -> None:
    plots = importlib.import_module("nkiconv.tools.suites.roofline_plot")
    dots = [plots.Dot(one.case, one.plan.problem, one.us) for one in found]
    plots.draw(dots, lnc, f"{suite}: headline cases on trn2, {cores(lnc)}, modelled", path)


def _show(suite: str, lnc: int, found: list[SuiteRow], means: dict[str, tuple[float, int]]) -> None:
    screen, baselines = console(), list(found[0].baselines)
    main = "case", "algorithm", "mean", "of the limit", "bound by", "cuDNN", *(f"x {name}" for name in baselines)
    columns: Columns = (
        ("case", "case", ""),
        ("algorithm", "algorithm", ""),
        ("settings", "settings", ""),
        ("mean", "modelled_us", ",.1f"),
        ("phase 0", "modelled_phase0_us", ",.1f"),
        ("worst", "modelled_worst_us", ",.1f"),
        ("look-ahead", "modelled_lookahead_us", ",.1f"),
        *((f"x {name}", f"x_{name}", ",.1f") for name in baselines),
        ("x copy floor", "x_copy_floor", ".2f"),
        ("reload", "reload", ".2f"),
        ("of the limit", "roofline_fraction", ".1%"),
        ("cuDNN", "h200_cudnn_fraction", ".1%"),
        ("instructions", "instructions", ",d"),
        ("bound by", "bound_by", ""),
    )
    grid = Grid.of(f"{suite}: headline cases on trn2, {cores(lnc)}, modelled us", columns, main)
    for one in found:
        row = one.as_dict() | {"case": f"{one.case} {one.dtype}{'' if one.report.ok else ' WRONG'}"}
        for name, baseline in one.baselines.items():
            if baseline.extrapolated_from is not None:
                row[f"x_{name}"] = f"~{row[f'x_{name}']:,.1f}"
        grid.put(row, style="" if one.report.ok else "bold red")
    said = f"geometric mean of {means['x_copy_floor'][1]} rows"
    grid.put({"case": said, **{name: mean for name, (mean, _) in means.items()}}, style="bold")
    grid.show(screen)
    notes(screen, *NOTES)
