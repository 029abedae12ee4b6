"""`nkiconv bench --suite deepbench`: DeepBench's training list in three directions, compared with a V100."""

from __future__ import annotations

from typing import Any

from ..suites import deepbench
from ..tables import deepbench as pages
from .grid import Grid
from .shell import console, notes, print_json, wrote
from .show import cores, modelled
from .suite import OfSuite, check_files, made

NOTES = (
    "modelled us on trn2 in program order, mean over phases of the throttle's grid, as nkiconv plan has it; ~ is "
    "extrapolated from a part",
    "of the limit: share of the time that bytes or flops need at least; V100: measured by others in fp16 with tensor "
    "cores, limit of 125 TFLOP/s and 900 GB/s",
)


def bench_deepbench(of: OfSuite, layout: str | None, lnc: int, as_json: bool) -> None:
    """Print the table of all directions, and write it."""
    check_files(of, lnc, plots="--suite=deepbench")
    chosen = deepbench.chosen(of.only, layout)
    found: list[deepbench.DeepBenchRow] = made(
        of, pages.markers(chosen[0].problem.layout), pages.page, as_json,
        lambda advance: deepbench.rows(chosen, lnc=lnc, wide=of.tuned, advance=advance),
    )  # fmt: skip
    rows = [one.as_dict() for one in found]
    means = deepbench.means(rows)
    if as_json:
        print_json({"suite": deepbench.SUITE, "geometric_means": means, "rows": rows})
        return
    _show(found, means)
    wrote(console(), of.csv)


def _show(found: list[deepbench.DeepBenchRow], means: list[dict[str, Any]]) -> None:
    screen, first = console(), found[0].as_dict()
    main = "case", "direction", "algorithm", "modelled us", "of the limit", "V100 us", "of its limit", "x, N C H W"
    title = f"DeepBench's training list on trn2, {first['layout']}, {cores(first['lnc'])}"
    grid = Grid.of(title, (pages.COLUMNS[0], ("direction", "direction", ""), *pages.COLUMNS[1:]), main)
    for one in found:
        grid.put(one.as_dict() | {"modelled_us": modelled(one.plan)}, style="bold" if one.behind else "")
    for mean in means:
        said = f"geometric mean (rows: {mean['rows']}, V100: {mean['v100_rows']})"
        grid.put({**mean, "case": said, "behind": f"{mean['behind']} rows"}, style="bold")
    grid.show(screen)
    notes(screen, *NOTES)
