"""`nkiconv cases`: the named convolutions."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ... import cases
from ...cases import Case
from .grid import Grid
from .shell import JsonOption, console, print_json, prints_tables
from .show import extents, outputs, quantity


@prints_tables
def command(
    suite: Annotated[str | None, typer.Option(help=f"Only this suite: {' or '.join(cases.SUITES)}.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the named cases: shapes, dtypes, work, and who uses them."""
    chosen = [case for one in ([suite] if suite is not None else cases.SUITES) for case in cases.load(one)]
    if as_json:
        print_json([_as_dict(case) for case in chosen])
        return
    grid = Grid(
        f"{len(chosen)} cases",
        ("case", "who uses it", "dtype", "shape", "output", "flops", "min bytes", "headline"),
        ("case", "who uses it", "dtype", "shape", "output", "headline"),
        ("case", "who uses it", "shape", "dtype"),
    )
    for case in chosen:
        problem = case.problem
        work = quantity(problem.flops), quantity(problem.min_bytes, "B")
        headline = "yes" if case.headline else ""
        grid.add(case.name, case.source, problem.dtype, extents(problem), outputs(problem), *work, headline)
    grid.show(console())


def _as_dict(case: Case) -> dict[str, object]:
    problem = case.problem
    return {
        "name": case.name,
        "suite": case.suite,
        "source": case.source,
        "headline": case.headline,
        "problem": dataclasses.asdict(problem),
        "P": problem.P,
        "Q": problem.Q,
        "flops": problem.flops,
        "min_bytes": problem.min_bytes,
    }
