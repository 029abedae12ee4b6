"""`nkiconv plan` and `nkiconv tune`: which algorithm with which settings, why, and what was not chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from ...cases import Case
from ...errors import raise_all
from ...problem import dtype_name
from .options import Constants, Dtype, Fresh, Layout, Lnc, Names, Precision, named_cases, read_constants
from .shell import JsonOption, console, of_case, plain_warnings, print_json, progress, reports_errors
from .show import kind

if TYPE_CHECKING:
    from ...planner import Plan

Strict = Annotated[
    bool, typer.Option("--strict-nonfinite", help="Only algorithms that keep NaN and Inf in their channel.")
]
Explain = Annotated[bool, typer.Option("--explain", help="Print alternatives, rejections with reasons, and symbols.")]


def _planning(*, wide: bool, doc: str) -> Callable[..., None]:
    """The command `plan`, or with `wide` the command `tune`: the same options, another search."""

    def command(
        names: Names,
        explain: Explain = False,
        dtype: Dtype = None,
        precision: Precision = None,
        layout: Layout = None,
        lnc: Lnc = 2,
        strict_nonfinite: Strict = False,
        constant: Constants = None,
        no_cache: Fresh = False,
        as_json: JsonOption = False,
    ) -> None:
        chosen = named_cases(names, layout)
        known = None if dtype is None else dtype_name(dtype)
        entry = importlib.import_module("nkiconv.planner.entry")
        request = importlib.import_module("nkiconv.planner.request")
        constants = request.sorted_constants(read_constants(constant))
        asked = request.Asked(strict_nonfinite=strict_nonfinite, precision=precision)
        wanted = {}
        for case in chosen:
            problem = case.problem if known is None else case.problem.replace(dtype=known)
            wanted[case.name] = request.Request(
                problem=problem, lnc=lnc, asked=asked, constants=constants, operation=case.suite
            )
        errors = [error for one in wanted.values() for error in entry.violations(one)]
        raise_all("these cases cannot be planned", errors)
        found: list[tuple[Case, Plan]] = []
        with progress(show=not as_json) as advance, plain_warnings():
            for case in chosen:
                told = of_case(case.name, advance)
                one = entry.answer(wanted[case.name], wide=wide, use_cache=not no_cache, advance=told)
                found.append((case, one))
        if as_json:
            print_json([{"case": case.name, **one.as_dict()} for case, one in found])
        else:
            _show(found, lnc, explain)

    command.__doc__ = doc
    return reports_errors(command)


command = _planning(
    wide=False,
    doc="Choose algorithm and settings for cases by timing candidates in the model, and say what the choice is worth.",
)
tune = _planning(
    wide=True, doc="Search wider than nkiconv plan does (seconds to minutes), and keep the plans for it to find."
)


def _show(found: list[tuple[Case, Plan]], lnc: int, explain: bool) -> None:
    screen = console()
    if explain:
        for i, (case, one) in enumerate(found):
            screen.print(
                Text(
                    f"{'' if i == 0 else chr(10)}{case.name}, {kind(one.problem.dtype, one.asked.precision)}",
                    style="bold",
                )
            )
            screen.print(Text(one.explain()), soft_wrap=True)
        return
    cores = "2 cores" if lnc == 2 else "1 core"
    table = Table(title=f"plans (trn2, {cores})", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("case", no_wrap=True)
    table.add_column("algorithm and settings", overflow="fold", min_width=24)
    for heading in ("modelled\nus", "x copy\nfloor", "of the\nroofline"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    for heading in ("instruc-\ntions", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case, one in found:
        table.add_row(*_cells(case, one))
    screen.print(table)
    for note in _notes(found):
        screen.print(Text(note), soft_wrap=True)


def _cells(case: Case, one: Plan) -> Iterator[str]:
    yield f"{case.name}\n  {kind(one.problem.dtype, one.asked.precision)}"
    yield f"{one.algorithm}\n{one.settings}"
    yield f"{'~' if one.extrapolated_from is not None else ''}{one.modelled_us:,.2f}"
    yield f"{one.x_copy_floor:.2f}"
    yield f"{one.roofline_fraction:.1%}"
    yield one.bound_by
    yield f"{one.instructions:,}"
    yield "cached" if one.cached else f"{one.seconds:.2f}"


def _notes(found: list[tuple[Case, Plan]]) -> Iterator[str]:
    yield "modelled: mean over phases of the throttle's grid, program order; seconds: this plan's search took"
    for case, one in found:
        if one.extrapolated_from is not None:
            yield f"~ {case.name}: extrapolated from {one.part}; nkiconv tune {case.name} times the whole"
