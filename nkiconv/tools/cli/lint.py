"""`nkiconv lint`: checks the Python of kernels against NKI's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...errors import UnsupportedError, raise_all
from ...lint import DEFAULT_VERSION, lint, output
from .options import misplaced
from .shell import BAD_INPUT, CHECK_FAILED, JsonOption, console, print_json, reports_errors, say, write_out


@reports_errors
def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and folders with kernels and all that they import.", show_default=False),
    ] = None,
    nki: Annotated[
        str | None,
        typer.Option(
            help="0.7: what NKI 0.7 traces. 0.6: what the parser of NKI 0.3 to 0.6 compiles.",
            show_default=DEFAULT_VERSION,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also what is deprecated, doubtful, or refused on paper only.")
    ] = False,
    ignore: Annotated[
        list[str] | None, typer.Option(help="The id of a rule to leave out; may be repeated.", show_default=False)
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option("--format", help="text, github (annotations of a workflow) or json.", show_default="text"),
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules and stop.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Judge the Python of @nki.jit kernels, and of all that they reach, without importing it.

    Kernels are found by their decorator and followed into the functions and classes that they use, through imports of
    files under PATHS; code that no kernel reaches is not judged. A comment `# nki: noqa[NKL102]` excuses its line from
    that rule. The exit status is 1 with findings, 0 without, 2 for a missing path or a file that is not Python.
    """
    kind = output_format or ("json" if as_json else "text")
    if kind not in output.FORMATS or (as_json and kind != "json"):
        json_only = as_json and kind in output.FORMATS
        why = "--json prints one document; drop one of the two" if json_only else f"must be {', '.join(output.FORMATS)}"
        raise UnsupportedError(f"--format {kind}: {why}")
    if rules:
        of_judging = {"PATHS": paths, "--nki": nki, "--strict": strict, "--ignore": ignore}
        raise_all("nkiconv lint cannot run", misplaced(of_judging, "judges kernels, and --rules judges none; drop it"))
        _show_rules(kind)
        return
    if not paths:
        raise UnsupportedError("PATHS: none given; name files or folders to judge, as in `nkiconv lint src`")
    nki = nki or DEFAULT_VERSION
    report = lint(paths, nki=nki, strict=strict, ignore=ignore or ())
    if kind == "json":
        print_json(output.document(report, nki, strict=strict))
    else:
        lines = output.github_lines(report) if kind == "github" else output.text_lines(report)
        write_out("".join(f"{line}\n" for line in lines))
        say(console(stderr=True), output.summary(report, nki, strict=strict))
    for error in report.broken:
        say(console(stderr=True), f"{type(error).__name__}: {error}", "red")
    if report.broken or report.findings:
        raise typer.Exit(BAD_INPUT if report.broken else CHECK_FAILED)


def _show_rules(output_format: str) -> None:
    if output_format == "json":
        print_json(output.rules_document())
    else:
        write_out("".join(f"{line}\n" for line in output.rule_lines()))
