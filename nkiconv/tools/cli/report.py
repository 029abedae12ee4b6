"""`nkiconv report`: the results of this machine's commands, in one file to attach to an issue."""

from __future__ import annotations

import csv
import importlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import __version__, cases
from ...errors import raise_all
from ...whole_file import write_page
from ..doctor import diagnose
from . import calibrate, compile_check, measure
from .options import Force, Lnc
from .paths import unwritable
from .shell import SCHEMA, JsonOption, console, of_case, print_json, progress, reports_errors, say

OUT = Path("nkiconv_report.md")


#: Title, command that makes it, and its results as plain data; None if it has not run here.
Section = tuple[str, str, Any]


@reports_errors
def command(
    case: Annotated[
        list[str] | None, typer.Option(help="Model this case, too; repeatable. Default: the cases that were measured.")
    ] = None,
    lnc: Lnc = 2,
    out: Annotated[Path, typer.Option(help="Write the report to this file.")] = OUT,
    target: Annotated[Path, typer.Option(help="What nkiconv calibrate wrote.")] = calibrate.OUT,
    compiled: Annotated[Path, typer.Option(help="The folder of nkiconv compile-check.")] = compile_check.OUT,
    measured: Annotated[Path, typer.Option(help="The rows of nkiconv bench.")] = measure.OUT,
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Write one file with versions, measured constants, rows of compile-check and bench, and profiles, for an issue.

    It is Markdown with a block of JSON for each part; a part that is not there names the command that makes it. It has
    no data of yours: read it before you send it.
    """
    raise_all("nkiconv report cannot run this call", unwritable("--out", out, "a .md file", force=force))
    named = [cases.get(name).name for name in case or []]
    kept, model = (importlib.import_module(f"nkiconv.tools.measure.{name}") for name in ("rows", "modelled"))
    kept.check(measured)
    rows = list(csv.DictReader(lines)) if (lines := _text(measured)) is not None else None
    kernels = compiled / importlib.import_module("nkiconv.tools.cli.compile_run").ROWS
    names = named or list(dict.fromkeys(row["case"] for row in rows or () if row["case"] in cases.names()))
    with progress(show=not as_json) as advance:
        profiles = [
            {"case": name, "lnc": lnc, **model.model(name, None, lnc, None, of_case(name, advance)).as_dict()}
            for name in names
        ]
    slopes = importlib.import_module("nkiconv.tools.calibrate.session").path_of(target)
    versions = {"nkiconv": __version__, "commit": kept.commit(), **diagnose().as_dict()}
    sections: list[Section] = [
        ("versions", "nkiconv doctor", versions),
        ("constants", "nkiconv calibrate", _text(target)),
        ("slopes of probes", "nkiconv calibrate", _lines(slopes)),
        ("kernels under AWS's tools", "nkiconv compile-check", _lines(kernels)),
        ("measured", "nkiconv bench CASE", rows),
        ("modelled", "nkiconv report --case CASE", profiles or None),
    ]
    if as_json:
        print_json({"out": str(out), **{title: found for title, _, found in sections}})
    write_page(list(_page(sections)), out)
    say(console(stderr=as_json), f"wrote {out}; read it, and attach it to an issue")


def _page(sections: list[Section]) -> Iterator[str]:
    yield f"# nkiconv {__version__}, {time.strftime('%Y-%m-%d')}"
    yield f"\nJSON of schema {SCHEMA}, a block for each part. Modelled times say so; all others are measured."
    for title, command, found in sections:
        yield f"\n## {title}\n"
        if found is None:
            yield f"None here: `{command}` makes them."
        else:
            yield f"By `{command}`.\n\n```json\n{json.dumps(found, indent=1)}\n```"


def _text(path: Path) -> list[str] | None:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else None


def _lines(path: Path) -> list[Any] | None:
    """A JSON value a line; half a line, which a kill leaves, is as it stands."""
    return None if (lines := _text(path)) is None else [_value(line) for line in lines]


def _value(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line
