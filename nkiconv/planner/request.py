"""What is to be planned: shapes only, no data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import norms, pixel_norms, rules
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, refused
from ..problem import ConvProblem
from ..schedules.settings import Config as Config
from ..simulator.dtypes import canonical
from ..simulator.timing import Rates, UnknownConstantError

#: The permutations of each layout, storage -> canonical for x and canonical -> storage for y.
X_PERMS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 3, 1, 2), "NCDHW": (0, 1, 2, 3, 4), "NDHWC": (0, 4, 1, 2, 3)}
Y_PERMS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1), "NCDHW": (0, 1, 2, 3, 4), "NDHWC": (0, 2, 3, 4, 1)}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Everything asked for beside the problem that changes what a kernel does; see the public kernels' arguments."""

    bias: bool = False
    activation: str | None = None
    residual: str | None = None  # where it is added: "pre_activation" or "post_activation"; None without one
    out_dtype: str | None = None  # None: the problem's `out_dtype`
    strict_nonfinite: bool = False
    return_stats: str | None = None  # of conv2d: what statistics of y are returned
    initial_state: bool = False  # of depthwise_conv1d, as the next
    return_final_state: bool = False
    chunks: str | None = None  # of depthwise_conv1d: what the chunks of x's channels are; None: the input
    scaled: bool = False  # of conv2d, as all below: whether the residual's beta is another number than 1
    precision: str | None = None
    packed: bool = False  # whether the filter is what `pack_filter` returns
    initial_frames: int = 0  # of conv3d: how many of the problem's D planes come in a tensor of their own, the first
    return_final_frames: int = 0  # how many of the last planes are returned
    filter_layout: str | None = None  # of a plain filter, a key of `FILTER_PERMS`; None: KCRS, or KCTRS of volumes
    x_scale: str | None = None  # "channel" of [C], "image" of [N, C]; None without one
    x_shift: str | None = None  # the same
    x_activation: str | None = None
    y_norm: str | None = None
    y_norm_weight: bool = False
    y_norm_bias: bool = False
    x_upsample: int = 1  # of images; the problem's H and W are those that are convolved
    return_before_norm: bool = False  # whether what the norm reads is returned too

    @property
    def needs_conv2d(self) -> bool:
        """Whether depthwise_conv1d lacks any of this."""
        other = self.scaled or self.packed or self.precision is not None or self.return_stats is not None
        return other or self.has_frames or self.filter_layout is not None or self.x_upsample != 1 or self.has_norm

    @property
    def needs_depthwise_conv1d(self) -> bool:
        """Whether conv2d lacks any of this."""
        return self.initial_state or self.return_final_state or self.chunks is not None

    @property
    def has_norm(self) -> bool:
        """Whether a norm is asked for, or what belongs to one."""
        return self.y_norm is not None or any(getattr(self, name) for name in pixel_norms.BELONG)

    @property
    def has_prologue(self) -> bool:
        """Whether something happens to x before it is convolved."""
        return (self.x_scale, self.x_shift, self.x_activation, self.x_upsample) != (None, None, None, 1)

    @property
    def has_frames(self) -> bool:
        """Whether frames come in or go out."""
        return self.initial_frames != 0 or self.return_final_frames != 0


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
    #: "depthwise_conv1d", "conv2d" or "conv3d"; None: the first of them that takes the problem
    operation: str | None = None
    #: per cent that the plan may take longer than the fastest where it loses less if an inferred constant is wrong;
    #: None: as a kept plan has it, else as by default
    robust: float | None = None

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Request:
        """The request whose dataclasses.asdict, or its JSON, this is."""
        values = {name: tuples(value) for name, value in document.items()}
        return Request(**{**values, "problem": ConvProblem(**values["problem"]), "asked": Asked(**values["asked"])})


def tuples(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    if isinstance(value, (list, tuple)):
        return tuple(tuples(one) for one in value)
    if isinstance(value, dict):
        return {name: tuples(one) for name, one in value.items()}
    return value


def nl_name(dtype: str) -> str:
    """nki.language's name of one of nkiconv's dtypes."""
    name = canonical(dtype)
    assert name is not None
    return name


def kernel_arguments(
    problem: ConvProblem,
    *,
    strict_nonfinite: bool = False,
    algorithm: str | None = None,
    config: Config = None,
    rows: bool = False,
) -> dict[str, Any]:
    """A kernel's arguments for a problem, beside arrays and epilogue; nothing for what is plain.

    rows: of the kernel of depthwise rows, which takes transposed ones with taps in reverse order.
    """
    names = ("padding", "stride", "rhs_dilation", "lhs_dilation")
    found: dict[str, Any] = {name: getattr(problem, name) for name in names}
    if problem.transposed and rows:
        found["flipped"] = True
    elif problem.transposed:
        taken_off = tuple((axis.window - 1 - axis.lo, axis.window - 1 - axis.hi) for axis in problem.axes)
        found = {"padding": taken_off, "stride": problem.lhs_dilation, "dilation": problem.rhs_dilation}
    found["feature_group_count"] = problem.groups
    if not problem.channels_first:
        found |= {"in_perm": X_PERMS[problem.layout], "out_perm": Y_PERMS[problem.layout]}
    if strict_nonfinite:
        found["strict_nonfinite"] = True
    if algorithm is not None:
        found |= {"algorithm": algorithm, "config": config}
    return found


def asked_violations(asked: Asked) -> Iterator[NkiconvError]:
    """What is wrong with an epilogue, whatever the problem."""
    flags = (
        "bias",
        "initial_state",
        "return_final_state",
        "strict_nonfinite",
        "scaled",
        "packed",
        *pixel_norms.BELONG,
    )
    planes = ("initial_frames", "return_final_frames")
    yield from refused(UnsupportedError, *(rules.flag(name, getattr(asked, name)) for name in flags))
    yield from refused(GeometryError, *(rules.number(name, getattr(asked, name), least=0) for name in planes))
    yield from refused(UnsupportedError, norms.return_stats(asked.return_stats))
    yield from refused(UnsupportedError, rules.activation(asked.activation), pixel_norms.kind(asked.y_norm))
    given = (pixel_norms.belongs(name, getattr(asked, name), asked.y_norm) for name in pixel_norms.BELONG)
    yield from refused(UnsupportedError, *given)
    forms = (rules.accepted(name, getattr(asked, name), (None, *rules.SCALE_FORMS)) for name in ("x_scale", "x_shift"))
    yield from refused(UnsupportedError, *forms, rules.activation(asked.x_activation, "x_activation", "x"))
    yield from refused(UnsupportedError, rules.accepted("x_upsample", asked.x_upsample, rules.UPSAMPLES))
    yield from refused(LayoutError, rules.chunks(asked.chunks))
    if asked.residual is not None:
        yield from refused(LayoutError, rules.residual_position(asked.residual))
    if asked.scaled is True and asked.residual is None:
        yield UnsupportedError("scaled=True: beta is the factor of a residual, and there is none; name its position")
    yield from refused(DtypeError, rules.accepted("out_dtype", asked.out_dtype, (None, *rules.KERNEL_DTYPES)))
    yield from refused(LayoutError, rules.layout("filter_layout", asked.filter_layout, (None, *rules.FILTER_PERMS)))
    yield from refused(UnsupportedError, rules.precision(asked.precision))


#: Matmuls for so many products at each precision, and the dtype at whose rate the array takes them. A pair of planes of
#: y takes four planes of taps instead of six: fractions of winograd are of a limit of two thirds.
_MATMULS = {"bf16": (1, 1, "bf16"), "tf32": (1, 1, "bf16"), "fp16x3": (3, 1, "fp16"), "winograd": (4, 6, "fp16")}


def array_work(problem: ConvProblem, asked: Asked) -> tuple[int, str]:
    """(flops that the array needs for a problem's products, the dtype whose peak they are held against)."""
    count, products, dtype = _MATMULS.get(asked.precision or "", (1, 1, problem.dtype))
    return count * problem.flops // products, dtype


def least_bytes(problem: ConvProblem, asked: Asked) -> int:
    """Bytes of HBM that a call moves at the least: the problem's, those of x's other chunks, and of pixels that HBM has
    once and the problem several times only one."""
    others = len(asked.chunks or "x") - 1
    more = others * problem.N * problem.C * problem.W * problem.itemsize
    return problem.min_bytes + more - bytes_spared(problem, asked)


def bytes_spared(problem: ConvProblem, asked: Asked) -> int:
    """Bytes of x that a problem has and HBM does not, as its pixels are there several times."""
    pixels = problem.N * problem.C * problem.H * problem.W
    return problem.itemsize * (pixels - pixels // asked.x_upsample**2)


def sorted_constants(constants: Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """Overrides of modelling constants in the order that makes equal ones equal.

    Raises UnsupportedError: they are no numbers by name, or trn2.toml has none of a name, or the model none of a value.
    """
    try:
        found = tuple(sorted((name, float(value)) for name, value in dict(constants or {}).items()))
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"constants={constants!r}: must be numbers by name ({error}); see trn2.toml") from None
    try:
        Rates(dict(found))
    except UnknownConstantError as error:
        raise UnsupportedError(str(error)) from None
    return found
