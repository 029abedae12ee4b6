"""conv_transpose1d to conv_transpose3d, with the signatures of torch.nn.functional and activation and residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from .. import rules
from ..errors import refuse
from .computers import host, modes
from .errors import GeometryError, LayoutError, raise_all
from .function_modes import unscripted
from .functional import Fused, convolve
from .operators.tensor_kinds import tensor_violations
from .places import groups_of


def _of_rank(rank: int) -> Any:
    name = f"conv_transpose{rank}d"

    @unscripted
    def conv_transpose(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        dilation: int | Sequence[int] = 1,
        *,
        activation: str | None = None,
        residual: Tensor | None = None,
        residual_position: str = "pre_activation",
        layer: str | None = None,
        strict_nonfinite: bool | None = None,
        x_scale: Tensor | None = None,
        x_shift: Tensor | None = None,
        x_activation: str | None = None,
        return_stats: str | None = None,
    ) -> Any:
        numbers = stride, padding, output_padding, groups, dilation
        strict = modes.wants_strict_nonfinite(strict_nonfinite)
        more = Fused(activation, residual_position, layer, strict, x_activation, return_stats)
        return convolve(name, input, weight, bias, residual, numbers, more, scales=(x_scale, x_shift))

    conv_transpose.__name__ = conv_transpose.__qualname__ = name
    axes, taps, out = _LETTERS[rank]
    args = _FIRST if rank == 1 else _REST.format("both axes" if rank == 2 else "all axes")
    conv_transpose.__doc__ = _DOCUMENTATION.format(name=name, axes=axes, taps=taps, out=out, args=args)
    return conv_transpose


#: Axes of input, filters and y, by rank.
_LETTERS = {1: ("W", "S", "Q"), 2: ("H, W", "R, S", "P, Q"), 3: ("D, H, W", "T, R, S", "Z, P, Q")}
_FIRST = """bias: [K]. input of bf16, fp16 or fp32, and float64 where torch computes.
    stride, padding, output_padding, groups, dilation: as torch has them.
    activation, residual, residual_position, layer, strict_nonfinite, x_scale, x_shift, x_activation, return_stats: as
        in `conv1d`."""
_REST = "The rest: as in `conv_transpose1d`, an int for {} or one for each."
_DOCUMENTATION = """`torch.nn.functional.{name}` by nkiconv's kernels.

Args:
    input: [N, C, {axes}] or [C, {axes}]. weight: [C, K / groups, {taps}].
    {args}

Returns: [N, K, {out}] or [K, {out}] of input's dtype; with return_stats the pair of it and the statistics, [P, N, K,
    3].

Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
"""

conv_transpose1d = _of_rank(1)
conv_transpose2d = _of_rank(2)
conv_transpose3d = _of_rank(3)


def polyphase_filter(weight: Tensor, groups: int = 1) -> Tensor:
    """The filter of a transposed convolution of stride 2 that equals a convolution of x upsampled by 2, with fewer
    products: for 3x3 taps 16 instead of 36 for four pixels of y.

        conv_transpose2d(x, polyphase_filter(w), b, stride=2, padding=1) = conv2d(x, w, b, padding=1, x_upsample=2)

    With R taps on an axis and padding p before and after it, p < R, the transposed convolution's padding is R - 1 - p.
    Its R + 1 taps are w[R-1], w[R-1] + w[R-2], ..., w[1] + w[0], w[0], summed over both axes in fp32 and rounded once
    to weight's dtype. That adds to the convolution's own error up to 2**-9 of each product in bf16 and 2**-12 in fp16,
    like rounding a filter to that dtype; in fp32 the error of two sums. Derivatives are those of the sums.

    Args:
        weight: [K, C / groups, R, S], of a dtype that `conv2d` takes. groups: of both convolutions.

    Returns: [C, K / groups, R + 1, S + 1] of weight's dtype.

    Raises: DtypeError, LayoutError, GeometryError, KindError.
    """
    raise_all("polyphase_filter cannot sum this", list(tensor_violations("weight", weight)))
    refuse(LayoutError, rules.rank("weight", weight.shape, "K, C / groups, R, S"))
    groups = groups_of(groups)
    refuse(GeometryError, rules.number("groups", groups) or rules.divides("groups", groups, K=weight.shape[0]))
    taps = host.forwards(host.wide(weight), groups)
    rows = F.pad(taps, (0, 0, 0, 1)) + F.pad(taps, (0, 0, 1, 0))
    return host.in_dtype(F.pad(rows, (0, 1)) + F.pad(rows, (1, 0)), weight.dtype)
