"""What is to be planned, and how the planner calls the kernel for it: shapes only, no data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._nki import nl
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError
from ..kernels._epilogue import ACTIVATIONS, RESIDUAL_POSITIONS, read_epilogue
from ..kernels.depthwise_conv1d import ALGORITHMS
from ..kernels.depthwise_conv1d.call import Extras
from ..kernels.depthwise_conv1d.geometry import Geometry, read_geometry
from ..problem import ConvProblem
from ..simulator import ArraySpec
from ..simulator.dtypes import canonical

#: Settings of an algorithm, as the kernel takes them: (name, value) pairs; None leaves them to the kernel.
Config = tuple[tuple[str, Any], ...] | None
#: LNC degrees of a trn2 launch.
LNC_DEGREES = (1, 2)
#: dtypes that the depthwise conv1d kernel takes.
DTYPES = ("bf16", "fp16", "fp32")
#: storage -> canonical and canonical -> storage of x and y, by the problem's layout.
_PERMS = {"NCHW": (None, None), "NHWC": ((0, 3, 1, 2), (0, 2, 3, 1))}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Everything asked for beside the problem that changes what a kernel does; see the public kernel's arguments."""

    bias: bool = False
    activation: str | None = None
    residual: str | None = None  # where it is added: "pre_activation" or "post_activation"; None without one
    out_dtype: str | None = None  # None: the problem's
    initial_state: bool = False
    return_final_state: bool = False
    strict_nonfinite: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question to the planner."""

    problem: ConvProblem
    lnc: int = 2
    asked: Asked = Asked()
    #: modelling constants to use instead of trn2.toml's, sorted by name
    constants: tuple[tuple[str, float], ...] = ()
    #: the algorithms to choose from; None: all
    algorithms: tuple[str, ...] | None = None

    def of_channels(self, count: int) -> Request:
        """The same question about fewer channels."""
        return dataclasses.replace(self, problem=of_channels(self.problem, count))


def of_channels(problem: ConvProblem, count: int) -> ConvProblem:
    """A depthwise problem with another number of channels."""
    return problem.replace(C=count, K=count, groups=count)


@dataclass(frozen=True)
class _Tensor:
    """What a kernel's compile-time code asks of a tensor."""

    shape: tuple[int, ...]
    dtype: Any


def geometry_of(problem: ConvProblem) -> Geometry:
    """The kernel's own description of a depthwise conv1d problem."""
    in_perm, out_perm = _PERMS[problem.layout]
    dtype = getattr(nl, _nl_name(problem.dtype))
    found, _ = read_geometry(  # type: ignore[no-untyped-call]  # kernels are untyped
        _Tensor(problem.input_shape, dtype),
        _Tensor(problem.filter_shape, dtype),
        problem.padding,
        problem.stride,
        problem.rhs_dilation,
        problem.lhs_dilation,
        problem.C,
        1,
        in_perm,
        None,
        out_perm,
    )
    return found  # type: ignore[no-any-return]


def extras_of(problem: ConvProblem, asked: Asked) -> Extras:
    """The kernel's own description of what is asked for beside the geometry."""
    present = True
    epilogue = read_epilogue(  # type: ignore[no-untyped-call]
        asked.activation,
        present if asked.bias else None,
        None if asked.residual is None else present,
        asked.residual or RESIDUAL_POSITIONS[0],
        4 if (asked.out_dtype or problem.dtype) == "fp32" else 2,
    )
    return Extras(epilogue=epilogue, state=asked.initial_state, strict_nonfinite=asked.strict_nonfinite)


def kernel_arguments(
    problem: ConvProblem, *, strict_nonfinite: bool = False, algorithm: str | None = None, config: Config = None
) -> dict[str, Any]:
    """The kernel's arguments for a depthwise conv1d problem, beside arrays and epilogue."""
    in_perm, out_perm = _PERMS[problem.layout]
    layout = {} if in_perm is None else {"in_perm": in_perm, "out_perm": out_perm}
    return {
        "padding": problem.padding,
        "stride": problem.stride,
        "rhs_dilation": problem.rhs_dilation,
        "lhs_dilation": problem.lhs_dilation,
        "feature_group_count": problem.C,
        "strict_nonfinite": strict_nonfinite,
        "algorithm": algorithm,
        "config": config,
        **layout,
    }


def launch_arguments(request: Request, algorithm: str, config: Config) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a launch without data."""
    problem, asked = request.problem, request.asked
    dtype = _nl_name(problem.dtype)
    kwargs = kernel_arguments(problem, strict_nonfinite=asked.strict_nonfinite, algorithm=algorithm, config=config)
    if asked.bias:
        kwargs["bias"] = ArraySpec((problem.C,), "float32")
    if asked.residual is not None:
        kwargs["residual"] = ArraySpec(problem.output_shape, dtype)
        kwargs["residual_position"] = asked.residual
    if asked.activation is not None:
        kwargs["activation"] = asked.activation
    if asked.out_dtype is not None:
        kwargs["out_dtype"] = getattr(nl, _nl_name(asked.out_dtype))
    if asked.initial_state:
        kwargs["initial_state"] = ArraySpec((problem.N, problem.C, problem.width.window - 1), dtype)
    if asked.return_final_state:
        kwargs["return_final_state"] = True
    return (ArraySpec(problem.input_shape, dtype), ArraySpec(problem.filter_shape, dtype)), kwargs


def _nl_name(dtype: str) -> str:
    """nki.language's name of one of nkiconv's dtypes."""
    name = canonical(dtype)
    assert name is not None
    return name


def violations(request: Request) -> Iterator[NkiconvError]:
    """Why there is nothing to plan, whatever the algorithm."""
    problem, asked = request.problem, request.asked
    if not isinstance(problem, ConvProblem):
        yield UnsupportedError(
            f"problem: must be a ConvProblem, not {type(problem).__name__}; make one, or take nkiconv.cases.get(name)'s"
        )
        return
    yield from problem_violations(problem)
    if type(request.lnc) is not int or request.lnc not in LNC_DEGREES:
        yield UnsupportedError(f"lnc={request.lnc!r}: must be 1 or 2 (LNC degrees of trn2); use lnc=2")
    yield from asked_violations(asked)
    if asked.initial_state or asked.return_final_state:
        yield from state_violations(problem)
    for name in request.algorithms or ():
        if name not in ALGORITHMS:
            yield UnsupportedError(f"algorithms={name!r}: accepted are {', '.join(ALGORITHMS)}; use some of them")
    if request.algorithms == ():
        yield UnsupportedError(f"algorithms=(): must name at least one of {', '.join(ALGORITHMS)}; or leave it out")


def problem_violations(problem: ConvProblem) -> Iterator[NkiconvError]:
    """Why no kernel runs a problem."""
    if not problem.is_depthwise:
        yield UnsupportedError(
            f"groups={problem.groups}, C={problem.C}, K={problem.K}: only depthwise problems have kernels so far "
            "(groups = C = K); plan one of these"
        )
    if (problem.H, problem.R, problem.height.lo, problem.height.hi) != (1, 1, 0, 0):
        yield UnsupportedError(
            f"H={problem.H}, R={problem.R}: only rows have kernels so far (H = R = 1, no padding on H); "
            "plan one of these"
        )
    elif (problem.stride[0], problem.rhs_dilation[0], problem.lhs_dilation[0]) != (1, 1, 1):
        yield GeometryError(
            f"stride={problem.stride}, rhs_dilation={problem.rhs_dilation}, lhs_dilation={problem.lhs_dilation}: "
            "H is 1, so only 1 is accepted on H; use (1, w)"
        )
    if problem.dtype not in DTYPES:
        yield DtypeError(f"dtype={problem.dtype!r}: accepted are {', '.join(DTYPES)}; use one of them")


def asked_violations(asked: Asked) -> Iterator[NkiconvError]:
    """What is wrong with an epilogue, whatever the problem."""
    for name in ("bias", "initial_state", "return_final_state", "strict_nonfinite"):
        value = getattr(asked, name)
        if not isinstance(value, bool):
            yield UnsupportedError(f"{name}: must be True or False, not {type(value).__name__}; pass one of these")
    if asked.activation is not None and asked.activation not in ACTIVATIONS:
        yield UnsupportedError(
            f"activation={asked.activation!r}: accepted are None and {', '.join(ACTIVATIONS)}; use one of them"
        )
    known = isinstance(asked.residual, str) and asked.residual in RESIDUAL_POSITIONS
    if asked.residual is not None and not known:
        given = repr(asked.residual) if isinstance(asked.residual, str) else type(asked.residual).__name__
        yield LayoutError(f"residual_position={given}: accepted are {', '.join(RESIDUAL_POSITIONS)}; use one of them")
    if asked.out_dtype is not None and asked.out_dtype not in DTYPES:
        yield DtypeError(f"out_dtype={asked.out_dtype!r}: accepted are None, {', '.join(DTYPES)}; use one of them")


def state_violations(problem: ConvProblem) -> Iterator[NkiconvError]:
    """Why a convolution takes or returns no state."""
    axis = problem.width
    if (axis.stride, axis.lhs_dilation) != (1, 1):
        yield GeometryError(
            f"stride={axis.stride}, lhs_dilation={axis.lhs_dilation}: a state needs 1 and 1; pad by zeros instead"
        )
    if axis.lo != axis.window - 1 or axis.window < 2:
        yield GeometryError(
            f"padding left={axis.lo}: a state stands in for the left padding, which must be (S - 1) * dilation = "
            f'{axis.window - 1} and at least 1; pass padding="causal" or ({axis.window - 1}, right)'
        )


def sorted_constants(constants: Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """Overrides of modelling constants in the order that makes equal ones equal.

    Raises UnsupportedError: they are no numbers by name.
    """
    try:
        return tuple(sorted((name, float(value)) for name, value in dict(constants or {}).items()))
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"constants={constants!r}: must be numbers by name ({error}); see trn2.toml") from None
