"""`nkiconv calibrate`: measure the constants of the timing model on this machine's device."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import cases
from ...errors import UnsupportedError, raise_all
from ...simulator.constants import DEFAULT, SHIPPED, VARIABLE, load_target
from ...simulator.hardware import CONSTANTS
from ..doctor import DEVICE
from .grid import Grid
from .measure import Target
from .options import Force, misplaced
from .paths import unwritable
from .shell import JsonOption, console, fail_unless, notes, print_json, prints_tables, progress, say

if TYPE_CHECKING:
    from ..calibrate.clocks import Clock
    from ..calibrate.estimate import Estimate, Fit
    from ..calibrate.probe import Probe

#: Where the constants go unless --out says otherwise.
OUT = Path("trn2_measured.toml")
#: The factor by which --target model's initial values are off, so that its result is a test.
_OFF = 1.1
#: How a refusal begins.
CANNOT = "nkiconv calibrate cannot run this call"
_MODEL = f"there is no {DEVICE} here, so the timing model stands for a device; --target trn2 measures"


@prints_tables
def command(
    target: Annotated[
        Target | None,
        typer.Option(help="trn2: measure on this instance. model: recover trn2.toml from the timing model itself."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help=f"Write the measured constants to this file. Default {OUT}.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only probes whose name contains this; repeatable.")] = None,
    rounds: Annotated[int | None, typer.Option(min=4, help="Rounds of timing. Default 100, 10 by nrtpy.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what an earlier run has measured.")] = False,
    force: Force = False,
    list_them: Annotated[bool, typer.Option("--list", help="Print the probes and what each is for.")] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="OLD NEW",
            help="Print the constants in which two targets differ, and the plans that change: files, or trn2.",
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="With --compare: only plans of this case; repeatable. Default: all cases (tens of minutes)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the constants of the timing model on this machine's device, with 95 % confidence intervals.

    Each probe is a kernel at two counts of repetitions, whose difference of times is the probe's slope. The constants
    are those under which the timing model has all of the measured slopes. NKICONV_TARGET=FILE makes plans, estimates
    and profiles use them. An interrupted run goes on where it was. Exit status 1 if a probe failed.
    """
    suite = importlib.import_module("nkiconv.tools.calibrate.suite")
    chosen = [probe for probe in suite.PROBES if not only or any(part in probe.name for part in only)]
    where = target or (Target.trn2 if DEVICE.exists() else Target.model)
    given = {"--out": out, "--rounds": rounds, "--fresh": fresh, "--force": force}
    if compare is None:
        contradictions = _contradictions(only, chosen, where, list_them, given, case)
    else:
        beside = {"--target": target, "--only": only, "--list": list_them, **given}
        contradictions = misplaced(beside, "is of a calibration, and --compare measures nothing; drop it")
    raise_all(CANNOT, contradictions)
    if compare is not None:
        _compare(*compare, case, as_json)
        return
    if list_them:
        _list(chosen, as_json)
        return
    path = None
    if where is Target.trn2:
        path = out or OUT
        raise_all(CANNOT, unwritable("--out", path, "a .toml file", force=force))
    is_model = target is None and where is Target.model
    _calibrate(chosen, path, rounds, fresh, _MODEL if is_model else "", as_json)


def _contradictions(
    only: list[str] | None,
    chosen: Sequence[Probe],
    where: Target,
    list_them: bool,
    given: dict[str, Any],
    case: list[str] | None,
) -> Iterator[UnsupportedError]:
    if case:
        yield UnsupportedError("--case: belongs to --compare, and there is none; add --compare OLD NEW")
    if not chosen:
        yield UnsupportedError(
            f"--only={', '.join(only or ())}: no probe has such a name; see nkiconv calibrate --list"
        )
    of_trn2 = {option if value is True else f"{option}={value}": value for option, value in given.items()}
    if list_them:
        yield from misplaced(of_trn2, "is of a calibration, and --list measures nothing; drop it")
    elif where is Target.model:
        yield from misplaced(of_trn2, "is of --target trn2, and the target is model; drop it")


def _compare(old: str, new: str, names: list[str] | None, as_json: bool) -> None:
    """Print in which constants two targets differ, and which plans change."""
    targets = [SHIPPED if one == DEFAULT else load_target(one) for one in (old, new)]
    chosen = [cases.get(name) for name in names or cases.names()]
    module = importlib.import_module("nkiconv.tools.calibrate.compare")
    with progress(show=not as_json) as advance:
        found = module.compare(*targets, chosen, advance=advance)
    if as_json:
        print_json(found.as_dict())
        return
    if not found.constants:
        say(console(), f"{old} and {new} have the same constants: no plan changes")
        return
    constants = Grid("constants", ("constant", "old", "new", "ratio", "unit"), ("constant", "unit"))
    times = "old us", "new us, kept plan", "new us", "gain"
    plans = Grid("plans, modelled", ("case", *times, "old plan", "new plan"), ("case", "old plan", "new plan"))
    for grid, rows in ((constants, found.constant_rows()), (plans, found.case_rows())):
        for row in rows:
            grid.add(*row)
        grid.show(console())


def _list(chosen: Sequence[Probe], as_json: bool) -> None:
    if as_json:
        print_json([{"probe": one.name, "design": one.design, "constants": one.constants} for one in chosen])
        return
    grid = Grid("probes", ("probe", "design", "for"), ("probe", "design", "for"))
    for one in chosen:
        grid.add(one.name, one.design, ", ".join(one.constants) or "comparison with the model")
    grid.show(console())


def _clock(path: Path | None) -> Clock:
    """The timing model's; of a device its own time, where NKICONV_NRTPY says how, else chains through torch."""
    clocks = importlib.import_module("nkiconv.tools.calibrate.clocks")
    if path is None:
        found: Clock = clocks.Chains(importlib.import_module("nkiconv.tools.calibrate.model").ModelDevice())
    elif python := os.environ.get(clocks.VARIABLE):
        found = clocks.Neffs(python)
    else:
        degree = importlib.import_module("nkiconv.tools.calibrate.probe").LNC
        found = clocks.Chains(importlib.import_module("nkiconv.tools.measure.torch_neuron").TorchNeuron(degree))
    return found


def _calibrate(
    chosen: Sequence[Probe], path: Path | None, rounds: int | None, fresh: bool, said: str, as_json: bool
) -> None:
    """Measure, solve, write and print. path: None for the timing model as the device."""
    session = importlib.import_module("nkiconv.tools.calibrate.session")
    solve = importlib.import_module("nkiconv.tools.calibrate.solve").solve
    clock, slopes_path = _clock(path), None
    if path is not None:
        slopes_path = session.path_of(path)
        if fresh:
            slopes_path.unlink(missing_ok=True)
    with progress(show=not as_json) as advance:
        slopes = session.slopes(clock, chosen, advance, slopes_path, 1 if path is None else rounds)
        names = {name for probe in chosen for name in probe.constants}
        start = {name: CONSTANTS[name].value / _OFF for name in names} if path is None else None
        estimates, fits = solve(slopes, advance, start)
    if path is not None:
        session.write(path, estimates, clock)
    if as_json:
        rows = [dataclasses.asdict(one) for one in estimates]
        probes = [{**dataclasses.asdict(one), "misses": one.misses} for one in fits]
        document = {"machine": clock.description, "note": said, "out": path and str(path), "rows": rows}
        print_json({**document, "probes": probes, "unprobed": session.unprobed()})
    else:
        _show(clock, estimates, fits, session.unprobed(), said, path)
    fail_unless(not any(fit.slope.reason for fit in fits))


def _show(
    clock: Clock,
    estimates: Sequence[Estimate],
    fits: Sequence[Fit],
    unprobed: Sequence[str],
    said: str,
    path: Path | None,
) -> None:
    screen = console()
    if said:
        say(screen, said)
    say(screen, clock.description)
    text = "constant", "standing"
    grid = Grid("constants", ("constant", "trn2.toml", "found", "95 %", "ratio", "standing"), text)
    for one in estimates:
        known = one.status == "found"
        cells = (f"{one.value:.4g}", f"±{one.half_interval / one.value:.1%}") if known else ("-", "-")
        ratio = f"{one.value / one.old:.3f}" if known else "-"
        standing = f"{one.status}: {one.reason}" if one.reason else one.status
        grid.add(one.name, f"{one.old:.4g}", *cells, ratio, standing, style="" if known else "yellow")
    grid.show(screen)
    headings = "probe", "slope ns", "modelled before", "after", "A/A", "clock", "verdict"
    grid = Grid("probes", headings, ("probe", "clock", "verdict"), ("probe", "slope ns", "after", "A/A", "verdict"))
    for fit in fits:
        slope = fit.slope
        verdict = slope.reason or ("the model does not follow" if fit.misses else "pass")
        numbers = f"{slope.slope_ns:,.2f}", f"{fit.before_ns:,.2f}", f"{fit.after_ns:,.2f}"
        style = "" if verdict == "pass" else "yellow"
        grid.add(slope.probe, *numbers, f"{slope.aa_difference:.1%}", slope.clock, verdict, style=style)
    grid.show(screen)
    notes(screen, f"inferred constants that no probe is for: {', '.join(unprobed)}")
    say(screen, _verdict(estimates, fits), "bold")
    if path is not None:
        say(screen, f"wrote {path}; {VARIABLE}={path} makes plans, estimates and profiles use it")


def _verdict(estimates: Sequence[Estimate], fits: Sequence[Fit]) -> str:
    """One line: how many constants were found, which probes failed, and which the model does not follow."""
    found = sum(one.status == "found" for one in estimates)
    failed = [fit.slope.probe for fit in fits if fit.slope.reason]
    missed = [fit.slope.probe for fit in fits if fit.misses]
    wrong = [
        f"{', '.join(names)} {words}"
        for names, words in ((failed, "failed"), (missed, "contradict the model"))
        if names
    ]
    head = "NOT all right" if wrong else "all right"
    probes = "; ".join(wrong) or f"the model has the times of all {len(fits)} probes"
    return f"{head}: {found} of {len(estimates)} constants found; {probes}"
