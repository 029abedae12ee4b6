"""`nkiconv cache list` and `nkiconv cache clear`: the plans and estimates that are kept on disk."""

from __future__ import annotations

import dataclasses
import importlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ...errors import NkiconvError
from ...problem import ConvProblem
from ..tables.readme import Columns
from .grid import Grid
from .shell import JsonOption, console, print_json, prints_tables, reports_errors
from .show import extents, quantity

if TYPE_CHECKING:
    from ...planner.cache import Entry

app = typer.Typer(help="The plans and estimates that are kept on disk.", no_args_is_help=True)
Stale = Annotated[bool, typer.Option("--stale", help="Only those that this version of nkiconv does not find.")]

COLUMNS: Columns = (
    ("problem", "problem", ""),
    ("kind", "kind", ""),
    ("cores", "lnc", "d"),
    ("target", "target", ""),
    ("algorithm", "algorithm", ""),
    ("modelled us", "modelled_us", ",.2f"),
    ("bytes", "bytes", ",d"),
    ("days", "age_days", ".1f"),
    ("stale", "stale", ""),
)


@app.command("list")
@prints_tables
def show(stale: Stale = False, as_json: JsonOption = False) -> None:
    """List cached plans, the newest first: problems, algorithms, sizes, ages."""
    cache, found = _found(stale)
    if as_json:
        print_json({"directory": str(cache.directory()), "rows": [_as_dict(one) for one in found]})
        return
    screen = console()
    grid = Grid.of(f"{len(found)} files in {cache.directory()}", COLUMNS)
    for one in found:
        row = {name: value for name, value in _as_dict(one).items() if value is not None}
        problem = " ".join(
            [
                row.get("problem", one.file.name),
                *(name if value is True else f"{name}={value}" for name, value in row["asked"].items()),
            ]
        )
        grid.put({**row, "problem": problem, "stale": "" if one.current else "yes"})
    grid.show(screen)


@app.command("clear")
@reports_errors
def clear(stale: Stale = False, as_json: JsonOption = False) -> None:
    """Delete cached plans, tuned ones too; plans that are still needed are searched for again."""
    cache, found = _found(stale)
    size = sum(one.size for one in found)
    cache.clear(found)
    if as_json:
        print_json({"directory": str(cache.directory()), "deleted": len(found), "bytes": size})
        return
    console().print(Text(f"deleted {len(found)} files ({quantity(size, 'B')}) of {cache.directory()}"), soft_wrap=True)


def _found(stale: bool) -> tuple[Any, list[Entry]]:
    """The planner's cache, and its entries, or those that this version does not find."""
    cache = importlib.import_module("nkiconv.planner.cache")
    return cache, [one for one in cache.entries() if not (stale and one.current)]


def _as_dict(one: Entry) -> dict[str, Any]:
    """Plain data for JSON; None where the file does not say."""
    return {
        "file": str(one.file),
        "kind": one.kind or "unreadable",
        "effort": one.kept.get("effort", one.kind or None),
        "problem": _problem(one),
        "asked": _asked(one),
        "lnc": one.key.get("lnc"),
        "target": one.kept.get("target", one.key.get("target")),
        "algorithm": one.kept.get("algorithm"),
        "modelled_us": one.kept.get("modelled_us"),
        "bytes": one.size,
        "age_days": (time.time() - one.written) / 86400,
        "current": one.current,
    }


def _asked(one: Entry) -> dict[str, Any]:
    """Options of the call that are not the default."""
    request = importlib.import_module("nkiconv.planner.request")
    plain, asked = dataclasses.asdict(request.Asked()), one.key.get("asked")
    return {name: value for name, value in asked.items() if value != plain.get(name)} if isinstance(asked, dict) else {}


def _problem(one: Entry) -> str | None:
    """Extents of the problem, or None of one that this version does not take."""
    try:
        plan = importlib.import_module("nkiconv.planner.plan")
        problem = ConvProblem(**plan.tuples(one.key["problem"]))
    except (NkiconvError, TypeError, KeyError, AttributeError):
        return None
    return f"{extents(problem)} {problem.dtype}"
