"""`nkiconv bench`: named cases, measured on trn2 or modelled anywhere, in the same table."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ...errors import NkiconvError, UnsupportedError, raise_all
from ..doctor import DEVICE
from ..measure import interleave
from ..tables.readme import Columns
from .grid import Grid
from .options import Choice, Names, given_options, misplaced, named_cases
from .paths import unwritable
from .shell import JsonOption, console, fail_unless, of_case, print_json, prints_tables, progress, say
from .show import cores, kind, this_machine
from .suite import OfSuite, bench_suite

if TYPE_CHECKING:
    from ...cases import Case
    from ..measure.modelled import Modelled
    from ..measure.rows import Row
    from ..measure.timing_speed import TimingSpeed

#: Where measured rows go unless --append says otherwise.
OUT = Path("measured_trn2.csv")
#: How a refusal begins.
CANNOT = "nkiconv bench cannot run this call"
#: Least rounds, so that each of the four variants has been first.
MIN_ROUNDS = 4


_SHARES: Columns = (("x copy floor", "x_copy_floor", ".2f"), ("of the limit", "roofline_fraction", ".1%"))
_MODELLED: Columns = (
    ("case", "case", ""),
    ("algorithm", "algorithm", ""),
    ("mean", "modelled_us", ",.2f"),
    ("phase 0", "phase0_us", ",.2f"),
    ("worst", "worst_us", ",.2f"),
    ("copy floor", "copy_floor_us", ",.2f"),
    ("launch floor", "launch_floor_us", ",.2f"),
    *_SHARES,
    ("instructions", "instructions", ",d"),
    ("bound by", "bound_by", ""),
)
_MEASURED: Columns = (
    ("case", "case", ""),
    ("algorithm", "algorithm", ""),
    ("p50", "p50_us", ",.2f"),
    ("p10", "p10_us", ",.2f"),
    ("p90", "p90_us", ",.2f"),
    ("A/A", "aa_p50_us", ",.2f"),
    ("copy floor", "copy_floor_p50_us", ",.2f"),
    ("launch floor", "launch_floor_p50_us", ",.2f"),
    *_SHARES,
    ("modelled", "modelled_us", ",.2f"),
    ("verdict", "status", ""),
)


class Target(str, enum.Enum):
    """Accepted values of --target."""

    trn2 = "trn2"
    model = "model"


@prints_tables
def command(
    *,
    names: Names = None,
    target: Annotated[
        Target | None, typer.Option(help="trn2: measure on this instance. model: predict. Default: what is here.")
    ] = None,
    kinds: Choice,
    rounds: Annotated[
        int | None,
        typer.Option(min=MIN_ROUNDS, help=f"Rounds of timing on trn2. Default {interleave.ROUNDS}."),
    ] = None,
    append: Annotated[Path | None, typer.Option(help=f"Add the rows of trn2 to this CSV file. Default {OUT}.")] = None,
    of: OfSuite,
    timing_speed: Annotated[
        bool, typer.Option("--timing-speed", help="Say how fast the model times 100,000 instructions here.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure cases on trn2, with floors and the model's prediction, or print the prediction alone.

    On trn2 the results are checked against float64 first; then every round times, in rotated order, the kernel, the
    kernel again, the copy floor and the launch floor, each as a slope over chains of calls. Exit status 1 if a case
    failed. A case that failed keeps its row, with the reason and without a number.

    With --suite: plan every headline case, check the plan's results, model them, and hold them against the plain
    algorithm (implicit_gemm, but of depthwise), the copy floor, the roofline, and cuDNN on an H200. With --against
    PATH: plan every headline case, and model AWS's own depthwise_conv1d_implicit_gemm from that checkout too,
    where it takes the case. Exit status 1 if --check finds a wrong result. With --suite deepbench: plan DeepBench's
    training list forward and both gradients, in NHWC unless --layout says otherwise, compared with what a V100 took.
    """
    of_trn2 = {"--rounds": rounds, "--append": append}
    if of.suite is not None:
        taken = ("--lnc", "--layout") if of.name == "deepbench" and of.against is None else ("--lnc",)
        given: dict[str, Any] = {option: True for option in given_options(kinds) if option not in taken}
        given |= {"CASE": names, "--target": target, "--timing-speed": timing_speed, **of_trn2}
        why = f"cannot be combined with --suite={of.name}, which chooses its own; drop it"
        raise_all(CANNOT, misplaced(given, why))
        if of.against is not None:
            _of("against").bench_against(of, of.against, kinds.lnc, as_json)
            return
        without = misplaced({"--check": of.check}, "belongs to --against, and there is none; add --against PATH")
        raise_all(CANNOT, without)
        if of.name == "deepbench":
            _of("deepbench").bench_deepbench(of, kinds.layout, kinds.lnc, as_json)
        else:
            bench_suite(of, kinds.lnc, as_json)
        return
    without = misplaced(
        dict.fromkeys(given_options(of), True), "belongs to --suite, and there is none; add --suite depthwise"
    )
    raise_all(CANNOT, without)
    where = target or (Target.trn2 if DEVICE.exists() else Target.model)
    raise_all(CANNOT, _contradictions(names or [], where, of_trn2, timing_speed))
    cases = named_cases(names, kinds.layout)
    profiles = importlib.import_module("nkiconv.tools.suites.profiles")
    errors = [error for case in cases for error in profiles.case_violations(case, **kinds.how)]
    raise_all("nkiconv bench cannot run these cases", errors)
    if where is Target.model:
        said = "" if target else f"there is no {DEVICE} here, so this is modelled; --target trn2 measures"
        _model(cases, kinds, timing_speed, said, as_json)
        return
    _measure(cases, kinds, rounds or interleave.ROUNDS, append or OUT, as_json)


def _of(name: str) -> Any:
    """A part of this command, which imports what it needs."""
    return importlib.import_module(f"{__package__}.{name}")


def _contradictions(
    names: list[str], where: Target, of_trn2: dict[str, Any], timing_speed: bool
) -> Iterator[NkiconvError]:
    if not names and not timing_speed:
        yield UnsupportedError("CASE: none is given; name a case (nkiconv cases)")
    if where is Target.trn2 and timing_speed:
        yield UnsupportedError("--timing-speed: is of the model, and the target is trn2; give --target model")
    if where is Target.model:
        given = {f"{option}={value}": value for option, value in of_trn2.items()}
        yield from misplaced(given, "is of --target trn2, and the target is model; drop it")


def _measure(chosen: list[Case], kinds: Choice, rounds: int, path: Path, as_json: bool) -> None:
    """Measure every case, append each row as soon as there is one, and print them."""
    raise_all(CANNOT, unwritable("--append", path, "a .csv file"))
    kept = importlib.import_module("nkiconv.tools.measure.rows")
    kept.check(path)
    device = importlib.import_module("nkiconv.tools.measure.torch_neuron").TorchNeuron(kinds.lnc)
    measure_case = importlib.import_module("nkiconv.tools.measure.one_case").measure_case
    found: list[Row] = []
    with progress(show=not as_json) as advance:
        for case in chosen:
            row = measure_case(device, case, **kinds.how, rounds=rounds, advance=of_case(case.name, advance))
            kept.append(path, row)
            found.append(row)
    _show_measured(found, device.description, path, as_json)
    fail_unless(all(row.timing is not None for row in found))


def _model(chosen: list[Case], kinds: Choice, speed: bool, said: str, as_json: bool) -> None:
    """Print the prediction of every case, and how fast the model is."""
    measured_speed = importlib.import_module("nkiconv.tools.measure.timing_speed").timing_speed() if speed else None
    model = importlib.import_module("nkiconv.tools.measure.modelled").model
    found: list[tuple[Case, Modelled]] = []
    with progress(show=not as_json) as advance:
        for case in chosen:
            found.append((case, model(case.name, advance=of_case(case.name, advance), **kinds.how)))
    how = {"precision": kinds.precision, "lnc": kinds.lnc}
    rows = [
        {"case": case.name, "dtype": kinds.known or case.problem.dtype, **how, **one.as_dict()} for case, one in found
    ]
    if as_json:
        speeds = measured_speed.as_dict() if measured_speed else None
        print_json({"target": "model", "kind": "modelled", "note": said, "timing_speed": speeds, "rows": rows})
        return
    screen = console()
    if said:
        say(screen, said)
    if found:
        main = "case", "algorithm", "mean", "of the limit", "bound by", "copy floor", "instructions"
        grid = Grid.of(f"modelled us (trn2, {cores(kinds.lnc)})", _MODELLED, main)
        for row in rows:
            grid.put({**row, "case": f"{row['case']} {kind(row['dtype'], kinds.precision)}"})
        grid.show(screen)
    if measured_speed:
        _show_speed(screen, measured_speed)


def _show_speed(screen: Console, speed: TimingSpeed) -> None:
    aims = importlib.import_module("nkiconv.tools.measure.timing_speed")
    say(
        screen,
        f"timing {speed.instructions:,} instructions takes {speed.seconds:.2f} s here ({this_machine()}): trace "
        f"{speed.trace_seconds:.2f}, dependencies {speed.dependencies_seconds:.2f}, one timeline "
        f"{speed.timeline_seconds:.2f}; peak memory {speed.peak_gb:.2f} GB; aim: {aims.AIM_SECONDS:g} s and "
        f"{aims.AIM_GB:g} GB",
    )


def _show_measured(rows: list[Row], machine: str, path: Path, as_json: bool) -> None:
    right = all(row.timing is not None for row in rows)
    if as_json:
        values = [{**row.values(), "timing": row.timing.as_dict() if row.timing else None} for row in rows]
        document = {"target": "trn2", "kind": "measured", "machine": machine, "out": str(path), "ok": right}
        print_json({**document, "rows": values})
        return
    screen = console()
    say(screen, machine)
    main = "case", "p50", "modelled", "verdict", "of the limit", "algorithm", "A/A"
    grid = Grid.of(f"measured us (trn2, {cores(rows[0].lnc)})", _MEASURED, main)
    for row in rows:
        cells = {key: None for _, key, _ in _MEASURED} | row.values()
        cells["case"] = f"{row.case} {kind(row.problem.dtype, row.precision)}"
        grid.put(cells, style={"pass": "", "noisy": "yellow"}.get(row.status, "bold red"))
    grid.show(screen)
    for row in rows:
        if row.reason:
            say(screen, f"{row.case}: {row.reason}", "red")
        elif row.timing is not None and row.timing.noisy:
            noise = f"noisy, the medians of the kernel and of itself differ by {row.timing.aa_difference:.1%}"
            say(screen, f"{row.case}: {noise}", "yellow")
    say(screen, f"appended to {path}")
