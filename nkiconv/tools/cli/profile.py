"""`nkiconv profile`: where a case's modelled time goes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import nkiconv

from ...cases import Case
from ...errors import NkiconvError, UnsupportedError, raise_all
from ...simulator.profiling import Advance, Profile
from ...simulator.profiling.show import show
from ...whole_file import whole_file
from . import shapes
from .kernels import KernelCall, is_kernel, keywords, unnamed
from .options import Arg, Choice, Constants, Direction, Force, Input, Names, misplaced, named_cases, read_constants
from .paths import idle_force, undrawable, unwritable
from .profile_grid import moved_grid, profiles_grid
from .shell import FORMATS, JsonOption, asked, console, of_case, print_json, prints_tables, progress, wrote
from .show import cores, extents, kind


@prints_tables
def command(
    *,
    names: Names = None,
    direction: Direction = "forward",
    kinds: Choice,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Time again with each inferred constant at the ends of its range.")
    ] = False,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Add the preamble and postamble of a NEFF of its own.")
    ] = False,
    input: Input = None,
    arg: Arg = None,
    shape: shapes.Shape,
    against: Annotated[
        str | None,
        typer.Option(help="What moves from the one profile to this: a case, FILE.py:KERNEL, or .json of --json."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Perfetto trace (.json) of the one profile.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png) of the one profile.")] = None,
    force: Force = False,
    constant: Constants = None,
    as_json: JsonOption = False,
) -> None:
    """Say where the time of a case, or of your own kernel (FILE.py:KERNEL), would go on trn2.

    A model of the NeuronCore, not a measurement.
    """
    named, layout = names or [], kinds.layout
    raise_all("nkiconv profile cannot run this call", unnamed(named))
    kernels = [name for name in (*named, against or "") if is_kernel(name)]
    calls = {name: KernelCall(name, tuple(input or ()), tuple(arg or ()), kinds.lnc) for name in kernels}
    wrong = [
        *_contradictions(named, trace, plot, force),
        *_of_kernels(named, kernels, input, arg, against, direction, kinds),
    ]
    wrong += [error for one in calls.values() for error in one.violations()]
    raise_all("nkiconv profile cannot run this call", wrong)
    found = [name for name in named if name in calls]
    targets: list[Target] = [calls[name] for name in found]
    if len(found) < len(named) or not found or shape.given:
        targets += shapes.chosen_cases(
            [name for name in named if name not in calls], shape, kinds.dtype, layout, direction
        )
    other: Target | None = None
    if against is not None:
        is_file = against.endswith(".json")
        other = calls.get(against) or (Path(against) if is_file else named_cases([against], layout, direction)[0])
    profiles = importlib.import_module("nkiconv.tools.suites.profiles")
    chosen = [one for one in (*targets, other) if isinstance(one, Case)]
    errors = [error for case in chosen for error in profiles.refusals(case, **kinds.how)]
    raise_all("nkiconv profile cannot run these cases", errors)
    constants = importlib.import_module("nkiconv.planner.request").sorted_constants(read_constants(constant))
    with progress(show=not as_json) as advance:
        settings = {"sensitivity": sensitivity, "standalone": standalone, "constants": constants}
        made = [profile_of(one, kinds, settings, advance).under(constants) for one in targets]
        beside = None if other is None else profile_of(other, kinds, settings, advance)
    for path, write in ((trace, made[0].profile.save_trace), (plot, made[0].profile.plot)):
        if path is not None:
            with whole_file(path) as part:
                write(part, made[0].title)
    _tell(made, beside, [path for path in (trace, plot) if path is not None], as_json)


@dataclass(frozen=True)
class Made:
    """A profile, its title, more totals, and plain data for JSON."""

    profile: Profile
    title: str
    floors: tuple[str, ...]
    document: dict[str, Any]

    def under(self, constants: tuple[tuple[str, float], ...]) -> Made:
        """The same, saying which constants are not trn2.toml's."""
        if not constants:
            return self
        title = f"{self.title}, with {', '.join(f'{name}={value:g}' for name, value in constants)}"
        return dataclasses.replace(self, title=title, document={**self.document, "constants": dict(constants)})


#: Targets of a profile: a case, a kernel in a file, a file that holds a profile.
Target = Case | KernelCall | Path


def profile_of(target: Target, kinds: Choice, settings: dict[str, Any], advance: Advance) -> Made:
    """The profile of a target."""
    if isinstance(target, Path):
        return _plain(saved(target))
    if isinstance(target, KernelCall):
        with target.kernel() as kernel:
            how = {**settings, "constants": dict(settings["constants"])}
            profiled = nkiconv.profile(kernel, **how, advance=of_case(target.name, advance))
            return _plain(target.guarded(lambda: profiled(*target.specs(), **keywords(target.arguments))))
    profile_case = importlib.import_module("nkiconv.tools.suites.profiles").profile_case
    one, timed = profile_case(target, **kinds.how, **settings, advance=of_case(target.name, advance))
    profile = dataclasses.replace(one.profile, timed=timed, kernel=f"{target.name} ({one.algorithm})")
    floor = f"copy floor {one.floors.copy_us:,.2f} us, {one.x_copy_floor:.2f} x that"
    shape = extents(one.problem)
    name = shape if one.case == shape else f"{one.case}: {shape}"
    title = f"{name} {kind(one.problem.dtype, one.precision)}, {one.algorithm} on {cores(one.lnc)}"
    return Made(profile, title, (floor,), one.as_dict())


def _plain(one: Profile) -> Made:
    """A profile without further data."""
    return Made(one, f"{one.kernel} on {cores(one.lnc)}", (), one.as_dict())


def saved(path: Path) -> Profile:
    """The one profile that a file of --json holds.

    Raises UnsupportedError: it is no such file.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = document.get("rows", [document])
        if len(rows) != 1:
            raise ValueError(f"it holds {len(rows)}")
        return Profile.from_dict(rows[0])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedError(
            f"{path}: holds no single profile ({error}); write one with nkiconv profile --json"
        ) from error


def _tell(made: list[Made], beside: Made | None, written: list[Path], as_json: bool) -> None:
    """Show profiles, or the changes from one to another."""
    if beside is not None:
        moved = made[0].profile.compare(beside.profile)
    if as_json:
        print_json([one.document for one in made] if beside is None else moved.as_dict())
        return
    screen = console()
    if asked().format != FORMATS[0]:
        grid = profiles_grid([one.profile for one in made]) if beside is None else moved_grid(moved)
        grid.show(screen)
    elif beside is None:
        for one in made:
            show(screen, one.profile, one.title, one.floors)
    else:
        moved.show(screen)
    wrote(screen, *written)


def _of_kernels(
    names: list[str],
    kernels: list[str],
    inputs: list[str] | None,
    args: list[str] | None,
    against: str | None,
    direction: str,
    kinds: Choice,
) -> Iterator[NkiconvError]:
    """Options of kernels without one, options of cases where there are kernels only."""
    for option, given in (("--input", inputs), ("--arg", args)):
        if given and not kernels:
            yield UnsupportedError(f"{option}={given[0]}: is of a kernel, FILE.py:KERNEL, and none is named; name one")
    if names and set(names) <= set(kernels):
        values = {**vars(kinds), "direction": direction if direction != "forward" else None}
        of_cases = {f"--{name}={value}": value for name, value in values.items() if name != "lnc"}
        yield from misplaced(of_cases, f"is of cases, and {kernels[0]} is a kernel; drop it")
    if against is not None and len(names) > 1:
        yield UnsupportedError(f"--against={against}: is held against one profile, {len(names)} are named; name one")


def _contradictions(names: list[str], trace: Path | None, plot: Path | None, force: bool) -> Iterator[NkiconvError]:
    yield from idle_force(force, {"--trace": trace, "--plot": plot})
    for option, path in (("--trace", trace), ("--plot", plot)):
        if path is not None and len(names) > 1:
            yield UnsupportedError(f"{option}={path}: is of one case, and {len(names)} are given; give one")
    yield from unwritable("--trace", trace, "a file", force=force)
    yield from undrawable(plot, force=force)
    if trace is not None and trace == plot:
        yield UnsupportedError(f"--trace={trace}: is --plot's path too; give two")
