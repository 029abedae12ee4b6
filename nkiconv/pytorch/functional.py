"""conv1d, conv2d and their depthwise forms with the signatures of torch.nn.functional, plus activation and residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..calls import same_padding
from ..errors import GeometryError, LayoutError, raise_all
from .operators.convolution import Convolution
from .operators.custom import NAMES, call
from .operators.tensor_kinds import tensor_violations


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_position: str = "pre_activation",
    layer: str | None = None,
    packed: Tensor | None = None,
) -> Tensor:
    """`torch.nn.functional.conv1d` by nkiconv's kernels; one filter a channel goes to the depthwise one.

    Args:
        input: [N, C, W] or [C, W]; bf16, fp16 or fp32. weight: [K, C / groups, S]. bias: [K].
        stride, padding, dilation, groups: as torch has them, "same" and "valid" too; and padding="causal",
            (S - 1) * dilation zeros in front of a row.
        activation: None, "relu", "silu", "gelu", "gelu_tanh", "tanh" or "sigmoid", fused.
        residual: shape of y, added before the activation, or behind it with residual_position="post_activation".
        layer: a name for messages.
        packed: what `pack_filter(weight)` returned, which the kernel then takes; not of groups.

    Returns: [N, K, Q] or [K, Q] of input's dtype.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    depthwise = _is_rank(weight, 3) and weight.shape[1] == 1 and weight.shape[0] == groups
    name = "depthwise_conv1d" if depthwise else "conv1d"
    more = (activation, residual_position, layer)
    return _convolve(name, input, weight, bias, residual, (stride, padding, dilation, groups), more, packed)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_position: str = "pre_activation",
    layer: str | None = None,
    packed: Tensor | None = None,
) -> Tensor:
    """`torch.nn.functional.conv2d` by nkiconv's kernels.

    Args:
        input: [N, C, H, W] or [C, H, W]. weight: [K, C / groups, R, S].
        The rest: as in `conv1d`, an int for both axes or one for each.

    Returns: [N, K, P, Q] or [K, P, Q] of input's dtype.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    more = (activation, residual_position, layer)
    return _convolve("conv2d", input, weight, bias, residual, (stride, padding, dilation, groups), more, packed)


def depthwise_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_position: str = "pre_activation",
    layer: str | None = None,
) -> Tensor:
    """`conv1d` with as many groups as channels.

    Args:
        weight: [C, 1, S].
        The rest: as in `conv1d`.

    Returns: [N, C, Q] or [C, Q] of input's dtype.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    more = (activation, residual_position, layer)
    groups = _groups(input, weight, 1)
    if _is_rank(weight, 3) and weight.shape[0] != groups:
        raise GeometryError(
            f"weight.shape={tuple(weight.shape)}: must be [C, 1, S] for C={groups} channels of input; use conv1d with "
            f"groups for several filters a channel"
        )
    return _convolve("depthwise_conv1d", input, weight, bias, residual, (stride, padding, dilation, groups), more)


def depthwise_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_position: str = "pre_activation",
    layer: str | None = None,
) -> Tensor:
    """`conv2d` with as many groups as channels.

    Args:
        weight: [C * multiplier, 1, R, S].
        The rest: as in `conv1d`, an int for both axes or one for each.

    Returns: [N, C * multiplier, P, Q] or [C * multiplier, P, Q] of input's dtype.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    more = (activation, residual_position, layer)
    groups = _groups(input, weight, 2)
    return _convolve("depthwise_conv2d", input, weight, bias, residual, (stride, padding, dilation, groups), more)


def _groups(x: Any, w: Any, rank: int) -> int:
    """Channels of images, which are groups."""
    raise_all("these tensors cannot be convolved", [*tensor_violations("input", x), *tensor_violations("weight", w)])
    if x.dim() not in (rank + 1, rank + 2):
        raise LayoutError(f"input.shape={tuple(x.shape)}: must have {rank + 2} axes, or {rank + 1} of one image")
    return int(x.shape[-rank - 1])


def _is_rank(tensor: Any, rank: int) -> bool:
    return isinstance(tensor, Tensor) and tensor.dim() == rank


def _convolve(
    name: str,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    numbers: tuple[Any, Any, Any, int],
    more: tuple[str | None, str, str | None],
    packed: Tensor | None = None,
) -> Tensor:
    """One call in torch's terms; numbers: stride, padding, dilation, groups; more: activation and so on."""
    rank = NAMES[name]
    wrong = [*tensor_violations("input", x), *tensor_violations("weight", w)]
    for key, one in (("bias", bias), ("residual", residual), ("packed", packed)):
        if one is not None and not isinstance(one, Tensor):
            wrong += tensor_violations(key, one)
    raise_all(f"{name} cannot run this call", wrong)
    x, w, bias, residual, packed = _autocast(x, w, bias, residual, packed)
    stride, padding, dilation = numbers[0], numbers[1], numbers[2]
    steps, gaps = _per_axis("stride", stride, rank), _per_axis("dilation", dilation, rank)
    asked = Convolution(
        name=name,
        stride=steps,
        padding=_zeros(padding, w, steps, gaps),
        dilation=gaps,
        lhs_dilation=(1,) * rank,
        groups=numbers[3],
        activation=more[0],
        residual_position=more[1],
        layer=more[2],
    )
    if x.dim() != rank + 1:
        asked.check(x, w, bias, residual, packed)
        return call(asked, x, w, bias, residual, packed)
    one = None if residual is None else residual.unsqueeze(0)
    asked.check(x.unsqueeze(0), w, bias, one, packed)
    return call(asked, x.unsqueeze(0), w, bias, one, packed).squeeze(0)


def _autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Under torch.autocast, floating tensors in its dtype, as torch's own convolutions take them."""
    kind = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return tensors
    wanted = torch.get_autocast_dtype(kind)
    return tuple(None if tensor is None else tensor.to(wanted) for tensor in tensors)


def _per_axis(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A number for each axis of one for all, or of one for each."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,) * rank
    values = tuple(value) if isinstance(value, (tuple, list, torch.Size)) else ()
    if len(values) == 1:
        values *= rank
    if len(values) != rank or any(isinstance(one, bool) or not isinstance(one, (int, torch.SymInt)) for one in values):
        raise GeometryError(f"{name}={value!r}: must be an int, or {rank} of them, one an axis; pass such")
    return values


def _zeros(padding: Any, w: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Zeros before and behind each axis, as torch understands padding, and "causal" of a row."""
    rank = len(stride)
    if padding == "valid":
        return ((0, 0),) * rank
    if padding == "same":
        if max(stride) > 1:
            raise GeometryError(f"padding='same', stride={stride}: torch defines it for stride 1 only; give numbers")
        return tuple(same_padding(taps, taps, 1, step) for taps, step in zip(w.shape[2:], dilation, strict=False))
    if padding == "causal" and rank == 1:
        return tuple(((taps - 1) * step, 0) for taps, step in zip(w.shape[2:], dilation, strict=False))
    if isinstance(padding, str):
        names = "'same' and 'valid'" if rank > 1 else "'same', 'valid' and 'causal'"
        raise GeometryError(f"padding={padding!r}: accepted are ints, {names}; use one of these")
    sides = _per_axis("padding", padding, rank)
    if min(sides) < 0:
        raise GeometryError(f"padding={padding!r}: must be at least 0, as in torch; crop input before")
    return tuple((zeros, zeros) for zeros in sides)
