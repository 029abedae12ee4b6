"""How commands talk: tables and JSON on stdout, errors in red and progress on stderr, exit status 0, 1 or 2."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..errors import NkiconvError
from ..simulator import NkiError, NkiValidationError

#: Exit statuses.
OK, CHECK_FAILED, BAD_INPUT = 0, 1, 2
#: Columns of a table that goes to a file or a pipe.
PLAIN_WIDTH = 120

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def console(*, stderr: bool = False) -> Console:
    """Where to print; wide enough for the tables where nobody watches."""
    found = Console(stderr=stderr, highlight=False)
    if not found.is_terminal:
        found.width = max(found.width, PLAIN_WIDTH)
    return found


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn refusals into a red message and an exit status, with JSON besides if the command was called with --json.

    A kernel that breaks a rule of NKI has failed a check; whatever else is refused is bad input.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (NkiconvError, NkiValidationError, NotImplementedError, OSError, MemoryError) as error:
            message = str(error) or "out of memory; use a smaller problem or --channels"
            if kwargs.get("as_json"):
                violations = list(getattr(error, "violations", (message,)))
                print_json({"error": {"class": type(error).__name__, "message": message, "violations": violations}})
            text = Text(f"{type(error).__name__}: {message}", style="red")
            console(stderr=True).print(text, soft_wrap=True)
            raise typer.Exit(CHECK_FAILED if _is_broken_rule(error) else BAD_INPUT) from None

    return run


def _is_broken_rule(error: BaseException) -> bool:
    """Whether a kernel broke a rule of NKI; what is wrong with the launch is the caller's doing."""
    return isinstance(error, NkiError) and error.op != "launch"


def print_json(document: Any) -> None:
    """One JSON document on stdout; numbers that JSON cannot write become "inf", "-inf", "nan"."""
    sys.stdout.write(json.dumps(_plain(document), indent=2, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@contextmanager
def progress(show: bool) -> Iterator[Callable[[str, float | None], None]]:
    """A bar on stderr while the block runs, if that is a terminal; yields a function of (what, share done or None)."""
    screen = console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn()
    with Progress(*columns, console=screen, transient=True, disable=not (show and screen.is_terminal)) as bar:
        task = bar.add_task("", total=None)

        def advance(what: str, share: float | None) -> None:
            bar.update(task, description=what, total=None if share is None else 1.0, completed=share or 0.0)

        yield advance
