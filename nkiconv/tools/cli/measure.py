"""`nkiconv bench`: named cases, measured on trn2 or modelled anywhere, in the same table."""

from __future__ import annotations

import enum
import importlib
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from ...cases import SUITE_ALIASES
from ...errors import NkiconvError, UnsupportedError, raise_all
from ...problem import dtype_name
from ..doctor import DEVICE
from ..measure import interleave
from .against import bench_against
from .deepbench import bench_deepbench
from .grid import Grid
from .options import Algorithm, Dtype, Force, Layout, Lnc, NoNames, Precision, named_cases
from .paths import unwritable
from .shell import CHECK_FAILED, JsonOption, console, of_case, print_json, prints_tables, progress, say
from .show import kind
from .suite import Files, bench_suite

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


class Target(str, enum.Enum):
    """Accepted values of --target."""

    trn2 = "trn2"
    model = "model"


@dataclass(frozen=True)
class How:
    """How cases run; dtype None: the case's own; algorithm None: the estimate."""

    dtype: str | None
    precision: str | None
    lnc: int
    algorithm: str | None


@prints_tables
def command(
    names: NoNames = None,
    target: Annotated[
        Target | None, typer.Option(help="trn2: measure on this instance. model: predict. Default: what is here.")
    ] = None,
    dtype: Dtype = None,
    precision: Precision = None,
    layout: Layout = None,
    lnc: Lnc = 2,
    algorithm: Algorithm = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=MIN_ROUNDS, help=f"Rounds of timing on trn2. Default {interleave.ROUNDS}."),
    ] = None,
    append: Annotated[Path | None, typer.Option(help=f"Add the rows of trn2 to this CSV file. Default {OUT}.")] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="Plan, check and model the headline cases of this suite: depthwise, conv2d, conv3d or conv_transpose; "
            "or plan deepbench in three directions."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="With --suite depthwise: model AWS's kernel of this checkout of nki-library next to the plans."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --against: run AWS's kernel on a few channels of data, too.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="Of --suite only cases whose name contains this.")] = None,
    tuned: Annotated[bool, typer.Option("--tuned", help="With --suite: plans of nkiconv tune (minutes).")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write the rows of --suite to this file.")] = None,
    force: Force = False,
    readme: Annotated[Path | None, typer.Option(help="Put the table of --suite between this file's markers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw --suite under the rooflines, as a .png file.")] = None,
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
    if suite is not None:
        suite = {name: short for short, name in SUITE_ALIASES.items()}.get(suite, suite)
        given = {
            "CASE": names, "--target": target, "--dtype": dtype, "--precision": precision,
            "--layout": None if suite == "deepbench" and against is None else layout,
            "--rounds": rounds, "--algorithm": algorithm, "--append": append, "--timing-speed": timing_speed,
        }  # fmt: skip
        raise_all(CANNOT, list(_beside_suite(suite, given)))
        files = Files(csv, readme, plot, force)
        if against is not None:
            bench_against(suite, against, only, lnc, tuned, check, files, as_json)
            return
        raise_all(CANNOT, list(_without("--against", "PATH", {"--check": check})))
        if suite == "deepbench":
            bench_deepbench(only, layout, lnc, tuned, files, as_json)
        else:
            bench_suite(suite, only, lnc, tuned, files, as_json)
        return
    of_suite = {"--against": against, "--check": check, "--only": only, "--csv": csv, "--force": force}
    of_suite |= {"--readme": readme, "--plot": plot, "--tuned": tuned}
    raise_all(CANNOT, list(_without("--suite", "depthwise", of_suite)))
    where = target or (Target.trn2 if DEVICE.exists() else Target.model)
    raise_all(CANNOT, list(_contradictions(names or [], where, rounds, append, timing_speed)))
    chosen = named_cases(names, layout)
    known = None if dtype is None else str(dtype_name(dtype))
    profiles = importlib.import_module("nkiconv.tools.suites.profiles")
    each = (profiles.case_violations(case, algorithm, lnc, known, precision=precision) for case in chosen)
    raise_all("nkiconv bench cannot run these cases", [error for errors in each for error in errors])
    how = How(known, precision, lnc, algorithm)
    if where is Target.model:
        said = "" if target else f"there is no {DEVICE} here, so this is modelled; --target trn2 measures"
        _model(chosen, how, timing_speed, said, as_json)
        return
    _measure(chosen, how, rounds or interleave.ROUNDS, append or OUT, as_json)


def _beside_suite(suite: str, given: dict[str, Any]) -> Iterator[NkiconvError]:
    for option, value in given.items():
        if value:
            yield UnsupportedError(f"{option}: cannot be combined with --suite={suite}, which chooses its own; drop it")


def _without(owner: str, value_of_it: str, given: dict[str, Any]) -> Iterator[NkiconvError]:
    for option, value in given.items():
        if value:
            yield UnsupportedError(f"{option}: belongs to {owner}, and there is none; add {owner} {value_of_it}")


def _contradictions(
    names: list[str], where: Target, rounds: int | None, append: Path | None, timing_speed: bool
) -> Iterator[NkiconvError]:
    if not names and not timing_speed:
        yield UnsupportedError("CASE: none is given; name a case (nkiconv cases)")
    if where is Target.trn2 and timing_speed:
        yield UnsupportedError("--timing-speed: is of the model, and the target is trn2; give --target model")
    if where is Target.model:
        for option, value in (("--rounds", rounds), ("--append", append)):
            if value is not None:
                yield UnsupportedError(f"{option}={value}: is of --target trn2, and the target is model; drop it")


def _check_append(path: Path) -> None:
    """Refuse, before any work, a file that rows cannot be appended to."""
    for error in unwritable("--append", path, "a .csv file"):
        raise error
    importlib.import_module("nkiconv.tools.measure.rows").check(path)


def _measure(chosen: list[Case], how: How, rounds: int, path: Path, as_json: bool) -> None:
    """Measure every case, append each row as soon as there is one, and print them."""
    _check_append(path)
    device = importlib.import_module("nkiconv.tools.measure.torch_neuron").TorchNeuron(how.lnc)
    measure_case = importlib.import_module("nkiconv.tools.measure.one_case").measure_case
    append = importlib.import_module("nkiconv.tools.measure.rows").append
    found: list[Row] = []
    with progress(show=not as_json) as advance:
        for case in chosen:
            told = of_case(case.name, advance)
            row = measure_case(device, case, **vars(how), rounds=rounds, advance=told)
            append(path, row)
            found.append(row)
    _show_measured(found, device.description, path, as_json)
    if any(row.timing is None for row in found):
        raise typer.Exit(CHECK_FAILED)


def _model(chosen: list[Case], how: How, speed: bool, said: str, as_json: bool) -> None:
    """Print the prediction of every case, and how fast the model is."""
    measured_speed = importlib.import_module("nkiconv.tools.measure.timing_speed").timing_speed() if speed else None
    model = importlib.import_module("nkiconv.tools.measure.modelled").model
    found: list[tuple[Case, Modelled]] = []
    with progress(show=not as_json) as advance:
        for case in chosen:
            found.append((case, model(case.name, advance=of_case(case.name, advance), **vars(how))))
    if as_json:
        rows = [
            {
                "case": case.name,
                "dtype": how.dtype or case.problem.dtype,
                "precision": how.precision,
                "lnc": how.lnc,
                **one.as_dict(),
            }
            for case, one in found
        ]
        print_json(
            {
                "target": "model",
                "kind": "modelled",
                "note": said,
                "timing_speed": measured_speed.as_dict() if measured_speed else None,
                "rows": rows,
            }
        )
        return
    screen = console()
    if said:
        say(screen, said)
    if found:
        title = f"modelled us (trn2, {_cores(how.lnc)})"
        main = "case", "algorithm", "mean", "of the limit", "bound by", "copy floor", "instructions"
        grid = _grid(title, ("mean", "phase 0", "worst"), ("instructions", "bound by"), main)
        for case, one in found:
            grid.add(
                *_what(case.name, how.dtype or case.problem.dtype, how.precision, one.algorithm),
                *_us(one.modelled_us, one.phase0_us, one.worst_us),
                "-",
                *_us(one.copy_floor_us, one.launch_floor_us),
                f"{one.x_copy_floor:.2f}",
                f"{one.roofline_fraction:.1%}",
                f"{one.instructions:,}",
                one.bound_by,
            )
        grid.show(screen)
    if measured_speed:
        _show_speed(screen, measured_speed)


def _show_speed(screen: Console, speed: TimingSpeed) -> None:
    aims = importlib.import_module("nkiconv.tools.measure.timing_speed")
    machine = f"{platform.python_implementation()} {platform.python_version()}, NumPy {np.__version__}, "
    machine += f"{platform.system()} {platform.machine()}"
    screen.print(
        Text(
            f"timing {speed.instructions:,} instructions takes {speed.seconds:.2f} s here ({machine}): trace "
            f"{speed.trace_seconds:.2f}, dependencies {speed.dependencies_seconds:.2f}, one timeline "
            f"{speed.timeline_seconds:.2f}; peak memory {speed.peak_gb:.2f} GB; aim: {aims.AIM_SECONDS:g} s and "
            f"{aims.AIM_GB:g} GB"
        ),
        soft_wrap=True,
    )


def _show_measured(rows: list[Row], machine: str, path: Path, as_json: bool) -> None:
    right = all(row.timing is not None for row in rows)
    if as_json:
        values = [{**row.values(), "timing": row.timing.as_dict() if row.timing else None} for row in rows]
        document = {"target": "trn2", "kind": "measured", "machine": machine, "out": str(path), "ok": right}
        print_json({**document, "rows": values})
        return
    screen = console()
    screen.print(Text(machine), soft_wrap=True)
    title = f"measured us (trn2, {_cores(rows[0].lnc)})"
    main = "case", "p50", "modelled", "verdict", "of the limit", "algorithm", "A/A"
    grid = _grid(title, ("p50", "p10", "p90"), ("modelled", "verdict"), main)
    for row in rows:
        grid.add(*_measured_cells(row), style={"pass": "", "noisy": "yellow"}.get(row.status, "bold red"))
    grid.show(screen)
    for row in rows:
        if row.reason:
            say(screen, f"{row.case}: {row.reason}", "red")
        elif row.timing is not None and row.timing.noisy:
            noise = (
                f"{row.case}: noisy, the medians of the kernel and of itself differ by {row.timing.aa_difference:.1%}"
            )
            say(screen, noise, "yellow")
    screen.print(f"appended to {path}", soft_wrap=True)


def _measured_cells(row: Row) -> Iterator[str]:
    found = row.timing
    yield from _what(row.case, row.problem.dtype, row.precision, row.algorithm)
    if found is None:
        yield from ["-"] * 8
    else:
        yield from _us(found.this.p50_us, found.this.p10_us, found.this.p90_us, found.again.p50_us)
        yield from _us(found.copy_floor.p50_us, found.launch_floor.p50_us)
        yield f"{found.x_copy_floor:.2f}"
        yield f"{row.roofline_fraction:.1%}"
    yield from _us(row.modelled.modelled_us) if row.modelled else ["-"]
    yield row.status


def _grid(title: str, times: tuple[str, ...], last: tuple[str, ...], main: tuple[str, ...]) -> Grid:
    """The table of both targets, which differ in the kind of times, the last columns, and those of a narrow screen."""
    floors = ("A/A", "copy floor", "launch floor", "x copy floor", "of the limit")
    text = "case", "algorithm", "bound by", "verdict"
    return Grid(title, ("case", "algorithm", *times, *floors, *last), text, main)


def _what(name: str, dtype: str, precision: str | None, algorithm: str) -> tuple[str, str]:
    return f"{name} {kind(dtype, precision)}", algorithm


def _us(*values: float) -> list[str]:
    return [f"{value:,.2f}" for value in values]


def _cores(lnc: int) -> str:
    return "2 cores" if lnc == 2 else "1 core"
