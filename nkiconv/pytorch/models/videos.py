"""Causal convolutions of videos whose forward is a published one, known by its `fingerprint`, without its copies.

Such a forward puts planes in front of a video and zeros around it, then convolves. Here the same attributes, read in
each call, become the padding and the initial frames of one convolution. A forward of any other code stays as it is, and
so does a call whose attributes or tensors mean something else than planes in front and zeros around.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..functional import conv3d
from .intercept import intercept


class Around(NamedTuple):
    """A video with the planes and zeros that a forward puts around it."""

    video: Tensor
    frames: Tensor | None  # planes in front of it
    planes: tuple[int, int]  # zeros before these, and after
    height: tuple[int, int]
    width: tuple[int, int]


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


#: Functions that pad a video like a published forward, by the forward's `fingerprint`.
_KNOWN: dict[str, Callable[..., Around | None]] = {
    # Wan 2.1's VAE, WanCausalConv3d and QwenImageCausalConv3d of diffusers 0.42
    "102b75c40c894332a1044f2c0bfa167c77ed691fde88db68ab96e4595e2342ba": _around_wan,
    # CosmosCausalConv3d of diffusers 0.42
    "e367ede310a3fc2c3f5f83c4f53b34d7a8d0290f35ae56785109b5bb9d1cab85": _around_cosmos,
}


@functools.cache
def fingerprint(function: Any) -> str | None:
    """A hash of a method's statements, without annotations; None if its source may differ from its code."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        [method] = ast.parse(source).body
        kind = compile(_imports(function) + "class _:\n" + textwrap.indent(source, "    "), "source", "exec", 0, True)
    except (OSError, TypeError, ValueError, SyntaxError, AttributeError):
        return None
    if not isinstance(method, ast.FunctionDef) or method.decorator_list or function.__kwdefaults__:
        return None
    body = next(one for one in kind.co_consts if isinstance(one, CodeType))
    compiled = next((one for one in body.co_consts if isinstance(one, CodeType)), None)
    if compiled is None or _statements(compiled) != _statements(function.__code__):
        return None
    method.name, method.returns = "forward", None
    for argument in ast.walk(method.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return hashlib.sha256(f"{ast.unparse(method)} {function.__defaults__}".encode()).hexdigest()


def _imports(function: Any) -> str:
    """Imports of the modules that a function names: Python compiles calls of their attributes in another way."""
    names = [name for name in function.__code__.co_names if isinstance(function.__globals__.get(name), ModuleType)]
    return "".join(f"import {name}\n" for name in names)


def _statements(code: CodeType) -> tuple[Any, ...]:
    """The parts of a code object that are equal if two functions have the same statements."""
    return code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount


def forward_of(kind: Any) -> dict[str, Callable[..., Any]] | None:
    """A forward equal to a class's own in every state of its instances, and `fused_forward`, which calls another
    function; None if the class is unknown."""
    own = kind.forward
    around = _KNOWN.get(fingerprint(own) or "")
    if around is None or not _calls_torch(kind, own):
        return None

    def fused(self: Any, args: tuple[Any, ...], named: dict[str, Any], function: Callable[..., Any]) -> Any:
        """The result of one call of a function with conv3d's arguments; None if the forward computes something else."""
        found, padding = None, None
        try:
            found = around(self, *args, **named)
            padding = None if found is None else _padding(self, found)
        except (AttributeError, IndexError, TypeError, ValueError):
            pass  # attributes or arguments that the module's own forward refuses, or takes otherwise
        if found is None or padding is None:
            return None
        numbers: Any = (self.stride, padding, self.dilation, self.groups)
        weight, packed = self._filters(found.video)
        more = {**self._fused(), "packed": packed, "initial_frames": found.frames}
        return function(found.video, weight, self.bias, *numbers, **more)

    @functools.wraps(own)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        y = fused(self, args, named, conv3d)
        if y is None:
            with intercept(self.strict_nonfinite):
                return own(self, *args, **named)
        return y

    return {"forward": forward, "fused_forward": fused}


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
    """Zeros before and after each axis; None if the video has other padding too."""
    sides = tuple(
        (before + zeros, behind + zeros) for (before, behind), zeros in zip(around[2:], module.padding, strict=True)
    )
    plain = (
        around.video.dim() == 5
        and module.padding_mode == "zeros"
        and all(type(side) is int for pair in sides for side in pair)
        and min(*around.height, *around.width, around.planes[1]) >= 0
    )
    # frames stand in front of a window of several planes, and nothing after the video
    joined = around.frames is None or (module.kernel_size[0] > 1 and sides[0][1] == 0)
    return sides if plain and joined else None
