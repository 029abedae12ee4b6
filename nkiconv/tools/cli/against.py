"""`nkiconv bench --suite depthwise --against PATH`: the suite's plans and AWS's kernel, in one table."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...errors import UnsupportedError
from ..tables.readme import AGAINST_COLUMNS, AGAINST_MARKERS, find_between, markdown, put_between
from .grid import Grid
from .shell import CHECK_FAILED, console, notes, plain_warnings, print_json, progress, say
from .suite import Files, check_files

if TYPE_CHECKING:
    from ..suites.against import AgainstRow

NOTES = (
    "modelled us on trn2: mean over phases of the throttle's grid in program order; look-ahead: phase 0, in the order "
    "that a compiler may choose",
    "x: AWS's time over ours, and AWS's in look-ahead order over ours in program order; ~ ours is extrapolated from "
    "fewer channels",
)


def bench_against(
    suite: str, checkout: Path, only: str | None, lnc: int, wide: bool, check: bool, files: Files, as_json: bool
) -> None:
    """Print the table; exit status 1 if AWS's kernel was checked and is wrong or refused."""
    if files.plot is not None:
        raise UnsupportedError(f"--plot={files.plot}: cannot be combined with --against; drop one of the two")
    check_files(files, only, lnc)
    library, against = (importlib.import_module(f"nkiconv.tools.suites.{name}") for name in ("nki_library", "against"))
    library.kernel_file(checkout)
    pairs = against.pairs_of(suite, only)
    if files.readme is not None:
        find_between(files.readme, AGAINST_MARKERS)
    with progress(show=not as_json) as advance, plain_warnings():
        found: list[AgainstRow] = list(against.rows(checkout, pairs, lnc=lnc, wide=wide, check=check, advance=advance))
    tables = importlib.import_module("nkiconv.tools.suites.suite")
    if files.csv is not None:
        tables.write(files.csv, found)
    if files.readme is not None:
        lines = markdown([tables.from_text(tables.as_text(one)) for one in found], AGAINST_COLUMNS)
        put_between(files.readme, AGAINST_MARKERS, lines)
    mean, count = tables.geometric_mean(one.times_faster for one in found)
    ahead, _ = tables.geometric_mean(one.times_faster_than_lookahead for one in found)
    right = all(one.theirs.check in ("", "pass") for one in found)
    if as_json:
        means = {"x_nki_library": mean, "x_nki_library_lookahead": ahead, "rows": count}
        print_json({"suite": suite, "ok": right, "geometric_means": means, "rows": [one.as_dict() for one in found]})
    else:
        _show(lnc, found, (mean, ahead, count))
        if files.csv is not None:
            console().print(f"wrote {files.csv}", soft_wrap=True)
    if not right:
        raise typer.Exit(CHECK_FAILED)


def _show(lnc: int, found: list[AgainstRow], means: tuple[float, float, int]) -> None:
    screen = console()
    title = f"AWS's depthwise_conv1d_implicit_gemm ({found[0].sha256}) and ours on trn2, {lnc} cores, modelled us"
    names = ("case", "AWS's us", "AWS's look-ahead", "bound by", "AWS's instructions", "check", "algorithm", "our us",
             "x", "x of look-ahead")  # fmt: skip
    grid = Grid(
        title,
        names,
        ("case", "bound by", "check", "algorithm"),
        ("case", "AWS's us", "our us", "x", "algorithm", "check", "x of look-ahead"),
    )
    for one in found:
        theirs, plan = one.theirs, one.plan
        about = "" if plan.extrapolated_from is None else "~"
        grid.add(
            f"{one.case} {one.dtype}",
            _number(theirs.us), _number(theirs.lookahead_us), theirs.bound_by, _number(theirs.instructions, ",d"),
            theirs.check, plan.algorithm, f"{about}{plan.modelled_us:,.1f}",
            _number(one.times_faster), _number(one.times_faster_than_lookahead),
            style="" if theirs.check in ("", "pass") else "bold red",
        )  # fmt: skip
    mean, ahead, count = means
    grid.add(f"geometric mean of {count} rows", *[""] * 7, f"{mean:.1f}", f"{ahead:.1f}", style="bold")
    grid.show(screen)
    for one in found:
        if one.theirs.reason:
            say(screen, f"{one.case} {one.dtype}: AWS's is not timed: {one.theirs.reason}")
    notes(screen, *NOTES)


def _number(value: float | None, kind: str = ",.1f") -> str:
    return "-" if value is None else format(value, kind)
