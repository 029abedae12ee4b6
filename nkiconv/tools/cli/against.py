"""`nkiconv bench --suite depthwise --against PATH`: the suite's plans and AWS's kernel, in one table."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..tables.readme import AGAINST_COLUMNS, AGAINST_MARKERS, markdown
from .grid import Grid
from .shell import console, fail_unless, notes, print_json, say, wrote
from .show import modelled, number
from .suite import OfSuite, check_files, made

if TYPE_CHECKING:
    from ..suites.against import AgainstRow

NOTES = (
    "modelled us on trn2: mean over phases of the throttle's grid in program order; look-ahead: phase 0, in the order "
    "that a compiler may choose",
    "x: AWS's time over ours, and AWS's in look-ahead order over ours in program order; ~ ours is extrapolated from "
    "fewer channels",
)


def bench_against(of: OfSuite, checkout: Path, lnc: int, as_json: bool) -> None:
    """Print the table; exit status 1 if AWS's kernel was checked and is wrong or refused."""
    check_files(of, lnc, plots="--against")
    library, against = (importlib.import_module(f"nkiconv.tools.suites.{name}") for name in ("nki_library", "against"))
    library.kernel_file(checkout)
    pairs, how = against.pairs_of(of.name, of.only), {"lnc": lnc, "wide": of.tuned, "check": of.check}
    found: list[AgainstRow] = made(
        of, AGAINST_MARKERS, lambda rows: markdown(rows, AGAINST_COLUMNS), as_json,
        lambda advance: against.rows(checkout, pairs, **how, advance=advance),
    )  # fmt: skip
    tables = importlib.import_module("nkiconv.tools.suites.suite")
    mean, count = tables.geometric_mean(one.times_faster for one in found)
    ahead, _ = tables.geometric_mean(one.times_faster_than_lookahead for one in found)
    right = all(one.theirs.check in ("", "pass") for one in found)
    if as_json:
        means = {"x_nki_library": mean, "x_nki_library_lookahead": ahead, "rows": count}
        print_json({"suite": of.name, "ok": right, "geometric_means": means, "rows": [one.as_dict() for one in found]})
    else:
        _show(lnc, found, (mean, ahead, count))
        wrote(console(), of.csv)
    fail_unless(right)


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
        grid.add(
            f"{one.case} {one.dtype}",
            number(theirs.us), number(theirs.lookahead_us), theirs.bound_by, number(theirs.instructions, ",d"),
            theirs.check, plan.algorithm, modelled(plan),
            number(one.times_faster), number(one.times_faster_than_lookahead),
            style="" if theirs.check in ("", "pass") else "bold red",
        )  # fmt: skip
    mean, ahead, count = means
    grid.add(f"geometric mean of {count} rows", *[""] * 7, f"{mean:.1f}", f"{ahead:.1f}", style="bold")
    grid.show(screen)
    for one in found:
        if one.theirs.reason:
            say(screen, f"{one.case} {one.dtype}: AWS's is not timed: {one.theirs.reason}")
    notes(screen, *NOTES)
