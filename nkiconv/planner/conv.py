"""The operations of the image and volume kernels, for the planner and for calls with arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from .. import pixel_norms, rules
from ..axis import EXTENT_MAX
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, refused
from ..kernels.conv import (
    conv2d_implicit_gemm,
    conv3d_implicit_gemm,
    conv_transpose2d_implicit_gemm,
    conv_transpose3d_implicit_gemm,
)
from ..kernels.conv.arguments import read_geometry
from ..problem import ConvProblem
from ..rules import CONV2D_DTYPES, FILTER_PERMS
from ..schedules import activation_stationary, implicit_gemm_unsupported
from ..schedules.conv_algorithms import plan_of, precision_unsupported
from ..schedules.geometry import Geometry, num_taps
from ..schedules.implicit_gemm import packed_channels
from ..schedules.options import Options, norm_unsupported, prologue_unsupported, statistics_unsupported
from ..schedules.pairs_of_planes import beside_pairs_unsupported, pairs_unsupported, with_pairs
from ..simulator import ArraySpec
from ..simulator.timing import Rates
from . import clock
from .cost.algorithm import Shape
from .cost.conv import ALGORITHMS
from .operation import Operation, epilogue_arguments, epilogue_of, prologue_arguments, prologue_of
from .parts import part_of
from .request import X_PERMS, Y_PERMS, Asked, Config, Request, kernel_arguments, nl_name

#: Least output channels of a block of a packed filter: with fewer, its runs are too short.
LEAST_BLOCK = 16
#: Planes of y of the chunks of a video whose choice all others follow: of several latent frames of video VAEs, whose
#: candidates are compared, and of one.
STREAM_PLANES = (16, 4)


class Conv(Operation):
    """Convolutions of images or volumes, any groups."""

    algorithms, known = tuple(ALGORITHMS), ALGORITHMS
    fallback = "implicit_gemm"
    dtypes = CONV2D_DTYPES

    def __init__(self, name: str, kernel: Any, *, volumes: bool = False, transposed: bool = False) -> None:
        self.name, self.kernel, self.volumes, self.transposed = name, kernel, volumes, transposed
        if volumes:
            self.budget = clock.BUDGET_OF_VOLUMES

    def violations(self, problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
        if problem.is_volume != self.volumes:
            has = "has" if problem.is_volume else "lacks"
            yield UnsupportedError(f"operation={self.name!r}: the problem {has} an axis of planes; leave it out")
        if problem.transposed != self.transposed:
            yield UnsupportedError(
                f"operation={self.name!r}: the problem's transposed is {problem.transposed}; leave it out"
            )
        yield from refused(DtypeError, rules.accepted("dtype", problem.dtype, self.dtypes))
        for name in asked.given("initial_state", "return_final_state"):
            yield UnsupportedError(f"{name}=True: {self.name} has no state; drop it")
        if asked.chunks is not None:
            yield UnsupportedError(f"chunks={asked.chunks!r}: {self.name} has none; multiply before and after it")
        if asked.has_prologue:
            yield from refused(DtypeError, rules.prologue_fits(problem.dtype, "x"))
        errors = list(asked_against_problem(problem, asked))
        yield from errors or (*precision_violations(problem, asked), *norm_violations(problem, asked))

    def whole_shape(self, request: Request, rates: Rates, times: int = 1) -> Shape:
        problem, asked = request.problem, request.asked

        def shape_of(one: ConvProblem, asked: Asked, times: int) -> Shape:
            geometry = dataclasses.replace(geometry_of(one, asked), times=times)
            return Shape(geometry, options_of(one, asked), rates)

        found = shape_of(problem, asked, times)
        if times > 1 or not is_stream(problem, asked):
            return found
        plain = dataclasses.replace(asked, initial_frames=problem.depth.window - 1, return_final_frames=0)
        chunks = (part_of(chunk_of(problem, planes), plain) for planes in STREAM_PLANES)
        return dataclasses.replace(found, chunks=tuple(shape_of(one, plain, each) for one, each in chunks))

    def refuser(self, shape: Shape) -> str:
        return self.fallback if shape.options.epilogue.norm is None else activation_stationary.NAME

    def excludes(self, algorithm: str, shape: Shape) -> bool:
        unsupported = precision_unsupported(algorithm, shape.geometry)
        unsupported = unsupported or statistics_unsupported(shape.options, algorithm)
        unsupported = unsupported or norm_unsupported(shape.options, algorithm)
        return bool(unsupported or prologue_unsupported(shape.options, algorithm, shape.geometry))

    def kernel_reason(self, algorithm: str, shape: Shape, config: Config) -> str:
        return str(plan_of(algorithm, shape.geometry, shape.options, config)[1])

    def arguments(
        self, request: Request, algorithm: str | None, config: Config
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        problem, asked = request.problem, request.asked
        dtype = nl_name(problem.dtype)
        kwargs = kernel_arguments(problem, strict_nonfinite=asked.strict_nonfinite, algorithm=algorithm, config=config)
        kwargs |= epilogue_arguments(problem, asked)
        if asked.residual is not None:
            kwargs["beta"] = 0.5 if asked.scaled else 1.0  # any other number than 1 gives the same kernel
        kwargs |= asked.given("precision", "return_stats", "return_final_frames")
        if asked.packed and problem.is_volume:
            kwargs["packed"] = True
        if asked.initial_frames:
            kwargs["initial_frames"] = ArraySpec(planes_shape(problem, asked.initial_frames), dtype)
        if asked.filter_layout is not None:
            kwargs["kern_perm"] = FILTER_PERMS[asked.filter_layout]
        kwargs |= prologue_arguments(problem, asked)
        return (ArraySpec(x_shape(problem, asked), dtype), ArraySpec(filter_shape(problem, asked), dtype)), kwargs

    def letters(self, shape: Shape) -> dict[str, int]:
        geometry = (shape.whole or shape).geometry
        return letters_of(geometry.direct or geometry, self.volumes)


#: Images and volumes, forward and transposed.
CONVS = (
    Conv("conv2d", conv2d_implicit_gemm),
    Conv("conv3d", conv3d_implicit_gemm, volumes=True),
    Conv("conv_transpose2d", conv_transpose2d_implicit_gemm, transposed=True),
    Conv("conv_transpose3d", conv_transpose3d_implicit_gemm, volumes=True, transposed=True),
)


def letters_of(geometry: Geometry, volumes: bool) -> dict[str, int]:
    """A problem's extents by their letters, and its parameters by name."""
    rows, columns = geometry.rows, geometry.columns
    planes = geometry.planes
    found = {"N": planes.images if volumes else planes.out, "C": geometry.C, "K": geometry.K}
    found["groups"] = geometry.groups
    if volumes:
        found |= {"D": planes.size // planes.images, "T": planes.taps, "Z": planes.out // planes.images}
        for name in ("stride", "dilation", "lhs_dilation", "before"):
            found[f"{name}_d"] = getattr(planes, name)
    found |= {"H": rows.size, "W": columns.size, "R": rows.taps, "S": columns.taps, "P": rows.out, "Q": columns.out}
    for name in ("stride", "dilation", "lhs_dilation", "before"):
        found |= {f"{name}_h": getattr(rows, name), f"{name}_w": getattr(columns, name)}
    found["rows"] = geometry.planes.out * rows.out * columns.out
    found["contraction"] = num_taps(geometry) * (geometry.C // geometry.groups)
    found["itemsize"] = geometry.itemsize
    return {name: int(value) for name, value in found.items()}


def is_stream(problem: ConvProblem, asked: Asked) -> bool:
    """Whether a problem's planes may come in chunks: its windows have several planes, and no padding follows. Not with
    winograd, whose pairs of planes restart in each chunk."""
    if problem.depth is None or problem.transposed or asked.precision == "winograd":
        return False
    depth = problem.depth
    if (max(STREAM_PLANES) - 1) * depth.stride + depth.window > EXTENT_MAX:
        return False  # no chunk has several planes
    return depth.taps > 1 and depth.lhs_dilation == 1 and depth.hi <= 0


def chunk_of(problem: ConvProblem, planes: int) -> ConvProblem:
    """The chunk of a video with so many planes of y, with its halo frames."""
    depth = problem.depth
    height, width = problem.padding[1:]
    return problem.replace(D=(planes - 1) * depth.stride + depth.window, padding=((0, 0), height, width))


def x_shape(problem: ConvProblem, asked: Asked) -> tuple[int, ...]:
    """Shape of the kernel's argument x: without halo frames, before upsampling."""
    if problem.D is not None:
        return planes_shape(problem, problem.D - asked.initial_frames)
    spread = X_PERMS[problem.layout][2:]
    shape = enumerate(problem.input_shape)
    return tuple(-(-extent // asked.x_upsample) if axis in spread else extent for axis, extent in shape)


def planes_shape(problem: ConvProblem, planes: int) -> tuple[int, ...]:
    """Shape of so many planes of a problem's x."""
    shape, axis = problem.input_shape, X_PERMS[problem.layout][2]
    return (*shape[:axis], planes, *shape[axis + 1 :])


def filter_shape(problem: ConvProblem, asked: Asked) -> tuple[int, ...]:
    """Shape of the kernel's argument filter."""
    if not asked.packed:
        perm = FILTER_PERMS.get(asked.filter_layout or "")
        shape = problem.filter_shape
        return shape if perm is None else tuple(shape[perm.index(i)] for i in range(len(perm)))
    K, C, *taps = problem.filter_shape
    kn = packed_channels(K, C, math.prod(taps), problem.itemsize)
    return (K // kn * C, *taps, kn) if problem.is_volume else (K // kn, C, *taps, kn)


def geometry_of(problem: ConvProblem, asked: Asked) -> Geometry:
    """The kernel's Geometry of a problem."""
    dtype = nl_name(problem.dtype)
    perms = (X_PERMS[problem.layout], FILTER_PERMS.get(asked.filter_layout or ""), Y_PERMS[problem.layout])
    places = problem.padding, problem.stride, problem.rhs_dilation, problem.lhs_dilation
    x, w = ArraySpec(x_shape(problem, asked), dtype), ArraySpec(filter_shape(problem, asked), dtype)
    frames = ArraySpec(planes_shape(problem, asked.initial_frames), dtype) if asked.initial_frames else None
    how = (problem.groups, 1), perms, asked.precision
    packed = problem.is_volume and asked.packed
    flags = packed, problem.transposed, frames, asked.x_upsample
    return with_pairs(read_geometry(x, w, places, *how, *flags)[0])


def options_of(problem: ConvProblem, asked: Asked) -> Options:
    """The kernel's Options of the arguments besides the geometry."""
    return Options(
        epilogue=epilogue_of(problem, asked),
        residual=asked.residual is not None,
        strict_nonfinite=asked.strict_nonfinite,
        prologue=prologue_of(asked),
        statistics=asked.return_stats is not None,
    )


def asked_against_problem(problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
    """The errors of arguments that do not fit this problem."""
    planes = problem.D or 0
    if asked.has_frames and not (asked.initial_frames < planes and asked.return_final_frames <= planes):
        yield GeometryError(
            f"initial_frames={asked.initial_frames}, return_final_frames={asked.return_final_frames}: the problem has "
            f"D={problem.D} planes, both together with x's; pass fewer"
        )
    up = asked.x_upsample
    if up > 1 and (problem.is_volume or problem.transposed or problem.H % up or problem.W % up):
        yield GeometryError(
            f"x_upsample={up}: conv2d takes it, of H and W that it divides, here H={problem.H} and W={problem.W}; "
            f"upsample x before"
        )
    layout = asked.filter_layout
    if layout is not None and (asked.packed or len(layout) != 4 + problem.is_volume):
        why = "a packed filter has its own order" if asked.packed else "of images it has R and S, of volumes T too"
        yield LayoutError(f"filter_layout={layout!r}: {why}; use None, or one that fits")
    if problem.transposed:
        for name, value in asked.given("packed", "filter_layout", "y_norm", *pixel_norms.BELONG).items():
            yield UnsupportedError(f"{name}={value!r}: transposed convolutions take {getattr(Asked, name)}; drop it")
    if asked.packed and problem.groups > 1:
        yield UnsupportedError(f"packed=True: groups={problem.groups}; convolutions with groups take plain filters")


def norm_violations(problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
    """Why no algorithm supports a norm of y for this problem."""
    if asked.y_norm is not None:
        geometry, options = geometry_of(problem, asked), options_of(problem, asked)
        reason = norm_unsupported(options, activation_stationary.NAME)
        if not reason and implicit_gemm_unsupported.norm_unsupported(geometry, options):
            reason = activation_stationary.unsupported_reason(geometry, options, None)
        yield from refused(UnsupportedError, reason)


def precision_violations(problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
    """The errors of a precision for this problem and its other arguments."""
    fits = list(refused(UnsupportedError, rules.precision_fits(asked.precision, problem.dtype)))
    yield from fits
    if asked.precision == "winograd" and not fits:
        plain = dataclasses.replace(asked, precision=None)
        geometry, options = geometry_of(problem, plain), options_of(problem, plain)
        reasons = pairs_unsupported(geometry, len(problem.axes)), beside_pairs_unsupported(geometry, options)
        yield from refused(UnsupportedError, *reasons)
