"""Requests to the planner: shapes only, no data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
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
    """The arguments besides the problem that change a kernel's work; see the public kernels' arguments."""

    bias: bool = False
    activation: str | None = None
    residual: str | None = None  # its position: "pre_activation" or "post_activation"; None without one
    out_dtype: str | None = None  # None: the problem's `out_dtype`
    strict_nonfinite: bool = False
    return_stats: str | None = None  # of conv2d: the returned statistics of y
    initial_state: bool = False  # of depthwise_conv1d, as the next
    return_final_state: bool = False
    chunks: str | None = None  # of depthwise_conv1d: the chunks of x's channels; None: the input alone
    scaled: bool = False  # of conv2d, as all below: whether the residual's beta is not 1
    precision: str | None = None  # of fp32 products
    packed: bool = False  # whether the filter is from `pack_filter`
    initial_frames: int = 0  # of conv3d: how many first planes of the problem's D are halo frames in a separate tensor
    return_final_frames: int = 0  # how many of the last planes are returned
    filter_layout: str | None = None  # of a plain filter, a key of `FILTER_PERMS`; None: KCRS, or KCTRS of volumes
    x_scale: str | None = None  # its form: "channel" for [C], "image" for [N, C]; None without one
    x_shift: str | None = None  # the same
    x_activation: str | None = None
    y_norm: str | None = None
    y_norm_weight: bool = False  # whether the norm has this tensor; the same for the next
    y_norm_bias: bool = False
    x_upsample: int = 1  # of images; the problem's H and W are those after upsampling
    return_before_norm: bool = False  # whether the norm's input is returned too

    @property
    def needs_conv2d(self) -> bool:
        """Whether depthwise_conv1d lacks any of these arguments."""
        other = self.scaled or self.packed or self.precision is not None or self.return_stats is not None
        norm = self.y_norm is not None or any(getattr(self, name) for name in pixel_norms.BELONG)
        return other or norm or self.has_frames or self.filter_layout is not None or self.x_upsample != 1

    @property
    def has_prologue(self) -> bool:
        """Whether a prologue of x is asked for."""
        return (self.x_scale, self.x_shift, self.x_activation, self.x_upsample) != (None, None, None, 1)

    @property
    def has_frames(self) -> bool:
        """Whether halo frames are passed or frames are returned."""
        return self.initial_frames != 0 or self.return_final_frames != 0

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the named arguments that are asked for, with their values."""
        return changed(self, Asked(), names)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question to the planner."""

    problem: ConvProblem
    lnc: int = 2
    asked: Asked = Asked()
    #: modelling constants instead of trn2.toml's, sorted by name
    constants: tuple[tuple[str, float], ...] = ()
    #: the algorithms to choose from; None: all
    algorithms: tuple[str, ...] | None = None
    #: the operation by its name, as in `Plan.operation`; None: that of the problem
    operation: str | None = None
    #: per cent that the plan may be slower than the fastest if it loses less when an inferred constant is wrong; None:
    #: any kept tuned plan, else the default
    robust: float | None = None

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Request:
        """The request of a `dataclasses.asdict` document, or of its JSON."""
        values = {name: tuples(value) for name, value in document.items()}
        return Request(**{**values, "problem": ConvProblem(**values["problem"]), "asked": Asked(**values["asked"])})


def changed(value: Any, plain: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass that differ from another's, with their values. names: only of these fields."""
    every = names or [one.name for one in fields(value)]
    return {name: getattr(value, name) for name in every if getattr(value, name) != getattr(plain, name)}


def tuples(value: Any) -> Any:
    """JSON's lists as tuples again."""
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
    """A kernel's arguments for a problem, besides arrays and epilogue; optional ones only if asked for.

    rows: for the kernel of depthwise rows, which takes transposed problems with taps in reverse order.
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
    """The errors of arguments that no problem allows."""
    flags = ("bias", "initial_state", "return_final_state", "strict_nonfinite", "scaled", "packed", *pixel_norms.BELONG)
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


#: (matmuls, products that they compute, dtype of their rate) of each precision. With winograd a pair of planes of y
#: takes four planes of taps instead of six, so its limit is two thirds of the time.
_MATMULS = {"bf16": (1, 1, "bf16"), "tf32": (1, 1, "bf16"), "fp16x3": (3, 1, "fp16"), "winograd": (4, 6, "fp16")}


def array_work(problem: ConvProblem, asked: Asked) -> tuple[int, str]:
    """(flops of the Tensor Engine for a problem's products, dtype of their peak rate)."""
    count, products, dtype = _MATMULS.get(asked.precision or "", (1, 1, problem.dtype))
    return count * problem.flops // products, dtype


def least_bytes(problem: ConvProblem, asked: Asked) -> int:
    """The least bytes of HBM that a call moves: the problem's, plus those of x's other chunks, less those of repeated
    pixels of an upsampled x."""
    others = len(asked.chunks or "x") - 1
    more = others * problem.N * problem.C * problem.W * problem.itemsize
    return problem.min_bytes + more - bytes_spared(problem, asked)


def bytes_spared(problem: ConvProblem, asked: Asked) -> int:
    """Bytes of the problem's x that are not in HBM, as upsampling repeats pixels."""
    pixels = problem.N * problem.C * problem.H * problem.W
    return problem.itemsize * (pixels - pixels // asked.x_upsample**2)


def sorted_constants(constants: Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """Overrides of modelling constants sorted by name.

    Raises UnsupportedError: constants are no numbers by name, trn2.toml has no such name, or the model no such value.
    """
    try:
        found = tuple(sorted((name, float(value)) for name, value in dict(constants or {}).items()))
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"constants={constants!r}: must be numbers by name ({error}); see trn2.toml") from None
    if not all(isinstance(name, str) for name, _ in found):
        raise UnsupportedError(f"constants={constants!r}: must be numbers by name; see trn2.toml")
    try:
        Rates(dict(found))
    except UnknownConstantError as error:
        raise UnsupportedError(str(error)) from None
    return found
