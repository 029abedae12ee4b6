"""The operators in torch itself: for NKICONV_CPU=torch, and as the reference for the kernels.

They consist of differentiable torch functions, so all derivatives and transforms work. A plain convolution is torch's
own, except in fp16, and in bf16 on CPUs where oneDNN has none: torch sums derivatives of these in their own dtype.
Those, all calls with an activation or a residual, and `reference` are summed in fp32 and rounded once, as in kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ...activations import ACTIVATIONS
from ..operators.convolution import Convolution
from ..operators.prologue import Scales
from ..operators.tensor_kinds import memory_format

if TYPE_CHECKING:
    from ..operators.called import Called, FilterCall

_CONVOLVE: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSE: dict[int, Callable[..., torch.Tensor]] = {n: getattr(F, f"conv_transpose{n}d") for n in _CONVOLVE}
_ACTIVATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: partial(getattr(F, own.functional or name), **own.options) for name, own in ACTIVATIONS.items()
}
#: Dtypes that torch convolves itself. Without oneDNN's, bf16 takes it far longer than fp32 (examples/host_cost.py).
NATIVE: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
if torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported():
    NATIVE = (*NATIVE, torch.bfloat16)
#: dL/dw, and dL/dbias where it is wanted.
Filters = tuple[torch.Tensor, "torch.Tensor | None"]
#: Activations that may follow rounding: the result is the same.
_AFTER_ROUNDING = (None, "relu")


def convolve(called: Called) -> torch.Tensor:
    """y [N, K, ...] of x's dtype, in torch's memory format, of a call's x, w, bias and residual."""
    asked, x, w, bias, residual, *_ = called
    alike = x.dtype in NATIVE and x.dtype == w.dtype and (bias is None or bias.dtype == x.dtype)
    if alike and residual is None and (x.dtype != torch.bfloat16 or asked.activation in _AFTER_ROUNDING):
        y = _sums(asked, x, w, bias)  # where they are of x's dtype, nothing is rounded
        return y if asked.activation is None else activate(y, asked.activation)
    return reference(called)


def reference(called: Called) -> torch.Tensor:
    """The same, always summed in fp32, or float64 where x is, and rounded once."""
    return in_dtype(unrounded(called), called.x.dtype)


def unrounded(called: Called) -> torch.Tensor:
    """The same in fp32, or float64 where x is."""
    asked, x, w, bias, residual, *_ = called
    y = _sums(asked, wide(x), wide(w), None if bias is None else wide(bias))
    before = asked.residual_position == "pre_activation"
    if residual is not None and before:
        y = y + wide(residual)
    if asked.activation is not None:
        y = activate(y, asked.activation)
    if residual is not None and not before:
        y = y + wide(residual)
    return y


def prologued(asked: Convolution, x: torch.Tensor, scales: Scales) -> torch.Tensor:
    """The convolution's input, x_activation(x * x_scale + x_shift) upsampled by x_upsample: in fp32, or float64 if x
    is, and rounded once."""
    if not asked.has_prologue(scales):
        return x
    found = prologue_argument(x, scales)
    found = found if asked.x_activation is None else activate(found, asked.x_activation)
    return in_dtype(upsampled(found, asked.x_upsample), x.dtype)


def upsampled(x: torch.Tensor, times: int) -> torch.Tensor:
    """Each row and column of images so many times."""
    if times == 1:
        return x
    # torch's own converts extents to floats, which fails for torch.compile's symbols, and takes no empty images
    found = x[:, :, :, None, :, None].expand(*x.shape[:3], times, x.shape[3], times).flatten(2, 3).flatten(3, 4)
    return found.contiguous(memory_format=memory_format(x, x))


def prologue_argument(x: torch.Tensor, scales: Scales) -> torch.Tensor:
    """x_activation's argument, not rounded to x's dtype."""
    found, (scale, shift) = wide(x), scales
    found = found if scale is None else found * by_channel(scale, x)
    return found if shift is None else found + by_channel(shift, x)


def by_channel(numbers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[C] or [N, C] to go with x [N, C, ...]."""
    return numbers.reshape(*numbers.shape, *[1] * (x.dim() - 2))


def filters_gradient(given: FilterCall) -> Filters:
    """(dw of size and dtype, db [K] or None): torch's, summed in fp32, or float64 where x is."""
    asked, x, g, size, dtype, bias = given
    images, symmetric = padded(asked, wide(x))
    like, sizes = images.new_empty(size), [size[0]] if bias else None  # of which shapes are read
    numbers = asked.stride, symmetric, asked.dilation, False, [0] * asked.rank, asked.groups, [False, True, bias]
    _, dw, db = torch.ops.aten.convolution_backward.default(wide(g), images, like, sizes, *numbers)
    return dw.to(dtype).contiguous(), db if bias else None


def wide_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Of a tensor's sums."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as sums are taken: in fp32, or in float64."""
    return in_dtype(tensor, wide_dtype(tensor))


def in_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in a dtype; `to` takes as long as a small sum where it is in it."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def activate(z: torch.Tensor, activation: str) -> torch.Tensor:
    """One of nkiconv's activations."""
    return _ACTIVATE[activation](z)


def _sums(asked: Convolution, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if asked.transposed and (sums := _transposed_arguments(asked, w)) is not None:
        function, arguments = _TRANSPOSE[asked.rank], (x, w, bias, *sums)
    else:
        images, symmetric = padded(asked, x)
        filters = forwards(w, asked.groups) if asked.transposed else w
        function = _CONVOLVE[asked.rank]
        arguments = (images, filters, bias, asked.stride, symmetric, asked.dilation, asked.groups)
    if not torch.is_autocast_enabled("cpu"):
        return function(*arguments)
    with torch.autocast("cpu", enabled=False):  # dtypes are final; torch would cast them again
        return function(*arguments)


def _transposed_arguments(asked: Convolution, w: torch.Tensor) -> tuple[Any, ...] | None:
    """torch's arguments of a transposed convolution, or None if torch cannot express it."""
    windows = [(taps - 1) * gap for taps, gap in zip(w.shape[2:], asked.dilation, strict=True)]
    sides = [window - before for window, (before, _) in zip(windows, asked.padding, strict=True)]
    ends = [behind - before for before, behind in asked.padding]
    steps = zip(ends, asked.lhs_dilation, asked.dilation, strict=True)
    if max(asked.stride) > 1 or min(sides) < 0 or not all(0 <= end < max(step, gap) for end, step, gap in steps):
        return None
    return asked.lhs_dilation, sides, ends, asked.groups, asked.dilation


def forwards(w: torch.Tensor, groups: int) -> torch.Tensor:
    """A filter [C, K / groups, ...] of a transposed convolution as that of a convolution, [K, C / groups, ...]."""
    C, each, *taps = w.shape
    swapped = w.reshape(groups, C // groups, each, *taps).transpose(1, 2).reshape(groups * each, C // groups, *taps)
    return swapped.flip([*range(2, w.dim())])  # torch.compile gives a range as arguments its end too


def padded(asked: Convolution, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """(images with zeros between their elements and around them, or cropped; the symmetric padding left to torch)."""
    x = spread(x, asked.lhs_dilation)
    if all(before == behind >= 0 for before, behind in asked.padding):
        return x, [before for before, _ in asked.padding]
    return F.pad(x, [zeros for pair in reversed(asked.padding) for zeros in pair]), [0] * asked.rank


def spread(x: torch.Tensor, steps: tuple[int, ...]) -> torch.Tensor:
    """Images with step - 1 zeros between neighbours on each axis."""
    if max(steps) == 1:
        return x
    sizes = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], steps, strict=True)]
    found = x.new_zeros([*x.shape[:2], *sizes])
    index: Any = (..., *(slice(None, None, step) for step in steps))
    found[index] = x
    return found
