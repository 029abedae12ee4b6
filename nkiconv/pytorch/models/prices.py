"""Whether one kernel takes less than a convolution and a norm before or after it apart, by quick plans of both."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ...errors import NkiconvError
from ...planner.entry import answer
from ...planner.floors import pass_us
from ...planner.request import Asked, Request
from ...problem import ConvProblem
from ..computers import device, modes
from ..functional import Fused, asked_for
from ..operators.pixel_norm import PixelNorm
from ..operators.planned import Called


def norm_pays(name: str, tensors: tuple[Any, ...], numbers: tuple[Any, ...], norm: PixelNorm, fused: Fused) -> bool:
    """Whether a call with a norm of its result takes less than one without it and a pass over what that writes.

    Args:
        name: of the function; tensors: x, w, bias, the packed filter and the frames in front of x, or None; numbers:
            stride, padding, dilation, groups.
    """
    x, w, bias, packed, frames = tensors
    if not _is_timed(x):
        return True
    called = Called(asked_for(name, w, numbers, fused), x, w, bias, None, packed, frames, norm=norm)
    apart = dataclasses.replace(called.planned, activation=None, y_norm=None, y_norm_weight=False, y_norm_bias=False)
    return _pays(called.problem, called.planned, apart, called.problem.output_shape, name, device.cores())


def prologue_pays(convolution: Any, x: Tensor, activation: str | None) -> bool:
    """Whether a convolution of what a norm and an activation make of x takes less than one without them and a pass over
    x. One group's products hide it: only others are planned. Padding is of zeros."""
    if convolution.groups == 1 or not _is_timed(x):
        return True
    name, numbers = f"conv{len(convolution.kernel_size)}d", (convolution.stride, convolution.padding)
    asked = asked_for(name, convolution.weight, (*numbers, convolution.dilation, convolution.groups), Fused())
    called = Called(asked, x, convolution.weight, convolution.bias, None)
    form = "image" if x.shape[0] > 1 else "channel"
    together = dataclasses.replace(called.planned, x_scale=form, x_shift=form, x_activation=activation)
    return _pays(called.problem, together, called.planned, tuple(x.shape), name, device.cores())


def _is_timed(x: Tensor) -> bool:
    """Whether a call's time is known: where a Neuron device computes, or shapes alone are known, and NKICONV_PLAN lets
    calls be planned. Elsewhere all norms are in the call."""
    on_shapes = x.is_meta or isinstance(x, FakeTensor)
    return device.effort() != "kernel" and (on_shapes or modes.computer(x) == "device")


@functools.lru_cache(maxsize=1024)
def _pays(
    problem: ConvProblem, together: Asked, apart: Asked, passed: tuple[int, ...], operation: str, lnc: int
) -> bool:
    """passed: shape of what the pass writes."""
    try:
        first, second = (
            answer(Request(problem=problem, lnc=lnc, asked=asked, operation=operation), quick=True)
            for asked in (together, apart)
        )
    except NkiconvError:  # no kernel takes it, or is timed
        return False
    return first.modelled_us <= second.modelled_us + pass_us(math.prod(passed), problem.dtype, lnc)
