"""A case's launch with data on any backend, and its result compared with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...api.calls import plain
from ...api.epilogue import Epilogue
from ...cases import Case
from ...launches import on_cores
from ...planner.plan import Estimate
from ...planner.request import Asked, Request
from ...problem import DTYPES, ConvProblem
from ...simulator import ArraySpec, NkiError
from .choice import case_arrays, case_operation
from .comparison import Comparison, as_plain, compare_channels, compare_filters
from .conv import SAMPLE_ABOVE_FLOPS, sampled_channels
from .depthwise_conv1d import SAMPLE_ABOVE_INSTRUCTIONS
from .report import SAMPLE_CHANNELS

#: Decides the data.
SEED = 0


class WrongResult(Exception):
    """A result is not within its bound of the float64 reference, or is not even of its shape."""


@dataclass(frozen=True)
class CaseLaunch:
    """The arguments of a case's kernel."""

    problem: ConvProblem
    kernel: Any  # on its cores
    args: tuple[Any, ...]  # x and w, or x, gy and the shape of w
    kwargs: dict[str, Any]
    precision: str | None = None

    def check(self, y: Any, instructions: int = 0) -> tuple[Comparison, int]:
        """y held against the reference, on all output channels or, of a big problem, on a sample; and on how many.

        instructions: the kernel's, where they are known. Raises WrongResult: y has another shape or dtype.
        """
        problem, (x, second) = self.problem, self.args[:2]
        of_filters = problem.direction == "wgrad"
        shape, dtype = (problem.filter_shape, "fp32") if of_filters else (problem.output_shape, problem.out_dtype)
        if (y.shape, y.dtype) != (shape, DTYPES[dtype]):
            raise WrongResult(f"wrong: the result is {y.dtype} {y.shape}, not {DTYPES[dtype]} {shape}")
        sample = list(range(problem.K))
        if instructions > SAMPLE_ABOVE_INSTRUCTIONS or problem.flops > SAMPLE_ABOVE_FLOPS:
            sample = sampled_channels(problem, SAMPLE_CHANNELS)
        if of_filters:
            return compare_filters(y, x, second, problem, sample), len(sample)
        equal, w = as_plain(problem, second)
        return compare_channels(y, x, w, equal, sample, Epilogue(precision=self.precision)), len(sample)


def case_launch(case: Case, lnc: int, taken: Estimate, precision: str | None = None) -> CaseLaunch:
    """The launch of a case with data, by an algorithm and its settings."""
    operation, request = case_operation(case), Request(problem=case.problem, lnc=lnc, asked=Asked(precision=precision))
    specs, kwargs = operation.launch(request, taken.algorithm, taken.config)
    arrays = iter(case_arrays(case, SEED))
    args = tuple(next(arrays).reshape(one.shape) if isinstance(one, ArraySpec) else plain(one) for one in specs)
    kwargs = {name: plain(value) for name, value in kwargs.items()}
    return CaseLaunch(case.problem, on_cores(operation.kernel, lnc), args, kwargs, precision)


def in_a_line(error: Exception) -> str:
    """An error's class and the first line of its text; of wrong results and broken rules of NKI that line alone."""
    text = (str(error).strip().splitlines() or ["no message"])[0]
    return text if isinstance(error, (WrongResult, NkiError)) else f"{type(error).__name__}: {text}"


def wrong(comparison: Comparison) -> str:
    """The error of a result, in a line."""
    return (
        f"wrong: {comparison.num_wrong:,} of {comparison.num_elems:,} outputs are beyond their bound, worst at "
        f"{comparison.place} by a factor of {comparison.worst_ratio:.3g}"
    )
