"""The command line in this process, for the tests of its commands."""

from typing import Any

from typer.testing import CliRunner

from nkiconv.tools.cli import app


def run(*arguments: object, width: int = 120) -> Any:
    """Invoke `nkiconv` with these arguments, so many columns wide; nothing but a clean exit may come out of it."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(width)})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def done(*arguments: object, width: int = 120) -> Any:
    """As `run`, of what must succeed."""
    result = run(*arguments, width=width)
    assert result.exit_code == 0, result.output
    return result
