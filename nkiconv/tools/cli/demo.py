"""`nkiconv demo`: the guided tour, on data that comes with matplotlib."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from .shell import FORMATS, JsonOption, asked, console, fail_unless, notes, print_json, prints_tables, progress, say
from .show import CURVES_NOTES, REPORT_NOTES, curves_grid, report_grid, show_verdict, tour_grid, verdict


@prints_tables
def command(
    out: Annotated[Path, typer.Option(help="Directory for the pictures; files of the tour in it are replaced.")],
    as_json: JsonOption = False,
) -> None:
    """Filter an EEG recording, a photograph and a clip, run a speech model's layer, train two; check and draw."""
    demo = importlib.import_module("nkiconv.tools.demo")
    with progress(show=not as_json) as advance:
        found = demo.run(out, advance)
    if as_json:
        files = [str(path) for path in found.files]
        rows, curves = ([one.as_dict() for one in several] for several in (found.reports, found.curves))
        print_json({"ok": found.ok, "files": files, "rows": rows, "training": curves})
    else:
        screen = console()
        if asked().wide or asked().format != FORMATS[0]:
            report_grid("the tour", list(found.reports)).show(screen)
            notes(screen, *REPORT_NOTES)
            for curves in found.curves:
                curves_grid(curves).show(screen)
                notes(screen, *CURVES_NOTES)
        else:
            tour_grid(found.reports, found.curves).show(screen)
            notes(
                screen,
                "error: the largest error of a result over its bound; rounding y to bf16 takes up to 100%",
                "--verbose shows what each took",
            )
        first, *others = map(str, found.files)
        show_verdict(screen, verdict(found.reports, found.curves))
        say(screen, f"open {first}; also drawn: {', '.join(others)}")
    fail_unless(found.ok)
