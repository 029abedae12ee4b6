"""`nkiconv run`: run named cases, or two .npy files, and hold the results against the float64 reference."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..errors import DtypeError, GeometryError, NkiconvError, UnsupportedError, raise_all
from ..problem import ConvProblem, dtype_name
from ..reference import AnyArray
from . import npy
from .options import Algorithm, Layout, NoNames, Precision, named_cases
from .shell import CHECK_FAILED, JsonOption, console, print_json, progress, reports_errors
from .show import REPORT_NOTES, report_table

if TYPE_CHECKING:
    from ..verify import Report


class Lnc(str, enum.Enum):
    """Accepted values of --lnc."""

    one = "1"
    two = "2"
    both = "both"


_DEGREES = {Lnc.one: (1,), Lnc.two: (2,), Lnc.both: (1, 2)}


@dataclass(frozen=True)
class Files:
    """The options that only make sense with --input, and dtype; None where not given."""

    input: Path | None
    filter: Path | None
    out: Path | None
    force: bool | None
    dtype: str | None
    stride: int | None
    padding: str | None
    dilation: int | None
    lhs_dilation: int | None

    def given(self) -> list[str]:
        """The options that were given, as typed."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value not in (None, False)]


@dataclass(frozen=True)
class Work:
    """One convolution to run."""

    name: str
    operation: str
    x: AnyArray
    w: AnyArray
    problem: ConvProblem


@reports_errors
def command(
    names: NoNames = None,
    input: Annotated[Path | None, typer.Option(help=".npy file of x, [N, C, W].")] = None,
    filter: Annotated[Path | None, typer.Option(help=".npy file of w, [C, S].")] = None,
    out: Annotated[Path | None, typer.Option(help="Write y, [N, C, Q], to this .npy file if it is right.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --out overwrite.")] = False,
    dtype: Annotated[
        str | None, typer.Option(help="Of named cases instead of their own; of files: bf16 reads NumPy's |V2 as bf16.")
    ] = None,
    stride: Annotated[int | None, typer.Option(help="Default 1.")] = None,
    padding: Annotated[str | None, typer.Option(help="int, left,right, valid, same or causal. Default 0.")] = None,
    dilation: Annotated[int | None, typer.Option(help="Distance of neighbouring taps. Default 1.")] = None,
    lhs_dilation: Annotated[int | None, typer.Option(help="Distance of neighbouring inputs. Default 1.")] = None,
    lnc: Annotated[Lnc, typer.Option(help="Cores that share the work; both: compare them bit for bit.")] = Lnc.two,
    algorithm: Algorithm = None,
    precision: Precision = None,
    layout: Layout = None,
    strict_nonfinite: Annotated[bool, typer.Option("--strict-nonfinite", help="Keep NaN and Inf in place.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the random data of named cases. Default 0.")] = None,
    channels: Annotated[str, typer.Option(help="How many to check: auto, all, or a number.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    r"""Run convolutions, check them against the float64 reference, and say what they took.

    y\[n, c, q] = sum over s of w\[c, s] * x_pad\[n, c, q*stride + s*dilation]. Exit status 1 if a result is wrong.
    Cases of more than 200,000 instructions are checked on 16 channels unless --channels says otherwise.
    """
    files = Files(input, filter, out, force, dtype, stride, padding, dilation, lhs_dilation)
    raise_all("nkiconv run cannot run this", list(_contradictions(names or [], layout, files, seed, channels)))
    verify = importlib.import_module("nkiconv.verify")
    how: dict[str, Any] = {"algorithm": algorithm, "degrees": _DEGREES[lnc], "strict_nonfinite": strict_nonfinite}
    how_many = int(channels) if channels.isdecimal() else channels
    reports: list[Report] = []
    with progress(show=not as_json) as advance:
        for work in _works(names or [], layout, files, seed or 0, verify, {**how, "precision": precision}):
            more = {**how, "channels": how_many, "advance": advance}
            if work.operation == "conv2d":
                found, y = verify.verify_conv2d(work.name, work.x, work.w, work.problem, precision=precision, **more)
            else:
                keep = out is not None
                found, y = verify.verify_depthwise_conv1d(work.name, work.x, work.w, work.problem, keep=keep, **more)
            reports += found
            if out is not None and all(report.ok for report in found):
                npy.save("--out", out, y, force)
    _show(reports, out, as_json)
    if not all(report.ok for report in reports):
        raise typer.Exit(CHECK_FAILED)


def _contradictions(
    names: list[str], layout: str | None, files: Files, seed: int | None, channels: str
) -> Iterator[NkiconvError]:
    """Options that do not go together, or that no command line could mean."""
    if not names and files.input is None:
        yield UnsupportedError(
            "CASE, --input: neither is given; name a case (nkiconv cases) or give --input and --filter"
        )
    of_files = [option for option in files.given() if option != "--dtype"]
    if names and of_files:
        yield UnsupportedError(f"{', '.join(of_files)}: cannot be combined with named cases; drop one or the other")
    if files.input is not None and files.filter is None:
        yield UnsupportedError("--filter: is needed with --input; give the .npy file of w, [C, S]")
    if files.input is not None and seed is not None:
        yield UnsupportedError(f"--seed={seed}: files bring their own data; drop it")
    if files.input is not None and layout is not None:
        yield UnsupportedError(f"--layout={layout}: files of rows are [N, C, W]; drop it, or transpose them")
    if files.force and files.out is None:
        yield UnsupportedError("--force: lets --out overwrite, and there is no --out; give one or drop it")
    if channels not in ("auto", "all") and not (channels.isdecimal() and int(channels) > 0):
        yield UnsupportedError(f"--channels={channels}: must be auto, all, or a positive number; use one of these")
    elif files.out is not None and channels.isdecimal():
        yield UnsupportedError(f"--channels={channels}: --out needs every channel; drop one of the two")


def _works(
    names: list[str], layout: str | None, files: Files, seed: int, verify: Any, how: dict[str, Any]
) -> Iterator[Work]:
    """The convolutions to run, one at a time; every one is looked up and refused before the first runs.

    how: algorithm, degrees, strict_nonfinite and precision, as `verify` takes them.
    """
    kind = None if files.dtype is None else dtype_name(files.dtype)
    chosen = named_cases(names, layout)
    rows = [case.name for case in chosen if layout == "NHWC" and case.suite == "depthwise_conv1d"]
    if rows:
        raise UnsupportedError(
            f"--layout={layout}: rows are checked as [N, C, W]; drop {', '.join(rows)}, or profile them"
        )
    if kind is not None:
        chosen = [dataclasses.replace(case, problem=case.problem.replace(dtype=kind)) for case in chosen]
    refusals = [error for case in chosen for error in verify.case_refusals(case, **how)]
    raise_all("nkiconv run cannot run these cases", refusals)
    for case in chosen:
        x, w = verify.case_arrays(case, seed)
        yield Work(case.name, case.suite, x, w, case.problem)
    if files.input is not None:
        work = _file_work(files)
        raise_all("nkiconv run cannot run these files", verify.file_refusals(work.problem, **how))
        yield work


def _file_work(files: Files) -> Work:
    assert files.input is not None
    assert files.filter is not None
    if files.out is not None:
        npy.check_free("--out", files.out, bool(files.force))
    dtype = None if files.dtype is None else dtype_name(files.dtype)
    x, w = npy.load("--input", files.input, dtype), npy.load("--filter", files.filter, dtype)
    if dtype is not None and str(dtype_name(x.dtype)) != dtype:
        raise DtypeError(f"--dtype={files.dtype}: {files.input} holds {x.dtype}; drop the option or convert the file")
    problem = importlib.import_module("nkiconv.ops").depthwise_problem(
        x,
        w,
        stride=1 if files.stride is None else files.stride,
        padding=_padding(files.padding),
        dilation=1 if files.dilation is None else files.dilation,
        lhs_dilation=1 if files.lhs_dilation is None else files.lhs_dilation,
    )
    return Work(files.input.name, "depthwise_conv1d", x, w, problem)


def _padding(text: str | None) -> Any:
    """--padding as `ops.depthwise_conv1d` takes it: an int, a pair of ints, or the name as typed."""
    if text is None:
        return 0
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        return text
    if len(numbers) > 2:
        raise GeometryError(f"--padding={text}: must be one number or left,right; give at most two")
    return numbers[0] if len(numbers) == 1 else numbers


def _show(reports: list[Report], out: Path | None, as_json: bool) -> None:
    right = all(report.ok for report in reports)
    written = str(out) if out is not None and right else None
    if as_json:
        print_json({"ok": right, "out": written, "reports": [report.as_dict() for report in reports]})
        return
    screen = console()
    provider = "AWS's nki" if reports[0].provider == "aws" else "nkiconv's simulator"
    screen.print(report_table(f"convolutions on {provider}", reports))
    screen.print(Text(REPORT_NOTES, style="dim"))
    sampled = [report.name for report in reports if report.channels_checked < report.problem.K]
    if sampled:
        names = ", ".join(dict.fromkeys(sampled))
        screen.print(Text(f"{names}: only a sample of the channels was checked; --channels all checks all"))
    if any(math.isinf(report.comparison.max_error) and not report.strict_nonfinite for report in reports):
        screen.print(
            Text("an infinite error comes from NaN or Inf in x; --strict-nonfinite keeps them in their channel")
        )
    if out is not None:
        screen.print(Text(f"wrote {out}" if right else f"{out} was not written: the result is wrong"))
