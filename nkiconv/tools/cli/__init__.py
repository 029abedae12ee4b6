"""The command line, one file per command.

    nkiconv doctor | cases | run | lint | demo
    nkiconv plan | tune | plan-model | crossover | profile | profiles | bench | bench-simulator | cache

Commands import what they run when they run it: `--help` is quick, and `doctor` works where NKICONV_NKI is impossible.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ... import __version__
from . import bench, cache, cases, crossover, demo, doctor, lint, measure, plan, plan_model, profile, profiles, run

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


app.command("doctor")(doctor.command)
app.command("cases")(cases.command)
app.command("run")(run.command)
app.command("lint")(lint.command)
app.command("plan")(plan.command)
app.command("tune")(plan.tune)
app.command("plan-model")(plan_model.command)
app.command("crossover")(crossover.command)
app.command("profile")(profile.command)
app.command("profiles")(profiles.command)
app.command("bench")(measure.command)
app.command("demo")(demo.command)
app.command("bench-simulator")(bench.command)
app.add_typer(cache.app, name="cache")


def main() -> None:
    """Run the command that the arguments name; the exit status is 0, 1 (a check failed) or 2 (bad input)."""
    app()
