"""`nkiconv doctor`: what is installed, which NKI runs and why, what is missing for trn2."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from ... import __version__
from ..doctor import INSTALLED, Diagnosis, diagnose
from .shell import CHECK_FAILED, JsonOption, console, print_json, reports_errors


@reports_errors
def command(as_json: JsonOption = False) -> None:
    """Say what is installed, which NKI runs and why, and what is missing to run on trn2."""
    found = diagnose()
    if as_json:
        print_json({"nkiconv": __version__, **found.as_dict()})
    else:
        _show(found)
    if not found.ok:
        console(stderr=True).print(Text(f"UnsupportedError: {found.reason}", style="red"), soft_wrap=True)
        raise typer.Exit(CHECK_FAILED)


def _show(found: Diagnosis) -> None:
    out = console()
    out.print(Text(f"nkiconv {__version__} on {found.python}, {found.system}"))
    table = Table("package", "version", "status", "used for")
    for package in found.packages:
        style = "green" if package.status == INSTALLED else "yellow"
        table.add_row(package.name, package.version or "-", Text(package.status, style=style), package.purpose)
    out.print(table)
    settings = ", ".join(f"{name}={value or 'unset'}" for name, value in found.variables.items())
    if found.ok:
        used = "AWS's nki" if found.provider == "aws" else "nkiconv's simulator"
        out.print(Text.assemble("kernels run on ", (used, "bold"), f", because {found.reason}"))
    if found.provider == "aws":
        out.print(Text("plans are searched for in nkiconv's simulator, by a process of its own"))
    out.print(Text(f"environment: {settings}"))
    out.print(Text(f"ready for trn2: {'yes' if found.trn2_ready else 'no'}"))
    for line in found.advice:
        out.print(Text(f"- {line}"), soft_wrap=True)
