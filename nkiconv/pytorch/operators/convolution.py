"""What an operator of any rank computes, without its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...axis import BLANK_MOST, Axis
from ...problem import ConvProblem
from ..errors import NkiconvError, raise_all
from . import prologue
from .tensor_kinds import DTYPES, tensor_violations

#: The axes after the channels, by rank.
AXES = {1: "W", 2: "H, W", 3: "D, H, W"}

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

    def refuse(self, errors: list[NkiconvError]) -> None:
        """Raise all of them, with the layer's name in front of each."""
        if self.layer:
            errors = [type(error)(f"{self.layer}: {violation}") for error in errors for violation in error.violations]
        raise_all(f"{self.name} cannot run this call", errors)


def is_empty(x: torch.Tensor) -> bool:
    """Whether a call has no images or no input channels, so that y has no elements."""
    return x.shape[0] == 0 or x.shape[1] == 0


def filter_like(tensor: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """In place of a filter on a tensor's device, one that is only its shape and dtype."""
    return tensor.new_empty((), dtype=dtype).expand(list(size))


def _places(values: tuple[Any, ...], height: Any) -> tuple[Any, ...]:
    """A value for each axis of an image; `height` completes those of a row."""
    return (height, *values) if len(values) == 1 else values
