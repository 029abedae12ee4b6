"""`nkiconv bench --suite deepbench`: DeepBench's training list in three directions, compared with a V100."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError
from ..tables.readme import find_between, put_between
from .grid import Grid
from .shell import console, notes, plain_warnings, print_json, progress
from .suite import Files, check_files

if TYPE_CHECKING:
    from ..suites.deepbench import DeepBenchRow

NOTES = (
    "modelled us on trn2 in program order, mean over phases of the throttle's grid, as nkiconv plan has it; ~ is "
    "extrapolated from a part",
    "of the limit: share of the time that bytes or flops need at least; V100: measured by others in fp16 with tensor "
    "cores, limit of 125 TFLOP/s and 900 GB/s",
)


def bench_deepbench(only: str | None, layout: str | None, lnc: int, wide: bool, files: Files, as_json: bool) -> None:
    """Print the table of all directions, and write it."""
    if files.plot is not None:
        raise UnsupportedError(f"--plot={files.plot}: cannot be combined with --suite=deepbench; drop one of the two")
    check_files(files, only, lnc)
    tables, deepbench, pages = (
        importlib.import_module(f"nkiconv.tools.{name}")
        for name in ("suites.suite", "suites.deepbench", "tables.deepbench")
    )
    chosen = deepbench.chosen(only, layout)
    around = pages.markers(chosen[0].problem.layout)
    if files.readme is not None:
        find_between(files.readme, around)
    with progress(show=not as_json) as advance, plain_warnings():
        found: list[DeepBenchRow] = list(deepbench.rows(chosen, lnc=lnc, wide=wide, advance=advance))
    if files.csv is not None:
        tables.write(files.csv, found)
    if files.readme is not None:
        put_between(files.readme, around, pages.page([tables.from_text(tables.as_text(one)) for one in found]))
    rows = [one.as_dict() for one in found]
    means = deepbench.means(rows)
    if as_json:
        print_json({"suite": deepbench.SUITE, "geometric_means": means, "rows": rows})
        return
    _show(found, means)
    if files.csv is not None:
        console().print(f"wrote {files.csv}", soft_wrap=True)


def _show(found: list[DeepBenchRow], means: list[dict[str, Any]]) -> None:
    screen, first = console(), found[0].as_dict()
    text = ("case", "direction", "x", "w", "stride", "algorithm", "limit", "bound by", "behind the V100")
    numbers = ("modelled us", "of the limit", "V100 us", "of its limit")
    cores = "2 cores" if first["lnc"] == 2 else "1 core"
    grid = Grid(
        f"DeepBench's training list on trn2, {first['layout']}, {cores}",
        (*text[:6], *numbers, *text[6:]),
        text,
        ("case", "direction", "algorithm", "modelled us", "of the limit", "V100 us", "of its limit", "x"),
    )
    for one in found:
        row = one.as_dict()
        about = "" if one.plan.extrapolated_from is None else "~"
        grid.add(
            *(row[name] for name in ("case", "direction", "x", "w", "stride", "algorithm")),
            f"{about}{one.plan.modelled_us:,.1f}", f"{one.plan.roofline_fraction:.1%}",
            _number(one.v100_us, ",.0f"), _number(one.v100_fraction, ".1%"),
            one.limit, one.plan.bound_by, one.behind,
            style="bold" if one.behind else "",
        )  # fmt: skip
    for mean in means:
        said = f"geometric mean of {mean['rows']}, {mean['v100_rows']} of the V100"
        theirs = _number(mean["v100_fraction"], ".1%")
        grid.add(said, mean["direction"], *[""] * 5, f"{mean['roofline_fraction']:.1%}", "", theirs, "", "",
                 f"{mean['behind']} rows", style="bold")  # fmt: skip
    grid.show(screen)
    notes(screen, *NOTES)


def _number(value: float | None, kind: str) -> str:
    return "-" if value is None or value != value else format(value, kind)
