"""The operation of the depthwise conv1d kernel, for the planner and for calls with arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .. import pixel_norms, rules
from ..errors import DtypeError, GeometryError, NkiconvError, UnsupportedError, refused
from ..kernels.depthwise_conv1d import depthwise_conv1d_implicit_gemm
from ..kernels.depthwise_conv1d.geometry import read_geometry
from ..problem import ConvProblem
from ..rules import CONV2D_DTYPES, KERNEL_DTYPES
from ..schedules.depthwise import Options, RowGeometry
from ..schedules.depthwise_algorithms import unsupported_reason
from ..schedules.options import PROLOGUE_ARGUMENTS
from ..simulator import ArraySpec
from ..simulator.timing import Rates
from . import clock
from .cost.algorithm import Shape
from .cost.rows import ALGORITHMS
from .operation import Operation, epilogue_arguments, epilogue_of, prologue_arguments, prologue_of
from .request import X_PERMS, Y_PERMS, Asked, Config, Request, kernel_arguments, nl_name


class DepthwiseConv1d(Operation):
    """Depthwise convolutions of rows: each channel has a filter of one row."""

    name = "depthwise_conv1d"
    kernel = depthwise_conv1d_implicit_gemm
    algorithms, known = tuple(ALGORITHMS), ALGORITHMS
    fallback = "vector"
    dtypes = KERNEL_DTYPES
    budget = clock.BUDGET_OF_ROWS

    def violations(self, problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
        if not problem.is_depthwise:
            yield UnsupportedError(
                f"groups={problem.groups}, C={problem.C}, K={problem.K}: depthwise_conv1d takes depthwise problems "
                "(groups = C = K); use conv2d"
            )
        if (problem.H, problem.R, problem.height.lo, problem.height.hi) != (1, 1, 0, 0):
            yield UnsupportedError(
                f"H={problem.H}, R={problem.R}: depthwise_conv1d takes rows (H = R = 1, no padding on H); use conv2d"
            )
        else:
            places = {name: getattr(problem, name) for name in ("stride", "rhs_dilation", "lhs_dilation")}
            yield from refused(GeometryError, rules.one_row(**places))
        remedy = "use conv2d" if problem.dtype in CONV2D_DTYPES else "use one of them"
        yield from refused(DtypeError, rules.accepted("dtype", problem.dtype, KERNEL_DTYPES, remedy))
        if asked.initial_state or asked.return_final_state:
            yield from refused(GeometryError, *rules.state(problem.width))
        yield from chunk_violations(problem, asked)
        if asked.has_prologue:
            yield from refused(DtypeError, rules.prologue_fits(problem.dtype, "x"))
        lacking = "precision", "scaled", "packed", "return_stats", "initial_frames", "return_final_frames"
        for name, value in asked.given(*lacking, "x_upsample", "y_norm", *pixel_norms.BELONG).items():
            yield UnsupportedError(f"{name}={value!r}: depthwise_conv1d has none; drop it")

    def whole_shape(self, request: Request, rates: Rates, times: int = 1) -> Shape:
        geometry = geometry_of(request.problem, times, request.asked.chunks)
        geometry = replace(geometry, prologue=prologue_of(request.asked))
        return Shape(geometry, options_of(request.problem, request.asked), rates)

    def kernel_reason(self, algorithm: str, shape: Shape, config: Config) -> str:
        return unsupported_reason(algorithm, shape.geometry, shape.options, config)

    def arguments(
        self, request: Request, algorithm: str | None, config: Config
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        problem, asked = request.problem, request.asked
        dtype = nl_name(problem.dtype)
        kwargs = kernel_arguments(
            problem, strict_nonfinite=asked.strict_nonfinite, algorithm=algorithm, config=config, rows=True
        )
        kwargs |= epilogue_arguments(problem, asked)
        kwargs |= asked.given("chunks", "return_final_state")
        kwargs |= prologue_arguments(problem, asked)
        if asked.initial_state:
            kwargs["initial_state"] = ArraySpec((problem.N, problem.C, problem.width.window - 1), dtype)
        shape = chunked_shape(problem, asked.chunks)
        return (ArraySpec(shape, dtype), ArraySpec(problem.filter_shape, dtype)), kwargs

    def letters(self, shape: Shape) -> dict[str, int]:
        names = ("N", "C", "W", "S", "Q", "stride", "dilation", "lhs_dilation", "pad_left", "pad_right", "itemsize")
        geometry = (shape.whole or shape).geometry
        return {name: int(getattr(geometry, name)) for name in names}


def chunked_shape(problem: ConvProblem, chunks: str | None) -> tuple[int, ...]:
    """The shape of x as stored, with all chunks of its channels."""
    axis, times = (1 if problem.channels_first else 3), len(chunks or "x")
    return tuple(times * size if at == axis else size for at, size in enumerate(problem.input_shape))


def geometry_of(problem: ConvProblem, times: int = 1, chunks: str | None = None) -> RowGeometry:
    """The kernel's RowGeometry of a depthwise conv1d problem, whose instructions count `times` times; chunks: as in the
    kernel."""
    dtype = nl_name(problem.dtype)
    x, w = ArraySpec(chunked_shape(problem, chunks), dtype), ArraySpec(problem.filter_shape, dtype)
    places = problem.padding, problem.stride, problem.rhs_dilation, problem.lhs_dilation
    perms = (None, None, None) if problem.channels_first else (X_PERMS[problem.layout], None, Y_PERMS[problem.layout])
    found: RowGeometry = read_geometry(x, w, places, (problem.C, 1), perms, problem.transposed, chunks)[0]
    return replace(found, times=times)


def options_of(problem: ConvProblem, asked: Asked) -> Options:
    """The kernel's Options of the arguments besides the geometry."""
    return Options(
        epilogue=epilogue_of(problem, asked), state=asked.initial_state, strict_nonfinite=asked.strict_nonfinite
    )


def chunk_violations(problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
    """Why no algorithm of the kernel runs a problem with these chunks of x's channels."""
    chunks = asked.chunks
    if chunks is None:
        return
    if problem.direction != "forward":
        yield UnsupportedError(f"chunks={chunks!r}: {problem.direction} has none; drop it")
    if "C" in chunks and problem.Q != problem.W:
        yield GeometryError(
            f"chunks={chunks!r}, W={problem.W}, Q={problem.Q}: a factor of y has its extents; pad so that Q is W, with "
            f"stride 1"
        )
    if asked.has_prologue:
        yield from refused(UnsupportedError, rules.chunks_plain(chunks, PROLOGUE_ARGUMENTS))
    if "C" in chunks and asked.residual is not None:
        yield UnsupportedError(f"chunks={chunks!r}: y has a factor in a residual's place; add the residual to y")
