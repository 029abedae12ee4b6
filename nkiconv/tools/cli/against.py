"""`nkiconv bench --suite depthwise --against PATH`: the suite's plans and AWS's kernel, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..suites.against import AgainstRow, pairs_of, rows
from ..suites.nki_library import kernel_file
from ..suites.suite import geometric_mean
from ..tables.readme import AGAINST_COLUMNS, AGAINST_MARKERS, Columns, markdown
from .grid import Grid
from .shell import console, fail_unless, notes, print_json, say, wrote
from .show import cores, modelled
from .suite import OfSuite, check_files, made

NOTES = (
    "modelled us on trn2: mean over phases of the throttle's grid in program order; look-ahead: phase 0, in the order "
    "that a compiler may choose",
    "x: AWS's time over ours, and AWS's in look-ahead order over ours in program order; ~ ours is extrapolated from "
    "fewer channels",
)
COLUMNS: Columns = (
    ("case", "case", ""),
    ("AWS's us", "nki_library_us", ",.1f"),
    ("AWS's look-ahead", "nki_library_lookahead_us", ",.1f"),
    ("bound by", "nki_library_bound_by", ""),
    ("AWS's instructions", "nki_library_instructions", ",d"),
    ("check", "nki_library_check", ""),
    ("algorithm", "algorithm", ""),
    ("our us", "modelled_us", ",.1f"),
    ("x", "x_nki_library", ",.1f"),
    ("x of look-ahead", "x_nki_library_lookahead", ",.1f"),
)


def bench_against(of: OfSuite, checkout: Path, lnc: int, as_json: bool) -> None:
    """Print the table; exit status 1 if AWS's kernel was checked and is wrong or refused."""
    check_files(of, lnc, plots="--against")
    kernel_file(checkout)
    pairs = pairs_of(of.name, of.only)
    found: list[AgainstRow] = made(
        of, AGAINST_MARKERS, lambda kept: markdown(kept, AGAINST_COLUMNS), as_json,
        lambda advance: rows(checkout, pairs, lnc=lnc, wide=of.tuned, check=of.check, advance=advance),
    )  # fmt: skip
    mean, count = geometric_mean(one.times_faster for one in found)
    ahead, _ = geometric_mean(one.times_faster_than_lookahead for one in found)
    right = all(one.theirs.check in ("", "pass") for one in found)
    means = {"x_nki_library": mean, "x_nki_library_lookahead": ahead, "rows": count}
    if as_json:
        print_json({"suite": of.name, "ok": right, "geometric_means": means, "rows": [one.as_dict() for one in found]})
    else:
        _show(lnc, found, means)
        wrote(console(), of.csv)
    fail_unless(right)


def _show(lnc: int, found: list[AgainstRow], means: dict[str, Any]) -> None:
    screen = console()
    title = f"AWS's depthwise_conv1d_implicit_gemm ({found[0].sha256}) and ours on trn2, {cores(lnc)}, modelled us"
    grid = Grid.of(title, COLUMNS, ("case", "AWS's us", "our us", "x", "algorithm", "check", "x of look-ahead"))
    for one in found:
        row = one.as_dict() | {"case": f"{one.case} {one.dtype}", "modelled_us": modelled(one.plan)}
        grid.put(row, style="" if one.theirs.check in ("", "pass") else "bold red")
    grid.put({"case": f"geometric mean of {means['rows']} rows", **means}, style="bold")
    grid.show(screen)
    for one in found:
        if one.theirs.reason:
            say(screen, f"{one.case} {one.dtype}: AWS's is not timed: {one.theirs.reason}")
    notes(screen, *NOTES)
