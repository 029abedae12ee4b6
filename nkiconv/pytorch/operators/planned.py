"""The planner's request for a call of a convolution operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ...planner.request import Asked
from ...problem import ConvProblem
from . import conv_with_norm
from .calls import ARGUMENTS, WITH_FRAMES, WITH_NORM, WITH_PROLOGUE, WITH_STATS, asked_of
from .convolution import Convolution
from .frames import shaped
from .pixel_norm import PixelNorm, asked_of_planner
from .prologue import NO_SCALES, Scales, form_of


class Called(NamedTuple):
    """The tensors of a call, and its Convolution."""

    asked: Convolution
    x: Tensor
    w: Tensor
    bias: Tensor | None
    residual: Tensor | None
    packed: Tensor | None = None
    frames: Tensor | None = None
    scales: Scales = NO_SCALES
    norm: PixelNorm | None = None

    @property
    def problem(self) -> ConvProblem:
        """Of both x and the frames in front of it."""
        return self.asked.problem(shaped(self.x, self.frames), self.w)

    @property
    def planned(self) -> Asked:
        """Everything but the problem."""
        asked = self.asked
        return Asked(
            bias=self.bias is not None,
            activation=asked.activation,
            residual=None if self.residual is None else asked.residual_position,
            packed=self.packed is not None,
            initial_frames=0 if self.frames is None else int(self.frames.shape[2]),
            strict_nonfinite=asked.strict_nonfinite,
            return_stats=asked.return_stats,
            x_scale=form_of(self.scales[0]),
            x_shift=form_of(self.scales[1]),
            x_activation=asked.x_activation,
            x_upsample=asked.x_upsample,
            **({} if self.norm is None else asked_of_planner(self.norm)),
        )


def called(name: str, args: Sequence[Any]) -> Called:
    """A call of operator `nkiconv::name`, of its arguments."""
    frames, scales, rest, stats = None, NO_SCALES, args[4:], None
    if name.endswith(WITH_NORM):
        asked, norm, packed = conv_with_norm.read(name.removesuffix(WITH_NORM), args)
        return Called(asked, args[0], args[1], args[2], args[3], packed, args[4], norm=norm)
    if name.endswith(WITH_FRAMES):
        frames, rest = rest[0], rest[1:]
    elif name.endswith((WITH_PROLOGUE, WITH_STATS)):
        scales, rest, stats = (rest[0], rest[1]), rest[2:], "channel" if name.endswith(WITH_STATS) else None
    plain = name.removesuffix(WITH_FRAMES).removesuffix(WITH_PROLOGUE).removesuffix(WITH_STATS)
    asked = asked_of(plain, *rest, return_stats=stats)
    packed = rest[ARGUMENTS] if len(rest) > ARGUMENTS else None
    return Called(asked, args[0], args[1], args[2], args[3], packed, frames, scales)
