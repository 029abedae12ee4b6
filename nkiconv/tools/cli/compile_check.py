"""`nkiconv compile-check`: kernels through AWS's simulator and compiler, on a machine without a device."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import __version__, cases, rules
from ...cases import SUITE_ALIASES, SUITES, Case
from ...errors import NkiconvError, UnsupportedError, raise_all, refused
from ...launches import TARGET, other_degree
from ..doctor import diagnose, lacking
from ..suites import csv_rows
from ..tables.readme import Columns
from .grid import Grid
from .kernels import KernelCall, is_kernel, unnamed
from .options import Arg, Force, Input, Lnc
from .paths import idle_force, unwritable
from .shell import JsonOption, console, fail_unless, notes, print_json, prints_tables, progress, say, wrote
from .show import cores

if TYPE_CHECKING:
    from .compile_run import Row

#: The headline cases of all suites, by a name like a suite's.
HEADLINE = "headline"
#: Packages that a machine needs, both AWS's.
_PACKAGES = "nki", "neuronx-cc"
#: Variables of AWS's nki, and the values that the check requires.
_VARIABLES = {
    TARGET: ("trn2", "gen3"),
    "NKI_SIMULATOR": ("0",),  # else a call is simulated where it should be compiled
    "NKI_PRECISE_FP": ("1",),  # else bf16 and fp8 are not rounded
}
_NOTES = (
    "simulate: AWS's nki.simulate held against float64, largest error over its bound; compile: a NEFF, with "
    "barrier_check",
    "instructions and modelled us: nkiconv's simulator's; AWS documents no way to read its compiler's",
)
COLUMNS: Columns = (
    ("kernel", "kernel", ""),
    ("algorithm", "algorithm", ""),
    ("simulate", "simulate", ""),
    ("compile", "compile", ""),
    ("instructions", "instructions", ",d"),
    ("modelled us", "modelled_us", ",.1f"),
    ("predicted us", "predicted_us", ",.1f"),
    ("line", "line", ""),
    ("error", "error", ""),
)
#: Where rows, logs and NEFFs go unless --out says otherwise.
OUT = Path("compile_check")


@prints_tables
def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="CASE|SUITE|FILE.py:KERNEL...", help="See nkiconv cases. Default: headline."),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help=f"{HEADLINE}, the headline cases of all suites, or one of {', '.join(SUITES)}.")
    ] = None,
    direction: Annotated[
        str | None, typer.Option(help="Of cases, instead of all three: forward, dgrad or wgrad, the gradients.")
    ] = None,
    input: Input = None,
    arg: Arg = None,
    lnc: Lnc = 2,
    jobs: Annotated[int, typer.Option(min=1, help="Kernels at a time; AWS's compiler may want tens of GB each.")] = 1,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for each: modelling, simulating, compiling a kernel.")
    ] = 1800,
    out: Annotated[
        Path, typer.Option(help="Where rows, logs and NEFFs are kept; rows that are there are not made again.")
    ] = OUT,
    rerun: Annotated[bool, typer.Option("--rerun", help="Make rows again.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Run AWS's simulator and compiler over cases and their gradients, or over your own kernels; no device is needed.

    Written for AWS's nki 0.7 and neuronx-cc as AWS documents them, and never run there. Each kernel is simulated and
    held against the float64 reference, as nkiconv run does it, and compiled to a NEFF with barrier_check, each in a
    process of its own. Ctrl-C keeps what is done; the same command goes on. Rows that ended by a timeout, or because a
    process died, are made again. Exit status 1 if a kernel failed.
    """
    found, named = diagnose(), names or []
    calls = [KernelCall(name, tuple(input or ()), tuple(arg or ()), lnc) for name in named if is_kernel(name)]
    given = {"--input": input, "--arg": arg}
    raise_all(
        "nkiconv compile-check cannot run this call",
        [
            *lacking(found, *_PACKAGES),
            *_environment(lnc),
            *_contradictions(named, calls, suite, direction, given),
            *unwritable("--csv", csv, "a .csv file", force=force),
            *idle_force(force, {"--csv": csv}),
        ],
    )
    suites = [name for name in named if not is_kernel(name)] + ([suite] if suite else [])
    chosen = _cases(suites or ([] if calls else [HEADLINE]))
    directions = [direction] if direction else rules.DIRECTIONS
    case_refusals = importlib.import_module("nkiconv.tools.verify").case_refusals
    errors = [
        error for case in chosen for one in directions for error in case_refusals(case.toward(one), degrees=(lnc,))
    ]
    raise_all("nkiconv compile-check cannot run these cases", errors)
    running = importlib.import_module("nkiconv.tools.cli.compile_run")
    kernels = [running.Kernel(one, "", lnc) for one in calls]
    kernels += [running.Kernel(case, one, lnc) for case in chosen for one in directions]
    versions = {"nkiconv": __version__} | {one.name: one.version for one in found.packages if one.name in _PACKAGES}
    checker = running.Checker(out, timeout, versions)
    try:
        with progress(show=not as_json) as advance:
            rows = checker.rows(kernels, jobs, rerun, advance)
    except KeyboardInterrupt:
        say(console(stderr=True), f"{out} keeps what is done; the same command goes on", "yellow")
        raise
    if csv is not None:
        csv_rows.write(csv, [row.as_dict() for row in rows])
    right = all(row.ok for row in rows)
    if as_json:
        print_json({"ok": right, **versions, "lnc": lnc, "out": str(out), "rows": [row.as_dict() for row in rows]})
    else:
        _show(rows, versions, lnc, out, csv)
    fail_unless(right)


def _environment(lnc: int) -> Iterator[NkiconvError]:
    """Variables under which AWS's tools would do something else."""
    yield from refused(UnsupportedError, rules.lnc(lnc, "--lnc"))
    yield from other_degree(lnc)
    for name, accepted in _VARIABLES.items():
        value = os.environ.get(name, accepted[0])
        if value not in accepted:
            yield UnsupportedError(f"{name}={value!r}: compile-check wants {' or '.join(accepted)}; unset it")


def _contradictions(
    names: list[str], calls: list[KernelCall], suite: str | None, direction: str | None, given: dict[str, Any]
) -> Iterator[NkiconvError]:
    """Options that do not go together, and kernels that cannot be called."""
    yield from unnamed(names)
    for call in calls:
        yield from call.violations()
    for option, value in given.items():
        if value and not calls:
            yield UnsupportedError(f"{option}={value[0]}: is of a kernel, FILE.py:KERNEL; name one, or drop it")
    if direction is not None:
        yield from refused(UnsupportedError, rules.accepted("--direction", direction, rules.DIRECTIONS))
        if calls and len(calls) == len(names) and suite is None:
            yield UnsupportedError(f"--direction={direction}: is of cases, and only kernels are named; drop it")


def _cases(names: list[str]) -> list[Case]:
    """The cases of names of cases and suites, each once."""
    found: list[Case] = []
    for name in names:
        if name == HEADLINE:
            found += [case for one in SUITES for case in cases.load(one) if case.headline]
        elif name in SUITES or name in SUITE_ALIASES:
            found += cases.load(name)
        else:
            found.append(cases.get(name))
    return list(dict.fromkeys(found))


def _show(rows: list[Row], versions: dict[str, str | None], lnc: int, out: Path, csv: Path | None) -> None:
    """The table, and of each failed kernel its first error."""
    screen = console()
    tools = ", ".join(f"{name} {versions[name] or '(version unknown)'}" for name in _PACKAGES)
    main = "kernel", "simulate", "compile", "modelled us", "instructions", "algorithm"
    grid = Grid.of(f"AWS's tools for trn2, {cores(lnc)}: {tools}", COLUMNS, main)
    for row in rows:
        ratio = "" if row.worst_ratio is None else f" {row.worst_ratio:.2f}"
        named = {name: getattr(row, name) or "-" for name in ("algorithm", "compile")}
        cells = {**vars(row), **named, "simulate": f"{row.simulate or '-'}{ratio}"}
        grid.put(cells, style="" if row.ok else "bold red")
    grid.show(screen)
    for row in rows:
        if not row.ok:
            say(screen, f"{row.kernel}: {row.stage}: {row.line + ': ' if row.line else ''}{row.error}", "red")
    good = sum(row.ok for row in rows)
    say(screen, f"{good} of {len(rows)} kernels pass; rows, logs and NEFFs are in {out}", "bold")
    notes(screen, *_NOTES)
    wrote(screen, csv)
