"""`nkiconv profiles`: every headline case in one table, as profiles/modelled_trn2.csv holds it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from ... import rules
from ...errors import UnsupportedError, raise_all, refuse
from ..suites import csv_rows
from ..tables.readme import Columns
from .grid import Grid
from .options import Force, Lnc
from .paths import idle_force, unwritable
from .shell import JsonOption, console, print_json, prints_tables, progress, wrote

COLUMNS: Columns = (
    ("case", "case", ""),
    ("dtype", "dtype", ""),
    ("algorithm", "algorithm", ""),
    ("mean", "modelled_us", ",.2f"),
    ("phase 0", "modelled_phase0_us", ",.2f"),
    ("worst", "modelled_worst_us", ",.2f"),
    ("look-ahead", "modelled_lookahead_us", ",.2f"),
    ("x floor", "x_copy_floor", ",.2f"),
    ("roofline", "roofline_fraction", ".1%"),
    ("bound by", "bound_by", ""),
)
_MAIN = ("case", "dtype", "algorithm", "mean", "roofline", "bound by", "x floor")


@prints_tables
def command(
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    force: Force = False,
    only: Annotated[str | None, typer.Option(help="Only cases whose name contains this; not with --csv.")] = None,
    lnc: Lnc = 2,
    as_json: JsonOption = False,
) -> None:
    """Profile every headline case in bf16 and fp32 (minutes): modelled times, floors, rooflines."""
    if csv is not None and only is not None:
        raise UnsupportedError(f"--only={only}: --csv={csv} is of every case; drop one of the two")
    refuse(UnsupportedError, rules.lnc(lnc, "--lnc"))
    refused = [*unwritable("--csv", csv, "a .csv file", force=force), *idle_force(force, {"--csv": csv})]
    raise_all("nkiconv profiles cannot run this call", refused)
    tables = importlib.import_module("nkiconv.tools.suites.profile_table")
    every = tables.headline()
    chosen = [(case, dtype) for case, dtype in every if only is None or only in case.name]
    if not chosen:
        names = ", ".join(dict.fromkeys(case.name for case, _ in every))
        raise UnsupportedError(f"--only={only}: no headline case has this in its name; they are {names}")
    with progress(show=not as_json) as advance:
        rows = list(tables.rows(chosen, lnc, advance))
    if csv is not None:
        csv_rows.write(csv, rows)
    if as_json:
        print_json(rows)
        return
    grid = Grid.of("headline cases, modelled us (trn2)", COLUMNS, _MAIN)
    for row in rows:
        grid.put(csv_rows.from_text(row))
    grid.show(console())
    wrote(console(), csv)
