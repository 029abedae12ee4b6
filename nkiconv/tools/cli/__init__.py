"""The command line, one file per command.

    nkiconv run | lint | cases | demo
    nkiconv plan | plan-model | profile | tune | crossover | profiles
    nkiconv doctor | compile-check | bench | calibrate | report
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
    help="Convolution kernels for AWS Trainium2, and your own NKI kernels: run, check and time them on any machine.",
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


#: By what they are for, as --help shows them.
_COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Kernels: run and check": {
        "run": run.command,
        "lint": lint.command,
        "cases": cases.command,
        "demo": demo.command,
    },
    "Times and plans, modelled": {
        "plan": plan.command,
        "plan-model": plan_model.command,
        "profile": profile.command,
        "tune": plan.tune,
        "crossover": crossover.command,
        "profiles": profiles.command,
    },
    "AWS's tools and trn2": {
        "doctor": doctor.command,
        "compile-check": compile_check.command,
        "bench": measure.command,
        "calibrate": calibrate.command,
        "report": report.command,
    },
    "nkiconv itself": {"bench-simulator": bench.command, "cache": cache.app},
}


def _help(command: Callable[..., None]) -> str:
    """A command's docstring, each paragraph on one line: typer keeps line breaks, and a terminal may be narrower."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, help=_help(_command), rich_help_panel=_panel)(_command)


def main() -> None:
    """Run the command that the arguments name; the exit status is 0, 1 (a check failed) or 2 (bad input)."""
    app()
