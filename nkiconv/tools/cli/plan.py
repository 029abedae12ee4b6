"""`nkiconv plan` and `nkiconv tune`: the algorithm and its settings, the reason, and the alternatives."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ... import cases
from ...cases import Case
from ...errors import raise_all
from . import shapes
from .grid import Grid
from .options import Constants, Direction, Fresh, Kinds, Names, read_constants
from .shell import JsonOption, console, notes, of_case, plain_warnings, print_json, prints_tables, progress
from .show import cores, kind, modelled

if TYPE_CHECKING:
    from ...planner import Plan

Strict = Annotated[
    bool, typer.Option("--strict-nonfinite", help="Only algorithms that keep NaN and Inf in their channel.")
]
Suite = Annotated[str | None, typer.Option(help=f"All cases of a suite: {', '.join(cases.SUITES)}.")]
Robust = Annotated[
    str | None,
    typer.Option(
        metavar="off|on|PERCENT",
        help="Per cent that a plan may take longer than the fastest where it loses enough less if an inferred constant "
        "is wrong; on: 20. Default: on, unless a tuned plan is kept.",
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Print alternatives, rejections with reasons, and symbols.")]


def _planning(*, wide: bool, doc: str) -> Callable[..., None]:
    """The command `plan`, or with `wide` the command `tune`: the same options, another search."""

    def command(
        *,
        names: Names = None,
        suite: Suite = None,
        direction: Direction = "forward",
        explain: Explain = False,
        kinds: Kinds,
        strict_nonfinite: Strict = False,
        shape: shapes.Shape,
        constant: Constants = None,
        robust: Robust = None,
        no_cache: Fresh = False,
        as_json: JsonOption = False,
    ) -> None:
        named = [*(names or []), *(() if suite is None else cases.names(suite))]
        chosen = shapes.chosen_cases(named, shape, kinds.dtype, kinds.layout, direction)
        entry = importlib.import_module("nkiconv.planner.entry")
        operation_of = importlib.import_module("nkiconv.tools.verify").case_operation
        request = importlib.import_module("nkiconv.planner.request")
        constants = request.sorted_constants(read_constants(constant))
        percent = importlib.import_module("nkiconv.planner.robust").percent_of
        asked = request.Asked(strict_nonfinite=strict_nonfinite, precision=kinds.precision)
        wanted = {}
        for case in chosen:
            problem = case.problem.replace(dtype=kinds.known or case.problem.dtype)
            wanted[case.name] = request.Request(
                problem=problem, lnc=kinds.lnc, asked=asked, constants=constants, operation=operation_of(case).name,
                robust=None if robust is None else percent(robust),
            )  # fmt: skip
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
            _show(found, kinds.lnc, explain, regrets=robust is not None)

    command.__doc__ = doc
    return prints_tables(command)


command = _planning(
    wide=False,
    doc="Choose algorithm and settings for cases by timing candidates in the model, and say what the choice is worth.",
)
tune = _planning(
    wide=True, doc="Search wider than nkiconv plan does (seconds to minutes), and keep the plans for it to find."
)


def _show(found: list[tuple[Case, Plan]], lnc: int, explain: bool, regrets: bool) -> None:
    screen = console()
    if explain:
        width = min(screen.width, importlib.import_module("nkiconv.planner.explain").WIDTH)
        for i, (case, one) in enumerate(found):
            screen.print(
                Text(
                    f"{'' if i == 0 else chr(10)}{case.name}, {kind(one.problem.dtype, one.asked.precision)}",
                    style="bold",
                )
            )
            screen.print(Text(one.explain(width)), soft_wrap=True)
        return
    text = "case", "algorithm", "settings", "bound by"
    numbers = "modelled us", "of the limit", "x copy floor", "instructions"
    main = "case", "algorithm", "modelled us", "of the limit", "bound by", "x copy floor", "instructions"
    risks = ("worst regret", "worst constant", "fastest us", "its regret") if regrets else ()
    grid = Grid(
        f"plans (trn2, {cores(lnc)})",
        (*text, *numbers, *risks),
        (*text, "worst constant"),
        (*main[:3], *risks, *main[3:]),
    )
    for case, one in found:
        grid.add(
            f"{case.name} {kind(one.problem.dtype, one.asked.precision)}",
            one.algorithm,
            one.settings,
            one.bound_by,
            modelled(one, ",.2f"),
            f"{one.roofline_fraction:.1%}",
            f"{one.x_copy_floor:.2f}",
            f"{one.instructions:,}",
            *(_regrets(one) if regrets else ()),
        )
    grid.show(screen)
    notes(screen, *_notes(found), *(_regret_notes(found) if regrets else ()))


def _regrets(one: Plan) -> tuple[str, ...]:
    """A plan's worst regret, the constant that it is worst for, and the fastest candidate's us and worst regret."""
    worst = next((f"{risk.constant}={risk.value:g}" for risk in one.risks), "-")
    return f"{one.worst_regret:.2f}", worst, f"{one.fastest_us:,.2f}", f"{one.fastest_regret:.2f}"


def _notes(found: list[tuple[Case, Plan]]) -> Iterator[str]:
    cached, seconds = sum(one.cached for _, one in found), sum(one.seconds for _, one in found if not one.cached)
    yield (
        f"modelled: mean over phases of the throttle's grid, program order; {cached} of {len(found)} cached, searched "
        f"for {seconds:.2f} s"
    )
    for case, one in found:
        if one.extrapolated_from is not None:
            yield f"~ {case.name}: extrapolated from {one.part}; nkiconv tune {case.name} times the whole"


def _regret_notes(found: list[tuple[Case, Plan]]) -> Iterator[str]:
    cost = statistics.geometric_mean(one.modelled_us / one.fastest_us for _, one in found)
    yield (
        "regret: a time over the least of what was timed, under the inferred constant that is worst for it, which "
        f"--explain names; to hedge costs {cost - 1:.2%} in the geometric mean"
    )
