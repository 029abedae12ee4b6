"""`nkiconv profile`: where a case's modelled time goes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UnsupportedError, raise_all
from ...problem import dtype_name
from ...whole_file import whole_file
from .options import Algorithm, Dtype, Layout, Lnc, Names, Precision, named_cases
from .paths import unwritable
from .profile_show import show
from .shell import JsonOption, console, of_case, print_json, progress, reports_errors

if TYPE_CHECKING:
    from ..suites.profiles import CaseProfile


@reports_errors
def command(
    names: Names,
    dtype: Dtype = None,
    precision: Precision = None,
    layout: Layout = None,
    lnc: Lnc = 2,
    algorithm: Algorithm = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Time again with each inferred constant at the ends of its range.")
    ] = False,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Add the preamble and postamble of a NEFF of its own.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a Perfetto trace (.json) of the one case.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png) of the one case.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say where a case's time would go on trn2: a model of the NeuronCore, not a measurement."""
    raise_all("nkiconv profile cannot run this call", list(_contradictions(names, trace, plot)))
    chosen = named_cases(names, layout)
    kind = None if dtype is None else dtype_name(dtype)
    profiles = importlib.import_module("nkiconv.tools.suites.profiles")
    raise_all(
        "nkiconv profile cannot run these cases",
        [error for case in chosen for error in profiles.refusals(case, algorithm, lnc, kind, precision=precision)],
    )
    found: list[CaseProfile] = []
    with progress(show=not as_json) as advance:
        for case in chosen:
            one, timed = profiles.profile_case(
                case, dtype=kind, precision=precision, lnc=lnc, algorithm=algorithm, sensitivity=sensitivity,
                standalone=standalone, advance=of_case(case.name, advance),
            )  # fmt: skip
            found.append(one)
            _write(one, timed, trace, plot)
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    screen = console()
    for one in found:
        show(screen, one)
    for path in (trace, plot):
        if path is not None:
            screen.print(f"wrote {path}", soft_wrap=True)


def _contradictions(names: list[str], trace: Path | None, plot: Path | None) -> Any:
    for option, path in (("--trace", trace), ("--plot", plot)):
        if path is None:
            continue
        if len(names) > 1:
            yield UnsupportedError(f"{option}={path}: is of one case, and {len(names)} are given; give one")
        yield from unwritable(option, path, "a file")
    if plot is not None and plot.suffix != ".png":
        yield UnsupportedError(f"--plot={plot}: must end in .png; name it so")
    if trace is not None and trace == plot:
        yield UnsupportedError(f"--trace={trace}: is --plot's path too; give two")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        yield UnsupportedError(f"--plot={plot}: needs matplotlib; install nkiconv[plots]")


def _write(one: CaseProfile, timed: Any, trace: Path | None, plot: Path | None) -> None:
    title = f"{one.case}: {one.algorithm}, {one.problem.dtype}, {one.lnc} core{'s' if one.lnc > 1 else ''}"
    if trace is not None:
        perfetto = importlib.import_module("nkiconv.simulator.profiling.perfetto")
        with whole_file(trace) as part:
            part.write_text(json.dumps(perfetto.trace(timed)), encoding="utf-8")
    if plot is not None:
        picture = importlib.import_module("nkiconv.simulator.profiling.picture").picture
        with whole_file(plot) as part:
            picture(one.profile, timed, part, title)
