"""How commands talk: tables and JSON on stdout, errors in red and progress on stderr, exit status 0, 1 or 2."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ...errors import NkiconvError, UnsupportedError
from ...simulator import NkiError, NkiValidationError
from ...simulator.constants import TargetFileError
from ...simulator.hardware import CONSTANTS
from ...simulator.profiling import Advance

#: Exit statuses.
OK, CHECK_FAILED, BAD_INPUT = 0, 1, 2
#: Version of the shape of JSON documents: it counts up where a key goes, or means something else.
SCHEMA = 1
#: Columns of a table that goes to a file or a pipe.
PLAIN_WIDTH = 120
#: Columns at least; a narrower terminal wraps by itself.
LEAST_WIDTH = 20
#: Columns of wrapped text that goes to a file or a pipe.
TEXT_WIDTH = 80
#: Seconds between two lines of progress to a file or a pipe; shorter work prints none.
PLAIN_SECONDS = 10.0

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


#: Forms of a table on stdout.
FORMATS = ("table", "markdown", "csv")


@dataclass(frozen=True)
class Asked:
    """How a command is to talk."""

    format: str = FORMATS[0]
    quiet: bool = False
    wide: bool = False


_ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)


def asked() -> Asked:
    """How the command that runs is to talk."""
    return _ASKED.get() or Asked()


def console(*, stderr: bool = False) -> Console:
    """Where to print; wide enough for the tables where it is no terminal, unless COLUMNS says how wide it is. On stdout
    only tables are printed where it is no terminal."""
    found = Console(stderr=stderr, highlight=False, quiet=not stderr and asked().format != FORMATS[0])
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = max(found.width, PLAIN_WIDTH)
    found.width = max(found.width, LEAST_WIDTH)
    return found


def say(screen: Console, line: str, style: str = "") -> None:
    """A sentence: on a terminal it is wrapped at words, elsewhere it is one line, for those who search in it."""
    screen.print(Text(line, style=style), soft_wrap=not screen.is_terminal)


def say_wrapped(screen: Console, text: str, style: str = "") -> None:
    """A text that is wrapped at words in files and pipes too, with continued lines indented."""
    width = screen.width if screen.is_terminal else min(screen.width, TEXT_WIDTH)
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        for one in textwrap.wrap(line, width, subsequent_indent=f"{indent}  ", break_on_hyphens=False):
            say(screen, one, style)


def wrote(screen: Console, *paths: Path | None) -> None:
    """Say which files were written, on a line each that no terminal breaks."""
    for path in filter(None, paths):
        screen.print(Text(f"wrote {path}"), soft_wrap=True)


def notes(screen: Console, *lines: str) -> None:
    """Notes on the columns of a table, below it, unless --quiet is given."""
    for line in () if asked().quiet else lines:
        say(screen, line, "dim")


def fail_unless(right: bool) -> None:
    """End the command with the exit status of a failed check, unless all is right."""
    if not right:
        raise typer.Exit(CHECK_FAILED)


def reports_errors(command: Callable[..., None], *, tables: bool = False) -> Callable[..., None]:
    """A command with --quiet that prints refusals as a red message with an exit status, and with --json as JSON too.

    A kernel that breaks a rule of NKI has failed a check; every other refusal, also of a launch, is bad input. A
    parameter whose type is a dataclass stands for its fields: an option each. tables: with --format and --wide.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}

    @functools.wraps(command)
    def run(quiet: bool = False, format: str = FORMATS[0], wide_tables: bool = False, **kwargs: Any) -> None:
        as_json = kwargs.get("as_json", False)
        token = _ASKED.set(Asked(format if format in FORMATS else FORMATS[0], quiet, wide_tables))
        try:
            if format not in FORMATS:
                raise UnsupportedError(f"--format={format}: accepted are {', '.join(FORMATS)}; use one of these")
            if as_json and format != FORMATS[0]:
                raise UnsupportedError(f"--format={format}: --json prints one document and nothing else; drop one")
            for name, kind in groups.items():
                kwargs[name] = kind(**{one.name: kwargs.pop(one.name) for one in dataclasses.fields(kind)})
            command(**kwargs)
        except BrokenPipeError:  # the reader of a pipe has closed it, which typer knows how to end
            raise
        except (NkiconvError, NkiValidationError, TargetFileError, NotImplementedError, OSError, MemoryError) as error:
            try:
                _report(error, as_json=as_json)
            except UnsupportedError as unwritten:
                _report(unwritten, as_json=False)
            _settle_stdout()
            raise typer.Exit(
                CHECK_FAILED if isinstance(error, NkiError) and error.op != "launch" else BAD_INPUT
            ) from None
        finally:
            _ASKED.reset(token)

    options: dict[str, tuple[Any, Any]] = {}
    for one in inspect.signature(command).parameters.values():
        kind = hints[one.name]
        if one.name in groups:
            types = get_type_hints(kind, include_extras=True)
            options |= {field.name: (types[field.name], field.default) for field in dataclasses.fields(kind)}
        else:
            options[one.name] = kind, one.default
    options["quiet"] = _Quiet, False
    if tables:
        options |= {"format": (_Format, FORMATS[0]), "wide_tables": (_Wide, False)}
    for annotation, _ in options.values():
        kind, *info = get_args(annotation)
        if kind in (bool, bool | None):
            info[0].metavar = ""  # typer's, <bool>, says that the flag takes a value
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    return run


_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
_Wide = Annotated[
    bool, typer.Option("--wide", "--verbose", "-v", help="Every column of tables, and what belongs to them.")
]
_Format = Annotated[str, typer.Option(help=f"Of tables: {', '.join(FORMATS)}.")]


def prints_tables(command: Callable[..., None]) -> Callable[..., None]:
    """As `reports_errors`, with --format and --wide."""
    return reports_errors(command, tables=True)


def _report(error: BaseException, *, as_json: bool) -> None:
    """The error in red on stderr, and as JSON on stdout.

    Raises UnsupportedError: stdout cannot be written.
    """
    message = _said(error) or "out of memory; use a smaller problem or --channels"
    say(console(stderr=True), f"{type(error).__name__}: {message}", "red")
    if as_json:
        violations = list(getattr(error, "violations", (message,)))
        print_json({"error": {"class": type(error).__name__, "message": message, "violations": violations}})


def _said(error: BaseException) -> str:
    """An error's message; for errors of the operating system the file and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON object on stdout: `schema`, the version of its shape, and the document; a list is its `rows`; under a
    target, `target_file`. Numbers that JSON cannot write become "inf", "-inf", "nan"."""
    named = document if isinstance(document, Mapping) else {"rows": document}
    of = {"target_file": str(CONSTANTS.path)} if CONSTANTS.path else {}
    write_out(json.dumps(_plain({"schema": SCHEMA, **of, **named}), indent=2, allow_nan=False) + "\n")


def write_out(text: str) -> None:
    """Text on stdout, as it is.

    Raises UnsupportedError: stdout is a file on a full disk, or another that cannot be written; later output is
    dropped.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_stdout()
        raise UnsupportedError(f"stdout: cannot be written ({error.strerror}); send it elsewhere") from error


def _settle_stdout() -> None:
    """Flush stdout now, or drop its buffer: Python would try again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()


def _drop_stdout() -> None:
    """Drop stdout's buffer and all later output."""
    with suppress(OSError), open(os.devnull, "w", encoding="utf-8") as nowhere:  # a stdout in memory has no number
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as lines on stderr while the block runs, each once, without the source lines that Python adds."""

    shown = set[str]()

    def show(message: Any, *_rest: Any, **_more: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            say(console(stderr=True), f"warning: {message}", "yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield


@contextmanager
def progress(show: bool) -> Iterator[Advance]:
    """Progress on stderr while the block runs: a bar on a terminal, else a line now and then; yields a function of
    (what, share done or None)."""
    screen = console(stderr=True)
    shown = show and not asked().quiet
    if shown and not screen.is_terminal:
        yield _plain_progress()
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn()
    with Progress(*columns, console=screen, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)

        def advance(what: str, share: float | None) -> None:
            bar.update(task, description=what, total=None if share is None else 1.0, completed=share or 0.0)

        yield advance


def _plain_progress() -> Advance:
    """A line on stderr at most every PLAIN_SECONDS."""
    began = last = time.monotonic()

    def advance(what: str, share: float | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PLAIN_SECONDS:
            last = now
            done = "" if share is None else f", {share:.0%}"
            print(f"{now - began:.0f} s: {what}{done}", file=sys.stderr, flush=True)

    return advance


def of_case(name: str, advance: Advance) -> Advance:
    """The progress of one of several cases, told by its name."""
    return lambda what, share: advance(f"{name}: {what}", share)
