"""How the planner, and callers with arrays, speak to the kernels of filter gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import rules
from .._nki import nl
from ..errors import DtypeError, NkiconvError, UnsupportedError, refused
from ..kernels.gradients import WEIGHT_ALGORITHMS, conv_weight_gradient
from ..problem import ConvProblem
from ..rules import KERNEL_DTYPES
from ..schedules import blocks_schedule, diagonals_schedule
from ..schedules.blocks_candidates import chosen
from ..schedules.geometry import Geometry
from ..simulator import ArraySpec
from ..simulator.timing import Rates
from .conv import X_PERMS, Y_PERMS, geometry_of, letters_of
from .cost.algorithm import Shape
from .operation import Operation
from .request import Asked, Config, Request, nl_name


@dataclass(frozen=True)
class WeightExtras:
    """What is asked for beside the gradient of w."""

    bias: bool


class ConvWeight(Operation):
    """Gradients of filters of images or volumes, any groups."""

    kernel = conv_weight_gradient
    algorithms = WEIGHT_ALGORITHMS
    fallback = "blocks"
    dtypes = KERNEL_DTYPES

    def __init__(self, name: str, volumes: bool) -> None:
        self.name, self.volumes = name, volumes

    def violations(self, problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
        if problem.direction != "wgrad":
            yield UnsupportedError(
                f"operation={self.name!r}: the problem's direction is {problem.direction!r}; take its toward('wgrad')"
            )
        if problem.is_volume != self.volumes:
            has = "has" if problem.is_volume else "lacks"
            yield UnsupportedError(f"operation={self.name!r}: the problem {has} an axis of planes; leave it out")
        yield from refused(DtypeError, rules.accepted("dtype", problem.dtype, self.dtypes))
        yield from asked_violations(problem, asked)

    def whole_shape(self, request: Request, rates: Rates, times: int = 1) -> Shape:
        geometry = dataclasses.replace(weight_geometry(request.problem, request.asked), times=times)
        return Shape(geometry, WeightExtras(request.asked.bias), request.lnc, rates)

    def default_of(self, shape: Shape) -> str:
        return "diagonals" if diagonals_schedule.takes_diagonals(shape.geometry, shape.extras.bias) else "blocks"

    def refusal_of(self, algorithm: str, shape: Shape, config: Config) -> str:
        asked = shape.extras.bias, shape.cores
        if algorithm == "diagonals":
            return diagonals_schedule.build(shape.geometry, config, *asked)[1]
        return blocks_schedule.build(shape.geometry, chosen(shape.geometry, config, *asked), *asked)[1]

    def arguments(
        self, request: Request, algorithm: str | None, config: Config
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        problem, asked = request.problem, request.asked
        dtype = nl_name(problem.dtype)
        kwargs = weight_arguments(problem, algorithm=algorithm, config=config)
        if asked.bias:
            kwargs["bias_gradient"] = True
        if asked.precision is not None:
            kwargs["precision"] = asked.precision
        if asked.out_dtype is not None:
            kwargs["out_dtype"] = getattr(nl, nl_name(asked.out_dtype))
        tensors = ArraySpec(problem.input_shape, dtype), ArraySpec(problem.output_shape, dtype)
        return (*tensors, problem.filter_shape), kwargs

    def letters(self, shape: Shape) -> dict[str, int]:
        return letters_of((shape.whole or shape).geometry, self.volumes)


def asked_violations(problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
    """What is asked for that filter gradients lack."""
    plain = Asked(bias=asked.bias, out_dtype=asked.out_dtype, precision=asked.precision)
    for one in dataclasses.fields(Asked):
        if getattr(asked, one.name) != getattr(plain, one.name):
            yield UnsupportedError(f"{one.name}={getattr(asked, one.name)!r}: a filter gradient has none; drop it")
    yield from refused(UnsupportedError, rules.precision_fits(asked.precision, problem.dtype, "x and gy"))


def weight_geometry(problem: ConvProblem, asked: Asked) -> Geometry:
    """The kernel's own description of a filter gradient's convolution."""
    return geometry_of(problem, Asked(precision=asked.precision))


def weight_arguments(problem: ConvProblem, *, algorithm: str | None, config: Config) -> dict[str, Any]:
    """The kernel's arguments for a problem, beside tensors and what is asked for."""
    found: dict[str, Any] = {
        "padding": problem.padding,
        "stride": problem.stride,
        "rhs_dilation": problem.rhs_dilation,
        "lhs_dilation": problem.lhs_dilation,
        "feature_group_count": problem.groups,
    }
    if not problem.channels_first:
        found |= {"in_perm": X_PERMS[problem.layout], "out_perm": Y_PERMS[problem.layout]}
    return found | ({} if algorithm is None else {"algorithm": algorithm, "config": config})
