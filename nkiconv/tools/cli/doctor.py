"""`nkiconv doctor`: installed packages, the NKI that runs and why, missing parts for trn2."""

from __future__ import annotations

from rich.text import Text

from ... import __version__
from ..doctor import INSTALLED, Diagnosis, diagnose
from .grid import Grid
from .shell import JsonOption, console, fail_unless, print_json, prints_tables, say


@prints_tables
def command(as_json: JsonOption = False) -> None:
    """List installed packages, the NKI that runs and why, and missing parts for trn2."""
    found = diagnose()
    if as_json:
        print_json({"nkiconv": __version__, **found.as_dict()})
    else:
        _show(found)
    if not found.ok:
        say(console(stderr=True), f"{found.error}: {found.reason}", "red")
    fail_unless(found.ok)


def _show(found: Diagnosis) -> None:
    out = console()
    out.print(Text(f"nkiconv {__version__} on {found.python}, {found.system}"))
    headings = "package", "version", "status", "used for"
    grid = Grid("packages", headings, headings)
    for package in found.packages:
        style = "" if package.status == INSTALLED else "yellow"
        grid.add(package.name, package.version or "-", package.status, package.purpose, style=style)
    grid.show(out)
    settings = ", ".join(f"{name}={value or 'unset'}" for name, value in found.variables.items())
    if found.ok:
        used = "AWS's nki" if found.provider == "aws" else "nkiconv's simulator"
        out.print(Text.assemble("kernels run on ", (used, "bold"), f", because {found.reason}"))
        out.print(Text(f"times and plans are modelled with the constants of {found.target}"))
    if found.provider == "aws":
        out.print(Text("plans are searched for in nkiconv's simulator, by a process of its own"))
    out.print(Text(f"environment: {settings}"))
    out.print(Text(f"ready for trn2: {'yes' if found.trn2_ready else 'no'}"))
    for line in found.advice:
        out.print(Text(f"- {line}"), soft_wrap=True)
