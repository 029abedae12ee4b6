"""`nkiconv cases`: the named convolutions."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.table import Table

from ... import cases
from ...cases import Case
from .shell import JsonOption, console, print_json, reports_errors
from .show import extents, outputs, quantity


@reports_errors
def command(
    suite: Annotated[str | None, typer.Option(help=f"Only this suite: {' or '.join(cases.SUITES)}.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the named cases: shapes, dtypes, work, and who uses them."""
    chosen = [case for one in ([suite] if suite is not None else cases.SUITES) for case in cases.load(one)]
    if as_json:
        print_json([_as_dict(case) for case in chosen])
        return
    table = Table(title=f"{len(chosen)} cases")
    table.add_column("case", no_wrap=True)
    for heading in ("shape", "dtype", "output"):
        table.add_column(heading)
    table.add_column("flops", justify="right")
    table.add_column("min bytes", justify="right")
    table.add_column("headline")
    for case in chosen:
        problem = case.problem
        work = quantity(problem.flops), quantity(problem.min_bytes, "B")
        table.add_row(
            case.name, extents(problem), problem.dtype, outputs(problem), *work, "yes" if case.headline else ""
        )
    console().print(table)


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
