"""The command line, one file per command.

    nkiconv doctor | cases | run | lint | compile-check | demo
    nkiconv plan | tune | plan-model | crossover | profile | profiles | bench | calibrate | report
    nkiconv bench-simulator | cache

Commands import their modules when they run: `--help` is quick, and `doctor` works with an impossible NKICONV_NKI.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from ... import __version__
from . import (
    bench,
    cache,
    calibrate,
    cases,
    compile_check,
    crossover,
    demo,
    doctor,
    lint,
    measure,
    plan,
    plan_model,
    profile,
    profiles,
    report,
    run,
)

app = typer.Typer(
    help="Convolutions for AWS Trainium: run NKI kernels in a simulator on any machine, and check them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(given: bool) -> None:
    if given:
        typer.echo(f"nkiconv {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


_COMMANDS = {
    "doctor": doctor.command,
    "cases": cases.command,
    "run": run.command,
    "lint": lint.command,
    "compile-check": compile_check.command,
    "plan": plan.command,
    "tune": plan.tune,
    "plan-model": plan_model.command,
    "crossover": crossover.command,
    "profile": profile.command,
    "profiles": profiles.command,
    "bench": measure.command,
    "calibrate": calibrate.command,
    "report": report.command,
    "demo": demo.command,
    "bench-simulator": bench.command,
}


def _help(command: Callable[..., None]) -> str:
    """A command's docstring, each paragraph on one line: typer keeps line breaks, and a terminal may be narrower."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


for _name, _command in _COMMANDS.items():
    app.command(_name, help=_help(_command))(_command)
app.add_typer(cache.app, name="cache")


def main() -> None:
    """Run the command that the arguments name; the exit status is 0, 1 (a check failed) or 2 (bad input)."""
    app()
