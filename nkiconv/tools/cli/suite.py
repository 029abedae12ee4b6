"""`nkiconv bench --suite`: the headline cases of a suite in one table, checked first."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ... import rules
from ...errors import UnsupportedError, raise_all, refuse
from ..tables.readme import find_between, markdown, markers, put_between
from .grid import Grid
from .paths import unwritable
from .shell import CHECK_FAILED, console, notes, plain_warnings, print_json, progress

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


@dataclass(frozen=True)
class Files:
    """The files that a suite may be written to."""

    csv: Path | None = None
    readme: Path | None = None
    plot: Path | None = None
    #: whether the CSV file may be there already
    force: bool = False


def bench_suite(suite: str, only: str | None, lnc: int, wide: bool, files: Files, as_json: bool) -> None:
    """Print the table of a suite; exit status 1 if a result is wrong."""
    csv, readme = files.csv, files.readme
    check_files(files, only, lnc)
    tables = importlib.import_module("nkiconv.tools.suites.suite")
    pairs = tables.chosen(suite, only)
    if readme is not None:
        find_between(readme, markers(suite))
    with progress(show=not as_json) as advance, plain_warnings():
        found: list[SuiteRow] = list(tables.rows(pairs, lnc=lnc, wide=wide, advance=advance))
    right = all(one.report.ok for one in found)
    if csv is not None:
        tables.write(csv, found)
    if readme is not None:
        lines = markdown([tables.from_text(tables.as_text(one)) for one in found])
        put_between(readme, markers(suite), lines)
    if files.plot is not None:
        _draw(suite, lnc, found, files.plot)
    means = tables.means(found)
    if as_json:
        plain = {name: {"mean": mean, "rows": count} for name, (mean, count) in means.items()}
        document = {"suite": suite, "ok": right, "geometric_means": plain}
        print_json({**document, "rows": [one.as_dict() for one in found]})
    else:
        _show(suite, lnc, found, means)
        for path in (csv, files.plot):
            if path is not None:
                console().print(f"wrote {path}", soft_wrap=True)
    if not right:
        raise typer.Exit(CHECK_FAILED)


def check_files(files: Files, only: str | None, lnc: int) -> None:
    """Refuse, before any work, cores that trn2 has not and files that cannot be written or are of all cases."""
    refuse(UnsupportedError, rules.lnc(lnc, "--lnc"))
    for option, path, kind in (("--csv", files.csv, "a .csv file"), ("--plot", files.plot, "a .png file")):
        if path is not None:
            raise_all("nkiconv bench cannot run this call", list(unwritable(option, path, kind, force=files.force)))
    if files.plot is not None:
        if files.plot.suffix != ".png":
            raise UnsupportedError(f"--plot={files.plot}: must end in .png; name it so")
        importlib.import_module("nkiconv.tools.suites.roofline_plot").check_matplotlib()
    for option, path in (("--csv", files.csv), ("--readme", files.readme)):
        if path is not None and only is not None:
            raise UnsupportedError(f"--only={only}: {option}={path} is of every case; drop one of the two")
    if files.readme is not None and lnc != 2:
        raise UnsupportedError(f"--lnc={lnc}: --readme={files.readme} has the table of two cores; drop one of the two")


def _draw(suite: str, lnc: int, found: list[SuiteRow], path: Path) -> None:
    plots = importlib.import_module("nkiconv.tools.suites.roofline_plot")
    dots = [plots.Dot(one.case, one.plan.problem, one.us) for one in found]
    plots.draw(dots, lnc, f"{suite}: headline cases on trn2, {'2 cores' if lnc == 2 else '1 core'}, modelled", path)


def _show(suite: str, lnc: int, found: list[SuiteRow], means: dict[str, tuple[float, int]]) -> None:
    screen = console()
    cores = "2 cores" if lnc == 2 else "1 core"
    title = f"{suite}: headline cases on trn2, {cores}, modelled us"
    baselines = list(found[0].baselines)
    numbers = ("phase 0", "worst", "look-ahead", *(f"x {name}" for name in baselines), "x copy floor", "reload",
               "of the limit", "cuDNN", "instructions")  # fmt: skip
    text = ("case", "algorithm", "settings", "bound by")
    main = "case", "algorithm", "mean", "of the limit", "bound by", "cuDNN", *(f"x {name}" for name in baselines)
    grid = Grid(title, (*text[:3], "mean", *numbers, text[3]), text, main)
    for one in found:
        grid.add(*_cells(one), style="" if one.report.ok else "bold red")
    mean = [f"{means[f'x_{name}'][0]:,.1f}" for name in baselines]
    rest = f"{means['x_copy_floor'][0]:.2f}", "", f"{means['roofline_fraction'][0]:.1%}"
    rows = f"geometric mean of {means['x_copy_floor'][1]} rows"
    grid.add(rows, "", "", "", "", "", "", *mean, *rest, "", "", "", style="bold")
    grid.show(screen)
    notes(screen, *NOTES)


def _cells(one: SuiteRow) -> list[str]:
    found, share = one.profile.profile, one.h200_fraction
    times = one.us, found.phases.phase0_us, found.phases.worst_us, found.lookahead_us
    verdict = "" if one.report.ok else " WRONG"
    return [
        f"{one.case} {one.dtype}{verdict}",
        one.plan.algorithm,
        one.plan.settings,
        *(f"{us:,.1f}" for us in times),
        *(_times(one, name) for name in one.baselines),
        f"{one.profile.x_copy_floor:.2f}",
        f"{one.reload:.2f}",
        f"{found.roofline_fraction:.1%}",
        "-" if share is None else f"{share:.1%}",
        f"{found.instructions:,}",
        found.bound_by,
    ]


def _times(one: SuiteRow, name: str) -> str:
    times = one.times_faster_than(name)
    if times is None:
        return "-"
    return f"{'~' if one.baselines[name].extrapolated_from is not None else ''}{times:,.1f}"
