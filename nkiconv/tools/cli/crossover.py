"""`nkiconv crossover`: the plans over a range of one extent, and where the algorithm changes."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import NkiconvError, UnsupportedError, raise_all
from ..suites import csv_rows
from ..tables.readme import Columns, markdown
from .grid import Grid
from .options import Constants, Force, Fresh, Lnc, read_constants
from .paths import idle_force, unwritable
from .shell import (
    JsonOption,
    asked,
    console,
    notes,
    plain_warnings,
    print_json,
    prints_tables,
    progress,
    say,
    write_out,
    wrote,
)
from .show import cores, modelled

if TYPE_CHECKING:
    from ..suites.crossover import Crossover


@prints_tables
def command(
    vary: Annotated[str, typer.Option(help="The extent that changes: N, C, W, S, or Q (then W = Q + S - 1).")],
    values: Annotated[str | None, typer.Option(metavar="1,2,4,...", help="Its values; default: powers of two.")] = None,
    N: Annotated[int | None, typer.Option("--N", help="Images (1).", show_default=False)] = None,
    C: Annotated[int | None, typer.Option("--C", help="Channels (1024).", show_default=False)] = None,
    W: Annotated[int | None, typer.Option("--W", help="Columns of a row (4096).", show_default=False)] = None,
    S: Annotated[int | None, typer.Option("--S", help="Taps (4).", show_default=False)] = None,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    causal: Annotated[
        bool | None,
        typer.Option("--causal/--valid", help="S - 1 zeros on the left (default), or no padding.", show_default=False),
    ] = None,
    lnc: Lnc = 2,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="Blocks of banded and engines of update count as changes too.")
    ] = False,
    constant: Constants = None,
    no_cache: Fresh = False,
    csv: Annotated[Path | None, typer.Option(help="Write every plan to this file.")] = None,
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Plan a range of shapes (about a second each), and say where the planner changes its algorithm."""
    tables = importlib.import_module("nkiconv.tools.suites.crossover")
    fixed = {name: value for name, value in {"N": N, "C": C, "W": W, "S": S}.items() if value is not None}
    errors, numbers = list(_violations(vary, tuple(tables.VARIED), fixed, causal)), _numbers(values)
    if numbers is None:
        errors.append(UnsupportedError(f"--values={values}: must be ints between commas; write 1,2,4"))
    errors += [*unwritable("--csv", csv, "a .csv file", force=force), *idle_force(force, {"--csv": csv})]
    raise_all("nkiconv crossover cannot run this call", errors)
    sweep = tables.Sweep(
        vary=vary,
        values=numbers or (),
        dtype=dtype,
        causal=causal is not False and vary != "Q",
        lnc=lnc,
        constants=read_constants(constant),
        **fixed,
    )
    with progress(show=not as_json) as advance, plain_warnings():
        found: Crossover = tables.crossover(sweep, kinds=kinds, use_cache=not no_cache, advance=advance)
    if csv is not None:
        csv_rows.write(csv, found.as_rows())
    if as_json:
        print_json(_document(found))
    elif asked().format == "markdown":
        write_out(as_markdown(found))
    else:
        _show(found)
        wrote(console(), csv)


def _violations(
    vary: str, varied: tuple[str, ...], fixed: dict[str, int], causal: bool | None
) -> Iterator[NkiconvError]:
    """Errors of the options together."""
    if vary not in varied:
        yield UnsupportedError(f"--vary={vary}: accepted are {', '.join(varied)}; use one of them")
    if vary in fixed:
        yield UnsupportedError(f"--{vary}={fixed[vary]}: --vary={vary} takes its values from --values; drop one")
    if vary == "Q" and "W" in fixed:
        yield UnsupportedError(f"--W={fixed['W']}: --vary=Q sets W = Q + S - 1; drop --W")
    if vary == "Q" and causal:
        yield UnsupportedError("--causal: --vary=Q has no padding (W = Q + S - 1); drop --causal")


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """The ints of a comma-separated list; None where it is no such."""
    try:
        return () if text is None else tuple(map(int, text.split(",")))
    except ValueError:
        return None


def _document(found: Crossover) -> dict[str, Any]:
    return {
        "sweep": {**dataclasses.asdict(found.sweep), "values": found.sweep.asked},
        "rows": [point.as_dict() for point in found.points],
        "changes": [dataclasses.asdict(change) for change in found.changes],
    }


def _columns(found: Crossover) -> Columns:
    return (
        (found.sweep.vary, "value", ",d"),
        ("algorithm", "algorithm", ""),
        ("settings", "short", ""),
        ("modelled us", "modelled_us", ",.1f"),
        ("x copy floor", "x_copy_floor", ".2f"),
        ("runner-up", "runner_up", ""),
        ("x best", "x_runner_up", ".2f"),
        ("bound by", "bound_by", ""),
    )


def as_markdown(found: Crossover) -> str:
    """The table and the changes."""
    return "\n".join([markdown(_rows(found), _columns(found)), *_changes(found, "- ")]).rstrip() + "\n"


def _rows(found: Crossover) -> list[dict[str, Any]]:
    rows, short_settings = [], importlib.import_module("nkiconv.tools.suites.crossover").short_settings
    for point in found.table:
        row = point.as_dict() | {"short": short_settings(point.plan.config), "modelled_us": modelled(point.plan)}
        if row["runner_up_at_least"]:
            row["x_runner_up"] = f">{row['x_runner_up']:.2f}"
        rows.append(row)
    return rows


def _changes(found: Crossover, bullet: str = "") -> list[str]:
    return [f"{bullet}{change.text(found.sweep.vary)}" for change in found.changes]


def _show(found: Crossover) -> None:
    screen, vary = console(), found.sweep.vary
    main = vary, "algorithm", "modelled us", "runner-up", "x best", "bound by", "x copy floor"
    grid, rows = Grid.of(_title(found), _columns(found), main), _rows(found)
    for row in rows:
        grid.put(row)
    grid.show(screen)
    for line in _changes(found) or [f"{found.points[0].plan.algorithm} throughout"]:
        say(screen, line)
    notes(screen, *_notes(found, rows))


def _title(found: Crossover) -> str:
    sweep = found.sweep
    fixed = [f"{name}={getattr(sweep, name)}" for name in ("N", "C", "W", "S") if name != sweep.vary]
    if sweep.vary == "Q":
        fixed[fixed.index(f"W={sweep.W}")] = "W=Q+S-1"
    padding = "causal" if sweep.causal and sweep.vary != "Q" else "no padding"
    return f"plans by {sweep.vary}: {' '.join(fixed)}, {sweep.dtype}, {padding} (trn2, {cores(sweep.lnc)}, modelled)"


def _notes(found: Crossover, rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "runner-up: the fastest other algorithm; > at least, by a bound above the best: it is not timed further"
    if any(point.plan.extrapolated_from is not None for point in found.table):
        yield "~ extrapolated from parts"
    if any(row["short"].endswith("...") for row in rows):
        yield "... more settings: --json and --csv have all of them"
    extra = len(found.points) - len(found.table)
    if extra:
        yield f"changes between neighbours are bisected ({extra} more plans)"
