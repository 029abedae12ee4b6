"""Whether one kernel takes less than a convolution and a norm of its result apart, by quick plans of both."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

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

    Only where a Neuron device computes, or shapes alone are known, and NKICONV_PLAN lets calls be planned: elsewhere
    nothing is known of time, and all norms are in the call.

    Args:
        name: of the function; tensors: x, w, bias, the packed filter and the frames in front of x, or None; numbers:
            stride, padding, dilation, groups.
    """
    x, w, bias, packed, frames = tensors
    on_shapes = x.is_meta or isinstance(x, FakeTensor)
    if device.effort() == "kernel" or not (on_shapes or modes.computer(x) == "device"):
        return True
    called = Called(asked_for(name, w, numbers, fused), x, w, bias, None, packed, frames, norm=norm)
    return _pays(called.problem, called.planned, name, device.cores())


@functools.lru_cache(maxsize=1024)
def _pays(problem: ConvProblem, together: Asked, operation: str, lnc: int) -> bool:
    apart = dataclasses.replace(together, activation=None, y_norm=None, y_norm_weight=False, y_norm_bias=False)
    try:
        first, second = (
            answer(Request(problem=problem, lnc=lnc, asked=asked, operation=operation), quick=True)
            for asked in (together, apart)
        )
    except NkiconvError:  # no kernel takes it, or is timed
        return False
    elements = functools.reduce(int.__mul__, problem.output_shape)
    return first.modelled_us <= second.modelled_us + pass_us(elements, problem.dtype, lnc)
