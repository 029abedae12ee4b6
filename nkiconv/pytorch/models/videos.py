"""Causal convolutions of videos whose forward is a published one, line for line, without its copies.

Such a forward puts planes in front of a video and zeros around it, then convolves. Here the same attributes, read in
each call, become the padding and the initial frames of one convolution. A forward of any other code stays as it is, and
so does a call whose attributes or tensors mean something else than planes in front and zeros around.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..functional import conv3d
from .intercept import intercept


class Around(NamedTuple):
    """What a forward puts around a video."""

    video: Tensor
    frames: Tensor | None  # planes in front of it
    planes: tuple[int, int]  # zeros in front of these, and behind
    height: tuple[int, int]
    width: tuple[int, int]


class _Wan(torch.nn.Conv3d):
    """The causal convolution of Wan 2.1's VAE, and of diffusers' Wan and Qwen-Image."""

    def forward(self: Any, x: Any, cache_x: Any = None) -> Any:
        padding = list(self._padding)
        if cache_x is not None and self._padding[4] > 0:
            cache_x = cache_x.to(x.device)
            x = torch.cat([cache_x, x], dim=2)
            padding[4] -= cache_x.shape[2]
        x = F.pad(x, padding)
        return super().forward(x)


class _Cosmos(torch.nn.Conv3d):
    """The causal convolution of diffusers' Cosmos VAE."""

    def forward(self: Any, hidden_states: Any) -> Any:
        hidden_states_prev = hidden_states[:, :, :1, ...].repeat(1, 1, self.temporal_pad, 1, 1)
        hidden_states = torch.cat([hidden_states_prev, hidden_states], dim=2)
        hidden_states = F.pad(hidden_states, (*self.spatial_pad, 0, 0), mode=self.pad_mode, value=0.0)
        return super().forward(hidden_states)


def _around_wan(module: Any, x: Tensor, cache_x: Tensor | None = None) -> Around | None:
    left, right, top, bottom, front, behind = module._padding
    frames = None
    if cache_x is not None and front > 0:
        if cache_x.dtype != x.dtype or _without_planes(cache_x) != _without_planes(x):
            return None
        frames = cache_x.to(x.device)
        front -= frames.shape[2]
    return Around(x, frames, (front, behind), (top, bottom), (left, right))


def _around_cosmos(module: Any, hidden_states: Tensor) -> Around | None:
    left, right, top, bottom = module.spatial_pad
    if module.pad_mode != "constant" or module.temporal_pad < 0 or hidden_states.shape[2] < 1:
        return None
    first = hidden_states[:, :, :1].expand(-1, -1, module.temporal_pad, -1, -1)
    return Around(hidden_states, first, (0, 0), (top, bottom), (left, right))


def _without_planes(x: Tensor) -> tuple[int, ...]:
    return (*x.shape[:2], *x.shape[3:])


#: What puts the same around a video as a published forward.
_KNOWN: tuple[tuple[Any, Callable[..., Around | None]], ...] = (
    (_Wan.forward, _around_wan),
    (_Cosmos.forward, _around_cosmos),
)


def forward_of(kind: Any) -> Callable[..., Any] | None:
    """A forward that computes what a class's own does, in every state of its instances; None where nobody knows one."""
    own = kind.forward
    around = next((around for known, around in _KNOWN if _same_code(own, known)), None)
    if around is None or not _calls_torch(kind, own):
        return None

    @functools.wraps(own)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        found, padding = None, None
        try:
            found = around(self, *args, **named)
            padding = None if found is None else _padding(self, found)
        except (AttributeError, IndexError, TypeError, ValueError):
            pass  # attributes or arguments that the module's own forward refuses, or takes otherwise
        if found is None or padding is None:
            with intercept(self.strict_nonfinite):
                return own(self, *args, **named)
        numbers: Any = (self.stride, padding, self.dilation, self.groups)
        weight, packed = self._filters()
        more = {"layer": self.layer, "packed": packed, "initial_frames": found.frames}
        more["strict_nonfinite"] = self.strict_nonfinite
        return conv3d(found.video, weight, self.bias, *numbers, **more)

    return forward


def _same_code(one: Any, other: Any) -> bool:
    """Whether two functions were compiled from the same statements."""
    codes: list[Any] = [getattr(function, "__code__", None) for function in (one, other)]
    if None in codes or one.__defaults__ != other.__defaults__ or one.__kwdefaults__:
        return False
    first, second = (
        (code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
        for code in codes
    )
    return first == second


def _calls_torch(kind: Any, own: Any) -> bool:
    """Whether the names in a known forward are torch's and Python's, and its super() is torch's Conv3d."""
    names, order = own.__globals__, kind.__mro__
    behind = order[order.index(own.__closure__[0].cell_contents) + 1]
    return (
        names.get("F") is F
        and names.get("torch") is torch
        and not {"list", "super"} & names.keys()
        and behind is torch.nn.Conv3d
        and kind._conv_forward is torch.nn.Conv3d._conv_forward
    )


def _padding(module: Any, around: Around) -> tuple[tuple[int, int], ...] | None:
    """Zeros in front of and behind each axis; None where they are not all that is around the video."""
    sides = tuple(
        (before + zeros, behind + zeros) for (before, behind), zeros in zip(around[2:], module.padding, strict=True)
    )
    plain = (
        around.video.dim() == 5
        and module.padding_mode == "zeros"
        and all(type(side) is int for pair in sides for side in pair)
        and min(*around.height, *around.width, around.planes[1]) >= 0
    )
    # frames stand in front of a window of several planes, and nothing behind the video
    joined = around.frames is None or (module.kernel_size[0] > 1 and sides[0][1] == 0)
    return sides if plain and joined else None
