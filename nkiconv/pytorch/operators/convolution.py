"""One call of an operator of any rank, and the checks of its tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import norms, rules
from ...axis import BLANK_MOST, Axis
from ...errors import refused
from ...problem import HBM_BYTES, ConvProblem
from ...rules import in_words_of
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all
from . import frames as front
from . import prologue
from .filters import packed_shape
from .tensor_kinds import DTYPES, are_positive, tensor_violations

#: The axes after the channels, by rank.
AXES = {1: "W", 2: "H, W", 3: "D, H, W"}
_TAPS = str.maketrans("DHW", "TRS")

#: Zeros around an axis, and steps between inputs or taps, above which results may be larger than memory, or blank.
FAR = BLANK_MOST // 2


@dataclass(frozen=True)
class Convolution:
    """Everything but the tensors of a call of operator `name`; a number, or a pair of zeros before and after, an axis.

    x_activation, x_upsample: of x, before it is convolved. layer: who calls, for messages. strict_nonfinite: whether
    NaN and Inf reach exactly the outputs that the definition gives them, of y and of gradients by x. return_stats:
    None, or "channel": statistics of y are a second result.
    """

    name: str
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    lhs_dilation: tuple[int, ...]
    groups: int
    activation: str | None = None
    residual_position: str = "pre_activation"
    layer: str | None = None
    strict_nonfinite: bool = False
    x_activation: str | None = None
    return_stats: str | None = None
    x_upsample: int = 1

    @property
    def transposed(self) -> bool:
        """Whether filters are [C, K / groups, ...] and their taps run backwards; `lhs_dilation` is torch's stride."""
        return "conv_transpose" in self.name

    @property
    def rank(self) -> int:
        """Axes of a row, an image or a volume: 1, 2 or 3."""
        return len(self.stride)

    @property
    def where(self) -> str:
        """Who calls, as messages begin."""
        return f"{self.layer} ({self.name})" if self.layer else self.name

    def has_prologue(self, scales: prologue.Scales) -> bool:
        """Whether something happens to x before it is convolved."""
        return prologue.is_asked(scales, self.x_activation, self.x_upsample)

    def plain(self) -> Convolution:
        """The same without a prologue, activations and statistics."""
        more: dict[str, Any] = {"activation": None, "x_activation": None, "x_upsample": 1, "return_stats": None}
        return dataclasses.replace(self, residual_position="pre_activation", **more)

    def axes(self, size: torch.Size, taps: torch.Size) -> list[Axis]:
        """The axes for images and filters of these sizes."""
        each = zip(size, taps, self.stride, self.padding, self.dilation, self.lhs_dilation, strict=True)
        return [Axis(one, tap, stride, lo, hi, dilation, gap) for one, tap, stride, (lo, hi), dilation, gap in each]

    def extents(self, size: torch.Size, taps: torch.Size) -> list[int]:
        """Z, P and Q of images and filters of these sizes, below 1 where no window fits."""
        return [axis.out for axis in self.axes(size, taps)]

    def shape(self, x: torch.Tensor, w: torch.Tensor) -> list[int]:
        """Of y; without input channels it has none, as torch's."""
        channels = 0 if x.shape[1] == 0 else self.outputs(w)
        return [x.shape[0], channels, *self.extents(self.convolved(x), w.shape[2:])]

    def convolved(self, x: torch.Tensor) -> torch.Size:
        """Sizes of the images that are convolved, without N and C."""
        return x.shape[2:] if self.x_upsample == 1 else torch.Size([self.x_upsample * size for size in x.shape[2:]])

    def outputs(self, w: torch.Tensor) -> int:
        """Output channels of a filter."""
        return w.shape[1] * self.groups if self.transposed else w.shape[0]

    def problem(self, x: torch.Tensor, w: torch.Tensor) -> ConvProblem:
        """The same as a ConvProblem; a row is an image of height 1. Raises its errors, and DtypeError of float64.

        Extents that torch.compile keeps as symbols become numbers here: a kernel is compiled for them.
        """
        raise_all(f"{self.name} has no kernel for this", list(tensor_violations("input", x, kernels_only=True)))
        N, C, *sizes = map(int, (*x.shape[:2], *self.convolved(x)))
        K, taps = int(self.outputs(w)), map(int, w.shape[2:])
        extents: dict[str, Any] = dict(zip("DHW"[-self.rank :], sizes, strict=True))
        extents |= zip("TRS"[-self.rank :], taps, strict=True)
        return ConvProblem(
            N=N,
            C=C,
            K=K,
            **extents,
            groups=self.groups,
            stride=_places(self.stride, 1),
            padding=_places(self.padding, (0, 0)),
            rhs_dilation=_places(self.dilation, 1),
            lhs_dilation=_places(self.lhs_dilation, 1),
            dtype=DTYPES[x.dtype],
            transposed=self.transposed,
        )

    @property
    def operation(self) -> str:
        """The planner's, whose kernel runs it."""
        if self.name in ("depthwise_conv1d", "depthwise_conv_transpose1d"):
            return "depthwise_conv1d"
        return f"{'conv_transpose' if self.transposed else 'conv'}{max(2, self.rank)}d"

    def check(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        packed: torch.Tensor | None = None,
        frames: torch.Tensor | None = None,
        scales: prologue.Scales = prologue.NO_SCALES,
    ) -> None:
        """Refuse tensors and arguments that do not go together, naming all violated rules. frames: in front of x's;
        scales: x_scale and x_shift.

        Raises: DtypeError, GeometryError, LayoutError, UnsupportedError.
        """
        named = {"input": x, "weight": w, "bias": bias, "residual": residual, "packed": packed}
        given = {name: tensor for name, tensor in named.items() if tensor is not None}
        kinds = [error for name, tensor in given.items() for error in tensor_violations(name, tensor)]
        self.refuse([*kinds, *self._together(given), *self._arguments(), *front.violations(x, frames)])
        if frames is not None and self.return_stats is not None:
            self.refuse([UnsupportedError("return_stats: is not taken with initial_frames; use channel_stats of y")])
        self.refuse([*prologue.violations(x, scales, self.x_activation, frames), *self._upsample()])
        self.refuse([*self._shapes(front.shaped(x, frames), w, bias, residual), *self._packed(w, packed)])

    def refuse(self, errors: list[NkiconvError]) -> None:
        """Raise all of them, with the layer's name in front of each."""
        if self.layer:
            errors = [type(error)(f"{self.layer}: {violation}") for error in errors for violation in error.violations]
        raise_all(f"{self.name} cannot run this call", errors)

    def _together(self, given: dict[str, torch.Tensor]) -> Iterator[NkiconvError]:
        """Errors of devices and dtypes of several tensors."""
        x = given["input"]
        for name, tensor in given.items():
            yield from refused(UnsupportedError, rules.same(name, "device", tensor.device, "input", x.device))
        weight = given["weight"]
        if torch.float64 not in (x.dtype, weight.dtype):
            yield from refused(DtypeError, rules.dtypes_together(x.dtype, weight.dtype, ("input", "weight")))
        for name, tensor in given.items():
            if (x.dtype == torch.float64) != (tensor.dtype == torch.float64):
                yield DtypeError(
                    f"{name}.dtype={tensor.dtype}: must be torch.float64 exactly when input's is (it is {x.dtype}); "
                    f"cast one of them"
                )

    def _arguments(self) -> Iterator[NkiconvError]:
        """Errors of everything that is no tensor."""
        places = {name: getattr(self, name) for name in ("stride", "dilation", "lhs_dilation")}
        wrong = [
            *(rules.numbers(in_words_of(self.transposed, name), value) for name, value in places.items()),
            rules.numbers("padding", tuple(one for pair in self.padding for one in pair), least=None),
            rules.numbers("groups", self.groups),
        ]
        yield from refused(GeometryError, *wrong)
        yield from refused(UnsupportedError, rules.activation(self.activation))
        yield from refused(UnsupportedError, rules.residual_position(self.residual_position))
        yield from refused(UnsupportedError, norms.return_stats(self.return_stats))

    def _upsample(self) -> Iterator[NkiconvError]:
        """Errors of x_upsample."""
        yield from refused(UnsupportedError, rules.accepted("x_upsample", self.x_upsample, rules.UPSAMPLES))
        if self.x_upsample != 1 and (self.transposed or self.rank != 2):
            yield UnsupportedError(f"x_upsample={self.x_upsample}: conv2d alone takes it; upsample input before")

    def _shapes(
        self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None
    ) -> Iterator[NkiconvError]:
        """Errors of shapes."""
        taps = AXES[self.rank].translate(_TAPS)
        of_w = f"{'C, K / groups' if self.transposed else 'K, C / groups'}, {taps}"
        wrong = [rules.rank("input", x.shape, f"N, C, {AXES[self.rank]}"), rules.rank("weight", w.shape, of_w)]
        yield from refused(LayoutError, *wrong)
        if any(wrong):
            return
        C, K, inputs = x.shape[1], self.outputs(w), w.shape[0 if self.transposed else 1]
        names = "input", "weight", "groups"
        yield from refused(
            GeometryError,
            rules.filter_channels(w.shape, inputs, C, self.groups, transposed=self.transposed, names=names),
            rules.divides("groups", self.groups, C=C, K=K),
        )
        lacks_channels = x.shape[1] == 0 and not self.transposed
        if not are_positive([w.shape[0], *w.shape[1 + lacks_channels :], *x.shape[1 + lacks_channels :]]):
            but = "N" if self.transposed else "N and C"
            yield GeometryError(
                f"input.shape={tuple(x.shape)}, weight.shape={tuple(w.shape)}: every extent but {but} must be at least "
                f"1, as in torch"
            )
            return
        if not are_positive(self.extents(self.convolved(x), w.shape[2:])):
            yield GeometryError(
                f"input.shape={tuple(x.shape)}: padded by {self.padding} it is smaller than the window of "
                f"weight.shape={tuple(w.shape)} with dilation={self.dilation}; pad it, or shorten the filter"
            )
        elif max(*map(max, self.padding), *self.lhs_dilation, *self.dilation) > FAR:
            yield from self._too_large(x, w)
        if bias is not None:
            yield from refused(GeometryError, rules.shape("bias", bias.shape, (K,), "[K]"))
        if residual is not None:
            yield from refused(GeometryError, rules.shape("residual", residual.shape, self.shape(x, w), "y's"))

    def _too_large(self, x: torch.Tensor, w: torch.Tensor) -> Iterator[NkiconvError]:
        """Errors of a result that does not fit in memory, or that consists almost only of zeros."""
        axes = self.axes(self.convolved(x), w.shape[2:])
        yield from refused(GeometryError, *rules.blank("ZPQ"[-self.rank :], axes, self.transposed))
        size = math.prod(self.shape(x, w)) * x.element_size()
        if size > HBM_BYTES:
            yield GeometryError(
                f"{f'stride={self.lhs_dilation}' if self.transposed else f'padding={self.padding}'}: the result "
                f"{tuple(self.shape(x, w))} takes {size / 2**30:,.0f} GiB, at most {HBM_BYTES >> 30} are possible; "
                f"{'use a smaller stride or dilation' if self.transposed else 'pad less'}"
            )

    def _packed(self, w: torch.Tensor, packed: torch.Tensor | None) -> Iterator[NkiconvError]:
        """Errors of a packed filter next to the plain one."""
        if packed is None or w.dim() != self.rank + 2:
            return
        if self.transposed:
            yield UnsupportedError("packed: filters of transposed convolutions need none; pass None")
            return
        if self.groups > 1:
            yield UnsupportedError(f"packed: groups={self.groups}; filters of groups are not packed; pass None")
        yield from refused(DtypeError, rules.same("packed", "dtype", packed.dtype, "weight", w.dtype))
        wanted = packed_shape(w.shape, w.element_size())
        yield from refused(GeometryError, rules.shape("packed", packed.shape, wanted, "pack_filter(weight)'s"))


def is_empty(x: torch.Tensor) -> bool:
    """Whether a call has no images or no input channels, so that y has no elements."""
    return x.shape[0] == 0 or x.shape[1] == 0


def filter_like(tensor: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """In place of a filter on a tensor's device, one that is only its shape and dtype."""
    return tensor.new_empty((), dtype=dtype).expand(list(size))


def _places(values: tuple[Any, ...], height: Any) -> tuple[Any, ...]:
    """A value for each axis of an image; `height` completes those of a row."""
    return (height, *values) if len(values) == 1 else values
