"""One call of a convolution operator, of one for its filters' gradients, or of `causal_conv1d_split`: tensors, their
checks, and what the planner is asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ... import norms, rules
from ...errors import refused
from ...problem import HBM_BYTES, ConvProblem
from ...rules import in_words_of
from ...schedules.split import Split
from ..computers import host
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError
from . import frames as front
from . import pixel_norm, prologue
from .convolution import AXES, FAR, Convolution, filter_like
from .filters import packed_shape
from .tensor_kinds import are_positive, beside_violations, float64_violations, memory_format, tensor_violations

if TYPE_CHECKING:
    from ...planner.request import Asked

#: The name of the operator of a `SplitCall`.
SPLIT = "causal_conv1d_split"
_TAPS = str.maketrans("DHW", "TRS")


class Called(NamedTuple):
    """The tensors of a call, and its Convolution.

    x: [N, C, ...]. w: [K, C / groups, ...], or of transposed ones [C, K / groups, ...]. bias: [K]. residual: of y's
    shape. packed: the filter in the kernel's order. frames: in front of x's. scales: x_scale and x_shift. state: the
    columns in front of causal rows, None for zeros; keeps_state: whether the last ones are a second result; chunks: of
    the channels of gated rows.
    """

    asked: Convolution
    x: Tensor
    w: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    packed: Tensor | None = None
    frames: Tensor | None = None
    scales: prologue.Scales = prologue.NO_SCALES
    norm: pixel_norm.PixelNorm | None = None
    state: Tensor | None = None
    keeps_state: bool = False
    chunks: str | None = None

    @property
    def whole(self) -> Tensor:
        """In place of x and the frames in front of it, or of what is made of its chunks, a tensor of their shape."""
        if self.chunks is not None:
            return self.x.narrow(1, 0, self.asked.groups)
        return front.shaped(self.x, self.frames)

    @property
    def behind_state(self) -> Called:
        """The same of rows with the state in front, in place of the zeros there."""
        rows = front.with_state(self.x, self.state, self.w.shape[2] - 1)
        asked = dataclasses.replace(self.asked, padding=((0, self.asked.padding[0][1]),))
        return self._replace(asked=asked, x=rows, state=None, keeps_state=False)

    @property
    def problem(self) -> ConvProblem:
        """Of both x and the frames in front of it."""
        return self.asked.problem(self.whole, self.w)

    @property
    def shape(self) -> list[int]:
        """Of y."""
        return self.asked.shape(self.whole, self.w)

    @property
    def has_prologue(self) -> bool:
        """Whether something happens to x before it is convolved."""
        return self.asked.has_prologue(self.scales)

    @property
    def added(self) -> Tensor | None:
        """The residual that is added before the activation."""
        return self.residual if self.asked.residual_position == "pre_activation" else None

    @property
    def planned(self) -> Asked:
        """The planner's request, but for the problem."""
        from ...planner.request import Asked

        asked = self.asked
        return Asked(
            bias=self.bias is not None,
            activation=asked.activation,
            residual=None if self.residual is None else asked.residual_position,
            packed=self.packed is not None,
            initial_frames=0 if self.frames is None else int(self.frames.shape[2]),
            strict_nonfinite=asked.strict_nonfinite,
            return_stats=asked.return_stats,
            x_scale=prologue.form_of(self.scales[0]),
            x_shift=prologue.form_of(self.scales[1]),
            x_activation=asked.x_activation,
            x_upsample=asked.x_upsample,
            initial_state=self.state is not None,
            return_final_state=self.keeps_state,
            chunks=self.chunks,
            **({} if self.norm is None else pixel_norm.asked_of_planner(self.norm)),
        )

    def plain(self) -> Called:
        """The same without a prologue, activations, statistics and a norm: the activation's argument, or the norm's."""
        scales = prologue.NO_SCALES
        return self._replace(asked=self.asked.plain(), residual=self.added, scales=scales, norm=None)

    def made(self) -> Tensor:
        """A checked call's y without values, in torch's memory format."""
        self.check()
        order = memory_format(self.x, self.w)
        return torch.empty(self.shape, dtype=self.x.dtype, device=self.x.device, memory_format=order)

    def check(self) -> None:
        """Refuse tensors and arguments that do not go together, naming all violated rules.

        Raises: DtypeError, GeometryError, LayoutError, UnsupportedError.
        """
        asked, x, frames = self.asked, self.x, self.frames
        named = {"input": x, "weight": self.w, "bias": self.bias, "residual": self.residual, "packed": self.packed}
        given = {name: tensor for name, tensor in named.items() if tensor is not None}
        kinds = [error for name, tensor in given.items() for error in tensor_violations(name, tensor)]
        asked.refuse([*kinds, *self._together(given), *self._arguments(), *front.violations(x, frames)])
        if frames is not None and asked.return_stats is not None:
            asked.refuse([UnsupportedError("return_stats: is not taken with initial_frames; use channel_stats of y")])
        asked.refuse([*prologue.violations(x, self.scales, asked.x_activation, frames), *self._upsample()])
        asked.refuse([*self._shapes(), *self._packed()])
        if self.norm is not None:
            asked.refuse(list(pixel_norm.violations(self.norm, asked, x, self.w, self.scales)))

    def _together(self, given: dict[str, Tensor]) -> Iterator[NkiconvError]:
        """Errors of devices and dtypes of several tensors."""
        x = given["input"]
        for name, tensor in given.items():
            yield from refused(UnsupportedError, rules.same(name, "device", tensor.device, "input", x.device))
        weight = given["weight"]
        if torch.float64 not in (x.dtype, weight.dtype):
            yield from refused(DtypeError, rules.dtypes_together(x.dtype, weight.dtype, ("input", "weight")))
        for name, tensor in given.items():
            yield from float64_violations(name, tensor, x)

    def _arguments(self) -> Iterator[NkiconvError]:
        """Errors of everything that is no tensor."""
        asked = self.asked
        places = {name: getattr(asked, name) for name in ("stride", "dilation", "lhs_dilation")}
        wrong = [
            *(rules.numbers(in_words_of(asked.transposed, name), value) for name, value in places.items()),
            rules.numbers("padding", tuple(one for pair in asked.padding for one in pair), least=None),
            rules.numbers("groups", asked.groups),
        ]
        yield from refused(GeometryError, *wrong)
        names = rules.activation(asked.activation), rules.residual_position(asked.residual_position)
        yield from refused(UnsupportedError, *names, norms.return_stats(asked.return_stats))

    def _upsample(self) -> Iterator[NkiconvError]:
        """Errors of x_upsample."""
        times = self.asked.x_upsample
        wrong = rules.accepted("x_upsample", times, rules.UPSAMPLES)
        yield from refused(UnsupportedError, wrong)
        if not wrong and times != 1 and (self.asked.transposed or self.asked.rank != 2):
            yield UnsupportedError(f"x_upsample={times}: conv2d alone takes it; upsample input before")

    def _shapes(self) -> Iterator[NkiconvError]:
        """Errors of shapes."""
        asked, x, w = self.asked, self.whole, self.w
        taps = AXES[asked.rank].translate(_TAPS)
        of_w = f"{'C, K / groups' if asked.transposed else 'K, C / groups'}, {taps}"
        wrong = [rules.rank("input", x.shape, f"N, C, {AXES[asked.rank]}"), rules.rank("weight", w.shape, of_w)]
        yield from refused(LayoutError, *wrong)
        if any(wrong):
            return
        C, K, inputs = x.shape[1], asked.outputs(w), w.shape[0 if asked.transposed else 1]
        names = "input", "weight", "groups"
        yield from refused(
            GeometryError,
            rules.filter_channels(w.shape, inputs, C, asked.groups, transposed=asked.transposed, names=names),
            rules.divides("groups", asked.groups, C=C, K=K),
        )
        lacks_channels = x.shape[1] == 0 and not asked.transposed
        if not are_positive([w.shape[0], *w.shape[1 + lacks_channels :], *x.shape[1 + lacks_channels :]]):
            but = "N" if asked.transposed else "N and C"
            yield GeometryError(
                f"input.shape={tuple(x.shape)}, weight.shape={tuple(w.shape)}: every extent but {but} must be at least "
                f"1, as in torch"
            )
            return
        if not are_positive(asked.extents(asked.convolved(x), w.shape[2:])):
            yield GeometryError(
                f"input.shape={tuple(x.shape)}: padded by {asked.padding} it is smaller than the window of "
                f"weight.shape={tuple(w.shape)} with dilation={asked.dilation}; pad it, or shorten the filter"
            )
        elif max(*map(max, asked.padding), *asked.lhs_dilation, *asked.dilation) > FAR:
            yield from self._too_large(x)
        if self.bias is not None:
            yield from refused(GeometryError, rules.shape("bias", self.bias.shape, (K,), "[K]"))
        if self.residual is not None:
            yield from refused(GeometryError, rules.shape("residual", self.residual.shape, asked.shape(x, w), "y's"))

    def _too_large(self, x: Tensor) -> Iterator[NkiconvError]:
        """Errors of a result that does not fit in memory, or that consists almost only of zeros."""
        asked, w = self.asked, self.w
        axes = asked.axes(asked.convolved(x), w.shape[2:])
        yield from refused(GeometryError, *rules.blank("ZPQ"[-asked.rank :], axes, asked.transposed))
        size = math.prod(asked.shape(x, w)) * x.element_size()
        if size > HBM_BYTES:
            yield GeometryError(
                f"{f'stride={asked.lhs_dilation}' if asked.transposed else f'padding={asked.padding}'}: the result "
                f"{tuple(asked.shape(x, w))} takes {size / 2**30:,.0f} GiB, at most {HBM_BYTES >> 30} are possible; "
                f"{'use a smaller stride or dilation' if asked.transposed else 'pad less'}"
            )

    def _packed(self) -> Iterator[NkiconvError]:
        """Errors of a packed filter next to the plain one."""
        asked, w, packed = self.asked, self.w, self.packed
        if packed is None or w.dim() != asked.rank + 2:
            return
        if asked.transposed:
            yield UnsupportedError("packed: filters of transposed convolutions need none; pass None")
            return
        if asked.groups > 1:
            yield UnsupportedError(f"packed: groups={asked.groups}; filters of groups are not packed; pass None")
        yield from refused(DtypeError, rules.same("packed", "dtype", packed.dtype, "weight", w.dtype))
        wanted = packed_shape(w.shape, w.element_size())
        yield from refused(GeometryError, rules.shape("packed", packed.shape, wanted, "pack_filter(weight)'s"))


class FilterCall(NamedTuple):
    """A call of an operator for gradients by filters: a convolution, x and dL/dy, and the size and dtype of dL/dw.

    bias: whether dL/dbias is wanted too.
    """

    asked: Convolution
    x: Tensor
    g: Tensor
    size: tuple[int, ...]
    dtype: torch.dtype
    bias: bool

    @property
    def empty_bias(self) -> Tensor:
        """dL/dbias without values; of no elements unless it is wanted."""
        return self.x.new_empty(self.size[0] if self.bias else 0, dtype=host.wide_dtype(self.x))

    def check(self) -> None:
        """Refuse tensors that do not fit together, naming all violated rules."""
        asked, x, g, size, dtype, _ = self
        errors: list[NkiconvError] = [*tensor_violations("input", x), *tensor_violations("grad", g)]
        if len(size) != asked.rank + 2 or not are_positive(size):
            errors.append(GeometryError(f"size={size}: must be {asked.rank + 2} ints of at least 1; pass the filter's"))
        asked.refuse(errors)
        # sums are fp32, so an fp32 gradient may belong to a filter of any dtype
        like = filter_like(x, size, x.dtype if dtype == torch.float32 else dtype)
        Called(asked, x, like).check()
        errors += beside_violations("grad", g, x)
        errors += refused(GeometryError, rules.shape("grad", g.shape, asked.shape(x, like), "y's"))
        asked.refuse(errors)


class SplitCall(NamedTuple):
    """The arguments of `causal_conv1d_split`, splits and places as tuples."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    initial_states: Tensor | None
    splits: tuple[Split, ...]
    activation: str | None
    eps: float
    layout: str
    return_final_states: bool
    cu_seqlens: tuple[int, ...] | None
    state_positions: tuple[int, ...] | None
    first_channel: int | None
    layer: str | None

    @property
    def where(self) -> str:
        """Who calls, as messages begin."""
        return self.layer or SPLIT

    @property
    def rows(self) -> Tensor:
        """What is convolved of x, as [N, C, L]."""
        rows = self.x if self.layout == "NCW" else self.x.transpose(1, 2)
        return rows if self.first_channel is None else rows.narrow(1, self.first_channel, self.weight.shape[0])

    @property
    def num_states(self) -> int:
        """Rows that have states: images or sequences."""
        return self.x.shape[0] if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def places(self) -> dict[str, Any]:
        """The kernel's arguments of sequences, positions and channels, as far as they are asked for."""
        named = {name: getattr(self, name) for name in ("cu_seqlens", "state_positions", "first_channel")}
        return {name: one for name, one in named.items() if one is not None}

    def mapped(self, function: Callable[[Tensor], Tensor]) -> SplitCall:
        """The same of other tensors."""
        bias, before = (None if one is None else function(one) for one in (self.bias, self.initial_states))
        return self._replace(x=function(self.x), weight=function(self.weight), bias=bias, initial_states=before)
