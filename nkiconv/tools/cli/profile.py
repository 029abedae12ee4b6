"""`nkiconv profile`: where a case's modelled time goes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import NkiconvError, UnsupportedError, raise_all
from ...problem import dtype_name
from ...simulator.profiling.show import show as show_profile
from ...whole_file import whole_file
from .kernels import KernelCall, is_kernel, keywords
from .options import Algorithm, Dtype, Layout, Lnc, Names, Precision, named_cases
from .paths import unwritable
from .profile_show import show, title_of
from .shell import JsonOption, console, of_case, print_json, progress, reports_errors

if TYPE_CHECKING:
    from ...simulator.profiling import Profile
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
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="SHAPE:DTYPE|FILE", help="Of a kernel, in order: 1x512x5000:bf16, or .npy; repeatable."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of a kernel: a Python literal or nl.NAME; repeatable."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="What moves from the one profile to this: a case, FILE.py:KERNEL, or .json of --json."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Perfetto trace (.json) of the one profile.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png) of the one profile.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say where the time of a case, or of a kernel of one's own (FILE.py:KERNEL), would go on trn2.

    A model of the NeuronCore, not a measurement.
    """
    kernels = [name for name in names if is_kernel(name)]
    calls = [KernelCall(name, tuple(input or ()), tuple(arg or ()), lnc) for name in kernels]
    contradictions = [*_contradictions(names, trace, plot), *_of_kernels(names, kernels, input, arg, against)]
    of_cases = {"--dtype": dtype, "--precision": precision, "--layout": layout, "--algorithm": algorithm}
    if kernels:
        contradictions += [
            UnsupportedError(f"{option}={value}: is of cases, and {kernels[0]} is a kernel; drop it")
            for option, value in of_cases.items()
            if value is not None
        ]
    raise_all(
        "nkiconv profile cannot run this call", [*contradictions, *(e for one in calls for e in one.violations())]
    )
    if kernels or against is not None:
        with progress(show=not as_json) as advance:
            settings = {"sensitivity": sensitivity, "standalone": standalone, "advance": advance}
            kinds = {"dtype": dtype, "precision": precision, "layout": layout, "algorithm": algorithm}
            made = [profile_of(name, calls, lnc, settings, kinds) for name in names]
            other = None if against is None else profile_of(against, calls, lnc, settings, kinds)
        _tell(made, other, trace, plot, as_json)
        return
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
            _write(dataclasses.replace(one.profile, timed=timed), title_of(one), trace, plot)
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    screen = console()
    for one in found:
        show(screen, one)
    for path in (trace, plot):
        if path is not None:
            screen.print(f"wrote {path}", soft_wrap=True)


def profile_of(
    name: str, calls: list[KernelCall], lnc: int, settings: dict[str, Any], kinds: dict[str, Any]
) -> Profile:
    """The profile of a case, of a kernel in a file, or that a file holds.

    kinds: dtype, precision, layout and algorithm of a case; calls: kernels that were named, whose inputs another takes.
    """
    profiling = importlib.import_module("nkiconv.simulator.profiling")
    if name.endswith(".json"):
        return saved(Path(name))
    if is_kernel(name):
        given = calls[0] if calls else KernelCall(name, (), (), lnc)
        call = KernelCall(name, given.inputs, given.arguments, lnc)
        with call.kernel() as kernel:
            profiled = profiling.profile(kernel, **settings)
            found: Profile = call.guarded(lambda: profiled(*call.specs(), **keywords(call.arguments)))
        return found
    profiles = importlib.import_module("nkiconv.tools.suites.profiles")
    [case] = named_cases([name], kinds["layout"])
    dtype = None if kinds["dtype"] is None else dtype_name(kinds["dtype"])
    one, timed = profiles.profile_case(
        case, dtype=dtype, precision=kinds["precision"], lnc=lnc, algorithm=kinds["algorithm"], **settings
    )
    of_case: Profile = dataclasses.replace(one.profile, timed=timed, kernel=f"{case.name} ({one.algorithm})")
    return of_case


def saved(path: Path) -> Profile:
    """The one profile that a file of --json holds.

    Raises UnsupportedError: it is no such file.
    """
    profiling = importlib.import_module("nkiconv.simulator.profiling")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        one = document[0] if isinstance(document, list) and len(document) == 1 else document
        found: Profile = profiling.Profile.from_dict(one)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedError(f"{path}: holds no profile ({error}); write one with nkiconv profile --json") from error
    return found


def _tell(made: list[Profile], other: Profile | None, trace: Path | None, plot: Path | None, as_json: bool) -> None:
    """Show profiles, or what moves to another one, and write trace and picture of the first."""
    _write(made[0], made[0].kernel, trace, plot)
    if as_json:
        print_json([one.as_dict() for one in made] if other is None else made[0].compare(other).as_dict())
        return
    screen = console()
    if other is not None:
        made[0].compare(other).show(screen)
    for one in made if other is None else []:
        show_profile(screen, one, f"{one.kernel} on {'2 cores' if one.lnc == 2 else '1 core'}", [])
    for path in (trace, plot):
        if path is not None:
            screen.print(f"wrote {path}", soft_wrap=True)


def _of_kernels(
    names: list[str], kernels: list[str], inputs: list[str] | None, args: list[str] | None, against: str | None
) -> Iterator[NkiconvError]:
    for option, given in (("--input", inputs), ("--arg", args)):
        if given and not kernels and not (against and is_kernel(against)):
            yield UnsupportedError(f"{option}={given[0]}: is of a kernel, FILE.py:KERNEL, and none is named; name one")
    if against is not None and len(names) > 1:
        yield UnsupportedError(f"--against={against}: is held against one profile, {len(names)} are named; name one")


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


def _write(one: Profile, title: str, trace: Path | None, plot: Path | None) -> None:
    if trace is not None:
        with whole_file(trace) as part:
            one.save_trace(part)
    if plot is not None:
        with whole_file(plot) as part:
            one.plot(part, title)
