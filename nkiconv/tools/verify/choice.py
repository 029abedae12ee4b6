"""Which kernel runs a case, why one does not, and a case's data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import rules
from ..._nki import CHOICE
from ...cases import Case
from ...errors import NkiconvError, UnsupportedError, raise_all, refused
from ...planner.estimate import chosen
from ...planner.operation import Operation
from ...planner.operations import OPERATIONS, choice_refusals, operation_of
from ...planner.request import Asked, Config, Request, asked_violations
from ...problem import DTYPES
from ...reference import AnyArray
from ...simulator.timing import Rates
from .report import Report


def case_operation(case: Case) -> Operation:
    """A case's operation: for transposed ones and gradients by the problem, for others by the suite."""
    problem = case.problem
    plain = not problem.transposed and problem.direction == "forward"
    return OPERATIONS[case.suite] if plain and case.suite in OPERATIONS else operation_of(problem)


def case_refusals(
    case: Case,
    algorithm: str | None = None,
    *,
    degrees: Sequence[int] = (2,),
    strict_nonfinite: bool = False,
    precision: str | None = None,
    config: Config = None,
) -> list[NkiconvError]:
    """Why no kernel runs this case, or not by this algorithm on one of these LNC degrees; empty if it does."""
    operation, problem = case_operation(case), case.problem
    asked = Asked(strict_nonfinite=strict_nonfinite, precision=precision)
    found = list(asked_violations(asked)) or [*operation.violations(problem, asked), *problem.launch_violations()]
    found += name_violations(operation, algorithm)
    for lnc in () if found else degrees:
        found = found or list(choice_refusals(operation, problem, asked, algorithm, config, lnc))
    return [UnsupportedError(f"case={case.name!r}: {error}") for error in found]


def name_violations(operation: Operation, algorithm: str | None) -> list[NkiconvError]:
    """Errors of an algorithm's name; empty for None, the estimate."""
    return list(refused(UnsupportedError, rules.algorithm(algorithm, operation.algorithms, of=operation.name)))


def settings_of(
    name: str, operation: Operation, request: Request, algorithm: str | None, config: Config
) -> tuple[dict[str, Any], Callable[..., Report]]:
    """The algorithm and settings asked for by name, or where none are the estimate; and what makes a report of them."""
    given = config
    if algorithm is None:
        found = chosen(request)
        algorithm, config = found.algorithm, found.config
    counted = CHOICE.provider != "aws"
    tiles = operation.symbols(operation.shape(request, Rates()), algorithm, config) if counted else None
    report = functools.partial(
        Report, name=name, operation=operation.name, problem=request.problem, asked=request.asked,
        algorithm=algorithm, config=given, tiles=tiles,
    )  # fmt: skip
    return {"algorithm": algorithm, "config": config}, report


def case_arrays(case: Case, seed: int) -> tuple[AnyArray, AnyArray]:
    """Unit normals for a case in its dtype, decided by the seed: x [N, C, W] and w [C, S] of a depthwise conv1d, x and
    w of `problem.input_shape` and `problem.filter_shape` of others, whose w is scaled to sums of unit variance; of a
    filter gradient x and gy, of `problem.output_shape`.

    Raises UnsupportedError for cases that no kernel runs.
    """
    problem = case.problem
    raise_all("there is no kernel", case_refusals(case))
    rng = np.random.default_rng(seed)
    dtype = DTYPES[problem.dtype]
    shapes: tuple[tuple[int, ...], ...] = (problem.N, problem.C, problem.W), (problem.C, problem.S)
    scale = 1.0
    if problem.direction == "wgrad":
        shapes = problem.input_shape, problem.output_shape
    elif case.suite != "depthwise_conv1d":
        shapes = problem.input_shape, problem.filter_shape
        scale = float(problem.terms) ** -0.5
    x, w = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return x.astype(dtype), (w * np.float32(scale)).astype(dtype)
