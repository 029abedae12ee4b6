"""`nkiconv run`: run named cases, or files, and hold the results against the float64 reference."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ...errors import NkiconvError, UnsupportedError, raise_all
from ...problem import dtype_name
from .file_options import FileOptions
from .file_work import Work, Written, file_work
from .kernels import KernelCall, is_kernel, unnamed
from .options import Algorithm, Arg, Names, Precision, given_options, named_cases
from .shell import JsonOption, asked, console, fail_unless, notes, print_json, prints_tables, progress, say
from .show import REPORT_NOTES, report_grid, show_verdict, verdict

if TYPE_CHECKING:
    from ..verify import Report


class Lnc(str, enum.Enum):
    """Accepted values of --lnc."""

    one = "1"
    two = "2"
    both = "both"


_DEGREES = {Lnc.one: (1,), Lnc.two: (2,), Lnc.both: (1, 2)}


@prints_tables
def command(
    *,
    names: Names = None,
    options: FileOptions,
    arg: Arg = None,
    lnc: Annotated[Lnc, typer.Option(help="Cores that share the work; both: compare them bit for bit.")] = Lnc.two,
    algorithm: Algorithm = None,
    precision: Precision = None,
    layout: Annotated[
        str | None, typer.Option(help="Of x and y in memory: NCHW or NHWC; of files for conv1d NCW or NWC.")
    ] = None,
    strict_nonfinite: Annotated[bool, typer.Option("--strict-nonfinite", help="Keep NaN and Inf in place.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the random data of named cases. Default 0.")] = None,
    channels: Annotated[str, typer.Option(help="How many to check: auto, all, or a number.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    r"""Run convolutions, check them against the float64 reference, and say what they took; or your own kernel.

    y\[n, c, q] = sum over s of w\[c, s] * x_pad\[n, c, q*stride + s*dilation], and so on for the other operations.

    A picture is \[1, C, H, W] in 0..1, 16-bit sound \[1, C, W] in -1..1; y is written back in kind.
    Cases of more than 200,000 instructions are checked on 16 channels unless --channels says otherwise.
    Exit status 1 if a result is wrong, or a kernel breaks a rule of NKI.
    """
    kernels = [name for name in names or [] if is_kernel(name)]
    raise_all("nkiconv run cannot run this", unnamed(names or []))
    if kernels:
        others = {"--layout": layout, "--precision": precision, "--algorithm": algorithm}
        refused = [*_of_one_kernel(names or [], options, others, strict_nonfinite, channels)]
        calls = [KernelCall(kernels[0], tuple(options.input or ()), tuple(arg or ()), one) for one in _DEGREES[lnc]]
        _run_kernel(calls, seed or 0, options, as_json, refused)
        return
    found_twice = [
        UnsupportedError(f"--input={one}: is given twice; a convolution has one x") for one in (options.input or [])[1:]
    ]
    found_twice += [UnsupportedError(f"--arg={one}: is of a kernel, FILE.py:KERNEL; name one") for one in arg or []]
    raise_all("nkiconv run cannot run this", [*found_twice, *_contradictions(names or [], options, seed, channels)])
    verify = importlib.import_module("nkiconv.tools.verify")
    how: dict[str, Any] = {"algorithm": algorithm, "degrees": _DEGREES[lnc]}
    flags: dict[str, Any] = {"strict_nonfinite": strict_nonfinite, "precision": precision}
    how_many = int(channels) if channels.isdecimal() else channels
    reports: list[Report] = []
    written: Written | None = None
    of_files = None if options.input is None else file_work(options, layout, **flags, **how)
    works = _case_works(names or [], layout, options.dtype, seed or 0, verify, flags, how)
    with progress(show=not as_json) as advance:
        for work in works if of_files is None else [of_files.work]:
            found, y = work.verify(verify, keep=options.out is not None, channels=how_many, advance=advance, **how)
            reports += found
            if of_files is not None and y is not None and all(report.ok for report in found):
                written = of_files.write(y)
    _show(reports, options.out, written, as_json)
    fail_unless(all(report.ok for report in reports))


def _run_kernel(
    calls: list[KernelCall], seed: int, options: FileOptions, as_json: bool, refused: list[NkiconvError]
) -> None:
    """Run a kernel on as many cores as are asked for, and say what it returned."""
    running = importlib.import_module("nkiconv.tools.cli.kernel_run")
    out = None if options.out is None else Path(options.out)
    refused = [*refused, *calls[0].violations(), *(() if out is None else running.refused_out(out, options.force))]
    raise_all("nkiconv run cannot run this", refused)
    with progress(show=not as_json) as advance:
        advance(calls[0].name, None)
        runs = [running.run_kernel(call, seed) for call in calls]
    same = len(runs) < 2 or running.same_bits(*runs)
    written = None if out is None else running.write(runs[-1], out)
    if as_json:
        print_json({"ok": same, "out": options.out, "rows": [one.as_dict() for one in runs]})
    else:
        screen = console()
        running.show(screen, runs)
        if written is not None:
            screen.print(Text(written), soft_wrap=True)
        show_verdict(screen, running.verdict(runs))
    fail_unless(same)


def _of_one_kernel(
    names: list[str], options: FileOptions, others: dict[str, str | None], strict_nonfinite: bool, channels: str
) -> Iterator[NkiconvError]:
    """Options that a kernel in a file has no use for."""
    if len(names) > 1:
        yield UnsupportedError(f"{', '.join(names)}: a kernel runs alone; name it alone")
    given = [option for option in given_options(options) if option not in ("--input", "--out", "--force")]
    given += [option for option, value in others.items() if value is not None]
    given += ["--strict-nonfinite"] * strict_nonfinite + ["--channels"] * (channels != "auto")
    if given:
        yield UnsupportedError(f"{', '.join(given)}: of convolutions, and {names[0]} is a kernel; drop it")


def _contradictions(names: list[str], options: FileOptions, seed: int | None, channels: str) -> Iterator[NkiconvError]:
    """Options that do not go together, or that no command line could mean."""
    if not names and options.input is None:
        yield UnsupportedError(
            "CASE, --input: neither is given; name a case (nkiconv cases) or give --input and --filter"
        )
    of_files = [option for option in given_options(options) if option != "--dtype"]
    if names and of_files:
        yield UnsupportedError(f"{', '.join(of_files)}: cannot be combined with named cases; drop one or the other")
    yield from options.contradictions()
    if options.input is not None and seed is not None:
        yield UnsupportedError(f"--seed={seed}: files bring their own data; drop it")
    if channels not in ("auto", "all") and not (channels.isdecimal() and int(channels) > 0):
        yield UnsupportedError(f"--channels={channels}: must be auto, all, or a positive number; use one of these")
    elif options.out is not None and channels.isdecimal():
        yield UnsupportedError(f"--channels={channels}: --out needs every channel; drop one of the two")


def _case_works(
    names: list[str],
    layout: str | None,
    dtype: str | None,
    seed: int,
    verify: Any,
    flags: dict[str, Any],
    how: dict[str, Any],
) -> Iterator[Work]:
    """The named cases, one at a time; every one is looked up and refused before the first runs.

    flags: strict_nonfinite and precision; how: algorithm and degrees; as `verify.case_refusals` takes them.
    """
    kind = None if dtype is None else dtype_name(dtype)
    chosen = named_cases(names, layout)
    rows = [case.name for case in chosen if layout == "NHWC" and case.suite == "depthwise_conv1d"]
    if rows:
        raise UnsupportedError(
            f"--layout={layout}: rows are checked as [N, C, W]; drop {', '.join(rows)}, or profile them"
        )
    if kind is not None:
        chosen = [dataclasses.replace(case, problem=case.problem.replace(dtype=kind)) for case in chosen]
    refusals = [error for case in chosen for error in verify.case_refusals(case, **flags, **how)]
    raise_all("nkiconv run cannot run these cases", refusals)
    epilogue = importlib.import_module("nkiconv.api.epilogue").Epilogue(**flags)
    for case in chosen:
        x, w = verify.case_arrays(case, seed)
        yield Work(case.name, verify.case_operation(case).name, x, w, case.problem, epilogue)


def _show(reports: list[Report], out: str | None, written: Written | None, as_json: bool) -> None:
    if as_json:
        right = all(report.ok for report in reports)
        where, clipped = (None, None) if written is None else (written.path, written.clipped)
        reported = [report.as_dict() for report in reports]
        print_json({"ok": right, "out": where, "clipped": clipped, "rows": reported})
        return
    screen = console()
    provider = "AWS's nki" if reports[0].provider == "aws" else "nkiconv's simulator"
    report_grid(f"convolutions on {provider}", reports).show(screen)
    notes(screen, *(REPORT_NOTES if asked().wide else REPORT_NOTES[:1]))
    sampled = [report.name for report in reports if report.channels_checked < report.problem.K]
    if sampled:
        names = ", ".join(dict.fromkeys(sampled))
        say(screen, f"{names}: only a sample of the channels was checked; --channels all checks all")
    if any(math.isinf(report.comparison.max_error) and not report.asked.strict_nonfinite for report in reports):
        say(screen, "an infinite error comes from NaN or Inf in x; --strict-nonfinite keeps them in their channel")
    if out is not None:
        text = f"{out} was not written: the result is wrong" if written is None else written.text
        screen.print(Text(text), soft_wrap=True)
    show_verdict(screen, verdict(reports))
